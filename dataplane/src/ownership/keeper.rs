//! The leases that this node holds: their local deadlines, their renewal, and the check before a commit.
//!
//! A lease is liveness, not safety: the fence in the commit's transaction is what keeps a former owner out. The
//! local deadline counts on the monotonic clock from when the last good renewal was *sent*, less a margin, so
//! that it ends before the route does, however late the answer came.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tracing::{info, warn};

use super::lease::{LeaseError, LeaseStore, RoutePut, RouteView, RouteWrite};
use crate::types::{Claim, NodeRef, RoomKey};

/// Rooms in one call to the lease store; a script of this size blocks Redis for under a millisecond.
const RENEWAL_BATCH: usize = 256;

/// How leases live.
#[derive(Debug, Clone, Copy)]
pub struct LeaseConfig {
    /// Time to live of a route.
    pub ttl: Duration,
    /// By how much the local deadline ends before the route.
    pub margin: Duration,
}

impl LeaseConfig {
    /// A lease of this length; renewed every third of it, with a twelfth as the margin.
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, margin: ttl / 12 }
    }

    /// How often leases are renewed and the node announced.
    pub fn renew_every(&self) -> Duration {
        self.ttl / 3
    }
}

/// The right to execute one room, under one claim.
#[derive(Debug)]
pub struct Lease {
    /// The room.
    pub room: RoomKey,
    /// Epoch and token.
    pub claim: Claim,
    base: Instant,
    valid_until_ms: AtomicU64,
    void: AtomicBool,
}

impl Lease {
    /// Whether the local deadline stands.
    pub fn is_valid(&self) -> bool {
        let now_ms = millis(self.base.elapsed());
        !self.is_void() && now_ms < self.valid_until_ms.load(Ordering::Acquire)
    }

    fn is_void(&self) -> bool {
        self.void.load(Ordering::Acquire)
    }

    /// Ends the local deadline at once: a new lease must be taken before anything is written.
    pub fn expire(&self) {
        self.void.store(true, Ordering::Release);
    }

    fn extend(&self, until: Instant) {
        let until_ms = millis(until.saturating_duration_since(self.base));
        self.valid_until_ms.fetch_max(until_ms, Ordering::AcqRel);
    }
}

/// What the check before a commit found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on; the fence in SQL decides.
    GoOn,
    /// The lease has ended or its route is gone: a new one must be taken in SQL first.
    Expired,
}

/// What leases count. No label carries a room.
#[derive(Debug, Clone, Default)]
pub struct LeaseMetrics {
    check_failures: Counter,
}

impl LeaseMetrics {
    /// Counters that `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Calls about leases that the lease store did not answer.";
        registry.register("room_lease_check_failures", help, metrics.check_failures.clone());
        metrics
    }
}

/// The leases of this node.
pub struct Leases {
    node: NodeRef,
    store: Arc<dyn LeaseStore>,
    config: LeaseConfig,
    base: Instant,
    held: Mutex<HashMap<RoomKey, Arc<Lease>>>,
    metrics: LeaseMetrics,
}

impl Leases {
    /// No leases yet.
    pub fn new(
        node: NodeRef,
        store: Arc<dyn LeaseStore>,
        config: LeaseConfig,
        metrics: LeaseMetrics,
    ) -> Self {
        Self { node, store, config, base: Instant::now(), held: Mutex::default(), metrics }
    }

    /// The node that holds them.
    pub fn node(&self) -> &NodeRef {
        &self.node
    }

    /// The lease store behind.
    pub fn store(&self) -> &dyn LeaseStore {
        self.store.as_ref()
    }

    /// Time to live and margin.
    pub fn config(&self) -> LeaseConfig {
        self.config
    }

