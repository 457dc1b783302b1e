//! Who waits for whom: nobody for a worker, and a worker for no producer but its room's own.

use std::collections::BTreeMap;
use std::time::Duration;

use dataplane::outbox::store::{AppQuota, ClaimRequest, ClaimToken, Next, RoomReport};
use e2e::servers::Redis;
use sqlx::Row;
use sqlx::mysql::MySqlPool;

use crate::bench::{Db, commit, config, insert, left, redis_sink, run, store, stream, until};

/// S39, and design point 1: a worker that stops dead holds no lock.
#[tokio::test]
async fn a_paused_worker_blocks_no_commit_and_no_other_worker() {
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    for room in ["a", "b"] {
        commit(&pool, "app", room, 1, 1).await;
    }
    // Claims one room, and stops.
    let paused = store(&db);
    let request = ClaimRequest {
        worker_id: "paused".into(),
        token: ClaimToken([9; 16]),
        lease: Duration::from_secs(3_600),
        quotas: vec![AppQuota { app_code: "app".into(), rooms: 1 }],
        due_by_ms: None,
        events: 10,
        solo_after: 3,
    };
    let held = paused.claim(&request).await.unwrap();
    assert_eq!(held.len(), 1);
    for room in ["a", "b", "c"] {
        commit(&pool, "app", room, 2, 1).await;
    }
    let worker = run(store(&db), redis_sink(&redis), config("other"));
    until("the other rooms are out", || async { stream(&redis, "app").await.len() == 3 }).await;
    worker.stop().await;
    // The paused one goes on, and its room is due again with what was committed meanwhile.
    let report = RoomReport {
        room: held[0].room.clone(),
        delivered: held[0].events.iter().map(|event| event.position).collect(),
        failed: None,
        retryable: Vec::new(),
        error: None,
        next: Next::Now,
        recount: false,
    };
    assert_eq!(paused.report(request.token, &[report]).await.unwrap().fenced_events, 0);
    let mut rest = paused.claim(&ClaimRequest { token: ClaimToken([8; 16]), ..request }).await.unwrap();
    assert_eq!(rest.remove(0).events.len(), 1);
}

/// A stalled commit holds up its own room and nothing else, also when it sits right behind delivered rows.
#[tokio::test]
async fn a_stalled_commit_holds_up_no_other_room() {
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    for room in ["a", "b", "c"] {
        commit(&pool, "app", room, 1, 2).await;
    }
    let mut stalled = pool.begin().await.unwrap();
    // Event rows first, the room's row not yet: the report must not wait at the uncommitted neighbour.
    crate::bench::insert_event(&mut stalled, "app", "b", 2, 0, &crate::bench::envelope("app", "b", 2, 0))
        .await;
    let worker = run(store(&db), redis_sink(&redis), config("a"));
    until("all three rooms are recorded", || async { left(&pool).await == 0 }).await;
    // Now with the room's row locked as well.
    insert(&mut stalled, "app", "b", 3, 1).await;
    for room in ["a", "c"] {
        commit(&pool, "app", room, 2, 1).await;
    }
    until("the others are recorded", || async { left(&pool).await == 0 }).await;
    sqlx::query("UPDATE outbox_room SET pending = pending + 1 WHERE room_id = 'b'")
        .execute(&mut *stalled)
        .await
        .unwrap();
    stalled.commit().await.unwrap();
    until("the stalled room is out", || async { stream(&redis, "app").await.len() == 10 }).await;
    until("and recorded", || async { left(&pool).await == 0 }).await;
    worker.stop().await;
}

