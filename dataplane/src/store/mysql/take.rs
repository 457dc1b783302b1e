//! Takes: a compare-and-set on one owner row, and what stands in its way.
//!
//! A take is one statement that waits in the queue of the row's lock, so that commits of the former owner which
//! come later do not overtake it. It waits for transactions that hold the fence, lost ones included: after it,
//! nothing of an older epoch can commit. If it waits for long, the transaction in its way is looked up, checked
//! to be ours, and ended.

use std::sync::Mutex;
use std::time::Duration;

use sqlx::mysql::{MySqlArguments, MySqlPool};
use sqlx::{AssertSqlSafe, SqlStr};
use sqlx::{Executor, Row};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::super::connect::StoreCounters;
use super::super::{OwnerRow, StoreError, TAKE_BOUND_MS, Take, TakeExpectation, TakeOutcome};
use super::failure::{Failure, is_duplicate};
use super::line::{Connector, Line, timed_out};
use super::statements::bind;
use super::transact::{bind_room, raw_owner};
use crate::types::{Claim, Epoch};

/// How long a take waits before it looks for what blocks it.
const LOOK_AFTER: Duration = Duration::from_millis(300);
/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A blocker that still runs statements is ended once the take has waited this long.
const END_RUNNING_AFTER: Duration = Duration::from_millis(1_000);
/// How often a take is sent again after its connection was lost.
const LOST_TRIES: u32 = 2;

const INSERT: SqlStr = SqlStr::from_static(
    "INSERT INTO room_owner (app_code, room_id, epoch, lease_token, owner_node_id, incarnation, address, \
     acquired_at_ms, released_at_ms) VALUES (?, ?, 1, ?, ?, ?, ?, ?, NULL)",
);
const UPDATE: SqlStr = SqlStr::from_static(
    "UPDATE room_owner SET lease_token = ?, owner_node_id = ?, incarnation = ?, address = ?, \
     acquired_at_ms = ?, released_at_ms = NULL, epoch = epoch + 1 \
     WHERE app_code = ? AND room_id = ? AND epoch = ? AND lease_token = ?",
);
const OWNER: SqlStr = SqlStr::from_static(
    "SELECT epoch, lease_token, owner_node_id, incarnation, address, released_at_ms FROM room_owner \
     WHERE app_code = ? AND room_id = ?",
);

/// The connections that takes run on.
pub(super) struct TakeLane {
    permits: Semaphore,
    idle: Mutex<Vec<Line>>,
    acquire_timeout: Duration,
}

impl TakeLane {
    pub(super) fn new(max_takes: u32, acquire_timeout: Duration) -> Self {
        Self { permits: Semaphore::new(max_takes as usize), idle: Mutex::new(Vec::new()), acquire_timeout }
    }

    /// Ends all idle connections, and lets no new take begin.
    pub(super) fn close(&self) {
        self.permits.close();
        self.idle_lines().clear();
    }

    fn idle_lines(&self) -> std::sync::MutexGuard<'_, Vec<Line>> {
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Takes a room, in [`TAKE_BOUND_MS`] or not at all.
    pub(super) async fn take(
        &self,
        connector: &Connector,
        pool: &MySqlPool,
        take: &Take,
    ) -> Result<TakeOutcome, StoreError> {
        let permit = match tokio::time::timeout(self.acquire_timeout, self.permits.acquire()).await {
            Ok(permit) => permit.map_err(|_| StoreError::Unavailable(sqlx::Error::PoolClosed))?,
            Err(_) => return Err(StoreError::Unavailable(timed_out("waiting for a connection"))),
        };
        let started = Instant::now();
        let deadline = started + Duration::from_millis(TAKE_BOUND_MS);
        let mut sent = false;
        let mut lost = 0;
        loop {
            let mut line = match self.idle_line() {
                Some(line) => line,
                None => connector.line().await.map_err(|f| outcome_of_loss(f, sent))?,
            };
            let done = compare_and_set(&mut line, pool, connector, take, started).await;
            sent = true;
            match done {
                Ok(outcome) => {
                    self.idle_lines().push(line);
                    drop(permit);
                    return Ok(outcome);
                }
                Err(Failure::Contended) if Instant::now() < deadline => self.idle_lines().push(line),
                // Sent again with the same token, the take finds what became of the first.
                Err(Failure::Lost(_)) if lost < LOST_TRIES && Instant::now() < deadline => lost += 1,
                Err(failure) => return Err(outcome_of_loss(failure, sent)),
            }
        }
    }

    fn idle_line(&self) -> Option<Line> {
        self.idle_lines().pop()
    }
}

/// A take whose connection was lost after it was sent may have happened.
fn outcome_of_loss(failure: Failure, sent: bool) -> StoreError {
    match failure {
        Failure::Lost(error) if sent => StoreError::Unknown(error),
        other => other.into_store_error(),
    }
}

