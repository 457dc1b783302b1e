//! Events on the RoomCluster: what happened, in the order in which it happened.
//!
//! Deciding which events there are is pure; publishing is best effort, because an event is for people and
//! nothing depends on it.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder};
use roomcluster_crds::{Phase, RoomClusterStatus};

use crate::plan::{Blocked, Grounds, Step};

/// An event's note may have at most 1 kB.
const NOTE_MAX_BYTES: usize = 1_000;

/// One event, before it is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether a person should look.
    pub is_warning: bool,
    /// A constant name.
    pub reason: &'static str,
    /// A sentence.
    pub note: String,
    /// What the operator was doing.
    pub action: &'static str,
}

fn notice(is_warning: bool, reason: &'static str, action: &'static str, note: impl Into<String>) -> Notice {
    Notice { is_warning, reason, note: note.into(), action }
}

/// The notice of a step that was taken; none for those that only tell a node or a probe something.
#[must_use]
pub fn of_step(step: &Step) -> Option<Notice> {
    Some(match step {
        Step::CreatePod { revision } => {
            notice(false, "PodCreated", "Create", format!("created a pod of revision {revision}"))
        }
        Step::BeginDrain { pod, intent, .. } => {
            let reasons: Vec<_> = intent.reasons.iter().map(|reason| reason.as_str()).collect();
            let rooms = intent.rooms_at_start.map_or_else(|| "unknown".to_owned(), |rooms| rooms.to_string());
            let note = format!("pod {} drains ({}); rooms: {rooms}", pod.name, reasons.join(", "));
            notice(false, "DrainStarted", "Drain", note)
        }
        Step::WithdrawDrain { pod, .. } => {
            notice(false, "DrainWithdrawn", "Withdraw", format!("pod {} accepts rooms again", pod.name))
        }
        Step::EndPod { pod, grounds } => of_end(pod.name.as_str(), grounds),
        Step::AmendDrain { .. } | Step::SetOrder { .. } | Step::SetGate { .. } => return None,
    })
}

fn of_end(pod: &str, grounds: &Grounds) -> Notice {
    let (is_warning, why) = match grounds {
        Grounds::Empty => (false, "it holds no rooms, by its own count and by the database".to_owned()),
        Grounds::NeverRan => (false, "no process of it has ever run".to_owned()),
        Grounds::NotRunning => (false, "its process has ended and nothing of it is leased".to_owned()),
        Grounds::OnlyPod => (false, "it is the only pod, and holds no rooms by its own count and by the database".to_owned()),
        Grounds::NoSuccessor { rooms } => {
            (false, format!("it is the last pod of a cluster scaled to zero, and releases its {rooms} rooms"))
        }
        Grounds::TimedOut { rooms } => {
            let rooms = rooms.map_or_else(|| "an unknown number of".to_owned(), |rooms| rooms.to_string());
            (true, format!("the drain timed out and onTimeout is Terminate; it held {rooms} rooms"))
        }
    };
    notice(is_warning, "PodEnded", "End", format!("ended pod {pod}: {why}"))
}

/// The notice of a change of phase, or of what is wrong.
#[must_use]
pub fn of_transition(before: &RoomClusterStatus, after: &RoomClusterStatus) -> Option<Notice> {
    let phase = after.phase?;
    let wrong = |status: &RoomClusterStatus| {
        let degraded = status.conditions.iter().find(|c| c.type_ == "Degraded" && c.status == "True");
        degraded.map(|degraded| degraded.reason.clone())
    };
    if before.phase == Some(phase) && wrong(before) == wrong(after) {
        return None;
    }
    let note = after.message.clone().unwrap_or_default();
    let reason = match phase {
        Phase::Pending => "Pending",
        Phase::Migrating => "Migrating",
        Phase::Scaling => "Scaling",
        Phase::Rolling => "Rolling",
        Phase::Draining => "Draining",
        Phase::Paused => "Paused",
        Phase::Degraded => "Degraded",
        Phase::Ready => "Ready",
    };
    Some(notice(phase == Phase::Degraded, reason, "Reconcile", note))
}

/// The notice of something that is newly not done.
#[must_use]
pub fn of_blocked(blocked: &Blocked) -> Notice {
    let note = match &blocked.pod {
        Some(pod) => format!("pod {pod} waits: {}", blocked.reason),
        None => format!("waits: {}", blocked.reason),
    };
    notice(!blocked.reason.is_legitimate_wait(), blocked.reason.name(), "Wait", note)
}

/// Publishes a notice about the cluster.
pub async fn publish(recorder: &Recorder, notice: &Notice, cluster: &ObjectReference) {
    let event = Event {
        type_: if notice.is_warning { EventType::Warning } else { EventType::Normal },
        reason: notice.reason.to_owned(),
        note: Some(shortened(&notice.note)),
        action: notice.action.to_owned(),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&event, cluster).await {
        tracing::debug!(error = &error as &dyn std::error::Error, "event not published");
    }
}

fn shortened(note: &str) -> String {
    let end = (0..=note.len().min(NOTE_MAX_BYTES)).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0);
    note[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_between_characters() {
        let cut = shortened(&"é".repeat(600));
        assert_eq!(cut.len(), NOTE_MAX_BYTES);
        assert_eq!(shortened("short"), "short");
    }

    #[test]
    fn a_change_of_phase_is_told_once() {
        let rolling = RoomClusterStatus { phase: Some(Phase::Rolling), ..RoomClusterStatus::default() };
        assert_eq!(of_transition(&RoomClusterStatus::default(), &rolling).unwrap().reason, "Rolling");
        assert_eq!(of_transition(&rolling, &rolling), None);
    }
}
