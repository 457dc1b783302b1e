//! The outbox's tables on SQLite, for rooms that run embedded.
//!
//! SQLite has one writer at a time, and `BEGIN IMMEDIATE` makes a transaction that writer from its start, so
//! nothing here is ever busy or half fenced: each call is one transaction. Time is SQLite's own, which is the
//! machine's.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite, SqliteConnection, SqlitePool, Transaction};

use super::{
    AppBacklog, AppQuota, BLOCKED_DUE_MS, ClaimRequest, ClaimToken, ClaimedRoom, MAX_BACKLOG_ROOMS,
    MAX_OLDEST_ROOMS, Next, OutboxStore, Reported, RoomReport, cut_error, share_of_events,
};
use crate::outbox::event::{EventPosition, OutboxEvent};
use crate::store::StoreError;
use crate::types::{RoomKey, Seq};

#[cfg(test)]
mod tests;

const NOW: &str = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)";

/// The store.
pub struct SqliteOutboxStore {
    pool: SqlitePool,
}

impl SqliteOutboxStore {
    /// Uses a pool of its own, whose connections have a busy time-out.
    pub fn new(pool: SqlitePool) -> Self {
        Self { pool }
    }

    async fn begin(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(classify)
    }
}

#[async_trait]
impl OutboxStore for SqliteOutboxStore {
    async fn apps(&self) -> Result<Vec<Arc<str>>, StoreError> {
        let mut apps: Vec<Arc<str>> = Vec::new();
        let mut after = Vec::new();
        loop {
            let next: Option<Vec<u8>> =
                sqlx::query_scalar("SELECT MIN(app_code) FROM outbox_room WHERE app_code > ?")
                    .bind(&after)
                    .fetch_one(&self.pool)
                    .await
                    .map_err(classify)?;
            let Some(app) = next else { return Ok(apps) };
            apps.push(String::from_utf8_lossy(&app).into());
            after = app;
        }
    }

    async fn now_ms(&self) -> Result<i64, StoreError> {
        sqlx::query_scalar(NOW).fetch_one(&self.pool).await.map_err(classify)
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedRoom>, StoreError> {
        let mut tx = self.begin().await?;
        let now_ms = now(&mut tx).await?;
        let until_ms = now_ms + i64::try_from(request.lease.as_millis()).unwrap_or(i64::MAX - now_ms);
        let mut rooms = Vec::new();
        for quota in &request.quotas {
            take(&mut tx, request, quota, (now_ms, until_ms), &mut rooms).await?;
        }
        let taken = rooms.len();
        for claimed in &mut rooms {
            let solo = claimed.lost_claims >= request.solo_after;
            let limit = if solo { 1 } else { share_of_events(request.events, taken) };
            mark(&mut tx, request, until_ms, claimed, limit).await?;
        }
        tx.commit().await.map_err(classify)?;
        Ok(rooms)
    }

    async fn report(&self, token: ClaimToken, rooms: &[RoomReport]) -> Result<Reported, StoreError> {
        let mut tx = self.begin().await?;
        let (mut named, mut matched) = (0, 0);
        for report in rooms {
            named += report.settled() + report.retryable.len() as u64;
            matched += record(&mut tx, token, report).await?;
            give_back(&mut tx, token, report).await?;
        }
        tx.commit().await.map_err(classify)?;
        Ok(Reported { fenced_events: named.saturating_sub(matched), busy: Vec::new() })
    }

    async fn settle(&self, token: ClaimToken, room: &RoomReport) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        give_back(&mut tx, token, room).await?;
        tx.commit().await.map_err(classify)
    }

    async fn backlog(&self, apps: &[Arc<str>]) -> Result<Vec<AppBacklog>, StoreError> {
        let mut backlogs = Vec::with_capacity(apps.len());
        for app_code in apps {
            let row = sqlx::query(
                "SELECT (SELECT SUM(pending) FROM (SELECT pending FROM outbox_room \
                 WHERE app_code = ?1 AND due_ms IS NOT NULL LIMIT ?2)), \
                 CAST(unixepoch('subsec') * 1000 AS INTEGER) - (SELECT MIN((SELECT e.created_at_ms FROM room_outbox e \
                 WHERE e.app_code = r.app_code AND e.room_id = r.room_id AND e.state <> CAST('failed' AS BLOB) \
                 ORDER BY e.seq, e.event_index LIMIT 1)) FROM (SELECT app_code, room_id FROM outbox_room \
                 WHERE app_code = ?1 AND due_ms IS NOT NULL ORDER BY due_ms LIMIT ?3) r)",
            )
            .bind(app_code.as_bytes())
            .bind(MAX_BACKLOG_ROOMS)
            .bind(MAX_OLDEST_ROOMS)
            .fetch_one(&self.pool)
            .await
            .map_err(classify)?;
            let number = |index| {
                column::<Option<i64>>(&row, index).map(|n| u64::try_from(n.unwrap_or(0)).unwrap_or(0))
            };
            let (pending, oldest_age_ms) = (number(0)?, number(1)?);
            backlogs.push(AppBacklog { app_code: app_code.clone(), pending, oldest_age_ms });
        }
        Ok(backlogs)
    }

