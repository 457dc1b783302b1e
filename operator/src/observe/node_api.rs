//! Speaks to one node: its order, its state, and what it finds in the database about another.
//!
//! Every call has a time-out of its own, so that a node that hangs costs a bounded time and is then simply
//! unknown. Errors are data for the plan; nothing here retries.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::HeaderValue;
use roomcluster_crds::names::GRPC_PORT;
use roomcluster_proto::node::v1 as wire;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use wire::node_service_client::NodeServiceClient;

use crate::ids::{DrainEpoch, Incarnation, PodName, PodUid, Revision};
use crate::plan::{BlockedRooms, NodeOrder, NodeReport, Order, WitnessAnswer};

/// Connecting to a pod of the same cluster.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How soon after a call a kept connection is probed: one that leads nowhere must not fail the next call too.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(5);
/// A probe that is not answered in this time ends the connection.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(2);
/// One call, connection included.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// The count of another node's rooms asks the database.
const COUNT_TIMEOUT: Duration = Duration::from_secs(4);

/// Why a node said nothing.
#[derive(Debug, thiserror::Error)]
pub enum NodeApiError {
    /// The address makes no endpoint.
    #[error("build the endpoint")]
    BuildEndpoint(#[source] tonic::transport::Error),
    /// The token is no header value.
    #[error("the node token is no header value")]
    Token,
    /// No answer in time.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// An answer that is an error.
    #[error("{}: {}", .0.code(), .0.message())]
    Refused(Status),
}

impl NodeApiError {
    /// Whether the node knows another token, or none.
    #[must_use]
    pub fn is_unauthenticated(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code() == Code::Unauthenticated)
    }
}

/// The client of one node.
#[derive(Clone, Debug)]
pub struct NodeApi {
    client: NodeServiceClient<Channel>,
    authorization: HeaderValue,
}

impl NodeApi {
    /// A client of the node at this address; nothing is connected yet.
    ///
    /// # Errors
    /// When the address or the token cannot be used at all.
    pub fn new(ip: IpAddr, token: &str) -> Result<Self, NodeApiError> {
        let port = u16::try_from(GRPC_PORT).expect("the port is a constant below 65536");
        let address = SocketAddr::new(ip, port);
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(NodeApiError::BuildEndpoint)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .tcp_nodelay(true);
        let mut authorization =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| NodeApiError::Token)?;
        authorization.set_sensitive(true);
        Ok(Self { client: NodeServiceClient::new(endpoint.connect_lazy()), authorization })
    }

    /// What the node says of itself.
    ///
    /// # Errors
    /// When it does not answer in time, or with an error.
    pub async fn report(&self) -> Result<NodeReport, NodeApiError> {
        let mut client = self.client.clone();
        let call = client.get_node(self.request(wire::GetNodeRequest {})?);
        Ok(report_of(within(CALL_TIMEOUT, call).await?))
    }

    /// Tells the node its order; answers with its state afterwards.
    ///
    /// # Errors
    /// When it does not answer in time, or refuses.
    pub async fn set_order(&self, uid: &PodUid, order: &NodeOrder) -> Result<NodeReport, NodeApiError> {
        let mut client = self.client.clone();
        let request = wire::SetOrderRequest {
            pod_uid: uid.as_str().to_owned(),
            drain_epoch: order.epoch.get(),
            order: order_to_wire(order.order).into(),
            target_revision: order
                .target
                .as_ref()
                .map(|target| target.as_str().to_owned())
                .unwrap_or_default(),
            target_generation: order.target_generation,
        };
        Ok(report_of(within(CALL_TIMEOUT, client.set_order(self.request(request)?)).await?))
    }

    /// What the node finds in the database about the rooms of `node`.
    ///
    /// # Errors
    /// When it does not answer in time, or its database does not.
    pub async fn rooms_owned_by(&self, node: &PodName) -> Result<WitnessAnswer, NodeApiError> {
        let mut client = self.client.clone();
        let request = wire::RoomsOwnedByRequest { node_id: node.as_str().to_owned() };
        let answer = within(COUNT_TIMEOUT, client.rooms_owned_by(self.request(request)?)).await?;
        Ok(WitnessAnswer {
            by: PodName::new(answer.answered_by_node_id),
            unreleased: answer.unreleased,
            leased: answer.leases_known.then_some(answer.leased),
        })
    }

    fn request<T>(&self, message: T) -> Result<Request<T>, NodeApiError> {
        let mut request = Request::new(message);
        let text = self.authorization.to_str().map_err(|_| NodeApiError::Token)?;
        request.metadata_mut().insert("authorization", text.parse().map_err(|_| NodeApiError::Token)?);
        Ok(request)
    }
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, NodeApiError> {
    match timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(NodeApiError::Refused(status)),
        Err(_) => Err(NodeApiError::TimedOut(limit)),
    }
}

fn order_to_wire(order: Order) -> wire::Order {
    match order {
        Order::Serve => wire::Order::Serve,
        Order::Evacuate => wire::Order::Evacuate,
    }
}

fn report_of(status: wire::NodeStatus) -> NodeReport {
    let order = match status.order() {
        wire::Order::Unspecified => None,
        wire::Order::Serve => Some(Order::Serve),
        wire::Order::Evacuate => Some(Order::Evacuate),
    };
    NodeReport {
        uid: PodUid::new(status.pod_uid),
        incarnation: Incarnation::new(status.incarnation),
        epoch: DrainEpoch::new(status.drain_epoch),
        order,
        accepting: status.accepting,
        rooms: status.rooms_held,
        target: Some(status.target_revision).filter(|target| !target.is_empty()).map(Revision::new),
        blocked: status
            .blocked
            .into_iter()
            .map(|blocked| BlockedRooms { reason: blocked.reason, rooms: blocked.rooms })
            .collect(),
    }
}
