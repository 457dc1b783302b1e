//! The figures of a run for people and for programs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::stats::Stats;

/// A distribution in ms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// How many values.
    pub(crate) count: u64,
    /// Half are at most this.
    pub(crate) p50: f64,
    /// All but one in a hundred are at most this.
    pub(crate) p99: f64,
    /// The largest.
    pub(crate) max: f64,
}

impl Spread {
    /// From a histogram of µs.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let ms = |us: u64| us as f64 / 1_000.0;
        // An empty histogram gives zeros.
        let max = if histogram.is_empty() { 0 } else { histogram.max() };
        Self {
            count: histogram.len(),
            p50: ms(histogram.value_at_quantile(0.5).min(max)),
            p99: ms(histogram.value_at_quantile(0.99).min(max)),
            max: ms(max),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms", self.p50, self.p99, self.max)
    }
}

/// Three digits are enough for people and programs.
fn rounded(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}

/// What the run was asked to do.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Setting {
    /// Names the run in its command ids.
    pub(crate) run_id: String,
    /// The app.
    pub(crate) app: String,
    /// How many rooms.
    pub(crate) rooms: usize,
    /// How many of them are hot.
    pub(crate) hot_rooms: usize,
    /// `open` or `closed`.
    pub(crate) mode: &'static str,
}

/// The report at the end.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    load: &'static str,
    #[serde(flatten)]
    setting: Setting,
    elapsed_s: f64,
    commands_acked: u64,
    rooms_created: u64,
    commands_per_s: f64,
    client_errors: u64,
    read_errors: u64,
    wrong_answers: u64,
    retries: u64,
    tries_max: u32,
    replayed: u64,
    reads: u64,
    latency_ms: Spread,
    moves_total: u64,
    moves_per_room_max: u32,
    rooms_moved: u64,
    epoch_bumps: u64,
    pause_ms: Spread,
    pause_all_ms: Spread,
    pause_wait_ms: Spread,
    owners: BTreeMap<String, u64>,
    problems: Vec<String>,
}

impl Report {
    /// From the figures after `elapsed` of load.
    pub(crate) fn new(setting: Setting, stats: &Stats, elapsed: Duration) -> Self {
        let (moves, pauses) = (stats.moves(), stats.pauses());
        let latency_ms = Spread::of(&stats.latencies());
        Self {
            load: if stats.is_clean() { "pass" } else { "fail" },
            setting,
            elapsed_s: rounded(elapsed.as_secs_f64()),
            commands_acked: stats.acked.load(Relaxed),
            rooms_created: stats.created.load(Relaxed),
            commands_per_s: rounded(latency_ms.count as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE)),
            client_errors: stats.client_errors.load(Relaxed),
            read_errors: stats.read_errors.load(Relaxed),
            wrong_answers: stats.wrong_answers.load(Relaxed),
            retries: stats.retries.load(Relaxed),
            tries_max: stats.tries_max.load(Relaxed),
            replayed: stats.replayed.load(Relaxed),
            reads: stats.reads.load(Relaxed),
            latency_ms,
            moves_total: moves.total,
            moves_per_room_max: moves.per_room_max,
            rooms_moved: moves.rooms,
            epoch_bumps: pauses.bumps,
            pause_ms: Spread::of(&pauses.hot),
            pause_all_ms: Spread::of(&pauses.all),
            pause_wait_ms: Spread::of(&pauses.wait),
            owners: moves.owners,
            problems: stats.problems(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "load {}: {} commands acknowledged in {:.1} s ({:.0}/s), {} given up, {} wrong answers, {} reads given up",
            self.load,
            self.commands_acked,
            self.elapsed_s,
            self.commands_per_s,
            self.client_errors,
            self.wrong_answers,
            self.read_errors,
        )?;
        writeln!(
            f,
            "latency {}; {} retries, at most {} tries",
            self.latency_ms, self.retries, self.tries_max
        )?;
        write!(
            f,
            "{} of {} rooms moved, {} moves, at most {} of one room",
            self.rooms_moved, self.setting.rooms, self.moves_total, self.moves_per_room_max
        )?;
        if self.pause_ms.count > 0 {
            write!(f, "; pause {}; callers waited {}", self.pause_ms, self.pause_wait_ms)?;
        }
        if let Some(first) = self.problems.first() {
            write!(f, "\nfirst problem: {first}")?;
        }
        Ok(())
    }
}