async fn compare_and_set(
    line: &mut Line,
    pool: &MySqlPool,
    connector: &Connector,
    take: &Take,
    started: Instant,
) -> Result<TakeOutcome, Failure> {
    let (sql, arguments) = statement(take);
    let id = line.id;
    let done = tokio::select! {
        biased;
        done = line.execute(sql, arguments) => done,
        never = end_blockers(pool, connector, id, started) => match never {},
    };
    let claim = claim_of(take);
    let changed = match done {
        Ok(rows) => rows == 1,
        Err(e) if take.expect == TakeExpectation::Absent && is_duplicate(&e) => false,
        Err(e) => return Err(e.into()),
    };
    if changed {
        return Ok(TakeOutcome::Taken(claim));
    }
    let owner = read_owner(line, take).await?;
    // The token is this take's alone: an earlier try of it, whose connection was lost, did it.
    if owner.as_ref().is_some_and(|o| o.claim == claim && o.released_at_ms.is_none()) {
        return Ok(TakeOutcome::Taken(claim));
    }
    Ok(TakeOutcome::Lost(owner))
}

fn claim_of(take: &Take) -> Claim {
    let epoch = match take.expect {
        TakeExpectation::Absent => Epoch(1),
        TakeExpectation::Exactly(claim) => claim.epoch.next(),
    };
    Claim { epoch, token: take.token }
}

fn statement(take: &Take) -> (SqlStr, MySqlArguments) {
    let mut arguments = MySqlArguments::default();
    if take.expect == TakeExpectation::Absent {
        bind_room(&mut arguments, &take.room);
    }
    bind(&mut arguments, &take.token.0[..]);
    bind(&mut arguments, take.node.node_id.as_str().as_bytes());
    bind(&mut arguments, &take.node.incarnation.0[..]);
    bind(&mut arguments, take.node.address.as_bytes());
    bind(&mut arguments, take.now_ms);
    match take.expect {
        TakeExpectation::Absent => (INSERT, arguments),
        TakeExpectation::Exactly(claim) => {
            bind_room(&mut arguments, &take.room);
            bind(&mut arguments, claim.epoch.0);
            bind(&mut arguments, &claim.token.0[..]);
            (UPDATE, arguments)
        }
    }
}

async fn read_owner(line: &mut Line, take: &Take) -> Result<Option<OwnerRow>, Failure> {
    let mut arguments = MySqlArguments::default();
    bind_room(&mut arguments, &take.room);
    let rows = line.fetch(OWNER, arguments).await?;
    rows.first().map(|row| raw_owner(row, 0)?.decode().map_err(Failure::Fault)).transpose()
}

/// Never ends; is dropped when the take has got through.
enum Never {}

/// Watches for what connection `waiter` waits for, and ends it: at the second look if it idles in its
/// transaction, and if it still runs statements once the take, which began at `started`, has waited for a second.
async fn end_blockers(pool: &MySqlPool, connector: &Connector, waiter: u64, started: Instant) -> Never {
    let mut idle_before: Vec<u64> = Vec::new();
    tokio::time::sleep_until(started + LOOK_AFTER).await;
    loop {
        match blockers(pool, connector, waiter).await {
            Ok(found) => {
                for (id, idle) in &found {
                    let stalls = *idle && idle_before.contains(id);
                    if stalls || started.elapsed() >= END_RUNNING_AFTER {
                        end(pool, &connector.options.counters, *id, *idle).await;
                    }
                }
                idle_before = found.into_iter().filter(|(_, idle)| *idle).map(|(id, _)| id).collect();
            }
            Err(error) => {
                tracing::warn!(
                    error = %error, "cannot look up what blocks a take; does the database user have PROCESS?"
                );
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The connections of our own user that block `waiter`, and whether each is idle.
async fn blockers(
    pool: &MySqlPool,
    connector: &Connector,
    waiter: u64,
) -> Result<Vec<(u64, bool)>, sqlx::Error> {
    let rows = sqlx::query(connector.dialect.blockers()).bind(waiter).fetch_all(pool).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

async fn end(pool: &MySqlPool, counters: &StoreCounters, id: u64, idle: bool) {
    // Told before it is done: the take goes on, and nobody waits for this here, as soon as the lock is free.
    counters.count_ended_blocker();
    tracing::warn!(connection = id, idle, "ending a transaction that blocks a take");
    // KILL takes no parameter; a number needs no quoting.
    if let Err(error) = pool.execute(AssertSqlSafe(format!("KILL CONNECTION {id}"))).await {
        tracing::warn!(connection = id, error = %error, "cannot end what blocks a take");
    }
}
