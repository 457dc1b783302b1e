//! One transaction of a batch: fence, look-ups, writes, COMMIT.
//!
//! The fence comes first: a shared locking read of the owner rows, which a take has to wait for. What it tells
//! stands until COMMIT. Nothing is written for a room that it does not let through.

use std::collections::{HashMap, HashSet};

use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::{Arguments, Row};

use super::super::rows::{self, RawOwner, owns};
use super::super::{CommitOutcome, LogRow, NewLogRow, OwnerRow, RoomCommit, StoreError};
use super::failure::Failure;
use super::line::Line;
use super::statements::{MAX_ROWS, Shapes, Statements, bind, pieces};
use crate::faults;
use crate::types::{RoomKey, Seq};

/// What one transaction decided.
#[derive(Default)]
pub(super) struct Settled {
    /// By index in the batch.
    pub(super) outcomes: Vec<(usize, CommitOutcome)>,
    /// Rooms whose owner row another transaction has locked.
    pub(super) locked: Vec<usize>,
}

/// A room that the fence let through.
struct Writable<'a> {
    index: usize,
    commit: &'a RoomCommit,
    owner: OwnerRow,
}

/// Runs the rooms of `group` (sorted by room) as one transaction.
///
/// A `careful` one, after another has waited for a lock in vain, also leaves out the rooms whose outbox row
/// somebody holds.
pub(super) async fn transact(
    line: &mut Line,
    statements: &Statements,
    batch: &[RoomCommit],
    group: &[usize],
    careful: bool,
) -> Result<Settled, Failure> {
    let mut settled = Settled::default();
    line.begin().await?;
    let mut writable = fence(line, statements, batch, group, &mut settled).await?;
    faults::point("commit.after-fence").await;
    if careful {
        drop_held(line, statements, &mut writable, &mut settled).await?;
    }
    drop_known(line, statements, &mut writable, &mut settled).await?;
    drop_too_large(line, &mut writable, &mut settled);
    if writable.is_empty() {
        line.rollback().await?;
        return Ok(settled);
    }
    write_log(line, statements, &writable).await?;
    write_outbox(line, statements, &writable).await?;
    move_heads(line, statements, &writable).await?;
    write_rooms(line, statements, &writable).await?;
    faults::point("commit.before-commit").await;
    line.commit().await?;
    settled.outcomes.extend(writable.iter().map(|w| (w.index, CommitOutcome::Committed)));
    Ok(settled)
}

async fn fence<'a>(
    line: &mut Line,
    statements: &Statements,
    batch: &'a [RoomCommit],
    group: &[usize],
    settled: &mut Settled,
) -> Result<Vec<Writable<'a>>, Failure> {
    let mut writable = Vec::with_capacity(group.len());
    let mut missing = Vec::new();
    let mut owners = read_owners(line, &statements.fence, batch, group).await?;
    for &index in group {
        let commit = &batch[index];
        match owners.remove(&commit.room) {
            None => missing.push(index),
            Some(Ok(owner)) if owns(&owner, commit.claim) => {
                writable.push(Writable { index, commit, owner });
            }
            Some(Ok(owner)) => settled.outcomes.push((index, CommitOutcome::Fenced(Some(owner)))),
            Some(Err(e)) => settled.outcomes.push((index, CommitOutcome::Refused(e.to_string()))),
        }
    }
    if missing.is_empty() {
        return Ok(writable);
    }
    // Absent and locked look alike to SKIP LOCKED. Without a lock, the last committed row tells them apart; if
    // it already names another claim, the one who has locked it cannot bring this claim back.
    let mut owners = read_owners(line, &statements.peek, batch, &missing).await?;
    for index in missing {
        match owners.remove(&batch[index].room) {
            None => settled.outcomes.push((index, CommitOutcome::Fenced(None))),
            Some(Ok(owner)) if owns(&owner, batch[index].claim) => settled.locked.push(index),
            Some(Ok(owner)) => settled.outcomes.push((index, CommitOutcome::Fenced(Some(owner)))),
            Some(Err(e)) => settled.outcomes.push((index, CommitOutcome::Refused(e.to_string()))),
        }
    }
    Ok(writable)
}

type Owners = HashMap<RoomKey, Result<OwnerRow, StoreError>>;

async fn read_owners(
    line: &mut Line,
    shapes: &Shapes,
    batch: &[RoomCommit],
    rooms: &[usize],
) -> Result<Owners, Failure> {
    let mut owners = HashMap::with_capacity(rooms.len());
    for chunk in rooms.chunks(MAX_ROWS) {
        let (sql, size) = shapes.padded(chunk.len());
        let mut arguments = MySqlArguments::default();
        for slot in 0..size {
            bind_room(&mut arguments, &batch[chunk[slot.min(chunk.len() - 1)]].room);
        }
        for row in line.fetch(sql, arguments).await? {
            let room = rows::room_key(row.try_get(0)?, row.try_get(1)?).map_err(Failure::Fault)?;
            owners.insert(room, raw_owner(&row, 2)?.decode());
        }
    }
    Ok(owners)
}

