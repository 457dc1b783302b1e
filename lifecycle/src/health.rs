//! One health state that feeds HTTP, gRPC, logs and metrics alike.
//!
//! Ready means: running, not evacuating, every gate open, every hard check passed lately. Checks run in the
//! background (`checks`); a probe only reads what is there. Live means: the main loops beat
//! (`heartbeat`); it never asks another process. This module does not know what is checked, nor how probes
//! arrive.
//!
//! Invariants: without a verdict a process is not ready; a verdict that is too old counts as failed, so that
//! a stuck runtime cannot keep an old "ok" alive; a change is logged once.

mod checks;
mod grpc;
mod heartbeat;
mod report;

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic_health::pb::health_server::HealthServer;

pub use checks::Check;
pub use grpc::GrpcHealth;
pub use heartbeat::Heartbeat;
pub use report::{Answer, FailedCheck, Report, Status};

use crate::clock::SharedClock;
use crate::metrics::{Labels, Metrics};
use crate::state::{Identity, Lifecycle, State, View};
use crate::tasks::Tasks;
use checks::CheckState;
use heartbeat::Pulse;

/// The health of a process. Clones are handles to the same one.
#[derive(Clone)]
pub struct Health {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").field("status", &*self.inner.status.borrow()).finish_non_exhaustive()
    }
}

struct Inner {
    lifecycle: Lifecycle,
    clock: SharedClock,
    /// Where the checks run.
    tasks: Tasks,
    /// Where they are started, timed and judged.
    judge: Tasks,
    checks: RwLock<Vec<Arc<CheckState>>>,
    gates: RwLock<Vec<Arc<Gate>>>,
    pulses: RwLock<Vec<Arc<Pulse>>>,
    /// What was last logged; also the turnstile that lets one change through at a time.
    last: Mutex<Status>,
    status: watch::Sender<Status>,
}

struct Gate {
    name: &'static str,
    /// Why it is closed; `None` while it is open.
    closed: Mutex<Option<String>>,
}

/// A named condition of readiness that its owner sets, for example `order`: "waits for the first order".
/// Clones set the same gate. A gate lasts as long as the process.
#[derive(Clone)]
pub struct ReadyGate {
    health: Health,
    gate: Arc<Gate>,
}

impl std::fmt::Debug for ReadyGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadyGate").field("name", &self.gate.name).finish_non_exhaustive()
    }
}

impl ReadyGate {
    /// The condition holds.
    pub fn open(&self) {
        self.set(None);
    }

    /// The condition does not hold; `reason` shows in the readiness answer.
    pub fn close(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()));
    }

    /// Whether the condition holds.
    pub fn is_open(&self) -> bool {
        self.gate.closed.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn set(&self, closed: Option<String>) {
        *self.gate.closed.lock().unwrap_or_else(PoisonError::into_inner) = closed;
        self.health.settle(Duration::ZERO);
    }
}

impl Health {
    /// The health of the process of `lifecycle`. Its checks run as tasks of `tasks`.
    pub fn new(lifecycle: &Lifecycle, clock: SharedClock, tasks: &Tasks) -> Self {
        Self::with_judge(lifecycle, clock, tasks.group(), tasks.group())
    }

    /// As [`Health::new`], with the checks judged on another runtime: a check that blocks a thread of its runtime
    /// can stop the timers there, its own time-out among them.
    pub(crate) fn judged_on(
        judge: tokio::runtime::Handle,
        lifecycle: &Lifecycle,
        clock: SharedClock,
        tasks: &Tasks,
    ) -> Self {
        Self::with_judge(lifecycle, clock, tasks.group(), tasks.group_on(judge))
    }

    fn with_judge(lifecycle: &Lifecycle, clock: SharedClock, tasks: Tasks, judge: Tasks) -> Self {
        let inner = Inner {
            lifecycle: lifecycle.clone(),
            clock,
            tasks,
            judge,
            checks: RwLock::default(),
            gates: RwLock::default(),
            pulses: RwLock::default(),
            last: Mutex::new(Status::Unknown),
            status: watch::Sender::new(Status::Unknown),
        };
        let health = Self { inner: Arc::new(inner) };
        health.refresh_metrics();
        health.follow_lifecycle();
        health
    }

    /// Runs `run` again and again and keeps its last verdict. A hard check that fails makes the process not
    /// ready; a soft one is only logged and counted.
    pub fn add_check<F, Fut, E>(&self, check: Check, run: F)
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: std::fmt::Display,
    {
        let state = Arc::new(CheckState::new(check));
        write(&self.inner.checks).push(Arc::clone(&state));
        self.settle(Duration::ZERO);
        checks::spawn(self, state, run);
    }

    /// A gate that is closed for `reason` until its owner opens it.
    pub fn closed_gate(&self, name: &'static str, reason: impl Into<String>) -> ReadyGate {
        self.gate(name, Some(reason.into()))
    }

    /// A gate that is open until its owner closes it.
    pub fn open_gate(&self, name: &'static str) -> ReadyGate {
        self.gate(name, None)
    }

    fn gate(&self, name: &'static str, closed: Option<String>) -> ReadyGate {
        let gate = Arc::new(Gate { name, closed: Mutex::new(closed) });
        write(&self.inner.gates).push(Arc::clone(&gate));
        self.settle(Duration::ZERO);
        ReadyGate { health: self.clone(), gate }
    }

