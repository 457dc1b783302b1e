//! When each command of an open loop is meant to be sent.
//!
//! Pure. The schedule never waits for an answer: a command that is late because the one before it was slow keeps
//! its intended time, and its latency counts from there.

use std::time::Duration;

/// The intended send times of one lane, as offsets from the start of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Schedule {
    phase: Duration,
    period: Duration,
}

impl Schedule {
    /// The `index`-th of `lanes` lanes that share `rate_per_s`: all have one period, their phases are spread evenly.
    ///
    /// `None` when nothing is to be sent.
    pub(crate) fn shared(rate_per_s: f64, lanes: usize, index: usize) -> Option<Self> {
        if rate_per_s <= 0.0 || lanes == 0 {
            return None;
        }
        let period_s = lanes as f64 / rate_per_s;
        Some(Self {
            phase: Duration::from_secs_f64(period_s * index as f64 / lanes as f64),
            period: Duration::from_secs_f64(period_s),
        })
    }

    /// When command `number` (from 0) is meant to be sent.
    pub(crate) fn intended(&self, number: u64) -> Duration {
        let nanos = self.period.as_nanos() * u128::from(number);
        self.phase + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Latency of an answer, from the intended time, or from the send when that came first.
pub(crate) fn latency(intended: Duration, sent: Duration, acked: Duration) -> Duration {
    acked.saturating_sub(intended.min(sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lanes_together_send_at_the_rate_evenly() {
        let mut times: Vec<Duration> = (0..40)
            .flat_map(|lane| {
                let schedule = Schedule::shared(200.0, 40, lane).unwrap();
                (0..10).map(move |number| schedule.intended(number))
            })
            .collect();
        times.sort();
        assert_eq!(times.len(), 400);
        for pair in times.windows(2) {
            let gap_us = (pair[1] - pair[0]).as_micros();
            assert!((4_999..=5_001).contains(&gap_us), "{gap_us}");
        }
    }

    #[test]
    fn a_rate_of_zero_sends_nothing() {
        assert_eq!(Schedule::shared(0.0, 3, 0), None);
    }

    #[test]
    fn latency_counts_from_the_intended_time_when_the_send_was_late() {
        let ms = Duration::from_millis;
        assert_eq!(latency(ms(100), ms(900), ms(905)), ms(805));
        assert_eq!(latency(ms(100), ms(99), ms(105)), ms(6));
    }
}
