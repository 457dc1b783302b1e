//! What stands behind the keys, as text.

use serde::{Deserialize, Serialize};

use super::super::lease::{NodeFacts, Route};
use crate::types::{Claim, Epoch, Incarnation, LeaseToken, NodeId, RoomKey, unhex};

/// `room:route:{app_code}\0{room_id}`; neither part contains NUL.
pub(super) fn route_key(room: &RoomKey) -> String {
    format!("room:route:{}\0{}", room.app_code(), room.room_id())
}

/// The beginning of a route that is this claim. Twenty digits hold every epoch, and their order is its order.
pub(super) fn claim_prefix(claim: Claim) -> String {
    format!("{:020}:{}:", claim.epoch.0, claim.token.to_hex())
}

pub(super) fn encode_route(claim: Claim, node: &NodeId) -> String {
    format!("{}{node}", claim_prefix(claim))
}

/// `None` for an empty text, and for one that is not a route.
pub(super) fn decode_route(stored: &[u8]) -> Option<Route> {
    let mut parts = std::str::from_utf8(stored).ok()?.splitn(3, ':');
    let (epoch, token, node) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Route {
        node_id: NodeId::new(node).ok()?,
        epoch: Epoch(epoch.parse().ok()?),
        token: LeaseToken(unhex(token)?),
    })
}

/// What a node tells, as JSON.
#[derive(Serialize, Deserialize)]
struct StoredFacts<'a> {
    incarnation: String,
    #[serde(borrow)]
    revision: std::borrow::Cow<'a, str>,
    accepting: bool,
    rooms: u64,
}

pub(super) fn encode_facts(facts: &NodeFacts) -> String {
    let stored = StoredFacts {
        incarnation: facts.incarnation.to_hex(),
        revision: facts.revision.as_str().into(),
        accepting: facts.accepting,
        rooms: facts.rooms,
    };
    serde_json::to_string(&stored).expect("texts, numbers and a flag always encode")
}

/// `None` for what another version wrote in a way that this one cannot read.
pub(super) fn decode_facts(node: &NodeId, address: String, stored: &str) -> Option<NodeFacts> {
    let told: StoredFacts<'_> = serde_json::from_str(stored).ok()?;
    Some(NodeFacts {
        node_id: node.clone(),
        incarnation: Incarnation::from_hex(&told.incarnation)?,
        address,
        revision: told.revision.into_owned(),
        accepting: told.accepting,
        rooms: told.rooms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(epoch: u64) -> Claim {
        Claim { epoch: Epoch(epoch), token: LeaseToken([0xab; 16]) }
    }

    #[test]
    fn a_route_reads_back_even_when_its_node_has_a_colon() {
        let node = NodeId::new("node:7").unwrap();
        let route = decode_route(encode_route(claim(u64::MAX), &node).as_bytes()).unwrap();
        assert_eq!(route, Route { node_id: node, epoch: Epoch(u64::MAX), token: LeaseToken([0xab; 16]) });
        assert_eq!(decode_route(b""), None);
        assert_eq!(decode_route(b"7:zz:node"), None);
    }

    #[test]
    fn the_text_order_of_routes_is_the_order_of_epochs() {
        let prefixes: Vec<_> = [0, 9, 10, 99, 1 << 53, u64::MAX].map(|e| claim_prefix(claim(e))).to_vec();
        assert!(prefixes.is_sorted());
        assert!(prefixes.iter().all(|prefix| prefix.len() == 54));
    }

    #[test]
    fn a_route_key_joins_app_and_room_with_nul() {
        assert_eq!(route_key(&RoomKey::new("app", "r 1").unwrap()), "room:route:app\0r 1");
    }
}
