//! Letting go of a room, in the order that the specification gives.
//!
//! The snapshot is flushed first while the room still serves, so that a flush that hangs cuts nobody. Only then
//! the mailbox stops, what is in it completes, and the lease is released by compare-and-delete: SQL first, then
//! the route. The log is the truth throughout: what was committed after the flush is replayed from it by the
//! successor. Only a long tail is flushed again, and the failure of that costs a longer replay, not a command.
//!
//! This is where a live hand-off has its place: between the first flush and the retirement a successor can be
//! prepared, and the retired state can be sent to it instead of being released.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::mailbox::{Control, Offer};
use super::resident::{PendingSnapshot, Resident};
use super::{Cell, Cells};
use crate::faults;
use crate::logic::RoomLogic;

/// Most of the time that a room is closed to its callers while its last commands are flushed.
const CLOSED_FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// A tail up to this long is replayed sooner than a snapshot is written, and the room is closed meanwhile.
const REPLAYED_TAIL: u64 = 64;

/// Why a room does not let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockReason {
    /// Its snapshot could not be written in time.
    SnapshotFlush,
    /// Its owner row could not be released.
    LeaseRelease,
}

impl BlockReason {
    /// As status, metrics and logs name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::SnapshotFlush => "SnapshotFlush",
            Self::LeaseRelease => "LeaseRelease",
        }
    }
}

/// What became of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetGo {
    /// The room is free.
    Released,
    /// It was not here, or has left by itself.
    NotHere,
    /// It goes on here.
    Blocked(BlockReason),
    /// It neither goes on nor was released: its lease expires.
    Abandoned(BlockReason),
}

/// Who wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetGoMode {
    /// The node goes on living: a room that does not let go serves on.
    Evacuate,
    /// The process ends: durable state is left alone.
    Drain,
}

impl<L: RoomLogic> Cells<L> {
    /// Lets go of a room.
    pub async fn let_go(&self, cell: &Arc<Cell<L>>, mode: LetGoMode) -> LetGo {
        let flushed = match self.flush_while_serving(cell).await {
            Ok(seq) => seq,
            Err(reason) if mode == LetGoMode::Evacuate => return LetGo::Blocked(reason),
            Err(reason) => return self.abandon(cell, reason).await,
        };
        let Some(resident) = self.retire(cell).await else {
            self.remove(cell);
            return LetGo::NotHere;
        };
        let durable = flushed.unwrap_or(resident.snapshot_seq);
        let long_tail = resident.seq.0 - durable.0.min(resident.seq.0) > REPLAYED_TAIL;
        if long_tail && let Some(pending) = resident.pending_snapshot(&self.shared().logic) {
            let flush = self.flush(cell, &pending);
            if tokio::time::timeout(CLOSED_FLUSH_TIMEOUT, flush).await.is_err() {
                info!(room = %cell.room(), "The last commands of a room were not flushed; its successor replays them");
            }
        }
        self.release(cell, resident, mode).await
    }

    async fn flush_while_serving(
        &self,
        cell: &Arc<Cell<L>>,
    ) -> Result<Option<crate::types::Seq>, BlockReason> {
        let (reply, pending) = oneshot::channel();
        self.control(cell, Control::Snapshot(reply));
        let Ok(Some(pending)) = pending.await else { return Ok(None) };
        let limit = self.shared().config.snapshot_flush_timeout;
        match tokio::time::timeout(limit, self.flush(cell, &pending)).await {
            Ok(true) => Ok(Some(pending.snapshot.seq)),
            Ok(false) | Err(_) => {
                self.shared().metrics.snapshot_flush_failed();
                warn!(room = %cell.room(), "The snapshot of a room was not flushed in time");
                Err(BlockReason::SnapshotFlush)
            }
        }
    }

    /// Writes a snapshot; true if the store holds it, or a newer one, now.
    pub(super) async fn flush(&self, cell: &Cell<L>, pending: &PendingSnapshot) -> bool {
        faults::point("snapshot.flush").await;
        let shared = self.shared();
        shared.metrics.snapshot_flush();
        match shared.store.write_snapshot(cell.room(), pending.claim, &pending.snapshot).await {
            Ok(true) => true,
            // Fenced: the room has another owner, whose snapshots count.
            Ok(false) => true,
            Err(error) => {
                warn!(room = %cell.room(), %error, "A snapshot could not be written");
                false
            }
        }
    }

    async fn retire(&self, cell: &Arc<Cell<L>>) -> Option<Box<Resident<L>>> {
        let (reply, resident) = oneshot::channel();
        let offer = cell.lock().retire(Control::Retire(reply));
        if offer == Offer::StartDriver {
            self.start_driver(cell);
        }
        resident.await.ok().flatten()
    }

    async fn release(&self, cell: &Arc<Cell<L>>, resident: Box<Resident<L>>, mode: LetGoMode) -> LetGo {
        let shared = self.shared();
        let lease = Arc::clone(&resident.lease);
        match shared.store.release(cell.room(), lease.claim, shared.clock.now_ms()).await {
            Ok(_released_or_taken) => {
                shared.leases.let_go(&lease).await;
                self.remove(cell);
                shared.metrics.lease_released();
                debug!(room_id = %cell.room(), lease_token = ?lease.claim.token, epoch = %lease.claim.epoch, "A lease was released");
                LetGo::Released
            }
            Err(error) => {
                shared.metrics.lease_release_failed();
                warn!(room = %cell.room(), %error, "The lease of a room could not be released");
                if mode == LetGoMode::Drain {
                    shared.leases.forget(&lease);
                    self.remove(cell);
                    return LetGo::Abandoned(BlockReason::LeaseRelease);
                }
                // The row may be released after all: the lease is void until it has been taken again.
                lease.expire();
                self.reopen(cell, resident);
                LetGo::Blocked(BlockReason::LeaseRelease)
            }
        }
    }

    async fn abandon(&self, cell: &Arc<Cell<L>>, reason: BlockReason) -> LetGo {
        if let Some(resident) = self.retire(cell).await {
            self.shared().leases.forget(&resident.lease);
        }
        self.remove(cell);
        LetGo::Abandoned(reason)
    }

    fn reopen(&self, cell: &Arc<Cell<L>>, resident: Box<Resident<L>>) {
        let start = cell.lock().reopen(Some(resident));
        if start {
            self.start_driver(cell);
        }
    }

    fn control(&self, cell: &Arc<Cell<L>>, control: Control<L>) {
        let offer = cell.lock().control(control);
        if offer == Offer::StartDriver {
            self.start_driver(cell);
        }
    }
}
