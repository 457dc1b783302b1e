//! Workers that die, stop, or lose what they depend on.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dataplane::outbox::event::OutboxEvent;
use dataplane::outbox::sink::{Delivery, Sink};
use dataplane::outbox::store::{AppQuota, ClaimRequest, ClaimToken, Next, RoomReport};
use e2e::servers::Redis;

use crate::bench::{
    Db, assert_first_arrivals_in_order, commit, config, count, left, redis_sink, run, store, stream, until,
};

/// Delivers, and then never tells: as a worker that dies between the sink's OK and its record.
struct SilentSink(Arc<dyn Sink>);

#[async_trait]
impl Sink for SilentSink {
    fn name(&self) -> &'static str {
        "silent"
    }

    async fn deliver(&self, events: &[OutboxEvent]) -> Delivery {
        self.0.deliver(events).await;
        std::future::pending().await
    }
}

/// S18, S20, C101.
#[tokio::test]
async fn a_worker_killed_between_ok_and_ack_loses_nothing_and_repeats_in_order() {
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    for seq in 1..=3 {
        commit(&pool, "app", "room", seq, 2).await;
    }
    let dying = run(store(&db), Arc::new(SilentSink(redis_sink(&redis))), config("a"));
    until("the sink has them", || async { stream(&redis, "app").await.len() == 6 }).await;
    dying.kill().await;
    assert_eq!(left(&pool).await, 6, "an event left without a record");
    let worker = run(store(&db), redis_sink(&redis), config("b"));
    until("all is recorded", || async { left(&pool).await == 0 }).await;
    let ids = stream(&redis, "app").await;
    assert_eq!(ids.len(), 12);
    assert_eq!(assert_first_arrivals_in_order(&ids), 6);
    worker.stop().await;
}

/// S21, S24, C100.
#[tokio::test]
async fn a_worker_that_comes_back_under_its_name_gets_its_rooms_when_the_lease_ends() {
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    commit(&pool, "app", "room", 1, 1).await;
    let dying = run(store(&db), Arc::new(SilentSink(redis_sink(&redis))), config("same"));
    until("it is claimed", || async { stream(&redis, "app").await.len() == 1 }).await;
    dying.kill().await;
    let worker = run(store(&db), redis_sink(&redis), config("same"));
    until("it is out", || async { left(&pool).await == 0 }).await;
    worker.stop().await;
}

fn request(token: u8, lease_ms: u64) -> ClaimRequest {
    ClaimRequest {
        worker_id: "direct".into(),
        token: ClaimToken([token; 16]),
        lease: Duration::from_millis(lease_ms),
        quotas: vec![AppQuota { app_code: "app".into(), rooms: 10 }],
        due_by_ms: None,
        events: 100,
        solo_after: 3,
    }
}

