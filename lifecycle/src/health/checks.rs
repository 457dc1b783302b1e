//! Checks that run in the background.
//!
//! Each run is a task of its own under a time-out, so that the verdict falls in time even when the check ignores
//! everything; a run that is over time is cancelled, and the next one begins only after it has really ended.
//! So runs of a check never overlap and never pile up. Nothing here knows what a check does.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::Health;
use super::report::{CheckView, FailedCheck, Status};
use crate::metrics::Labels;

/// The longest message kept of a failing check, in bytes: a probe answer is read by people.
const MESSAGE_LIMIT_BYTES: usize = 300;
/// The shortest period, so that a zero in a configuration does not become a busy loop.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);
/// What a run that takes too long is said to be.
const OVER_TIME: &str = "deadline exceeded";
/// How long a run may be over time before its reader stops waiting for the judge.
const LATE_JUDGE: Duration = Duration::from_millis(50);
/// A verdict older than this many periods (and one time-out) counts as failed.
const STALE_AFTER_PERIODS: u32 = 5;

/// What a check is called, and how long and how often it runs.
#[derive(Debug, Clone)]
pub struct Check {
    name: &'static str,
    is_hard: bool,
    timeout: Duration,
    period: Duration,
    fail_after: u32,
}

impl Check {
    /// A check without which the process must not get traffic. Time-out 300 ms, period 1 s.
    pub fn hard(name: &'static str) -> Self {
        Self {
            name,
            is_hard: true,
            timeout: Duration::from_millis(300),
            period: Duration::from_secs(1),
            fail_after: 1,
        }
    }

    /// A check that is only logged and counted.
    pub fn soft(name: &'static str) -> Self {
        Self { is_hard: false, ..Self::hard(name) }
    }

    /// How long one run may take.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// How long to wait between the starts of two runs.
    pub fn period(self, period: Duration) -> Self {
        Self { period: period.max(SHORTEST_PERIOD), ..self }
    }

    /// How many runs in a row must fail before a check that was good counts as failed; 1 unless told.
    /// The first verdict always counts at once.
    pub fn fail_after(self, runs: u32) -> Self {
        Self { fail_after: runs.max(1), ..self }
    }
}

/// A check and its last verdict.
#[derive(Debug)]
pub(super) struct CheckState {
    check: Check,
    verdict: Mutex<Verdict>,
}

#[derive(Debug, Default)]
struct Verdict {
    /// When the run under way began, until its result is in.
    running_since: Option<Instant>,
    /// When the last run ended; `None` before the first.
    at: Option<Instant>,
    /// What the check is held to say, after `fail_after`.
    problem: Option<String>,
    failures_in_a_row: u32,
}

impl CheckState {
    pub(super) fn new(check: Check) -> Self {
        Self { check, verdict: Mutex::default() }
    }

    /// What speaks against being ready; nothing for a good or soft check.
    pub(super) fn view(&self, now: Instant) -> Option<CheckView> {
        let Check { name, is_hard, .. } = self.check;
        if !is_hard {
            return None;
        }
        let verdict = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = verdict.at else { return Some(CheckView::NoVerdict { name }) };
        if let Some(problem) = &verdict.problem {
            return Some(CheckView::Failed(FailedCheck::new(name, problem)));
        }
        // The reader holds the time-out too: whoever should have judged the run may be stuck behind it.
        let is_overdue = |since| now.saturating_duration_since(since) > self.check.timeout + LATE_JUDGE;
        if self.check.fail_after == 1 && verdict.running_since.is_some_and(is_overdue) {
            return Some(CheckView::Failed(FailedCheck::new(name, OVER_TIME)));
        }
        let age = now.saturating_duration_since(at);
        (age > self.stale_after()).then(|| {
            CheckView::Failed(FailedCheck::new(name, format!("no verdict for {} ms", age.as_millis())))
        })
    }

    fn stale_after(&self) -> Duration {
        self.check.timeout + self.check.period * STALE_AFTER_PERIODS
    }

