//! Sends one request until it is answered, refused, or the documented retries are used up.
//!
//! Every try carries the same request, so the same command id. Knows nothing of rooms or scripts.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use roomcluster_proto::rooms::v1 as pb;
use roomcluster_proto::rooms::v1::room_service_client::RoomServiceClient;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_types::StatusExt;

use super::pool::Pool;
use super::retry::{self, TryVerdict};
use super::script::{LaneScript, Op};

type RoomClient = RoomServiceClient<Channel>;

/// What became of a request.
#[derive(Debug)]
pub(crate) struct Sent<T> {
    /// The end of it.
    pub(crate) outcome: Outcome<T>,
    /// When, and after how many tries.
    pub(crate) course: Course,
}

/// When a request was under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Course {
    /// The first send.
    pub(crate) first_sent: Instant,
    /// The end.
    pub(crate) ended: Instant,
    /// Sends in all.
    pub(crate) tries: u32,
}

/// The end of a request.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    /// Answered.
    Answered(T),
    /// A considered no.
    Refused(Status),
    /// Given up after the documented retries, or a failure that the API does not name: the outcome is unknown.
    GaveUp(String),
}

/// Sends requests over a pool.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    /// The connections.
    pub(crate) pool: Arc<Pool>,
    /// Bound of one try.
    pub(crate) try_timeout: Duration,
}

/// The names that a room's requests carry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address<'a> {
    /// The app.
    pub(crate) app: &'a str,
    /// The room.
    pub(crate) room: &'a str,
}

impl Client {
    /// Sends a command under its id.
    pub(crate) async fn command(
        &self,
        at: Address<'_>,
        command_id: &str,
        op: Op,
        script: &LaneScript,
    ) -> Sent<pb::CommandResponse> {
        let scope = Some(pb::CommandScope {
            app_code: at.app.to_owned(),
            room_id: at.room.to_owned(),
            command_id: command_id.to_owned(),
        });
        match op {
            Op::Create { seats } => {
                let owner_user_id = script.user(0).to_owned();
                let message = pb::CreateRoomRequest { scope, owner_user_id, seat_count: seats };
                self.send(message, |mut client, request| async move { client.create_room(request).await })
                    .await
            }
            Op::Join { user } => {
                let message = pb::JoinRoomRequest { scope, user_id: script.user(user).to_owned() };
                self.send(message, |mut client, request| async move { client.join_room(request).await }).await
            }
            Op::MicUp { user } => {
                let user_id = script.user(user).to_owned();
                let message = pb::MicUpRequest { scope, user_id, seat_no: script.seat() };
                self.send(message, |mut client, request| async move { client.mic_up(request).await }).await
            }
            Op::MicDown { user } => {
                let message = pb::MicDownRequest { scope, user_id: script.user(user).to_owned() };
                self.send(message, |mut client, request| async move { client.mic_down(request).await }).await
            }
            Op::Leave { user } => {
                let message = pb::LeaveRoomRequest { scope, user_id: script.user(user).to_owned() };
                self.send(message, |mut client, request| async move { client.leave_room(request).await })
                    .await
            }
        }
    }

    /// Refreshes a presence.
    pub(crate) async fn heartbeat(&self, at: Address<'_>, user_id: &str) -> Sent<pb::RoomHeartbeatResponse> {
        let message = pb::RoomHeartbeatRequest {
            app_code: at.app.to_owned(),
            room_id: at.room.to_owned(),
            user_id: user_id.to_owned(),
        };
        self.send(message, |mut client, request| async move { client.room_heartbeat(request).await }).await
    }

    /// Reads a room.
    pub(crate) async fn read(&self, at: Address<'_>) -> Sent<pb::GetRoomResponse> {
        let message = pb::GetRoomRequest { app_code: at.app.to_owned(), room_id: at.room.to_owned() };
        self.send(message, |mut client, request| async move { client.get_room(request).await }).await
    }

    async fn send<M, T, F>(&self, message: M, call: impl Fn(RoomClient, Request<M>) -> F) -> Sent<T>
    where
        M: Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let first_sent = Instant::now();
        let mut tries = 0;
        let outcome = loop {
            let timeout = retry::try_timeout(self.try_timeout, first_sent.elapsed());
            tries += 1;
            let (error, verdict) = match self.one_try(message.clone(), timeout, &call).await {
                Ok(answer) => break Outcome::Answered(answer),
                Err(failed) => failed,
            };
            let wait = match verdict {
                TryVerdict::Refused => break Outcome::Refused(error),
                TryVerdict::Broken => None,
                TryVerdict::Retry | TryVerdict::RetryElsewhere => {
                    retry::next_wait(tries, first_sent.elapsed(), &mut rand::rng())
                }
            };
            let Some(wait) = wait else { break Outcome::GaveUp(describe(&error)) };
            tokio::time::sleep(wait).await;
        };
        Sent { outcome, course: Course { first_sent, ended: Instant::now(), tries } }
    }

    async fn one_try<M, T, F>(
        &self,
        message: M,
        timeout: Duration,
        call: &impl Fn(RoomClient, Request<M>) -> F,
    ) -> Result<T, (Status, TryVerdict)>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let began = Instant::now();
        let Some(lent) = self.pool.lend(timeout).await else {
            return Err((Status::unavailable("no connection could be made"), TryVerdict::Retry));
        };
        let left = timeout.saturating_sub(began.elapsed());
        let mut request = Request::new(message);
        request.set_timeout(left);
        let answer = match tokio::time::timeout(left, call(lent.client.clone(), request)).await {
            Ok(Ok(response)) => return Ok(response.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => {
                self.pool.failed(&lent);
                return Err((Status::deadline_exceeded("no answer in time"), TryVerdict::RetryElsewhere));
            }
        };
        let verdict = retry::classify(&answer);
        if verdict == TryVerdict::RetryElsewhere {
            self.pool.failed(&lent);
        }
        Err((answer, verdict))
    }
}

/// A status for people: code, reason and message.
pub(crate) fn describe(status: &Status) -> String {
    match status.get_details_error_info() {
        Some(info) => format!("{:?} {}: {}", status.code(), info.reason, status.message()),
        None => format!("{:?}: {}", status.code(), status.message()),
    }
}
