//! What a run has seen, counted as it goes.
//!
//! Shared by all lanes: counters are atomic, histograms and room tracks stand behind short locks that are never
//! held across an await. Figures for people and programs are made from it in [`super::report`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

use super::pauses::{Change, RoomTrack};

/// Problems named in the report; further ones are only counted.
const PROBLEMS_NAMED: usize = 20;
/// Longest latency that a histogram tells apart, in µs: ten minutes.
const MAX_US: u64 = 600_000_000;

/// A histogram of µs with three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_US, 3).expect("the bounds are constants that hdrhistogram accepts")
}

fn record(histogram: &mut Histogram<u64>, value: Duration) {
    histogram.saturating_record(u64::try_from(value.as_micros()).unwrap_or(MAX_US));
}

/// Locks, also after a panic elsewhere: figures stay readable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Latencies of the whole run and since the last sample.
#[derive(Debug)]
struct Latencies {
    total: Histogram<u64>,
    window: Histogram<u64>,
}

/// Pauses of ownership changes.
#[derive(Debug, Clone)]
pub(crate) struct Pauses {
    /// Of the hot rooms.
    pub(crate) hot: Histogram<u64>,
    /// Of all rooms.
    pub(crate) all: Histogram<u64>,
    /// What the first caller after the change waited.
    pub(crate) wait: Histogram<u64>,
    /// Higher epochs on the same node.
    pub(crate) bumps: u64,
}

/// Moves and owners over all rooms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// Changes of an owner's node.
    pub(crate) total: u64,
    /// Most of one room.
    pub(crate) per_room_max: u32,
    /// Rooms with one at least.
    pub(crate) rooms: u64,
    /// How many rooms each node answered for last.
    pub(crate) owners: BTreeMap<String, u64>,
}

/// The figures of a run.
#[derive(Debug)]
pub(crate) struct Stats {
    /// Acknowledged commands.
    pub(crate) acked: AtomicU64,
    /// Acknowledged creates among them.
    pub(crate) created: AtomicU64,
    /// Answers that came from the log.
    pub(crate) replayed: AtomicU64,
    /// Commands given up.
    pub(crate) client_errors: AtomicU64,
    /// Reads and heartbeats answered.
    pub(crate) reads: AtomicU64,
    /// Reads and heartbeats given up.
    pub(crate) read_errors: AtomicU64,
    /// Answers that break a promise, refusals of valid requests included.
    pub(crate) wrong_answers: AtomicU64,
    /// Sends beyond the first.
    pub(crate) retries: AtomicU64,
    /// Most sends of one request.
    pub(crate) tries_max: AtomicU32,
    /// Requests without an end yet.
    pub(crate) in_flight: AtomicU64,
    latencies: Mutex<Latencies>,
    pauses: Mutex<Pauses>,
    tracks: Vec<Mutex<RoomTrack>>,
    hot_rooms: usize,
    problems: Mutex<Vec<String>>,
}

/// An acknowledgement as the figures need it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AckSeen<'a> {
    /// Index of the room.
    pub(crate) room: usize,
    /// The node that answered.
    pub(crate) node: &'a str,
    /// The epoch of its ownership.
    pub(crate) owner_epoch: u64,
    /// When, from the start of the run.
    pub(crate) at: Duration,
    /// From the intended time.
    pub(crate) latency: Duration,
}

impl Stats {
    /// Figures for so many rooms, the first of which are hot.
    pub(crate) fn new(rooms: usize, hot_rooms: usize) -> Self {
        Self {
            acked: AtomicU64::new(0),
            created: AtomicU64::new(0),
            replayed: AtomicU64::new(0),
            client_errors: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            read_errors: AtomicU64::new(0),
            wrong_answers: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            tries_max: AtomicU32::new(0),
            in_flight: AtomicU64::new(0),
            latencies: Mutex::new(Latencies { total: histogram(), window: histogram() }),
            pauses: Mutex::new(Pauses { hot: histogram(), all: histogram(), wait: histogram(), bumps: 0 }),
            tracks: (0..rooms).map(|_| Mutex::default()).collect(),
            hot_rooms,
            problems: Mutex::default(),
        }
    }

    /// Counts the sends of one request.
    pub(crate) fn tried(&self, tries: u32) {
        self.retries.fetch_add(u64::from(tries.saturating_sub(1)), Relaxed);
        self.tries_max.fetch_max(tries, Relaxed);
    }

    /// Counts a create that was acknowledged: it tells the owner but no latency, as all creates come at once.
    pub(crate) fn room_created(&self, ack: AckSeen<'_>) {
        self.acked.fetch_add(1, Relaxed);
        self.created.fetch_add(1, Relaxed);
        lock(&self.tracks[ack.room]).acked(ack.node, ack.owner_epoch, ack.at);
    }

