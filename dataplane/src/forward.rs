//! Local, forward or refuse: the way of one request to its room.
//!
//! A request is forwarded at most once. It names the node that it is meant for, and anyone else refuses it. A
//! node that does not own the room names who does, and the sender tries that one, at the same hop. Forwarding
//! never retries what a room's logic rejected; what did not reach an owner is tried again until the caller's
//! deadline, which is safe, since the same command id has one effect.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use crate::cell::{Answer, CellError, Cells, Request};
use crate::logic::{Rejection, RoomLogic};
use crate::ownership::lease::NodeFacts;
use crate::ownership::{Peers, Placement, Resolution, Standing, place, resolve};
use crate::store::{StoreError, TakeExpectation};
use crate::types::{Epoch, Incarnation, NodeId, RoomKey};

pub mod client;
pub mod wire;

use client::{PeerClients, PeerError};

/// First pause before a request that found no owner looks again; it doubles. A room that was let go is free at once.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// Longest pause; a room that changes hands is found again this soon after it is free.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(100);

/// How this node stands right now; asked anew for each decision.
pub trait StandingSource: Send + Sync {
    /// Identity, revision, target and whether it takes rooms.
    fn standing(&self) -> Standing;
}

/// An answer, and who gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routed {
    /// The answer.
    pub answer: Answer,
    /// The owner that gave it.
    pub owner: NodeId,
}

/// Who executes the room instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedTo {
    /// The owner; `None` when nobody owns it and this node does not take it.
    pub owner: Option<Owner>,
}

/// An owner as another node names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The node.
    pub node_id: NodeId,
    /// Its process, where known.
    pub incarnation: Option<Incarnation>,
    /// Where it is reached.
    pub address: String,
    /// Its epoch.
    pub epoch: Epoch,
}

/// Why a request got no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The room's own word, or its cell's.
    #[error(transparent)]
    Cell(#[from] CellError),
    /// Only to a peer: another node owns the room.
    #[error("another node owns the room")]
    Moved(MovedTo),
    /// This node and process is not the one that the request was meant for.
    #[error("the request was meant for another node")]
    WrongNode,
    /// Nobody takes rooms now.
    #[error("no node takes the room now; try again")]
    NoSuccessor,
    /// The owner could not be reached until the deadline.
    #[error("the owner of the room cannot be reached; try again")]
    OwnerUnreachable,
    /// The owner refused, in its own words.
    #[error("{message}")]
    Peer {
        /// A gRPC code.
        code: i32,
        /// Stable reason.
        reason: String,
        /// For people.
        message: String,
    },
}

/// The router of one node.
pub struct Router<L: RoomLogic> {
    cells: Cells<L>,
    peers: Arc<Peers>,
    clients: PeerClients,
    standing: Arc<dyn StandingSource>,
}

/// What one try came to.
enum Try {
    Done(Result<Routed, RouteError>),
    /// Look again after a pause; `error` is told if the deadline comes first.
    Again(RouteError),
}

impl<L: RoomLogic> Router<L> {
    /// A router over the cells of this node.
    pub fn new(
        cells: Cells<L>,
        peers: Arc<Peers>,
        clients: PeerClients,
        standing: Arc<dyn StandingSource>,
    ) -> Self {
        Self { cells, peers, clients, standing }
    }

    /// The cells behind.
    pub fn cells(&self) -> &Cells<L> {
        &self.cells
    }

