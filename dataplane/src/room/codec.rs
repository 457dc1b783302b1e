//! Between the state and its bytes.

use std::collections::BTreeMap;

use prost::Message;
use roomcluster_proto::rooms::v1 as pb;

use super::state::{MicSession, Presence, RoomState, Status};
use crate::logic::{DecodeError, EncodedEvent};
use crate::types::{Hash32, RoomKey, Seq};

pub(super) fn decode<M: Message + Default>(what: &'static str, payload: &[u8]) -> Result<M, DecodeError> {
    M::decode(payload).map_err(|error| DecodeError { what, problem: error.to_string() })
}

pub(super) fn empty(what: &'static str) -> DecodeError {
    DecodeError { what, problem: "it is empty, or of a kind that this release does not know".to_owned() }
}

pub(super) fn encode_event(event: &pb::room_event::Kind) -> EncodedEvent {
    use pb::room_event::Kind;
    let event_type = match event {
        Kind::RoomCreated(_) => "RoomCreated",
        Kind::UserJoined(_) => "UserJoined",
        Kind::UserLeft(_) => "UserLeft",
        Kind::MicTaken(_) => "MicTaken",
        Kind::MicReleased(_) => "MicReleased",
        Kind::RoomClosed(_) => "RoomClosed",
    };
    let payload = pb::RoomEvent { kind: Some(event.clone()) }.encode_to_vec().into();
    EncodedEvent { event_type, payload }
}

/// The room as a client sees it.
pub(super) fn view(state: &RoomState, version: Seq, room: &RoomKey) -> pb::Room {
    pb::Room {
        app_code: room.app_code().to_owned(),
        room_id: room.room_id().to_owned(),
        version: version.0,
        ..to_room(state)
    }
}

pub(super) fn snapshot(state: &RoomState) -> pb::RoomSnapshot {
    pb::RoomSnapshot { room: Some(to_room(state)), last_event_ms: state.last_event_ms }
}

/// A hash over what the log determines: `last_seen_at_ms` is memory only and left out.
pub(super) fn state_hash(state: &RoomState) -> Hash32 {
    let mut snapshot = snapshot(state);
    for user in snapshot.room.iter_mut().flat_map(|room| &mut room.users) {
        user.last_seen_at_ms = 0;
    }
    blake3::hash(&snapshot.encode_to_vec()).into()
}

fn to_room(state: &RoomState) -> pb::Room {
    let status = match state.status {
        Status::Absent => pb::RoomStatus::Unspecified,
        Status::Active => pb::RoomStatus::Active,
        Status::Closed => pb::RoomStatus::Closed,
    };
    let seats = (1..).zip(&state.seats).map(|(seat_no, seat)| match seat {
        None => pb::Seat { seat_no, state: pb::MicState::Idle.into(), ..pb::Seat::default() },
        Some(session) => pb::Seat {
            seat_no,
            state: pb::MicState::PendingPublish.into(),
            user_id: session.user_id.clone(),
            mic_session_id: session.session_id.clone(),
            mic_session_room_version: session.room_version,
            publish_deadline_ms: session.publish_deadline_ms,
        },
    });
    let users = state.users.iter().map(|(user_id, presence)| pb::Presence {
        user_id: user_id.clone(),
        joined_at_ms: presence.joined_at_ms,
        last_seen_at_ms: presence.last_seen_at_ms,
    });
    pb::Room {
        status: status.into(),
        owner_user_id: state.owner_user_id.clone(),
        seats: seats.collect(),
        users: users.collect(),
        created_at_ms: state.created_at_ms,
        closed_at_ms: state.closed_at_ms,
        ..pb::Room::default()
    }
}

/// The state that a snapshot holds; refuses what it does not know rather than losing it.
pub(super) fn restore(snapshot: pb::RoomSnapshot) -> Result<RoomState, DecodeError> {
    let room = snapshot.room.ok_or_else(|| empty("snapshot"))?;
    let status = match room.status() {
        pb::RoomStatus::Unspecified => Status::Absent,
        pb::RoomStatus::Active => Status::Active,
        pb::RoomStatus::Closed => Status::Closed,
    };
    let seats = room.seats.into_iter().map(restore_seat).collect::<Result<Vec<_>, _>>()?;
    let users: BTreeMap<_, _> = room
        .users
        .into_iter()
        .map(|user| {
            let presence =
                Presence { joined_at_ms: user.joined_at_ms, last_seen_at_ms: user.last_seen_at_ms };
            (user.user_id, presence)
        })
        .collect();
    Ok(RoomState {
        status,
        owner_user_id: room.owner_user_id,
        seats,
        users,
        created_at_ms: room.created_at_ms,
        closed_at_ms: room.closed_at_ms,
        last_event_ms: snapshot.last_event_ms,
    })
}

fn restore_seat(seat: pb::Seat) -> Result<Option<MicSession>, DecodeError> {
    match seat.state() {
        pb::MicState::Idle => Ok(None),
        pb::MicState::PendingPublish => Ok(Some(MicSession {
            user_id: seat.user_id,
            session_id: seat.mic_session_id,
            room_version: seat.mic_session_room_version,
            publish_deadline_ms: seat.publish_deadline_ms,
        })),
        pb::MicState::Unspecified => {
            let problem = format!("seat {} has a state that this release does not know", seat.seat_no);
            Err(DecodeError { what: "snapshot", problem })
        }
    }
}
