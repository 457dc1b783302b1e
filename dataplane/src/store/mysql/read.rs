//! Reads over the pool.

use sqlx::Row;
use sqlx::mysql::MySqlPool;

use super::super::connect::compare_schema;
use super::super::rows::{self, tail_is_whole};
use super::super::{LogRow, OwnerRow, RecentId, Recovery, Snapshot, StoreError};
use super::failure::{Failure, is_missing_table, of_call};
use super::transact::{log_row, raw_owner};
use crate::types::{Claim, CommandId, Epoch, NodeId, RoomKey, Seq};

/// How often a recovery starts again because the log was trimmed while it read.
const RECOVER_TRIES: u32 = 3;

pub(super) async fn ping(pool: &MySqlPool) -> Result<(), StoreError> {
    sqlx::query("SELECT 1").execute(pool).await.map_err(of_call)?;
    Ok(())
}

pub(super) async fn check_schema(pool: &MySqlPool) -> Result<(), StoreError> {
    let found = sqlx::query_scalar::<_, Option<i64>>(
        "SELECT MAX(version) FROM _sqlx_migrations WHERE success = TRUE",
    )
    .fetch_one(pool)
    .await;
    match found {
        Ok(found) => compare_schema(found),
        Err(sqlx::Error::Database(e)) if is_missing_table(e.as_ref()) => compare_schema(None),
        Err(e) => Err(of_call(e)),
    }
}

/// By primary key.
pub(super) async fn owner(
    executor: impl sqlx::MySqlExecutor<'_>,
    room: &RoomKey,
) -> Result<Option<OwnerRow>, StoreError> {
    let row = sqlx::query(
        "SELECT epoch, lease_token, owner_node_id, incarnation, address, released_at_ms FROM room_owner \
         WHERE app_code = ? AND room_id = ?",
    )
    .bind(room.app_code().as_bytes())
    .bind(room.room_id().as_bytes())
    .fetch_optional(executor)
    .await
    .map_err(of_call)?;
    row.map(|row| raw_owner(&row, 0).map_err(of_call)?.decode()).transpose()
}

/// By primary key.
pub(super) async fn exists(pool: &MySqlPool, room: &RoomKey) -> Result<bool, StoreError> {
    let row = sqlx::query("SELECT 1 FROM room_head WHERE app_code = ? AND room_id = ?")
        .bind(room.app_code().as_bytes())
        .bind(room.room_id().as_bytes())
        .fetch_optional(pool)
        .await
        .map_err(of_call)?;
    Ok(row.is_some())
}

/// By `room_owner_by_node`.
pub(super) async fn rooms_owned_by(
    pool: &MySqlPool,
    node: &NodeId,
    limit: u32,
) -> Result<(Vec<(RoomKey, Claim)>, u64), StoreError> {
    let rows = sqlx::query(
        "SELECT app_code, room_id, epoch, lease_token FROM room_owner \
         WHERE owner_node_id = ? AND released_at_ms IS NULL LIMIT ?",
    )
    .bind(node.as_str().as_bytes())
    .bind(limit)
    .fetch_all(pool)
    .await
    .map_err(of_call)?;
    let mut rooms = Vec::with_capacity(rows.len());
    for row in &rows {
        let get = |i: usize| row.try_get::<&[u8], _>(i).map_err(of_call);
        let epoch = row.try_get(2).map_err(of_call)?;
        rooms.push((rows::room_key(get(0)?, get(1)?)?, rows::claim(epoch, get(3)?)?));
    }
    if rooms.len() < limit as usize {
        let all = rooms.len() as u64;
        return Ok((rooms, all));
    }
    let all: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM room_owner WHERE owner_node_id = ? AND released_at_ms IS NULL",
    )
    .bind(node.as_str().as_bytes())
    .fetch_one(pool)
    .await
    .map_err(of_call)?;
    let all = u64::try_from(all).unwrap_or(0).max(rooms.len() as u64);
    Ok((rooms, all))
}

