//! What each command does in each state, or why not.

use prost::Message;
use roomcluster_proto::rooms::v1 as pb;

use super::state::{RoomState, Status};
use super::{DEFAULT_SEATS, MAX_SEATS, MAX_USERS, PUBLISH_TIMEOUT_MS, not_found};
use crate::logic::{Context, Decision, RejectKind, Rejection};
use crate::types::{MAX_ID_BYTES, check_id};

type Event = pb::room_event::Kind;
type Decided = Result<Decision<Event>, Rejection>;

/// Decides one command.
pub(super) fn decide(state: &RoomState, command: &pb::room_command::Kind, context: Context<'_>) -> Decided {
    use pb::room_command::Kind;
    match command {
        Kind::Create(request) => create(state, request, context),
        Kind::Join(request) => join(state, &request.user_id, context),
        Kind::Leave(request) => leave(state, &request.user_id, context),
        Kind::MicUp(request) => mic_up(state, &request.user_id, request.seat_no, context),
        Kind::MicDown(request) => mic_down(state, &request.user_id, context),
        Kind::Close(request) => close(state, &request.user_id, context),
    }
}

fn create(state: &RoomState, request: &pb::CreateRoomRequest, context: Context<'_>) -> Decided {
    check_user("owner_user_id", &request.owner_user_id)?;
    if state.status != Status::Absent {
        let message = "the room exists already; choose another room_id";
        return Err(Rejection::new(RejectKind::AlreadyExists, "ROOM_EXISTS", message));
    }
    let seat_count = if request.seat_count == 0 { DEFAULT_SEATS } else { request.seat_count };
    if seat_count > MAX_SEATS {
        let message = format!("seat_count is {seat_count}; send 1 to {MAX_SEATS}");
        return Err(Rejection::new(RejectKind::InvalidArgument, "SEAT_COUNT_TOO_LARGE", message));
    }
    let event =
        pb::RoomCreated { owner_user_id: request.owner_user_id.clone(), seat_count, at_ms: context.now_ms };
    decided(
        vec![Event::RoomCreated(event)],
        pb::command_result::Kind::Created(pb::RoomCreatedResult { seat_count }),
    )
}

fn join(state: &RoomState, user_id: &str, context: Context<'_>) -> Decided {
    require_active(state)?;
    check_user("user_id", user_id)?;
    let known = state.users.contains_key(user_id);
    if !known && state.users.len() >= MAX_USERS {
        let message = format!("{MAX_USERS} users are present; try again when some have left");
        return Err(Rejection::new(RejectKind::FailedPrecondition, "ROOM_FULL", message));
    }
    let event = pb::UserJoined { user_id: user_id.to_owned(), at_ms: context.now_ms };
    let present = state.users.len() + usize::from(!known);
    decided(
        vec![Event::UserJoined(event)],
        pb::command_result::Kind::Joined(pb::JoinedResult { present_users: count(present) }),
    )
}

fn leave(state: &RoomState, user_id: &str, context: Context<'_>) -> Decided {
    require_active(state)?;
    check_user("user_id", user_id)?;
    let mut events = Vec::new();
    let was_present = state.users.contains_key(user_id);
    if was_present {
        events.extend(release_seat(state, user_id, context));
        events.push(Event::UserLeft(pb::UserLeft { user_id: user_id.to_owned(), at_ms: context.now_ms }));
    }
    decided(events, pb::command_result::Kind::Left(pb::LeftResult { was_present }))
}

fn mic_up(state: &RoomState, user_id: &str, seat_no: u32, context: Context<'_>) -> Decided {
    require_active(state)?;
    check_user("user_id", user_id)?;
    if !state.users.contains_key(user_id) {
        return Err(not_present());
    }
    if let Some(seat) = state.seat_of(user_id) {
        let message = format!("the user sits on seat {} already; send MicDown first", seat + 1);
        return Err(Rejection::new(RejectKind::FailedPrecondition, "ALREADY_ON_MIC", message));
    }
    let seat_no = choose_seat(state, seat_no)?;
    let mic_session_id = format!("mic-{}", context.seq);
    let publish_deadline_ms = context.now_ms + PUBLISH_TIMEOUT_MS;
    let event = pb::MicTaken {
        user_id: user_id.to_owned(),
        seat_no,
        mic_session_id: mic_session_id.clone(),
        mic_session_room_version: context.seq.0,
        publish_deadline_ms,
        at_ms: context.now_ms,
    };
    decided(
        vec![Event::MicTaken(event)],
        pb::command_result::Kind::MicUp(pb::MicUpResult { seat_no, mic_session_id, publish_deadline_ms }),
    )
}

