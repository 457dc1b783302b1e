//! Which of several operators writes: a claim on a Lease object, held as a value that expires by itself.
//!
//! The claim is valid until a moment on this process's monotonic clock, counted from when the last good renewal
//! was *sent*, and shorter than the time after which others may take the Lease. So a process that is cut off,
//! paused or slow stops writing before anybody else begins, whatever wall clocks say. Every write asks the
//! claim first. Somebody else's Lease is taken only after it has stood unchanged for its whole duration under
//! our own eyes.

mod lease;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::sentence;

use lease::{Next, Watch};

/// After so long without a renewal others take over.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long our own claim is valid after a renewal was sent; the rest is margin for writes under way.
const CLAIM_DURATION: Duration = Duration::from_secs(9);
/// How often a holder renews, and a candidate looks.
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// One request to the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// This process does not hold the claim (any longer), so it may not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this operator does not hold the leader claim")]
pub struct NotLeading;

/// Why the Lease could not be read or written.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("the API server did not answer within {} ms", REQUEST_TIMEOUT.as_millis())]
    TimedOut,
    #[error("read or write the lease")]
    Api(#[source] kube::Error),
}

/// The claim as those see it who write.
#[derive(Clone, Debug)]
pub struct Claim {
    valid_until: watch::Receiver<Option<Instant>>,
}

impl Claim {
    /// Whether this process may write at this moment.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.valid_until.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Passes only while this process may write.
    ///
    /// # Errors
    /// Once the claim is lost or has expired.
    pub fn check(&self) -> Result<(), NotLeading> {
        if self.is_held() { Ok(()) } else { Err(NotLeading) }
    }

    /// Waits until this process has taken the claim anew. `None`: the election has ended.
    pub async fn acquired(&mut self) -> Option<()> {
        loop {
            let was_held = self.is_held();
            self.valid_until.changed().await.ok()?;
            if !was_held && self.is_held() {
                return Some(());
            }
        }
    }
}

/// Takes part in the election.
pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    valid_until: watch::Sender<Option<Instant>>,
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Election {
    /// A candidate under an identity that no other process has, not even an earlier one of the same pod.
    #[must_use]
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        pod: &str,
        now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    ) -> (Self, Claim) {
        let (sender, valid_until) = watch::channel(None);
        let election = Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: format!("{pod}_{:016x}", rand::random::<u64>()),
            now,
            valid_until: sender,
        };
        (election, Claim { valid_until })
    }

    /// Takes and renews the claim until told to stop; releases it then, so that the next one need not wait.
    pub async fn run(self, stop: CancellationToken) {
        let mut watch = Watch::default();
        loop {
            let round = async {
                if let Err(error) = self.round(&mut watch).await {
                    tracing::warn!(error = sentence(&error), "leader lease not renewed");
                }
                sleep(RENEW_EVERY).await;
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = round => {}
            }
        }
        if let Err(error) = self.release().await {
            tracing::warn!(error = sentence(&error), "leader lease not released");
        }
    }

    async fn round(&self, watch: &mut Watch) -> Result<(), LeaseError> {
        let lease = request(self.api.get_opt(&self.name)).await?;
        let next = watch.decide(lease.as_ref(), &self.identity, Instant::now());
        let held = lease::held_by(&self.identity, (self.now)(), LEASE_DURATION, lease.as_ref());
        let sent_at = Instant::now();
        let written = match next {
            Next::Wait => {
                self.lose();
                return Ok(());
            }
            Next::Create => request(self.api.create(&PostParams::default(), &held(&self.name))).await,
            Next::TakeOrRenew => {
                request(self.api.replace(&self.name, &PostParams::default(), &held(&self.name))).await
            }
        };
        match written {
            Ok(_) => {
                self.extend(sent_at + CLAIM_DURATION);
                Ok(())
            }
            // Somebody was faster; the next round sees who.
            Err(LeaseError::Api(kube::Error::Api(status))) if status.code == 409 => {
                self.lose();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn extend(&self, until: Instant) {
        let was_held = self.valid_until.borrow().is_some_and(|until| Instant::now() < until);
        if !was_held {
            tracing::info!(identity = self.identity, "leader claim taken");
        }
        self.valid_until.send_replace(Some(until));
    }

    fn lose(&self) {
        if self.valid_until.send_replace(None).is_some() {
            tracing::warn!(identity = self.identity, "leader claim lost");
        }
    }

    /// Stops writing first, then tells the others.
    async fn release(&self) -> Result<(), LeaseError> {
        if self.valid_until.send_replace(None).is_none() {
            return Ok(());
        }
        let Some(mut lease) = request(self.api.get_opt(&self.name)).await? else { return Ok(()) };
        let Some(spec) = lease.spec.as_mut() else { return Ok(()) };
        if spec.holder_identity.as_ref() != Some(&self.identity) {
            return Ok(());
        }
        spec.holder_identity = None;
        request(self.api.replace(&self.name, &PostParams::default(), &lease)).await?;
        tracing::info!(identity = self.identity, "leader claim released");
        Ok(())
    }
}

async fn request<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, LeaseError> {
    match timeout(REQUEST_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(LeaseError::Api),
        Err(_) => Err(LeaseError::TimedOut),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_not_renewed_expires_by_itself_before_others_may_take_the_lease() {
        let (sender, valid_until) = watch::channel(None);
        let claim = Claim { valid_until };
        assert_eq!(claim.check(), Err(NotLeading), "nobody starts as the leader");
        sender.send_replace(Some(Instant::now() + CLAIM_DURATION));
        assert_eq!(claim.check(), Ok(()));
        advance(CLAIM_DURATION).await;
        assert_eq!(claim.check(), Err(NotLeading));
        assert!(CLAIM_DURATION + REQUEST_TIMEOUT + RENEW_EVERY < LEASE_DURATION, "the margin");
    }

    #[tokio::test(start_paused = true)]
    async fn taking_the_claim_anew_is_told_and_renewing_it_is_not() {
        let (sender, valid_until) = watch::channel(None);
        let mut claim = Claim { valid_until };
        let renew = || sender.send_replace(Some(Instant::now() + CLAIM_DURATION));
        let told = async { timeout(Duration::from_secs(1), claim.acquired()).await };
        let (told, _) = tokio::join!(told, async { renew() });
        assert_eq!(told, Ok(Some(())));
        let told = async { timeout(Duration::from_secs(1), claim.acquired()).await };
        let (told, _) = tokio::join!(told, async { renew() });
        assert!(told.is_err());
        drop(sender);
        assert_eq!(claim.acquired().await, None);
    }
}