    /// Promises that the loop `name` beats at least every `bound`; otherwise the process counts as dead, and
    /// is restarted. Be generous: a bound is for a loop that stopped, not for a busy one. A second heartbeat
    /// of the same name takes the place of the first.
    pub fn heartbeat(&self, name: &'static str, bound: Duration) -> Heartbeat {
        let pulse = Arc::new(Pulse::new(name, bound));
        let mut pulses = write(&self.inner.pulses);
        pulses.retain(|known| known.name() != name);
        pulses.push(Arc::clone(&pulse));
        Heartbeat::new(self.clone(), pulse)
    }

    /// Beats from the runtime of the tasks, under the name `runtime`: if it runs no task for `bound`, the
    /// process counts as dead.
    pub fn watch_runtime(&self, bound: Duration) {
        let heartbeat = self.heartbeat("runtime", bound);
        let period = (bound / 10).max(Duration::from_millis(10));
        self.inner.tasks.spawn_essential("runtime-heartbeat", move |stop| async move {
            let mut ticks = tokio::time::interval(period);
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return heartbeat.retire(),
                    _ = ticks.tick() => heartbeat.beat(),
                }
            }
        });
    }

    /// Whether the process may get new traffic, and what speaks against it. Waits for nothing.
    pub fn ready(&self) -> Report {
        report::ready(self.inner.lifecycle.view(), &self.failed_gates(), &self.check_views())
    }

    /// Whether the main loops make progress, and which do not. Waits for nothing.
    ///
    /// A process that drains is live: its end is bounded by the shutdown's deadline, and its loops end in order.
    pub fn live(&self) -> Report {
        if self.inner.lifecycle.state() >= State::Draining {
            return Report::ok();
        }
        let now = Instant::now();
        let late = read(&self.inner.pulses).iter().filter_map(|pulse| pulse.late(now)).collect();
        Report::of_failures(late)
    }

    /// A report as the body of a health answer.
    pub fn answer(&self, report: Report) -> Answer {
        Answer::new(self.identity(), self.inner.clock.now_ms(), report)
    }

    /// The standard gRPC health service, for the name of the service and for the overall name `""`.
    pub fn grpc_service(&self) -> HealthServer<GrpcHealth> {
        HealthServer::new(GrpcHealth::new(self.clone()))
    }

    /// Follows the status.
    pub fn subscribe(&self) -> watch::Receiver<Status> {
        self.inner.status.subscribe()
    }

    /// Brings the gauges up to date; done before each scrape, since beats and verdicts also age in silence.
    pub(crate) fn refresh_metrics(&self) {
        self.settle(Duration::ZERO);
        let (ready, live) = (self.ready().is_ok(), self.live().is_ok());
        let metrics = &self.metrics().process;
        metrics.health_ready_status.get_or_create(&self.labels()).set(i64::from(ready));
        metrics.health_live_status.get_or_create(&self.labels()).set(i64::from(live));
    }

    /// Compares the present status with the last one; logs and tells the watchers if it is another.
    fn settle(&self, duration: Duration) {
        let mut last = self.inner.last.lock().unwrap_or_else(PoisonError::into_inner);
        let report = self.ready();
        if report.status == *last {
            return;
        }
        let (old, new) = (*last, report.status);
        *last = new;
        self.inner.status.send_replace(new);
        let ready = self.metrics().process.health_ready_status.get_or_create_owned(&self.labels());
        ready.set(i64::from(new == Status::Ready));
        let (failed_check, reason) = report.first_failure();
        self.log_change("ready", (old, new), failed_check, reason, duration);
    }

    fn log_change(
        &self,
        probe: &'static str,
        (old, new): (Status, Status),
        failed_check: &str,
        reason: &str,
        duration: Duration,
    ) {
        let Identity { service, node_id } = self.identity();
        let (old_status, new_status) = (old.as_str(), new.as_str());
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        // A drain is an order, not a surprise; so is being ready.
        if new == Status::Ready || self.inner.lifecycle.state() >= State::Draining {
            tracing::info!(
                service,
                node_id,
                probe,
                old_status,
                new_status,
                failed_check,
                reason,
                duration_ms,
                "the health status changed"
            );
        } else {
            tracing::warn!(
                service,
                node_id,
                probe,
                old_status,
                new_status,
                failed_check,
                reason,
                duration_ms,
                "the health status changed"
            );
        }
    }

    fn follow_lifecycle(&self) {
        let health = self.clone();
        self.inner.judge.spawn_essential("health", move |stop| async move {
            let mut view = health.inner.lifecycle.subscribe();
            loop {
                health.settle(Duration::ZERO);
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    changed = view.changed() => changed.expect("the lifecycle lives in this task's health"),
                }
            }
        });
    }

    fn failed_gates(&self) -> Vec<FailedCheck> {
        let closed = |gate: &Arc<Gate>| {
            let reason = gate.closed.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
            Some(FailedCheck::new(gate.name, reason))
        };
        read(&self.inner.gates).iter().filter_map(closed).collect()
    }

    fn check_views(&self) -> Vec<report::CheckView> {
        let now = Instant::now();
        read(&self.inner.checks).iter().filter_map(|check| check.view(now)).collect()
    }

    fn view(&self) -> View {
        self.inner.lifecycle.view()
    }

    fn identity(&self) -> &Identity {
        self.inner.lifecycle.identity()
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        self.inner.lifecycle.metrics()
    }

    fn labels(&self) -> Labels {
        vec![("service", self.identity().service.clone())]
    }
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
