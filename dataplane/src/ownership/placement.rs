//! Where an unowned room goes. Pure.
//!
//! In a rollout a room must move once, straight to a pod of the target revision; so a node that is not of it
//! sends unowned rooms to one that is. All nodes choose the same successor for a room (highest random weight),
//! so that two requests at two nodes do not race for it.

use super::lease::NodeFacts;
use crate::types::{NodeId, RoomKey};

/// What this node is, for placement.
#[derive(Debug, Clone)]
pub struct Standing {
    /// This node.
    pub node_id: NodeId,
    /// Its revision; empty without an operator.
    pub revision: String,
    /// The revision that rooms are to land on; empty when none is known.
    pub target_revision: String,
    /// Whether it takes rooms: ready, not evacuating, not draining.
    pub accepting: bool,
}

impl Standing {
    /// Whether a room that stays on this node is where it should be.
    pub fn on_target(&self) -> bool {
        self.target_revision.is_empty() || self.revision == self.target_revision
    }
}

/// The choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// Take it here.
    Here,
    /// Forward to this node, which takes it.
    There(NodeFacts),
    /// Nobody takes rooms now.
    Nowhere,
}

/// Chooses the node for an unowned room.
pub fn place(standing: &Standing, peers: &[NodeFacts], room: &RoomKey) -> Placement {
    if standing.accepting && standing.on_target() {
        return Placement::Here;
    }
    let accepting = || peers.iter().filter(|node| node.accepting && node.node_id != standing.node_id);
    let heaviest = |node: &&NodeFacts| weight(&node.node_id, room);
    let target = accepting().filter(|node| node.revision == standing.target_revision).max_by_key(heaviest);
    match target {
        Some(node) => Placement::There(node.clone()),
        None if standing.accepting => Placement::Here,
        None => accepting().max_by_key(heaviest).cloned().map_or(Placement::Nowhere, Placement::There),
    }
}

fn weight(node: &NodeId, room: &RoomKey) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in [node.as_str(), room.app_code(), room.room_id()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Incarnation;

    fn standing(revision: &str, accepting: bool) -> Standing {
        Standing {
            node_id: NodeId::new("me").unwrap(),
            revision: revision.into(),
            target_revision: "v2".into(),
            accepting,
        }
    }

    fn peer(name: &str, revision: &str, accepting: bool) -> NodeFacts {
        NodeFacts {
            node_id: NodeId::new(name).unwrap(),
            incarnation: Incarnation([1; 16]),
            address: format!("{name}:7400"),
            revision: revision.into(),
            accepting,
            rooms: 0,
        }
    }

    fn room(n: u32) -> RoomKey {
        RoomKey::new("app", &format!("room-{n}")).unwrap()
    }

    #[test]
    fn an_accepting_node_of_the_target_takes_the_room_itself() {
        let peers = [peer("other", "v2", true)];
        assert_eq!(place(&standing("v2", true), &peers, &room(1)), Placement::Here);
    }

    #[test]
    fn a_node_that_is_not_of_the_target_sends_the_room_to_one_that_is() {
        let peers = [peer("old", "v1", true), peer("new", "v2", true), peer("full", "v2", false)];
        let Placement::There(node) = place(&standing("v1", true), &peers, &room(1)) else {
            panic!("not forwarded")
        };
        assert_eq!(node.node_id.as_str(), "new");
    }

    #[test]
    fn without_an_accepting_node_of_the_target_an_old_one_takes_the_room() {
        let peers = [peer("new", "v2", false), peer("old", "v1", true)];
        assert_eq!(place(&standing("v1", true), &peers, &room(1)), Placement::Here);
        let Placement::There(node) = place(&standing("v1", false), &peers, &room(1)) else {
            panic!("not forwarded")
        };
        assert_eq!(node.node_id.as_str(), "old");
        assert_eq!(place(&standing("v1", false), &peers[..1], &room(1)), Placement::Nowhere);
    }

    #[test]
    fn all_nodes_choose_the_same_successor_and_rooms_spread() {
        let mut peers = vec![peer("a", "v2", true), peer("b", "v2", true), peer("c", "v2", true)];
        let choices: Vec<_> = (0..300).map(|n| place(&standing("v1", true), &peers, &room(n))).collect();
        peers.reverse();
        for (n, choice) in (0..300).zip(&choices) {
            assert_eq!(place(&standing("v1", false), &peers, &room(n)), *choice);
        }
        for name in ["a", "b", "c"] {
            let share =
                choices.iter().filter(|c| matches!(c, Placement::There(n) if n.node_id.as_str() == name));
            assert!((60..=140).contains(&share.count()), "{name} gets about a third");
        }
    }
}