/// What the run does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Rooms are made.
    Creating,
    /// Commands are sent.
    Running,
    /// Commands in flight end.
    Stopping,
    /// The report is out.
    Done,
}

/// The figures of the last second, for a display.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Progress {
    state: Phase,
    at_ms: i64,
    elapsed_s: f64,
    rooms: usize,
    commands_acked: u64,
    commands_per_s: f64,
    client_errors: u64,
    read_errors: u64,
    wrong_answers: u64,
    retries: u64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    rooms_moved: u64,
    moves_total: u64,
    moves_per_room_max: u32,
    pause_max_ms: f64,
    in_flight: u64,
    owners: BTreeMap<String, u64>,
}

impl Progress {
    /// From the figures; `window` holds the latencies of the last `span`.
    pub(crate) fn new(
        state: Phase,
        now: (i64, Duration),
        rooms: usize,
        stats: &Stats,
        window: (&Histogram<u64>, Duration),
    ) -> Self {
        let (moves, spread) = (stats.moves(), Spread::of(window.0));
        Self {
            state,
            at_ms: now.0,
            elapsed_s: rounded(now.1.as_secs_f64()),
            rooms,
            commands_acked: stats.acked.load(Relaxed),
            commands_per_s: rounded(spread.count as f64 / window.1.as_secs_f64().max(f64::MIN_POSITIVE)),
            client_errors: stats.client_errors.load(Relaxed),
            read_errors: stats.read_errors.load(Relaxed),
            wrong_answers: stats.wrong_answers.load(Relaxed),
            retries: stats.retries.load(Relaxed),
            p50_ms: spread.p50,
            p99_ms: spread.p99,
            max_ms: spread.max,
            rooms_moved: moves.rooms,
            moves_total: moves.total,
            moves_per_room_max: moves.per_room_max,
            pause_max_ms: Spread::of(&stats.pauses().hot).max,
            in_flight: stats.in_flight.load(Relaxed),
            owners: moves.owners,
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>5.0} s  {:>6.0} commands/s  {} errors  {} wrong  p99 {:.1} ms  moved {}/{} rooms",
            self.elapsed_s,
            self.commands_per_s,
            self.client_errors + self.read_errors,
            self.wrong_answers,
            self.p99_ms,
            self.rooms_moved,
            self.rooms,
        )?;
        for (node, rooms) in &self.owners {
            write!(f, "  {node}:{rooms}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::stats::{AckSeen, histogram};

    #[test]
    fn an_empty_distribution_is_all_zeros() {
        assert_eq!(Spread::of(&histogram()), Spread { count: 0, p50: 0.0, p99: 0.0, max: 0.0 });
    }

    #[test]
    fn the_report_names_pass_or_fail_and_the_first_problem() {
        let setting =
            Setting { run_id: "x".into(), app: "demo".into(), rooms: 1, hot_rooms: 0, mode: "open" };
        let stats = Stats::new(1, 0);
        let (at, latency) = (Duration::from_millis(1), Duration::from_millis(4));
        stats.command_acked(AckSeen { room: 0, node: "a", owner_epoch: 1, at, latency });
        let clean = Report::new(setting.clone(), &stats, Duration::from_secs(1));
        assert_eq!((clean.load, clean.commands_acked), ("pass", 1));
        stats.wrong("room-0: seq 1 after 1".into());
        let report = Report::new(setting, &stats, Duration::from_secs(1));
        assert_eq!(report.load, "fail");
        assert!(report.to_string().contains("first problem: room-0: seq 1 after 1"), "{report}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["wrong_answers"], 1);
        assert_eq!(json["app"], "demo");
    }
}
