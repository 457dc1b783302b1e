//! A room service in memory, with the faults that a test asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use roomcluster_proto::rooms::v1::command_result::Kind;
use roomcluster_proto::rooms::v1::room_service_server::{RoomService, RoomServiceServer};
use roomcluster_proto::rooms::v1::{self as pb, CommandScope};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// The rooms that all servers of a test share.
#[derive(Default)]
pub(crate) struct Rooms {
    /// 0: never; n: each n-th commit is answered UNAVAILABLE.
    pub(crate) fail_after_commit_every: AtomicU64,
    /// 0: never; n: the command of this seq is answered with the seq before it.
    pub(crate) repeat_seq_at: AtomicU64,
    committed: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rooms: BTreeMap<String, FakeRoom>,
    /// Set by a move: the owner of all rooms.
    owner: Option<(String, u64)>,
}

#[derive(Default)]
struct FakeRoom {
    seq: u64,
    seats: BTreeMap<u32, (String, String)>,
    users: BTreeSet<String>,
    results: BTreeMap<String, (u64, u64, Kind)>,
}

impl Rooms {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Commands that took effect.
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(SeqCst)
    }

    /// All rooms go to another node.
    pub(crate) fn move_all(&self, node: &str) {
        let mut state = self.state.lock().unwrap();
        let epoch = state.owner.as_ref().map_or(1, |(_, epoch)| *epoch) + 1;
        state.owner = Some((node.to_owned(), epoch));
    }
}

/// One server over the rooms.
pub(crate) struct FakeService {
    address: std::net::SocketAddr,
    serving: JoinSet<()>,
}

