//! Commits: one transaction for a batch, a savepoint for each room.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{Connection, Row, Sqlite, SqliteConnection, Transaction};

use super::super::rows::{self, owns};
use super::super::{CommitOutcome, CommitSession, LogRow, NewLogRow, OwnerRow, RoomCommit, StoreError};
use super::Files;
use super::failure::{at_commit, is_of_rows, of_call};
use super::read;
use crate::logic::RoomPhase;

/// Commits batches over the one connection that writes.
pub(super) struct SqliteSession {
    files: Arc<Files>,
}

impl SqliteSession {
    pub(super) fn new(files: Arc<Files>) -> Self {
        Self { files }
    }
}

#[async_trait]
impl CommitSession for SqliteSession {
    async fn commit(&mut self, batch: &[RoomCommit]) -> Result<Vec<CommitOutcome>, StoreError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let mut writer = self.files.writer().await?;
        // A transaction that is dropped rolls back at once.
        let mut transaction = begin(writer.conn()).await?;
        let mut outcomes = Vec::with_capacity(batch.len());
        for commit in batch {
            outcomes.push(one_room(&mut transaction, commit).await?);
        }
        if outcomes.contains(&CommitOutcome::Committed) {
            transaction.commit().await.map_err(at_commit)?;
        } else {
            transaction.rollback().await.map_err(of_call)?;
        }
        Ok(outcomes)
    }
}

/// Begins a transaction that may write, and so waits here for other writers.
pub(super) async fn begin(conn: &mut SqliteConnection) -> Result<Transaction<'_, Sqlite>, StoreError> {
    conn.begin_with("BEGIN IMMEDIATE").await.map_err(of_call)
}

async fn one_room(
    transaction: &mut Transaction<'_, Sqlite>,
    commit: &RoomCommit,
) -> Result<CommitOutcome, StoreError> {
    let owner = match read::owner(transaction, &commit.room).await {
        Ok(Some(owner)) if owns(&owner, commit.claim) => owner,
        Ok(other) => return Ok(CommitOutcome::Fenced(other)),
        Err(e @ StoreError::Corrupt { .. }) => return Ok(CommitOutcome::Refused(e.to_string())),
        Err(e) => return Err(e),
    };
    let known = known(transaction, commit).await?;
    if !known.is_empty() {
        return Ok(CommitOutcome::Known(known));
    }
    if let Some(problem) = rows::too_large(commit, rows::MAX_ROW_BYTES) {
        return Ok(CommitOutcome::Refused(problem));
    }
    let mut savepoint = transaction.begin().await.map_err(of_call)?;
    match write(&mut savepoint, commit, &owner).await {
        Ok(true) => {
            savepoint.commit().await.map_err(of_call)?;
            Ok(CommitOutcome::Committed)
        }
        Ok(false) => {
            savepoint.rollback().await.map_err(of_call)?;
            let problem = "the room's log does not reach to where this commit begins";
            Ok(CommitOutcome::Refused(problem.to_owned()))
        }
        Err(error) => {
            let Some(problem) = is_of_rows(&error) else { return Err(of_call(error)) };
            savepoint.rollback().await.map_err(of_call)?;
            Ok(CommitOutcome::Refused(problem))
        }
    }
}

async fn known(conn: &mut SqliteConnection, commit: &RoomCommit) -> Result<Vec<LogRow>, StoreError> {
    let mut known = Vec::new();
    for id in &commit.unseen {
        known.extend(read::command(conn, &commit.room, id).await?);
    }
    known.sort_by_key(|row| row.seq);
    Ok(known)
}

/// Writes a room's rows; false when its head is not where the commit begins.
async fn write(
    conn: &mut SqliteConnection,
    commit: &RoomCommit,
    owner: &OwnerRow,
) -> Result<bool, sqlx::Error> {
    let mut pending = 0;
    for row in &commit.rows {
        write_log_row(conn, commit, owner, row).await?;
        pending += write_events(conn, commit, row).await?;
    }
    if pending > 0 {
        sqlx::query(
            "INSERT INTO outbox_room (app_code, room_id, due_ms, pending) \
             VALUES (?, ?, CAST(unixepoch('subsec') * 1000 AS INTEGER), ?) ON CONFLICT DO UPDATE SET \
             pending = pending + excluded.pending, due_ms = COALESCE(due_ms, excluded.due_ms)",
        )
        .bind(commit.room.app_code().as_bytes())
        .bind(commit.room.room_id().as_bytes())
        .bind(pending)
        .execute(&mut *conn)
        .await?;
    }
    if let Some(phase) = commit.phase {
        write_room(conn, commit, phase).await?;
    }
    move_head(conn, commit).await
}