    async fn rescue(
        &self,
        after: Option<&RoomKey>,
        limit: u32,
    ) -> Result<(u64, Option<RoomKey>), StoreError> {
        let (mut mended, mut after) = (0, after.cloned());
        for _ in 0..limit {
            let (app, id) = after.as_ref().map_or(("", ""), |room| (room.app_code(), room.room_id()));
            let next = sqlx::query(
                "SELECT app_code, room_id FROM room_outbox WHERE (app_code, room_id) > (?, ?) \
                 ORDER BY app_code, room_id LIMIT 1",
            )
            .bind(app.as_bytes())
            .bind(id.as_bytes())
            .fetch_optional(&self.pool)
            .await
            .map_err(classify)?;
            let Some(row) = next else { return Ok((mended, None)) };
            let room = room(&row)?;
            mended += mend(&self.pool, &room).await?;
            after = Some(room);
        }
        Ok((mended, after))
    }

    async fn failed(&self, limit: u32) -> Result<Vec<(OutboxEvent, String)>, StoreError> {
        let rows = sqlx::query(
            "SELECT app_code, room_id, seq, event_index, event_type, envelope, attempts, last_error FROM room_outbox \
             WHERE state = CAST('failed' AS BLOB) ORDER BY app_code, room_id, seq, event_index LIMIT ?",
        )
        .bind(limit)
        .fetch_all(&self.pool)
        .await
        .map_err(classify)?;
        let with_error = |row| {
            let error: Option<Vec<u8>> = column(row, 7)?;
            Ok((event(row)?, String::from_utf8_lossy(&error.unwrap_or_default()).into_owned()))
        };
        rows.iter().map(with_error).collect()
    }

