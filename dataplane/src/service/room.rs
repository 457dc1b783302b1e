//! room-service: the process that executes rooms.
//!
//! Puts the parts together and nothing else: store, leases, cells, router, the three gRPC services, evacuation by
//! the operator's order, and the drain at the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use roomcluster_lifecycle::{
    BoxError, Check, ConfigError, GrpcServer, Identity, LogFormat, Process, Settings, Shutdown,
    ShutdownCounts, args, listen,
};
use secrecy::SecretString;
use tonic::service::Routes;
use tracing::warn;

use super::errors;
use super::outbox::OutboxWorker;
use crate::cell::{CellConfig, CellMetrics, Cells, Committer, CommitterConfig, Shared};
use crate::faults;
use crate::forward::Router;
use crate::forward::client::PeerClients;
use crate::ownership::breaker::Breaker;
use crate::ownership::lease::LeaseStore;
use crate::ownership::redis::{RedisLeases, RedisOptions};
use crate::ownership::{LeaseConfig, LeaseMetrics, Leases, Peers};
use crate::room::VoiceRoom;
use crate::store::{RoomStore, connect};
use crate::types::{Incarnation, NodeId, NodeRef};

mod api;
mod auth;
mod evacuation;
mod keeper;
mod metrics;
mod node_api;
mod orders;
mod peer_api;

pub use orders::Orders;

/// Name of the service in logs and health answers.
pub const SERVICE: &str = "room-service";

/// Most bytes of one request; a command is far smaller, and anything larger is refused.
const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Most bytes of one message between nodes: a request, or a whole room for GetRoom.
const MAX_PEER_BYTES: usize = 4 * 1024 * 1024;

/// Pause between two tries to reach a database at start.
const DATABASE_PAUSE: Duration = Duration::from_millis(500);

/// Where committed events are delivered from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OutboxMode {
    /// By a sidecar of this pod, or by any other worker.
    Sidecar,
    /// By this process.
    InProcess,
}

/// Flags of `dataplane room`.
#[derive(Debug, Clone, Args)]
pub struct RoomArgs {
    /// Unique name of this instance; on Kubernetes the pod's name.
    #[arg(long, env = "NODE_ID")]
    pub node_id: String,
    /// UID of the pod, which the operator's orders must name.
    #[arg(long, env = "POD_UID", default_value = "")]
    pub pod_uid: String,
    /// Where other nodes reach this instance itself, as host:port; never a load balancer.
    #[arg(long, env = "ADVERTISE_ADDR")]
    pub advertise_addr: String,
    /// Where gRPC is served.
    #[arg(long, env = "GRPC_LISTEN", default_value = "0.0.0.0:7400")]
    pub grpc_listen: SocketAddr,
    /// Where probes and metrics are served.
    #[arg(long, env = "ADMIN_LISTEN", default_value = "0.0.0.0:7401")]
    pub admin_listen: SocketAddr,
    /// Revision of the pod's template, compared for equality with the operator's target.
    #[arg(long, env = "REVISION", default_value = "")]
    pub revision: String,
    /// The database: mysql://, mariadb:// or sqlite://.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
    /// The lease store: redis://.
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    pub redis_url: SecretString,
    /// Where events go; the lease store's Redis if not given.
    #[arg(long, env = "OUTBOX_SINK_URL", hide_env_values = true)]
    pub outbox_sink_url: Option<SecretString>,
    /// Who delivers committed events.
    #[arg(long, env = "OUTBOX_MODE", value_enum, default_value = "sidecar")]
    pub outbox_mode: OutboxMode,
    /// The secret that the operator and the other nodes show.
    #[arg(long, env = "NODE_TOKEN", hide_env_values = true)]
    pub node_token: SecretString,
    /// Takes no rooms until the operator has given an order.
    #[arg(long, env = "AWAIT_ORDER", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = false)]
    pub await_order: bool,
    /// Time to live of a lease.
    #[arg(long, env = "LEASE_TTL", default_value = "6s", value_parser = args::positive_duration)]
    pub lease_ttl: Duration,
    /// How long a snapshot may take to be written when a room is let go.
    #[arg(long, env = "SNAPSHOT_FLUSH_TIMEOUT", default_value = "10s", value_parser = args::positive_duration)]
    pub snapshot_flush_timeout: Duration,
    /// How long calls and rooms may take to end after SIGTERM.
    #[arg(long, env = "GRPC_DRAIN_TIMEOUT", default_value = "20s", value_parser = args::positive_duration)]
    pub grpc_drain_timeout: Duration,
    /// How long the outbox worker may take to end, in process.
    #[arg(long, env = "OUTBOX_FLUSH_TIMEOUT", default_value = "10s", value_parser = args::positive_duration)]
    pub outbox_flush_timeout: Duration,
    /// How long the whole shutdown may take.
    #[arg(long, env = "SHUTDOWN_TIMEOUT", default_value = "30s", value_parser = args::positive_duration)]
    pub shutdown_timeout: Duration,
    /// How long pre-stop lets load balancers take this node out, while it still serves.
    #[arg(long, env = "PRE_STOP_WAIT", default_value = "2s", value_parser = args::duration)]
    pub pre_stop_wait: Duration,
    /// A room that nobody used for so long is let go.
    #[arg(long, env = "IDLE_UNLOAD", default_value = "10m", value_parser = args::positive_duration)]
    pub idle_unload: Duration,
    /// SQL connections that commit side by side.
    #[arg(long, env = "COMMIT_SESSIONS", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub commit_sessions: u16,
    /// How logs look.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value = "json")]
    pub log_format: LogFormat,
    /// Lets tests stop or hang the process at named points. Never in production.
    #[arg(long, env = "FAULT_INJECTION", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = false)]
    pub fault_injection: bool,
}

