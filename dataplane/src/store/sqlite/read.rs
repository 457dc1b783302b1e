//! Reads.

use sqlx::{Connection, Row, SqliteConnection};

use super::super::connect::compare_schema;
use super::super::rows::{self, RawOwner, tail_is_whole};
use super::super::{LogRow, OwnerRow, RecentId, Recovery, Snapshot, StoreError};
use super::commit::log_row;
use super::failure::{is_missing_table, of_call};
use crate::types::{Claim, CommandId, Epoch, NodeId, RoomKey, Seq};

pub(super) async fn ping(conn: &mut SqliteConnection) -> Result<(), StoreError> {
    sqlx::query("SELECT 1").execute(conn).await.map_err(of_call)?;
    Ok(())
}

pub(super) async fn check_schema(conn: &mut SqliteConnection) -> Result<(), StoreError> {
    let found = sqlx::query_scalar::<_, Option<i64>>(
        "SELECT MAX(version) FROM _sqlx_migrations WHERE success = TRUE",
    )
    .fetch_one(conn)
    .await;
    match found {
        Ok(found) => compare_schema(found),
        Err(e) if is_missing_table(&e) => compare_schema(None),
        Err(e) => Err(of_call(e)),
    }
}

/// By primary key.
pub(super) async fn owner(
    conn: &mut SqliteConnection,
    room: &RoomKey,
) -> Result<Option<OwnerRow>, StoreError> {
    let row = sqlx::query(
        "SELECT epoch, lease_token, owner_node_id, incarnation, address, released_at_ms FROM room_owner \
         WHERE app_code = ? AND room_id = ?",
    )
    .bind(room.app_code().as_bytes())
    .bind(room.room_id().as_bytes())
    .fetch_optional(conn)
    .await
    .map_err(of_call)?;
    let Some(row) = row else { return Ok(None) };
    let raw = || {
        Ok(RawOwner {
            epoch: row.try_get::<i64, _>(0)?.cast_unsigned(),
            token: row.try_get(1)?,
            node_id: row.try_get(2)?,
            incarnation: row.try_get(3)?,
            address: row.try_get(4)?,
            released_at_ms: row.try_get(5)?,
        })
    };
    raw().map_err(of_call)?.decode().map(Some)
}

/// By primary key.
pub(super) async fn exists(conn: &mut SqliteConnection, room: &RoomKey) -> Result<bool, StoreError> {
    let row = sqlx::query("SELECT 1 FROM room_head WHERE app_code = ? AND room_id = ?")
        .bind(room.app_code().as_bytes())
        .bind(room.room_id().as_bytes())
        .fetch_optional(conn)
        .await
        .map_err(of_call)?;
    Ok(row.is_some())
}

/// By `room_owner_by_node`.
pub(super) async fn rooms_owned_by(
    conn: &mut SqliteConnection,
    node: &NodeId,
    limit: u32,
) -> Result<(Vec<(RoomKey, Claim)>, u64), StoreError> {
    let rows = sqlx::query(
        "SELECT app_code, room_id, epoch, lease_token FROM room_owner \
         WHERE owner_node_id = ? AND released_at_ms IS NULL LIMIT ?",
    )
    .bind(node.as_str().as_bytes())
    .bind(limit)
    .fetch_all(&mut *conn)
    .await
    .map_err(of_call)?;
    let mut rooms = Vec::with_capacity(rows.len());
    for row in &rows {
        let get = |i: usize| row.try_get::<&[u8], _>(i).map_err(of_call);
        let epoch = row.try_get::<i64, _>(2).map_err(of_call)?.cast_unsigned();
        rooms.push((rows::room_key(get(0)?, get(1)?)?, rows::claim(epoch, get(3)?)?));
    }
    let all: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM room_owner WHERE owner_node_id = ? AND released_at_ms IS NULL",
    )
    .bind(node.as_str().as_bytes())
    .fetch_one(conn)
    .await
    .map_err(of_call)?;
    let all = u64::try_from(all).unwrap_or(0).max(rooms.len() as u64);
    Ok((rooms, all))
}

/// Head, snapshot and log, all of one moment.
pub(super) async fn recover(
    conn: &mut SqliteConnection,
    room: &RoomKey,
) -> Result<Option<Recovery>, StoreError> {
    let mut transaction = conn.begin().await.map_err(of_call)?;
    let recovery = read_all(&mut transaction, room).await?;
    transaction.rollback().await.map_err(of_call)?;
    Ok(recovery)
}