/// A room whose commit begins while it is being delivered is given back as soon as the commit ends.
#[tokio::test]
async fn a_room_that_is_busy_at_the_report_is_given_back_afterwards() {
    let db = Db::start().await;
    let pool = db.pool().await;
    for room in ["a", "b"] {
        commit(&pool, "app", room, 1, 1).await;
    }
    let outbox = store(&db);
    let request = ClaimRequest {
        worker_id: "w".into(),
        token: ClaimToken([1; 16]),
        lease: Duration::from_secs(3_600),
        quotas: vec![AppQuota { app_code: "app".into(), rooms: 10 }],
        due_by_ms: None,
        events: 10,
        solo_after: 3,
    };
    let held = outbox.claim(&request).await.unwrap();
    let reports: Vec<RoomReport> = held
        .iter()
        .map(|room| RoomReport {
            room: room.room.clone(),
            delivered: room.events.iter().map(|event| event.position).collect(),
            failed: None,
            retryable: Vec::new(),
            error: None,
            next: Next::Now,
            recount: false,
        })
        .collect();
    let mut open = pool.begin().await.unwrap();
    insert(&mut open, "app", "b", 2, 1).await;
    let reported = outbox.report(request.token, &reports).await.unwrap();
    assert_eq!(reported.busy.iter().map(|room| room.room_id()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(reported.fenced_events, 0);
    let settle = outbox.settle(request.token, &reports[1]);
    let (settled, ()) = tokio::join!(settle, async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        open.commit().await.unwrap();
    });
    settled.unwrap();
    let again = outbox.claim(&ClaimRequest { token: ClaimToken([2; 16]), ..request }).await.unwrap();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].events[0].id(), "app/b/2/0");
}

/// S34, S35, S38, S40: no statement of the worker sorts, and none uses a temporary table of its own.
#[tokio::test]
async fn no_statement_of_a_worker_sorts_or_scans() {
    let (mut db, redis) = (Db::private().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    let mut tx = pool.begin().await.unwrap();
    for room in 0..400 {
        insert(&mut tx, "app", &format!("room{room}"), 1, 3).await;
    }
    tx.commit().await.unwrap();
    sqlx::raw_sql("ANALYZE TABLE outbox_room, room_outbox").execute(&pool).await.unwrap();
    let mut root = db.server().root().await.unwrap();
    sqlx::raw_sql("SET GLOBAL log_output = 'TABLE'; SET GLOBAL general_log = 1")
        .execute(&mut root)
        .await
        .unwrap();
    let mut eager = config("a");
    (eager.rooms_per_claim, eager.sample_every) = (16, Duration::from_millis(100));
    let worker = run(store(&db), redis_sink(&redis), eager);
    until("all is out", || async { left(&pool).await == 0 }).await;
    worker.stop().await;
    sqlx::raw_sql("SET GLOBAL general_log = 0").execute(&mut root).await.unwrap();
    // The plans are asked for with the tables full again.
    let mut tx = pool.begin().await.unwrap();
    for room in 0..400 {
        insert(&mut tx, "app", &format!("room{room}"), 1, 3).await;
    }
    tx.commit().await.unwrap();
    let texts: Vec<Vec<u8>> =
        sqlx::query_scalar("SELECT argument FROM mysql.general_log WHERE argument LIKE '%X''%'")
            .fetch_all(&mut root)
            .await
            .unwrap();
    let mut statements = BTreeMap::new();
    for text in &texts {
        for statement in std::str::from_utf8(text).unwrap().split(";\n") {
            let planned = ["SELECT", "(SELECT", "UPDATE", "DELETE", "INSERT"];
            if planned.iter().any(|verb| statement.starts_with(verb)) {
                statements.insert(&statement[..statement.len().min(50)], statement);
            }
        }
    }
    assert!(statements.len() >= 9, "the log shows only {:#?}", statements.keys());
    for statement in statements.values() {
        assert_plan(&pool, statement).await;
    }
}

async fn assert_plan(pool: &MySqlPool, statement: &str) {
    let mut connection = pool.acquire().await.unwrap();
    sqlx::raw_sql(
        "SET @now = CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED); SET @until = @now + 1000, @left = 1",
    )
    .execute(&mut *connection)
    .await
    .unwrap();
    let explain = format!("EXPLAIN {statement}");
    let rows = sqlx::raw_sql(sqlx::AssertSqlSafe(explain)).fetch_all(&mut *connection).await.unwrap();
    for row in rows {
        if row.len() == 1 {
            continue; // no plan: a transaction's frame
        }
        let text = |name: &str| row.try_get::<Option<String>, _>(name).unwrap().unwrap_or_default();
        let (table, kind, extra) = (text("table"), text("type"), text("Extra"));
        assert!(!extra.contains("filesort") && !extra.contains("temporary"), "{statement}\n{extra}");
        assert!(kind != "ALL" || table.starts_with("<derived"), "{statement}\nreads all of {table}");
        assert!(!kind.starts_with("index"), "{statement}\nwalks an index: {kind} {table}");
    }
}