async fn write_log_row(
    conn: &mut SqliteConnection,
    commit: &RoomCommit,
    owner: &OwnerRow,
    row: &NewLogRow,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO room_command_log (app_code, room_id, seq, command_id, command_hash, result, events, \
         epoch, lease_token, owner_node_id, committed_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(commit.room.app_code().as_bytes())
    .bind(commit.room.room_id().as_bytes())
    .bind(row.seq.0.cast_signed())
    .bind(row.command_id.as_str().as_bytes())
    .bind(&row.command_hash[..])
    .bind(&row.result[..])
    .bind(rows::encode_events(&row.events))
    .bind(commit.claim.epoch.0.cast_signed())
    .bind(&commit.claim.token.0[..])
    .bind(owner.node.node_id.as_str().as_bytes())
    .bind(row.committed_at_ms)
    .execute(conn)
    .await?;
    Ok(())
}

async fn write_events(
    conn: &mut SqliteConnection,
    commit: &RoomCommit,
    row: &NewLogRow,
) -> Result<i64, sqlx::Error> {
    for (index, event) in row.events.iter().enumerate() {
        let index = rows::event_index(index);
        sqlx::query(
            "INSERT INTO room_outbox (app_code, room_id, seq, event_index, event_type, envelope, state, \
             created_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(commit.room.app_code().as_bytes())
        .bind(commit.room.room_id().as_bytes())
        .bind(row.seq.0.cast_signed())
        .bind(index)
        .bind(event.event_type.as_bytes())
        .bind(rows::encode_envelope(commit, row, index, event))
        .bind(rows::OUTBOX_PENDING.as_bytes())
        .bind(row.committed_at_ms)
        .execute(&mut *conn)
        .await?;
    }
    Ok(row.events.len() as i64)
}

async fn write_room(
    conn: &mut SqliteConnection,
    commit: &RoomCommit,
    phase: RoomPhase,
) -> Result<(), sqlx::Error> {
    let (first, last) = ends(commit);
    sqlx::query(
        "INSERT INTO rooms (app_code, room_id, status, created_at_ms, closed_at_ms) VALUES (?, ?, ?, ?, ?) \
         ON CONFLICT DO UPDATE SET status = excluded.status, closed_at_ms = excluded.closed_at_ms",
    )
    .bind(commit.room.app_code().as_bytes())
    .bind(commit.room.room_id().as_bytes())
    .bind(rows::phase_name(phase).as_bytes())
    .bind(first.committed_at_ms)
    .bind((phase == RoomPhase::Closed).then_some(last.committed_at_ms))
    .execute(conn)
    .await?;
    Ok(())
}

fn ends(commit: &RoomCommit) -> (&NewLogRow, &NewLogRow) {
    let first = commit.rows.first().expect("a commit has at least one row");
    (first, commit.rows.last().expect("a commit has at least one row"))
}

/// Moves the head from where the commit begins to where it ends, and nowhere else.
async fn move_head(conn: &mut SqliteConnection, commit: &RoomCommit) -> Result<bool, sqlx::Error> {
    let (first, last) = ends(commit);
    let base = first.seq.0.saturating_sub(1);
    let sql = if base == 0 {
        "INSERT INTO room_head (base_seq, seq, epoch, state_hash, updated_at_ms, app_code, room_id) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
    } else {
        "UPDATE room_head SET base_seq = ?1, seq = ?2, epoch = ?3, state_hash = ?4, updated_at_ms = ?5 \
         WHERE app_code = ?6 AND room_id = ?7 AND seq = ?1"
    };
    let done = sqlx::query(sql)
        .bind(base.cast_signed())
        .bind(last.seq.0.cast_signed())
        .bind(commit.claim.epoch.0.cast_signed())
        .bind(&commit.state_hash[..])
        .bind(last.committed_at_ms)
        .bind(commit.room.app_code().as_bytes())
        .bind(commit.room.room_id().as_bytes())
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Reads the columns of a log row from the given place on.
pub(super) fn log_row(row: &sqlx::sqlite::SqliteRow, at: usize) -> Result<LogRow, StoreError> {
    let get = |i: usize| row.try_get::<&[u8], _>(at + i).map_err(of_call);
    let number = |i: usize| row.try_get::<i64, _>(at + i).map_err(of_call);
    Ok(LogRow {
        seq: crate::types::Seq(number(0)?.cast_unsigned()),
        command_id: rows::command_id(get(1)?)?,
        command_hash: rows::hash32("command hash", get(2)?)?,
        result: get(3)?.to_vec().into(),
        events: rows::decode_events(get(4)?.to_vec())?,
        epoch: crate::types::Epoch(number(5)?.cast_unsigned()),
        committed_at_ms: number(6)?,
    })
}
