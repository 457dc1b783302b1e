//! The standard gRPC health protocol, read from the one health state.
//!
//! Knows two names: that of the service, and the overall name `""`. Watchers are told of the drain and then let
//! go, so that an open watch never holds up a shutdown.

use std::pin::Pin;

use futures::Stream;
use tonic::{Request, Response, Status as GrpcStatus};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health as HealthProtocol;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::Health;
use super::report::Status;
use crate::state::State;

/// `grpc.health.v1.Health` of a process.
#[derive(Debug, Clone)]
pub struct GrpcHealth {
    health: Health,
}

impl GrpcHealth {
    pub(super) fn new(health: Health) -> Self {
        Self { health }
    }

    fn knows(&self, service: &str) -> bool {
        service.is_empty() || service == self.health.identity().service
    }
}

fn serving_status(status: Status) -> ServingStatus {
    match status {
        Status::Unknown => ServingStatus::Unknown,
        Status::Ready => ServingStatus::Serving,
        Status::NotReady => ServingStatus::NotServing,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, GrpcStatus>> + Send>>;

#[tonic::async_trait]
impl HealthProtocol for GrpcHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, GrpcStatus> {
        if !self.knows(&request.get_ref().service) {
            return Err(GrpcStatus::not_found("the service is not known here"));
        }
        Ok(Response::new(response(serving_status(self.health.ready().status))))
    }

    type WatchStream = WatchStream;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, GrpcStatus> {
        if !self.knows(&request.get_ref().service) {
            // The protocol wants an answer and an open stream here, since the service may appear later.
            // No service appears later in this process, so the stream ends.
            let unknown = Ok(response(ServingStatus::ServiceUnknown));
            return Ok(Response::new(Box::pin(futures::stream::iter([unknown]))));
        }
        Ok(Response::new(Box::pin(watch(self.health.clone()))))
    }
}

fn watch(health: Health) -> impl Stream<Item = Result<HealthCheckResponse, GrpcStatus>> + Send {
    let status = health.subscribe();
    let sent: Option<Status> = None;
    futures::stream::unfold((health, status, sent), |(health, mut status, mut sent)| async move {
        loop {
            let is_final = health.view().state >= State::Draining;
            let now = if is_final { Status::NotReady } else { *status.borrow_and_update() };
            if sent != Some(now) {
                sent = Some(now);
                return Some((Ok(response(serving_status(now))), (health, status, sent)));
            }
            if is_final {
                return None;
            }
            let draining = health.inner.lifecycle.draining().clone();
            tokio::select! {
                biased;
                () = draining.cancelled() => {}
                changed = status.changed() => changed.ok()?,
            }
        }
    })
}
