//! What this process remembers of clusters: only what makes it say things once. Losing it is harmless.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ids::PodName;
use crate::metrics::{BlockedLabels, OperatorMetrics};
use crate::plan::{Blocked, BlockedReason};

/// One cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

#[derive(Debug, Default)]
struct Remembered {
    failures: u32,
    blocked: HashSet<(Option<PodName>, String)>,
    counted: HashSet<&'static str>,
}

/// What is remembered of all clusters.
#[derive(Debug, Default)]
pub(super) struct Memory {
    clusters: Mutex<HashMap<Key, Remembered>>,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Remembered>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failure; says how many there were in a row.
    pub(super) fn count_failure(&self, key: &Key) -> u32 {
        let mut clusters = self.lock();
        let remembered = clusters.entry(key.clone()).or_default();
        remembered.failures = remembered.failures.saturating_add(1);
        remembered.failures
    }

    /// Ends a row of failures.
    pub(super) fn succeeded(&self, key: &Key) {
        if let Some(remembered) = self.lock().get_mut(key) {
            remembered.failures = 0;
        }
    }

    /// What was not blocked, or not for this reason, when last looked at; counts all that is.
    pub(super) fn newly_blocked(
        &self,
        key: &Key,
        blocked: &[Blocked],
        metrics: &OperatorMetrics,
    ) -> Vec<Blocked> {
        let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
        for blocked in blocked {
            *counts.entry(blocked.reason.name()).or_default() += 1;
        }
        // To wait for one's turn is what all but one do; telling it would drown what matters.
        let told = blocked.iter().filter(|blocked| blocked.reason != BlockedReason::OneStepAtATime);
        let mut clusters = self.lock();
        let remembered = clusters.entry(key.clone()).or_default();
        let mut standing = HashSet::new();
        let new: Vec<_> = told
            .filter(|blocked| {
                let about = (subject(blocked), blocked.reason.cause().to_owned());
                !remembered.blocked.contains(&about) & standing.insert(about)
            })
            .cloned()
            .collect();
        remembered.blocked = standing;
        let reasons: HashSet<_> = counts.keys().copied().collect();
        for reason in remembered.counted.union(&reasons) {
            metrics.blocked(&labels(key, reason), counts.get(reason).copied().unwrap_or(0));
        }
        remembered.counted = reasons;
        new
    }

    /// Forgets a cluster that is gone.
    pub(super) fn forget(&self, key: &Key, metrics: &OperatorMetrics) {
        let Some(remembered) = self.lock().remove(key) else { return };
        for reason in remembered.counted {
            metrics.blocked(&labels(key, reason), 0);
        }
    }
}

/// The pod that it is told of; none when it is told once for all of them.
fn subject(blocked: &Blocked) -> Option<PodName> {
    blocked.pod.clone().filter(|_| !blocked.reason.is_of_the_whole_roll())
}

fn labels(key: &Key, reason: &'static str) -> BlockedLabels {
    BlockedLabels { namespace: key.namespace.clone(), cluster: key.name.clone(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_blocked_for_the_same_reason_is_told_once_and_counted_until_it_ends() {
        let (memory, metrics) = (Memory::default(), OperatorMetrics::default());
        let key = Key { namespace: "n".to_owned(), name: "c".to_owned(), uid: "u".to_owned() };
        let holds = |rooms| Blocked {
            pod: Some(PodName::new("a")),
            reason: BlockedReason::HoldsRooms { rooms, held_by: None },
        };
        assert_eq!(memory.newly_blocked(&key, &[holds(3)], &metrics).len(), 1);
        assert_eq!(memory.newly_blocked(&key, &[holds(2)], &metrics).len(), 0);
        assert_eq!(memory.newly_blocked(&key, &[], &metrics).len(), 0);
        assert_eq!(memory.newly_blocked(&key, &[holds(1)], &metrics).len(), 1);
    }

    #[test]
    fn that_a_node_says_what_keeps_its_rooms_is_told_also_when_it_was_known_to_hold_some() {
        let (memory, metrics) = (Memory::default(), OperatorMetrics::default());
        let key = Key { namespace: "n".to_owned(), name: "c".to_owned(), uid: "u".to_owned() };
        let holds = |held_by: Option<&str>| Blocked {
            pod: Some(PodName::new("a")),
            reason: BlockedReason::HoldsRooms { rooms: 3, held_by: held_by.map(str::to_owned) },
        };
        assert_eq!(memory.newly_blocked(&key, &[holds(None)], &metrics).len(), 1);
        assert_eq!(memory.newly_blocked(&key, &[holds(Some("SnapshotFlush: 3"))], &metrics).len(), 1);
        assert_eq!(memory.newly_blocked(&key, &[holds(Some("SnapshotFlush: 2"))], &metrics).len(), 0);
    }

    #[test]
    fn what_holds_for_every_pod_of_a_roll_is_told_of_one() {
        let waits = |pod: &str| Blocked {
            pod: Some(PodName::new(pod)),
            reason: BlockedReason::TooFewAvailable { available: 3, required: 3 },
        };
        let key = Key { namespace: "n".to_owned(), name: "c".to_owned(), uid: "u".to_owned() };
        let new =
            Memory::default().newly_blocked(&key, &[waits("a"), waits("b")], &OperatorMetrics::default());
        assert_eq!(new, [waits("a")]);
    }

    #[test]
    fn failures_count_in_a_row() {
        let memory = Memory::default();
        let key = Key { namespace: "n".to_owned(), name: "c".to_owned(), uid: "u".to_owned() };
        assert_eq!(memory.count_failure(&key), 1);
        assert_eq!(memory.count_failure(&key), 2);
        memory.succeeded(&key);
        assert_eq!(memory.count_failure(&key), 1);
    }
}