    /// Takes the result of a run; tells the old and new status if the check is now held to say something else.
    fn record(&self, result: Result<(), String>) -> Option<(Status, Status)> {
        let mut verdict = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        let old = verdict.status();
        verdict.running_since = None;
        verdict.failures_in_a_row = if result.is_ok() { 0 } else { verdict.failures_in_a_row + 1 };
        let first = verdict.at.replace(Instant::now()).is_none();
        match result {
            Ok(()) => verdict.problem = None,
            Err(problem) => {
                let holds = first || verdict.problem.is_some();
                if holds || verdict.failures_in_a_row >= self.check.fail_after {
                    verdict.problem = Some(problem);
                }
            }
        }
        let new = verdict.status();
        (old != new).then_some((old, new))
    }

    fn begin(&self, at: Instant) {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner).running_since = Some(at);
    }

    fn problem(&self) -> String {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner).problem.clone().unwrap_or_default()
    }
}

impl Verdict {
    fn status(&self) -> Status {
        match (&self.at, &self.problem) {
            (None, _) => Status::Unknown,
            (Some(_), None) => Status::Ready,
            (Some(_), Some(_)) => Status::NotReady,
        }
    }
}

/// Runs the check until the tasks of the health are stopped.
pub(super) fn spawn<F, Fut, E>(health: &Health, state: Arc<CheckState>, run: F)
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: fmt::Display,
{
    let run = Arc::new(move || {
        let result = run();
        async move { result.await.map_err(|problem| shorten(problem.to_string())) }
    });
    let judge = health.inner.judge.clone();
    let health = health.clone();
    judge.spawn_essential("health-check-loop", move |stop| async move {
        let mut ticks = tokio::time::interval(state.check.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            run_once(&health, &state, &run, &stop).await;
        }
    });
}

async fn run_once<F, Fut>(health: &Health, state: &CheckState, run: &Arc<F>, stop: &CancellationToken)
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), String>> + Send + 'static,
{
    let run = Arc::clone(run);
    let began_at = Instant::now();
    state.begin(began_at);
    let mut task = health.inner.tasks.spawn_once("health-check", async move { run().await });
    let ended = tokio::time::timeout(state.check.timeout, &mut task).await;
    let is_over_time = ended.is_err();
    let result = match ended {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err("the check panicked".to_owned()),
        Err(_) => Err(OVER_TIME.to_owned()),
    };
    publish(health, state, result, began_at.elapsed());
    if is_over_time {
        task.abort();
        // An abort takes effect where the check next waits; until then another run would only pile up on it.
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            _ = &mut task => {}
        }
    }
}

fn publish(health: &Health, state: &CheckState, result: Result<(), String>, duration: Duration) {
    let Check { name, is_hard, .. } = state.check;
    let metrics = &health.metrics().process;
    let labels: Labels = vec![("service", health.identity().service.clone()), ("check", name.to_owned())];
    metrics.health_check_duration_ms.get_or_create(&labels).observe(duration.as_secs_f64() * 1_000.0);
    if result.is_err() {
        metrics.health_dependency_failures.get_or_create(&labels).inc();
    }
    let change = state.record(result);
    match change {
        Some(change) if !is_hard => health.log_change("soft", change, name, &state.problem(), duration),
        _ => health.settle(duration),
    }
}

fn shorten(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(MESSAGE_LIMIT_BYTES));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whoever_reads_holds_the_time_out_even_if_nobody_judges() {
        let state = CheckState::new(Check::hard("mysql").timeout(Duration::from_millis(200)));
        state.record(Ok(()));
        state.begin(Instant::now());
        assert_eq!(state.view(Instant::now() + Duration::from_millis(250)), None);
        let overdue = state.view(Instant::now() + Duration::from_millis(251));
        assert_eq!(overdue, Some(CheckView::Failed(FailedCheck::new("mysql", OVER_TIME))));
    }
}