    async fn revive(&self, room: &RoomKey) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let revived = sqlx::query(
            "UPDATE room_outbox SET state = CAST('retryable' AS BLOB) \
             WHERE app_code = ? AND room_id = ? AND state = CAST('failed' AS BLOB)",
        )
        .bind(room.app_code().as_bytes())
        .bind(room.room_id().as_bytes())
        .execute(&mut *tx)
        .await
        .map_err(classify)?
        .rows_affected();
        if revived > 0 {
            sqlx::query(
                "UPDATE outbox_room SET pending = pending + ?3, due_ms = CASE WHEN due_ms IS NULL OR due_ms = ?4 \
                 THEN CAST(unixepoch('subsec') * 1000 AS INTEGER) ELSE due_ms END WHERE app_code = ?1 AND room_id = ?2",
            )
            .bind(room.app_code().as_bytes())
            .bind(room.room_id().as_bytes())
            .bind(i64::try_from(revived).unwrap_or(i64::MAX))
            .bind(BLOCKED_DUE_MS)
            .execute(&mut *tx)
            .await
            .map_err(classify)?;
        }
        tx.commit().await.map_err(classify)?;
        Ok(revived)
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

async fn now(connection: &mut SqliteConnection) -> Result<i64, StoreError> {
    sqlx::query_scalar(NOW).fetch_one(connection).await.map_err(classify)
}

/// Takes due rooms of one tenant. Index: `outbox_room_due`.
async fn take(
    connection: &mut SqliteConnection,
    request: &ClaimRequest,
    quota: &AppQuota,
    (now_ms, until_ms): (i64, i64),
    rooms: &mut Vec<ClaimedRoom>,
) -> Result<(), StoreError> {
    let rows = sqlx::query(
        "UPDATE outbox_room SET lost_claims = CASE WHEN lease_token IS NULL THEN 0 ELSE lost_claims + 1 END, \
         attempts = attempts + 1, due_ms = ?4, lease_until_ms = ?4, worker_id = ?5, lease_token = ?6 \
         WHERE (app_code, room_id) IN (SELECT app_code, room_id FROM outbox_room \
         WHERE app_code = ?1 AND due_ms <= ?2 ORDER BY due_ms LIMIT ?3) \
         RETURNING app_code, room_id, attempts, lost_claims",
    )
    .bind(quota.app_code.as_bytes())
    .bind(request.due_by_ms.map_or(now_ms, |due_by_ms| due_by_ms.min(now_ms)))
    .bind(quota.rooms)
    .bind(until_ms)
    .bind(request.worker_id.as_bytes())
    .bind(&request.token.0[..])
    .fetch_all(connection)
    .await
    .map_err(classify)?;
    for row in &rows {
        match room(row) {
            Ok(room) => rooms.push(ClaimedRoom {
                room,
                attempts: column(row, 2)?,
                lost_claims: column(row, 3)?,
                events: Vec::new(),
                more: false,
            }),
            Err(error) => tracing::error!(%error, "a room of the outbox cannot be read and is passed over"),
        }
    }
    Ok(())
}

/// Reads the first undelivered events of a room and marks them `delivering`. Index: the primary key.
async fn mark(
    connection: &mut SqliteConnection,
    request: &ClaimRequest,
    until_ms: i64,
    claimed: &mut ClaimedRoom,
    limit: u32,
) -> Result<(), StoreError> {
    let rows = sqlx::query(
        "SELECT app_code, room_id, seq, event_index, event_type, envelope, attempts FROM room_outbox \
         WHERE app_code = ? AND room_id = ? AND state <> CAST('failed' AS BLOB) ORDER BY seq, event_index LIMIT ?",
    )
    .bind(claimed.room.app_code().as_bytes())
    .bind(claimed.room.room_id().as_bytes())
    .bind(limit)
    .fetch_all(&mut *connection)
    .await
    .map_err(classify)?;
    claimed.events = rows.iter().map(event).collect::<Result<_, _>>()?;
    claimed.more = claimed.events.len() >= limit as usize;
    let Some(last) = claimed.events.last().map(|event| event.position) else { return Ok(()) };
    sqlx::query(
        "UPDATE room_outbox SET state = CAST('delivering' AS BLOB), worker_id = ?5, lock_until_ms = ?6, \
         claim_token = ?7, attempts = attempts + 1 WHERE app_code = ?1 AND room_id = ?2 \
         AND (seq, event_index) <= (?3, ?4) AND state <> CAST('failed' AS BLOB)",
    )
    .bind(claimed.room.app_code().as_bytes())
    .bind(claimed.room.room_id().as_bytes())
    .bind(seq_number(last.seq))
    .bind(last.index)
    .bind(request.worker_id.as_bytes())
    .bind(until_ms)
    .bind(&request.token.0[..])
    .execute(connection)
    .await
    .map_err(classify)?;
    Ok(())
}

/// Records what became of the events; gives how many of them were still the claim's.
async fn record(
    connection: &mut SqliteConnection,
    token: ClaimToken,
    report: &RoomReport,
) -> Result<u64, StoreError> {
    const DELETE: &str = "DELETE FROM room_outbox \
         WHERE app_code = ?1 AND room_id = ?2 AND seq = ?3 AND event_index = ?4 AND claim_token = ?5";
    const CHANGE: &str = "UPDATE room_outbox SET state = CAST(?6 AS BLOB), last_error = COALESCE(?7, last_error), \
         worker_id = NULL, lock_until_ms = NULL, claim_token = NULL \
         WHERE app_code = ?1 AND room_id = ?2 AND seq = ?3 AND event_index = ?4 AND claim_token = ?5";
    let mut matched = 0;
    for position in &report.delivered {
        matched += named(DELETE, token, &report.room, *position)
            .execute(&mut *connection)
            .await
            .map_err(classify)?
            .rows_affected();
    }
    let failed = report.failed.iter().map(|(position, error)| (*position, "failed", Some(error)));
    let first_error = |at| if at == 0 { report.error.as_ref() } else { None };
    let retryable =
        report.retryable.iter().enumerate().map(|(at, position)| (*position, "retryable", first_error(at)));
    for (position, state, error) in failed.chain(retryable) {
        matched += named(CHANGE, token, &report.room, position)
            .bind(state.as_bytes())
            .bind(error.map(|error| cut_error(error).as_bytes()))
            .execute(&mut *connection)
            .await
            .map_err(classify)?
            .rows_affected();
    }
    Ok(matched)
}

type Query<'q> = sqlx::query::Query<'q, Sqlite, sqlx::sqlite::SqliteArguments>;

fn named<'q>(sql: &'static str, token: ClaimToken, room: &'q RoomKey, position: EventPosition) -> Query<'q> {
    sqlx::query(sql)
        .bind(room.app_code().as_bytes())
        .bind(room.room_id().as_bytes())
        .bind(seq_number(position.seq))
        .bind(position.index)
        .bind(token.0.to_vec())
}

/// Gives a room back, if the claim still stands.
async fn give_back(
    connection: &mut SqliteConnection,
    token: ClaimToken,
    report: &RoomReport,
) -> Result<(), StoreError> {
    let (app, id) = (report.room.app_code().as_bytes(), report.room.room_id().as_bytes());
    let now_ms = now(connection).await?;
    if report.recount {
        sqlx::query(
            "UPDATE outbox_room SET pending = (SELECT COUNT(*) FROM room_outbox WHERE app_code = ?1 AND room_id = ?2 \
             AND state <> CAST('failed' AS BLOB)) WHERE app_code = ?1 AND room_id = ?2 AND lease_token = ?3",
        )
        .bind(app)
        .bind(id)
        .bind(&token.0[..])
        .execute(&mut *connection)
        .await
        .map_err(classify)?;
    }
    let settled = i64::try_from(report.settled()).unwrap_or(i64::MAX);
    let pause_ms = |pause: std::time::Duration| i64::try_from(pause.as_millis()).unwrap_or(i64::MAX);
    let due_ms = match report.next {
        Next::Now | Next::Untried => now_ms,
        Next::Due(due_ms) => due_ms,
        Next::After(pause) => now_ms.saturating_add(pause_ms(pause)),
        Next::Blocked => BLOCKED_DUE_MS,
    };
    // 0 resets, -1 takes one attempt back, NULL keeps.
    let attempts = match report.next {
        Next::Untried => Some(-1),
        _ if settled > 0 => Some(0),
        Next::Now | Next::Due(_) | Next::After(_) | Next::Blocked => None,
    };
    sqlx::query(
        "UPDATE outbox_room SET due_ms = CASE WHEN pending > ?4 OR ?6 THEN ?5 ELSE NULL END, \
         pending = MAX(pending - ?4, 0), \
         attempts = CASE ?7 WHEN 0 THEN 0 WHEN -1 THEN MAX(attempts - 1, 0) ELSE attempts END, \
         lease_token = NULL, lease_until_ms = NULL, worker_id = NULL \
         WHERE app_code = ?1 AND room_id = ?2 AND lease_token = ?3",
    )
    .bind(app)
    .bind(id)
    .bind(&token.0[..])
    .bind(settled)
    .bind(due_ms)
    .bind(report.next == Next::Blocked)
    .bind(attempts)
    .execute(connection)
    .await
    .map_err(classify)?;
    Ok(())
}

/// Makes a room claimable that has undelivered events and is not.
async fn mend(pool: &SqlitePool, room: &RoomKey) -> Result<u64, StoreError> {
    let mended = sqlx::query(
        "INSERT INTO outbox_room (app_code, room_id, due_ms, pending) \
         SELECT ?1, ?2, CAST(unixepoch('subsec') * 1000 AS INTEGER), COUNT(*) FROM room_outbox \
         WHERE app_code = ?1 AND room_id = ?2 AND state <> CAST('failed' AS BLOB) HAVING COUNT(*) > 0 \
         ON CONFLICT (app_code, room_id) DO UPDATE SET due_ms = excluded.due_ms, pending = excluded.pending \
         WHERE outbox_room.due_ms IS NULL",
    )
    .bind(room.app_code().as_bytes())
    .bind(room.room_id().as_bytes())
    .execute(pool)
    .await
    .map_err(classify)?;
    Ok(mended.rows_affected())
}

fn seq_number(seq: Seq) -> i64 {
    i64::try_from(seq.0).unwrap_or(i64::MAX)
}

fn column<'r, T>(row: &'r SqliteRow, index: usize) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite>,
{
    row.try_get(index).map_err(|error| corrupt("column of the outbox", &error))
}

