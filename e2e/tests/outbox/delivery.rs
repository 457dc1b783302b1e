//! What goes out, how often and in which order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dataplane::logic::EncodedEvent;
use dataplane::outbox::sink::Stop;
use dataplane::outbox::sink::memory::MemorySink;
use dataplane::store::connect::{StoreOptions, open};
use dataplane::store::{CommitOutcome, NewLogRow, RoomCommit, Take, TakeExpectation, TakeOutcome};
use dataplane::types::{Claim, CommandId, Incarnation, LeaseToken, NodeId, NodeRef, RoomKey, Seq};
use e2e::servers::Redis;
use secrecy::SecretString;

use crate::bench::{
    Db, assert_first_arrivals_in_order, commit, config, count, insert, insert_event, left, redis_sink, run,
    store, stream, until,
};

/// C98, S14, S19, S36.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_under_load_deliver_each_of_ten_thousand_events_once_and_in_order() {
    const ROOMS: u64 = 200;
    const COMMITS: u64 = 25;
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    let workers = ["a", "b"].map(|id| run(store(&db), redis_sink(&redis), config(id)));
    let producers = (0..4).map(|producer| {
        let pool = pool.clone();
        async move {
            for seq in 1..=COMMITS {
                for rooms in (producer..ROOMS).step_by(4).collect::<Vec<_>>().chunks(10) {
                    let mut names: Vec<String> = rooms.iter().map(|room| format!("room{room}")).collect();
                    names.sort();
                    let mut tx = pool.begin().await.unwrap();
                    for name in &names {
                        insert(&mut tx, "app", name, seq, 2).await;
                    }
                    tx.commit().await.unwrap();
                }
            }
        }
    });
    futures::future::join_all(producers).await;
    until("all is delivered", || async { left(&pool).await == 0 }).await;
    let ids = stream(&redis, "app").await;
    assert_eq!(assert_first_arrivals_in_order(&ids), 10_000);
    assert_eq!(ids.len(), 10_000, "an event came twice without a crash");
    for worker in workers {
        assert_eq!(worker.metrics.fenced_total(), 0);
        assert!(worker.stop().await.complete);
    }
    assert_eq!(
        count(&pool, "SELECT COUNT(*) FROM outbox_room WHERE due_ms IS NOT NULL OR pending <> 0").await,
        0
    );
    let deadlocks: (String, String) =
        sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").fetch_one(&pool).await.unwrap();
    assert_eq!(deadlocks.1, "0", "producers and workers deadlocked");
}

/// S16, S17.
#[tokio::test]
async fn the_first_failure_stops_its_room_and_no_other() {
    let db = Db::start().await;
    let pool = db.pool().await;
    for seq in 1..=5 {
        for room in ["a", "b"] {
            commit(&pool, "app", room, seq, 1).await;
        }
    }
    let sink = MemorySink::new(1_000);
    let stops_at_a2 = |event: &dataplane::outbox::event::OutboxEvent| {
        (event.id() == "app/a/2/0").then(|| Stop::Retry("the sink refuses it".to_owned()))
    };
    sink.set_fault(Some(Arc::new(stops_at_a2)));
    let worker = run(store(&db), Arc::new(sink.clone()), config("a"));
    let ids = || sink.events().iter().map(|event| event.id()).collect::<Vec<_>>();
    until("room b is out", || async { ids().len() >= 6 }).await;
    // The refused room is tried again and again meanwhile.
    let tries = "SELECT CAST(attempts AS SIGNED) FROM room_outbox WHERE room_id = 'a' AND seq = 2";
    until("room a was retried", || async { count(&pool, tries).await >= 4 }).await;
    let arrived: BTreeSet<String> = ids().into_iter().collect();
    let wanted = (1..=5).map(|seq| format!("app/b/{seq}/0")).chain(["app/a/1/0".to_owned()]);
    assert_eq!(arrived, wanted.collect());
    let (state, error): (Vec<u8>, Vec<u8>) = sqlx::query_as(
        "SELECT state, last_error FROM room_outbox WHERE room_id = 'a' AND seq = 2 AND state <> 'delivering'",
    )
    .fetch_optional(&pool)
    .await
    .unwrap()
    .unwrap_or((b"retryable".to_vec(), b"the sink refuses it".to_vec()));
    assert_eq!((state.as_slice(), error.as_slice()), (&b"retryable"[..], &b"the sink refuses it"[..]));
    sink.set_fault(None);
    until("all is out", || async { left(&pool).await == 0 }).await;
    assert_eq!(assert_first_arrivals_in_order(&ids()), 10);
    worker.stop().await;
}

/// S1 to S5.
#[tokio::test]
async fn a_late_commit_is_not_skipped() {
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    let worker = run(store(&db), redis_sink(&redis), config("a"));
    let mut late = pool.begin().await.unwrap();
    insert(&mut late, "app", "early-in-order", 1, 1).await;
    commit(&pool, "app", "later-in-order", 1, 1).await;
    until("the later one is out", || async { stream(&redis, "app").await.len() == 1 }).await;
    commit(&pool, "app", "later-in-order", 2, 1).await;
    until("and the next", || async { stream(&redis, "app").await.len() == 2 }).await;
    late.commit().await.unwrap();
    until("the late one is out", || async { stream(&redis, "app").await.len() == 3 }).await;
    assert_eq!(stream(&redis, "app").await[2], "app/early-in-order/1/0");
    worker.stop().await;
}

