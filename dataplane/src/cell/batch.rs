//! Decides a batch of requests on a copy of the state. Pure.
//!
//! Later commands of a batch see what the earlier ones would do; so does a rejection, which is therefore only
//! told once the batch is durable. The same id twice in a batch is one command with two callers.

use std::collections::HashMap;

use super::{CellError, Request};
use crate::logic::{Context, Decision, RejectKind, Rejection, RoomLogic};
use crate::store::NewLogRow;
use crate::types::{CommandId, Hash32, RoomKey, Seq};

use super::recents::Recents;

/// What one request of the batch comes to once the batch is durable.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Row `index` of the batch is its own, or that of the same id before it.
    Row(usize),
    /// In the log already: the stored result must be fetched.
    Replay(CommandId),
    /// Refused, unless the log holds it: it may be a retry of a command that this memory has forgotten.
    RefusedUnlessLogged { command_id: CommandId, command_hash: Hash32, rejection: Rejection },
    /// Not at all.
    Refused(CellError),
    /// Answered from the state after the batch.
    Read,
}

/// A decided batch.
pub(super) struct Batch<S> {
    pub(super) verdicts: Vec<Verdict>,
    pub(super) rows: Vec<NewLogRow>,
    pub(super) unseen: Vec<CommandId>,
    pub(super) after: S,
}

/// What a batch is decided on.
pub(super) struct Base<'a, L: RoomLogic> {
    pub(super) logic: &'a L,
    pub(super) room: &'a RoomKey,
    pub(super) state: &'a L::State,
    pub(super) seq: Seq,
    pub(super) recents: &'a Recents,
    pub(super) now_ms: i64,
}

/// The fingerprint of a command: the edge sends its canonical fields.
pub(super) fn command_hash(payload: &[u8]) -> Hash32 {
    blake3::hash(payload).into()
}

/// Decides all requests, in order.
pub(super) fn decide<'r, L: RoomLogic>(
    base: &Base<'_, L>,
    requests: impl Iterator<Item = &'r Request>,
) -> Batch<L::State> {
    let mut batch =
        Batch { verdicts: Vec::new(), rows: Vec::new(), unseen: Vec::new(), after: base.state.clone() };
    let mut in_batch: HashMap<CommandId, usize> = HashMap::new();
    for request in requests {
        let verdict = match request {
            Request::Query { .. } | Request::Touch { .. } => Verdict::Read,
            Request::Command { command_id, payload } => {
                let hash = command_hash(payload);
                if let Some(&index) = in_batch.get(command_id) {
                    same_command(batch.rows[index].command_hash, hash, Verdict::Row(index))
                } else if let Some(known) = base.recents.hash_of(command_id) {
                    same_command(known, hash, Verdict::Replay(command_id.clone()))
                } else {
                    let verdict = decide_new(base, &mut batch, command_id, payload, hash);
                    if let Verdict::Row(index) = verdict {
                        in_batch.insert(command_id.clone(), index);
                    }
                    verdict
                }
            }
        };
        batch.verdicts.push(verdict);
    }
    batch
}

fn same_command(known: Hash32, hash: Hash32, verdict: Verdict) -> Verdict {
    if known == hash { verdict } else { Verdict::Refused(CellError::CommandIdReused) }
}

fn decide_new<L: RoomLogic>(
    base: &Base<'_, L>,
    batch: &mut Batch<L::State>,
    command_id: &CommandId,
    payload: &[u8],
    command_hash: Hash32,
) -> Verdict {
    let seq = Seq(base.seq.0 + batch.rows.len() as u64 + 1);
    let now_ms = base.now_ms.max(base.logic.last_event_ms(&batch.after));
    let decided = decode(base.logic, payload).and_then(|command| {
        base.logic.decide(&batch.after, &command, Context { room: base.room, now_ms, seq })
    });
    let unseen = base.recents.may_have_forgotten();
    let Decision { events, result } = match decided {
        Ok(decision) => decision,
        Err(rejection) if unseen => {
            return Verdict::RefusedUnlessLogged { command_id: command_id.clone(), command_hash, rejection };
        }
        Err(rejection) => return Verdict::Refused(rejection.into()),
    };
    let encoded = events.iter().map(|event| base.logic.encode_event(event)).collect();
    for event in &events {
        base.logic.evolve(&mut batch.after, event);
    }
    if unseen {
        batch.unseen.push(command_id.clone());
    }
    let row = NewLogRow {
        seq,
        command_id: command_id.clone(),
        command_hash,
        result,
        events: encoded,
        committed_at_ms: now_ms,
    };
    batch.rows.push(row);
    Verdict::Row(batch.rows.len() - 1)
}

fn decode<L: RoomLogic>(logic: &L, payload: &[u8]) -> Result<L::Command, Rejection> {
    logic
        .decode_command(payload)
        .map_err(|error| Rejection::new(RejectKind::InvalidArgument, "UNREADABLE_COMMAND", error.to_string()))
}
