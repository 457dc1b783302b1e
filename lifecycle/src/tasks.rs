//! The one place that spawns: every task has a name, an owner and an end.
//!
//! A task is [`essential`](Tasks::spawn_essential) (its early end ends the process),
//! [`restarting`](Tasks::spawn_restarting) (started again under a counter) or
//! [`once`](Tasks::spawn_once) (may end; a panic is logged and counted). Groups are cancelled and waited for on
//! their own, so that a shutdown can end them in order. This module does not know what the tasks do.
//!
//! Invariants: a task is counted from before it is spawned until it is dropped, in its group and in all groups
//! above; no task panics in silence.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Labels;
use crate::state::{DrainCause, Lifecycle, State};

/// How a task ended: `()` and `Ok(())` without a problem, `Err(problem)` with one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEnd {
    problem: Option<String>,
}

impl From<()> for TaskEnd {
    fn from((): ()) -> Self {
        Self { problem: None }
    }
}

impl<E: fmt::Display> From<Result<(), E>> for TaskEnd {
    fn from(result: Result<(), E>) -> Self {
        Self { problem: result.err().map(|problem| problem.to_string()) }
    }
}

/// How long a restarting task waits before it is started again: doubled each time up to `max`, with jitter,
/// and back to `initial` once a run has lasted longer than `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait.
    pub initial: Duration,
    /// The longest wait.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Duration::from_millis(100), max: Duration::from_secs(10) }
    }
}

impl Backoff {
    /// The wait after `failures` early ends in a row, before jitter.
    fn wait(self, failures: u32) -> Duration {
        let factor = 2u32.saturating_pow(failures.saturating_sub(1));
        self.initial.saturating_mul(factor).min(self.max)
    }
}

/// Tasks that had not ended when their owner stopped waiting, by name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} tasks have not ended: {}", .tasks.values().sum::<usize>(), .tasks.keys().copied().collect::<Vec<_>>().join(", "))]
pub struct Unfinished {
    /// How many of each name.
    pub tasks: BTreeMap<&'static str, usize>,
}

impl Unfinished {
    /// How many tasks there are.
    pub fn count(&self) -> usize {
        self.tasks.values().sum()
    }
}

/// A group of tasks. Clones are handles to the same group; dropping them ends nothing.
#[derive(Clone)]
pub struct Tasks {
    group: Arc<Group>,
}

struct Group {
    lifecycle: Lifecycle,
    /// The runtime of the process, so that any thread may spawn.
    runtime: Handle,
    stop: CancellationToken,
    running: AtomicUsize,
    changed: Notify,
    by_name: RwLock<HashMap<&'static str, Arc<AtomicUsize>>>,
    parent: Option<Tasks>,
    children: Mutex<Vec<Weak<Group>>>,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("running", &self.running()).finish_non_exhaustive()
    }
}