impl RoomArgs {
    /// What the process needs before it starts.
    pub fn settings(&self) -> Settings {
        Settings {
            identity: Identity::new(SERVICE, &self.node_id),
            log_format: self.log_format,
            admin_listen: self.admin_listen,
            shutdown_timeout: self.shutdown_timeout,
        }
    }

    fn node(&self) -> Result<NodeRef, ConfigError> {
        let node_id =
            NodeId::new(&self.node_id).map_err(|error| ConfigError::new("--node-id", error.to_string()))?;
        check_address(&self.advertise_addr)?;
        Ok(NodeRef {
            node_id,
            incarnation: Incarnation::random(&mut rand::rng()),
            address: self.advertise_addr.clone(),
        })
    }
}

/// Other nodes must be able to reach it: a wildcard or an empty host is a mistake.
fn check_address(address: &str) -> Result<(), ConfigError> {
    let problem = |text: &str| ConfigError::new("--advertise-addr", format!("{address:?} {text}"));
    let (host, port) = address.rsplit_once(':').ok_or_else(|| problem("has no port; write host:port"))?;
    port.parse::<u16>().map_err(|_| problem("has no valid port; write host:port"))?;
    if host.is_empty() || host == "0.0.0.0" || host == "[::]" {
        return Err(problem("names no instance; write the private address that other nodes reach"));
    }
    Ok(())
}

/// The stores that a node works with.
pub struct Stores {
    /// The durable truth.
    pub rooms: Arc<dyn RoomStore>,
    /// Leases and routes.
    pub leases: Arc<dyn LeaseStore>,
}

/// Starts the process and returns the plan of its end.
pub async fn start(process: Process, args: RoomArgs) -> Result<Shutdown, BoxError> {
    // Before anything is waited for: a flag that is wrong is told at once.
    args.node()?;
    let leases = RedisLeases::open(&args.redis_url, RedisOptions::default())
        .map_err(|error| ConfigError::new("--redis-url", error.to_string()))?;
    let rooms = open_when_reachable(&args.database_url).await?;
    let stores = Stores { rooms, leases: Arc::new(Breaker::new(Arc::new(leases))) };
    start_with(process, args, stores).await
}

/// A database that is not up yet is waited for: the process is alive, and not ready.
async fn open_when_reachable(url: &SecretString) -> Result<Arc<dyn RoomStore>, BoxError> {
    let mut silent = false;
    loop {
        match connect::open(url, connect::StoreOptions::default()).await {
            Ok(store) => return Ok(store),
            Err(error) if error.is_retryable() => {
                if !std::mem::replace(&mut silent, true) {
                    warn!(%error, source = ?std::error::Error::source(&error), "Waiting for the database");
                }
                tokio::time::sleep(DATABASE_PAUSE).await;
            }
            Err(error) => return Err(errors::config_error("--database-url", error)),
        }
    }
}

/// Starts the process on stores that are open.
pub async fn start_with(process: Process, args: RoomArgs, stores: Stores) -> Result<Shutdown, BoxError> {
    if args.fault_injection {
        faults::enable();
        process.admin.merge(faults::routes());
    }
    let node = args.node()?;
    let orders = Arc::new(Orders::new(&process, &args, &node));
    let metrics = process.metrics.register(LeaseMetrics::register);
    let config = LeaseConfig::new(args.lease_ttl);
    let leases = Arc::new(Leases::new(node.clone(), Arc::clone(&stores.leases), config, metrics));
    let work = process.tasks.group();
    let cells = start_cells(&process, &args, &stores, &leases, &work);
    let peers = Arc::new(Peers::default());
    let clients = PeerClients::new(args.node_token.clone());
    let router = Arc::new(Router::new(cells.clone(), Arc::clone(&peers), clients, Arc::clone(&orders) as _));
    metrics::register(&process, &cells, &orders, &node);
    add_checks(&process, &stores);

    let loops = process.tasks.group();
    let keeper = keeper::Keeper::start(&process, &loops, &leases, &peers, &orders, &cells, &stores);
    evacuation::start(&loops, &cells, &orders, &keeper);
    evacuation::start_idle_unload(&loops, &cells, args.idle_unload);
    process.admin.merge(evacuation::pre_stop_route(&process, &cells, args.pre_stop_wait));
    let outbox = start_outbox(&process, &args).await?;
    let grpc = start_grpc(&process, &args, &router, &stores, &orders, &node)?;
    Ok(plan(&process, &args, Parts { cells, leases, stores, keeper, loops, grpc, outbox }))
}

