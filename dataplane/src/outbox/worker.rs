//! The worker's loop: claim, hand to a batch, keep the side jobs going; and its end.
//!
//! One task, nothing spawned. One claim is under way at a time, up to `max_batches` claims are delivered side by
//! side. The loop beats at least every half second whatever the database and the sink do, so that its pulse tells
//! a stuck loop from a slow store.
//!
//! # The end
//!
//! The specification wants a worker that ends to finish or give back its batch and to take no new ones. In a pod
//! the sidecar ends after the room container: what the rooms wrote last is due at that moment and belongs to no
//! batch yet. Here "the current batch" is therefore what was due when the signal came: one last pass takes these
//! rooms and no others (`due_ms` up to the database's time at the signal), within the drain timeout. What becomes
//! due later is left to other workers; any of them may take any room. `final_pass = false` leaves the pass out.
//! Shortly before the timeout the sending is cut: unsent rooms are given back at once, unanswered events become
//! retryable. Nothing is ever marked delivered for lack of time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::batch::{self, Batch, Tally, Worked};
use super::fair::Fair;
use super::pace::{Found, Pace, jitter};
use super::store::{AppBacklog, AppQuota, ClaimRequest, ClaimToken, RoomReport};
use super::{OutboxPulse, OutboxWaker, Shared};
use crate::store::StoreError;
use crate::types::RoomKey;

/// How often the list of tenants is read again.
const APPS_EVERY: Duration = Duration::from_secs(1);
/// Longest time between two beats of the loop.
const BEAT_EVERY: Duration = Duration::from_millis(500);
/// Rooms that wait for a commit of theirs at the same time: each holds a connection.
const MAX_SETTLES: usize = 4;
/// Rooms that one search for strays looks at.
const RESCUE_ROOMS: u32 = 256;
/// Longest look at the backlog when the worker ends.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Events under way at the signal, and those of the last pass.
    pub batch_size: u64,
    /// What became of them.
    pub tally: Tally,
    /// Undelivered events that are left in the table, if that could be asked.
    pub pending: Option<u64>,
    /// Whether everything was recorded in time.
    pub complete: bool,
}

struct Claimed {
    fair: Fair,
    refreshed: bool,
    filled: bool,
    outcome: Result<Batch, StoreError>,
}

