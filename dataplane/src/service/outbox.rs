//! `dataplane outbox`: delivers committed events, beside any number of room processes.
//!
//! The same worker runs in a process of its own (on Kubernetes a native sidecar of the room container, which ends
//! after it, so that the last events of a drain still go out) or inside a room process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use roomcluster_lifecycle::{BoxError, ConfigError, Identity, LogFormat, Process, Settings, Shutdown, args};
use secrecy::{ExposeSecret, SecretString};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use url::Url;

use self::log_sink::LogSink;
use crate::outbox::sink::Sink;
use crate::outbox::sink::redis::RedisStreamSink;
use crate::outbox::store::OutboxStore;
use crate::outbox::store::mysql::MySqlOutboxStore;
use crate::outbox::store::sqlite::SqliteOutboxStore;
use crate::outbox::{OutboxConfig, OutboxMetrics, OutboxParts, OutboxPulse, OutboxWaker, run};

mod log_sink;

/// Name of the service in logs and health answers.
pub const SERVICE: &str = "room-service-outbox";

/// Bounds each call to the database.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bounds each call to the sink.
const SINK_TIMEOUT: Duration = Duration::from_secs(2);
/// A loop that has not turned for so long is stuck. It turns whatever database and sink do.
const PULSE_BOUND: Duration = Duration::from_secs(60);
/// How often the pulse is looked at.
const PULSE_PERIOD: Duration = Duration::from_secs(5);
/// Margin of the shutdown beyond the worker's own end.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(5);

/// Flags of `dataplane outbox`.
#[derive(Debug, Clone, Args)]
pub struct OutboxArgs {
    /// Name of this worker, for people; on Kubernetes the pod's name.
    #[arg(long, env = "NODE_ID")]
    pub node_id: String,
    /// Where probes and metrics are served.
    #[arg(long, env = "ADMIN_LISTEN", default_value = "0.0.0.0:7402")]
    pub admin_listen: SocketAddr,
    /// The database: mysql://, mariadb:// or sqlite://.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
    /// The lease store, which is also the sink unless another is given.
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    pub redis_url: SecretString,
    /// Where events go: redis:// for the streams room:events:{app_code}, or log: for the process's own log.
    #[arg(long, env = "OUTBOX_SINK_URL", hide_env_values = true)]
    pub outbox_sink_url: Option<SecretString>,
    /// How long the worker may take to end.
    #[arg(long, env = "WORKER_DRAIN_TIMEOUT", default_value = "30s", value_parser = args::positive_duration)]
    pub worker_drain_timeout: Duration,
    /// How logs look.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value = "json")]
    pub log_format: LogFormat,
}

impl OutboxArgs {
    /// What the process needs before it starts.
    pub fn settings(&self) -> Settings {
        Settings {
            identity: Identity::new(SERVICE, &self.node_id),
            log_format: self.log_format,
            admin_listen: self.admin_listen,
            shutdown_timeout: self.worker_drain_timeout + SHUTDOWN_MARGIN,
        }
    }
}

/// Starts the process and returns the plan of its end.
pub async fn start(process: Process, args: OutboxArgs) -> Result<Shutdown, BoxError> {
    let sink = args.outbox_sink_url.as_ref().unwrap_or(&args.redis_url);
    let worker =
        OutboxWorker::start(&process, &args.database_url, sink, &args.node_id, args.worker_drain_timeout)
            .await?;
    let all = process.tasks.clone();
    Ok(process
        .shutdown()
        .phase("outbox", args.worker_drain_timeout + SHUTDOWN_MARGIN, move |budget| async move {
            worker.shutdown(budget.deadline).await;
        })
        .phase("tasks", Duration::from_secs(1), move |budget| async move {
            all.stop_and_join(budget.deadline).await
        }))
}

/// A worker that runs in this process.
pub struct OutboxWorker {
    cancel: CancellationToken,
    ended: JoinHandle<()>,
    store: Arc<dyn OutboxStore>,
}

impl OutboxWorker {
    /// Starts a worker on the database and the sink of these URLs.
    pub async fn start(
        process: &Process,
        database_url: &SecretString,
        sink_url: &SecretString,
        worker_id: &str,
        drain_timeout: Duration,
    ) -> Result<Self, BoxError> {
        let store = open_store(database_url).await?;
        let sink = open_sink(sink_url)?;
        let metrics = Arc::new(process.metrics.register(OutboxMetrics::register));
        let config = OutboxConfig { worker_id: worker_id.into(), drain_timeout, ..OutboxConfig::default() };
        config.validate().map_err(|error| ConfigError::new("--node-id", error.to_string()))?;
        let pulse = OutboxPulse::default();
        watch_pulse(process, pulse.clone());
        let parts = OutboxParts {
            store: Arc::clone(&store),
            sink,
            config,
            waker: OutboxWaker::default(),
            pulse,
            metrics,
        };
        let cancel = CancellationToken::new();
        let stop = cancel.clone();
        let ended = process.tasks.spawn_once("outbox-worker", async move {
            // It logs its end itself.
            let _drained = run(parts, stop).await;
        });
        Ok(Self { cancel, ended, store })
    }

    /// Ends the worker: what it has claimed is delivered or given back.
    pub async fn shutdown(self, deadline: Instant) {
        self.cancel.cancel();
        if tokio::time::timeout_at(deadline, self.ended).await.is_err() {
            warn!("The outbox worker ran out of time; what it held comes again after its leases");
        }
        self.store.close().await;
    }
}

/// Liveness: the worker's loop turns.
fn watch_pulse(process: &Process, pulse: OutboxPulse) {
    let heartbeat = process.health.heartbeat("outbox-worker", PULSE_BOUND);
    process.tasks.spawn_essential("outbox-pulse", move |stop| async move {
        let mut ticks = tokio::time::interval(PULSE_PERIOD);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return heartbeat.retire(),
                _ = ticks.tick() => if pulse.age() < PULSE_BOUND { heartbeat.beat() },
            }
        }
    });
}

async fn open_store(url: &SecretString) -> Result<Arc<dyn OutboxStore>, ConfigError> {
    let bad = |problem: &str| ConfigError::new("--database-url", problem);
    let url = Url::parse(url.expose_secret()).map_err(|_| bad("it cannot be read as a URL"))?;
    match url.scheme() {
        "mysql" | "mariadb" => {
            let options =
                parse::<MySqlConnectOptions>(&url).ok_or_else(|| bad("a part of it cannot be read"))?;
            Ok(Arc::new(MySqlOutboxStore::new(options, STORE_TIMEOUT)))
        }
        "sqlite" => {
            let options =
                parse::<SqliteConnectOptions>(&url).ok_or_else(|| bad("a part of it cannot be read"))?;
            let pool = SqlitePoolOptions::new()
                .max_connections(2)
                .connect_lazy_with(options.busy_timeout(STORE_TIMEOUT));
            Ok(Arc::new(SqliteOutboxStore::new(pool)))
        }
        _ => Err(bad("its scheme is not mysql, mariadb or sqlite")),
    }
}

fn parse<O: sqlx::ConnectOptions>(url: &Url) -> Option<O> {
    O::from_url(url).ok()
}

fn open_sink(url: &SecretString) -> Result<Arc<dyn Sink>, ConfigError> {
    let url = url.expose_secret();
    if url == "log:" {
        return Ok(Arc::new(LogSink));
    }
    let bad = |_| ConfigError::new("--outbox-sink-url", "it is not a redis:// URL");
    let client = redis::Client::open(url).map_err(bad)?;
    Ok(Arc::new(RedisStreamSink::new(client, SINK_TIMEOUT, None).map_err(bad)?))
}