    /// Counts an acknowledged command.
    pub(crate) fn command_acked(&self, ack: AckSeen<'_>) {
        self.acked.fetch_add(1, Relaxed);
        {
            let mut latencies = lock(&self.latencies);
            record(&mut latencies.total, ack.latency);
            record(&mut latencies.window, ack.latency);
        }
        let Some(change) = lock(&self.tracks[ack.room]).acked(ack.node, ack.owner_epoch, ack.at) else {
            return;
        };
        let mut pauses = lock(&self.pauses);
        let pause = match change {
            Change::Moved { pause } => pause,
            Change::Bumped { pause } => {
                pauses.bumps += 1;
                pause
            }
        };
        record(&mut pauses.all, pause);
        record(&mut pauses.wait, ack.latency);
        if ack.room < self.hot_rooms || self.hot_rooms == 0 {
            record(&mut pauses.hot, pause);
        }
    }

    /// Counts a wrong answer and names it, if it is among the first.
    pub(crate) fn wrong(&self, problem: String) {
        self.wrong_answers.fetch_add(1, Relaxed);
        self.name_problem(problem);
    }

    /// Keeps a problem for the report.
    pub(crate) fn name_problem(&self, problem: String) {
        let mut problems = lock(&self.problems);
        if problems.len() < PROBLEMS_NAMED {
            problems.push(problem);
        }
    }

    /// The problems named so far.
    pub(crate) fn problems(&self) -> Vec<String> {
        lock(&self.problems).clone()
    }

    /// Latencies of the whole run.
    pub(crate) fn latencies(&self) -> Histogram<u64> {
        lock(&self.latencies).total.clone()
    }

    /// Latencies since the last call.
    pub(crate) fn take_window(&self) -> Histogram<u64> {
        std::mem::replace(&mut lock(&self.latencies).window, histogram())
    }

    /// The pauses so far.
    pub(crate) fn pauses(&self) -> Pauses {
        lock(&self.pauses).clone()
    }

    /// Moves and owners so far.
    pub(crate) fn moves(&self) -> Moves {
        let mut moves = Moves::default();
        for track in &self.tracks {
            let track = lock(track);
            moves.total += u64::from(track.moves());
            moves.per_room_max = moves.per_room_max.max(track.moves());
            moves.rooms += u64::from(track.moves() > 0);
            if let Some(node) = track.node() {
                // Looked up first: an owned key is made once for each node, not for each room.
                match moves.owners.get_mut(node) {
                    Some(rooms) => *rooms += 1,
                    None => {
                        moves.owners.insert(node.to_owned(), 1);
                    }
                }
            }
        }
        moves
    }

    /// Whether nothing went wrong.
    pub(crate) fn is_clean(&self) -> bool {
        [&self.client_errors, &self.read_errors, &self.wrong_answers]
            .iter()
            .all(|count| count.load(Relaxed) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(room: usize, node: &str, owner_epoch: u64, at_ms: u64) -> AckSeen<'_> {
        let latency = Duration::from_millis(3);
        AckSeen { room, node, owner_epoch, at: Duration::from_millis(at_ms), latency }
    }

    #[test]
    fn moves_are_counted_by_room_and_pauses_of_hot_rooms_apart() {
        let stats = Stats::new(3, 1);
        for room in 0..3 {
            stats.command_acked(ack(room, "a", 1, 10));
        }
        stats.command_acked(ack(0, "b", 2, 50));
        stats.command_acked(ack(0, "c", 3, 60));
        stats.command_acked(ack(1, "b", 2, 500));
        stats.command_acked(ack(2, "a", 2, 20));
        let moves = stats.moves();
        assert_eq!((moves.total, moves.per_room_max, moves.rooms), (3, 2, 2));
        assert_eq!(moves.owners, BTreeMap::from([("a".into(), 1), ("b".into(), 1), ("c".into(), 1)]));
        let pauses = stats.pauses();
        assert_eq!((pauses.hot.len(), pauses.all.len(), pauses.bumps), (2, 4, 1));
        assert!(pauses.hot.max() < 41_000 && pauses.all.max() >= 490_000);
    }

    #[test]
    fn the_first_problems_are_named_and_all_are_counted() {
        let stats = Stats::new(1, 0);
        for number in 0..50 {
            stats.wrong(format!("problem {number}"));
        }
        assert_eq!(stats.problems().len(), PROBLEMS_NAMED);
        assert_eq!(stats.wrong_answers.load(Relaxed), 50);
        assert!(!stats.is_clean());
    }
}
