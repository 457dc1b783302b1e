//! Takes, releases and snapshots. Each is one transaction that locks the file from its beginning.

use sqlx::SqliteConnection;

use super::super::rows::owns;
use super::super::{Snapshot, StoreError, Take, TakeExpectation, TakeOutcome};
use super::commit::begin;
use super::failure::{at_commit, of_call};
use super::read;
use crate::types::{Claim, Epoch, NodeRef, RoomKey};

pub(super) async fn take(conn: &mut SqliteConnection, take: &Take) -> Result<TakeOutcome, StoreError> {
    let mut transaction = begin(conn).await?;
    let owner = read::owner(&mut transaction, &take.room).await?;
    let (sql, epoch) = match (take.expect, &owner) {
        (TakeExpectation::Absent, None) => (
            "INSERT INTO room_owner (epoch, lease_token, owner_node_id, incarnation, address, \
             acquired_at_ms, app_code, room_id, released_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, NULL)",
            Epoch(1),
        ),
        (TakeExpectation::Exactly(claim), Some(row)) if row.claim == claim => (
            "UPDATE room_owner SET epoch = ?1, lease_token = ?2, owner_node_id = ?3, incarnation = ?4, \
             address = ?5, acquired_at_ms = ?6, released_at_ms = NULL WHERE app_code = ?7 AND room_id = ?8",
            claim.epoch.next(),
        ),
        _ => {
            transaction.rollback().await.map_err(of_call)?;
            return Ok(TakeOutcome::Lost(owner));
        }
    };
    sqlx::query(sql)
        .bind(epoch.0.cast_signed())
        .bind(&take.token.0[..])
        .bind(take.node.node_id.as_str().as_bytes())
        .bind(&take.node.incarnation.0[..])
        .bind(take.node.address.as_bytes())
        .bind(take.now_ms)
        .bind(take.room.app_code().as_bytes())
        .bind(take.room.room_id().as_bytes())
        .execute(&mut *transaction)
        .await
        .map_err(of_call)?;
    transaction.commit().await.map_err(at_commit)?;
    Ok(TakeOutcome::Taken(Claim { epoch, token: take.token }))
}

/// By primary key.
pub(super) async fn release(
    conn: &mut SqliteConnection,
    room: &RoomKey,
    claim: Claim,
    now_ms: i64,
) -> Result<bool, StoreError> {
    let done = sqlx::query(
        "UPDATE room_owner SET released_at_ms = ? WHERE app_code = ? AND room_id = ? \
         AND epoch = ? AND lease_token = ? AND released_at_ms IS NULL",
    )
    .bind(now_ms)
    .bind(room.app_code().as_bytes())
    .bind(room.room_id().as_bytes())
    .bind(claim.epoch.0.cast_signed())
    .bind(&claim.token.0[..])
    .execute(conn)
    .await
    .map_err(of_call)?;
    Ok(done.rows_affected() == 1)
}

/// By `room_owner_by_node`.
pub(super) async fn release_former_incarnations(
    conn: &mut SqliteConnection,
    node: &NodeRef,
    now_ms: i64,
) -> Result<u64, StoreError> {
    let done = sqlx::query(
        "UPDATE room_owner SET released_at_ms = ? \
         WHERE owner_node_id = ? AND released_at_ms IS NULL AND incarnation <> ?",
    )
    .bind(now_ms)
    .bind(node.node_id.as_str().as_bytes())
    .bind(&node.incarnation.0[..])
    .execute(conn)
    .await
    .map_err(of_call)?;
    Ok(done.rows_affected())
}

/// Writes a snapshot behind the fence; an older one never replaces a newer.
pub(super) async fn snapshot(
    conn: &mut SqliteConnection,
    room: &RoomKey,
    claim: Claim,
    snapshot: &Snapshot,
) -> Result<bool, StoreError> {
    let mut transaction = begin(conn).await?;
    if !read::owner(&mut transaction, room).await?.is_some_and(|owner| owns(&owner, claim)) {
        transaction.rollback().await.map_err(of_call)?;
        return Ok(false);
    }
    sqlx::query(
        "INSERT INTO room_snapshot (app_code, room_id, seq, epoch, format, state_hash, state, written_at_ms) \
         VALUES (?, ?, ?, ?, ?, ?, ?, CAST(unixepoch('subsec') * 1000 AS INTEGER)) \
         ON CONFLICT DO UPDATE SET seq = excluded.seq, epoch = excluded.epoch, format = excluded.format, \
         state_hash = excluded.state_hash, state = excluded.state, written_at_ms = excluded.written_at_ms \
         WHERE excluded.seq > room_snapshot.seq",
    )
    .bind(room.app_code().as_bytes())
    .bind(room.room_id().as_bytes())
    .bind(snapshot.seq.0.cast_signed())
    .bind(snapshot.epoch.0.cast_signed())
    .bind(snapshot.format)
    .bind(&snapshot.state_hash[..])
    .bind(&snapshot.state[..])
    .execute(&mut *transaction)
    .await
    .map_err(of_call)?;
    transaction.commit().await.map_err(at_commit)?;
    Ok(true)
}
