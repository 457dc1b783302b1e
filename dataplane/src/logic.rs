//! The port to a room's logic.
//!
//! Cell, ownership, forwarding and outbox know a room only through this: commands, events, results and
//! snapshots are bytes to them. The logic is synchronous and pure; time comes in as an argument. What it must
//! keep: the same state, command and time give the same decision, and [`RoomLogic::evolve`] over the logged
//! events gives the same state on every node.

use bytes::Bytes;

use crate::types::{Hash32, RoomKey, Seq};

/// What a command would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision<E> {
    /// Applied in this order; may be empty.
    pub events: Vec<E>,
    /// What the caller is told, and told again on a retry.
    pub result: Bytes,
}

/// An event as the log and the outbox hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedEvent {
    /// The name of its kind, of a closed set.
    pub event_type: &'static str,
    /// The encoded event.
    pub payload: Bytes,
}

/// What sort of no a [`Rejection`] is; each has one gRPC code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectKind {
    /// The command itself is wrong.
    InvalidArgument,
    /// The room, or something in it, does not exist.
    NotFound,
    /// It exists already.
    AlreadyExists,
    /// Not in this state.
    FailedPrecondition,
    /// Not by this user.
    PermissionDenied,
}

/// A considered no: nothing was written, and the same command may be sent again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// What sort of no.
    pub kind: RejectKind,
    /// Stable and machine-readable, UPPER_SNAKE_CASE.
    pub reason: String,
    /// For people: what to do instead.
    pub message: String,
}

impl Rejection {
    /// A rejection with its texts.
    pub fn new(kind: RejectKind, reason: &str, message: impl Into<String>) -> Self {
        Self { kind, reason: reason.to_owned(), message: message.into() }
    }
}

/// Bytes that this version of the logic cannot read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot decode {what}: {problem}")]
pub struct DecodeError {
    /// Command, event, snapshot or query.
    pub what: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

/// What a command is decided under.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The room.
    pub room: &'a RoomKey,
    /// Wall time in ms, never below the room's last event.
    pub now_ms: i64,
    /// The place that the command gets if it commits.
    pub seq: Seq,
}

/// A room's life as its listing shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoomPhase {
    /// Takes commands.
    Active,
    /// Ended; kept for its history.
    Closed,
}

/// The logic of one kind of room.
pub trait RoomLogic: Send + Sync + 'static {
    /// Everything that the log determines, plus what heartbeats refresh.
    type State: Clone + Send + Sync + 'static;
    /// A decoded command.
    type Command: Send + Sync + 'static;
    /// What happened.
    type Event: Send + Sync + 'static;

    /// The version of the snapshot format that this logic writes; it reads this one and the one before.
    const SNAPSHOT_FORMAT: u32;

    /// The state before the first command: a room that does not exist.
    fn initial(&self) -> Self::State;
    /// Reads a command.
    fn decode_command(&self, payload: &[u8]) -> Result<Self::Command, DecodeError>;
    /// Whether this command may be the first of a room; all others are refused before the room is taken.
    fn creates_room(&self, command: &Self::Command) -> bool;
    /// What the command would do.
    fn decide(
        &self,
        state: &Self::State,
        command: &Self::Command,
        context: Context<'_>,
    ) -> Result<Decision<Self::Event>, Rejection>;
    /// Applies what happened.
    fn evolve(&self, state: &mut Self::State, event: &Self::Event);
    /// Writes an event.
    fn encode_event(&self, event: &Self::Event) -> EncodedEvent;
    /// Reads an event.
    fn decode_event(&self, payload: &[u8]) -> Result<Self::Event, DecodeError>;
    /// Writes the state.
    fn encode_snapshot(&self, state: &Self::State) -> Vec<u8>;
    /// Reads a state of the given format.
    fn decode_snapshot(&self, format: u32, payload: &[u8]) -> Result<Self::State, DecodeError>;
    /// A hash over the logged part of the state alone.
    fn state_hash(&self, state: &Self::State) -> Hash32;
    /// Time of the last event, so that a room's clock never runs back.
    fn last_event_ms(&self, state: &Self::State) -> i64;
    /// Active or closed; `None` before the first command.
    fn phase(&self, state: &Self::State) -> Option<RoomPhase>;
    /// Answers a read.
    fn query(
        &self,
        state: &Self::State,
        payload: &[u8],
        version: Seq,
        room: &RoomKey,
    ) -> Result<Bytes, Rejection>;
    /// Refreshes what memory alone holds, such as when a user was last seen.
    fn touch(&self, state: &mut Self::State, payload: &[u8], now_ms: i64) -> Result<Bytes, Rejection>;
}
