//! Ownership changes as a client sees them: moves, and how long a room stood still.
//!
//! Pure. A move is a change of the owner's node; a higher epoch on the same node is a bump. The pause of either is
//! the time from the last acknowledgement under the old owner to the first under the new one, so it is never
//! shorter than the client's own distance between commands. Late answers of an old epoch change nothing.

use std::time::Duration;

/// What one acknowledgement revealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Another node owns the room.
    Moved {
        /// Since the last acknowledgement before.
        pause: Duration,
    },
    /// The same node took the room anew.
    Bumped {
        /// Since the last acknowledgement before.
        pause: Duration,
    },
}

/// Owner and last acknowledgement of one room.
#[derive(Debug, Default)]
pub(crate) struct RoomTrack {
    owner: Option<Seen>,
    moves: u32,
}

#[derive(Debug)]
struct Seen {
    node: String,
    epoch: u64,
    last_ack: Duration,
}

impl RoomTrack {
    /// Takes in an acknowledgement at `at`, an offset from the start of the run.
    pub(crate) fn acked(&mut self, node: &str, epoch: u64, at: Duration) -> Option<Change> {
        let Some(seen) = &mut self.owner else {
            self.owner = Some(Seen { node: node.to_owned(), epoch, last_ack: at });
            return None;
        };
        if epoch <= seen.epoch {
            if epoch == seen.epoch {
                seen.last_ack = seen.last_ack.max(at);
            }
            return None;
        }
        let pause = at.saturating_sub(seen.last_ack);
        let moved = seen.node != node;
        *seen = Seen { node: node.to_owned(), epoch, last_ack: at };
        if moved {
            self.moves += 1;
            Some(Change::Moved { pause })
        } else {
            Some(Change::Bumped { pause })
        }
    }

    /// Changes of the owner's node.
    pub(crate) fn moves(&self) -> u32 {
        self.moves
    }

    /// The node that answered last.
    pub(crate) fn node(&self) -> Option<&str> {
        self.owner.as_ref().map(|seen| seen.node.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_move_pauses_from_the_last_old_to_the_first_new_acknowledgement() {
        let mut track = RoomTrack::default();
        assert_eq!(track.acked("a", 1, ms(10)), None);
        assert_eq!(track.acked("a", 1, ms(60)), None);
        assert_eq!(track.acked("b", 2, ms(95)), Some(Change::Moved { pause: ms(35) }));
        assert_eq!((track.moves(), track.node()), (1, Some("b")));
    }

    #[test]
    fn a_new_epoch_on_the_same_node_is_no_move() {
        let mut track = RoomTrack::default();
        track.acked("a", 1, ms(10));
        assert_eq!(track.acked("a", 2, ms(30)), Some(Change::Bumped { pause: ms(20) }));
        assert_eq!(track.moves(), 0);
    }

    #[test]
    fn a_late_answer_of_the_old_owner_is_not_a_move_back() {
        let mut track = RoomTrack::default();
        track.acked("a", 1, ms(10));
        track.acked("b", 2, ms(30));
        assert_eq!(track.acked("a", 1, ms(31)), None);
        assert_eq!(track.acked("b", 2, ms(40)), None);
        assert_eq!(track.acked("c", 3, ms(45)), Some(Change::Moved { pause: ms(5) }));
        assert_eq!(track.moves(), 2);
    }
}