fn corrupt(what: &'static str, problem: &dyn std::fmt::Display) -> StoreError {
    StoreError::Corrupt { what, problem: problem.to_string() }
}

fn text_column(row: &SqliteRow, index: usize) -> Result<String, StoreError> {
    String::from_utf8(column(row, index)?).map_err(|error| corrupt("text of the outbox", &error))
}

fn room(row: &SqliteRow) -> Result<RoomKey, StoreError> {
    RoomKey::new(&text_column(row, 0)?, &text_column(row, 1)?)
        .map_err(|error| corrupt("room of the outbox", &error))
}

fn event(row: &SqliteRow) -> Result<OutboxEvent, StoreError> {
    let seq: i64 = column(row, 2)?;
    let seq = u64::try_from(seq).map_err(|error| corrupt("seq of the outbox", &error))?;
    let event_type: Vec<u8> = column(row, 4)?;
    let envelope: Vec<u8> = column(row, 5)?;
    Ok(OutboxEvent {
        room: room(row)?,
        position: EventPosition { seq: Seq(seq), index: column(row, 3)? },
        event_type: String::from_utf8_lossy(&event_type).into_owned(),
        envelope: Bytes::from(envelope),
        attempts: column::<u32>(row, 6)?.saturating_add(1),
    })
}

fn classify(error: sqlx::Error) -> StoreError {
    const BUSY: &str = "5";
    match &error {
        sqlx::Error::Database(database) if database.code().as_deref() == Some(BUSY) => StoreError::Locked,
        sqlx::Error::Database(_) => StoreError::Statement(error),
        _ => StoreError::Unavailable(error),
    }
}
