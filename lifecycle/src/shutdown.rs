//! The ordered end of a process: named phases, each with a budget cut from one total, and a ledger of them.
//!
//! The order is the caller's: stop accepting, wait for what is in flight, flush and release, and close the
//! dependencies last. This module does not know what the phases do.
//!
//! Invariants: the total counts from the cause of the drain, not from the first phase; a phase that overruns is
//! dropped, counted and logged once, and every later phase still gets its share; a panic is one phase's failure.

mod budget;
mod ledger;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use ledger::{Cut, Entry, Ledger, Outcome, PhaseReport};
pub(crate) use ledger::{Progress, millis};

use crate::state::{DrainCause, Identity, Lifecycle};

/// What is left of the total after the second signal.
const HURRIED_TOTAL: Duration = Duration::from_secs(5);
/// How long a phase may take beyond its deadline to count and cut by itself what it could not finish.
const CUT_GRACE: Duration = Duration::from_millis(250);

/// The time that a phase has.
#[derive(Debug, Clone)]
pub struct Budget {
    /// When the phase should have ended; a little later it is dropped.
    pub deadline: Instant,
    /// Cancelled at the second signal: end quickly.
    pub hurry: CancellationToken,
}

/// Numbers that the log of a shutdown carries, if the process has such things.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShutdownCounts {
    /// WebSocket connections that are open.
    pub active_ws_connections: Option<u64>,
    /// Room cells that this node holds.
    pub active_room_cells: Option<u64>,
    /// Events in the outbox batch under way.
    pub outbox_batch_size: Option<u64>,
}

type Count = Arc<dyn Fn() -> u64 + Send + Sync>;

struct Phase {
    name: &'static str,
    budget: Duration,
    start: Box<dyn FnOnce(Budget) -> BoxFuture<'static, PhaseReport> + Send>,
    unfinished: Option<(&'static str, Count)>,
}

/// The plan of a shutdown.
#[must_use = "a plan that is not run ends nothing"]
pub struct Shutdown {
    total: Duration,
    phases: Vec<Phase>,
    counts: Box<dyn Fn() -> ShutdownCounts + Send + Sync>,
    progress: Progress,
}

impl fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phases: Vec<_> = self.phases.iter().map(|phase| (phase.name, phase.budget)).collect();
        f.debug_struct("Shutdown")
            .field("total", &self.total)
            .field("phases", &phases)
            .finish_non_exhaustive()
    }
}

impl Shutdown {
    /// A plan without phases. `total` is the shutdown time-out of the process.
    pub fn new(total: Duration) -> Self {
        let counts = Box::new(ShutdownCounts::default);
        Self { total, phases: Vec::new(), counts, progress: Progress::default() }
    }

    /// Adds a phase. If the budgets together exceed the total, each phase gets its proportion; what an earlier
    /// one leaves over goes to the later ones, up to their own budget.
    pub fn phase<F, Fut>(mut self, name: &'static str, budget: Duration, start: F) -> Self
    where
        F: FnOnce(Budget) -> Fut + Send + 'static,
        Fut: Future<Output: Into<PhaseReport>> + Send + 'static,
    {
        let start = Box::new(move |budget| async move { start(budget).await.into() }.boxed());
        self.phases.push(Phase { name, budget, start, unfinished: None });
        self
    }

    /// Says what the phase added last leaves behind if it overruns: the type of the resource, and how many.
    ///
    /// # Panics
    /// Without a phase.
    pub fn unfinished(
        mut self,
        resource: &'static str,
        count: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let phase = self.phases.last_mut().expect("a phase comes before what it leaves behind");
        phase.unfinished = Some((resource, Arc::new(count)));
        self
    }

    /// Says where the numbers in the log come from.
    pub fn counts(mut self, counts: impl Fn() -> ShutdownCounts + Send + Sync + 'static) -> Self {
        self.counts = Box::new(counts);
        self
    }

    /// What has been done so far, for whoever has to end the process from outside.
    pub(crate) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Runs the phases in order, and leaves the process `stopped`. Begins the drain if nobody has.
    pub async fn run(self, lifecycle: &Lifecycle) -> Ledger {
        lifecycle.begin_drain(DrainCause::Requested("shutdown"));
        let drain = lifecycle.drain().expect("the drain has just begun, or began before");
        let counts_at_begin = (self.counts)();
        let run = Run { lifecycle, progress: &self.progress, end: drain.began_at + self.total };
        run.phases(self.phases).await;

        let ledger = Ledger::new(self.progress.entries(), drain.began_at.elapsed());
        let metrics = &lifecycle.metrics().process;
        let labels = vec![("service", lifecycle.identity().service.clone())];
        let duration_ms = i64::try_from(ledger.duration_ms).unwrap_or(i64::MAX);
        metrics.service_shutdown_duration_ms.get_or_create(&labels).set(duration_ms);
        lifecycle.mark_stopped().expect("only this function stops a process, and it consumes the plan");
        log_ledger(lifecycle, &ledger, counts_at_begin, self.total);
        ledger
    }
}

struct Run<'a> {
    lifecycle: &'a Lifecycle,
    progress: &'a Progress,
    end: Instant,
}

