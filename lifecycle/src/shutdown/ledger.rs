//! What became of each phase. Data only.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Count;

/// How a phase ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// By itself; it may still have cut something off, and says so in its report.
    Done,
    /// With an error or a panic.
    Failed,
    /// It overran and was dropped.
    CutOff,
}

impl Outcome {
    /// The name in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::CutOff => "cut_off",
        }
    }
}

/// Things that were cut off before they had ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The type of the resource, for example `grpc_connection`.
    pub resource: &'static str,
    /// How many.
    pub count: u64,
}

/// What a phase says about itself. `()` is a good one, an `Err` a failed one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PhaseReport {
    cuts: Vec<Cut>,
    problem: Option<String>,
}

impl PhaseReport {
    /// A phase that did its work.
    pub fn done() -> Self {
        Self::default()
    }

    /// A phase that could not do its work.
    pub fn failed(problem: impl Into<String>) -> Self {
        Self { problem: Some(problem.into()), ..Self::default() }
    }

    /// Adds what the phase had to cut off; nothing if `count` is 0.
    #[must_use]
    pub fn cut(mut self, resource: &'static str, count: u64) -> Self {
        if count > 0 {
            self.cuts.push(Cut { resource, count });
        }
        self
    }

    /// What the phase cut off.
    pub fn cuts(&self) -> &[Cut] {
        &self.cuts
    }

    /// Why the phase failed, if it did.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    pub(super) fn outcome(&self) -> Outcome {
        if self.problem.is_some() { Outcome::Failed } else { Outcome::Done }
    }
}

impl From<()> for PhaseReport {
    fn from((): ()) -> Self {
        Self::done()
    }
}

impl<E: fmt::Display> From<Result<(), E>> for PhaseReport {
    fn from(result: Result<(), E>) -> Self {
        result.map_or_else(|problem| Self::failed(problem.to_string()), |()| Self::done())
    }
}

/// One phase in the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name of the phase.
    pub phase: &'static str,
    /// The time that it had.
    pub budget_ms: u64,
    /// The time that it took.
    pub duration_ms: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What it said, or what was found when it was dropped.
    pub report: PhaseReport,
}

impl Entry {
    /// Whether anything was cut off.
    pub fn is_cut(&self) -> bool {
        self.outcome == Outcome::CutOff || !self.report.cuts().is_empty()
    }
}

/// All phases of a shutdown, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    /// The phases.
    pub entries: Vec<Entry>,
    /// From the cause of the drain to the end of the last phase.
    pub duration_ms: u64,
}

impl Ledger {
    pub(super) fn new(entries: Vec<Entry>, duration: Duration) -> Self {
        Self { entries, duration_ms: millis(duration) }
    }

    /// `graceful`, `failed` (a phase had an error) or `cut_short` (something was cut off).
    pub fn result(&self) -> &'static str {
        if self.entries.iter().any(Entry::is_cut) {
            "cut_short"
        } else if self.entries.iter().any(|entry| entry.outcome == Outcome::Failed) {
            "failed"
        } else {
            "graceful"
        }
    }

    /// Whether every phase ended by itself, without error and without cutting anything off.
    pub fn is_graceful(&self) -> bool {
        self.result() == "graceful"
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, entry) in self.entries.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            let Entry { phase, duration_ms, budget_ms, outcome, .. } = entry;
            write!(f, "{separator}{phase} {} {duration_ms}/{budget_ms} ms", outcome.as_str())?;
            for Cut { resource, count } in entry.report.cuts() {
                write!(f, " (cut {count} {resource})")?;
            }
        }
        Ok(())
    }
}

/// How far a shutdown has come, readable from another thread.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    inner: Arc<Mutex<Done>>,
}

#[derive(Default)]
struct Done {
    entries: Vec<Entry>,
    running: Option<(&'static str, Option<(&'static str, Count)>)>,
}

impl Progress {
    pub(super) fn begin(&self, phase: &'static str, unfinished: Option<(&'static str, Count)>) {
        self.lock().running = Some((phase, unfinished));
    }

    pub(super) fn end(&self, entry: Entry) {
        let mut done = self.lock();
        done.running = None;
        done.entries.push(entry);
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        self.lock().entries.clone()
    }

    /// The phase under way and what it would leave behind.
    pub(crate) fn running(&self) -> Option<(&'static str, Cut)> {
        let (phase, unfinished) = self.lock().running.clone()?;
        let (resource, count) = unfinished.map_or(("phase", 1), |(resource, count)| (resource, count()));
        Some((phase, Cut { resource, count }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Done> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
