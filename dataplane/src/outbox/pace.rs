//! When to claim again, and how long a room's back-off is.
//!
//! Pure: time is the caller's, randomness comes in.

use std::time::Duration;

use rand::RngExt;

/// Longest pause between claims while nothing at all gets out.
const MAX_TROUBLE: Duration = Duration::from_secs(5);
/// Shortest such pause.
const MIN_TROUBLE: Duration = Duration::from_millis(100);

/// What the last step found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Rooms, and more are due.
    More,
    /// Rooms, but no more than these.
    Some,
    /// Nothing due.
    Nothing,
    /// The database or the sink does not work.
    Trouble,
}

/// The pause before the next claim.
#[derive(Debug, Clone)]
pub struct Pace {
    min: Duration,
    max: Duration,
    idle: Duration,
    trouble: Option<Duration>,
}

impl Pace {
    /// Polls between `min` and `max`, the slower the longer nothing is found.
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { min, max: max.max(min), idle: min, trouble: None }
    }

    /// The pause after a claim, or after a delivery, that found this.
    pub fn after(&mut self, found: Found, rng: &mut impl RngExt) -> Duration {
        match found {
            Found::More => {
                self.idle = self.min;
                Duration::ZERO
            }
            Found::Some => {
                self.idle = self.min;
                jitter(self.min, rng)
            }
            Found::Nothing => {
                let pause = self.idle;
                self.idle = (self.idle * 2).min(self.max);
                jitter(pause, rng)
            }
            Found::Trouble => {
                let pause = self.trouble.map_or(MIN_TROUBLE, |pause| (pause * 2).min(MAX_TROUBLE));
                self.trouble = Some(pause);
                jitter(pause, rng)
            }
        }
    }

    /// Something got out: the sink works.
    pub fn worked(&mut self) {
        self.trouble = None;
    }

    /// Whether wake-ups are to be passed over: they would only repeat what does not work.
    pub fn in_trouble(&self) -> bool {
        self.trouble.is_some()
    }
}

/// The back-off of a room after so many attempts in a row without progress: doubles from `min` to `max`.
pub fn backoff(attempts: u32, min: Duration, max: Duration, rng: &mut impl RngExt) -> Duration {
    let doublings = attempts.saturating_sub(1).min(20);
    jitter(min.saturating_mul(1 << doublings).min(max), rng)
}

/// Three quarters to all of it, so that many do not come at once.
pub fn jitter(pause: Duration, rng: &mut impl RngExt) -> Duration {
    pause.mul_f64(rng.random_range(0.75..=1.0))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_idle_worker_polls_ever_slower_up_to_the_bound() {
        let (mut pace, mut rng) = (Pace::new(20 * MS, 500 * MS), StdRng::seed_from_u64(1));
        let pauses: Vec<_> = (0..8).map(|_| pace.after(Found::Nothing, &mut rng)).collect();
        assert!(pauses[0] <= 20 * MS && pauses[0] >= 15 * MS);
        assert!(pauses[7] <= 500 * MS && pauses[7] >= 375 * MS);
        assert_eq!(pace.after(Found::More, &mut rng), Duration::ZERO);
        assert!(pace.after(Found::Nothing, &mut rng) <= 20 * MS);
    }

    #[test]
    fn trouble_slows_claims_down_and_success_ends_it() {
        let (mut pace, mut rng) = (Pace::new(20 * MS, 500 * MS), StdRng::seed_from_u64(1));
        for _ in 0..10 {
            pace.after(Found::Trouble, &mut rng);
        }
        assert!(pace.in_trouble());
        assert!(pace.after(Found::Trouble, &mut rng) <= MAX_TROUBLE);
        pace.worked();
        assert!(!pace.in_trouble());
    }

    #[test]
    fn a_backoff_doubles_and_is_capped() {
        let mut rng = StdRng::seed_from_u64(1);
        for (attempts, most) in [(0, 200), (1, 200), (2, 400), (3, 800), (99, 30_000), (u32::MAX, 30_000)] {
            let pause = backoff(attempts, 200 * MS, 30_000 * MS, &mut rng);
            assert!(pause <= most * MS && pause >= most * MS * 3 / 4, "{attempts}: {pause:?}");
        }
    }
}
