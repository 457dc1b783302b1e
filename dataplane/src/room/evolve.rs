//! How each event changes the state. Total: an event that was logged is applied as it stands.

use roomcluster_proto::rooms::v1 as pb;

use super::state::{MicSession, Presence, RoomState, Status};

/// Applies one event.
pub(super) fn evolve(state: &mut RoomState, event: &pb::room_event::Kind) {
    use pb::room_event::Kind;
    let at_ms = match event {
        Kind::RoomCreated(event) => {
            state.status = Status::Active;
            state.owner_user_id.clone_from(&event.owner_user_id);
            state.seats = vec![None; event.seat_count as usize];
            state.created_at_ms = event.at_ms;
            event.at_ms
        }
        Kind::UserJoined(event) => {
            let fresh = Presence { joined_at_ms: event.at_ms, last_seen_at_ms: event.at_ms };
            let presence = state.users.entry(event.user_id.clone()).or_insert(fresh);
            presence.last_seen_at_ms = presence.last_seen_at_ms.max(event.at_ms);
            event.at_ms
        }
        Kind::UserLeft(event) => {
            state.users.remove(&event.user_id);
            event.at_ms
        }
        Kind::MicTaken(event) => {
            if let Some(seat) = seat_mut(state, event.seat_no) {
                *seat = Some(MicSession {
                    user_id: event.user_id.clone(),
                    session_id: event.mic_session_id.clone(),
                    room_version: event.mic_session_room_version,
                    publish_deadline_ms: event.publish_deadline_ms,
                });
            }
            event.at_ms
        }
        Kind::MicReleased(event) => {
            if let Some(seat) = seat_mut(state, event.seat_no) {
                *seat = None;
            }
            event.at_ms
        }
        Kind::RoomClosed(event) => {
            state.status = Status::Closed;
            state.users.clear();
            state.seats.iter_mut().for_each(|seat| *seat = None);
            state.closed_at_ms = event.at_ms;
            event.at_ms
        }
    };
    state.last_event_ms = state.last_event_ms.max(at_ms);
}

fn seat_mut(state: &mut RoomState, seat_no: u32) -> Option<&mut Option<MicSession>> {
    state.seats.get_mut((seat_no as usize).checked_sub(1)?)
}
