//! The rows that the audit reads, and the statements that read them.
//!
//! Every statement walks the table's primary key.

use std::fmt;

use super::AuditError;
use super::db::Column::{Bytes, Int};
use super::db::{Column, Columns, Paged};
use crate::types::Hash32;

/// A room's name as its bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RoomRef {
    pub(crate) app: Vec<u8>,
    pub(crate) room: Vec<u8>,
}

impl fmt::Debug for RoomRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", String::from_utf8_lossy(&self.app), String::from_utf8_lossy(&self.room))
    }
}

/// A hash, or what stands in its place.
fn hash(bytes: &[u8]) -> Result<Hash32, AuditError> {
    bytes.try_into().map_err(|_| AuditError::Column(format!("a hash of {} bytes", bytes.len())))
}

/// A row of `room_command_log`; of the result only its hash is kept.
#[derive(Debug, Clone)]
pub(crate) struct LogRow {
    pub(crate) room: RoomRef,
    pub(crate) seq: u64,
    pub(crate) command_id: Vec<u8>,
    pub(crate) result_hash: Hash32,
    /// As stored; empty when the row was trimmed.
    pub(crate) events: Vec<u8>,
    pub(crate) epoch: u64,
    pub(crate) token: Vec<u8>,
    pub(crate) owner: Vec<u8>,
}

impl Paged for LogRow {
    const SELECT: &'static str = "SELECT app_code, room_id, CAST(seq AS SIGNED), command_id, result, events, \
         CAST(epoch AS SIGNED), lease_token, owner_node_id FROM room_command_log";
    const COLUMNS: &'static [Column] = &[Bytes, Bytes, Int, Bytes, Bytes, Bytes, Int, Bytes, Bytes];
    const KEY: &'static [&'static str] = &["app_code", "room_id", "seq"];
    const PAGE: usize = 1_000;

    fn decode(mut columns: Columns) -> Result<Self, AuditError> {
        Ok(Self {
            room: columns.room()?,
            seq: columns.number()?,
            command_id: columns.bytes()?,
            result_hash: *blake3::hash(&columns.bytes()?).as_bytes(),
            events: columns.bytes()?,
            epoch: columns.number()?,
            token: columns.bytes()?,
            owner: columns.bytes()?,
        })
    }

    fn room(&self) -> &RoomRef {
        &self.room
    }

    fn seq(&self) -> u64 {
        self.seq
    }
}

/// A row of `room_head`.
#[derive(Debug, Clone)]
pub(crate) struct HeadRow {
    pub(crate) room: RoomRef,
    pub(crate) seq: u64,
    pub(crate) epoch: u64,
    pub(crate) state_hash: Hash32,
}

impl Paged for HeadRow {
    const SELECT: &'static str =
        "SELECT app_code, room_id, CAST(seq AS SIGNED), CAST(epoch AS SIGNED), state_hash FROM room_head";
    const COLUMNS: &'static [Column] = &[Bytes, Bytes, Int, Int, Bytes];
    const KEY: &'static [&'static str] = &["app_code", "room_id"];
    const PAGE: usize = 1_000;

    fn decode(mut columns: Columns) -> Result<Self, AuditError> {
        Ok(Self {
            room: columns.room()?,
            seq: columns.number()?,
            epoch: columns.number()?,
            state_hash: hash(&columns.bytes()?)?,
        })
    }

    fn room(&self) -> &RoomRef {
        &self.room
    }

    fn seq(&self) -> u64 {
        self.seq
    }
}

/// A row of `room_owner`.
#[derive(Debug, Clone)]
pub(crate) struct OwnerRow {
    pub(crate) room: RoomRef,
    pub(crate) epoch: u64,
    pub(crate) token: Vec<u8>,
    pub(crate) owner: Vec<u8>,
}

impl Paged for OwnerRow {
    const SELECT: &'static str =
        "SELECT app_code, room_id, CAST(epoch AS SIGNED), lease_token, owner_node_id FROM room_owner";
    const COLUMNS: &'static [Column] = &[Bytes, Bytes, Int, Bytes, Bytes];
    const KEY: &'static [&'static str] = &["app_code", "room_id"];
    const PAGE: usize = 1_000;

    fn decode(mut columns: Columns) -> Result<Self, AuditError> {
        Ok(Self {
            room: columns.room()?,
            epoch: columns.number()?,
            token: columns.bytes()?,
            owner: columns.bytes()?,
        })
    }

    fn room(&self) -> &RoomRef {
        &self.room
    }

    fn seq(&self) -> u64 {
        0
    }
}

/// A row of `room_snapshot`.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotRow {
    pub(crate) room: RoomRef,
    pub(crate) seq: u64,
    pub(crate) format: u64,
    pub(crate) state_hash: Hash32,
    pub(crate) state: Vec<u8>,
}

impl Paged for SnapshotRow {
    const SELECT: &'static str = "SELECT app_code, room_id, CAST(seq AS SIGNED), CAST(format AS SIGNED), state_hash, state \
         FROM room_snapshot";
    const COLUMNS: &'static [Column] = &[Bytes, Bytes, Int, Int, Bytes, Bytes];
    const KEY: &'static [&'static str] = &["app_code", "room_id"];
    // States may be large.
    const PAGE: usize = 32;

    fn decode(mut columns: Columns) -> Result<Self, AuditError> {
        Ok(Self {
            room: columns.room()?,
            seq: columns.number()?,
            format: columns.number()?,
            state_hash: hash(&columns.bytes()?)?,
            state: columns.bytes()?,
        })
    }

    fn room(&self) -> &RoomRef {
        &self.room
    }

    fn seq(&self) -> u64 {
        self.seq
    }
}

/// A row of `room_outbox`.
#[derive(Debug, Clone)]
pub(crate) struct OutboxRow {
    pub(crate) room: RoomRef,
    pub(crate) seq: u64,
    pub(crate) index: u64,
    pub(crate) state: Vec<u8>,
}

impl Paged for OutboxRow {
    const SELECT: &'static str =
        "SELECT app_code, room_id, CAST(seq AS SIGNED), CAST(event_index AS SIGNED), state FROM room_outbox";
    const COLUMNS: &'static [Column] = &[Bytes, Bytes, Int, Int, Bytes];
    const KEY: &'static [&'static str] = &["app_code", "room_id", "seq", "event_index"];
    const PAGE: usize = 1_000;

    fn decode(mut columns: Columns) -> Result<Self, AuditError> {
        Ok(Self {
            room: columns.room()?,
            seq: columns.number()?,
            index: columns.number()?,
            state: columns.bytes()?,
        })
    }

    fn room(&self) -> &RoomRef {
        &self.room
    }

    fn seq(&self) -> u64 {
        self.seq
    }
}
