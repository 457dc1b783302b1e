//! Releases and snapshots, over the pool.

use sqlx::Row;
use sqlx::mysql::MySqlPool;

use super::super::{Snapshot, StoreError};
use super::dialect::Dialect;
use super::failure::{Failure, at_commit, of_call};
use crate::types::{Claim, NodeRef, RoomKey};

/// Rooms that one statement lets go of.
const RELEASE_CHUNK: u32 = 1_000;

/// By primary key. Waits for the commits of the claim that are under way.
pub(super) async fn release(
    pool: &MySqlPool,
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
    .bind(claim.epoch.0)
    .bind(&claim.token.0[..])
    .execute(pool)
    .await
    .map_err(of_call)?;
    Ok(done.rows_affected() == 1)
}

/// By `room_owner_by_node`, in chunks with a commit each.
pub(super) async fn release_former_incarnations(
    pool: &MySqlPool,
    node: &NodeRef,
    now_ms: i64,
) -> Result<u64, StoreError> {
    let mut released = 0;
    loop {
        let done = sqlx::query(
            "UPDATE room_owner SET released_at_ms = ? WHERE owner_node_id = ? AND released_at_ms IS NULL \
             AND incarnation <> ? LIMIT ?",
        )
        .bind(now_ms)
        .bind(node.node_id.as_str().as_bytes())
        .bind(&node.incarnation.0[..])
        .bind(RELEASE_CHUNK)
        .execute(pool)
        .await
        .map_err(of_call)?;
        released += done.rows_affected();
        if done.rows_affected() < u64::from(RELEASE_CHUNK) {
            return Ok(released);
        }
    }
}

/// Writes a snapshot behind the fence; an older one never replaces a newer.
pub(super) async fn snapshot(
    pool: &MySqlPool,
    dialect: Dialect,
    room: &RoomKey,
    claim: Claim,
    snapshot: &Snapshot,
) -> Result<bool, StoreError> {
    let mut transaction = pool.begin().await.map_err(of_call)?;
    let fence = match dialect {
        Dialect::MariaDb => {
            "SELECT epoch FROM room_owner WHERE app_code = ? AND room_id = ? \
             AND epoch = ? AND lease_token = ? AND released_at_ms IS NULL LOCK IN SHARE MODE"
        }
        Dialect::MySql => {
            "SELECT epoch FROM room_owner WHERE app_code = ? AND room_id = ? \
             AND epoch = ? AND lease_token = ? AND released_at_ms IS NULL FOR SHARE"
        }
    };
    let owner = sqlx::query(fence)
        .bind(room.app_code().as_bytes())
        .bind(room.room_id().as_bytes())
        .bind(claim.epoch.0)
        .bind(&claim.token.0[..])
        .fetch_optional(&mut *transaction)
        .await
        .map_err(of_call)?;
    if owner.is_none_or(|row| row.is_empty()) {
        transaction.rollback().await.map_err(of_call)?;
        return Ok(false);
    }
    // Assignments run from left to right: `seq` comes last, since the others compare with the old one.
    sqlx::query(
        "INSERT INTO room_snapshot \
         (app_code, room_id, seq, epoch, format, state_hash, state, written_at_ms) \
         VALUES (?, ?, ?, ?, ?, ?, ?, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)) ON DUPLICATE KEY UPDATE \
         epoch = IF(VALUES(seq) > seq, VALUES(epoch), epoch), \
         format = IF(VALUES(seq) > seq, VALUES(format), format), \
         state_hash = IF(VALUES(seq) > seq, VALUES(state_hash), state_hash), \
         state = IF(VALUES(seq) > seq, VALUES(state), state), \
         written_at_ms = IF(VALUES(seq) > seq, VALUES(written_at_ms), written_at_ms), \
         seq = GREATEST(seq, VALUES(seq))",
    )
    .bind(room.app_code().as_bytes())
    .bind(room.room_id().as_bytes())
    .bind(snapshot.seq.0)
    .bind(snapshot.epoch.0)
    .bind(snapshot.format)
    .bind(&snapshot.state_hash[..])
    .bind(&snapshot.state[..])
    .execute(&mut *transaction)
    .await
    .map_err(of_call)?;
    transaction.commit().await.map_err(|e| Failure::into_store_error(at_commit(e)))?;
    Ok(true)
}
