//! Calls to other nodes.
//!
//! One channel per address, dropped at the first failure, so that a node that died or whose address was given to
//! another is looked up again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use roomcluster_proto::peer::v1::peer_service_client::PeerServiceClient;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tracing::debug;

use super::{Owner, RouteError, Routed, wire};
use crate::cell::Request;
use crate::types::RoomKey;

/// A peer that cannot be connected this soon is treated as gone; both ends are in one cluster.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Why a peer gave no answer.
#[derive(Debug)]
pub enum PeerError {
    /// It answered, with a no.
    Route(RouteError),
    /// It did not answer, or not in a way that says whether it did anything. The same command may be sent again.
    Unreachable,
}

/// The channels to other nodes.
#[derive(Clone)]
pub struct PeerClients {
    channels: Arc<Mutex<HashMap<String, Channel>>>,
    token: SecretString,
}

impl PeerClients {
    /// No channels yet.
    pub fn new(token: SecretString) -> Self {
        Self { channels: Arc::default(), token }
    }

    /// Runs a request on that node.
    pub async fn execute(
        &self,
        owner: &Owner,
        room: &RoomKey,
        request: &Request,
        deadline: Instant,
    ) -> Result<Routed, PeerError> {
        let Some(channel) = self.channel(&owner.address) else { return Err(PeerError::Unreachable) };
        let mut call = tonic::Request::new(wire::to_peer(owner, room, request));
        call.set_timeout(deadline.saturating_duration_since(Instant::now()));
        let bearer = format!("Bearer {}", self.token.expose_secret());
        match bearer.parse() {
            Ok(bearer) => call.metadata_mut().insert("authorization", bearer),
            Err(_not_ascii) => return Err(PeerError::Unreachable),
        };
        let response = tokio::time::timeout_at(deadline, PeerServiceClient::new(channel).execute(call)).await;
        match response {
            Ok(Ok(response)) => wire::from_peer(response.into_inner(), owner).map_err(PeerError::Route),
            Ok(Err(status)) => Err(self.failed(owner, &status)),
            Err(_elapsed) => Err(PeerError::Route(RouteError::OwnerUnreachable)),
        }
    }

    fn failed(&self, owner: &Owner, status: &Status) -> PeerError {
        debug!(node = %owner.node_id, address = owner.address, %status, "A peer gave no answer");
        self.lock().remove(&owner.address);
        match status.code() {
            // A wrong token does not mend itself by trying again.
            Code::Unauthenticated | Code::PermissionDenied => PeerError::Route(RouteError::Peer {
                code: Code::Internal.into(),
                reason: "PEER_TOKEN_REFUSED".to_owned(),
                message: "the owner of the room refused this node's token".to_owned(),
            }),
            _ => PeerError::Unreachable,
        }
    }

    fn channel(&self, address: &str) -> Option<Channel> {
        let mut channels = self.lock();
        if let Some(channel) = channels.get(address) {
            return Some(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
        let channel = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(2))
            .connect_lazy();
        channels.insert(address.to_owned(), channel.clone());
        Some(channel)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
