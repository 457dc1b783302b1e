//! The pods in the status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use roomcluster_crds::{PodDrain, PodPhase, PodStatus};

use crate::plan::{ObservedPod, RoomContainer, Standing};

use super::Facts;

/// Rooms held by all pods; none while the count of a pod with a process is unknown.
pub(super) fn rooms(facts: &Facts<'_>) -> Option<u64> {
    let running = facts.observed.pods.iter().filter(|pod| pod.is_running());
    running.map(ObservedPod::rooms_hint).sum()
}

/// One pod.
pub(super) fn pod(pod: &ObservedPod, facts: &Facts<'_>) -> PodStatus {
    let rooms = if pod.is_running() { pod.rooms_hint() } else { Some(0) };
    PodStatus {
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
        revision: pod.revision.to_string(),
        phase: phase(pod, rooms, facts),
        rooms,
        drain: drain(pod, rooms, facts),
    }
}

fn phase(pod: &ObservedPod, rooms: Option<u64>, facts: &Facts<'_>) -> PodPhase {
    if pod.is_terminating() {
        return PodPhase::Terminating;
    }
    if pod.finished {
        return PodPhase::Failed;
    }
    if pod.is_draining() {
        return if rooms == Some(0) { PodPhase::Empty } else { PodPhase::Draining };
    }
    match (facts.standing(pod), pod.container) {
        (Standing::Available, _) => PodPhase::Ready,
        (_, RoomContainer::Running { .. }) if pod.ready.is_ready => PodPhase::Ready,
        (Standing::Broken, RoomContainer::NeverStarted) if pod.trouble.is_none() => PodPhase::Starting,
        (Standing::Broken, _) => PodPhase::Failed,
        (Standing::Unavailable, _) if facts.has_served(pod) => PodPhase::NotReady,
        (Standing::Unavailable, _) => PodPhase::Starting,
    }
}

fn drain(pod: &ObservedPod, rooms: Option<u64>, facts: &Facts<'_>) -> Option<PodDrain> {
    let intent = pod.intent.as_ref().filter(|intent| intent.is_drain())?;
    let blocked = facts.plan.blocked.iter().find(|blocked| blocked.pod.as_ref() == Some(&pod.name));
    Some(PodDrain {
        epoch: intent.epoch.get(),
        reasons: intent.reasons.iter().copied().collect(),
        started: Some(Time(intent.since)),
        remaining: rooms,
        blocked_by: blocked.map(|blocked| blocked.reason.cause().to_owned()),
    })
}

impl Facts<'_> {
    /// Whether the pod has been in traffic: its Ready condition has changed since the pod was created.
    pub(super) fn has_served(&self, pod: &ObservedPod) -> bool {
        matches!(pod.container, RoomContainer::Running { restarted: true })
            || pod.gate != crate::plan::Gate::Missing
    }
}