    /// Runs a client's request wherever its room is.
    pub async fn route(
        &self,
        room: &RoomKey,
        request: Request,
        deadline: Instant,
    ) -> Result<Routed, RouteError> {
        let mut pause = RETRY_PAUSE;
        loop {
            let error = match self.try_once(room, &request, deadline).await {
                Try::Done(result) => return result,
                Try::Again(error) => error,
            };
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    /// Runs a request that a peer forwarded here; it is never forwarded again.
    pub async fn execute_here(
        &self,
        room: &RoomKey,
        request: Request,
        deadline: Instant,
    ) -> Result<Routed, RouteError> {
        loop {
            let cell = match self.cells.get(room) {
                Some(cell) => cell,
                None => match self.resolve(room).await? {
                    Resolution::Owned { node_id, incarnation, address, epoch } => {
                        let owner = Owner { node_id, incarnation, address, epoch };
                        return Err(RouteError::Moved(MovedTo { owner: Some(owner) }));
                    }
                    Resolution::Unreachable(_) => return Err(RouteError::OwnerUnreachable),
                    Resolution::Unowned(expect) if self.standing.standing().accepting => {
                        self.cells.open(room, expect)
                    }
                    Resolution::Unowned(_) => return Err(RouteError::Moved(MovedTo { owner: None })),
                },
            };
            match self.cells.submit(&cell, request.clone(), deadline).await {
                Err(CellError::Left) if Instant::now() < deadline => {}
                result => return self.local(result),
            }
        }
    }

    async fn try_once(&self, room: &RoomKey, request: &Request, deadline: Instant) -> Try {
        if let Some(cell) = self.cells.get(room) {
            return self.submit(&cell, request, deadline).await;
        }
        let resolution = match self.resolve(room).await {
            Ok(resolution) => resolution,
            Err(error) => return Try::Done(Err(error)),
        };
        match resolution {
            Resolution::Owned { node_id, incarnation, address, epoch } => {
                self.forward(room, request, Owner { node_id, incarnation, address, epoch }, deadline).await
            }
            Resolution::Unreachable(node) => {
                debug!(%room, %node, "The owner of a room is silent, its route has not expired");
                Try::Again(RouteError::OwnerUnreachable)
            }
            Resolution::Unowned(expect) => self.place(room, request, expect, deadline).await,
        }
    }

    async fn place(
        &self,
        room: &RoomKey,
        request: &Request,
        expect: TakeExpectation,
        deadline: Instant,
    ) -> Try {
        let standing = self.standing.standing();
        let mut placement = place(&standing, &self.peers.all(), room);
        let second_choice = match &placement {
            Placement::Here => !standing.on_target(),
            Placement::There(node) => node.revision != standing.target_revision,
            Placement::Nowhere => true,
        };
        if second_choice {
            self.peers.refresh_if_old(self.cells.shared().leases.store()).await;
            placement = place(&standing, &self.peers.all(), room);
        }
        match placement {
            Placement::Here => {
                let cell = self.cells.open(room, expect);
                self.submit(&cell, request, deadline).await
            }
            Placement::There(NodeFacts { node_id, incarnation, address, .. }) => {
                let epoch = Epoch(0);
                let chosen = Owner { node_id, incarnation: Some(incarnation), address, epoch };
                self.forward(room, request, chosen, deadline).await
            }
            Placement::Nowhere => Try::Again(RouteError::NoSuccessor),
        }
    }

    async fn submit(&self, cell: &Arc<crate::cell::Cell<L>>, request: &Request, deadline: Instant) -> Try {
        match self.cells.submit(cell, request.clone(), deadline).await {
            Err(CellError::Left) => Try::Again(RouteError::OwnerUnreachable),
            result => Try::Done(self.local(result)),
        }
    }

    /// Sends to the owner, and once more to whom it names instead.
    async fn forward(&self, room: &RoomKey, request: &Request, owner: Owner, deadline: Instant) -> Try {
        match self.clients.execute(&owner, room, request, deadline).await {
            Err(PeerError::Route(RouteError::Moved(MovedTo { owner: Some(named) })))
                if named.node_id == *self.own_id() =>
            {
                // It is ours by the truth, and not here: take it.
                Try::Again(RouteError::OwnerUnreachable)
            }
            Err(PeerError::Route(RouteError::Moved(MovedTo { owner: Some(named) }))) => {
                let result = self.clients.execute(&named, room, request, deadline).await;
                self.forwarded(&named, result)
            }
            result => self.forwarded(&owner, result),
        }
    }

    fn forwarded(&self, owner: &Owner, result: Result<Routed, PeerError>) -> Try {
        match result {
            Ok(routed) => Try::Done(Ok(routed)),
            Err(PeerError::Route(RouteError::Moved(moved))) => {
                if moved.owner.is_none() {
                    self.peers.mark_not_accepting(&owner.node_id);
                }
                Try::Again(RouteError::OwnerUnreachable)
            }
            Err(PeerError::Route(RouteError::WrongNode)) | Err(PeerError::Unreachable) => {
                self.peers.mark_not_accepting(&owner.node_id);
                Try::Again(RouteError::OwnerUnreachable)
            }
            Err(PeerError::Route(error)) => Try::Done(Err(error)),
        }
    }

    async fn resolve(&self, room: &RoomKey) -> Result<Resolution, RouteError> {
        let shared = self.cells.shared();
        let resolution = resolve(&shared.leases, shared.store.as_ref(), room).await;
        resolution.map_err(|error: StoreError| {
            let error = if error.is_retryable() {
                CellError::DatabaseUnavailable
            } else {
                CellError::Broken(error.to_string())
            };
            RouteError::Cell(error)
        })
    }

    fn local(&self, result: Result<Answer, CellError>) -> Result<Routed, RouteError> {
        Ok(Routed { answer: result?, owner: self.own_id().clone() })
    }

    fn own_id(&self) -> &NodeId {
        &self.cells.shared().leases.node().node_id
    }
}

impl From<Rejection> for RouteError {
    fn from(rejection: Rejection) -> Self {
        Self::Cell(CellError::Rejected(rejection))
    }
}
