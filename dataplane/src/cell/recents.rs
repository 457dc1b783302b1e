//! The command ids that a room remembers, so that a retry is known without a look-up.

use std::collections::{HashMap, VecDeque};

use crate::store::RecentId;
use crate::types::{CommandId, Hash32, Seq};

/// Ids of the newest commands, bounded; the oldest leave first.
#[derive(Debug, Clone)]
pub(super) struct Recents {
    by_id: HashMap<CommandId, (Hash32, Seq)>,
    order: VecDeque<CommandId>,
    limit: usize,
    /// Whether every id that the room ever committed is here.
    complete: bool,
}

impl Recents {
    /// From the newest ids (newest first) of a room whose log ends at `head`.
    pub(super) fn new(ids: Vec<RecentId>, head: Seq, limit: usize) -> Self {
        let complete = ids.len() as u64 == head.0;
        let mut recents = Self { by_id: HashMap::new(), order: VecDeque::new(), limit, complete };
        for id in ids.into_iter().rev() {
            recents.remember(id.command_id, id.command_hash, id.seq);
        }
        recents
    }

    pub(super) fn remember(&mut self, id: CommandId, hash: Hash32, seq: Seq) {
        if self.by_id.insert(id.clone(), (hash, seq)).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > self.limit {
            if let Some(oldest) = self.order.pop_front() {
                self.by_id.remove(&oldest);
                self.complete = false;
            }
        }
    }

    pub(super) fn hash_of(&self, id: &CommandId) -> Option<Hash32> {
        self.by_id.get(id).map(|(hash, _)| *hash)
    }

    /// Whether an id that is not here may still be in the log.
    pub(super) fn may_have_forgotten(&self) -> bool {
        !self.complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> RecentId {
        RecentId { command_id: CommandId::new(&format!("c{n}")).unwrap(), command_hash: [0; 32], seq: Seq(n) }
    }

    #[test]
    fn a_memory_that_holds_the_whole_log_needs_no_look_up_until_it_forgets() {
        let mut recents = Recents::new(vec![id(2), id(1)], Seq(2), 3);
        assert!(!recents.may_have_forgotten());
        recents.remember(id(3).command_id, [0; 32], Seq(3));
        assert!(!recents.may_have_forgotten());
        recents.remember(id(4).command_id, [0; 32], Seq(4));
        assert!(recents.may_have_forgotten());
        assert_eq!(recents.hash_of(&id(1).command_id), None, "the oldest leaves first");
        assert!(recents.hash_of(&id(2).command_id).is_some());
    }

    #[test]
    fn a_part_of_the_log_is_not_the_whole() {
        assert!(Recents::new(vec![id(9), id(8)], Seq(9), 10).may_have_forgotten());
    }
}
