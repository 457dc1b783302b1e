//! What the outbox tests share: producers, workers, and looks at the tables and the stream.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dataplane::outbox::sink::Sink;
use dataplane::outbox::sink::redis::{RedisStreamSink, stream_key};
use dataplane::outbox::store::OutboxStore;
use dataplane::outbox::store::mysql::MySqlOutboxStore;
use dataplane::outbox::{Drained, OutboxConfig, OutboxMetrics, OutboxParts, OutboxPulse, OutboxWaker};
use e2e::servers::{MariaDb, Redis};
use prost::Message;
use redis::AsyncCommands;
use roomcluster_proto::rooms::v1::EventEnvelope;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlPoolOptions};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const NOW: &str = "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)";

/// A database of its own on a server that the tests share, or on a private one.
pub(crate) struct Db {
    private: Option<MariaDb>,
    pub(crate) url: String,
    options: MySqlConnectOptions,
}

impl Db {
    pub(crate) async fn start() -> Self {
        static SHARED: OnceCell<MariaDb> = OnceCell::const_new();
        let server = SHARED.get_or_init(|| async { MariaDb::start().await.unwrap() }).await;
        Self::migrated(None, &server.database().await.unwrap()).await
    }

    pub(crate) async fn private() -> Self {
        let server = MariaDb::start().await.unwrap();
        let url = server.database().await.unwrap();
        Self::migrated(Some(server), &url).await
    }

    async fn migrated(private: Option<MariaDb>, url: &str) -> Self {
        let db = Self { private, url: url.to_owned(), options: url.parse().unwrap() };
        sqlx::migrate!("../migrations/mysql").run(&db.pool().await).await.unwrap();
        db
    }

    /// The server, if it is private.
    pub(crate) fn server(&mut self) -> &mut MariaDb {
        self.private.as_mut().unwrap()
    }

    pub(crate) async fn pool(&self) -> MySqlPool {
        let pool = MySqlPoolOptions::new().max_connections(8).after_connect(|connection, _| {
            Box::pin(async move {
                let set_up = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                              SET SESSION innodb_lock_wait_timeout = 2";
                sqlx::raw_sql(set_up).execute(connection).await?;
                Ok(())
            })
        });
        pool.connect_with(self.options.clone()).await.unwrap()
    }
}

/// An encoded envelope with the fields that name the event.
pub(crate) fn envelope(app: &str, room: &str, seq: u64, index: u32) -> Vec<u8> {
    let (app_code, room_id) = (app.to_owned(), room.to_owned());
    EventEnvelope { app_code, room_id, seq, index, ..EventEnvelope::default() }.encode_to_vec()
}

/// Writes events as a commit does, inside the caller's transaction.
pub(crate) async fn insert(connection: &mut MySqlConnection, app: &str, room: &str, seq: u64, events: u32) {
    for index in 0..events {
        insert_event(connection, app, room, seq, index, &envelope(app, room, seq, index)).await;
    }
    let upsert = format!(
        "INSERT INTO outbox_room (app_code, room_id, due_ms, pending) VALUES (?, ?, {NOW}, ?) \
         ON DUPLICATE KEY UPDATE pending = pending + VALUES(pending), due_ms = COALESCE(due_ms, VALUES(due_ms))"
    );
    let upsert =
        sqlx::query(sqlx::AssertSqlSafe(upsert)).bind(app.as_bytes()).bind(room.as_bytes()).bind(events);
    upsert.execute(connection).await.unwrap();
}

pub(crate) async fn insert_event(
    connection: &mut MySqlConnection,
    app: &str,
    room: &str,
    seq: u64,
    index: u32,
    envelope: &[u8],
) {
    sqlx::query(sqlx::AssertSqlSafe(format!(
        "INSERT INTO room_outbox (app_code, room_id, seq, event_index, event_type, envelope, state, created_at_ms) \
         VALUES (?, ?, ?, ?, 'Tested', ?, 'pending', {NOW})"
    )))
    .bind(app.as_bytes())
    .bind(room.as_bytes())
    .bind(seq)
    .bind(index)
    .bind(envelope)
    .execute(connection)
    .await
    .unwrap();
}

