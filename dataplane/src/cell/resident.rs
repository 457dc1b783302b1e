//! A room in memory, and how it comes there: snapshot, then the log above it.

use bytes::Bytes;
use std::sync::Arc;

use tokio::time::Instant;

use super::Shared;
use super::recents::Recents;
use crate::logic::{RoomLogic, RoomPhase};
use crate::ownership::Lease;
use crate::store::{Recovery, Snapshot, StoreError};
use crate::types::{Claim, Hash32, RoomKey, Seq};

/// The state of a loaded room, under a lease.
pub(super) struct Resident<L: RoomLogic> {
    pub(super) lease: Arc<Lease>,
    pub(super) state: L::State,
    pub(super) seq: Seq,
    pub(super) recents: Recents,
    /// The newest snapshot that is known to be written.
    pub(super) snapshot_seq: Seq,
    /// The newest one that was asked for.
    pub(super) snapshot_asked_seq: Seq,
    pub(super) used_at: Instant,
}

/// A state that is to be written.
#[derive(Debug, Clone)]
pub(super) struct PendingSnapshot {
    pub(super) claim: Claim,
    pub(super) snapshot: Snapshot,
}

impl<L: RoomLogic> Resident<L> {
    /// The state as a snapshot, unless the last one holds it.
    pub(super) fn pending_snapshot(&self, logic: &L) -> Option<PendingSnapshot> {
        if self.seq == self.snapshot_seq {
            return None;
        }
        let snapshot = Snapshot {
            seq: self.seq,
            epoch: self.lease.claim.epoch,
            format: L::SNAPSHOT_FORMAT,
            state_hash: logic.state_hash(&self.state),
            state: Bytes::from(logic.encode_snapshot(&self.state)),
        };
        Some(PendingSnapshot { claim: self.lease.claim, snapshot })
    }
}

/// Why a room cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Unreadable(String),
}

/// Loads a room that has just been taken; never a part of it.
pub(super) async fn load<L: RoomLogic>(
    shared: &Shared<L>,
    room: &RoomKey,
    lease: Arc<Lease>,
) -> Result<Resident<L>, LoadError> {
    let recovery = shared.store.recover(room).await?;
    let head = recovery.as_ref().map_or(Seq(0), |recovery| recovery.head_seq);
    let limit = shared.config.recent_ids;
    let ids = if head == Seq(0) {
        Vec::new()
    } else {
        shared.store.recent_ids(room, u32::try_from(limit).unwrap_or(u32::MAX)).await?
    };
    let (state, snapshot_seq) = match recovery {
        None => (shared.logic.initial(), Seq(0)),
        Some(recovery) => replay(&shared.logic, recovery)?,
    };
    let recents = Recents::new(ids, head, limit);
    Ok(Resident {
        lease,
        state,
        seq: head,
        recents,
        snapshot_seq,
        snapshot_asked_seq: snapshot_seq,
        used_at: Instant::now(),
    })
}

/// The state at the head of the log, checked against the hash that was committed with it.
pub(crate) fn replay<L: RoomLogic>(logic: &L, recovery: Recovery) -> Result<(L::State, Seq), LoadError> {
    let unreadable = |error: crate::logic::DecodeError| LoadError::Unreadable(error.to_string());
    let (mut state, from) = match recovery.snapshot {
        None => (logic.initial(), Seq(0)),
        Some(snapshot) => {
            let state = logic.decode_snapshot(snapshot.format, &snapshot.state).map_err(unreadable)?;
            check_hash(logic.state_hash(&state), snapshot.state_hash, "snapshot", snapshot.seq)?;
            (state, snapshot.seq)
        }
    };
    for row in &recovery.tail {
        for event in &row.events {
            logic.evolve(&mut state, &logic.decode_event(event).map_err(unreadable)?);
        }
    }
    check_hash(logic.state_hash(&state), recovery.state_hash, "replayed state", recovery.head_seq)?;
    Ok((state, from))
}

fn check_hash(found: Hash32, stored: Hash32, what: &str, seq: Seq) -> Result<(), LoadError> {
    if found == stored {
        return Ok(());
    }
    Err(LoadError::Unreadable(format!(
        "the {what} at seq {seq} does not have the hash that was committed with it"
    )))
}

/// The room's phase, if a batch changed it.
pub(super) fn phase_change<L: RoomLogic>(
    logic: &L,
    before: &L::State,
    after: &L::State,
) -> Option<RoomPhase> {
    let after = logic.phase(after);
    if logic.phase(before) == after { None } else { after }
}
