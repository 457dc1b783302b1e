//! The executor of rooms: one cell per room, one command batch at a time.
//!
//! A cell is a bounded mailbox and, once loaded, the room's state. It has no task of its own: a driver runs
//! while there is work and ends when there is none. The driver decides a batch on a copy of the state, hands it
//! to the committer, and only when the commit is durable does it keep the copy and answer the callers.
//!
//! A cell does not know what its room does (see [`crate::logic`]), where requests come from, or when a node
//! should let go; it knows its lease and obeys the fence.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use roomcluster_lifecycle::{Clock, Tasks};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::logic::{Rejection, RoomLogic};
use crate::ownership::Leases;
use crate::store::{RoomStore, TakeExpectation};
use crate::types::{CommandId, Epoch, RoomKey, Seq};

mod batch;
pub mod committer;
mod driver;
mod mailbox;
mod metrics;
mod recents;
mod release;
mod resident;

#[cfg(test)]
mod tests;

pub use committer::{Committer, CommitterConfig};
pub use metrics::CellMetrics;
pub use release::{BlockReason, LetGo, LetGoMode};

use mailbox::{Envelope, Mailbox, Offer};

/// Shards of the table: enough that two cores do not meet on one lock.
const SHARDS: usize = 64;

/// Bounds of a cell.
#[derive(Debug, Clone, Copy)]
pub struct CellConfig {
    /// Most requests that wait in one room.
    pub mailbox_limit: usize,
    /// Most commands of one room in one commit.
    pub batch_limit: usize,
    /// Commands between two snapshots.
    pub snapshot_every: u64,
    /// Command ids that a cell remembers, so that a retry needs no look-up.
    pub recent_ids: usize,
    /// How long a snapshot may take to be written.
    pub snapshot_flush_timeout: Duration,
}

impl Default for CellConfig {
    fn default() -> Self {
        Self {
            // At 1 ms a commit and 64 commands each, a full mailbox is 4 ms of work.
            mailbox_limit: 256,
            batch_limit: 64,
            snapshot_every: 256,
            recent_ids: 1_024,
            snapshot_flush_timeout: Duration::from_secs(10),
        }
    }
}

/// What a caller asks of a room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Runs once, whatever happens.
    Command {
        /// The client's id.
        command_id: CommandId,
        /// Opaque to the cell.
        payload: Bytes,
    },
    /// Reads the committed state.
    Query {
        /// Opaque to the cell.
        payload: Bytes,
    },
    /// Refreshes what memory alone holds.
    Touch {
        /// Opaque to the cell.
        payload: Bytes,
    },
}

/// What a caller is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Place of the command; of the last one for reads.
    pub seq: Seq,
    /// Epoch under which the command committed; the owner's for reads.
    pub epoch: Epoch,
    /// Wall time of the commit; 0 for reads.
    pub committed_at_ms: i64,
    /// Whether the answer comes from the log.
    pub replayed: bool,
    /// Opaque to the cell.
    pub result: Bytes,
    /// The epoch of the owner that answered.
    pub owner_epoch: Epoch,
}

/// Why a caller gets no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CellError {
    /// The room's logic said no.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The room is not, or no longer, executed here; find its owner again.
    #[error("the room has left this node")]
    Left,
    /// Too many wait already.
    #[error("too many requests wait for the room")]
    Busy,
    /// The caller's deadline passed before the request was begun.
    #[error("the deadline passed while the request waited")]
    TooLate,
    /// Epoch or token no longer stand: another node took the room.
    #[error("another node took the room; nothing was written")]
    FencedOut,
    /// Same id, other command.
    #[error("the command id was used for another command; choose a fresh one")]
    CommandIdReused,
    /// The database cannot be reached; the same command may be sent again.
    #[error("the database is unavailable")]
    DatabaseUnavailable,
    /// The room cannot be loaded, or the command cannot be stored.
    #[error("the room cannot go on: {0}")]
    Broken(String),
}

/// What all cells of a node share.
pub struct Shared<L: RoomLogic> {
    /// The room's logic.
    pub logic: L,
    /// The durable truth.
    pub store: Arc<dyn RoomStore>,
    /// The leases of the node.
    pub leases: Arc<Leases>,
    /// Where batches commit.
    pub committer: Committer,
    /// Where drivers run.
    pub tasks: Tasks,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Bounds.
    pub config: CellConfig,
    /// Counters.
    pub metrics: CellMetrics,
}

