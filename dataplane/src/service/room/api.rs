//! `rooms.v1`: what clients ask.
//!
//! Checks ids, strips the scope off the command so that its bytes are canonical, routes it, and turns the answer
//! back. What a command means is not known here beyond its message.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use roomcluster_proto::rooms::v1 as pb;
use roomcluster_proto::rooms::v1::room_command::Kind;
use roomcluster_proto::rooms::v1::room_service_server::{RoomService, RoomServiceServer};
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};

use crate::cell;
use crate::forward::{Routed, Router};
use crate::room::VoiceRoom;
use crate::service::errors;
use crate::store::RoomStore;
use crate::types::{CommandId, RoomKey};

/// How long a request may take when its client gave no deadline: as long as the documented retries together.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(5);
/// So much of a client's time is kept for the way back, so that it gets the reason and not a bare time-out.
const ANSWER_MARGIN: Duration = Duration::from_millis(100);
/// No request may wait longer, whatever its client says.
const MAX_DEADLINE: Duration = Duration::from_secs(30);

pub(super) struct RoomApi {
    router: Arc<Router<VoiceRoom>>,
    store: Arc<dyn RoomStore>,
}

impl RoomApi {
    pub(super) fn new(router: Arc<Router<VoiceRoom>>, store: Arc<dyn RoomStore>) -> Self {
        Self { router, store }
    }

    pub(super) fn into_server(self, max_bytes: usize) -> RoomServiceServer<Self> {
        RoomServiceServer::new(self).max_decoding_message_size(max_bytes)
    }

    async fn command(
        &self,
        scope: Option<pb::CommandScope>,
        kind: Kind,
        deadline: Instant,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let (room, command_id) = check_scope(scope)?;
        let payload = pb::RoomCommand { kind: Some(kind) }.encode_to_vec().into();
        let routed = self.route(&room, cell::Request::Command { command_id, payload }, deadline).await?;
        let result = decode::<pb::CommandResult>(&routed.answer.result)?;
        Ok(Response::new(pb::CommandResponse {
            seq: routed.answer.seq.0,
            epoch: routed.answer.epoch.0,
            committed_at_ms: routed.answer.committed_at_ms,
            replayed: routed.answer.replayed,
            owner: Some(owner(&routed)),
            result: Some(result),
        }))
    }

    async fn route(
        &self,
        room: &RoomKey,
        request: cell::Request,
        deadline: Instant,
    ) -> Result<Routed, Status> {
        self.router.route(room, request, deadline).await.map_err(|error| errors::route_status(&error))
    }
}

#[tonic::async_trait]
impl RoomService for RoomApi {
    async fn create_room(
        &self,
        request: Request<pb::CreateRoomRequest>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let (mut request, deadline) = open(request);
        self.command(request.scope.take(), Kind::Create(request), deadline).await
    }

    async fn join_room(
        &self,
        request: Request<pb::JoinRoomRequest>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let (mut request, deadline) = open(request);
        self.command(request.scope.take(), Kind::Join(request), deadline).await
    }

    async fn leave_room(
        &self,
        request: Request<pb::LeaveRoomRequest>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let (mut request, deadline) = open(request);
        self.command(request.scope.take(), Kind::Leave(request), deadline).await
    }

    async fn mic_up(
        &self,
        request: Request<pb::MicUpRequest>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let (mut request, deadline) = open(request);
        self.command(request.scope.take(), Kind::MicUp(request), deadline).await
    }

    async fn mic_down(
        &self,
        request: Request<pb::MicDownRequest>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let (mut request, deadline) = open(request);
        self.command(request.scope.take(), Kind::MicDown(request), deadline).await
    }

    async fn close_room(
        &self,
        request: Request<pb::CloseRoomRequest>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let (mut request, deadline) = open(request);
        self.command(request.scope.take(), Kind::Close(request), deadline).await
    }

