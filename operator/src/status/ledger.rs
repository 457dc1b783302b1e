//! What became of rooms that left pods during the last roll.

use std::collections::HashMap;

use roomcluster_crds::{Ledger, PodPhase, RoomClusterStatus};

use crate::ids::PodUid;
use crate::plan::{Grounds, ObservedPod, Step};

use super::Facts;

/// The ledger after the steps taken; begun anew when another revision is asked for.
pub(super) fn ledger(facts: &Facts<'_>, before: &RoomClusterStatus) -> Option<Ledger> {
    let wanted = facts.observed.pending.as_ref().map(|p| &p.revision).or(facts.observed.target.as_ref());
    let is_same_roll = before.update_revision.as_deref() == wanted.map(crate::ids::Revision::as_str);
    let kept = before.ledger.filter(|_| is_same_roll);
    let mut ledger = kept.unwrap_or_default();
    let pods: HashMap<&PodUid, &ObservedPod> =
        facts.observed.pods.iter().map(|pod| (&pod.uid, pod)).collect();
    for step in facts.taken {
        let Step::EndPod { pod, grounds } = step else { continue };
        let started_with =
            pods.get(&pod.uid).and_then(|pod| pod.intent.as_ref()?.rooms_at_start).unwrap_or(0);
        match grounds {
            Grounds::Empty | Grounds::OnlyPod => ledger.released += started_with,
            Grounds::NoSuccessor { rooms } => ledger.released += started_with.max(*rooms),
            Grounds::TimedOut { rooms } => {
                let forced = rooms.unwrap_or(started_with);
                ledger.forced += forced;
                ledger.released += started_with.saturating_sub(forced);
            }
            Grounds::NeverRan | Grounds::NotRunning => {}
        }
    }
    ledger.lost += vanished(&pods, before);
    (kept.is_some() || ledger != Ledger::default()).then_some(ledger)
}

/// Rooms of pods that are gone and were not drained: deleted by force, or with their host.
fn vanished(pods: &HashMap<&PodUid, &ObservedPod>, before: &RoomClusterStatus) -> u64 {
    let is_gone = |uid: &str| !pods.contains_key(&PodUid::new(uid));
    let gone = before
        .pods
        .iter()
        .filter(|pod| is_gone(&pod.uid) && pod.drain.is_none() && pod.phase != PodPhase::Terminating);
    gone.filter_map(|pod| pod.rooms).sum()
}
