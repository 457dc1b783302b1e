//! The port to the outbox's tables, with a MySQL/MariaDB and an SQLite implementation.
//!
//! Rooms are leased, not rows: a claim takes the due rooms of a tenant by one index range and gives them a random
//! token and an end by the database's clock. It is the only exclusion between workers; `worker_id` is for people.
//! What every implementation keeps:
//!
//! - no lock outlives a call: a worker that stops dead between two calls blocks no producer and no other worker;
//! - events are read in the order of their positions, from the first one that is neither delivered nor failed;
//! - every change to an event row is conditional on the claim's token that stands in that row, so that a worker
//!   whose lease ended changes nothing that belongs to the next one;
//! - delivered rows leave the table, all others stay;
//! - `pending` of a room may be too high after a crash, never too low; a claim that finds nothing recounts it.
//!
//! The row of a room stays when nothing is left (`due_ms` NULL): it costs no more than the room's head, and a
//! table without deletes is one deadlock less.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rand::RngExt;
use secrecy::{ExposeSecret, SecretString};
use sqlx::ConnectOptions;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use super::event::{EventPosition, OutboxEvent};
use crate::store::StoreError;
use crate::types::RoomKey;

pub mod mysql;
pub mod sqlite;

/// `due_ms` of a room that waits for a person: its first event failed and the policy is to block.
pub const BLOCKED_DUE_MS: i64 = i64::MAX;
/// Longest `last_error` in bytes, as the schema has it.
pub const MAX_LAST_ERROR_BYTES: usize = 1_024;
/// Most rooms that a look at the backlog counts in each tenant, so that a flood does not make it expensive.
pub const MAX_BACKLOG_ROOMS: u32 = 2_000;
/// Most rooms whose oldest event a look at the backlog reads in each tenant: the most overdue ones.
pub const MAX_OLDEST_ROOMS: u32 = 200;

/// Proof of one claim: random, new for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimToken(pub [u8; 16]);

impl ClaimToken {
    /// A fresh random token.
    pub fn random(rng: &mut impl RngExt) -> Self {
        Self(rng.random())
    }
}

/// How many rooms of one tenant a claim may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppQuota {
    /// The tenant.
    pub app_code: Arc<str>,
    /// At most so many rooms.
    pub rooms: u32,
}

/// A request for rooms.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// Who asks; for people.
    pub worker_id: Arc<str>,
    /// The token of this claim.
    pub token: ClaimToken,
    /// How long it holds.
    pub lease: Duration,
    /// Of whom, and how many.
    pub quotas: Vec<AppQuota>,
    /// Only rooms that were due at this time of the database; `None` for now.
    pub due_by_ms: Option<i64>,
    /// How many events to read in all, shared evenly among the rooms.
    pub events: u32,
    /// A room whose claims were lost this often in a row is read one event at a time.
    pub solo_after: u32,
}

/// A claimed room with the events to deliver, all in state `delivering`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedRoom {
    /// The room.
    pub room: RoomKey,
    /// Claims in a row without progress, this one included.
    pub attempts: u32,
    /// Claims in a row that ended without a report: their workers died or lost the database.
    pub lost_claims: u32,
    /// The first undelivered events, in order. Empty when there are none (the room is then recounted).
    pub events: Vec<OutboxEvent>,
    /// As many were read as may be: there are probably more.
    pub more: bool,
}

/// What becomes of a room after a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Next {
    /// Due at once if events are left, else not claimable.
    Now,
    /// Due at this time of the database if events are left: the last pass of a worker that ends keeps its rooms so.
    Due(i64),
    /// Due after a back-off.
    After(Duration),
    /// Given back untried: due at once, and the claim does not count as an attempt.
    Untried,
    /// Waits for a person.
    Blocked,
}

/// What a worker did with the events of a claimed room. Positions that it does not name stay as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoomReport {
    /// The room.
    pub room: RoomKey,
    /// Delivered and confirmed: these leave.
    pub delivered: Vec<EventPosition>,
    /// Proven to be bad, and why: kept as `failed`.
    pub failed: Option<(EventPosition, String)>,
    /// Not delivered: `retryable`.
    pub retryable: Vec<EventPosition>,
    /// Why the first of `retryable` was not delivered, if it was tried.
    pub error: Option<String>,
    /// When the room is due again.
    pub next: Next,
    /// Nothing was read: count what the room really has.
    pub recount: bool,
}

impl RoomReport {
    /// By how much the room's count of pending events falls.
    pub fn settled(&self) -> u64 {
        self.delivered.len() as u64 + u64::from(self.failed.is_some())
    }
}

/// What became of a report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reported {
    /// Events named in the report that belong to another claim by now, or are gone.
    pub fenced_events: u64,
    /// Rooms whose row is locked by a commit of theirs: their events are reported, the room itself must be
    /// given back by [`OutboxStore::settle`].
    pub busy: Vec<RoomKey>,
}

/// What waits in one tenant's outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppBacklog {
    /// The tenant.
    pub app_code: Arc<str>,
    /// Undelivered events of at most [`MAX_BACKLOG_ROOMS`] rooms.
    pub pending: u64,
    /// Age of the oldest undelivered event of the [`MAX_OLDEST_ROOMS`] most overdue rooms, in milliseconds.
    pub oldest_age_ms: u64,
}