/// One room on this node.
pub struct Cell<L: RoomLogic> {
    room: RoomKey,
    mailbox: Mutex<Mailbox<L>>,
}

impl<L: RoomLogic> Cell<L> {
    /// Which room.
    pub fn room(&self) -> &RoomKey {
        &self.room
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Mailbox<L>> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Shard<L> = Mutex<HashMap<RoomKey, Arc<Cell<L>>>>;

/// The cells of this node.
pub struct Cells<L: RoomLogic> {
    shared: Arc<Shared<L>>,
    shards: Arc<[Shard<L>]>,
}

impl<L: RoomLogic> Clone for Cells<L> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), shards: Arc::clone(&self.shards) }
    }
}

impl<L: RoomLogic> Cells<L> {
    /// No cells yet.
    pub fn new(shared: Shared<L>) -> Self {
        Self { shared: Arc::new(shared), shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// What they share.
    pub fn shared(&self) -> &Shared<L> {
        &self.shared
    }

    /// Rooms that this node executes, loads or is letting go: as long as a room counts here it may hold a lease.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// All cells, at this moment.
    pub fn all(&self) -> Vec<Arc<Cell<L>>> {
        self.shards.iter().flat_map(|shard| lock(shard).values().cloned().collect::<Vec<_>>()).collect()
    }

    /// Loaded rooms that nobody has used for so long.
    pub fn idle_for(&self, idle: Duration) -> Vec<Arc<Cell<L>>> {
        let unused =
            |cell: &Arc<Cell<L>>| cell.lock().idle_since().is_some_and(|since| since.elapsed() >= idle);
        self.all().into_iter().filter(unused).collect()
    }

    /// The cell of a room, if it is here.
    pub fn get(&self, room: &RoomKey) -> Option<Arc<Cell<L>>> {
        lock(self.shard(room)).get(room).cloned()
    }

    /// The cell of a room, made now if it is not here; it takes the room when it gets its first request.
    pub fn open(&self, room: &RoomKey, expect: TakeExpectation) -> Arc<Cell<L>> {
        let mut shard = lock(self.shard(room));
        let cell = shard.entry(room.clone()).or_insert_with(|| {
            Arc::new(Cell { room: room.clone(), mailbox: Mutex::new(Mailbox::new(expect)) })
        });
        Arc::clone(cell)
    }

    /// Asks the room and waits for its answer, until the deadline.
    pub async fn submit(
        &self,
        cell: &Arc<Cell<L>>,
        request: Request,
        deadline: Instant,
    ) -> Result<Answer, CellError> {
        let (reply, answer) = oneshot::channel();
        let envelope = Envelope { request, deadline, reply };
        let offer = cell.lock().offer(envelope, self.shared.config.mailbox_limit);
        match offer {
            Offer::Queued => {}
            Offer::StartDriver => self.start_driver(cell),
            Offer::Full => return Err(CellError::Busy),
            Offer::Gone => return Err(CellError::Left),
        }
        match tokio::time::timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            // The driver ended without an answer: its task was cut off or panicked. What it was doing is in the
            // log or not; a retry tells.
            Ok(Err(_dropped)) => Err(CellError::Left),
            Err(_elapsed) => Err(CellError::TooLate),
        }
    }

    fn start_driver(&self, cell: &Arc<Cell<L>>) {
        let driver = driver::Driver::new(self.clone(), Arc::clone(cell));
        self.shared.tasks.spawn_once("cell-driver", driver.run());
    }

    /// Takes a cell out of the table, if it is still this one, and sends its waiting callers to look again.
    fn remove(&self, cell: &Arc<Cell<L>>) {
        let mut shard = lock(self.shard(&cell.room));
        if shard.get(&cell.room).is_some_and(|standing| Arc::ptr_eq(standing, cell)) {
            shard.remove(&cell.room);
        }
        drop(shard);
        let waiting = cell.lock().end();
        for envelope in waiting {
            envelope.answer(Err(CellError::Left));
        }
    }

    fn shard(&self, room: &RoomKey) -> &Shard<L> {
        let mut hasher = DefaultHasher::new();
        room.hash(&mut hasher);
        #[allow(clippy::cast_possible_truncation, reason = "only the low bits choose a shard")]
        let index = hasher.finish() as usize % SHARDS;
        &self.shards[index]
    }
}

fn lock<L: RoomLogic>(shard: &Shard<L>) -> std::sync::MutexGuard<'_, HashMap<RoomKey, Arc<Cell<L>>>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
