//! The states that every process goes through, and the handle that all its parts share.
//!
//! `starting → running → draining → stopped`; a process that is told to end while it starts drains at once.
//! `evacuating` is a part of `running` that can be withdrawn. This module knows no task, check or server.
//!
//! Invariants: a state never goes back; what caused the drain is set before anyone can see `draining`.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Where a process is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Not yet fit for traffic.
    Starting,
    /// Takes new requests, unless a check, a gate or an evacuation says otherwise.
    Running,
    /// Refuses what is new, ends what is begun. Final.
    Draining,
    /// Listeners, workers and pools are closed.
    Stopped,
}

impl State {
    /// The name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }

    /// Whether a process in this state may go to `next`.
    pub fn may_become(self, next: Self) -> bool {
        match (self, next) {
            (Self::Starting, Self::Running | Self::Draining)
            | (Self::Running, Self::Draining)
            | (Self::Draining, Self::Stopped) => true,
            (Self::Starting, Self::Starting | Self::Stopped)
            | (Self::Running, Self::Starting | Self::Running | Self::Stopped)
            | (Self::Draining, Self::Starting | Self::Running | Self::Draining)
            | (Self::Stopped, _) => false,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A transition that the state machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a process that is {from} cannot become {to}")]
pub struct IllegalTransition {
    /// The state of the process.
    pub from: State,
    /// The state that was asked for.
    pub to: State,
}

/// A signal that ends a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Term,
    /// SIGINT.
    Int,
}

impl Signal {
    /// The name in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Term => "SIGTERM",
            Self::Int => "SIGINT",
        }
    }
}

/// Why a process began to drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainCause {
    /// Someone sent a signal: the ordinary end.
    Signal(Signal),
    /// A part of the process asked for it: an ordinary end, for example of a job that is done.
    Requested(&'static str),
    /// An essential task ended; the process ends with an error.
    TaskEnded {
        /// The task's name.
        task: &'static str,
        /// How it ended.
        problem: String,
    },
}

impl DrainCause {
    /// Whether the process ends with an error.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Signal(_) | Self::Requested(_) => false,
            Self::TaskEnded { .. } => true,
        }
    }

    /// The value of the log field `signal`; a drain without a signal names its cause.
    pub fn signal(&self) -> &'static str {
        match self {
            Self::Signal(signal) => signal.as_str(),
            Self::Requested(_) => "none (requested)",
            Self::TaskEnded { .. } => "none (task ended)",
        }
    }
}

/// What a signal did to the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalEffect {
    /// The first: the drain has begun, or was already under way.
    Drain,
    /// The second: what remains is hurried.
    Hurry,
    /// The third or later: the process ends now.
    Force,
}

/// State and sub-state in one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The state.
    pub state: State,
    /// Whether the node is told to give its rooms away; means something only while running.
    pub evacuating: bool,
}

impl View {
    /// Whether new work may be taken: running, and not evacuating.
    pub fn accepts_work(&self) -> bool {
        self.state == State::Running && !self.evacuating
    }
}

/// The name of a process, as it stands in health answers, logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The service boundary, for example `room-service`.
    pub service: String,
    /// The unique name of this instance.
    pub node_id: String,
}

impl Identity {
    /// A name made of service and node.
    pub fn new(service: impl Into<String>, node_id: impl Into<String>) -> Self {
        Self { service: service.into(), node_id: node_id.into() }
    }
}

/// When and why the drain began.
#[derive(Debug, Clone)]
pub(crate) struct Drain {
    pub(crate) began_at: Instant,
    pub(crate) cause: DrainCause,
}

/// The state machine of a process. Clones are handles to the same one.
#[derive(Clone)]
pub struct Lifecycle {
    inner: Arc<Inner>,
}

struct Inner {
    identity: Identity,
    metrics: Metrics,
    view: watch::Sender<View>,
    drain: OnceLock<Drain>,
    signals: AtomicU32,
    draining: CancellationToken,
    hurry: CancellationToken,
}

impl fmt::Debug for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lifecycle")
            .field("identity", &self.inner.identity)
            .field("view", &self.view())
            .finish_non_exhaustive()
    }
}

impl Lifecycle {
    /// A process that starts.
    pub fn new(identity: Identity, metrics: Metrics) -> Self {
        let view = View { state: State::Starting, evacuating: false };
        let inner = Inner {
            identity,
            metrics,
            view: watch::Sender::new(view),
            drain: OnceLock::new(),
            signals: AtomicU32::new(0),
            draining: CancellationToken::new(),
            hurry: CancellationToken::new(),
        };
        let lifecycle = Self { inner: Arc::new(inner) };
        lifecycle.show_in_metrics();
        // A counter that appears only with its first increment hides that increment from `rate`.
        let labels = vec![("service", lifecycle.identity().service.clone())];
        drop(lifecycle.metrics().process.service_shutdown_forced.get_or_create(&labels));
        lifecycle
    }

    /// The name of the process.
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// The metrics of the process.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// State and sub-state now.
    pub fn view(&self) -> View {
        *self.inner.view.borrow()
    }

    /// The state now.
    pub fn state(&self) -> State {
        self.view().state
    }

    /// Whether new work may be taken: running, and not evacuating.
    pub fn accepts_work(&self) -> bool {
        self.view().accepts_work()
    }

    /// Follows state and sub-state.
    pub fn subscribe(&self) -> watch::Receiver<View> {
        self.inner.view.subscribe()
    }

