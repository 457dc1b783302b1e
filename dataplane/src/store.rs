//! The durable truth: ownership, command log, snapshots and outbox rows.
//!
//! A port with two implementations, MySQL/MariaDB and SQLite, that pass one suite. What every implementation
//! keeps: a commit is fenced inside its own transaction by epoch and token; taking a room is a compare-and-set
//! to `epoch + 1` with a fresh token; ids are compared as bytes; and an outcome that is not known is
//! [`StoreError::Unknown`], never success and never failure.

use async_trait::async_trait;
use bytes::Bytes;

use crate::logic::{EncodedEvent, RoomPhase};
use crate::types::{Claim, CommandId, Epoch, Hash32, LeaseToken, NodeId, NodeRef, RoomKey, Seq};

pub mod connect;
pub mod mysql;
pub mod rows;
pub mod sqlite;

#[cfg(test)]
mod suite;

/// Version of the schema that this binary works with: the number of its newest migration.
pub const SCHEMA_VERSION: i64 = 1;

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, or gave up before anything was written. Retry later.
    #[error("the database is unavailable")]
    Unavailable(#[source] sqlx::Error),
    /// The connection was lost while COMMIT was under way: it may or may not have happened.
    #[error("the outcome of a commit is unknown")]
    Unknown(#[source] sqlx::Error),
    /// A lock was not granted in time. Retry.
    #[error("a row is locked by another transaction")]
    Locked,
    /// The schema is not the one that this binary works with.
    #[error(
        "the database has schema version {found}, this binary works with {wanted}; run `dataplane migrate`"
    )]
    Schema {
        /// What the database has; 0 when there is none.
        found: i64,
        /// What this binary wants.
        wanted: i64,
    },
    /// A statement failed in a way that a retry does not mend.
    #[error("a statement failed")]
    Statement(#[source] sqlx::Error),
    /// A row that cannot be what this program wrote.
    #[error("the database holds a {what} that cannot be read: {problem}")]
    Corrupt {
        /// Which kind of row.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

impl StoreError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Unknown(_) | Self::Locked | Self::Schema { .. } => true,
            Self::Statement(_) | Self::Corrupt { .. } => false,
        }
    }
}

/// Who owns a room, from its `room_owner` row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRow {
    /// Epoch and token.
    pub claim: Claim,
    /// The owner, and where it is reached.
    pub node: NodeRef,
    /// When it let go; `None` while it owns.
    pub released_at_ms: Option<i64>,
}

/// The state of the row that a take expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeExpectation {
    /// No row.
    Absent,
    /// A row with exactly this epoch and token, released or not.
    Exactly(Claim),
}

/// What became of a take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeOutcome {
    /// The room is the taker's, at this claim.
    Taken(Claim),
    /// The row was not as expected; this is what it is now.
    Lost(Option<OwnerRow>),
}

/// A request to own a room.
#[derive(Debug, Clone)]
pub struct Take {
    /// The room.
    pub room: RoomKey,
    /// What the row must be.
    pub expect: TakeExpectation,
    /// Who wants it.
    pub node: NodeRef,
    /// The token of the new epoch.
    pub token: LeaseToken,
    /// Wall time, for people.
    pub now_ms: i64,
}

/// One command as the log keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRow {
    /// Its place.
    pub seq: Seq,
    /// The client's id.
    pub command_id: CommandId,
    /// Hash over the command's canonical fields.
    pub command_hash: Hash32,
    /// What the caller was told.
    pub result: Bytes,
    /// The encoded events; empty for a trimmed row.
    pub events: Vec<Bytes>,
    /// Under which ownership it committed.
    pub epoch: Epoch,
    /// Wall time of the commit.
    pub committed_at_ms: i64,
}

/// One command to be written.
#[derive(Debug, Clone)]
pub struct NewLogRow {
    /// Its place.
    pub seq: Seq,
    /// The client's id.
    pub command_id: CommandId,
    /// Hash over the command's canonical fields.
    pub command_hash: Hash32,
    /// What the caller is told.
    pub result: Bytes,
    /// In order.
    pub events: Vec<EncodedEvent>,
    /// Wall time of the decision.
    pub committed_at_ms: i64,
}

/// The commands of one room that commit together.
#[derive(Debug, Clone)]
pub struct RoomCommit {
    /// The room.
    pub room: RoomKey,
    /// Under which ownership.
    pub claim: Claim,
    /// In order, without gap, at least one.
    pub rows: Vec<NewLogRow>,
    /// Hash of the state after the last row.
    pub state_hash: Hash32,
    /// Set when a row creates or closes the room.
    pub phase: Option<RoomPhase>,
    /// Ids among `rows` that the cell has not seen and the store must look up before it writes.
    pub unseen: Vec<CommandId>,
}

