//! What a pod is worth to the cluster at this moment: broken, idle or available.

use k8s_openapi::jiff::Timestamp;

use crate::ids::Revision;

use super::end::elapsed_since;
use super::observed::{Gate, ObservedPod, Order, RoomContainer};
use super::policy::Policy;

/// A live pod's worth, least first: in this order pods are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Its process has never started, or keeps failing.
    Broken,
    /// It runs, or is about to, and takes no traffic.
    Unavailable,
    /// It takes traffic and rooms, and has done so long enough.
    Available,
}

/// The pod's worth at `now`.
#[must_use]
pub fn standing(pod: &ObservedPod, policy: &Policy, now: Timestamp) -> Standing {
    match pod.container {
        RoomContainer::NeverStarted => Standing::Broken,
        RoomContainer::Down { backing_off: true } => Standing::Broken,
        RoomContainer::Down { backing_off: false } => Standing::Unavailable,
        RoomContainer::Running { .. } if is_available(pod, policy, now) => Standing::Available,
        RoomContainer::Running { .. } => Standing::Unavailable,
    }
}

/// Whether the pod takes traffic and rooms, and Kubernetes has said so for long enough.
///
/// Both the pod's conditions and the node's own word are needed: conditions lag, and a node that cannot be
/// asked cannot be relied on to take over rooms.
fn is_available(pod: &ObservedPod, policy: &Policy, now: Timestamp) -> bool {
    let long_enough = pod.ready.since.is_some_and(|since| elapsed_since(since, now) >= policy.min_ready);
    let accepting =
        pod.own_report().is_some_and(|report| report.accepting && report.order == Some(Order::Serve));
    let in_service = pod.gate == Gate::Open && pod.ready.is_ready && long_enough && accepting;
    in_service && !pod.is_draining() && pod.is_live()
}

/// Whether the pod was built from this revision.
#[must_use]
pub fn is_of(pod: &ObservedPod, revision: Option<&Revision>) -> bool {
    revision.is_some_and(|revision| *revision == pod.revision)
}
