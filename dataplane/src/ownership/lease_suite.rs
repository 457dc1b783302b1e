//! What every lease store promises, checked the same way on each.
//!
//! Each check gets an empty store. The module is also included by the suite that runs on a real Redis; there, too,
//! `crate::ownership` and `crate::types` are the data plane's.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "only tests run it")]

use std::sync::Arc;
use std::time::Duration;

use crate::ownership::lease::{LeaseStore, NodeFacts, Route, RoutePut, RouteWrite};
use crate::types::{Claim, Epoch, Incarnation, LeaseToken, NodeId, RoomKey};

/// A lease store under test.
pub type Leases = Arc<dyn LeaseStore>;

/// Long enough not to end during a test.
pub const LONG: Duration = Duration::from_secs(60);
/// Short enough to wait for.
pub const SHORT: Duration = Duration::from_millis(50);
/// How often a test looks whether something has come to pass.
const POLL: Duration = Duration::from_millis(5);

/// Declares a test for each check; `$open` makes an empty store and what has to live as long.
macro_rules! lease_suite {
    ($open:path; $($name:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $name() {
                let (_guard, leases) = $open().await;
                lease_suite::$name(leases).await;
            }
        )*
    };
    ($open:path) => {
        lease_suite::lease_suite! { $open;
            a_route_is_written_where_there_is_none,
            an_owner_renews_exactly_its_own_claim,
            a_newer_epoch_replaces_an_older_one_and_never_the_reverse,
            another_token_of_the_same_epoch_is_refused,
            a_route_expires,
            a_renewal_starts_the_time_to_live_anew,
            only_exactly_the_claim_is_removed,
            many_routes_are_written_read_and_removed_in_order,
            routes_differ_by_case_space_and_app,
            a_node_is_told_with_its_address_and_expires,
            only_its_own_incarnation_withdraws_a_node,
            nodes_are_listed_while_they_live,
            a_probe_passes,
        }
    };
}
pub(crate) use lease_suite;

pub fn room(id: &str) -> RoomKey {
    RoomKey::new("app", id).unwrap()
}

pub fn claim(epoch: u64, token: u8) -> Claim {
    Claim { epoch: Epoch(epoch), token: LeaseToken([token; 16]) }
}

pub fn write(room: &RoomKey, claim: Claim, node: &str) -> RouteWrite {
    RouteWrite { room: room.clone(), node_id: NodeId::new(node).unwrap(), claim }
}

pub fn route(claim: Claim, node: &str) -> Route {
    Route { node_id: NodeId::new(node).unwrap(), epoch: claim.epoch, token: claim.token }
}

pub fn facts(node: &str, incarnation: u8) -> NodeFacts {
    NodeFacts {
        node_id: NodeId::new(node).unwrap(),
        incarnation: Incarnation([incarnation; 16]),
        address: format!("{node}:7400"),
        revision: "rev \"1\"".to_owned(),
        accepting: true,
        rooms: 7,
    }
}

pub async fn put(leases: &Leases, write: RouteWrite, ttl: Duration) -> RoutePut {
    leases.put_routes(&[write], ttl).await.unwrap().remove(0)
}

pub async fn standing(leases: &Leases, room: &RoomKey) -> Option<Route> {
    leases.routes(std::slice::from_ref(room), LONG).await.unwrap().remove(0).route
}

pub async fn until_gone(leases: &Leases, room: &RoomKey) {
    while standing(leases, room).await.is_some() {
        tokio::time::sleep(POLL).await;
    }
}

pub async fn a_route_is_written_where_there_is_none(leases: Leases) {
    let room = room("r");
    assert_eq!(standing(&leases, &room).await, None);
    assert_eq!(put(&leases, write(&room, claim(3, 1), "node-a"), LONG).await, RoutePut::Held);
    assert_eq!(standing(&leases, &room).await, Some(route(claim(3, 1), "node-a")));
}

pub async fn an_owner_renews_exactly_its_own_claim(leases: Leases) {
    let room = room("r");
    for _ in 0..3 {
        assert_eq!(put(&leases, write(&room, claim(3, 1), "node-a"), LONG).await, RoutePut::Held);
    }
    assert_eq!(standing(&leases, &room).await, Some(route(claim(3, 1), "node-a")));
}

// C4, C56: a late write of a former owner.
pub async fn a_newer_epoch_replaces_an_older_one_and_never_the_reverse(leases: Leases) {
    let room = room("r");
    for (old, new) in [(9, 10), (99, 100), ((1 << 53) + 8, (1 << 53) + 9), (u64::MAX - 1, u64::MAX)] {
        assert_eq!(put(&leases, write(&room, claim(old, 1), "node-a"), LONG).await, RoutePut::Held);
        assert_eq!(put(&leases, write(&room, claim(new, 2), "node-b"), LONG).await, RoutePut::Held);
        let refused = put(&leases, write(&room, claim(old, 1), "node-a"), LONG).await;
        assert_eq!(refused, RoutePut::Refused(route(claim(new, 2), "node-b")));
        assert_eq!(standing(&leases, &room).await, Some(route(claim(new, 2), "node-b")));
    }
}

pub async fn another_token_of_the_same_epoch_is_refused(leases: Leases) {
    let room = room("r");
    put(&leases, write(&room, claim(3, 1), "node-a"), LONG).await;
    let refused = put(&leases, write(&room, claim(3, 2), "node-a"), LONG).await;
    assert_eq!(refused, RoutePut::Refused(route(claim(3, 1), "node-a")));
}