fn start_cells(
    process: &Process,
    args: &RoomArgs,
    stores: &Stores,
    leases: &Arc<Leases>,
    work: &roomcluster_lifecycle::Tasks,
) -> Cells<VoiceRoom> {
    let metrics = process.metrics.register(CellMetrics::register);
    let config =
        CommitterConfig { sessions: usize::from(args.commit_sessions), ..CommitterConfig::default() };
    let committer = Committer::start(work, &stores.rooms, leases, &metrics, config);
    Cells::new(Shared {
        logic: VoiceRoom,
        store: Arc::clone(&stores.rooms),
        leases: Arc::clone(leases),
        committer,
        tasks: work.clone(),
        clock: Arc::clone(&process.clock),
        config: CellConfig { snapshot_flush_timeout: args.snapshot_flush_timeout, ..CellConfig::default() },
        metrics,
    })
}

fn add_checks(process: &Process, stores: &Stores) {
    let rooms = Arc::clone(&stores.rooms);
    process.health.add_check(
        Check::hard("mysql").timeout(Duration::from_millis(300)).fail_after(3),
        move || {
            let rooms = Arc::clone(&rooms);
            async move { rooms.ping().await }
        },
    );
    let rooms = Arc::clone(&stores.rooms);
    process.health.add_check(
        Check::hard("schema").timeout(Duration::from_millis(300)).fail_after(3),
        move || {
            let rooms = Arc::clone(&rooms);
            async move { rooms.check_schema().await }
        },
    );
    let leases = Arc::clone(&stores.leases);
    process.health.add_check(
        Check::hard("redis").timeout(Duration::from_millis(200)).fail_after(3),
        move || {
            let leases = Arc::clone(&leases);
            async move { leases.probe().await }
        },
    );
}

async fn start_outbox(process: &Process, args: &RoomArgs) -> Result<Option<OutboxWorker>, BoxError> {
    if args.outbox_mode == OutboxMode::Sidecar {
        return Ok(None);
    }
    let sink = args.outbox_sink_url.as_ref().unwrap_or(&args.redis_url);
    let handle =
        OutboxWorker::start(process, &args.database_url, sink, &args.node_id, args.outbox_flush_timeout)
            .await?;
    Ok(Some(handle))
}

fn start_grpc(
    process: &Process,
    args: &RoomArgs,
    router: &Arc<Router<VoiceRoom>>,
    stores: &Stores,
    orders: &Arc<Orders>,
    node: &NodeRef,
) -> Result<GrpcServer, BoxError> {
    let guard = auth::NodeToken::new(args.node_token.clone());
    let store = Arc::clone(&stores.rooms);
    let rooms = api::RoomApi::new(Arc::clone(router), store).into_server(MAX_REQUEST_BYTES);
    let peers =
        peer_api::PeerApi::new(Arc::clone(router), node.clone()).into_server(guard.clone(), MAX_PEER_BYTES);
    let nodes =
        node_api::NodeApi::new(Arc::clone(orders), router.cells().clone(), node.clone()).into_server(guard);
    let routes = Routes::new(rooms).add_service(peers).add_service(nodes);
    let listener = listen("--grpc-listen", args.grpc_listen)?;
    Ok(GrpcServer::start(listener, routes, &process.health, &process.tasks)?)
}

struct Parts {
    cells: Cells<VoiceRoom>,
    leases: Arc<Leases>,
    stores: Stores,
    keeper: keeper::Keeper,
    loops: roomcluster_lifecycle::Tasks,
    grpc: GrpcServer,
    outbox: Option<OutboxWorker>,
}

/// The end, in the specified order: rooms and calls first, loops then, dependencies last.
fn plan(process: &Process, args: &RoomArgs, parts: Parts) -> Shutdown {
    let Parts { cells, leases, stores, keeper, loops, grpc, outbox } = parts;
    let second = Duration::from_secs(1);
    let counted = cells.clone();
    let (left, all) = (cells.clone(), process.tasks.clone());
    process
        .shutdown()
        .phase("rooms-and-calls", args.grpc_drain_timeout, move |budget| async move {
            keeper.announce().await;
            let (report, ()) =
                tokio::join!(grpc.shutdown(budget.deadline), evacuation::drain(&cells, budget.deadline));
            report
        })
        .unfinished("room_cell", move || left.count() as u64)
        .phase("outbox", args.outbox_flush_timeout, move |budget| async move {
            if let Some(outbox) = outbox {
                outbox.shutdown(budget.deadline).await;
            }
        })
        .phase("loops", second, move |budget| async move { loops.stop_and_join(budget.deadline).await })
        .phase("lease-store", second, move |_budget| async move {
            let node = leases.node();
            let _expires_anyway = leases.store().withdraw(&node.node_id, node.incarnation).await;
        })
        .phase("database", second * 2, move |_budget| async move { stores.rooms.close(second).await })
        .phase("tasks", second, move |budget| async move { all.stop_and_join(budget.deadline).await })
        .counts(move || ShutdownCounts {
            active_room_cells: Some(counted.count() as u64),
            ..ShutdownCounts::default()
        })
}
