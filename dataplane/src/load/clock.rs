//! The run's clock: monotonic offsets, and the wall time of each.
//!
//! The wall clock is read once: a jump of it during the run does not move the ledger's times against each other.

use std::time::Duration;

use roomcluster_lifecycle::clock::{Clock, SystemClock};
use tokio::time::Instant;

/// Since when a run lasts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunClock {
    started: Instant,
    started_ms: i64,
}

impl RunClock {
    /// Begins now.
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), started_ms: SystemClock.now_ms() }
    }

    /// The offset of a time of the run.
    pub(crate) fn offset(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.started)
    }

    /// The wall time of a time of the run, in ms.
    pub(crate) fn wall_ms(&self, at: Instant) -> i64 {
        self.started_ms + i64::try_from(self.offset(at).as_millis()).unwrap_or(i64::MAX / 2)
    }

    /// The offset in µs.
    pub(crate) fn offset_us(&self, at: Instant) -> u64 {
        u64::try_from(self.offset(at).as_micros()).unwrap_or(u64::MAX)
    }
}