pub async fn a_route_expires(leases: Leases) {
    let room = room("r");
    put(&leases, write(&room, claim(3, 1), "node-a"), SHORT).await;
    until_gone(&leases, &room).await;
    // The claim of an expired route has nothing to remove, and an older one may stand now.
    assert_eq!(leases.remove_routes(&[(room.clone(), claim(3, 1))]).await.unwrap(), 0);
    assert_eq!(put(&leases, write(&room, claim(2, 1), "node-a"), LONG).await, RoutePut::Held);
}

pub async fn a_renewal_starts_the_time_to_live_anew(leases: Leases) {
    let (short, renewed) = (room("short"), room("renewed"));
    put(&leases, write(&short, claim(3, 1), "node-a"), SHORT).await;
    put(&leases, write(&renewed, claim(3, 1), "node-a"), SHORT).await;
    put(&leases, write(&renewed, claim(3, 1), "node-a"), LONG).await;
    until_gone(&leases, &short).await;
    assert!(standing(&leases, &renewed).await.is_some());
}

// C2, C56: a late clean-up of a former owner.
pub async fn only_exactly_the_claim_is_removed(leases: Leases) {
    let room = room("r");
    put(&leases, write(&room, claim(3, 1), "node-a"), LONG).await;
    for other in [claim(3, 2), claim(2, 1), claim(4, 1)] {
        assert_eq!(leases.remove_routes(&[(room.clone(), other)]).await.unwrap(), 0);
    }
    assert!(standing(&leases, &room).await.is_some());
    assert_eq!(leases.remove_routes(&[(room.clone(), claim(3, 1))]).await.unwrap(), 1);
    assert_eq!(standing(&leases, &room).await, None);
}

pub async fn many_routes_are_written_read_and_removed_in_order(leases: Leases) {
    let rooms: Vec<_> = (0..3_000).map(|i| room(&format!("r{i}"))).collect();
    put(&leases, write(&rooms[777], claim(9, 9), "node-z"), LONG).await;
    let writes: Vec<_> = rooms.iter().map(|room| write(room, claim(3, 1), "node-a")).collect();
    let held = leases.put_routes(&writes, LONG).await.unwrap();
    assert_eq!(held.len(), rooms.len());
    for (i, put) in held.iter().enumerate() {
        assert_eq!(matches!(put, RoutePut::Refused(_)), i == 777, "{i}: {put:?}");
    }
    let views = leases.routes(&rooms, LONG).await.unwrap();
    for (i, view) in views.iter().enumerate() {
        let expected = if i == 777 { route(claim(9, 9), "node-z") } else { route(claim(3, 1), "node-a") };
        assert_eq!(view.route, Some(expected), "{i}");
    }
    let claims: Vec<_> = rooms.iter().map(|room| (room.clone(), claim(3, 1))).collect();
    assert_eq!(leases.remove_routes(&claims).await.unwrap(), 2_999);
    assert!(leases.put_routes(&[], LONG).await.unwrap().is_empty());
    assert!(leases.routes(&[], LONG).await.unwrap().is_empty());
}

pub async fn routes_differ_by_case_space_and_app(leases: Leases) {
    let rooms = [
        RoomKey::new("app", "room").unwrap(),
        RoomKey::new("app", "Room").unwrap(),
        RoomKey::new("app", "room ").unwrap(),
        RoomKey::new("App", "room").unwrap(),
        RoomKey::new("app:room", "room").unwrap(),
    ];
    for (i, room) in rooms.iter().enumerate() {
        put(&leases, write(room, claim(3, i as u8), "node-a"), LONG).await;
    }
    for (i, room) in rooms.iter().enumerate() {
        assert_eq!(standing(&leases, room).await, Some(route(claim(3, i as u8), "node-a")));
    }
}

pub async fn a_node_is_told_with_its_address_and_expires(leases: Leases) {
    let facts = facts("node-a", 1);
    assert_eq!(leases.node(&facts.node_id).await.unwrap(), None);
    leases.announce(&facts, LONG).await.unwrap();
    assert_eq!(leases.node(&facts.node_id).await.unwrap(), Some(facts.clone()));
    let changed = NodeFacts { accepting: false, rooms: u64::MAX, ..facts.clone() };
    leases.announce(&changed, SHORT).await.unwrap();
    while let Some(told) = leases.node(&facts.node_id).await.unwrap() {
        assert_eq!(told, changed);
        tokio::time::sleep(POLL).await;
    }
    assert!(leases.nodes().await.unwrap().is_empty());
}

pub async fn only_its_own_incarnation_withdraws_a_node(leases: Leases) {
    let told = facts("node-a", 2);
    leases.announce(&told, LONG).await.unwrap();
    leases.withdraw(&told.node_id, Incarnation([1; 16])).await.unwrap();
    assert_eq!(leases.node(&told.node_id).await.unwrap(), Some(told.clone()));
    leases.withdraw(&told.node_id, told.incarnation).await.unwrap();
    assert_eq!(leases.node(&told.node_id).await.unwrap(), None);
    assert!(leases.nodes().await.unwrap().is_empty());
}

// C51, C52, C57: the dead leave the list by themselves.
pub async fn nodes_are_listed_while_they_live(leases: Leases) {
    for i in 0..300 {
        leases.announce(&facts(&format!("gone-{i}"), 1), SHORT).await.unwrap();
    }
    let alive = [facts("node-a", 1), facts("node-b", 2)];
    for told in &alive {
        leases.announce(told, LONG).await.unwrap();
    }
    loop {
        let mut listed = leases.nodes().await.unwrap();
        if listed.len() == alive.len() {
            listed.sort_by(|a, b| a.node_id.cmp(&b.node_id));
            assert_eq!(listed, alive);
            return;
        }
        tokio::time::sleep(POLL).await;
    }
}

pub async fn a_probe_passes(leases: Leases) {
    leases.probe().await.unwrap();
}
