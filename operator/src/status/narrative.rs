//! The phase, and the one sentence that says what is awaited.

use roomcluster_crds::Phase;

use crate::plan::{
    Blocked, BlockedReason, ObservedPod, PendingReason, RoomContainer, Standing, UpgradeMode, trouble_of,
};

use super::Facts;

/// What the operator is doing, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Narrative {
    /// The phase.
    pub phase: Phase,
    /// What would be the phase if nothing were wrong.
    pub activity: Phase,
    /// What is awaited.
    pub message: String,
    /// What is wrong, if something is: a constant name and a sentence.
    pub trouble: Option<(&'static str, String)>,
}

/// Tells what is going on.
pub(super) fn tell(facts: &Facts<'_>) -> Narrative {
    let trouble = trouble(facts);
    let (phase, message) = match &facts.observed.pending.as_ref().map(|pending| &pending.why) {
        Some(PendingReason::MigrationRunning { .. }) if trouble.is_none() => {
            (Phase::Migrating, cluster_wait(facts))
        }
        _ => activity(facts),
    };
    match trouble {
        Some((name, sentence)) => {
            let message = sentence.clone();
            Narrative { phase: Phase::Degraded, activity: phase, message, trouble: Some((name, sentence)) }
        }
        None => Narrative { phase, activity: phase, message, trouble: None },
    }
}

fn activity(facts: &Facts<'_>) -> (Phase, String) {
    let old = facts.live().filter(|pod| !facts.is_target(pod)).count();
    let counts = facts.counts();
    if facts.policy.upgrade == UpgradeMode::Paused {
        return (Phase::Paused, format!("paused; {old} pods are not of the target revision"));
    }
    if facts.observed.target.is_none() {
        return (Phase::Pending, cluster_wait(facts));
    }
    let awaited = awaited(facts).unwrap_or_else(|| next(facts));
    let rolls = old > 0 && facts.policy.upgrade == UpgradeMode::Rolling && !facts.is_kept_by_partition();
    if rolls {
        let updated = counts.updated;
        return (Phase::Rolling, format!("{updated} of {} pods updated; {awaited}", facts.policy.replicas));
    }
    if counts.draining > 0 {
        return (Phase::Draining, awaited);
    }
    if counts.available != facts.policy.replicas || counts.live != facts.policy.replicas {
        return (
            Phase::Scaling,
            format!("{} of {} pods available; {awaited}", counts.available, facts.policy.replicas),
        );
    }
    (Phase::Ready, ready(facts, old))
}

fn ready(facts: &Facts<'_>, old: usize) -> String {
    match (old, facts.policy.upgrade) {
        (0, _) => "all pods are available at the target revision".to_owned(),
        (old, UpgradeMode::OnDelete) => {
            format!("{old} pods wait for their deletion to get the target revision")
        }
        (old, _) => format!("{old} pods stay at the current revision by the partition"),
    }
}

/// The pod that is waited for, and why: one that drains before one that would.
fn awaited(facts: &Facts<'_>) -> Option<String> {
    let is_draining = |blocked: &&Blocked| {
        facts.live().any(|pod| Some(&pod.name) == blocked.pod.as_ref() && pod.is_draining())
    };
    let shown = || facts.plan.blocked.iter().filter(|b| b.reason != BlockedReason::OneStepAtATime);
    let first = shown().find(is_draining).or_else(|| shown().find(|blocked| blocked.pod.is_some()));
    first.or_else(|| shown().next()).map(|blocked| match &blocked.pod {
        Some(pod) => format!("pod {pod} waits: {}", blocked.reason),
        None => format!("waits: {}", blocked.reason),
    })
}

fn cluster_wait(facts: &Facts<'_>) -> String {
    let cluster = facts.plan.blocked.iter().find(|blocked| blocked.pod.is_none());
    cluster.map_or_else(|| next(facts), |blocked| format!("waits: {}", blocked.reason))
}

