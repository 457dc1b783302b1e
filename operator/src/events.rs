//! Events on the RoomCluster: what happened, in the order in which it happened.
//!
//! Deciding which events there are is pure; publishing is best effort, because an event is for people and
//! nothing depends on it.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use roomcluster_crds::{Phase, RoomClusterStatus, names};

use crate::error::sentence;
use crate::ids::PodName;
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
    /// The pod that it concerns.
    pub pod: Option<PodName>,
}

fn notice(is_warning: bool, reason: &'static str, action: &'static str, note: impl Into<String>) -> Notice {
    Notice { is_warning, reason, note: note.into(), action, pod: None }
}

impl Notice {
    fn about(mut self, pod: Option<&PodName>) -> Self {
        self.pod = pod.cloned();
        self
    }
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
            notice(false, "DrainStarted", "Drain", note).about(Some(&pod.name))
        }
        Step::WithdrawDrain { pod, .. } => {
            let note = format!("pod {} accepts rooms again", pod.name);
            notice(false, "DrainWithdrawn", "Withdraw", note).about(Some(&pod.name))
        }
        Step::EndPod { pod, grounds } => of_end(&pod.name, grounds),
        Step::AmendDrain { .. } | Step::SetOrder { .. } | Step::SetGate { .. } => return None,
    })
}

fn of_end(pod: &PodName, grounds: &Grounds) -> Notice {
    let (is_warning, why) = match grounds {
        Grounds::Empty => (false, "it holds no rooms, by its own count and by the database".to_owned()),
        Grounds::NeverRan => (false, "no process of it has ever run".to_owned()),
        Grounds::NotRunning => (false, "its process has ended and nothing of it is leased".to_owned()),
        Grounds::OnlyPod => {
            (false, "it is the only pod, and holds no rooms by its own count and by the database".to_owned())
        }
        Grounds::NoSuccessor { rooms } => {
            (false, format!("it is the last pod of a cluster scaled to zero, and releases its {rooms} rooms"))
        }
        Grounds::TimedOut { rooms } => {
            let rooms = rooms.map_or_else(|| "an unknown number of".to_owned(), |rooms| rooms.to_string());
            (true, format!("the drain timed out and onTimeout is Terminate; it held {rooms} rooms"))
        }
    };
    notice(is_warning, "PodEnded", "End", format!("ended pod {pod}: {why}")).about(Some(pod))
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
        .about(blocked.pod.as_ref())
}

/// Publishes notices.
///
/// Each becomes an event of its own. Merging equal ones into a series, as recorders do, compares everything but
/// the sentence, and would show the second pod's drain under the first one's name.
#[derive(Clone)]
pub struct Publisher {
    client: Client,
    instance: String,
}

impl Publisher {
    /// Publishes in the name of this pod of the operator.
    #[must_use]
    pub fn new(client: Client, instance: &str) -> Self {
        Self { client, instance: instance.to_owned() }
    }

    /// Publishes one notice about the cluster.
    pub async fn publish(&self, notice: &Notice, cluster: &ObjectReference, now: Timestamp) {
        let namespace = cluster.namespace.clone().unwrap_or_default();
        let api = Api::<Event>::namespaced(self.client.clone(), &namespace);
        let event = self.event(notice, cluster, now);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            tracing::warn!(error = sentence(&error), "event not published");
        }
    }

    fn event(&self, notice: &Notice, cluster: &ObjectReference, now: Timestamp) -> Event {
        let pod = notice.pod.as_ref().map(|pod| ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.to_string()),
            namespace: cluster.namespace.clone(),
            ..ObjectReference::default()
        });
        Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", cluster.name.as_deref().unwrap_or(names::OPERATOR_NAME))),
                namespace: cluster.namespace.clone(),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            type_: Some(if notice.is_warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(notice.reason.to_owned()),
            note: Some(shortened(&notice.note)),
            action: Some(notice.action.to_owned()),
            regarding: Some(cluster.clone()),
            related: pod,
            reporting_controller: Some(format!("{}/operator", names::GROUP)),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
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
