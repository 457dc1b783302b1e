//! A process put together: what every `main` shares.
//!
//! [`run_main`] starts telemetry, runtime, probes and signals, lets the caller start its parts, waits for the
//! drain, and runs the caller's plan of the shutdown. It does not know the parts.
//!
//! Invariants: probes are answered before the first part starts and until after the last has ended; the end
//! comes at the latest [`FORCE_MARGIN`] after the shutdown time-out, even if the runtime is blocked.

mod supervisor;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use crate::args::{BoxError, Exit, exit_of};
use crate::clock::{SharedClock, SystemClock};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::server::AdminServer;
use crate::shutdown::{Ledger, Shutdown};
use crate::state::{DrainCause, Identity, Lifecycle};
use crate::tasks::Tasks;
use crate::telemetry::{self, LogFormat};
use supervisor::Supervisor;

/// How long after the shutdown time-out the process is ended from outside of its runtime.
pub const FORCE_MARGIN: Duration = Duration::from_secs(3);
/// How long a process that had to cut something waits for the metrics to be scraped once more.
const LAST_SCRAPE_WAIT: Duration = Duration::from_secs(2);
/// How long the answer to that scrape has to leave the process.
const LAST_ANSWER_WAIT: Duration = Duration::from_millis(200);
/// If the runtime runs no task for so long, the process counts as dead. A loaded node is far from it.
const RUNTIME_BOUND: Duration = Duration::from_secs(20);

/// What a process needs to know about itself before it starts.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its name.
    pub identity: Identity,
    /// How its logs look.
    pub log_format: LogFormat,
    /// Where probes and metrics are served; came by `--admin-listen`.
    pub admin_listen: SocketAddr,
    /// How long the shutdown may take in all.
    pub shutdown_timeout: Duration,
}

/// The parts that every process has. Clones are handles to the same ones.
#[derive(Debug, Clone)]
pub struct Process {
    /// The state machine.
    pub lifecycle: Lifecycle,
    /// The tasks.
    pub tasks: Tasks,
    /// The health.
    pub health: Health,
    /// The metrics.
    pub metrics: Metrics,
    /// The wall clock.
    pub clock: SharedClock,
    /// Probes, metrics and the caller's own routes.
    pub admin: AdminServer,
    shutdown_timeout: Duration,
}

impl Process {
    /// An empty plan under the shutdown time-out of the process.
    pub fn shutdown(&self) -> Shutdown {
        Shutdown::new(self.shutdown_timeout)
    }
}

/// Runs a process from start to end. `start` starts its parts and returns the plan of their end; the process is
/// running when it returns. A [`crate::args::ConfigError`] of it makes the exit code 64, another error 1.
pub fn run_main<F, Fut>(settings: Settings, start: F) -> ExitCode
where
    F: FnOnce(Process) -> Fut,
    Fut: Future<Output = Result<Shutdown, BoxError>>,
{
    if let Err(error) = telemetry::init(&settings.identity, settings.log_format) {
        eprintln!("error: {error}");
        return Exit::BadConfig.into();
    }
    let Identity { service, node_id } = settings.identity.clone();
    match run_on_runtime(settings, start) {
        Ok(exit) => exit.into(),
        Err(error) => {
            tracing::error!(service, node_id, %error, "the process could not start");
            exit_of(error.as_ref()).into()
        }
    }
}

fn run_on_runtime<F, Fut>(settings: Settings, start: F) -> Result<Exit, BoxError>
where
    F: FnOnce(Process) -> Fut,
    Fut: Future<Output = Result<Shutdown, BoxError>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let exit = runtime.block_on(run(settings, start));
    // Whatever still runs, a blocking call included, must not hold up the exit.
    runtime.shutdown_background();
    exit
}

async fn run<F, Fut>(settings: Settings, start: F) -> Result<Exit, BoxError>
where
    F: FnOnce(Process) -> Fut,
    Fut: Future<Output = Result<Shutdown, BoxError>>,
{
    let Settings { identity, admin_listen, shutdown_timeout, .. } = settings;
    let metrics = Metrics::new();
    let lifecycle = Lifecycle::new(identity, metrics.clone());
    let tasks = Tasks::new(lifecycle.clone());
    let supervisor = Supervisor::start(&lifecycle, &tasks, shutdown_timeout + FORCE_MARGIN)?;
    let clock = SystemClock::shared();
    let health = Health::judged_on(supervisor.runtime(), &lifecycle, clock.clone(), &tasks);
    health.watch_runtime(RUNTIME_BOUND);
    let admin = AdminServer::start("--admin-listen", admin_listen, health.clone())?;
    let process = Process { lifecycle, tasks, health, metrics, clock, admin, shutdown_timeout };

    let plan = start_parts(&process, start).await?;
    supervisor.watch(plan.progress());
    process.lifecycle.draining().cancelled().await;
    let ledger = plan.run(&process.lifecycle).await;
    Ok(finish(&process, &ledger).await)
}

/// Starts the parts. If the process is told to end before they have started, they are dropped half-started.
async fn start_parts<F, Fut>(process: &Process, start: F) -> Result<Shutdown, BoxError>
where
    F: FnOnce(Process) -> Fut,
    Fut: Future<Output = Result<Shutdown, BoxError>>,
{
    let lifecycle = &process.lifecycle;
    let plan = tokio::select! {
        biased;
        () = lifecycle.draining().cancelled() => return Ok(process.shutdown()),
        plan = start(process.clone()) => plan?,
    };
    // The drain may have begun in the meantime; then the plan is what is needed next.
    if let Err(late) = lifecycle.mark_running() {
        tracing::info!(%late, "the process is told to end before it runs");
    }
    Ok(plan)
}

async fn finish(process: &Process, ledger: &Ledger) -> Exit {
    let failed = process.lifecycle.drain_cause().is_some_and(DrainCause::is_failure);
    let cut = ledger.entries.iter().any(crate::shutdown::Entry::is_cut);
    if cut {
        // A counter that nobody reads is lost with the process.
        if tokio::time::timeout(LAST_SCRAPE_WAIT, process.admin.scraped()).await.is_ok() {
            tokio::time::sleep(LAST_ANSWER_WAIT).await;
        }
    }
    if cut {
        Exit::CutShort
    } else if failed || !ledger.is_graceful() {
        Exit::Failed
    } else {
        Exit::Clean
    }
}
