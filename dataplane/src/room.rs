//! The voice room: its states, commands, events and results. Pure.
//!
//! It knows no clock, network or database: time is an argument, ids of mic sessions come from the command's
//! place in the log. Wire formats are those of `rooms.v1`; nothing outside this module reads them but the
//! service edge, which speaks them to clients.

use bytes::Bytes;
use prost::Message;
use roomcluster_proto::rooms::v1 as pb;

use crate::logic::{
    Context, Decision, DecodeError, EncodedEvent, RejectKind, Rejection, RoomLogic, RoomPhase,
};
use crate::types::{Hash32, RoomKey, Seq};

mod codec;
mod decide;
mod evolve;
pub mod state;

#[cfg(test)]
mod tests;

pub use state::RoomState;

/// How long a client may take from MicUp to publishing, in ms.
pub const PUBLISH_TIMEOUT_MS: i64 = 15_000;
/// Most seats of a room.
pub const MAX_SEATS: u32 = 64;
/// Seats of a room whose creator did not say.
pub const DEFAULT_SEATS: u32 = 8;
/// Most users present at a time; bounds the state of one room.
pub const MAX_USERS: usize = 10_000;

/// The logic of the voice room.
#[derive(Debug, Clone, Copy, Default)]
pub struct VoiceRoom;

impl RoomLogic for VoiceRoom {
    type State = RoomState;
    type Command = pb::room_command::Kind;
    type Event = pb::room_event::Kind;

    const SNAPSHOT_FORMAT: u32 = 1;

    fn initial(&self) -> RoomState {
        RoomState::default()
    }

    fn decode_command(&self, payload: &[u8]) -> Result<Self::Command, DecodeError> {
        codec::decode::<pb::RoomCommand>("command", payload)?.kind.ok_or_else(|| codec::empty("command"))
    }

    fn creates_room(&self, command: &Self::Command) -> bool {
        matches!(command, pb::room_command::Kind::Create(_))
    }

    fn decide(
        &self,
        state: &RoomState,
        command: &Self::Command,
        context: Context<'_>,
    ) -> Result<Decision<Self::Event>, Rejection> {
        decide::decide(state, command, context)
    }

    fn evolve(&self, state: &mut RoomState, event: &Self::Event) {
        evolve::evolve(state, event);
    }

    fn encode_event(&self, event: &Self::Event) -> EncodedEvent {
        codec::encode_event(event)
    }

    fn decode_event(&self, payload: &[u8]) -> Result<Self::Event, DecodeError> {
        codec::decode::<pb::RoomEvent>("event", payload)?.kind.ok_or_else(|| codec::empty("event"))
    }

    fn encode_snapshot(&self, state: &RoomState) -> Vec<u8> {
        codec::snapshot(state).encode_to_vec()
    }

    fn decode_snapshot(&self, format: u32, payload: &[u8]) -> Result<RoomState, DecodeError> {
        if format != Self::SNAPSHOT_FORMAT {
            let problem =
                format!("format {format} is not {}; run the release that wrote it", Self::SNAPSHOT_FORMAT);
            return Err(DecodeError { what: "snapshot", problem });
        }
        codec::restore(codec::decode("snapshot", payload)?)
    }

    fn state_hash(&self, state: &RoomState) -> Hash32 {
        codec::state_hash(state)
    }

    fn last_event_ms(&self, state: &RoomState) -> i64 {
        state.last_event_ms
    }

    fn phase(&self, state: &RoomState) -> Option<RoomPhase> {
        match state.status {
            state::Status::Absent => None,
            state::Status::Active => Some(RoomPhase::Active),
            state::Status::Closed => Some(RoomPhase::Closed),
        }
    }

    fn query(
        &self,
        state: &RoomState,
        _payload: &[u8],
        version: Seq,
        room: &RoomKey,
    ) -> Result<Bytes, Rejection> {
        if state.status == state::Status::Absent {
            return Err(not_found());
        }
        Ok(codec::view(state, version, room).encode_to_vec().into())
    }

    fn touch(&self, state: &mut RoomState, payload: &[u8], now_ms: i64) -> Result<Bytes, Rejection> {
        let request = codec::decode::<pb::RoomHeartbeatRequest>("heartbeat", payload).map_err(|error| {
            Rejection::new(RejectKind::InvalidArgument, "BAD_HEARTBEAT", error.to_string())
        })?;
        decide::require_active(state)?;
        let presence = state.users.get_mut(&request.user_id).ok_or_else(decide::not_present)?;
        presence.last_seen_at_ms = presence.last_seen_at_ms.max(now_ms);
        let response = pb::RoomHeartbeatResponse { last_seen_at_ms: presence.last_seen_at_ms, owner: None };
        Ok(response.encode_to_vec().into())
    }
}

/// The room has never been created.
pub(crate) fn not_found() -> Rejection {
    Rejection::new(RejectKind::NotFound, "ROOM_NOT_FOUND", "there is no such room; create it first")
}