    /// Publishes a claim that SQL has just granted and keeps it renewed from now on.
    ///
    /// `taken_at` is when the take was sent. A lease store that does not answer does not matter: the take itself
    /// is a lease until the local deadline, and the next renewal publishes it.
    pub async fn hold(&self, room: &RoomKey, claim: Claim, taken_at: Instant) -> Arc<Lease> {
        let lease = Arc::new(Lease {
            room: room.clone(),
            claim,
            base: self.base,
            valid_until_ms: AtomicU64::new(0),
            void: AtomicBool::new(false),
        });
        lease.extend(self.deadline(taken_at));
        self.lock().insert(room.clone(), Arc::clone(&lease));
        match self.store.put_routes(&[self.write(&lease)], self.config.ttl).await {
            Ok(_) => {}
            Err(error) => warn!(%room, %error, "A route could not be published; the next renewal does it"),
        }
        lease
    }

    /// Stops renewing a lease, so that it ends by itself.
    pub fn forget(&self, lease: &Lease) {
        let mut held = self.lock();
        if held.get(&lease.room).is_some_and(|standing| standing.claim == lease.claim) {
            held.remove(&lease.room);
        }
    }

    /// Stops renewing a lease that SQL has released and removes its route.
    pub async fn let_go(&self, lease: &Lease) {
        self.forget(lease);
        if let Err(error) = self.store.remove_routes(&[(lease.room.clone(), lease.claim)]).await {
            info!(room = %lease.room, %error, "A released route could not be removed; it expires");
        }
    }

    /// The check before a commit: one round trip for the whole batch, one verdict each.
    pub async fn verify(&self, leases: &[Arc<Lease>]) -> Vec<Verdict> {
        let rooms: Vec<_> = leases.iter().map(|lease| lease.room.clone()).collect();
        match self.store.routes(&rooms, self.config.ttl).await {
            Ok(views) => {
                let stale: Vec<_> =
                    leases.iter().zip(&views).filter(|(lease, view)| is_stale(view, lease.claim)).collect();
                if !stale.is_empty() {
                    let writes: Vec<_> = stale.iter().map(|(lease, _)| self.write(lease)).collect();
                    let _overwritten = self.store.put_routes(&writes, self.config.ttl).await;
                }
                leases.iter().zip(&views).map(|(lease, view)| verdict(lease, view)).collect()
            }
            Err(_silent) => {
                self.metrics.check_failures.inc();
                let alone =
                    |lease: &Arc<Lease>| if lease.is_valid() { Verdict::GoOn } else { Verdict::Expired };
                leases.iter().map(alone).collect()
            }
        }
    }

    /// Renews every lease; called every [`LeaseConfig::renew_every`].
    pub async fn renew(&self) -> Result<(), LeaseError> {
        let leases: Vec<_> = self.lock().values().cloned().collect();
        for batch in leases.chunks(RENEWAL_BATCH) {
            let writes: Vec<_> = batch.iter().map(|lease| self.write(lease)).collect();
            let sent_at = Instant::now();
            let puts = self.store.put_routes(&writes, self.config.ttl).await;
            let puts = puts.inspect_err(|_silent| {
                self.metrics.check_failures.inc();
            })?;
            for (lease, put) in batch.iter().zip(puts) {
                match put {
                    RoutePut::Held => lease.extend(self.deadline(sent_at)),
                    // Another owner is ahead of us, or the store holds something older than the truth. The
                    // deadline runs out, and the next command asks SQL.
                    RoutePut::Refused(route) => {
                        info!(room = %lease.room, epoch = %lease.claim.epoch, other = %route.epoch, "A renewal was refused");
                    }
                }
            }
        }
        Ok(())
    }

    fn deadline(&self, sent_at: Instant) -> Instant {
        sent_at + self.config.ttl.saturating_sub(self.config.margin)
    }

    fn write(&self, lease: &Lease) -> RouteWrite {
        RouteWrite { room: lease.room.clone(), node_id: self.node.node_id.clone(), claim: lease.claim }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RoomKey, Arc<Lease>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_stale(view: &RouteView, claim: Claim) -> bool {
    view.route.as_ref().is_some_and(|route| route.epoch < claim.epoch)
}

/// A route of a higher epoch or another token is no reason to drop a room: the fence reads the truth.
fn verdict(lease: &Lease, view: &RouteView) -> Verdict {
    match &view.route {
        Some(_) if lease.is_valid() => Verdict::GoOn,
        Some(route) if route.token == lease.claim.token && !lease.is_void() => Verdict::GoOn,
        _ => Verdict::Expired,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
