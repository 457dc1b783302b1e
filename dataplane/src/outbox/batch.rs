//! One claim's way: deliver its rooms side by side, record what became of them.
//!
//! Rooms do not wait for each other: a slow one delays only its own record. Sending stops before the lease ends;
//! what is recorded later is fenced by the claim's token. Nothing is spawned: dropping the future ends it, and
//! what it held waits for the end of the lease.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::judge::{self, Rules, Sent};
use super::sink::{Delivery, Stop};
use super::store::{ClaimToken, ClaimedRoom, RoomReport};

/// Longest pause between two tries to record.
const MAX_RECORD_PAUSE: Duration = Duration::from_secs(1);

/// A claim with its deadlines on the local clock, counted from before it was asked for.
pub(super) struct Batch {
    pub(super) token: ClaimToken,
    pub(super) rooms: Vec<ClaimedRoom>,
    /// No sending after this.
    pub(super) send_until: Instant,
    /// No more tries to record after this: the rooms may be another's.
    pub(super) record_until: Instant,
}

impl Batch {
    pub(super) fn events(&self) -> u64 {
        self.rooms.iter().map(|room| room.events.len() as u64).sum()
    }
}

/// What became of events, counted when it was recorded.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Confirmed and recorded.
    pub delivered: u64,
    /// Refused by the sink, or waiting behind such a one.
    pub refused: u64,
    /// Proven to be bad.
    pub failed: u64,
    /// Sent without an answer, or answered but not recorded.
    pub unknown: u64,
    /// Given back unsent.
    pub released: u64,
}

impl Tally {
    /// All events that were counted.
    pub fn total(&self) -> u64 {
        self.delivered + self.refused + self.failed + self.unknown + self.released
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.refused += other.refused;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.released += other.released;
    }

    fn of(sent: &Sent, report: &RoomReport) -> Self {
        let mut tally = Self {
            delivered: report.delivered.len() as u64,
            failed: u64::from(report.failed.is_some()),
            ..Self::default()
        };
        let rest = report.retryable.len() as u64;
        match sent {
            Sent::Tried(Delivery { stop: Some(Stop::Unknown(_)), .. }) => tally.unknown = rest,
            Sent::Tried(Delivery { stop: Some(Stop::Retry(_)), .. }) => tally.refused = rest,
            Sent::Tried(Delivery { stop: Some(Stop::Bad(_)) | None, .. }) | Sent::Untried => {
                tally.released = rest
            }
        }
        tally
    }
}

/// What became of a batch.
#[derive(Default)]
pub(super) struct Worked {
    pub(super) tally: Tally,
    /// Rooms have probably more events.
    pub(super) more: bool,
    /// Rooms whose row was locked by a commit: to be given back by themselves.
    pub(super) unsettled: Vec<(ClaimToken, RoomReport)>,
    /// The database did not take a record.
    pub(super) store_failed: bool,
}

impl Worked {
    fn add(&mut self, other: Self) {
        self.tally.add(&other.tally);
        self.more |= other.more;
        self.store_failed |= other.store_failed;
        self.unsettled.extend(other.unsettled);
    }
}

type Done = (ClaimedRoom, Sent);

/// Delivers and records a batch. `stop` ends the sending at once.
pub(super) async fn work(shared: Arc<Shared>, batch: Batch, stop: CancellationToken) -> Worked {
    let Batch { token, rooms, send_until, record_until } = batch;
    let shared = &shared;
    let mut sends: FuturesUnordered<_> =
        rooms.into_iter().map(|room| deliver_room(shared, room, send_until, &stop)).collect();
    let mut recording: FuturesUnordered<BoxFuture<'_, Worked>> = FuturesUnordered::new();
    let mut done: Vec<Done> = Vec::new();
    let mut linger_until = Instant::now();
    let mut worked = Worked::default();
    loop {
        let lingered = sends.is_empty() || Instant::now() >= linger_until;
        if !done.is_empty() && recording.is_empty() && lingered {
            recording.push(Box::pin(record(shared, token, std::mem::take(&mut done), record_until)));
        }
        if sends.is_empty() && recording.is_empty() {
            return worked;
        }
        tokio::select! {
            biased;
            Some(sent) = sends.next(), if !sends.is_empty() => {
                if done.is_empty() {
                    linger_until = Instant::now() + shared.config.report_linger;
                }
                done.push(sent);
            }
            Some(recorded) = recording.next(), if !recording.is_empty() => worked.add(recorded),
            () = tokio::time::sleep_until(linger_until), if !done.is_empty() && recording.is_empty() => {}
        }
    }
}

