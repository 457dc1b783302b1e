//! The figures of a run while it lasts: a line each second, and a file for other displays.
//!
//! The file is replaced by a rename, so that a reader never sees half of it.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::drive::Run;
use super::report::{Phase, Progress};
use super::stats::histogram;

/// How often the figures are taken.
const TICK: Duration = Duration::from_millis(500);
/// Ticks in a second: the figures span so many.
const TICKS_SHOWN: usize = 2;

/// The display of a run.
#[derive(Debug)]
pub(crate) struct Display {
    phase: watch::Sender<Phase>,
    task: JoinSet<io::Result<()>>,
}

impl Display {
    /// What the run does from now on.
    pub(crate) fn phase(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Ends the display after a last look.
    pub(crate) async fn end(self) -> io::Result<()> {
        let Self { phase, mut task } = self;
        drop(phase);
        match task.join_next().await {
            Some(ended) => ended.map_err(io::Error::other)?,
            None => Ok(()),
        }
    }
}

/// Shows the figures of a run until the display is ended.
pub(crate) fn start(run: &Arc<Run>, rooms: usize, lines: bool, file: Option<PathBuf>) -> Display {
    let (phase, phases) = watch::channel(Phase::Creating);
    let mut task = JoinSet::new();
    if lines || file.is_some() {
        let shown = Shown { stats: run.stats.clone(), clock: run.clock, rooms, windows: VecDeque::new() };
        task.spawn(shown.show(phases, lines, file));
    }
    Display { phase, task }
}

struct Shown {
    stats: Arc<super::stats::Stats>,
    clock: super::clock::RunClock,
    rooms: usize,
    windows: VecDeque<(Histogram<u64>, Duration)>,
}

impl Shown {
    async fn show(
        mut self,
        phases: watch::Receiver<Phase>,
        lines: bool,
        file: Option<PathBuf>,
    ) -> io::Result<()> {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ended = phases.clone();
        let mut last = ticks.tick().await;
        for tick in 1_usize.. {
            let over = tokio::select! {
                biased;
                _ = ended.wait_for(|phase| *phase == Phase::Done) => true,
                _ = ticks.tick() => false,
            };
            let now = Instant::now();
            let progress = self.sample(*phases.borrow(), now, now - last);
            last = now;
            if let Some(file) = &file {
                replace(file, &serde_json::to_vec(&progress)?).await?;
            }
            if lines && (tick.is_multiple_of(TICKS_SHOWN) || over) {
                eprintln!("{progress}");
            }
            if over {
                break;
            }
        }
        Ok(())
    }

    fn sample(&mut self, phase: Phase, now: Instant, span: Duration) -> Progress {
        self.windows.push_back((self.stats.take_window(), span));
        if self.windows.len() > TICKS_SHOWN {
            self.windows.pop_front();
        }
        let (mut sum, mut spans) = (histogram(), Duration::ZERO);
        for (window, span) in &self.windows {
            sum.add(window).expect("all histograms have the same bounds");
            spans += *span;
        }
        let at = (self.clock.wall_ms(now), self.clock.offset(now));
        Progress::new(phase, at, self.rooms, &self.stats, (&sum, spans))
    }
}

/// Replaces a file as a whole.
async fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".new");
    tokio::fs::write(&beside, content).await?;
    tokio::fs::rename(&beside, file).await
}