impl Run<'_> {
    async fn phases(mut self, phases: Vec<Phase>) {
        let budgets: Vec<_> = phases.iter().map(|phase| phase.budget).collect();
        let mut is_hurried = false;
        for (at, phase) in phases.into_iter().enumerate() {
            self.progress.begin(phase.name, phase.unfinished.clone());
            let entry = self.phase(phase, &budgets[at..], &mut is_hurried).await;
            self.account(&entry);
            self.progress.end(entry);
        }
    }

    /// Runs the first of the phases that are left; `budgets` are theirs.
    async fn phase(&mut self, phase: Phase, budgets: &[Duration], is_hurried: &mut bool) -> Entry {
        let Phase { name, start, unfinished, .. } = phase;
        let began_at = Instant::now();
        let hurry = self.lifecycle.hurry().clone();
        let mut deadline = began_at + budget::allot(budgets, self.left());
        let budget_ms = millis(deadline - began_at);
        let given = Budget { deadline, hurry: hurry.clone() };
        let mut work = std::pin::pin!(AssertUnwindSafe(async { start(given).await }).catch_unwind());
        let (outcome, report) = loop {
            tokio::select! {
                biased;
                ended = &mut work => break match ended {
                    Ok(report) => (report.outcome(), report),
                    Err(_) => (Outcome::Failed, PhaseReport::failed("the phase panicked")),
                },
                () = hurry.cancelled(), if !*is_hurried => {
                    *is_hurried = true;
                    self.end = self.end.min(Instant::now() + HURRIED_TOTAL);
                    deadline = deadline.min(Instant::now() + budget::allot(budgets, self.left()));
                }
                () = tokio::time::sleep_until(deadline + CUT_GRACE) => {
                    let (resource, count) = unfinished.map_or(("phase", 1), |(resource, count)| (resource, count()));
                    break (Outcome::CutOff, PhaseReport::done().cut(resource, count));
                }
            }
        };
        Entry { phase: name, budget_ms, duration_ms: millis(began_at.elapsed()), outcome, report }
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Counts and logs what the phase cut off, once.
    fn account(&self, entry: &Entry) {
        let Identity { service, node_id } = self.lifecycle.identity();
        let metrics = &self.lifecycle.metrics().process;
        if let Some(problem) = entry.report.problem() {
            let (phase, duration_ms) = (entry.phase, entry.duration_ms);
            tracing::warn!(service, node_id, phase, problem, duration_ms, "a shutdown phase failed");
        }
        if !entry.is_cut() {
            return;
        }
        metrics.service_shutdown_forced.get_or_create(&vec![("service", service.clone())]).inc();
        for Cut { resource, count } in entry.report.cuts() {
            let labels = vec![("phase", entry.phase.to_owned()), ("resource", (*resource).to_owned())];
            metrics.service_shutdown_cut.get_or_create(&labels).inc_by(*count);
            tracing::warn!(
                service,
                node_id,
                phase = entry.phase,
                resource,
                count,
                budget_ms = entry.budget_ms,
                duration_ms = entry.duration_ms,
                "a shutdown phase was cut short"
            );
        }
    }
}

fn log_ledger(lifecycle: &Lifecycle, ledger: &Ledger, counts: ShutdownCounts, total: Duration) {
    let Identity { service, node_id } = lifecycle.identity();
    tracing::info!(
        service, node_id,
        signal = lifecycle.drain_cause().map_or("", DrainCause::signal),
        state = lifecycle.state().as_str(),
        ready = false,
        inflight_requests = lifecycle.metrics().inflight_requests(),
        active_ws_connections = counts.active_ws_connections,
        active_room_cells = counts.active_room_cells,
        outbox_batch_size = counts.outbox_batch_size,
        shutdown_deadline_ms = millis(total),
        duration_ms = ledger.duration_ms,
        result = ledger.result(),
        phases = %ledger,
        "the shutdown has ended"
    );
}

#[cfg(test)]
mod tests;
