//! `peer.v1`: what other nodes ask of this one.

use std::sync::Arc;
use std::time::Duration;

use roomcluster_proto::peer::v1 as pb;
use roomcluster_proto::peer::v1::peer_service_server::{PeerService, PeerServiceServer};
use tokio::time::Instant;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status};

use super::api;
use super::auth::NodeToken;
use crate::forward::{RouteError, Router, wire};
use crate::room::VoiceRoom;
use crate::service::errors;
use crate::types::NodeRef;

pub(super) struct PeerApi {
    router: Arc<Router<VoiceRoom>>,
    node: NodeRef,
}

impl PeerApi {
    pub(super) fn new(router: Arc<Router<VoiceRoom>>, node: NodeRef) -> Self {
        Self { router, node }
    }

    pub(super) fn into_server(
        self,
        guard: NodeToken,
        max_bytes: usize,
    ) -> InterceptedService<PeerServiceServer<Self>, NodeToken> {
        let server = PeerServiceServer::new(self).max_decoding_message_size(max_bytes);
        InterceptedService::new(server, guard)
    }

    /// An address may have been given to another pod, and a pod may run another process.
    fn is_meant(&self, request: &pb::ExecuteRequest) -> bool {
        request.for_node_id == self.node.node_id.as_str()
            && (request.for_incarnation.is_empty()
                || request.for_incarnation == self.node.incarnation.to_hex())
    }
}

/// Longest that a forwarded request may wait here when its sender gave no deadline.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(5);

#[tonic::async_trait]
impl PeerService for PeerApi {
    async fn execute(
        &self,
        request: Request<pb::ExecuteRequest>,
    ) -> Result<Response<pb::ExecuteResponse>, Status> {
        let deadline = Instant::now() + api::grpc_timeout(request.metadata()).unwrap_or(DEFAULT_DEADLINE);
        let request = request.into_inner();
        let result = if self.is_meant(&request) {
            let (room, request) = wire::from_request(request).map_err(|error| errors::invalid_id(&error))?;
            self.router.execute_here(&room, request, deadline).await
        } else {
            Err(RouteError::WrongNode)
        };
        Ok(Response::new(wire::to_response(result)))
    }
}