enum Chore {
    Sampled(Result<Vec<AppBacklog>, StoreError>),
    Rescued(Result<(u64, Option<RoomKey>), StoreError>),
    Settled(Result<(), StoreError>),
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    waker: OutboxWaker,
    pulse: OutboxPulse,
    stop: CancellationToken,
    pace: Pace,
    fair: Fair,
    apps: Vec<Arc<str>>,
    apps_read_at: Option<Instant>,
    claiming: Option<BoxFuture<'static, Claimed>>,
    claim_at: Instant,
    batches: FuturesUnordered<BoxFuture<'static, Worked>>,
    inflight: u64,
    chores: FuturesUnordered<BoxFuture<'static, Chore>>,
    unsettled: VecDeque<(ClaimToken, RoomReport)>,
    settling: usize,
    sample_at: Instant,
    rescue_at: Instant,
    rescue_after: Option<RoomKey>,
    tally: Tally,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, waker: OutboxWaker, pulse: OutboxPulse) -> Self {
        let now = Instant::now();
        let poll = shared.config.poll;
        Self {
            waker,
            pulse,
            stop: CancellationToken::new(),
            pace: Pace::new(poll.0, poll.1),
            fair: Fair::default(),
            apps: Vec::new(),
            apps_read_at: None,
            claiming: None,
            claim_at: now,
            batches: FuturesUnordered::new(),
            inflight: 0,
            chores: FuturesUnordered::new(),
            unsettled: VecDeque::new(),
            settling: 0,
            sample_at: now + shared.config.sample_every.min(Duration::from_secs(1)),
            rescue_at: now + jitter(shared.config.rescue_every, &mut rand::rng()),
            rescue_after: None,
            tally: Tally::default(),
            shared,
        }
    }

    /// Works until `cancel`, then ends within the drain timeout.
    pub(super) async fn run(mut self, cancel: CancellationToken) -> Drained {
        loop {
            self.pulse.beat();
            let may_claim = self.may_claim();
            let may_wake = may_claim && !self.pace.in_trouble();
            tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                claimed = next_of(&mut self.claiming) => self.on_claimed(claimed),
                Some(worked) = self.batches.next(), if !self.batches.is_empty() => self.on_worked(worked),
                Some(chore) = self.chores.next(), if !self.chores.is_empty() => self.on_chore(chore),
                () = self.waker.woken(), if may_wake => {
                    // A tenant's first event comes with a wake-up: do not wait for the next look at the list.
                    let refresh = self.apps.is_empty();
                    self.start_claim(None, refresh);
                }
                () = sleep_until(self.claim_at), if may_claim => self.start_claim(None, false),
                () = sleep_until(self.sample_at) => self.start_sample(),
                () = sleep_until(self.rescue_at) => self.start_rescue(),
                () = tokio::time::sleep(BEAT_EVERY) => {}
            }
        }
        self.drain(Instant::now()).await
    }

    fn may_claim(&self) -> bool {
        self.claiming.is_none() && self.batches.len() < self.shared.config.max_batches
    }

    fn start_claim(&mut self, due_by_ms: Option<i64>, refresh: bool) {
        let stale = self.apps_read_at.is_none_or(|at| at.elapsed() >= APPS_EVERY);
        let fair = std::mem::take(&mut self.fair);
        self.claiming = Some(Box::pin(claim(self.shared.clone(), fair, refresh || stale, due_by_ms)));
    }

    /// Takes what a claim brought and tells what it found.
    fn on_claimed(&mut self, claimed: Claimed) {
        let found = self.take_claimed(claimed);
        self.schedule(found);
    }

    fn take_claimed(&mut self, claimed: Claimed) -> Found {
        self.fair = claimed.fair;
        if claimed.refreshed {
            (self.apps, self.apps_read_at) = (self.fair.apps(), Some(Instant::now()));
        }
        match claimed.outcome {
            Ok(batch) if batch.rooms.is_empty() => Found::Nothing,
            Ok(batch) => {
                self.inflight += batch.events();
                self.shared.metrics.set_inflight(self.inflight);
                self.batches.push(Box::pin(batch::work(self.shared.clone(), batch, self.stop.clone())));
                if claimed.filled { Found::More } else { Found::Some }
            }
            Err(error) => {
                self.shared.metrics.add_store_error();
                if !self.pace.in_trouble() {
                    tracing::warn!(%error, "the outbox can not be claimed from; claims go on more slowly");
                }
                Found::Trouble
            }
        }
    }

    fn on_worked(&mut self, worked: Worked) {
        let (tally, more) = (worked.tally, worked.more);
        let failed = worked.store_failed;
        self.take_worked(worked);
        if tally.delivered + tally.failed > 0 && !failed {
            self.pace.worked();
            if more {
                self.schedule(Found::More);
            }
        } else if failed || tally.refused + tally.unknown > 0 {
            if !self.pace.in_trouble() {
                tracing::warn!(sink = self.shared.sink.name(), "nothing gets out; claims go on more slowly");
            }
            self.schedule(Found::Trouble);
        }
    }

    fn take_worked(&mut self, worked: Worked) {
        self.inflight = self.inflight.saturating_sub(worked.tally.total());
        self.shared.metrics.set_inflight(self.inflight);
        self.tally.add(&worked.tally);
        self.unsettled.extend(worked.unsettled);
        self.start_settles();
    }

    fn schedule(&mut self, found: Found) {
        let at = Instant::now() + self.pace.after(found, &mut rand::rng());
        self.claim_at = match found {
            Found::More => at.min(self.claim_at),
            Found::Some | Found::Nothing | Found::Trouble => at,
        };
    }

    fn start_settles(&mut self) {
        while self.settling < MAX_SETTLES {
            let Some((token, report)) = self.unsettled.pop_front() else { return };
            self.settling += 1;
            let shared = self.shared.clone();
            self.chores
                .push(Box::pin(async move { Chore::Settled(shared.store.settle(token, &report).await) }));
        }
    }

    fn start_sample(&mut self) {
        self.sample_at = Instant::now() + jitter(self.shared.config.sample_every, &mut rand::rng());
        let (shared, apps) = (self.shared.clone(), self.apps.clone());
        self.chores.push(Box::pin(async move { Chore::Sampled(shared.store.backlog(&apps).await) }));
    }

    fn start_rescue(&mut self) {
        self.rescue_at = Instant::now() + jitter(self.shared.config.rescue_every, &mut rand::rng());
        let (shared, after) = (self.shared.clone(), self.rescue_after.take());
        self.chores.push(Box::pin(async move {
            Chore::Rescued(shared.store.rescue(after.as_ref(), RESCUE_ROOMS).await)
        }));
    }

    fn on_chore(&mut self, chore: Chore) {
        let failed = match chore {
            Chore::Sampled(Ok(backlogs)) => {
                self.shared.metrics.set_backlogs(&backlogs);
                None
            }
            Chore::Rescued(Ok((mended, after))) => {
                if mended > 0 {
                    self.shared.metrics.add_rescued(mended);
                    tracing::warn!(rooms = mended, "rooms had fallen out of the claims and were put back");
                }
                if after.is_some() {
                    self.rescue_at = Instant::now() + BEAT_EVERY;
                }
                self.rescue_after = after;
                None
            }
            Chore::Settled(outcome) => {
                self.settling -= 1;
                self.start_settles();
                // A room that could not be given back comes again at the end of its lease.
                outcome.err()
            }
            Chore::Sampled(Err(error)) | Chore::Rescued(Err(error)) => Some(error),
        };
        if let Some(error) = failed {
            self.shared.metrics.add_store_error();
            tracing::debug!(%error, "a side job of the outbox failed");
        }
    }

    async fn drain(mut self, started: Instant) -> Drained {
        let config = self.shared.config.clone();
        let deadline = started + config.drain_timeout;
        let stop_at = deadline - (config.drain_timeout / 5).min(Duration::from_secs(2));
        self.tally = Tally::default();
        let mut batch_size = self.inflight;
        let mut due_by_ms = None;
        if config.final_pass {
            due_by_ms =
                tokio::time::timeout_at(stop_at, self.shared.store.now_ms()).await.ok().and_then(Result::ok);
        }
        if let Some(due_by_ms) = due_by_ms {
            // Rooms of this pass with more events stay in it.
            let _set_once = self.shared.due_again_ms.set(due_by_ms);
        }
        let mut empty_claims = 0;
        let complete = loop {
            self.pulse.beat();
            let sending = !self.stop.is_cancelled();
            let dry = empty_claims >= self.fair.turns();
            if let (Some(due_by_ms), true, true, false) = (due_by_ms, sending, self.may_claim(), dry) {
                self.start_claim(Some(due_by_ms), false);
            }
            if self.claiming.is_none() && self.batches.is_empty() && self.settling == 0 {
                break true;
            }
            tokio::select! {
                biased;
                () = sleep_until(deadline) => break false,
                () = sleep_until(stop_at), if sending => self.stop.cancel(),
                claimed = next_of(&mut self.claiming) => {
                    let before = self.inflight;
                    match self.take_claimed(claimed) {
                        Found::More | Found::Some => empty_claims = 0,
                        Found::Nothing => empty_claims += 1,
                        Found::Trouble => due_by_ms = None,
                    }
                    batch_size += self.inflight - before;
                }
                Some(worked) = self.batches.next(), if !self.batches.is_empty() => {
                    if worked.more {
                        empty_claims = 0;
                    }
                    self.take_worked(worked);
                }
                Some(chore) = self.chores.next(), if !self.chores.is_empty() => self.on_chore(chore),
                () = tokio::time::sleep(BEAT_EVERY) => {}
            }
        };
        self.summarize(started, deadline, batch_size, complete).await
    }

    async fn summarize(
        mut self,
        started: Instant,
        deadline: Instant,
        batch_size: u64,
        complete: bool,
    ) -> Drained {
        // What is still under way may have arrived, and nobody has recorded it.
        self.tally.unknown += self.inflight;
        let until = deadline.max(Instant::now()).min(Instant::now() + LAST_LOOK);
        let backlog = tokio::time::timeout_at(until, self.shared.store.backlog(&self.apps)).await;
        let pending = backlog.ok().and_then(Result::ok).map(|apps| apps.iter().map(|app| app.pending).sum());
        let tally = self.tally;
        self.shared.metrics.set_shutdown(tally.delivered, tally.released);
        self.shared.metrics.set_inflight(0);
        if let Some(pending) = pending {
            self.shared.metrics.set_shutdown_pending(pending);
        }
        tracing::info!(
            worker_id = %self.shared.config.worker_id,
            outbox_batch_size = batch_size,
            delivered = tally.delivered,
            refused = tally.refused,
            failed = tally.failed,
            unknown = tally.unknown,
            released = tally.released,
            pending,
            duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            result = if complete { "complete" } else { "cut" },
            "the outbox worker ended"
        );
        Drained { batch_size, tally, pending, complete }
    }
}