/// Head and snapshot in one read, then the log between them.
///
/// A log row never changes, except that it is trimmed once a newer snapshot holds it: then the reading starts
/// again from that one.
pub(super) async fn recover(pool: &MySqlPool, room: &RoomKey) -> Result<Option<Recovery>, StoreError> {
    let mut conn = pool.acquire().await.map_err(of_call)?;
    for _ in 0..RECOVER_TRIES {
        let Some(base) = read_base(&mut conn, room).await? else {
            return Ok(None);
        };
        let from = base.snapshot.as_ref().map_or(Seq(0), |s| s.seq);
        let (tail, trimmed) = read_tail(&mut conn, room, from, base.head_seq).await?;
        let places = tail.iter().zip(&trimmed).map(|(row, trimmed)| (row.seq, *trimmed));
        if tail_is_whole(from, base.head_seq, places)? {
            return Ok(Some(Recovery { tail, ..base }));
        }
    }
    Err(rows::corrupt("command log", "it is trimmed above the newest snapshot"))
}

/// By primary keys.
async fn read_base(conn: &mut sqlx::MySqlConnection, room: &RoomKey) -> Result<Option<Recovery>, StoreError> {
    let row = sqlx::query(
        "SELECT h.seq, h.state_hash, s.seq, s.epoch, s.format, s.state_hash, s.state FROM room_head h \
         LEFT JOIN room_snapshot s ON s.app_code = h.app_code AND s.room_id = h.room_id \
         WHERE h.app_code = ? AND h.room_id = ?",
    )
    .bind(room.app_code().as_bytes())
    .bind(room.room_id().as_bytes())
    .fetch_optional(conn)
    .await
    .map_err(of_call)?;
    let Some(row) = row else { return Ok(None) };
    let snapshot = match row.try_get::<Option<u64>, _>(2).map_err(of_call)? {
        None => None,
        Some(seq) => Some(Snapshot {
            seq: Seq(seq),
            epoch: Epoch(row.try_get(3).map_err(of_call)?),
            format: row.try_get(4).map_err(of_call)?,
            state_hash: rows::hash32("snapshot hash", row.try_get(5).map_err(of_call)?)?,
            state: row.try_get::<Vec<u8>, _>(6).map_err(of_call)?.into(),
        }),
    };
    let head_seq = Seq(row.try_get(0).map_err(of_call)?);
    if snapshot.as_ref().is_some_and(|s| s.seq > head_seq) {
        return Err(rows::corrupt("snapshot", "it is newer than the head of the log"));
    }
    let state_hash = rows::hash32("state hash", row.try_get(1).map_err(of_call)?)?;
    Ok(Some(Recovery { head_seq, state_hash, snapshot, tail: Vec::new() }))
}

/// By primary key. Gives with each row whether it was trimmed.
async fn read_tail(
    conn: &mut sqlx::MySqlConnection,
    room: &RoomKey,
    from: Seq,
    to: Seq,
) -> Result<(Vec<LogRow>, Vec<bool>), StoreError> {
    if from >= to {
        return Ok((Vec::new(), Vec::new()));
    }
    let rows = sqlx::query(
        "SELECT seq, command_id, command_hash, result, events, epoch, committed_at_ms FROM room_command_log \
         WHERE app_code = ? AND room_id = ? AND seq > ? AND seq <= ? ORDER BY seq",
    )
    .bind(room.app_code().as_bytes())
    .bind(room.room_id().as_bytes())
    .bind(from.0)
    .bind(to.0)
    .fetch_all(conn)
    .await
    .map_err(of_call)?;
    let mut tail = Vec::with_capacity(rows.len());
    let mut trimmed = Vec::with_capacity(rows.len());
    for row in &rows {
        trimmed.push(row.try_get::<&[u8], _>(4).map_err(of_call)?.is_empty());
        tail.push(log_row(row, 0).map_err(Failure::into_store_error)?);
    }
    Ok((tail, trimmed))
}

/// By primary key, backwards.
pub(super) async fn recent_ids(
    pool: &MySqlPool,
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
    .fetch_all(pool)
    .await
    .map_err(of_call)?;
    rows.iter()
        .map(|row| {
            Ok(RecentId {
                command_id: rows::command_id(row.try_get(0).map_err(of_call)?)?,
                command_hash: rows::hash32("command hash", row.try_get(1).map_err(of_call)?)?,
                seq: Seq(row.try_get(2).map_err(of_call)?),
            })
        })
        .collect()
}

/// By `room_command_log_by_id`.
pub(super) async fn command(
    pool: &MySqlPool,
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
    .fetch_optional(pool)
    .await
    .map_err(of_call)?;
    row.map(|row| log_row(&row, 0).map_err(Failure::into_store_error)).transpose()
}