impl FakeService {
    /// Serves on a free port.
    pub(crate) async fn start(node: &'static str, rooms: &Arc<Rooms>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        rooms.state.lock().unwrap().owner.get_or_insert((node.to_owned(), 1));
        let service = RoomServiceServer::new(Handler { rooms: rooms.clone() });
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let incoming = TcpIncoming::from(listener);
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
        Self { address, serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends without a word; open connections break.
    pub(crate) async fn kill(mut self) {
        self.serving.shutdown().await;
    }
}

struct Handler {
    rooms: Arc<Rooms>,
}

impl Handler {
    fn commit(
        &self,
        scope: Option<CommandScope>,
        creates: bool,
        apply: impl FnOnce(&mut FakeRoom, u64) -> Result<Kind, Status>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let scope = scope.unwrap();
        let mut state = self.rooms.state.lock().unwrap();
        let (node_id, epoch) = state.owner.clone().unwrap();
        if creates {
            state.rooms.entry(scope.room_id.clone()).or_default();
        }
        let room = state.rooms.get_mut(&scope.room_id).ok_or_else(|| Status::not_found("no such room"))?;
        let known = room.results.get(&scope.command_id).cloned();
        let replayed = known.is_some();
        let (seq, committed_epoch, kind) = match known {
            Some(known) => known,
            None => {
                let kind = apply(room, room.seq + 1)?;
                room.seq += 1;
                room.results.insert(scope.command_id, (room.seq, epoch, kind.clone()));
                let committed = self.rooms.committed.fetch_add(1, SeqCst) + 1;
                let every = self.rooms.fail_after_commit_every.load(SeqCst);
                if every > 0 && committed.is_multiple_of(every) {
                    return Err(Status::unavailable("the owner is going away"));
                }
                (room.seq, epoch, kind)
            }
        };
        let shown = if seq == self.rooms.repeat_seq_at.load(SeqCst) { seq - 1 } else { seq };
        Ok(Response::new(pb::CommandResponse {
            seq: shown,
            epoch: committed_epoch,
            committed_at_ms: 1,
            replayed,
            owner: Some(pb::Owner { node_id, epoch }),
            result: Some(pb::CommandResult { kind: Some(kind) }),
        }))
    }

    fn owner(&self) -> Option<pb::Owner> {
        self.rooms.state.lock().unwrap().owner.clone().map(|(node_id, epoch)| pb::Owner { node_id, epoch })
    }
}

#[tonic::async_trait]
impl RoomService for Handler {
    async fn create_room(
        &self,
        request: Request<pb::CreateRoomRequest>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let request = request.into_inner();
        self.commit(request.scope, true, |room, _| {
            if room.seq > 0 {
                return Err(Status::already_exists("the room exists"));
            }
            Ok(Kind::Created(pb::RoomCreatedResult { seat_count: request.seat_count }))
        })
    }

    async fn join_room(
        &self,
        request: Request<pb::JoinRoomRequest>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let request = request.into_inner();
        self.commit(request.scope, false, |room, _| {
            room.users.insert(request.user_id);
            Ok(Kind::Joined(pb::JoinedResult { present_users: room.users.len() as u32 }))
        })
    }

    async fn room_heartbeat(
        &self,
        _: Request<pb::RoomHeartbeatRequest>,
    ) -> Result<Response<pb::RoomHeartbeatResponse>, Status> {
        Ok(Response::new(pb::RoomHeartbeatResponse { last_seen_at_ms: 1, owner: self.owner() }))
    }

    async fn leave_room(
        &self,
        request: Request<pb::LeaveRoomRequest>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let request = request.into_inner();
        self.commit(request.scope, false, |room, _| {
            room.seats.retain(|_, (user, _)| *user != request.user_id);
            Ok(Kind::Left(pb::LeftResult { was_present: room.users.remove(&request.user_id) }))
        })
    }

    async fn mic_up(
        &self,
        request: Request<pb::MicUpRequest>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let request = request.into_inner();
        self.commit(request.scope, false, |room, seq| {
            if room.seats.contains_key(&request.seat_no) || !room.users.contains(&request.user_id) {
                return Err(Status::failed_precondition("the seat is taken, or the user is not present"));
            }
            let session = format!("session-{seq}");
            room.seats.insert(request.seat_no, (request.user_id, session.clone()));
            Ok(Kind::MicUp(pb::MicUpResult {
                seat_no: request.seat_no,
                mic_session_id: session,
                publish_deadline_ms: 0,
            }))
        })
    }

    async fn mic_down(
        &self,
        request: Request<pb::MicDownRequest>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        let request = request.into_inner();
        self.commit(request.scope, false, |room, _| {
            let seat_no =
                room.seats.iter().find(|(_, (user, _))| *user == request.user_id).map(|(seat, _)| *seat);
            let seat_no = seat_no.ok_or_else(|| Status::failed_precondition("the user has no seat"))?;
            let (_, mic_session_id) = room.seats.remove(&seat_no).unwrap();
            Ok(Kind::MicDown(pb::MicDownResult { seat_no, mic_session_id }))
        })
    }

    async fn close_room(
        &self,
        _: Request<pb::CloseRoomRequest>,
    ) -> Result<Response<pb::CommandResponse>, Status> {
        Err(Status::unimplemented("no test closes a room"))
    }

    async fn get_room(
        &self,
        request: Request<pb::GetRoomRequest>,
    ) -> Result<Response<pb::GetRoomResponse>, Status> {
        let owner = self.owner();
        let state = self.rooms.state.lock().unwrap();
        let room =
            state.rooms.get(&request.get_ref().room_id).ok_or_else(|| Status::not_found("no such room"))?;
        let seat = |(seat_no, (user_id, session)): (&u32, &(String, String))| pb::Seat {
            seat_no: *seat_no,
            state: pb::MicState::PendingPublish.into(),
            user_id: user_id.clone(),
            mic_session_id: session.clone(),
            ..Default::default()
        };
        let room = pb::Room {
            status: pb::RoomStatus::Active.into(),
            version: room.seq,
            seats: room.seats.iter().map(seat).collect(),
            users: room
                .users
                .iter()
                .map(|user| pb::Presence { user_id: user.clone(), ..Default::default() })
                .collect(),
            ..Default::default()
        };
        Ok(Response::new(pb::GetRoomResponse { room: Some(room), owner }))
    }

    async fn get_command(
        &self,
        _: Request<pb::GetCommandRequest>,
    ) -> Result<Response<pb::GetCommandResponse>, Status> {
        Err(Status::unimplemented("no test asks for a command"))
    }
}
