//! Signals and the last deadline, on a thread of their own.
//!
//! The thread has its own runtime, so that a signal makes the process not ready, and the deadline ends it, even
//! while the main runtime is blocked. It does not know the phases, only how far they have come.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::args::Exit;
use crate::shutdown::{Progress, millis};
use crate::state::{DrainCause, Identity, Lifecycle, Signal, SignalEffect};
use crate::tasks::Tasks;

/// Handles signals until it is dropped.
pub(super) struct Supervisor {
    progress: Arc<Mutex<Option<Progress>>>,
    runtime: Handle,
    _until_dropped: DropGuard,
}

struct Watch {
    lifecycle: Lifecycle,
    tasks: Tasks,
    progress: Arc<Mutex<Option<Progress>>>,
    limit: Duration,
}

impl Supervisor {
    /// Handles signals from now on, and ends the process `limit` after its drain began.
    ///
    /// # Errors
    /// The machine gives no thread, or no signal handler.
    pub(super) fn start(lifecycle: &Lifecycle, tasks: &Tasks, limit: Duration) -> io::Result<Self> {
        let progress = Arc::<Mutex<Option<Progress>>>::default();
        let done = CancellationToken::new();
        let watch = Watch {
            lifecycle: lifecycle.clone(),
            tasks: tasks.clone(),
            progress: Arc::clone(&progress),
            limit,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // The handlers are in place when this returns; a signal that comes before would end the process at once.
        let (term, int) = {
            let _entered = runtime.enter();
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
        };
        let handle = runtime.handle().clone();
        let until = done.clone();
        std::thread::Builder::new().name("supervisor".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = until.cancelled() => {}
                    () = watch.signals(term, int) => {}
                    () = watch.deadline() => watch.force("the shutdown time-out has passed"),
                }
            });
        })?;
        Ok(Self { progress, runtime: handle, _until_dropped: done.drop_guard() })
    }

    /// The runtime of the supervisor, for what must go on while the main runtime is blocked.
    pub(super) fn runtime(&self) -> Handle {
        self.runtime.clone()
    }

    /// Says whose progress is reported if the process is ended from outside.
    pub(super) fn watch(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }
}

impl Watch {
    async fn signals(&self, mut term: tokio::signal::unix::Signal, mut int: tokio::signal::unix::Signal) {
        loop {
            let signal = tokio::select! {
                Some(()) = term.recv() => Signal::Term,
                Some(()) = int.recv() => Signal::Int,
                else => return,
            };
            // Logged first: a hurried process may have ended before this thread comes to it.
            let effect = self.lifecycle.count_signal();
            match effect {
                SignalEffect::Drain => {}
                SignalEffect::Hurry => self.log_hurry(signal),
                SignalEffect::Force => self.force("a third signal ends the process"),
            }
            self.lifecycle.apply(effect, signal);
        }
    }

    fn log_hurry(&self, signal: Signal) {
        let Identity { service, node_id } = self.lifecycle.identity();
        let unfinished = self.tasks.unfinished();
        tracing::warn!(
            service,
            node_id,
            signal = signal.as_str(),
            state = self.lifecycle.state().as_str(),
            ready = false,
            inflight_requests = self.lifecycle.metrics().inflight_requests(),
            unfinished_tasks = unfinished.count(),
            unfinished = %unfinished,
            "a second signal hurries the shutdown"
        );
    }

    async fn deadline(&self) {
        self.lifecycle.draining().cancelled().await;
        let began_at = self.lifecycle.drain().expect("the drain has begun").began_at;
        tokio::time::sleep_until(began_at + self.limit).await;
    }

    /// Logs what is cut off and ends the process.
    fn force(&self, reason: &'static str) -> ! {
        let Identity { service, node_id } = self.lifecycle.identity();
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let running = progress.and_then(|progress| progress.running());
        let (phase, resource, count) =
            running.map_or(("none", "none", 0), |(phase, cut)| (phase, cut.resource, cut.count));
        let unfinished = self.tasks.unfinished();
        let duration = self.lifecycle.drain().map_or(Duration::ZERO, |drain| drain.began_at.elapsed());
        tracing::error!(
            service, node_id, reason, phase, resource, count,
            signal = self.lifecycle.drain_cause().map_or("", DrainCause::signal),
            state = self.lifecycle.state().as_str(),
            ready = false,
            inflight_requests = self.lifecycle.metrics().inflight_requests(),
            unfinished_tasks = unfinished.count(),
            unfinished = %unfinished,
            duration_ms = millis(duration),
            result = "forced",
            "the process is ended by force"
        );
        std::process::exit(i32::from(Exit::CutShort.code()));
    }
}