/// The outbox's tables.
#[async_trait]
pub trait OutboxStore: Send + Sync {
    /// The tenants that ever had events, in order.
    async fn apps(&self) -> Result<Vec<Arc<str>>, StoreError>;
    /// The database's clock, in milliseconds.
    async fn now_ms(&self) -> Result<i64, StoreError>;
    /// Takes due rooms, skipping those that others hold or commit to, and marks their first events `delivering`.
    ///
    /// A room that is read as something this program can not have written is left to its lease and logged.
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedRoom>, StoreError>;
    /// Records what was done and gives the rooms back, in one transaction that never waits for a producer.
    ///
    /// Repeating a report after an error is safe; what the first one did then shows as fenced.
    async fn report(&self, token: ClaimToken, rooms: &[RoomReport]) -> Result<Reported, StoreError>;
    /// Gives a room back that [`Self::report`] found busy: waits for its lock, a bounded time.
    async fn settle(&self, token: ClaimToken, room: &RoomReport) -> Result<(), StoreError>;
    /// What waits, of each tenant in `apps`.
    async fn backlog(&self, apps: &[Arc<str>]) -> Result<Vec<AppBacklog>, StoreError>;
    /// Makes rooms claimable that have undelivered events and are not; looks at no more than `limit` rooms after
    /// `after`. Gives the number of rooms mended and where to go on, `None` at the end of the table.
    async fn rescue(&self, after: Option<&RoomKey>, limit: u32)
    -> Result<(u64, Option<RoomKey>), StoreError>;
    /// Failed events, oldest rooms first, with their `last_error`; at most `limit`.
    async fn failed(&self, limit: u32) -> Result<Vec<(OutboxEvent, String)>, StoreError>;
    /// Puts the failed events of a room on their way again, by a person's decision. Gives their number.
    ///
    /// They go out in the order of their positions, but after whatever was delivered since.
    async fn revive(&self, room: &RoomKey) -> Result<u64, StoreError>;
    /// Closes the connections.
    async fn close(&self);
}

/// Why an outbox was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the database URL is not valid for an outbox: {problem}")]
pub struct InvalidUrl {
    /// What is wrong with it, without its text.
    pub problem: &'static str,
}

/// The outbox in the database that the URL names: `mysql://`, `mariadb://` or `sqlite:` with a file.
///
/// Connects when first used; `timeout` bounds each connect and each call. Needs a Tokio runtime.
pub fn open(url: &SecretString, timeout: Duration) -> Result<Arc<dyn OutboxStore>, InvalidUrl> {
    let invalid = |problem| InvalidUrl { problem };
    let text = url.expose_secret();
    match text.split(':').next() {
        Some("mysql" | "mariadb") => {
            let options: MySqlConnectOptions =
                text.parse().map_err(|_| invalid("user, host, port or a parameter cannot be read"))?;
            if options.get_database().is_none_or(str::is_empty) {
                return Err(invalid("it names no database"));
            }
            Ok(Arc::new(mysql::MySqlOutboxStore::new(options.disable_statement_logging(), timeout)))
        }
        Some("sqlite") if text.contains("memory") => {
            Err(invalid("a database in memory belongs to one connection; use a file"))
        }
        Some("sqlite") => {
            let options: SqliteConnectOptions =
                text.parse().map_err(|_| invalid("the path or a parameter cannot be read"))?;
            let options = options
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full)
                .busy_timeout(timeout)
                .disable_statement_logging();
            let pool = SqlitePoolOptions::new().max_connections(SQLITE_CONNECTIONS).acquire_timeout(timeout);
            Ok(Arc::new(sqlite::SqliteOutboxStore::new(pool.connect_lazy_with(options))))
        }
        _ => Err(invalid("its scheme is not mysql, mariadb or sqlite")),
    }
}

/// One writes, the other reads.
const SQLITE_CONNECTIONS: u32 = 2;

/// Cuts an error's text to what the schema holds, at a character's end.
pub(crate) fn cut_error(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_LAST_ERROR_BYTES)]
}

/// Most events that one claim reads of one room: what a sink takes in one go, and what one cut repeats.
const MAX_EVENTS_PER_ROOM: u32 = 256;

/// How many events to read of each of so many rooms.
pub(crate) fn share_of_events(events: u32, rooms: usize) -> u32 {
    let rooms = u32::try_from(rooms.max(1)).unwrap_or(u32::MAX);
    (events / rooms).clamp(1, MAX_EVENTS_PER_ROOM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_url_is_refused_without_showing_its_secret() {
        for url in ["postgres://u:hunter2@h/db", "mysql://u:hunter2@h", "hunter2", "sqlite::memory:"] {
            let refused = open(&SecretString::from(url), Duration::from_secs(1)).err().expect("refused");
            assert!(!format!("{refused} {refused:?}").contains("hunter2"), "{refused:?}");
        }
        for url in ["mysql://u:p@h/db", "mariadb://u@h:1/db", "sqlite:///a/file.db"] {
            assert!(open(&SecretString::from(url), Duration::from_secs(1)).is_ok(), "{url}");
        }
    }

    #[test]
    fn an_error_is_cut_at_a_characters_end() {
        let long = "ä".repeat(MAX_LAST_ERROR_BYTES);
        assert_eq!(cut_error(&long).len(), MAX_LAST_ERROR_BYTES);
        assert_eq!(cut_error(&format!("a{long}")).len(), MAX_LAST_ERROR_BYTES - 1);
        assert_eq!(cut_error("short"), "short");
    }

    #[test]
    fn events_are_shared_evenly_and_never_without_one() {
        let shares = [(1_024, 64, 16), (1_024, 1, 256), (10, 64, 1), (0, 0, 1)];
        for (events, rooms, share) in shares {
            assert_eq!(share_of_events(events, rooms), share);
        }
    }
}
