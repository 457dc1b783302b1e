//! What a voice room is made of.

use std::collections::BTreeMap;

/// Where a room is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Status {
    /// Never created.
    #[default]
    Absent,
    /// Takes commands.
    Active,
    /// Ended.
    Closed,
}

/// A user's session on a seat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicSession {
    /// Who sits there.
    pub user_id: String,
    /// Name of the session: older confirmations and stops do not touch a newer one.
    pub session_id: String,
    /// Log place of the command that opened it.
    pub room_version: u64,
    /// Until when the client must publish, in unix ms.
    pub publish_deadline_ms: i64,
}

/// A user in the room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// When the user joined, in unix ms.
    pub joined_at_ms: i64,
    /// When the user was last heard of; memory only, outside the state hash.
    pub last_seen_at_ms: i64,
}

/// The state of one room.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoomState {
    /// Absent, active or closed.
    pub status: Status,
    /// Who may close it.
    pub owner_user_id: String,
    /// Index is seat number - 1; `None` is idle.
    pub seats: Vec<Option<MicSession>>,
    /// By user id, in its order.
    pub users: BTreeMap<String, Presence>,
    /// In unix ms.
    pub created_at_ms: i64,
    /// In unix ms; 0 while it is open.
    pub closed_at_ms: i64,
    /// Time of the newest event.
    pub last_event_ms: i64,
}

impl RoomState {
    /// The seat index of a user.
    pub fn seat_of(&self, user_id: &str) -> Option<usize> {
        self.seats.iter().position(|seat| seat.as_ref().is_some_and(|session| session.user_id == user_id))
    }
}
