//! The lease store inside the process, for one machine.
//!
//! The same rules as on Redis, in memory. Whoever shares it sees each other; a restart empties it, and then
//! absence counts at once: all who could have held a lease ended with it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::lease::{LeaseError, LeaseStore, NodeFacts, Route, RoutePut, RouteView, RouteWrite};
use crate::types::{Claim, Incarnation, NodeId, RoomKey};

/// The lease store inside the process.
#[derive(Default)]
pub struct EmbeddedLeases {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    routes: HashMap<RoomKey, Expiring<Route>>,
    nodes: HashMap<NodeId, Expiring<NodeFacts>>,
}

struct Expiring<T> {
    value: T,
    until: Instant,
}

impl<T> Expiring<T> {
    fn new(value: T, ttl: Duration) -> Self {
        Self { value, until: Instant::now() + ttl }
    }

    fn alive(&self) -> Option<&T> {
        (Instant::now() < self.until).then_some(&self.value)
    }
}

impl EmbeddedLeases {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn route(&self, room: &RoomKey) -> Option<&Route> {
        self.routes.get(room)?.alive()
    }

    fn put(&mut self, write: &RouteWrite, ttl: Duration) -> RoutePut {
        if let Some(standing) = self.route(&write.room)
            && standing.epoch >= write.claim.epoch
            && !is_claim(standing, write.claim)
        {
            return RoutePut::Refused(standing.clone());
        }
        let RouteWrite { room, node_id, claim } = write;
        let route = Route { node_id: node_id.clone(), epoch: claim.epoch, token: claim.token };
        self.routes.insert(room.clone(), Expiring::new(route, ttl));
        RoutePut::Held
    }

    fn remove(&mut self, room: &RoomKey, claim: Claim) -> bool {
        let is_it = self.route(room).is_some_and(|standing| is_claim(standing, claim));
        if is_it {
            self.routes.remove(room);
        }
        is_it
    }
}

fn is_claim(route: &Route, claim: Claim) -> bool {
    route.epoch == claim.epoch && route.token == claim.token
}

#[async_trait]
impl LeaseStore for EmbeddedLeases {
    async fn probe(&self) -> Result<(), LeaseError> {
        Ok(())
    }

    async fn put_routes(&self, writes: &[RouteWrite], ttl: Duration) -> Result<Vec<RoutePut>, LeaseError> {
        let mut inner = self.inner();
        Ok(writes.iter().map(|write| inner.put(write, ttl)).collect())
    }

    async fn routes(&self, rooms: &[RoomKey], _ttl: Duration) -> Result<Vec<RouteView>, LeaseError> {
        let inner = self.inner();
        let view = |room| RouteView { route: inner.route(room).cloned(), absence_counts: true };
        Ok(rooms.iter().map(view).collect())
    }

    async fn remove_routes(&self, routes: &[(RoomKey, Claim)]) -> Result<u64, LeaseError> {
        let mut inner = self.inner();
        Ok(routes.iter().filter(|(room, claim)| inner.remove(room, *claim)).count() as u64)
    }

    async fn announce(&self, facts: &NodeFacts, ttl: Duration) -> Result<(), LeaseError> {
        let mut inner = self.inner();
        inner.nodes.insert(facts.node_id.clone(), Expiring::new(facts.clone(), ttl));
        // What has expired leaves with the heartbeat, so that nothing grows for ever.
        inner.routes.retain(|_, route| route.alive().is_some());
        inner.nodes.retain(|_, node| node.alive().is_some());
        Ok(())
    }

    async fn withdraw(&self, node: &NodeId, incarnation: Incarnation) -> Result<(), LeaseError> {
        let mut inner = self.inner();
        if inner.nodes.get(node).is_some_and(|told| told.value.incarnation == incarnation) {
            inner.nodes.remove(node);
        }
        Ok(())
    }

    async fn node(&self, node: &NodeId) -> Result<Option<NodeFacts>, LeaseError> {
        Ok(self.inner().nodes.get(node).and_then(|told| told.alive().cloned()))
    }

    async fn nodes(&self) -> Result<Vec<NodeFacts>, LeaseError> {
        Ok(self.inner().nodes.values().filter_map(|told| told.alive().cloned()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::lease_suite::{self, LONG, room};
    use super::*;

    async fn open() -> ((), Arc<dyn LeaseStore>) {
        ((), Arc::new(EmbeddedLeases::new()))
    }

    lease_suite::lease_suite!(open);

    #[tokio::test]
    async fn absence_counts_from_the_start() {
        let leases = EmbeddedLeases::new();
        assert!(leases.routes(&[room("r")], LONG).await.unwrap()[0].absence_counts);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_expired_leaves_with_the_next_heartbeat() {
        let leases = EmbeddedLeases::new();
        let write = lease_suite::write(&room("r"), lease_suite::claim(1, 1), "node-a");
        leases.put_routes(&[write], Duration::from_secs(6)).await.unwrap();
        leases.announce(&lease_suite::facts("node-b", 1), Duration::from_secs(6)).await.unwrap();
        tokio::time::advance(Duration::from_secs(6)).await;
        leases.announce(&lease_suite::facts("node-a", 1), Duration::from_secs(6)).await.unwrap();
        let inner = leases.inner();
        assert_eq!((inner.routes.len(), inner.nodes.len()), (0, 1));
    }
}
