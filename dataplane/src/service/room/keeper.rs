//! The loop that keeps a node alive for the others: its announcement, its leases, and its picture of the peers.

use std::sync::Arc;
use std::time::Duration;

use roomcluster_lifecycle::{Process, ReadyGate, Tasks};
use tracing::{info, warn};

use super::{Orders, Stores};
use crate::cell::Cells;
use crate::forward::StandingSource;
use crate::ownership::lease::NodeFacts;
use crate::ownership::{Leases, Peers};
use crate::room::VoiceRoom;
use crate::store::RoomStore;

/// The loop counts as stopped after this: many renewals, so that a slow lease store does not look like it.
const LOOP_BOUND: Duration = Duration::from_secs(60);

/// Handle to the loop.
#[derive(Clone)]
pub(super) struct Keeper {
    inner: Arc<Inner>,
}

struct Inner {
    leases: Arc<Leases>,
    peers: Arc<Peers>,
    orders: Arc<Orders>,
    cells: Cells<VoiceRoom>,
    rooms: Arc<dyn RoomStore>,
    registered: ReadyGate,
    leftovers: ReadyGate,
}

impl Keeper {
    pub(super) fn start(
        process: &Process,
        loops: &Tasks,
        leases: &Arc<Leases>,
        peers: &Arc<Peers>,
        orders: &Arc<Orders>,
        cells: &Cells<VoiceRoom>,
        stores: &Stores,
    ) -> Self {
        let health = &process.health;
        let keeper = Self {
            inner: Arc::new(Inner {
                leases: Arc::clone(leases),
                peers: Arc::clone(peers),
                orders: Arc::clone(orders),
                cells: cells.clone(),
                rooms: Arc::clone(&stores.rooms),
                registered: health.closed_gate("registered", "room:node has not been written yet"),
                leftovers: health.closed_gate("leftovers", "rooms of a former process are not released yet"),
            }),
        };
        let heartbeat = health.heartbeat("lease-renewal", LOOP_BOUND);
        let (runner, clock) = (keeper.clone(), Arc::clone(&process.clock));
        loops.spawn_essential("lease-renewal", move |stop| async move {
            let mut ticks = tokio::time::interval(runner.inner.leases.config().renew_every());
            let mut answered = true;
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return heartbeat.retire(),
                    _ = ticks.tick() => {}
                }
                heartbeat.beat();
                runner.release_leftovers(clock.now_ms()).await;
                answered = runner.renew(answered).await;
            }
        });
        keeper
    }

    /// One round. Failures are logged when they begin and when they end.
    async fn renew(&self, answered_before: bool) -> bool {
        let announced = self.announce().await;
        let renewed = self.inner.leases.renew().await;
        match (announced && renewed.is_ok(), answered_before) {
            (true, false) => info!("The lease store answers again"),
            (false, true) => {
                warn!("The lease store does not answer; leases are taken in the database meanwhile")
            }
            _ => {}
        }
        announced && renewed.is_ok()
    }

    /// Tells the others how this node stands, and learns how they do.
    pub(super) async fn announce(&self) -> bool {
        let inner = &self.inner;
        let store = inner.leases.store();
        if store.announce(&self.facts(), inner.leases.config().ttl).await.is_err() {
            return false;
        }
        inner.registered.open();
        inner.peers.refresh(store).await.is_ok()
    }

    fn facts(&self) -> NodeFacts {
        let standing = self.inner.orders.standing();
        let node = self.inner.leases.node();
        NodeFacts {
            node_id: node.node_id.clone(),
            incarnation: node.incarnation,
            address: node.address.clone(),
            revision: standing.revision,
            accepting: standing.accepting,
            rooms: self.inner.cells.count() as u64,
        }
    }

    /// A former process of this node is gone for good: what it owned is free. Once.
    async fn release_leftovers(&self, now_ms: i64) {
        let inner = &self.inner;
        if inner.leftovers.is_open() {
            return;
        }
        match inner.rooms.release_former_incarnations(inner.leases.node(), now_ms).await {
            Ok(rooms) => {
                info!(rooms, "Rooms of former processes of this node are released");
                inner.leftovers.open();
            }
            Err(error) => info!(%error, "Rooms of former processes of this node cannot be released yet"),
        }
    }
}