/// The result of the claim under way; never, if there is none.
async fn next_of(claiming: &mut Option<BoxFuture<'static, Claimed>>) -> Claimed {
    match claiming {
        Some(claim) => {
            let claimed = claim.await;
            *claiming = None;
            claimed
        }
        None => std::future::pending().await,
    }
}

async fn claim(shared: Arc<Shared>, mut fair: Fair, refresh: bool, due_by_ms: Option<i64>) -> Claimed {
    if refresh {
        match shared.store.apps().await {
            Ok(apps) => fair.set_apps(apps),
            Err(error) => return Claimed { fair, refreshed: false, filled: false, outcome: Err(error) },
        }
    }
    let config = &shared.config;
    let quotas = fair.quotas(config.rooms_per_claim);
    let token = ClaimToken::random(&mut rand::rng());
    // Counted from before the claim was asked for: the lease can only end later than we think.
    let asked_at = Instant::now();
    let request = ClaimRequest {
        worker_id: config.worker_id.clone(),
        token,
        lease: config.lease,
        quotas: quotas.clone(),
        due_by_ms,
        events: config.events_per_claim,
        solo_after: config.solo_after,
    };
    let outcome = shared.store.claim(&request).await.map(|rooms| Batch {
        token,
        rooms,
        send_until: asked_at + (config.lease - config.headroom),
        record_until: asked_at + config.lease,
    });
    let mut filled = false;
    if let Ok(batch) = &outcome {
        let taken_of = |app: &str| {
            let rooms = batch.rooms.iter().filter(|room| room.room.app_code() == app).count();
            u32::try_from(rooms).unwrap_or(u32::MAX)
        };
        filled = quotas.iter().any(|AppQuota { app_code, rooms }| taken_of(app_code) >= *rooms);
        fair.learn(&quotas, taken_of);
    }
    Claimed { fair, refreshed: refresh, filled, outcome }
}
