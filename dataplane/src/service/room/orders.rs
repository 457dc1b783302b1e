//! What the operator has ordered, and how this node therefore stands.
//!
//! Orders are level-triggered and fenced by the pod's UID and a drain epoch that never falls, also not over a
//! withdrawal; so a late order of a former operator changes nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use roomcluster_lifecycle::{Lifecycle, Process, ReadyGate, State};
use roomcluster_proto::node::v1 as pb;
use tracing::info;

use super::RoomArgs;
use crate::cell::BlockReason;
use crate::forward::StandingSource;
use crate::ownership::Standing;
use crate::types::{NodeId, NodeRef};

/// Why an order is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The order is for another pod.
    #[error("the order is for pod {wanted}, this is pod {own}")]
    WrongPod {
        /// Whom it names.
        wanted: String,
        /// Who this is.
        own: String,
    },
    /// A newer order is in force.
    #[error("the order has drain epoch {epoch}, {standing} is in force")]
    StaleEpoch {
        /// Of the order.
        epoch: u64,
        /// In force.
        standing: u64,
    },
    /// The same epoch with another content.
    #[error("drain epoch {epoch} was used for another order; use a higher one")]
    EpochReused {
        /// Of the order.
        epoch: u64,
    },
    /// Neither serve nor evacuate.
    #[error("the order says neither serve nor evacuate")]
    Unspecified,
}

#[derive(Debug, Clone, Default)]
struct Standings {
    drain_epoch: u64,
    order: Option<pb::Order>,
    target_revision: String,
    target_generation: i64,
    blocked: BTreeMap<BlockReason, u64>,
}

/// The orders of one node.
pub struct Orders {
    node_id: NodeId,
    pod_uid: String,
    revision: String,
    lifecycle: Lifecycle,
    /// Closed until the first order, on a node that waits for one.
    gate: Option<ReadyGate>,
    standings: Mutex<Standings>,
}

impl Orders {
    pub(super) fn new(process: &Process, args: &RoomArgs, node: &NodeRef) -> Self {
        let gate = args
            .await_order
            .then(|| process.health.closed_gate("order", "waits for the operator's first order"));
        Self {
            node_id: node.node_id.clone(),
            pod_uid: args.pod_uid.clone(),
            revision: args.revision.clone(),
            lifecycle: process.lifecycle.clone(),
            gate,
            standings: Mutex::default(),
        }
    }

    /// Takes an order, if it is for this pod and not older than the one in force.
    pub fn apply(&self, request: &pb::SetOrderRequest) -> Result<(), OrderError> {
        if request.pod_uid != self.pod_uid {
            return Err(OrderError::WrongPod { wanted: request.pod_uid.clone(), own: self.pod_uid.clone() });
        }
        let order = request.order();
        if order == pb::Order::Unspecified {
            return Err(OrderError::Unspecified);
        }
        let mut standings = self.lock();
        check_epoch(&standings, request.drain_epoch, order)?;
        let changed = standings.order != Some(order) || standings.drain_epoch != request.drain_epoch;
        standings.drain_epoch = request.drain_epoch;
        standings.order = Some(order);
        if request.target_generation >= standings.target_generation {
            standings.target_generation = request.target_generation;
            standings.target_revision.clone_from(&request.target_revision);
        }
        if order == pb::Order::Serve {
            standings.blocked.clear();
        }
        // Under the lock, so that two orders cannot leave the flag of the older one.
        self.lifecycle.set_evacuating(order == pb::Order::Evacuate);
        drop(standings);
        if changed {
            info!(order = order.as_str_name(), drain_epoch = request.drain_epoch, "An order was taken");
        }
        if let Some(gate) = &self.gate {
            gate.open();
        }
        Ok(())
    }

    /// Whether the node is to let go of its rooms and goes on living.
    pub fn is_evacuating(&self) -> bool {
        self.lifecycle.view().evacuating && self.lifecycle.state() == State::Running
    }

    /// Remembers which rooms would not let go, and why.
    pub fn set_blocked(&self, blocked: BTreeMap<BlockReason, u64>) {
        self.lock().blocked = blocked;
    }

    /// The drain epoch in force.
    pub fn drain_epoch(&self) -> u64 {
        self.lock().drain_epoch
    }

    /// UID of the pod.
    pub fn pod_uid(&self) -> &str {
        &self.pod_uid
    }

    /// Revision of the pod's template.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Follows the life of the process.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// The node as the operator sees it.
    pub fn status(&self, node: &NodeRef, rooms_held: u64) -> pb::NodeStatus {
        let standing = self.standing();
        let standings = self.lock().clone();
        let state = if self.is_evacuating() { "evacuating" } else { self.lifecycle.state().as_str() };
        let blocked = standings.blocked.iter();
        pb::NodeStatus {
            node_id: node.node_id.as_str().to_owned(),
            pod_uid: self.pod_uid.clone(),
            incarnation: node.incarnation.to_hex(),
            revision: self.revision.clone(),
            drain_epoch: standings.drain_epoch,
            order: standings.order.unwrap_or(pb::Order::Unspecified).into(),
            state: state.to_owned(),
            accepting: standing.accepting,
            rooms_held,
            target_revision: standings.target_revision,
            blocked: blocked
                .map(|(reason, rooms)| pb::BlockedRooms { reason: reason.name().to_owned(), rooms: *rooms })
                .collect(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Standings> {
        self.standings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StandingSource for Orders {
    /// Accepting does not ask the health of the stores: a node that cannot reach them answers so by itself, and
    /// where rooms go must not flap with a probe.
    fn standing(&self) -> Standing {
        let waits = self.gate.as_ref().is_some_and(|gate| !gate.is_open());
        Standing {
            node_id: self.node_id.clone(),
            revision: self.revision.clone(),
            target_revision: self.lock().target_revision.clone(),
            accepting: self.lifecycle.accepts_work() && !waits,
        }
    }
}

fn check_epoch(standings: &Standings, epoch: u64, order: pb::Order) -> Result<(), OrderError> {
    if epoch < standings.drain_epoch {
        return Err(OrderError::StaleEpoch { epoch, standing: standings.drain_epoch });
    }
    let same = standings.order.is_none_or(|standing| standing == order);
    if epoch == standings.drain_epoch && !same {
        return Err(OrderError::EpochReused { epoch });
    }
    Ok(())
}