/// What became of one room of a batch. Only [`CommitOutcome::Committed`] has written anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitOutcome {
    /// All rows are durable.
    Committed,
    /// Epoch or token is not the row's, or the row is released: the room has another owner, or none.
    Fenced(Option<OwnerRow>),
    /// These ids are in the log already: decide again without them.
    Known(Vec<LogRow>),
    /// The owner row is locked by another transaction: a takeover is under way, or one stalls.
    Locked,
    /// The rows themselves cannot be stored (too long, a seq that exists): retrying does not help.
    Refused(String),
}

/// A connection that commits batches.
#[async_trait]
pub trait CommitSession: Send {
    /// Commits the rooms of a batch in one transaction and tells of each what became of it, in order.
    ///
    /// Rooms that are fenced, locked, known or refused leave the batch, the others commit. Deadlocks, lock waits
    /// and MariaDB's 1020 are retried inside, a bounded number of times. [`StoreError::Unknown`] means that the
    /// connection was lost at COMMIT; after any error the session reconnects by itself at the next call.
    async fn commit(&mut self, batch: &[RoomCommit]) -> Result<Vec<CommitOutcome>, StoreError>;
}

/// A state at a place of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The last command that it holds.
    pub seq: Seq,
    /// Under which ownership it was written.
    pub epoch: Epoch,
    /// Format of `state`.
    pub format: u32,
    /// Hash of the state, checked after loading.
    pub state_hash: Hash32,
    /// The encoded state.
    pub state: Bytes,
}

/// Everything from which a room is recovered.
#[derive(Debug, Clone)]
pub struct Recovery {
    /// The last committed command.
    pub head_seq: Seq,
    /// Hash of the state after it.
    pub state_hash: Hash32,
    /// The newest snapshot, if any.
    pub snapshot: Option<Snapshot>,
    /// The log above the snapshot, in order.
    pub tail: Vec<LogRow>,
}

/// An id that committed, for the cell's memory of recent ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentId {
    /// The id.
    pub command_id: CommandId,
    /// Hash over its canonical fields.
    pub command_hash: Hash32,
    /// Its place.
    pub seq: Seq,
}

/// The store.
#[async_trait]
pub trait RoomStore: Send + Sync {
    /// A cheap round trip, for readiness.
    async fn ping(&self) -> Result<(), StoreError>;
    /// Fails with [`StoreError::Schema`] unless the schema is [`SCHEMA_VERSION`].
    async fn check_schema(&self) -> Result<(), StoreError>;

    /// The row of a room's owner.
    async fn owner(&self, room: &RoomKey) -> Result<Option<OwnerRow>, StoreError>;
    /// Whether the room has ever committed a command.
    async fn exists(&self, room: &RoomKey) -> Result<bool, StoreError>;
    /// Takes rooms, each by its own compare-and-set to `epoch + 1`, and tells of each what became of it.
    ///
    /// Gets through in at most [`TAKE_BOUND_MS`] against a transaction that stalls: the blocker is looked up,
    /// checked to be ours, and ended.
    async fn take(&self, take: &Take) -> Result<TakeOutcome, StoreError>;
    /// Lets go of a room, if the claim still stands. False when it does not.
    async fn release(&self, room: &RoomKey, claim: Claim, now_ms: i64) -> Result<bool, StoreError>;
    /// Lets go of whatever former processes of this node left; called once at start. Gives the number of rooms.
    async fn release_former_incarnations(&self, node: &NodeRef, now_ms: i64) -> Result<u64, StoreError>;
    /// The rooms of a node that are not released, at most `limit`, and how many there are in all.
    async fn rooms_owned_by(
        &self,
        node: &NodeId,
        limit: u32,
    ) -> Result<(Vec<(RoomKey, Claim)>, u64), StoreError>;

    /// What a room is recovered from; `None` for a room that has never committed.
    async fn recover(&self, room: &RoomKey) -> Result<Option<Recovery>, StoreError>;
    /// The newest ids of a room, newest first, at most `limit`.
    async fn recent_ids(&self, room: &RoomKey, limit: u32) -> Result<Vec<RecentId>, StoreError>;
    /// One command of the log.
    async fn command(&self, room: &RoomKey, command_id: &CommandId) -> Result<Option<LogRow>, StoreError>;
    /// Writes a snapshot if the claim still stands and none newer is there. False when it was fenced.
    async fn write_snapshot(
        &self,
        room: &RoomKey,
        claim: Claim,
        snapshot: &Snapshot,
    ) -> Result<bool, StoreError>;

    /// A connection of its own for commits.
    async fn open_session(&self) -> Result<Box<dyn CommitSession>, StoreError>;
    /// Closes all connections; waits for those in use no longer than `timeout`.
    async fn close(&self, timeout: std::time::Duration);
}

/// How long a take may last against a transaction that stalls, in milliseconds.
pub const TAKE_BOUND_MS: u64 = 2_000;
