//! Letting go of rooms: by the operator's order, at the end of the process, and when nobody uses them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router as HttpRouter;
use axum::http::StatusCode;
use axum::routing::post;
use futures::StreamExt;
use roomcluster_lifecycle::{Process, Tasks};
use tokio::time::Instant;
use tracing::{info, warn};

use super::Orders;
use super::keeper::Keeper;
use crate::cell::{BlockReason, Cell, Cells, LetGo, LetGoMode};
use crate::logic::RoomLogic;
use crate::room::VoiceRoom;

/// Rooms that let go side by side. More do not end sooner, since the database is busy with these; they only wait
/// for each other while they are closed to their callers.
const SIDE_BY_SIDE: usize = 8;
/// Pause before rooms that would not let go are asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How often idle rooms are looked for.
const IDLE_SWEEP: Duration = Duration::from_secs(10);

/// Follows the operator's orders.
pub(super) fn start(loops: &Tasks, cells: &Cells<VoiceRoom>, orders: &Arc<Orders>, keeper: &Keeper) {
    let (cells, orders, keeper) = (cells.clone(), Arc::clone(orders), keeper.clone());
    loops.spawn_essential("evacuation", move |stop| async move {
        let mut views = orders.lifecycle().subscribe();
        let mut evacuating = false;
        loop {
            let was_evacuating = std::mem::replace(&mut evacuating, orders.is_evacuating());
            if evacuating != was_evacuating {
                info!(evacuating, rooms = cells.count(), "Evacuation has changed");
                // The others must know before rooms come free.
                keeper.announce().await;
            }
            let rooms_left = evacuating && evacuate_all(&cells, &orders).await > 0;
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = views.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(RETRY_PAUSE), if rooms_left => {}
            }
        }
    });
}

/// One round over all rooms; gives the number that is left.
async fn evacuate_all(cells: &Cells<VoiceRoom>, orders: &Orders) -> usize {
    let mut outcomes = futures::stream::iter(cells.all())
        .map(|cell| async move {
            // The order may have been withdrawn in the meantime.
            if !orders.is_evacuating() {
                return LetGo::NotHere;
            }
            cells.let_go(&cell, LetGoMode::Evacuate).await
        })
        .buffer_unordered(SIDE_BY_SIDE);
    let mut blocked: BTreeMap<BlockReason, u64> = BTreeMap::new();
    let mut released = 0_u64;
    while let Some(outcome) = outcomes.next().await {
        match outcome {
            LetGo::Released => released += 1,
            LetGo::NotHere => {}
            LetGo::Blocked(reason) | LetGo::Abandoned(reason) => *blocked.entry(reason).or_default() += 1,
        }
    }
    let left = cells.count();
    if released > 0 || !blocked.is_empty() {
        info!(released, left, ?blocked, "A round of the evacuation has ended");
    }
    orders.set_blocked(blocked);
    left
}

/// Lets go of everything at the end of the process.
pub(super) async fn drain(cells: &Cells<VoiceRoom>, deadline: Instant) {
    // A call that was under way may have opened one more room: each round ends those that it sees.
    let drained = async {
        while cells.count() > 0 {
            futures::stream::iter(cells.all())
                .for_each_concurrent(SIDE_BY_SIDE, |cell| async move { log_drained(cells, &cell).await })
                .await;
        }
    };
    if tokio::time::timeout_at(deadline, drained).await.is_err() {
        warn!(rooms = cells.count(), "The drain ran out of time; leases of the rooms that are left expire");
    }
}

async fn log_drained<L: RoomLogic>(cells: &Cells<L>, cell: &Arc<Cell<L>>) {
    let began = Instant::now();
    let outcome = cells.let_go(cell, LetGoMode::Drain).await;
    let duration_ms = began.elapsed().as_millis();
    match outcome {
        LetGo::Released | LetGo::NotHere => info!(room_id = %cell.room(), duration_ms, "A room was released"),
        LetGo::Blocked(reason) | LetGo::Abandoned(reason) => {
            warn!(room_id = %cell.room(), duration_ms, reason = reason.name(), "A room was left to its lease");
        }
    }
}

/// Unloads rooms that nobody uses: an unloaded room holds no lease and no memory.
pub(super) fn start_idle_unload(loops: &Tasks, cells: &Cells<VoiceRoom>, idle: Duration) {
    let cells = cells.clone();
    loops.spawn_essential("idle-unload", move |stop| async move {
        let mut ticks = tokio::time::interval(IDLE_SWEEP.min(idle));
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let unused = cells.idle_for(idle);
            futures::stream::iter(unused)
                .for_each_concurrent(SIDE_BY_SIDE, |cell| {
                    let cells = &cells;
                    async move {
                        cells.let_go(&cell, LetGoMode::Evacuate).await;
                    }
                })
                .await;
        }
    });
}

/// `POST /admin/pre-stop`, which the pod's preStop hook calls: not ready at once, no new rooms, those that are
/// held let go while the node still serves and forwards; and an answer when load balancers have had their time.
/// A node that has been evacuated need not wait.
pub(super) fn pre_stop_route(process: &Process, cells: &Cells<VoiceRoom>, wait: Duration) -> HttpRouter {
    let (cells, lifecycle) = (cells.clone(), process.lifecycle.clone());
    HttpRouter::new().route(
        "/admin/pre-stop",
        post(move || {
            let (cells, lifecycle) = (cells.clone(), lifecycle.clone());
            async move {
                let evacuated = lifecycle.view().evacuating && cells.count() == 0;
                info!(evacuated, "The pod is about to end");
                if !evacuated {
                    lifecycle.set_evacuating(true);
                    tokio::time::sleep(wait).await;
                }
                StatusCode::NO_CONTENT
            }
        }),
    )
}
