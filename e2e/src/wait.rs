//! Waiting for a condition.
//!
//! Nothing here knows what is waited for. Invariant: an attempt says why it does not hold yet, and who gave up
//! tells the last such reason.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{Instant, sleep};

/// Short enough to see each step of a roll, long enough to leave the machine to those who work.
const INTERVAL: Duration = Duration::from_millis(200);

/// Repeats `attempt` until it succeeds.
///
/// # Errors
/// The last failure, when none has succeeded `within`.
pub async fn until<T>(
    what: &str,
    within: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(reason) if Instant::now() >= deadline => {
                return Err(reason).with_context(|| format!("gave up waiting after {within:?}: {what}"));
            }
            Err(_) => sleep(INTERVAL).await,
        }
    }
}

/// Repeats `check` for the whole of `span`.
///
/// # Errors
/// The first failure.
pub async fn throughout(
    what: &str,
    span: Duration,
    mut check: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    let deadline = Instant::now() + span;
    while Instant::now() < deadline {
        check().await.with_context(|| format!("did not hold for {span:?}: {what}"))?;
        sleep(INTERVAL).await;
    }
    Ok(())
}