fn next(facts: &Facts<'_>) -> String {
    let starting = facts.live().find(|pod| facts.standing(pod) != Standing::Available && !pod.is_draining());
    match starting {
        Some(pod) => format!("pod {} is about to become available", pod.name),
        None => "the next step is under way".to_owned(),
    }
}

/// What is wrong: what keeps the cluster from what was asked for and will not pass by itself.
fn trouble(facts: &Facts<'_>) -> Option<(&'static str, String)> {
    let pending = facts.observed.pending.as_ref().and_then(|pending| match &pending.why {
        PendingReason::TemplateInvalid { message } => {
            Some(("TemplateInvalid", format!("the pod template is refused: {message}")))
        }
        PendingReason::MigrationFailed { .. } => Some(("MigrationFailed", cluster_wait(facts))),
        PendingReason::MigrationRunning { trouble: Some(_), .. } => {
            Some(("MigrationStuck", cluster_wait(facts)))
        }
        PendingReason::MigrationRunning { trouble: None, .. } => None,
    });
    let refused = || facts.refused.map(|words| ("Refused", words.to_owned()));
    pending
        .or_else(refused)
        .or_else(|| overdue(facts))
        .or_else(|| lease_view(facts))
        .or_else(|| failing(facts))
}

/// A pod that has not become available within the deadline. Only pods that are to serve are timed, so nothing
/// that is rightly waited for (rooms, pauses, partitions) ever counts.
fn overdue(facts: &Facts<'_>) -> Option<(&'static str, String)> {
    let deadline = facts.policy.progress_deadline;
    let late = facts
        .live()
        .filter(|pod| facts.is_target(pod) && !pod.is_draining())
        .find(|pod| facts.standing(pod) != Standing::Available && facts.unavailable_for(pod) > deadline)?;
    let why = trouble_of(late).unwrap_or_else(|| format!("pod {} runs and does not become ready", late.name));
    Some(("ProgressDeadlineExceeded", format!("no progress for more than {} s: {why}", deadline.as_secs())))
}

fn lease_view(facts: &Facts<'_>) -> Option<(&'static str, String)> {
    let differs = |b: &&Blocked| matches!(b.reason, BlockedReason::LeaseViewDiffers { .. });
    let blocked = facts.plan.blocked.iter().find(differs)?;
    let pod = blocked.pod.as_ref().map(ToString::to_string).unwrap_or_default();
    Some(("LeaseViewInconsistent", format!("pod {pod} is not ended: {}", blocked.reason)))
}

fn failing(facts: &Facts<'_>) -> Option<(&'static str, String)> {
    let is_failing = |pod: &&ObservedPod| {
        let keeps_failing = matches!(pod.container, RoomContainer::Down { backing_off: true });
        keeps_failing || (pod.container == RoomContainer::NeverStarted && pod.trouble.is_some())
    };
    let pod = facts.live().find(is_failing)?;
    Some(("PodFailing", trouble_of(pod).unwrap_or_else(|| format!("pod {} keeps failing", pod.name))))
}

impl Facts<'_> {
    fn is_kept_by_partition(&self) -> bool {
        let old: Vec<_> = self.live().filter(|pod| !self.is_target(pod)).collect();
        let kept = usize::try_from(self.policy.partition.min(self.policy.replicas)).unwrap_or(usize::MAX);
        let all_current = old.iter().all(|pod| crate::plan::is_of(pod, self.observed.current.as_ref()));
        all_current && old.len() <= kept && !old.iter().any(|pod| pod.is_draining())
    }

    fn unavailable_for(&self, pod: &ObservedPod) -> std::time::Duration {
        let since =
            pod.ready.since.filter(|_| !pod.ready.is_ready).unwrap_or(pod.created_at).max(pod.created_at);
        std::time::Duration::try_from(self.now.duration_since(since)).unwrap_or_default()
    }
}