/// One commit of a room.
pub(crate) async fn commit(pool: &MySqlPool, app: &str, room: &str, seq: u64, events: u32) {
    let mut tx = pool.begin().await.unwrap();
    insert(&mut tx, app, room, seq, events).await;
    tx.commit().await.unwrap();
}

pub(crate) async fn count(pool: &MySqlPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

pub(crate) async fn left(pool: &MySqlPool) -> i64 {
    count(pool, "SELECT COUNT(*) FROM room_outbox").await
}

pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    for _ in 0..1_200 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("waited in vain until {what}");
}

pub(crate) fn store(db: &Db) -> Arc<dyn OutboxStore> {
    Arc::new(MySqlOutboxStore::new(db.options.clone(), Duration::from_secs(5)))
}

pub(crate) fn redis_sink(redis: &Redis) -> Arc<dyn Sink> {
    Arc::new(
        RedisStreamSink::new(redis::Client::open(redis.url()).unwrap(), Duration::from_secs(1), None)
            .unwrap(),
    )
}

pub(crate) fn config(worker_id: &str) -> OutboxConfig {
    OutboxConfig {
        worker_id: worker_id.into(),
        lease: Duration::from_secs(3),
        headroom: Duration::from_millis(500),
        backoff: (Duration::from_millis(50), Duration::from_millis(500)),
        drain_timeout: Duration::from_secs(5),
        ..OutboxConfig::default()
    }
}

pub(crate) struct Running {
    pub(crate) metrics: Arc<OutboxMetrics>,
    cancel: CancellationToken,
    task: JoinHandle<Drained>,
}

impl Running {
    pub(crate) async fn stop(self) -> Drained {
        self.cancel.cancel();
        self.task.await.unwrap()
    }

    /// Ends it like a crash: nothing is given back.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

pub(crate) fn run(store: Arc<dyn OutboxStore>, sink: Arc<dyn Sink>, config: OutboxConfig) -> Running {
    config.validate().unwrap();
    let (metrics, cancel) = (Arc::new(OutboxMetrics::default()), CancellationToken::new());
    let parts = OutboxParts {
        store,
        sink,
        config,
        waker: OutboxWaker::default(),
        pulse: OutboxPulse::default(),
        metrics: metrics.clone(),
    };
    let task = tokio::task::spawn(dataplane::outbox::run(parts, cancel.clone()));
    Running { metrics, cancel, task }
}

/// What a stream holds: the event ids in order of arrival.
pub(crate) async fn stream(redis: &Redis, app: &str) -> Vec<String> {
    let client = redis::Client::open(redis.url()).unwrap();
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(30)));
    let mut connection = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
    let entries: redis::streams::StreamRangeReply = connection.xrange_all(stream_key(app)).await.unwrap();
    entries.ids.iter().map(|entry| entry.get("id").unwrap()).collect()
}

/// `app/room/seq/index` in parts.
fn parse(id: &str) -> (String, (u64, u32)) {
    let parts: Vec<&str> = id.rsplitn(3, '/').collect();
    (parts[2].to_owned(), (parts[1].parse().unwrap(), parts[0].parse().unwrap()))
}

/// The first arrivals of each room must be in order; gives the number of distinct events.
pub(crate) fn assert_first_arrivals_in_order(ids: &[String]) -> usize {
    let mut seen: BTreeMap<String, BTreeSet<(u64, u32)>> = BTreeMap::new();
    for id in ids {
        let (room, position) = parse(id);
        let room_seen = seen.entry(room).or_default();
        if !room_seen.contains(&position) {
            assert!(
                room_seen.last().is_none_or(|last| *last < position),
                "{id} came after {:?}",
                room_seen.last()
            );
            room_seen.insert(position);
        }
    }
    seen.values().map(BTreeSet::len).sum()
}
