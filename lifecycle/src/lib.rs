//! How every process of RoomCluster starts, reports its health, drains and stops.
//!
//! All processes share one state machine ([`state`]: starting, running, draining, stopped), one place that spawns
//! tasks ([`tasks`]), one health state for HTTP, gRPC, logs and metrics ([`health`]), servers that end in bounded
//! time ([`server`]), an ordered shutdown with a ledger ([`shutdown`]), and a `main` ([`process`]). Nothing here
//! knows what a room, a lease or an operator is, and nothing here asks another process anything.
//!
//! ```no_run
//! use std::net::SocketAddr;
//! use std::process::ExitCode;
//! use std::time::Duration;
//!
//! use clap::Parser;
//! use roomcluster_lifecycle::{
//!     BoxError, Check, GrpcServer, Identity, LogFormat, Process, Settings, Shutdown, args, listen, run_main,
//! };
//! use tonic::service::Routes;
//!
//! #[derive(Parser)]
//! struct Args {
//!     #[arg(long, env = "NODE_ID")]
//!     node_id: String,
//!     #[arg(long, env = "GRPC_LISTEN", default_value = "0.0.0.0:7400")]
//!     grpc_listen: SocketAddr,
//!     #[arg(long, env = "ADMIN_LISTEN", default_value = "0.0.0.0:7401")]
//!     admin_listen: SocketAddr,
//!     #[arg(long, env = "SHUTDOWN_TIMEOUT", default_value = "30s", value_parser = args::positive_duration)]
//!     shutdown_timeout: Duration,
//!     #[arg(long, env = "LOG_FORMAT", default_value = "json")]
//!     log_format: LogFormat,
//! }
//!
//! fn main() -> ExitCode {
//!     let args: Args = args::parse_or_exit();
//!     let settings = Settings {
//!         identity: Identity::new("wallet-service", &args.node_id),
//!         log_format: args.log_format,
//!         admin_listen: args.admin_listen,
//!         shutdown_timeout: args.shutdown_timeout,
//!     };
//!     run_main(settings, |process| start(process, args))
//! }
//!
//! async fn start(process: Process, args: Args) -> Result<Shutdown, BoxError> {
//!     let Process { health, tasks, .. } = &process;
//!
//!     // What readiness depends on.
//!     health.add_check(Check::hard("redis").timeout(Duration::from_millis(200)), || async { Ok::<_, String>(()) });
//!     let order = health.closed_gate("order", "waits for the first order");
//!
//!     // A main loop that liveness depends on.
//!     let loops = tasks.group();
//!     let heartbeat = health.heartbeat("renewal", Duration::from_secs(30));
//!     loops.spawn_essential("renewal", move |stop| async move {
//!         let mut ticks = tokio::time::interval(Duration::from_secs(2));
//!         loop {
//!             tokio::select! {
//!                 biased;
//!                 () = stop.cancelled() => return heartbeat.retire(),
//!                 _ = ticks.tick() => heartbeat.beat(),
//!             }
//!         }
//!     });
//!
//!     let listener = listen("--grpc-listen", args.grpc_listen)?;
//!     let grpc = GrpcServer::start(listener, Routes::default(), health, tasks)?;
//!     order.open();
//!
//!     // The end, in order: stop accepting and wait, flush, close the dependencies last.
//!     let (calls, all) = (grpc.clone(), tasks.clone());
//!     let plan = process
//!         .shutdown()
//!         .phase("grpc", Duration::from_secs(20), move |budget| async move { grpc.shutdown(budget.deadline).await })
//!         .unfinished("grpc_connection", move || calls.busy_connections())
//!         .phase("loops", Duration::from_secs(5), move |budget| async move { loops.stop_and_join(budget.deadline).await })
//!         .phase("redis", Duration::from_secs(1), |_| async { /* close the client */ })
//!         .phase("tasks", Duration::from_secs(1), move |budget| async move { all.stop_and_join(budget.deadline).await });
//!     Ok(plan)
//! }
//! ```

pub mod args;
pub mod clock;
pub mod health;
pub mod metrics;
pub mod process;
pub mod server;
pub mod shutdown;
pub mod state;
pub mod tasks;
pub mod telemetry;
#[cfg(test)]
mod test_log;

pub use args::{BoxError, ConfigError, Exit};
pub use clock::{Clock, ManualClock, SharedClock, SystemClock};
pub use health::{Check, Health, Heartbeat, ReadyGate};
pub use metrics::{Metrics, Protocol};
pub use process::{Process, Settings, run_main};
pub use server::{AdminServer, GrpcServer, listen};
pub use shutdown::{Budget, PhaseReport, Shutdown, ShutdownCounts};
pub use state::{DrainCause, Identity, Lifecycle, Signal, State, View};
pub use tasks::{Backoff, TaskEnd, Tasks, Unfinished};
pub use telemetry::LogFormat;
