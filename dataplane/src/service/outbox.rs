//! `dataplane outbox`: delivers committed events.
use roomcluster_lifecycle::{BoxError, Process};
use secrecy::SecretString;
use tokio::time::Instant;

/// x
pub struct OutboxWorker;
impl OutboxWorker {
    /// x
    pub async fn start(_p: &Process, _d: &SecretString, _s: &SecretString, _n: &str) -> Result<Self, BoxError> {
        Ok(Self)
    }
    /// x
    pub async fn shutdown(self, _deadline: Instant) {}
}
