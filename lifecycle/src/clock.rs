//! Wall time as an argument.
//!
//! The only place that reads the wall clock. It knows nothing about waiting: timers use `tokio::time::Instant`,
//! which tests pause. Wall time may jump in both directions; who needs it never to fall keeps the last value.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::UNIX_EPOCH;

/// Where a process gets the wall time from.
pub trait Clock: Send + Sync + Debug + 'static {
    /// Milliseconds since the Unix epoch.
    fn now_ms(&self) -> i64;
}

/// A clock that is handed to every part of a process.
pub type SharedClock = Arc<dyn Clock>;

/// The clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The clock of the machine, ready to be shared.
    pub fn shared() -> SharedClock {
        Arc::new(Self)
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)] // the one place that the lint's reason points to
    fn now_ms(&self) -> i64 {
        let since_epoch = std::time::SystemTime::now().duration_since(UNIX_EPOCH);
        // A machine set to a time before 1970 reads as 0, not as a panic.
        since_epoch.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

/// A clock that tests set by hand. Clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct ManualClock {
    now_ms: Arc<AtomicI64>,
}

impl ManualClock {
    /// A clock that stands at `now_ms`.
    pub fn at(now_ms: i64) -> Self {
        let clock = Self::default();
        clock.set_ms(now_ms);
        clock
    }

    /// Sets the time, forwards or back.
    pub fn set_ms(&self, now_ms: i64) {
        self.now_ms.store(now_ms, Ordering::SeqCst);
    }

    /// Moves the time forwards.
    pub fn advance(&self, by: std::time::Duration) {
        let by_ms = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.now_ms.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.now_ms.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn clones_of_a_manual_clock_show_the_same_time() {
        let clock = ManualClock::at(1_000);
        let shared: SharedClock = Arc::new(clock.clone());
        clock.advance(Duration::from_millis(250));
        assert_eq!(shared.now_ms(), 1_250);
        clock.set_ms(10);
        assert_eq!(shared.now_ms(), 10);
    }

    #[test]
    fn the_system_clock_counts_from_the_unix_epoch() {
        let some_day_in_2024_ms = 1_700_000_000_000;
        assert!(SystemClock.now_ms() > some_day_in_2024_ms);
    }
}
