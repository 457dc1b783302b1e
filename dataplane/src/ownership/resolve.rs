//! Who owns a room that this node does not execute.
//!
//! The route answers first. Where it is absent, SQL decides; and an owner that SQL names is only passed over if
//! the absence means that its lease ended, so that a wiped or restarted lease store moves no room.

use super::keeper::Leases;
use super::lease::RouteView;
use crate::store::{OwnerRow, RoomStore, StoreError, TakeExpectation};
use crate::types::{Epoch, Incarnation, NodeId, RoomKey};

/// What is known of a room's owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// That node executes it.
    Owned {
        /// The owner.
        node_id: NodeId,
        /// Its process, where known.
        incarnation: Option<Incarnation>,
        /// Where it is reached.
        address: String,
        /// Its epoch.
        epoch: Epoch,
    },
    /// Nobody executes it; a take must find the row so.
    Unowned(TakeExpectation),
    /// The route names a node that is not to be found: wait for it to expire.
    Unreachable(NodeId),
}

/// Finds the owner.
pub async fn resolve(
    leases: &Leases,
    store: &dyn RoomStore,
    room: &RoomKey,
) -> Result<Resolution, StoreError> {
    let view = leases.store().routes(std::slice::from_ref(room), leases.config().ttl).await;
    let view = view.ok().and_then(|mut views| views.pop());
    if let Some(resolution) = by_route(leases, view.as_ref()).await {
        return Ok(resolution);
    }
    let row = store.owner(room).await?;
    Ok(by_row(leases, view.as_ref(), row))
}

/// The route, if it names another node that is known to be alive.
async fn by_route(leases: &Leases, view: Option<&RouteView>) -> Option<Resolution> {
    let route = view?.route.as_ref()?;
    if route.node_id == leases.node().node_id {
        return None;
    }
    let facts = leases.store().node(&route.node_id).await.ok()??;
    Some(Resolution::Owned {
        node_id: facts.node_id,
        incarnation: Some(facts.incarnation),
        address: facts.address,
        epoch: route.epoch,
    })
}

fn by_row(leases: &Leases, view: Option<&RouteView>, row: Option<OwnerRow>) -> Resolution {
    let Some(row) = row else { return Resolution::Unowned(TakeExpectation::Absent) };
    let free = Resolution::Unowned(TakeExpectation::Exactly(row.claim));
    if row.released_at_ms.is_some() || row.node.node_id == leases.node().node_id {
        return free;
    }
    match view {
        // The lease has ended: its owner is gone, or has lost the store for a whole time to live.
        Some(RouteView { route: None, absence_counts: true }) => free,
        // The owner's heartbeat has ended, its route has not: it may still be executing.
        Some(RouteView { route: Some(route), .. }) if route.node_id == row.node.node_id => {
            Resolution::Unreachable(row.node.node_id)
        }
        Some(_) | None => Resolution::Owned {
            node_id: row.node.node_id,
            incarnation: Some(row.node.incarnation),
            address: row.node.address,
            epoch: row.claim.epoch,
        },
    }
}