/// C99, C102, S11.
#[tokio::test]
async fn the_report_of_a_worker_whose_lease_ended_is_fenced() {
    let db = Db::start().await;
    let pool = db.pool().await;
    commit(&pool, "app", "room", 1, 3).await;
    let outbox = store(&db);
    let late = outbox.claim(&request(1, 200)).await.unwrap();
    assert_eq!(late[0].events.len(), 3);
    let mut next = Vec::new();
    for _ in 0..100 {
        next = outbox.claim(&request(2, 60_000)).await.unwrap();
        if !next.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((next[0].lost_claims, next[0].attempts, next[0].events[0].attempts), (1, 2, 2));
    let report = |room: &dataplane::outbox::store::ClaimedRoom| RoomReport {
        room: room.room.clone(),
        delivered: room.events.iter().map(|event| event.position).collect(),
        failed: None,
        retryable: Vec::new(),
        error: None,
        next: Next::Now,
        recount: false,
    };
    let reported = outbox.report(ClaimToken([1; 16]), &[report(&late[0])]).await.unwrap();
    assert_eq!((reported.fenced_events, reported.busy.len()), (3, 0));
    assert_eq!(left(&pool).await, 3, "a late report removed what another worker holds");
    let holds = "SELECT COUNT(*) FROM outbox_room WHERE lease_token = REPEAT(CHAR(2), 16) AND pending = 3";
    assert_eq!(count(&pool, holds).await, 1, "a late report took the room from its holder");
    let reported = outbox.report(ClaimToken([2; 16]), &[report(&next[0])]).await.unwrap();
    assert_eq!((reported.fenced_events, left(&pool).await), (0, 0));
}

/// S33, S48: infrastructure errors never lead to `failed`.
#[tokio::test]
async fn while_redis_is_down_events_are_retried_and_never_fail() {
    let (db, mut redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    redis.kill().unwrap();
    for room in 0..50 {
        commit(&pool, "app", &format!("room{room}"), 1, 2).await;
    }
    let mut impatient = config("a");
    (impatient.solo_after, impatient.quarantine_after) = (1, 2);
    let worker = run(store(&db), redis_sink(&redis), impatient);
    let tries = "SELECT CAST(MAX(attempts) AS SIGNED) FROM outbox_room";
    until("it was tried often", || async { count(&pool, tries).await >= 5 }).await;
    assert_eq!(worker.metrics.failed_total("app"), 0);
    assert_eq!(left(&pool).await, 100);
    redis.restart().await.unwrap();
    until("all is out", || async { left(&pool).await == 0 }).await;
    assert_eq!(assert_first_arrivals_in_order(&stream(&redis, "app").await), 100);
    assert_eq!(worker.metrics.failed_total("app"), 0);
    worker.stop().await;
}

/// A sink that ends its worker whenever it sees one event.
struct KillingSink {
    inner: Arc<dyn Sink>,
    killer: &'static str,
    died: tokio::sync::mpsc::Sender<()>,
}

#[async_trait]
impl Sink for KillingSink {
    fn name(&self) -> &'static str {
        "killing"
    }

    async fn deliver(&self, events: &[OutboxEvent]) -> Delivery {
        if events.iter().any(|event| event.id() == self.killer) {
            let _the_test_may_be_over = self.died.send(()).await;
            return std::future::pending().await;
        }
        self.inner.deliver(events).await
    }
}

/// S29, S30: attempts are counted at the claim.
#[tokio::test]
async fn an_event_that_kills_its_workers_ends_in_quarantine_and_the_room_goes_on() {
    let (db, redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    for seq in 1..=4 {
        commit(&pool, "app", "room", seq, 1).await;
    }
    let mut failed = 0;
    for _ in 0..40 {
        let (died, mut deaths) = tokio::sync::mpsc::channel(1);
        let sink = Arc::new(KillingSink { inner: redis_sink(&redis), killer: "app/room/2/0", died });
        let mut config = config("a");
        (config.solo_after, config.quarantine_after) = (2, 4);
        (config.lease, config.headroom) = (Duration::from_millis(400), Duration::from_millis(50));
        let worker = run(store(&db), sink, config);
        tokio::select! {
            death = deaths.recv() => assert!(death.is_some()),
            () = until("all is out", || async { left(&pool).await == 1 }) => {}
        }
        failed += worker.metrics.failed_total("app");
        worker.kill().await;
        if failed > 0 {
            break;
        }
    }
    assert_eq!(failed, 1);
    assert_eq!(stream(&redis, "app").await, ["app/room/1/0", "app/room/3/0", "app/room/4/0"]);
    assert_eq!(count(&pool, "SELECT CAST(seq AS SIGNED) FROM room_outbox WHERE state = 'failed'").await, 2);
}

/// S9.
#[tokio::test]
async fn a_worker_goes_on_after_its_database_was_restarted() {
    let (mut db, redis) = (Db::private().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    commit(&pool, "app", "room", 1, 1).await;
    let worker = run(store(&db), redis_sink(&redis), config("a"));
    until("the first is out", || async { stream(&redis, "app").await.len() == 1 }).await;
    db.server().kill().unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    db.server().restart().await.unwrap();
    let pool = db.pool().await;
    commit(&pool, "app", "room", 2, 1).await;
    until("the second is out", || async { left(&pool).await == 0 }).await;
    assert_eq!(assert_first_arrivals_in_order(&stream(&redis, "app").await), 2);
    assert!(worker.stop().await.complete);
}

/// S23: a server that stops answering, and comes back with what was sent to it.
#[tokio::test]
async fn while_redis_hangs_outcomes_are_unknown_and_nothing_is_lost_or_overtaken() {
    let (db, mut redis) = (Db::start().await, Redis::start().await.unwrap());
    let pool = db.pool().await;
    let worker = run(store(&db), redis_sink(&redis), config("a"));
    commit(&pool, "app", "room", 1, 2).await;
    until("the first are out", || async { left(&pool).await == 0 }).await;
    redis.pause().unwrap();
    for seq in 2..=6 {
        commit(&pool, "app", "room", seq, 2).await;
    }
    let retried =
        "SELECT COUNT(*) FROM room_outbox WHERE state IN ('retryable', 'delivering') AND attempts >= 2";
    until("it was tried twice", || async { count(&pool, retried).await >= 2 }).await;
    redis.resume().unwrap();
    until("all is recorded", || async { left(&pool).await == 0 }).await;
    assert_eq!(assert_first_arrivals_in_order(&stream(&redis, "app").await), 12);
    assert_eq!(worker.metrics.failed_total("app"), 0);
    worker.stop().await;
}

/// S14, C99: a worker gives up sending before its lease is another's, and says so in time.
#[tokio::test]
async fn a_sink_that_hangs_costs_no_worker_its_lease() {
    struct Hanging;
    #[async_trait]
    impl Sink for Hanging {
        fn name(&self) -> &'static str {
            "hanging"
        }

        async fn deliver(&self, _: &[OutboxEvent]) -> Delivery {
            std::future::pending().await
        }
    }
    let db = Db::start().await;
    let pool = db.pool().await;
    commit(&pool, "app", "room", 1, 1).await;
    let mut patient = config("a");
    patient.sink_timeout = Duration::from_secs(3_600);
    let worker = run(store(&db), Arc::new(Hanging), patient);
    let tries = "SELECT CAST(attempts AS SIGNED) FROM room_outbox";
    until("it was tried twice", || async { count(&pool, tries).await >= 2 }).await;
    assert_eq!(count(&pool, "SELECT CAST(lost_claims AS SIGNED) FROM outbox_room").await, 0);
    assert_eq!(worker.metrics.fenced_total(), 0);
    worker.kill().await;
}
