//! The port to the lease store: routes with a time to live, and what nodes tell of themselves.
//!
//! It is a hint: the truth about owners is in SQL. Every write is conditional, so that a late one can not undo a
//! newer one: a route is written only if there is none, or an older epoch, or exactly this claim; it is removed
//! only if it is exactly this claim. An answer that did not come is [`LeaseError`], and says nothing.

use std::time::Duration;

use async_trait::async_trait;

use crate::types::{Claim, Epoch, Incarnation, LeaseToken, NodeId, RoomKey};

/// The lease store did not answer, or not in time.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the lease store did not answer: {problem}")]
pub struct LeaseError {
    /// What went wrong.
    pub problem: String,
}

/// Who executes a room, as the lease store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The owner.
    pub node_id: NodeId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its token.
    pub token: LeaseToken,
}

/// A route to write or renew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteWrite {
    /// The room.
    pub room: RoomKey,
    /// The owner.
    pub node_id: NodeId,
    /// Its claim.
    pub claim: Claim,
}

/// What became of one route write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoutePut {
    /// Written or renewed; the time to live starts anew.
    Held,
    /// A newer or different route stands there.
    Refused(Route),
}

/// A look at one route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteView {
    /// The route, if there is one.
    pub route: Option<Route>,
    /// Whether an absent route means that a lease ended. False when the store was empty or restarted less than
    /// one time to live ago: then absence says nothing.
    pub absence_counts: bool,
}

/// What a node tells of itself, beside its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node.
    pub node_id: NodeId,
    /// Its process.
    pub incarnation: Incarnation,
    /// `host:port` of the instance.
    pub address: String,
    /// Its pod template's revision; empty when it has none.
    pub revision: String,
    /// Whether it takes rooms.
    pub accepting: bool,
    /// Rooms held.
    pub rooms: u64,
}

/// The lease store.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// A light write and read, for readiness.
    async fn probe(&self) -> Result<(), LeaseError>;
    /// Writes or renews routes; one answer each, in order.
    async fn put_routes(&self, writes: &[RouteWrite], ttl: Duration) -> Result<Vec<RoutePut>, LeaseError>;
    /// Looks at routes; one answer each, in order. `ttl` decides whether absence counts.
    async fn routes(&self, rooms: &[RoomKey], ttl: Duration) -> Result<Vec<RouteView>, LeaseError>;
    /// Removes routes that are exactly these claims; tells how many were.
    async fn remove_routes(&self, routes: &[(RoomKey, Claim)]) -> Result<u64, LeaseError>;
    /// Writes `room:node:{node_id}` and the facts beside it, both with a time to live, and the store's marker if
    /// it is missing.
    async fn announce(&self, facts: &NodeFacts, ttl: Duration) -> Result<(), LeaseError>;
    /// Takes back what [`Self::announce`] wrote, if it is of this incarnation.
    async fn withdraw(&self, node: &NodeId, incarnation: Incarnation) -> Result<(), LeaseError>;
    /// One node's address, if it is alive.
    async fn node(&self, node: &NodeId) -> Result<Option<NodeFacts>, LeaseError>;
    /// All nodes that are alive.
    async fn nodes(&self) -> Result<Vec<NodeFacts>, LeaseError>;
}
