//! `node.v1`: what the operator asks of this node.

use std::sync::Arc;

use roomcluster_proto::node::v1 as pb;
use roomcluster_proto::node::v1::node_service_server::{NodeService, NodeServiceServer};
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Request, Response, Status};

use super::Orders;
use super::auth::NodeToken;
use super::orders::OrderError;
use crate::cell::Cells;
use crate::room::VoiceRoom;
use crate::service::errors;
use crate::types::{Claim, NodeId, NodeRef, RoomKey};

/// Most rooms whose routes are looked at for one answer. Beyond it the count in SQL says enough.
const ROUTES_LIMIT: u32 = 4_096;

pub(super) struct NodeApi {
    orders: Arc<Orders>,
    cells: Cells<VoiceRoom>,
    node: NodeRef,
}

impl NodeApi {
    pub(super) fn new(orders: Arc<Orders>, cells: Cells<VoiceRoom>, node: NodeRef) -> Self {
        Self { orders, cells, node }
    }

    pub(super) fn into_server(
        self,
        guard: NodeToken,
    ) -> InterceptedService<NodeServiceServer<Self>, NodeToken> {
        InterceptedService::new(NodeServiceServer::new(self), guard)
    }

    fn status(&self) -> pb::NodeStatus {
        self.orders.status(&self.node, self.cells.count() as u64)
    }

    /// How many of these rooms still have a lease of that node; `None` if the lease store does not tell.
    async fn leased(&self, node: &NodeId, rooms: &[(RoomKey, Claim)]) -> Option<u64> {
        let leases = &self.cells.shared().leases;
        let keys: Vec<_> = rooms.iter().map(|(room, _)| room.clone()).collect();
        let views = leases.store().routes(&keys, leases.config().ttl).await.ok()?;
        if views.iter().any(|view| view.route.is_none() && !view.absence_counts) {
            return None;
        }
        let of_node = |view: &&crate::ownership::lease::RouteView| {
            view.route.as_ref().is_some_and(|route| route.node_id == *node)
        };
        Some(views.iter().filter(of_node).count() as u64)
    }
}

#[tonic::async_trait]
impl NodeService for NodeApi {
    async fn set_order(
        &self,
        request: Request<pb::SetOrderRequest>,
    ) -> Result<Response<pb::NodeStatus>, Status> {
        self.orders.apply(request.get_ref()).map_err(|error| order_status(&error))?;
        Ok(Response::new(self.status()))
    }

    async fn get_node(
        &self,
        _request: Request<pb::GetNodeRequest>,
    ) -> Result<Response<pb::NodeStatus>, Status> {
        Ok(Response::new(self.status()))
    }

    async fn rooms_owned_by(
        &self,
        request: Request<pb::RoomsOwnedByRequest>,
    ) -> Result<Response<pb::RoomsOwnedByResponse>, Status> {
        let node = NodeId::new(&request.get_ref().node_id).map_err(|error| errors::invalid_id(&error))?;
        let owned = self.cells.shared().store.rooms_owned_by(&node, ROUTES_LIMIT).await;
        let (rooms, unreleased) = owned
            .map_err(|error| errors::status(Code::Unavailable, "DATABASE_UNAVAILABLE", error.to_string()))?;
        let leased = if rooms.is_empty() { Some(0) } else { self.leased(&node, &rooms).await };
        Ok(Response::new(pb::RoomsOwnedByResponse {
            unreleased,
            leased: leased.unwrap_or(0),
            leases_known: leased.is_some() && unreleased <= u64::from(ROUTES_LIMIT),
            answered_by_node_id: self.node.node_id.as_str().to_owned(),
        }))
    }
}

fn order_status(error: &OrderError) -> Status {
    let (code, reason) = match error {
        OrderError::WrongPod { .. } => (Code::FailedPrecondition, "WRONG_POD"),
        OrderError::StaleEpoch { .. } => (Code::FailedPrecondition, "STALE_DRAIN_EPOCH"),
        OrderError::EpochReused { .. } => (Code::FailedPrecondition, "DRAIN_EPOCH_REUSED"),
        OrderError::Unspecified => (Code::InvalidArgument, "ORDER_UNSPECIFIED"),
    };
    errors::status(code, reason, error.to_string())
}
