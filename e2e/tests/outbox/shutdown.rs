//! How a worker ends.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dataplane::outbox::event::OutboxEvent;
use dataplane::outbox::sink::{Delivery, Sink};
use e2e::servers::Redis;

use crate::bench::{Db, commit, config, count, insert, left, redis_sink, run, store, until};

/// The native sidecar ends after the room container: what the rooms wrote last still goes out.
#[tokio::test]
async fn the_last_pass_delivers_what_was_due_at_the_signal() {
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    commit(&pool, "app", "first", 1, 1).await;
    let mut lazy = config("a");
    lazy.poll = (Duration::from_secs(3_600), Duration::from_secs(3_600));
    (lazy.rooms_per_claim, lazy.events_per_claim) = (8, 32);
    let worker = run(store(&db), redis_sink(&redis), lazy);
    until("the worker is idle", || async { left(&pool).await == 0 }).await;
    let mut tx = pool.begin().await.unwrap();
    for room in 0..30 {
        insert(&mut tx, "app", &format!("room{room}"), 1, 20).await;
    }
    tx.commit().await.unwrap();
    let drained = worker.stop().await;
    assert!(drained.complete);
    assert_eq!((drained.tally.delivered, drained.batch_size, drained.pending), (600, 600, Some(0)));
    assert_eq!(left(&pool).await, 0);
}

/// The specification to the letter: no new batch after the signal.
#[tokio::test]
async fn without_the_last_pass_nothing_is_claimed_after_the_signal() {
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    commit(&pool, "app", "first", 1, 1).await;
    let mut lazy = config("a");
    (lazy.poll, lazy.final_pass) = ((Duration::from_secs(3_600), Duration::from_secs(3_600)), false);
    let worker = run(store(&db), redis_sink(&redis), lazy);
    until("the worker is idle", || async { left(&pool).await == 0 }).await;
    commit(&pool, "app", "room", 1, 3).await;
    let drained = worker.stop().await;
    assert_eq!((drained.complete, drained.batch_size, drained.pending), (true, 0, Some(3)));
    assert_eq!(count(&pool, "SELECT COUNT(*) FROM room_outbox WHERE state = 'pending'").await, 3);
}

/// Never answers.
struct HangingSink;

#[async_trait]
impl Sink for HangingSink {
    fn name(&self) -> &'static str {
        "hanging"
    }

    async fn deliver(&self, _: &[OutboxEvent]) -> Delivery {
        std::future::pending().await
    }
}

/// S23, S26: nothing stays `delivering`, nothing is lost, and the end is bounded.
#[tokio::test]
async fn a_sink_that_hangs_at_the_end_leaves_its_events_retryable() {
    let db = Db::start().await;
    let pool = db.pool().await;
    commit(&pool, "app", "room", 1, 3).await;
    let mut patient = config("a");
    (patient.lease, patient.sink_timeout) = (Duration::from_secs(600), Duration::from_secs(600));
    patient.drain_timeout = Duration::from_secs(2);
    let worker = run(store(&db), Arc::new(HangingSink), patient);
    let delivering = "SELECT COUNT(*) FROM room_outbox WHERE state = 'delivering' AND worker_id = 'a' \
                      AND lock_until_ms IS NOT NULL AND attempts = 1";
    until("it is delivering", || async { count(&pool, delivering).await == 3 }).await;
    let drained = worker.stop().await;
    assert!(drained.complete, "{drained:?}");
    assert_eq!((drained.batch_size, drained.tally.unknown, drained.tally.delivered), (3, 3, 0));
    let retryable = "SELECT COUNT(*) FROM room_outbox WHERE state = 'retryable' AND worker_id IS NULL";
    assert_eq!(count(&pool, retryable).await, 3);
    let free =
        "SELECT COUNT(*) FROM outbox_room WHERE lease_token IS NULL AND due_ms IS NOT NULL AND pending = 3";
    assert_eq!(count(&pool, free).await, 1);
}

/// What fails in the last pass is not tried again and again until the timeout.
#[tokio::test]
async fn a_sink_that_is_down_does_not_stretch_the_end() {
    let (db, mut redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    redis.kill().unwrap();
    commit(&pool, "app", "room", 1, 3).await;
    let mut long = config("a");
    long.drain_timeout = Duration::from_secs(600);
    long.backoff = (Duration::from_secs(60), Duration::from_secs(60));
    let worker = run(store(&db), redis_sink(&redis), long);
    let drained = tokio::time::timeout(Duration::from_secs(60), worker.stop()).await.unwrap();
    assert!(drained.complete);
    assert_eq!((drained.tally.delivered, drained.pending), (0, Some(3)));
    assert_eq!(count(&pool, "SELECT COUNT(*) FROM room_outbox WHERE state = 'retryable'").await, 3);
}
