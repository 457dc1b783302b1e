//! The retries that the API documents: the same command id, at most 5 tries within 5 s.
//!
//! Pure: knows neither clock nor network. A considered no is never sent again, an unknown outcome always is
//! until the budget ends.

use std::error::Error;
use std::time::Duration;

use rand::RngExt;
use tonic::{Code, Status};

/// Tries in all, the first one included.
pub(crate) const MAX_TRIES: u32 = 5;
/// From the first send to the end of the last try.
pub(crate) const BUDGET: Duration = Duration::from_secs(5);
/// The wait before the second try; each later one is twice as long.
const FIRST_BACKOFF_MS: u64 = 50;

/// What the answer to one try means for the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TryVerdict {
    /// The service asks for a retry, or the outcome is unknown.
    Retry,
    /// The connection failed, or the try timed out on it: retry over another.
    RetryElsewhere,
    /// A considered no: the command took no effect.
    Refused,
    /// A failure that the API does not name: no retry, and the outcome is unknown.
    Broken,
}

/// Sorts the error of one try.
///
/// A status that the transport made carries a source; one that the server sent does not.
pub(crate) fn classify(status: &Status) -> TryVerdict {
    if status.source().is_some() {
        return TryVerdict::RetryElsewhere;
    }
    match status.code() {
        Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded | Code::Cancelled => {
            TryVerdict::Retry
        }
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => TryVerdict::Refused,
        Code::Ok | Code::Unknown | Code::Aborted | Code::Internal | Code::DataLoss => TryVerdict::Broken,
    }
}

/// The wait before the next try, or `None` when the budget is used up.
///
/// `tries` counts those made. The wait is 50, 100, 200, 400 ms, plus up to a quarter so that the clients of one
/// outage do not come back in step.
pub(crate) fn next_wait(tries: u32, elapsed: Duration, rng: &mut impl RngExt) -> Option<Duration> {
    if tries >= MAX_TRIES {
        return None;
    }
    let base_ms = FIRST_BACKOFF_MS << tries.saturating_sub(1);
    let wait = Duration::from_millis(base_ms + rng.random_range(0..=base_ms / 4));
    (elapsed + wait < BUDGET).then_some(wait)
}

/// How long one try may last.
pub(crate) fn try_timeout(per_try: Duration, elapsed: Duration) -> Duration {
    per_try.min(BUDGET.saturating_sub(elapsed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn rng() -> StdRng {
        StdRng::seed_from_u64(7)
    }

    #[test]
    fn there_are_at_most_five_tries() {
        let waits: Vec<_> = (1..).map_while(|tries| next_wait(tries, Duration::ZERO, &mut rng())).collect();
        assert_eq!(waits.len(), 4);
        for (wait, base_ms) in waits.iter().zip([50, 100, 200, 400]) {
            assert!((base_ms..=base_ms + base_ms / 4).contains(&(wait.as_millis() as u64)), "{wait:?}");
        }
    }

    #[test]
    fn no_try_begins_or_lasts_beyond_the_budget() {
        assert_eq!(next_wait(1, Duration::from_millis(4_960), &mut rng()), None);
        assert!(next_wait(1, Duration::from_millis(4_900), &mut rng()).is_some());
        assert_eq!(
            try_timeout(Duration::from_secs(2), Duration::from_millis(4_500)),
            Duration::from_millis(500)
        );
        assert_eq!(try_timeout(Duration::from_secs(2), Duration::from_secs(6)), Duration::ZERO);
    }

    #[test]
    fn only_what_the_api_names_is_sent_again() {
        for code in [Code::Unavailable, Code::ResourceExhausted, Code::DeadlineExceeded, Code::Cancelled] {
            assert_eq!(classify(&Status::new(code, "")), TryVerdict::Retry, "{code:?}");
        }
        for code in [Code::FailedPrecondition, Code::NotFound, Code::AlreadyExists, Code::PermissionDenied] {
            assert_eq!(classify(&Status::new(code, "")), TryVerdict::Refused, "{code:?}");
        }
        for code in [Code::Internal, Code::Unknown, Code::Aborted, Code::DataLoss] {
            assert_eq!(classify(&Status::new(code, "")), TryVerdict::Broken, "{code:?}");
        }
    }

    #[test]
    fn an_error_of_the_transport_goes_to_another_connection() {
        let lost = Status::from_error(std::io::Error::other("connection reset").into());
        assert_eq!(classify(&lost), TryVerdict::RetryElsewhere);
    }
}
