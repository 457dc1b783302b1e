//! Between the router's types and `peer.v1`.

use roomcluster_proto::peer::v1 as pb;
use tonic::Code;

use super::{MovedTo, Owner, RouteError, Routed};
use crate::cell::{Answer, CellError, Request};
use crate::logic::{RejectKind, Rejection};
use crate::service::errors;
use crate::types::{CommandId, Epoch, Incarnation, InvalidId, NodeId, RoomKey, Seq};

/// A request for a peer.
pub(super) fn to_peer(owner: &Owner, room: &RoomKey, request: &Request) -> pb::ExecuteRequest {
    use pb::execute_request::Request as Wire;
    let request = match request {
        Request::Command { command_id, payload } => Wire::Command(pb::CommandRequest {
            command_id: command_id.as_str().to_owned(),
            payload: payload.clone(),
        }),
        Request::Query { payload } => Wire::Query(pb::QueryRequest { payload: payload.clone() }),
        Request::Touch { payload } => Wire::Touch(pb::TouchRequest { payload: payload.clone() }),
    };
    pb::ExecuteRequest {
        app_code: room.app_code().to_owned(),
        room_id: room.room_id().to_owned(),
        request: Some(request),
        for_node_id: owner.node_id.as_str().to_owned(),
        for_incarnation: owner.incarnation.map(Incarnation::to_hex).unwrap_or_default(),
        hop: 1,
    }
}

/// What a peer was asked.
pub fn from_request(request: pb::ExecuteRequest) -> Result<(RoomKey, Request), InvalidId> {
    use pb::execute_request::Request as Wire;
    let room = RoomKey::new(&request.app_code, &request.room_id)?;
    let request = match request.request {
        Some(Wire::Command(command)) => {
            Request::Command { command_id: CommandId::new(&command.command_id)?, payload: command.payload }
        }
        Some(Wire::Query(query)) => Request::Query { payload: query.payload },
        Some(Wire::Touch(touch)) => Request::Touch { payload: touch.payload },
        None => return Err(InvalidId::Missing { field: "request", max: 0 }),
    };
    Ok((room, request))
}

/// What the peer is answered.
pub fn to_response(result: Result<Routed, RouteError>) -> pb::ExecuteResponse {
    use pb::execute_response::Outcome;
    let outcome = match result {
        Ok(routed) => Outcome::Done(pb::Done {
            seq: routed.answer.seq.0,
            epoch: routed.answer.epoch.0,
            committed_at_ms: routed.answer.committed_at_ms,
            replayed: routed.answer.replayed,
            result: routed.answer.result,
            owner_node_id: routed.owner.as_str().to_owned(),
            owner_epoch: routed.answer.owner_epoch.0,
        }),
        Err(RouteError::Cell(CellError::Rejected(rejection))) => Outcome::Rejected(pb::Rejected {
            code: errors::code_of(rejection.kind).into(),
            reason: rejection.reason,
            message: rejection.message,
        }),
        Err(RouteError::Moved(moved)) => Outcome::Moved(moved.owner.map(moved_message).unwrap_or_default()),
        Err(error) => {
            let (code, reason) = errors::code_and_reason(&error);
            Outcome::Refused(pb::Refused { code: code.into(), reason, message: error.to_string() })
        }
    };
    pb::ExecuteResponse { outcome: Some(outcome) }
}

fn moved_message(owner: Owner) -> pb::Moved {
    pb::Moved {
        node_id: owner.node_id.as_str().to_owned(),
        address: owner.address,
        incarnation: owner.incarnation.map(Incarnation::to_hex).unwrap_or_default(),
        epoch: owner.epoch.0,
    }
}

/// What a peer answered.
pub(super) fn from_peer(response: pb::ExecuteResponse, owner: &Owner) -> Result<Routed, RouteError> {
    use pb::execute_response::Outcome;
    match response.outcome {
        Some(Outcome::Done(done)) => Ok(Routed {
            answer: Answer {
                seq: Seq(done.seq),
                epoch: Epoch(done.epoch),
                committed_at_ms: done.committed_at_ms,
                replayed: done.replayed,
                result: done.result,
                owner_epoch: Epoch(done.owner_epoch),
            },
            owner: NodeId::new(&done.owner_node_id).unwrap_or_else(|_| owner.node_id.clone()),
        }),
        Some(Outcome::Rejected(rejected)) => {
            let kind = kind_of(Code::from_i32(rejected.code));
            Err(Rejection { kind, reason: rejected.reason, message: rejected.message }.into())
        }
        Some(Outcome::Moved(moved)) => Err(RouteError::Moved(MovedTo {
            owner: NodeId::new(&moved.node_id).ok().map(|node_id| Owner {
                node_id,
                incarnation: Incarnation::from_hex(&moved.incarnation),
                address: moved.address,
                epoch: Epoch(moved.epoch),
            }),
        })),
        Some(Outcome::Refused(refused)) if refused.reason == errors::WRONG_NODE => Err(RouteError::WrongNode),
        Some(Outcome::Refused(refused)) => {
            Err(RouteError::Peer { code: refused.code, reason: refused.reason, message: refused.message })
        }
        None => Err(RouteError::OwnerUnreachable),
    }
}

fn kind_of(code: Code) -> RejectKind {
    match code {
        Code::NotFound => RejectKind::NotFound,
        Code::AlreadyExists => RejectKind::AlreadyExists,
        Code::PermissionDenied => RejectKind::PermissionDenied,
        Code::InvalidArgument => RejectKind::InvalidArgument,
        _ => RejectKind::FailedPrecondition,
    }
}
