//! Delivery of committed events: at least once, in order per room, under a stable id.
//!
//! [`store`] holds the events and leases rooms to workers; [`sink`] is where they go; [`run`] is a worker.
//! Any number of workers, in the room processes or beside them, share one outbox; none is special and none is
//! missed. It knows envelopes and never what is in them.
//!
//! Promises: a committed event is delivered until the sink has confirmed it, whatever crashes; events of a room go
//! out in the order of their positions, and the first failure holds the later ones back; errors of the
//! infrastructure are retried for ever; only proof that an event is bad ends as `failed`, which is kept, counted
//! and can be revived. After a crash events come twice: consumers deduplicate by event id within the tenant.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use batch::Tally;
pub use config::{BadEventPolicy, InvalidOutboxConfig, OutboxConfig};
pub use metrics::OutboxMetrics;
pub use worker::Drained;

mod batch;
pub mod config;
pub mod event;
pub mod fair;
pub mod judge;
pub mod metrics;
pub mod pace;
pub mod sink;
pub mod store;
#[cfg(test)]
mod testing;
mod worker;

/// Wakes a worker in the same process after a commit. A wake-up may be lost or come for nothing: polling alone
/// carries the outbox.
#[derive(Debug, Clone, Default)]
pub struct OutboxWaker(Arc<Notify>);

impl OutboxWaker {
    /// Says that events were committed.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    async fn woken(&self) {
        self.0.notified().await;
    }
}

/// Tells whether a worker's loop turns, for liveness. It beats whatever the database and the sink do.
#[derive(Debug, Clone)]
pub struct OutboxPulse(Arc<Mutex<Instant>>);

impl Default for OutboxPulse {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl OutboxPulse {
    /// Time since the last beat; more than a few seconds means that the loop is stuck or has ended.
    pub fn age(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// What a worker is made of.
pub struct OutboxParts {
    /// The outbox's tables.
    pub store: Arc<dyn store::OutboxStore>,
    /// Where events go.
    pub sink: Arc<dyn sink::Sink>,
    /// The settings, validated.
    pub config: OutboxConfig,
    /// Wakes it.
    pub waker: OutboxWaker,
    /// Shows that it turns.
    pub pulse: OutboxPulse,
    /// What it counts.
    pub metrics: Arc<OutboxMetrics>,
}

/// What a worker and its batches share.
struct Shared {
    store: Arc<dyn store::OutboxStore>,
    sink: Arc<dyn sink::Sink>,
    config: OutboxConfig,
    metrics: Arc<OutboxMetrics>,
    /// Set once when the worker ends: see [`judge::Rules::due_again_ms`].
    due_again_ms: OnceLock<i64>,
}

/// Runs a worker until `cancel`, then ends it within the drain timeout and tells how.
///
/// The caller closes the store and the sink afterwards. Dropping the future ends the worker at once: what it held
/// is delivered, possibly again, after the end of its leases.
pub async fn run(parts: OutboxParts, cancel: CancellationToken) -> Drained {
    let OutboxParts { store, sink, config, waker, pulse, metrics } = parts;
    let _alive = Alive::new(metrics.clone());
    let shared = Arc::new(Shared { store, sink, config, metrics, due_again_ms: OnceLock::new() });
    worker::Worker::new(shared, waker, pulse).run(cancel).await
}

/// The worker counts as alive as long as this lives.
struct Alive(Arc<OutboxMetrics>);

impl Alive {
    fn new(metrics: Arc<OutboxMetrics>) -> Self {
        metrics.set_alive(true);
        Self(metrics)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.set_alive(false);
    }
}
