//! `dataplane dev`: the whole data plane in one process, with nothing to install.
//!
//! The same room-service on SQLite and an embedded lease store, with the outbox in process; only the sink differs:
//! events are logged instead of sent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use roomcluster_lifecycle::{BoxError, Identity, LogFormat, Process, Settings, Shutdown};
use secrecy::SecretString;

use super::errors;
use super::room::{self, OutboxMode, RoomArgs, Stores};
use crate::ownership::embedded::EmbeddedLeases;
use crate::store::connect;

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Flags of `dataplane dev`.
#[derive(Debug, Clone, Args)]
pub struct DevArgs {
    /// Where gRPC is served.
    #[arg(long, env = "GRPC_LISTEN", default_value = "127.0.0.1:7400")]
    pub grpc_listen: SocketAddr,
    /// Where probes and metrics are served.
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:7401")]
    pub admin_listen: SocketAddr,
    /// The database file; made if it is not there.
    #[arg(long, env = "DEV_DATA", default_value = "roomcluster-dev.db")]
    pub data: PathBuf,
    /// How logs look.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

impl DevArgs {
    /// What the process needs before it starts.
    pub fn settings(&self) -> Settings {
        Settings {
            identity: Identity::new(room::SERVICE, "dev"),
            log_format: self.log_format,
            admin_listen: self.admin_listen,
            shutdown_timeout: SHUTDOWN_TIMEOUT,
        }
    }

    fn database_url(&self) -> SecretString {
        format!("sqlite://{}", self.data.display()).into()
    }
}

/// Starts the process and returns the plan of its end.
pub async fn start(process: Process, args: DevArgs) -> Result<Shutdown, BoxError> {
    let url = args.database_url();
    let problem = |error| errors::config_error("--data", error);
    connect::migrate(&url).await.map_err(problem)?;
    let rooms = connect::open(&url, connect::StoreOptions::default()).await.map_err(problem)?;
    let stores = Stores { rooms, leases: Arc::new(EmbeddedLeases::new()) };
    room::start_with(process, room_args(&args, url), stores).await
}

fn room_args(args: &DevArgs, database_url: SecretString) -> RoomArgs {
    RoomArgs {
        node_id: "dev".to_owned(),
        pod_uid: String::new(),
        advertise_addr: args.grpc_listen.to_string(),
        grpc_listen: args.grpc_listen,
        admin_listen: args.admin_listen,
        revision: String::new(),
        database_url,
        redis_url: SecretString::default(),
        outbox_sink_url: Some("log:".to_owned().into()),
        outbox_mode: OutboxMode::InProcess,
        node_token: crate::types::hex(&rand::random::<[u8; 16]>()).into(),
        await_order: false,
        lease_ttl: Duration::from_secs(6),
        snapshot_flush_timeout: Duration::from_secs(5),
        grpc_drain_timeout: Duration::from_secs(5),
        outbox_flush_timeout: Duration::from_secs(2),
        shutdown_timeout: SHUTDOWN_TIMEOUT,
        pre_stop_wait: Duration::ZERO,
        idle_unload: Duration::from_secs(600),
        commit_sessions: 1,
        log_format: args.log_format,
        fault_injection: false,
    }
}