async fn read_all(conn: &mut SqliteConnection, room: &RoomKey) -> Result<Option<Recovery>, StoreError> {
    let head = sqlx::query("SELECT seq, state_hash FROM room_head WHERE app_code = ? AND room_id = ?")
        .bind(room.app_code().as_bytes())
        .bind(room.room_id().as_bytes())
        .fetch_optional(&mut *conn)
        .await
        .map_err(of_call)?;
    let Some(head) = head else { return Ok(None) };
    let head_seq = Seq(head.try_get::<i64, _>(0).map_err(of_call)?.cast_unsigned());
    let state_hash = rows::hash32("state hash", head.try_get(1).map_err(of_call)?)?;
    let snapshot = read_snapshot(conn, room).await?;
    let from = snapshot.as_ref().map_or(Seq(0), |s| s.seq);
    if from > head_seq {
        return Err(rows::corrupt("snapshot", "it is newer than the head of the log"));
    }
    let rows = sqlx::query(
        "SELECT seq, command_id, command_hash, result, events, epoch, committed_at_ms FROM room_command_log \
         WHERE app_code = ? AND room_id = ? AND seq > ? ORDER BY seq",
    )
    .bind(room.app_code().as_bytes())
    .bind(room.room_id().as_bytes())
    .bind(from.0.cast_signed())
    .fetch_all(conn)
    .await
    .map_err(of_call)?;
    let mut tail = Vec::with_capacity(rows.len());
    let mut places = Vec::with_capacity(rows.len());
    for row in &rows {
        let entry = log_row(row, 0)?;
        places.push((entry.seq, row.try_get::<&[u8], _>(4).map_err(of_call)?.is_empty()));
        tail.push(entry);
    }
    if !tail_is_whole(from, head_seq, places.into_iter())? {
        return Err(rows::corrupt("command log", "it is trimmed above the newest snapshot"));
    }
    Ok(Some(Recovery { head_seq, state_hash, snapshot, tail }))
}

/// By primary key.
async fn read_snapshot(conn: &mut SqliteConnection, room: &RoomKey) -> Result<Option<Snapshot>, StoreError> {
    let row = sqlx::query(
        "SELECT seq, epoch, format, state_hash, state FROM room_snapshot WHERE app_code = ? AND room_id = ?",
    )
    .bind(room.app_code().as_bytes())
    .bind(room.room_id().as_bytes())
    .fetch_optional(conn)
    .await
    .map_err(of_call)?;
    let Some(row) = row else { return Ok(None) };
    let number = |i: usize| row.try_get::<i64, _>(i).map_err(of_call);
    Ok(Some(Snapshot {
        seq: Seq(number(0)?.cast_unsigned()),
        epoch: Epoch(number(1)?.cast_unsigned()),
        format: u32::try_from(number(2)?).map_err(|e| rows::corrupt("snapshot format", e))?,
        state_hash: rows::hash32("snapshot hash", row.try_get(3).map_err(of_call)?)?,
        state: row.try_get::<Vec<u8>, _>(4).map_err(of_call)?.into(),
    }))
}

/// By primary key, backwards.
pub(super) async fn recent_ids(
    conn: &mut SqliteConnection,
    room: &RoomKey,
    limit: u32,
) -> Result<Vec<RecentId>, StoreError> {
    let rows = sqlx::query(
        "SELECT command_id, command_hash, seq FROM room_command_log \
         WHERE app_code = ? AND room_id = ? ORDER BY seq DESC LIMIT ?",
    )
    .bind(room.app_code().as_bytes())
    .bind(room.room_id().as_bytes())
    .bind(limit)
    .fetch_all(conn)
    .await
    .map_err(of_call)?;
    rows.iter()
        .map(|row| {
            Ok(RecentId {
                command_id: rows::command_id(row.try_get(0).map_err(of_call)?)?,
                command_hash: rows::hash32("command hash", row.try_get(1).map_err(of_call)?)?,
                seq: Seq(row.try_get::<i64, _>(2).map_err(of_call)?.cast_unsigned()),
            })
        })
        .collect()
}

/// By the unique key of `(app_code, room_id, command_id)`.
pub(super) async fn command(
    conn: &mut SqliteConnection,
    room: &RoomKey,
    command_id: &CommandId,
) -> Result<Option<LogRow>, StoreError> {
    let row = sqlx::query(
        "SELECT seq, command_id, command_hash, result, events, epoch, committed_at_ms FROM room_command_log \
         WHERE app_code = ? AND room_id = ? AND command_id = ?",
    )
    .bind(room.app_code().as_bytes())
    .bind(room.room_id().as_bytes())
    .bind(command_id.as_str().as_bytes())
    .fetch_optional(conn)
    .await
    .map_err(of_call)?;
    row.map(|row| log_row(&row, 0)).transpose()
}