impl Tasks {
    /// The tasks of a process, spawned on the current runtime.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn new(lifecycle: Lifecycle) -> Self {
        Self::with(lifecycle, Handle::current(), CancellationToken::new(), None)
    }

    /// Tasks that are stopped and waited for on their own, and also with this group.
    pub fn group(&self) -> Self {
        self.group_on(self.group.runtime.clone())
    }

    /// A group whose tasks run on another runtime.
    pub(crate) fn group_on(&self, runtime: Handle) -> Self {
        let Group { lifecycle, stop, .. } = &*self.group;
        let group = Self::with(lifecycle.clone(), runtime, stop.child_token(), Some(self.clone()));
        let mut children = self.group.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|child| child.strong_count() > 0);
        children.push(Arc::downgrade(&group.group));
        group
    }

    fn with(lifecycle: Lifecycle, runtime: Handle, stop: CancellationToken, parent: Option<Self>) -> Self {
        let group = Group {
            lifecycle,
            runtime,
            stop,
            running: AtomicUsize::new(0),
            changed: Notify::new(),
            by_name: RwLock::default(),
            parent,
            children: Mutex::default(),
        };
        Self { group: Arc::new(group) }
    }

    /// Spawns a task that may end at any time. A panic is logged and counted, and also shows in the handle.
    /// Cheap enough for tens of thousands a second.
    pub fn spawn_once<F>(&self, name: &'static str, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let guard = TaskGuard::enter(self, name);
        self.group.runtime.spawn(async move {
            let _guard = guard;
            future.await
        })
    }

    /// Spawns a task without which the process is of no use: if it ends while the process starts or runs,
    /// by panic or not, the process drains and exits with an error.
    /// `run` gets the token that tells the task to end.
    pub fn spawn_essential<F, Fut>(&self, name: &'static str, run: F)
    where
        F: FnOnce(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output: Into<TaskEnd>> + Send + 'static,
    {
        let guard = TaskGuard::enter(self, name);
        let stop = self.stopping().clone();
        self.group.runtime.spawn(async move {
            let future = AssertUnwindSafe(async { run(stop.clone()).await.into() });
            let problem = match future.catch_unwind().await {
                Ok(TaskEnd { problem }) => problem.unwrap_or_else(|| "ended early".to_owned()),
                Err(_) => guard.count_panic(),
            };
            let lifecycle = &guard.tasks.group.lifecycle;
            if lifecycle.state() < State::Draining && !stop.is_cancelled() {
                lifecycle.begin_drain(DrainCause::TaskEnded { task: name, problem });
            }
        });
    }

    /// Spawns a task that is started again whenever it ends before it is told to, by panic or not.
    /// `run` makes one run; it gets the token that tells the task to end.
    pub fn spawn_restarting<F, Fut>(&self, name: &'static str, backoff: Backoff, mut run: F)
    where
        F: FnMut(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output: Into<TaskEnd>> + Send + 'static,
    {
        let guard = TaskGuard::enter(self, name);
        let stop = self.stopping().clone();
        self.group.runtime.spawn(async move {
            let mut failures = 0;
            while !stop.is_cancelled() {
                let began_at = Instant::now();
                let future = AssertUnwindSafe(async { run(stop.clone()).await.into() });
                let problem = match future.catch_unwind().await {
                    Ok(TaskEnd { problem }) => problem.unwrap_or_else(|| "ended early".to_owned()),
                    Err(_) => guard.count_panic(),
                };
                if stop.is_cancelled() {
                    break;
                }
                failures = if began_at.elapsed() > backoff.max { 1 } else { failures + 1 };
                let wait = backoff.wait(failures).mul_f64(rand::random_range(0.5..=1.0));
                guard.count_restart(&problem, wait);
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(wait) => {}
                }
            }
        });
    }

    /// Cancelled when the tasks of this group are told to end.
    pub fn stopping(&self) -> &CancellationToken {
        &self.group.stop
    }

    /// Tells the tasks of this group, and of the groups below, to end.
    pub fn stop(&self) {
        self.group.stop.cancel();
    }

    /// How many tasks run, in this group and those below.
    pub fn running(&self) -> usize {
        self.group.running.load(Ordering::Acquire)
    }

    /// The tasks that run, by name, in this group and those below.
    pub fn unfinished(&self) -> Unfinished {
        let mut tasks = BTreeMap::new();
        self.group.collect_unfinished(&mut tasks);
        Unfinished { tasks }
    }

    /// Waits until no task of this group, or of those below, runs. Does not tell them to end.
    ///
    /// # Errors
    /// The tasks that still run at the deadline.
    pub async fn join(&self, deadline: Instant) -> Result<(), Unfinished> {
        let all_ended = async {
            loop {
                let changed = self.group.changed.notified();
                tokio::pin!(changed);
                // Registered before the count is read, so that no end is missed in between.
                changed.as_mut().enable();
                if self.running() == 0 {
                    return;
                }
                changed.await;
            }
        };
        match tokio::time::timeout_at(deadline, all_ended).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.unfinished()),
        }
    }

    /// Tells the tasks to end and waits until they have.
    ///
    /// # Errors
    /// The tasks that still run at the deadline.
    pub async fn stop_and_join(&self, deadline: Instant) -> Result<(), Unfinished> {
        self.stop();
        self.join(deadline).await
    }
}

impl Group {
    fn counter(&self, name: &'static str) -> Arc<AtomicUsize> {
        let known = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counter) = known.get(name) {
            return Arc::clone(counter);
        }
        drop(known);
        let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_name.entry(name).or_default())
    }

    fn collect_unfinished(&self, tasks: &mut BTreeMap<&'static str, usize>) {
        let by_name = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        for (name, counter) in by_name.iter() {
            let running = counter.load(Ordering::Acquire);
            if running > 0 {
                *tasks.entry(name).or_default() += running;
            }
        }
        drop(by_name);
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        for child in children.iter().filter_map(Weak::upgrade) {
            child.collect_unfinished(tasks);
        }
    }
}

/// Counts a task from before its spawn until it is dropped.
struct TaskGuard {
    tasks: Tasks,
    name: &'static str,
    of_name: Arc<AtomicUsize>,
}

impl TaskGuard {
    fn enter(tasks: &Tasks, name: &'static str) -> Self {
        let of_name = tasks.group.counter(name);
        of_name.fetch_add(1, Ordering::AcqRel);
        let mut group = Some(&tasks.group);
        while let Some(counted) = group {
            counted.running.fetch_add(1, Ordering::AcqRel);
            group = counted.parent.as_ref().map(|parent| &parent.group);
        }
        Self { tasks: tasks.clone(), name, of_name }
    }

    fn labels(&self) -> Labels {
        vec![("task", self.name.to_owned())]
    }

    fn count_panic(&self) -> String {
        let metrics = &self.tasks.group.lifecycle.metrics().process;
        metrics.task_panics.get_or_create(&self.labels()).inc();
        tracing::error!(task = self.name, "a task panicked");
        "panicked".to_owned()
    }

    fn count_restart(&self, problem: &str, wait: Duration) {
        let metrics = &self.tasks.group.lifecycle.metrics().process;
        metrics.task_restarts.get_or_create(&self.labels()).inc();
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(task = self.name, problem, wait_ms, "a task ended early and is started again");
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        // Tasks that catch their panic have dropped it before this guard; here one of `spawn_once` passes by.
        if std::thread::panicking() {
            self.count_panic();
        }
        self.of_name.fetch_sub(1, Ordering::AcqRel);
        let mut group = Some(&self.tasks.group);
        while let Some(counted) = group {
            if counted.running.fetch_sub(1, Ordering::AcqRel) == 1 {
                counted.changed.notify_waiters();
            }
            group = counted.parent.as_ref().map(|parent| &parent.group);
        }
    }
}

#[cfg(test)]
mod tests;