/// S30, C102.
#[tokio::test]
async fn a_bad_event_ends_failed_and_counted_while_its_room_goes_on() {
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    let mut tx = pool.begin().await.unwrap();
    insert(&mut tx, "app", "room", 1, 1).await;
    insert_event(&mut tx, "app", "room", 2, 0, b"\xff\xff").await;
    insert(&mut tx, "app", "room", 3, 1).await;
    sqlx::query("UPDATE outbox_room SET pending = 3").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    let outbox = store(&db);
    let worker = run(outbox.clone(), redis_sink(&redis), config("a"));
    until("the others are out", || async { stream(&redis, "app").await.len() == 2 }).await;
    until("it is set aside", || async { worker.metrics.failed_total("app") == 1 }).await;
    let failed = outbox.failed(10).await.unwrap();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0.id(), "app/room/2/0");
    assert!(failed[0].1.contains("does not decode"), "{}", failed[0].1);
    assert_eq!(count(&pool, "SELECT pending FROM outbox_room").await, 0);

    sqlx::query("UPDATE room_outbox SET envelope = ? WHERE seq = 2")
        .bind(crate::bench::envelope("app", "room", 2, 0))
        .execute(&pool)
        .await
        .unwrap();
    assert_eq!(outbox.revive(&RoomKey::new("app", "room").unwrap()).await.unwrap(), 1);
    until("the repaired event is out", || async { left(&pool).await == 0 }).await;
    assert_eq!(stream(&redis, "app").await.last().unwrap(), "app/room/2/0");
    worker.stop().await;
}

/// S31: one tenant's flood.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_one_tenant_does_not_hold_up_another() {
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    commit(&pool, "quiet", "room", 1, 1).await;
    let mut tx = pool.begin().await.unwrap();
    for room in 0..3_000 {
        insert(&mut tx, "flood", &format!("room{room}"), 1, 1).await;
    }
    tx.commit().await.unwrap();
    sqlx::query("UPDATE outbox_room SET due_ms = due_ms + 1 WHERE app_code = 'quiet'")
        .execute(&pool)
        .await
        .unwrap();
    let mut few = config("a");
    (few.rooms_per_claim, few.max_batches) = (8, 1);
    let worker = run(store(&db), redis_sink(&redis), few);
    until("the quiet tenant is out", || async { stream(&redis, "quiet").await.len() == 1 }).await;
    assert!(stream(&redis, "flood").await.len() < 3_000, "the flood went first");
    until("the flood is out", || async { left(&pool).await == 0 }).await;
    worker.stop().await;
}

/// S25, S27.
#[tokio::test]
async fn a_room_that_fell_out_of_the_claims_is_put_back() {
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    commit(&pool, "app", "counted-wrong", 1, 2).await;
    commit(&pool, "app", "without-a-row", 1, 1).await;
    sqlx::query("UPDATE outbox_room SET due_ms = NULL, pending = 0 WHERE room_id = 'counted-wrong'")
        .execute(&pool)
        .await
        .unwrap();
    sqlx::query("DELETE FROM outbox_room WHERE room_id = 'without-a-row'").execute(&pool).await.unwrap();
    // And the other way round: a count without events.
    commit(&pool, "app", "gone", 1, 1).await;
    sqlx::query("DELETE FROM room_outbox WHERE room_id = 'gone'").execute(&pool).await.unwrap();
    let mut eager = config("a");
    eager.rescue_every = Duration::from_millis(200);
    let worker = run(store(&db), redis_sink(&redis), eager);
    until("all is out", || async { stream(&redis, "app").await.len() == 3 }).await;
    let idle = "SELECT COUNT(*) FROM outbox_room WHERE due_ms IS NULL AND pending = 0";
    until("the counts are right", || async { count(&pool, idle).await == 3 }).await;
    worker.stop().await;
}

/// The producers and the worker agree about the tables and the envelope.
#[tokio::test]
async fn what_the_room_store_commits_goes_out() {
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    let rooms = open(&SecretString::from(db.url.clone()), StoreOptions::default()).await.unwrap();
    let mut session = rooms.open_session().await.unwrap();
    let mut batch = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        let room = RoomKey::new("app", name).unwrap();
        let node_id = NodeId::new("node").unwrap();
        let node = NodeRef { node_id, incarnation: Incarnation([1; 16]), address: "127.0.0.1:1".to_owned() };
        let (expect, token) = (TakeExpectation::Absent, LeaseToken([2; 16]));
        let taken = rooms.take(&Take { room: room.clone(), expect, node, token, now_ms: 1 }).await.unwrap();
        let TakeOutcome::Taken(claim) = taken else { panic!("the room is not ours: {taken:?}") };
        batch.push(room_commit(room, claim));
    }
    let outcomes = session.commit(&batch).await.unwrap();
    assert!(outcomes.iter().all(|outcome| *outcome == CommitOutcome::Committed), "{outcomes:?}");
    let worker = run(store(&db), redis_sink(&redis), config("a"));
    until("all is out", || async { left(&pool).await == 0 }).await;
    let ids = stream(&redis, "app").await;
    assert_eq!((ids.len(), assert_first_arrivals_in_order(&ids)), (25, 25));
    let counted = "SELECT CAST(SUM(pending) AS SIGNED) FROM outbox_room WHERE due_ms IS NULL";
    until("nothing is counted", || async { count(&pool, counted).await == 0 }).await;
    worker.stop().await;
}

/// Three commands with five events in all.
fn room_commit(room: RoomKey, claim: Claim) -> RoomCommit {
    let row = |(seq, events): (u64, usize)| NewLogRow {
        seq: Seq(seq),
        command_id: CommandId::new(&format!("command{seq}")).unwrap(),
        command_hash: [0; 32],
        result: Bytes::new(),
        events: vec![EncodedEvent { event_type: "Tested", payload: Bytes::from_static(b"event") }; events],
        committed_at_ms: 1,
    };
    let rows = [(1, 2), (2, 0), (3, 3)].map(row).to_vec();
    RoomCommit { room, claim, rows, state_hash: [0; 32], phase: None, unseen: Vec::new() }
}
