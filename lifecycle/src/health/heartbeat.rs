//! Liveness as the beats of main loops.
//!
//! A beat is one atomic store. A loop that ends without [`Heartbeat::retire`] goes on being late: that is the
//! point. Knows nothing outside of this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::report::FailedCheck;
use super::{Health, write};

/// When a loop last beat.
#[derive(Debug)]
pub(super) struct Pulse {
    name: &'static str,
    bound: Duration,
    born_at: Instant,
    /// Milliseconds from `born_at` to the last beat.
    last_beat_ms: AtomicU64,
}

impl Pulse {
    pub(super) fn new(name: &'static str, bound: Duration) -> Self {
        Self { name, bound, born_at: Instant::now(), last_beat_ms: AtomicU64::new(0) }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    fn beat(&self) {
        let since_birth_ms = u64::try_from(self.born_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_beat_ms.store(since_birth_ms, Ordering::Relaxed);
    }

    /// The failure, if the last beat is older than its bound.
    pub(super) fn late(&self, now: Instant) -> Option<FailedCheck> {
        let last_beat = Duration::from_millis(self.last_beat_ms.load(Ordering::Relaxed));
        let age = now.saturating_duration_since(self.born_at + last_beat);
        (age > self.bound).then(|| {
            let message = format!("no beat for {} ms, bound {} ms", age.as_millis(), self.bound.as_millis());
            FailedCheck::new(self.name, message)
        })
    }
}

/// The promise of a loop to beat. Clones beat for the same loop.
#[derive(Clone)]
pub struct Heartbeat {
    health: Health,
    pulse: Arc<Pulse>,
}

impl std::fmt::Debug for Heartbeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heartbeat").field("pulse", &self.pulse).finish_non_exhaustive()
    }
}

impl Heartbeat {
    pub(super) fn new(health: Health, pulse: Arc<Pulse>) -> Self {
        Self { health, pulse }
    }

    /// The loop makes progress.
    pub fn beat(&self) {
        self.pulse.beat();
    }

    /// The loop ends because it was told to; nobody waits for its beats any more.
    pub fn retire(self) {
        write(&self.health.inner.pulses).retain(|pulse| !Arc::ptr_eq(pulse, &self.pulse));
    }
}