fn choose_seat(state: &RoomState, wanted: u32) -> Result<u32, Rejection> {
    if wanted == 0 {
        let free = state.seats.iter().position(Option::is_none).ok_or_else(|| {
            Rejection::new(
                RejectKind::FailedPrecondition,
                "NO_FREE_SEAT",
                "all seats are taken; try again later",
            )
        })?;
        return Ok(count(free + 1));
    }
    match state.seats.get(wanted as usize - 1) {
        Some(None) => Ok(wanted),
        Some(Some(_)) => {
            let message = format!("seat {wanted} is taken; choose another, or 0 for any");
            Err(Rejection::new(RejectKind::FailedPrecondition, "SEAT_TAKEN", message))
        }
        None => {
            let message = format!("there is no seat {wanted}; send 1 to {}, or 0 for any", state.seats.len());
            Err(Rejection::new(RejectKind::InvalidArgument, "SEAT_UNKNOWN", message))
        }
    }
}

fn mic_down(state: &RoomState, user_id: &str, context: Context<'_>) -> Decided {
    require_active(state)?;
    check_user("user_id", user_id)?;
    let Some(Event::MicReleased(event)) = release_seat(state, user_id, context) else {
        let message = "the user sits on no seat; send MicUp first";
        return Err(Rejection::new(RejectKind::FailedPrecondition, "NOT_ON_MIC", message));
    };
    let result = pb::MicDownResult { seat_no: event.seat_no, mic_session_id: event.mic_session_id.clone() };
    decided(vec![Event::MicReleased(event)], pb::command_result::Kind::MicDown(result))
}

fn close(state: &RoomState, user_id: &str, context: Context<'_>) -> Decided {
    require_active(state)?;
    check_user("user_id", user_id)?;
    if user_id != state.owner_user_id {
        let message = "only the owner of the room may close it";
        return Err(Rejection::new(RejectKind::PermissionDenied, "NOT_ROOM_OWNER", message));
    }
    let event = pb::RoomClosed { closed_by_user_id: user_id.to_owned(), at_ms: context.now_ms };
    decided(
        vec![Event::RoomClosed(event)],
        pb::command_result::Kind::Closed(pb::RoomClosedResult { users_removed: count(state.users.len()) }),
    )
}

fn release_seat(state: &RoomState, user_id: &str, context: Context<'_>) -> Option<Event> {
    let seat = state.seat_of(user_id)?;
    let session = state.seats[seat].as_ref()?;
    Some(Event::MicReleased(pb::MicReleased {
        user_id: user_id.to_owned(),
        seat_no: count(seat + 1),
        mic_session_id: session.session_id.clone(),
        at_ms: context.now_ms,
    }))
}

/// Refuses everything but reads on a room that is absent or closed.
pub(super) fn require_active(state: &RoomState) -> Result<(), Rejection> {
    match state.status {
        Status::Active => Ok(()),
        Status::Absent => Err(not_found()),
        Status::Closed => {
            let message = "the room is closed for good; create another one";
            Err(Rejection::new(RejectKind::FailedPrecondition, "ROOM_CLOSED", message))
        }
    }
}

pub(super) fn not_present() -> Rejection {
    let message = "the user is not present in the room; send JoinRoom first";
    Rejection::new(RejectKind::FailedPrecondition, "NOT_PRESENT", message)
}

fn check_user(field: &'static str, user_id: &str) -> Result<(), Rejection> {
    check_id(field, user_id, MAX_ID_BYTES)
        .map_err(|error| Rejection::new(RejectKind::InvalidArgument, "INVALID_USER_ID", error.to_string()))
}

fn decided(events: Vec<Event>, kind: pb::command_result::Kind) -> Decided {
    let result = pb::CommandResult { kind: Some(kind) }.encode_to_vec().into();
    Ok(Decision { events, result })
}

/// A count that [`MAX_USERS`] and [`MAX_SEATS`] keep far below `u32::MAX`.
fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