/// Reads the owner columns from the given place on.
pub(super) fn raw_owner(row: &MySqlRow, at: usize) -> Result<RawOwner, sqlx::Error> {
    Ok(RawOwner {
        epoch: row.try_get(at)?,
        token: row.try_get(at + 1)?,
        node_id: row.try_get(at + 2)?,
        incarnation: row.try_get(at + 3)?,
        address: row.try_get(at + 4)?,
        released_at_ms: row.try_get(at + 5)?,
    })
}

/// Takes out the rooms whose outbox row is there and locked.
async fn drop_held(
    line: &mut Line,
    statements: &Statements,
    writable: &mut Vec<Writable<'_>>,
    settled: &mut Settled,
) -> Result<(), Failure> {
    let free = read_due(line, &statements.due_lock, writable).await?;
    let all = read_due(line, &statements.due_peek, writable).await?;
    writable.retain(|w| {
        let held = all.contains(&w.commit.room) && !free.contains(&w.commit.room);
        if held {
            settled.locked.push(w.index);
        }
        !held
    });
    Ok(())
}

async fn read_due(
    line: &mut Line,
    shapes: &Shapes,
    writable: &[Writable<'_>],
) -> Result<HashSet<RoomKey>, Failure> {
    let mut due = HashSet::new();
    for chunk in writable.chunks(MAX_ROWS) {
        let (sql, size) = shapes.padded(chunk.len());
        let mut arguments = MySqlArguments::default();
        for slot in 0..size {
            bind_room(&mut arguments, &chunk[slot.min(chunk.len() - 1)].commit.room);
        }
        for row in line.fetch(sql, arguments).await? {
            due.insert(rows::room_key(row.try_get(0)?, row.try_get(1)?).map_err(Failure::Fault)?);
        }
    }
    Ok(due)
}

/// Takes out the rooms whose commands are in the log already.
async fn drop_known(
    line: &mut Line,
    statements: &Statements,
    writable: &mut Vec<Writable<'_>>,
    settled: &mut Settled,
) -> Result<(), Failure> {
    let unseen: Vec<_> =
        writable.iter().flat_map(|w| w.commit.unseen.iter().map(|id| (&w.commit.room, id))).collect();
    let mut known: HashMap<RoomKey, Vec<LogRow>> = HashMap::new();
    for chunk in unseen.chunks(MAX_ROWS) {
        let (sql, size) = statements.known.padded(chunk.len());
        let mut arguments = MySqlArguments::default();
        for slot in 0..size {
            let (room, id) = chunk[slot.min(chunk.len() - 1)];
            bind_room(&mut arguments, room);
            bind(&mut arguments, id.as_str().as_bytes());
        }
        for row in line.fetch(sql, arguments).await? {
            let room = rows::room_key(row.try_get(0)?, row.try_get(1)?).map_err(Failure::Fault)?;
            known.entry(room).or_default().push(log_row(&row, 2)?);
        }
    }
    if known.is_empty() {
        return Ok(());
    }
    writable.retain(|w| match known.remove(&w.commit.room) {
        None => true,
        Some(mut rows) => {
            rows.sort_by_key(|row| row.seq);
            settled.outcomes.push((w.index, CommitOutcome::Known(rows)));
            false
        }
    });
    Ok(())
}

/// Reads the columns of a log row from the given place on.
pub(super) fn log_row(row: &MySqlRow, at: usize) -> Result<LogRow, Failure> {
    let result: Vec<u8> = row.try_get(at + 3)?;
    let read = || -> Result<LogRow, StoreError> {
        let get = |i: usize| row.try_get::<&[u8], _>(at + i).map_err(StoreError::Statement);
        Ok(LogRow {
            seq: Seq(row.try_get(at).map_err(StoreError::Statement)?),
            command_id: rows::command_id(get(1)?)?,
            command_hash: rows::hash32("command hash", get(2)?)?,
            result: result.into(),
            events: rows::decode_events(get(4)?.to_vec())?,
            epoch: crate::types::Epoch(row.try_get(at + 5).map_err(StoreError::Statement)?),
            committed_at_ms: row.try_get(at + 6).map_err(StoreError::Statement)?,
        })
    };
    read().map_err(Failure::Fault)
}

/// Takes out the rooms with a row that no packet can hold: the server would close the connection.
fn drop_too_large(line: &Line, writable: &mut Vec<Writable<'_>>, settled: &mut Settled) {
    writable.retain(|w| match rows::too_large(w.commit, line.max_row_bytes) {
        None => true,
        Some(problem) => {
            settled.outcomes.push((w.index, CommitOutcome::Refused(problem)));
            false
        }
    });
}

async fn write_log(
    line: &mut Line,
    statements: &Statements,
    writable: &[Writable<'_>],
) -> Result<(), Failure> {
    let log: Vec<_> = writable.iter().flat_map(|w| w.commit.rows.iter().map(move |row| (w, row))).collect();
    for piece in pieces(log.len(), |i| rows::row_bytes(log[i].1)) {
        let (sql, _) = statements.log.padded(piece.len());
        let mut arguments = MySqlArguments::default();
        for (w, row) in &log[piece] {
            bind_room(&mut arguments, &w.commit.room);
            bind(&mut arguments, row.seq.0);
            bind(&mut arguments, row.command_id.as_str().as_bytes());
            bind(&mut arguments, &row.command_hash[..]);
            bind(&mut arguments, &row.result[..]);
            bind(&mut arguments, rows::encode_events(&row.events));
            bind(&mut arguments, w.commit.claim.epoch.0);
            bind(&mut arguments, &w.commit.claim.token.0[..]);
            bind(&mut arguments, w.owner.node.node_id.as_str().as_bytes());
            bind(&mut arguments, row.committed_at_ms);
        }
        line.execute(sql, arguments).await?;
    }
    Ok(())
}

async fn write_outbox(
    line: &mut Line,
    statements: &Statements,
    writable: &[Writable<'_>],
) -> Result<(), Failure> {
    let mut events = Vec::new();
    let mut due = Vec::new();
    for w in writable {
        let before = events.len();
        for row in &w.commit.rows {
            for (index, event) in row.events.iter().enumerate() {
                let index = rows::event_index(index);
                events.push((w, row, index, event, rows::encode_envelope(w.commit, row, index, event)));
            }
        }
        if events.len() > before {
            due.push((&w.commit.room, (events.len() - before) as i64));
        }
    }
    for piece in pieces(events.len(), |i| events[i].4.len() + 512) {
        let (sql, _) = statements.outbox.padded(piece.len());
        let mut arguments = MySqlArguments::default();
        for (w, row, index, event, envelope) in &events[piece] {
            bind_room(&mut arguments, &w.commit.room);
            bind(&mut arguments, row.seq.0);
            bind(&mut arguments, *index);
            bind(&mut arguments, event.event_type.as_bytes());
            bind(&mut arguments, &envelope[..]);
            bind(&mut arguments, rows::OUTBOX_PENDING.as_bytes());
            bind(&mut arguments, row.committed_at_ms);
        }
        line.execute(sql, arguments).await?;
    }
    for piece in pieces(due.len(), |_| 512) {
        let (sql, _) = statements.due.padded(piece.len());
        let mut arguments = MySqlArguments::default();
        for (room, pending) in &due[piece] {
            bind_room(&mut arguments, room);
            bind(&mut arguments, *pending);
        }
        line.execute(sql, arguments).await?;
    }
    Ok(())
}

/// Moves each head from where the commit begins to where it ends, and nowhere else.
async fn move_heads(
    line: &mut Line,
    statements: &Statements,
    writable: &[Writable<'_>],
) -> Result<(), Failure> {
    for piece in pieces(writable.len(), |_| 512) {
        let (sql, _) = statements.head.padded(piece.len());
        let mut arguments = MySqlArguments::default();
        let mut expected = 0;
        for w in &writable[piece] {
            let (base, last) = ends(w.commit);
            bind_room(&mut arguments, &w.commit.room);
            bind(&mut arguments, base.0);
            bind(&mut arguments, last.seq.0);
            bind(&mut arguments, w.commit.claim.epoch.0);
            bind(&mut arguments, &w.commit.state_hash[..]);
            bind(&mut arguments, last.committed_at_ms);
            expected += if base == Seq(0) { 1 } else { 2 };
        }
        // A head that is not there counts as one row, inserted; one that moves counts as two.
        if line.execute(sql, arguments).await? != expected {
            return Err(Failure::Rows(
                "the room's log does not reach to where this commit begins".to_owned(),
            ));
        }
    }
    Ok(())
}

/// Where a commit begins, and its last row.
fn ends(commit: &RoomCommit) -> (Seq, &NewLogRow) {
    let first = commit.rows.first().expect("a commit has at least one row");
    let last = commit.rows.last().expect("a commit has at least one row");
    (Seq(first.seq.0.saturating_sub(1)), last)
}

async fn write_rooms(
    line: &mut Line,
    statements: &Statements,
    writable: &[Writable<'_>],
) -> Result<(), Failure> {
    let changed: Vec<_> =
        writable.iter().filter_map(|w| w.commit.phase.map(|phase| (w.commit, phase))).collect();
    for piece in pieces(changed.len(), |_| 512) {
        let (sql, _) = statements.rooms.padded(piece.len());
        let mut arguments = MySqlArguments::default();
        for (commit, phase) in &changed[piece] {
            let closed = matches!(phase, crate::logic::RoomPhase::Closed);
            bind_room(&mut arguments, &commit.room);
            bind(&mut arguments, rows::phase_name(*phase).as_bytes());
            bind(&mut arguments, commit.rows[0].committed_at_ms);
            bind(&mut arguments, closed.then(|| ends(commit).1.committed_at_ms));
        }
        line.execute(sql, arguments).await?;
    }
    Ok(())
}

pub(super) fn bind_room(arguments: &mut MySqlArguments, room: &RoomKey) {
    arguments.reserve(2, room.app_code().len() + room.room_id().len() + 4);
    bind(arguments, room.app_code().as_bytes());
    bind(arguments, room.room_id().as_bytes());
}