    /// Says that the process is fit for traffic.
    ///
    /// # Errors
    /// The process is no longer starting; it may have been told to end in the meantime.
    pub fn mark_running(&self) -> Result<(), IllegalTransition> {
        self.advance(State::Running)
    }

    /// Says that everything is closed.
    ///
    /// # Errors
    /// The process does not drain.
    pub fn mark_stopped(&self) -> Result<(), IllegalTransition> {
        self.advance(State::Stopped)
    }

    /// Begins the drain, once: says whether this call began it. Ready is false when this returns.
    pub fn begin_drain(&self, cause: DrainCause) -> bool {
        let mut cause = Some(cause);
        let began = self.inner.view.send_if_modified(|view| {
            if !view.state.may_become(State::Draining) {
                return false;
            }
            let cause = cause.take().expect("the closure runs once");
            let drain = Drain { began_at: Instant::now(), cause };
            self.inner.drain.set(drain).expect("no state leads to draining twice");
            view.state = State::Draining;
            true
        });
        if began {
            self.show_in_metrics();
            // Logged before those who wait for the drain go on; they may end the process.
            self.log_state(State::Draining, false);
            self.inner.draining.cancel();
        }
        began
    }

    /// Tells the node to give its rooms away, or withdraws that. Says whether anything changed.
    /// A process that drains does not evacuate.
    pub fn set_evacuating(&self, evacuating: bool) -> bool {
        let mut state = State::Starting;
        let changed = self.inner.view.send_if_modified(|view| {
            state = view.state;
            let may_change = matches!(view.state, State::Starting | State::Running);
            let changes = may_change && view.evacuating != evacuating;
            if changes {
                view.evacuating = evacuating;
            }
            changes
        });
        if changed {
            self.show_in_metrics();
            self.log_state(state, evacuating);
        }
        changed
    }

    /// Takes a signal: the first drains, the second hurries, the third tells the caller to end the process.
    pub fn on_signal(&self, signal: Signal) -> SignalEffect {
        let effect = self.count_signal();
        self.apply(effect, signal);
        effect
    }

    /// Counts a signal and says what it will do, for whoever wants to log before anything happens.
    pub(crate) fn count_signal(&self) -> SignalEffect {
        match self.inner.signals.fetch_add(1, Ordering::SeqCst) {
            0 => SignalEffect::Drain,
            1 => SignalEffect::Hurry,
            _ => SignalEffect::Force,
        }
    }

    pub(crate) fn apply(&self, effect: SignalEffect, signal: Signal) {
        match effect {
            SignalEffect::Drain => {
                self.begin_drain(DrainCause::Signal(signal));
            }
            SignalEffect::Hurry => self.inner.hurry.cancel(),
            // Whoever took the signal ends the process; nothing in it is asked any more.
            SignalEffect::Force => {}
        }
    }

    /// Cancelled when the drain begins.
    pub fn draining(&self) -> &CancellationToken {
        &self.inner.draining
    }

    /// Cancelled at the second signal.
    pub fn hurry(&self) -> &CancellationToken {
        &self.inner.hurry
    }

    /// Why the process drains, if it does.
    pub fn drain_cause(&self) -> Option<&DrainCause> {
        self.inner.drain.get().map(|drain| &drain.cause)
    }

    pub(crate) fn drain(&self) -> Option<&Drain> {
        self.inner.drain.get()
    }

    fn advance(&self, to: State) -> Result<(), IllegalTransition> {
        let (mut from, mut evacuating) = (State::Starting, false);
        let advanced = self.inner.view.send_if_modified(|view| {
            (from, evacuating) = (view.state, view.evacuating);
            if from.may_become(to) {
                view.state = to;
            }
            from.may_become(to)
        });
        if !advanced {
            return Err(IllegalTransition { from, to });
        }
        self.show_in_metrics();
        self.log_state(to, evacuating);
        Ok(())
    }

    fn show_in_metrics(&self) {
        let View { state, evacuating } = self.view();
        let draining = matches!(state, State::Draining | State::Stopped);
        for (kind, is_on) in [("draining", draining), ("evacuating", evacuating && !draining)] {
            let labels = vec![("service", self.inner.identity.service.clone()), ("kind", kind.to_owned())];
            let gauge = self.inner.metrics.process.service_draining.get_or_create_owned(&labels);
            gauge.set(i64::from(is_on));
        }
    }

    /// Logs a transition as it was, not the state that may have come since.
    fn log_state(&self, state: State, evacuating: bool) {
        let Identity { service, node_id } = &self.inner.identity;
        let inflight_requests = self.inner.metrics.inflight_requests();
        match self.drain() {
            Some(Drain { cause: DrainCause::TaskEnded { task, problem }, .. })
                if state == State::Draining =>
            {
                tracing::error!(
                    service,
                    node_id,
                    state = state.as_str(),
                    ready = false,
                    inflight_requests,
                    task,
                    problem,
                    "an essential task ended, the process drains"
                );
            }
            Some(drain) => {
                let signal = drain.cause.signal();
                tracing::info!(
                    service,
                    node_id,
                    signal,
                    state = state.as_str(),
                    ready = false,
                    inflight_requests,
                    "the process changed its state"
                );
            }
            None => {
                tracing::info!(
                    service,
                    node_id,
                    state = state.as_str(),
                    evacuating,
                    "the process changed its state"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
