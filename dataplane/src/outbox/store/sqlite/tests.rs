use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::outbox::sink::Stop;
use crate::outbox::sink::memory::{Fault, MemorySink};
use crate::outbox::testing::envelope;
use crate::outbox::{
    BadEventPolicy, Drained, OutboxConfig, OutboxMetrics, OutboxParts, OutboxPulse, OutboxWaker, run,
};

struct Bench {
    _dir: TempDir,
    pool: SqlitePool,
    store: Arc<SqliteOutboxStore>,
    sink: MemorySink,
    metrics: Arc<OutboxMetrics>,
    waker: OutboxWaker,
}

impl Bench {
    async fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(dir.path().join("rooms.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
        sqlx::migrate!("../migrations/sqlite").run(&pool).await.unwrap();
        let store = Arc::new(SqliteOutboxStore::new(pool.clone()));
        let sink = MemorySink::new(100_000);
        Self { _dir: dir, pool, store, sink, metrics: Arc::default(), waker: OutboxWaker::default() }
    }

    async fn commit(&self, app: &str, room: &str, seq: u64, events: u32) {
        let envelopes: Vec<_> = (0..events).map(|index| envelope(app, room, seq, index)).collect();
        self.commit_raw(app, room, seq, &envelopes).await;
    }

    async fn commit_raw(&self, app: &str, room: &str, seq: u64, envelopes: &[Vec<u8>]) {
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        for (index, envelope) in envelopes.iter().enumerate() {
            sqlx::query(
                "INSERT INTO room_outbox (app_code, room_id, seq, event_index, event_type, envelope, state, \
                 created_at_ms) VALUES (?, ?, ?, ?, CAST('Tested' AS BLOB), ?, CAST('pending' AS BLOB), 1)",
            )
            .bind(app.as_bytes())
            .bind(room.as_bytes())
            .bind(seq_number(Seq(seq)))
            .bind(u32::try_from(index).unwrap())
            .bind(envelope)
            .execute(&mut *tx)
            .await
            .unwrap();
        }
        sqlx::query(
            "INSERT INTO outbox_room (app_code, room_id, due_ms, pending) \
             VALUES (?, ?, CAST(unixepoch('subsec') * 1000 AS INTEGER), ?) ON CONFLICT DO UPDATE SET \
             pending = pending + excluded.pending, due_ms = COALESCE(due_ms, excluded.due_ms)",
        )
        .bind(app.as_bytes())
        .bind(room.as_bytes())
        .bind(i64::try_from(envelopes.len()).unwrap())
        .execute(&mut *tx)
        .await
        .unwrap();
        tx.commit().await.unwrap();
        self.waker.wake();
    }

    async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    async fn until_count(&self, sql: &'static str, wanted: i64) {
        for _ in 0..600 {
            if self.count(sql).await == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{sql} did not become {wanted}, it is {}", self.count(sql).await);
    }

    fn ids(&self) -> Vec<String> {
        self.sink.events().iter().map(OutboxEvent::id).collect()
    }

    fn parts(&self, config: OutboxConfig) -> OutboxParts {
        OutboxParts {
            store: self.store.clone(),
            sink: Arc::new(self.sink.clone()),
            config,
            waker: self.waker.clone(),
            pulse: OutboxPulse::default(),
            metrics: self.metrics.clone(),
        }
    }

    /// Runs a worker as long as `scene` plays.
    async fn with_worker(&self, config: OutboxConfig, scene: impl Future<Output = ()>) -> Drained {
        let cancel = CancellationToken::new();
        let (drained, ()) = tokio::join!(run(self.parts(config), cancel.clone()), async {
            scene.await;
            cancel.cancel();
        });
        drained
    }

    fn request(&self, token: u8, lease_ms: u64) -> ClaimRequest {
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
}

const LEFT: &str = "SELECT COUNT(*) FROM room_outbox";

fn quick() -> OutboxConfig {
    OutboxConfig {
        backoff: (Duration::from_millis(20), Duration::from_millis(100)),
        drain_timeout: Duration::from_secs(5),
        ..OutboxConfig::default()
    }
}

fn delivered(room: &ClaimedRoom) -> RoomReport {
    RoomReport {
        room: room.room.clone(),
        delivered: room.events.iter().map(|event| event.position).collect(),
        failed: None,
        retryable: Vec::new(),
        error: None,
        next: Next::Now,
        recount: false,
    }
}

#[tokio::test]
async fn two_workers_deliver_every_event_once_and_in_order() {
    let bench = Bench::new().await;
    let (a, b) = (CancellationToken::new(), CancellationToken::new());
    let scene = async {
        for seq in 1..=40 {
            for room in ["r1", "r2", "r3", "r4", "r5"] {
                bench.commit("app", room, seq, 2).await;
            }
        }
        bench.until_count(LEFT, 0).await;
        a.cancel();
        b.cancel();
    };
    tokio::join!(run(bench.parts(quick()), a.clone()), run(bench.parts(quick()), b.clone()), scene);
    let events = bench.sink.events();
    assert_eq!(events.len(), 400);
    for room in ["r1", "r2", "r3", "r4", "r5"] {
        let positions: Vec<_> =
            events.iter().filter(|event| event.room.room_id() == room).map(|event| event.position).collect();
        assert!(positions.is_sorted(), "{room} is out of order");
        assert_eq!(positions.iter().collect::<BTreeSet<_>>().len(), 80);
    }
}

#[tokio::test]
async fn a_claimed_event_shows_who_delivers_it_until_when_and_how_often() {
    let bench = Bench::new().await;
    bench.commit("app", "room", 1, 2).await;
    let claimed = bench.store.claim(&bench.request(1, 60_000)).await.unwrap();
    assert_eq!((claimed.len(), claimed[0].events.len(), claimed[0].more), (1, 2, false));
    let shown = "SELECT COUNT(*) FROM room_outbox WHERE state = CAST('delivering' AS BLOB) AND attempts = 1 \
                 AND worker_id = CAST('direct' AS BLOB) AND lock_until_ms > CAST(unixepoch('subsec') * 1000 AS INTEGER)";
    assert_eq!(bench.count(shown).await, 2);
    assert!(bench.store.claim(&bench.request(2, 60_000)).await.unwrap().is_empty(), "a lease was taken over");
}

#[tokio::test]
async fn a_late_report_changes_nothing() {
    let bench = Bench::new().await;
    bench.commit("app", "room", 1, 3).await;
    let late = bench.store.claim(&bench.request(1, 0)).await.unwrap();
    let next = bench.store.claim(&bench.request(2, 60_000)).await.unwrap();
    assert_eq!((next[0].lost_claims, next[0].attempts), (1, 2));
    let reported = bench.store.report(ClaimToken([1; 16]), &[delivered(&late[0])]).await.unwrap();
    assert_eq!((reported.fenced_events, bench.count(LEFT).await), (3, 3));
    let reported = bench.store.report(ClaimToken([2; 16]), &[delivered(&next[0])]).await.unwrap();
    assert_eq!((reported.fenced_events, bench.count(LEFT).await), (0, 0));
    assert_eq!(bench.count("SELECT COUNT(*) FROM outbox_room WHERE due_ms IS NULL AND pending = 0").await, 1);
}

#[tokio::test]
async fn what_commits_during_a_delivery_is_due_after_it() {
    let bench = Bench::new().await;
    bench.commit("app", "room", 1, 1).await;
    let claimed = bench.store.claim(&bench.request(1, 60_000)).await.unwrap();
    bench.commit("app", "room", 2, 1).await;
    bench.store.report(ClaimToken([1; 16]), &[delivered(&claimed[0])]).await.unwrap();
    let again = bench.store.claim(&bench.request(2, 60_000)).await.unwrap();
    assert_eq!(again[0].events[0].id(), "app/room/2/0");
}

#[tokio::test]
async fn the_first_failure_holds_its_room_back_until_it_is_healed() {
    let bench = Bench::new().await;
    for room in ["a", "b"] {
        for seq in 1..=3 {
            bench.commit("app", room, seq, 1).await;
        }
    }
    let fault: Fault =
        Arc::new(|event| (event.id() == "app/a/2/0").then(|| Stop::Unknown("no answer".to_owned())));
    bench.sink.set_fault(Some(fault));
    bench
        .with_worker(quick(), async {
            bench.until_count("SELECT COUNT(*) FROM room_outbox WHERE attempts >= 4", 2).await;
            assert!(!bench.ids().contains(&"app/a/3/0".to_owned()), "an event overtook an unknown one");
            assert_eq!(bench.count(LEFT).await, 2);
            bench.sink.set_fault(None);
            bench.until_count(LEFT, 0).await;
        })
        .await;
    assert_eq!(bench.metrics.failed_total("app"), 0);
    assert_eq!(bench.ids().last().unwrap(), "app/a/3/0");
}

#[tokio::test]
async fn under_the_blocking_policy_a_bad_event_holds_its_room_until_a_person_acts() {
    let bench = Bench::new().await;
    bench.commit("app", "room", 1, 1).await;
    bench.commit_raw("app", "room", 2, &[b"\xff".to_vec()]).await;
    bench.commit("app", "room", 3, 1).await;
    bench.commit("app", "other", 1, 1).await;
    let config = OutboxConfig { bad_events: BadEventPolicy::Block, ..quick() };
    bench
        .with_worker(config, async {
            bench
                .until_count("SELECT COUNT(*) FROM room_outbox WHERE state = CAST('failed' AS BLOB)", 1)
                .await;
            bench.commit("app", "room", 4, 1).await;
            bench.commit("app", "other", 2, 1).await;
            bench
                .until_count("SELECT COUNT(*) FROM room_outbox WHERE room_id = CAST('other' AS BLOB)", 0)
                .await;
            assert_eq!(bench.count(LEFT).await, 3, "the room went on behind its failed event");
            assert_eq!(bench.store.failed(10).await.unwrap()[0].0.id(), "app/room/2/0");
            sqlx::query(
                "UPDATE room_outbox SET envelope = ? WHERE seq = 2 AND room_id = CAST('room' AS BLOB)",
            )
            .bind(envelope("app", "room", 2, 0))
            .execute(&bench.pool)
            .await
            .unwrap();
            assert_eq!(bench.store.revive(&RoomKey::new("app", "room").unwrap()).await.unwrap(), 1);
            bench.until_count(LEFT, 0).await;
        })
        .await;
    let of_room: Vec<_> = bench.ids().into_iter().filter(|id| id.starts_with("app/room/")).collect();
    assert_eq!(of_room, ["app/room/1/0", "app/room/2/0", "app/room/3/0", "app/room/4/0"]);
}

#[tokio::test]
async fn rooms_that_fell_out_of_the_claims_and_counts_that_are_wrong_are_mended() {
    let bench = Bench::new().await;
    for room in ["stray", "missing", "empty"] {
        bench.commit("app", room, 1, 1).await;
    }
    for sql in [
        "UPDATE outbox_room SET due_ms = NULL, pending = 0 WHERE room_id = CAST('stray' AS BLOB)",
        "DELETE FROM outbox_room WHERE room_id = CAST('missing' AS BLOB)",
        "DELETE FROM room_outbox WHERE room_id = CAST('empty' AS BLOB)",
    ] {
        sqlx::query(sql).execute(&bench.pool).await.unwrap();
    }
    let config = OutboxConfig { rescue_every: Duration::from_millis(50), ..quick() };
    let idle =
        "SELECT COUNT(*) FROM outbox_room WHERE due_ms IS NULL AND pending = 0 AND lease_token IS NULL";
    bench.with_worker(config, bench.until_count(idle, 3)).await;
    assert_eq!(bench.ids().len(), 2);
}

#[tokio::test]
async fn a_wake_up_brings_an_event_out_without_waiting_for_the_poll() {
    let bench = Bench::new().await;
    bench.commit("app", "room", 1, 1).await;
    let hour = Duration::from_secs(3_600);
    let config = OutboxConfig { poll: (hour, hour), ..quick() };
    bench
        .with_worker(config, async {
            bench.until_count(LEFT, 0).await;
            bench.commit("app", "room", 2, 1).await;
            bench.until_count(LEFT, 0).await;
        })
        .await;
}

#[tokio::test]
async fn the_end_delivers_what_was_due_and_tells_how_much() {
    let bench = Bench::new().await;
    for room in 0..20 {
        bench.commit("app", &format!("room{room}"), 1, 10).await;
    }
    let config = OutboxConfig { rooms_per_claim: 3, events_per_claim: 12, ..quick() };
    let drained = bench.with_worker(config, async {}).await;
    assert_eq!((drained.complete, drained.tally.delivered, drained.pending), (true, 200, Some(0)));
    assert_eq!(bench.count(LEFT).await, 0);
}
