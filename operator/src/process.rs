//! The operator as a process: its flags, its parts, and the order of their end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector;
use kube::{Client, Config};
use roomcluster_crds::names;
use roomcluster_lifecycle::{BoxError, ConfigError, Identity, LogFormat, Process, Settings, Shutdown, args};
use tokio::time::{MissedTickBehavior, interval};

use crate::controller;
use crate::leader::Election;
use crate::metrics::OperatorMetrics;
use crate::observe::Hosts;
use crate::reconcile::Reconciler;

/// Name of the Lease; all operators that would manage the same clusters must meet there.
const LEASE_NAME: &str = "roomcluster-operator";
/// Reconciles that run may end by themselves.
const CONTROLLER_BUDGET: Duration = Duration::from_secs(10);
/// One write to the API server.
const ELECTION_BUDGET: Duration = Duration::from_secs(4);
/// What is left then only has to notice.
const TASKS_BUDGET: Duration = Duration::from_secs(1);
/// An API server that is there answers a connection in this time.
const API_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the leader gauge is brought up to date: a claim expires without anybody writing.
const LEADER_GAUGE_EVERY: Duration = Duration::from_secs(1);

/// Rolls RoomClusters without cutting a room.
#[derive(Clone, Debug, Parser)]
#[command(name = "roomcluster-operator", version)]
pub struct Args {
    /// Where probes and metrics are served.
    #[arg(long, env = "ADMIN_LISTEN", default_value = "0.0.0.0:8080")]
    pub admin_listen: SocketAddr,
    /// The namespace whose RoomClusters are managed; all when left out.
    #[arg(long, env = "WATCH_NAMESPACE")]
    pub watch_namespace: Option<String>,
    /// The namespace of the leader Lease.
    #[arg(long, env = "LEADER_ELECTION_NAMESPACE")]
    pub leader_election_namespace: Option<String>,
    /// The namespace of this pod; that of the leader Lease unless another is named.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub pod_namespace: String,
    /// The name of this pod.
    #[arg(long, env = "POD_NAME", default_value = "roomcluster-operator")]
    pub pod_name: String,
    /// How long the shutdown may take in all.
    #[arg(long, env = "SHUTDOWN_TIMEOUT", default_value = "20s", value_parser = args::positive_duration)]
    pub shutdown_timeout: Duration,
    /// How logs look: json or text.
    #[arg(long, env = "LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,
}

impl Args {
    /// What the process needs to know before it starts.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            identity: Identity::new(names::OPERATOR_NAME, &self.pod_name),
            log_format: self.log_format,
            admin_listen: self.admin_listen,
            shutdown_timeout: self.shutdown_timeout,
        }
    }

    fn namespace(&self) -> Option<String> {
        self.watch_namespace.clone().filter(|namespace| !namespace.is_empty())
    }

    fn lease_namespace(&self) -> &str {
        let named = self.leader_election_namespace.as_deref().filter(|namespace| !namespace.is_empty());
        named.unwrap_or(&self.pod_namespace)
    }
}

/// Starts the election and the controller; says in which order they end.
///
/// # Errors
/// When there is no cluster to speak to.
pub async fn start(process: Process, args: Args) -> Result<Shutdown, BoxError> {
    let client = client().await?;
    let clock = process.clock.clone();
    let now = Arc::new(move || Timestamp::from_millisecond(clock.now_ms()).unwrap_or(Timestamp::UNIX_EPOCH));
    let (election, claim) =
        Election::new(client.clone(), args.lease_namespace(), LEASE_NAME, &args.pod_name, now);
    let metrics = process.metrics.register(OperatorMetrics::registered_in);

    let (gauge, held) = (metrics.clone(), claim.clone());
    process.tasks.spawn_essential("leader_gauge", move |stop| async move {
        let mut ticks = interval(LEADER_GAUGE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => gauge.leads(held.is_held()),
            }
        }
    });
    let elections = process.tasks.group();
    elections.spawn_essential("election", move |stop| election.run(stop));

    let (store, writer) = reflector::store();
    let hosts = Hosts::new(Some(store));
    let reconciler = Arc::new(Reconciler::new(
        client.clone(),
        claim,
        process.clock.clone(),
        metrics,
        hosts,
        &args.pod_name,
    ));
    let controllers = process.tasks.group();
    let namespace = args.namespace();
    controllers.spawn_essential("controller", move |stop| {
        controller::run(client, namespace, reconciler, writer, stop)
    });

    let all = process.tasks.clone();
    // The claim goes last of what matters: whoever takes it may write, so nothing of ours may be under way.
    Ok(process
        .shutdown()
        .phase("controller", CONTROLLER_BUDGET, move |budget| async move {
            controllers.stop_and_join(budget.deadline).await
        })
        .phase("election", ELECTION_BUDGET, move |budget| async move {
            elections.stop_and_join(budget.deadline).await
        })
        .phase("tasks", TASKS_BUDGET, move |budget| async move { all.stop_and_join(budget.deadline).await }))
}

async fn client() -> Result<Client, BoxError> {
    let mut config = Config::infer()
        .await
        .map_err(|error| ConfigError::new("KUBECONFIG", crate::error::sentence(&error)))?;
    config.connect_timeout = Some(API_CONNECT_TIMEOUT);
    Ok(Client::try_from(config)?)
}
