//! What can be set, with the reasons for the defaults.

use std::sync::Arc;
use std::time::Duration;

/// Longest worker id in bytes, as the schema has it.
pub const MAX_WORKER_ID_BYTES: usize = 160;

/// What happens to a room after one of its events has failed for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BadEventPolicy {
    /// The event is set aside as `failed` and the later ones go on. Nothing is lost: the row stays, is counted, and
    /// can be revived; but then it goes out after the later ones. One bad event does not silence a room for good.
    #[default]
    SetAside,
    /// The room's later events wait until a person has revived or removed the failed one: for consumers that build
    /// state from the stream and must not see it with a gap.
    Block,
}

/// The settings of a worker.
#[derive(Debug, Clone)]
pub struct OutboxConfig {
    /// Who this is, for people: shown in `worker_id`. Not an identity that anything relies on.
    pub worker_id: Arc<str>,
    /// Rooms in one claim.
    pub rooms_per_claim: u32,
    /// Events in one claim, shared evenly among its rooms.
    pub events_per_claim: u32,
    /// Claims that are being delivered side by side.
    pub max_batches: usize,
    /// How long a claim holds. After a crash its rooms wait so long.
    pub lease: Duration,
    /// Sending stops so long before the lease's end: time to record what was sent.
    pub headroom: Duration,
    /// Longest delivery of one room's events.
    pub sink_timeout: Duration,
    /// Longest wait for the slower rooms of a claim before the faster ones are recorded.
    pub report_linger: Duration,
    /// Shortest and longest pause between claims that find nothing.
    pub poll: (Duration, Duration),
    /// Shortest and longest back-off of a room.
    pub backoff: (Duration, Duration),
    /// What a failed event means for the later ones of its room.
    pub bad_events: BadEventPolicy,
    /// A room whose claims were lost this often in a row is delivered one event at a time.
    pub solo_after: u32,
    /// An event that was alone in this many lost claims in a row has killed its worker each time: it fails.
    pub quarantine_after: u32,
    /// How long an end may take, from the signal.
    pub drain_timeout: Duration,
    /// Whether an end begins with one last pass over the rooms that were due at the signal.
    pub final_pass: bool,
    /// How often the backlog is measured.
    pub sample_every: Duration,
    /// How often the table is searched for rooms that fell out of the claims.
    pub rescue_every: Duration,
}

impl Default for OutboxConfig {
    fn default() -> Self {
        Self {
            worker_id: "outbox".into(),
            rooms_per_claim: 64,
            events_per_claim: 1_024,
            max_batches: 4,
            lease: Duration::from_secs(30),
            headroom: Duration::from_secs(5),
            sink_timeout: Duration::from_secs(5),
            report_linger: Duration::from_millis(20),
            poll: (Duration::from_millis(20), Duration::from_millis(500)),
            backoff: (Duration::from_millis(200), Duration::from_secs(30)),
            bad_events: BadEventPolicy::SetAside,
            solo_after: 3,
            quarantine_after: 20,
            drain_timeout: Duration::from_secs(30),
            final_pass: true,
            sample_every: Duration::from_secs(15),
            rescue_every: Duration::from_secs(60),
        }
    }
}

/// Why settings do not make sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOutboxConfig {
    /// Empty, too long, or no text that a row can show.
    #[error("the worker id has {0} bytes; it must have 1 to {MAX_WORKER_ID_BYTES}")]
    WorkerId(usize),
    /// Something that must be at least 1.
    #[error("{0} is 0; it must be at least 1")]
    Zero(&'static str),
    /// Nothing would be left to send in.
    #[error("the lease of {lease:?} is not longer than its headroom of {headroom:?}")]
    Lease {
        /// The lease.
        lease: Duration,
        /// The headroom.
        headroom: Duration,
    },
}

impl OutboxConfig {
    /// Refuses settings with which nothing would go out.
    pub fn validate(&self) -> Result<(), InvalidOutboxConfig> {
        let bytes = self.worker_id.len();
        if bytes == 0 || bytes > MAX_WORKER_ID_BYTES {
            return Err(InvalidOutboxConfig::WorkerId(bytes));
        }
        let counts = [
            ("rooms_per_claim", self.rooms_per_claim as usize),
            ("events_per_claim", self.events_per_claim as usize),
            ("max_batches", self.max_batches),
            ("solo_after", self.solo_after as usize),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(InvalidOutboxConfig::Zero(name));
        }
        if self.lease <= self.headroom {
            return Err(InvalidOutboxConfig::Lease { lease: self.lease, headroom: self.headroom });
        }
        Ok(())
    }
}