async fn deliver_room(
    shared: &Shared,
    room: ClaimedRoom,
    send_until: Instant,
    stop: &CancellationToken,
) -> (ClaimedRoom, Sent) {
    let bad = room.events.iter().enumerate().find_map(|(at, event)| event.check().err().map(|why| (at, why)));
    let good = bad.as_ref().map_or(room.events.len(), |(at, _)| *at);
    let quarantined = room.events.len() == 1 && room.lost_claims >= shared.config.quarantine_after;
    if quarantined {
        let why = format!("{} workers in a row ended while they delivered this event", room.lost_claims);
        return (room, Sent::Tried(Delivery::stopped(0, Stop::Bad(why))));
    }
    if let Some((0, why)) = bad {
        return (room, Sent::Tried(Delivery::stopped(0, Stop::Bad(why.to_string()))));
    }
    if good == 0 || stop.is_cancelled() || Instant::now() >= send_until {
        return (room, Sent::Untried);
    }
    let until = send_until.min(Instant::now() + shared.config.sink_timeout);
    let mut delivery = tokio::select! {
        biased;
        () = stop.cancelled() => Delivery::stopped(0, Stop::Unknown("the worker ended before the answer".to_owned())),
        answer = tokio::time::timeout_at(until, shared.sink.deliver(&room.events[..good])) => {
            answer.unwrap_or_else(|_| Delivery::stopped(0, Stop::Unknown("the sink did not answer in time".to_owned())))
        }
    };
    if let (Some((_, why)), None, true) = (bad, &delivery.stop, delivery.delivered == good) {
        delivery.stop = Some(Stop::Bad(why.to_string()));
    }
    (room, Sent::Tried(delivery))
}

/// Records what was done with some rooms, as long as it may be tried.
async fn record(shared: &Shared, token: ClaimToken, done: Vec<Done>, until: Instant) -> Worked {
    let rules = Rules::new(&shared.config, shared.due_again_ms.get().copied());
    let reports: Vec<RoomReport> = {
        let mut rng = rand::rng();
        done.iter().map(|(room, sent)| judge::report(room, sent, &rules, &mut rng)).collect()
    };
    let mut worked = Worked { more: done.iter().any(|(room, _)| room.more), ..Worked::default() };
    let mut pause = Duration::from_millis(50);
    loop {
        match shared.store.report(token, &reports).await {
            Ok(reported) => {
                // After an error nobody knows whether the first try was done: then this would be no fence.
                if !worked.store_failed {
                    shared.metrics.add_fenced(reported.fenced_events);
                }
                let busy = reports.iter().filter(|report| reported.busy.contains(&report.room));
                worked.unsettled = busy.map(|report| (token, report.clone())).collect();
                break;
            }
            Err(error) => {
                shared.metrics.add_store_error();
                worked.store_failed = true;
                if Instant::now() + pause >= until {
                    tracing::warn!(%error, "a delivery could not be recorded and will be repeated");
                    worked.tally.unknown = done.iter().map(|(room, _)| room.events.len() as u64).sum();
                    return worked;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_RECORD_PAUSE);
            }
        }
    }
    for ((_, sent), report) in done.iter().zip(&reports) {
        worked.tally.add(&count(shared, sent, report));
    }
    worked
}

fn count(shared: &Shared, sent: &Sent, report: &RoomReport) -> Tally {
    let (tally, app) = (Tally::of(sent, report), report.room.app_code());
    shared.metrics.add_delivered(app, tally.delivered);
    shared.metrics.add_retried(app, tally.refused + tally.unknown);
    if let Some((position, error)) = &report.failed {
        shared.metrics.add_failed(app);
        tracing::error!(
            room = %report.room, seq = position.seq.0, index = position.index, error,
            "an event can not be delivered as it is and was set aside"
        );
    }
    tally
}