    async fn room_heartbeat(
        &self,
        request: Request<pb::RoomHeartbeatRequest>,
    ) -> Result<Response<pb::RoomHeartbeatResponse>, Status> {
        let (request, deadline) = open(request);
        let room = check_room(&request.app_code, &request.room_id)?;
        let payload = request.encode_to_vec().into();
        let routed = self.route(&room, cell::Request::Touch { payload }, deadline).await?;
        let response = decode::<pb::RoomHeartbeatResponse>(&routed.answer.result)?;
        Ok(Response::new(pb::RoomHeartbeatResponse { owner: Some(owner(&routed)), ..response }))
    }

    async fn get_room(
        &self,
        request: Request<pb::GetRoomRequest>,
    ) -> Result<Response<pb::GetRoomResponse>, Status> {
        let (request, deadline) = open(request);
        let room = check_room(&request.app_code, &request.room_id)?;
        let routed = self.route(&room, cell::Request::Query { payload: Bytes::new() }, deadline).await?;
        let room = decode::<pb::Room>(&routed.answer.result)?;
        Ok(Response::new(pb::GetRoomResponse { room: Some(room), owner: Some(owner(&routed)) }))
    }

    async fn get_command(
        &self,
        request: Request<pb::GetCommandRequest>,
    ) -> Result<Response<pb::GetCommandResponse>, Status> {
        let (room, command_id) = check_scope(request.into_inner().scope)?;
        let row =
            self.store.command(&room, &command_id).await.map_err(|error| {
                errors::status(Code::Unavailable, "DATABASE_UNAVAILABLE", error.to_string())
            })?;
        let Some(row) = row else {
            let outcome = pb::get_command_response::Outcome::NotRecorded.into();
            return Ok(Response::new(pb::GetCommandResponse { outcome, response: None }));
        };
        let response = pb::CommandResponse {
            seq: row.seq.0,
            epoch: row.epoch.0,
            committed_at_ms: row.committed_at_ms,
            replayed: true,
            owner: None,
            result: Some(decode(&row.result)?),
        };
        let outcome = pb::get_command_response::Outcome::Committed.into();
        Ok(Response::new(pb::GetCommandResponse { outcome, response: Some(response) }))
    }
}

fn open<T>(request: Request<T>) -> (T, Instant) {
    let timeout = grpc_timeout(request.metadata()).unwrap_or(DEFAULT_DEADLINE).min(MAX_DEADLINE);
    (request.into_inner(), Instant::now() + timeout - ANSWER_MARGIN.min(timeout / 10))
}

fn owner(routed: &Routed) -> pb::Owner {
    pb::Owner { node_id: routed.owner.as_str().to_owned(), epoch: routed.answer.owner_epoch.0 }
}

fn check_room(app_code: &str, room_id: &str) -> Result<RoomKey, Status> {
    RoomKey::new(app_code, room_id).map_err(|error| errors::invalid_id(&error))
}

fn check_scope(scope: Option<pb::CommandScope>) -> Result<(RoomKey, CommandId), Status> {
    let scope = scope.unwrap_or_default();
    let room = check_room(&scope.app_code, &scope.room_id)?;
    let command_id = CommandId::new(&scope.command_id).map_err(|error| errors::invalid_id(&error))?;
    Ok((room, command_id))
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, Status> {
    M::decode(bytes).map_err(|error| {
        errors::status(Code::Internal, "RESULT_UNREADABLE", format!("a result of another release: {error}"))
    })
}

/// What the client allows, from the standard header: up to 8 digits and a unit.
pub(super) fn grpc_timeout(metadata: &MetadataMap) -> Option<Duration> {
    let value = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let amount: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(amount.checked_mul(3_600)?)),
        "M" => Some(Duration::from_secs(amount.checked_mul(60)?)),
        "S" => Some(Duration::from_secs(amount)),
        "m" => Some(Duration::from_millis(amount)),
        "u" => Some(Duration::from_micros(amount)),
        "n" => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_deadline_is_read_in_every_unit() {
        let read = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            grpc_timeout(&metadata)
        };
        assert_eq!(read("5S"), Some(Duration::from_secs(5)));
        assert_eq!(read("1500m"), Some(Duration::from_millis(1_500)));
        assert_eq!(read("2H"), Some(Duration::from_secs(7_200)));
        for nonsense in ["", "S", "5", "xS", "5x"] {
            assert_eq!(read(nonsense), None, "{nonsense:?}");
        }
    }
}
