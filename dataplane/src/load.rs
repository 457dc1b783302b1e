//! The client that drives rooms like real users and keeps a ledger of what was acknowledged.
//!
//! It knows the public API alone, and neither database nor Redis. What it keeps: each command has an id of its
//! own and is sent again only as the API documents; every answer is checked; latency of an open loop counts from
//! the intended send time; and what was acknowledged stands in the ledger, so that [`crate::audit`] can prove
//! afterwards that nothing of it was lost.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use roomcluster_lifecycle::args::{ConfigError, Exit, duration, positive_duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod client;
mod clock;
mod drive;
pub mod ledger;
mod pauses;
pub mod pool;
mod progress;
mod report;
mod retry;
mod schedule;
mod script;
mod stats;

use drive::{Lane, Pace, Run};
use pool::{Pool, Target};
use report::{Phase, Report, Setting};
use schedule::Schedule;
use stats::Stats;

use crate::types::RoomKey;

/// Drives rooms over gRPC, checks every answer and keeps a ledger.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Where the rooms are served, as http://host:port. May be given several times; names are resolved again at
    /// every reconnect, and all their addresses are used in turn.
    #[arg(long, required = true)]
    pub target: Vec<Target>,
    /// The app that the rooms belong to.
    #[arg(long, default_value = "demo")]
    pub app: String,
    /// How many rooms; they are named by the prefix and an index from 0.
    #[arg(long, default_value_t = 100)]
    pub rooms: usize,
    /// What the names of the rooms begin with.
    #[arg(long, default_value = "room-")]
    pub prefix: String,
    /// Creates the rooms first. A room that exists already is taken as it is; none is closed at the end.
    #[arg(long)]
    pub create: bool,
    /// Seats of the rooms that are created; raised to the number of lanes of a room.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub seats: u32,
    /// Commands per second over all rooms that are not hot, sent on a schedule that waits for no answer.
    #[arg(long, default_value_t = 100.0)]
    pub rate: f64,
    /// So many of the rooms get a rate of their own each, on top of --rate.
    #[arg(long, default_value_t = 0)]
    pub hot_rooms: usize,
    /// Commands per second of each hot room.
    #[arg(long, default_value_t = 20.0)]
    pub hot_rate: f64,
    /// Independent clients in each room of the open loop.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub lanes: u32,
    /// Sends the next command as soon as the last one is answered, instead of on a schedule.
    #[arg(long, conflicts_with_all = ["rate", "hot_rooms", "hot_rate", "lanes"])]
    pub closed_loop: bool,
    /// Clients of the closed loop, spread evenly over the rooms; by default one for each room.
    #[arg(long, requires = "closed_loop")]
    pub concurrency: Option<usize>,
    /// gRPC connections.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub connections: u16,
    /// How often each client sends a heartbeat or a read, in turn.
    #[arg(long, default_value = "10s", value_parser = positive_duration)]
    pub check_interval: Duration,
    /// How long to run; without it until SIGINT, SIGTERM or the stop file.
    #[arg(long, value_parser = duration)]
    pub duration: Option<Duration>,
    /// Ends the run as soon as this file exists.
    #[arg(long)]
    pub stop_file: Option<PathBuf>,
    /// Bound of a single try; a command has 5 tries within 5 s in all.
    #[arg(long, default_value = "2s", value_parser = positive_duration)]
    pub try_timeout: Duration,
    /// Writes a line of JSON for each command that was acknowledged, refused or given up.
    #[arg(long)]
    pub ledger: Option<PathBuf>,
    /// Writes the report there instead of to standard output.
    #[arg(long)]
    pub report: Option<PathBuf>,
    /// Shows the figures of each second on standard error.
    #[arg(long)]
    pub progress: bool,
    /// Rewrites this file with the figures of the last second, as JSON, twice a second.
    #[arg(long)]
    pub progress_file: Option<PathBuf>,
}

impl LoadArgs {
    /// What no single flag can tell.
    fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |flag, problem: String| Err(ConfigError::new(flag, problem));
        if self.rooms == 0 {
            return wrong("--rooms", "give at least 1".to_owned());
        }
        if self.hot_rooms > self.rooms {
            return wrong("--hot-rooms", format!("{} of {} rooms cannot be hot", self.hot_rooms, self.rooms));
        }
        for (flag, rate) in [("--rate", self.rate), ("--hot-rate", self.hot_rate)] {
            if !rate.is_finite() || rate < 0.0 {
                return wrong(flag, format!("{rate} is not a rate"));
            }
        }
        if let Some(clients) = self.concurrency.filter(|clients| *clients < self.rooms) {
            return wrong(
                "--concurrency",
                format!("{clients} clients leave some of {} rooms idle", self.rooms),
            );
        }
        let longest = format!("{}{}", self.prefix, self.rooms - 1);
        RoomKey::new(&self.app, &longest)
            .map_err(|error| ConfigError::new("--app and --prefix", error.to_string()))?;
        Ok(())
    }

    fn lanes_of(&self, room: usize) -> u32 {
        match (self.closed_loop, self.concurrency) {
            (false, _) => self.lanes,
            (true, None) => 1,
            (true, Some(clients)) => {
                u32::try_from(clients / self.rooms + usize::from(room < clients % self.rooms))
                    .unwrap_or(u32::MAX)
            }
        }
    }

    fn seats(&self) -> u32 {
        self.seats.max(self.lanes_of(0).min(script::MAX_SEATS))
    }

    /// When the commands of a lane are sent; `None` for a lane that sends nothing.
    fn pace(&self, room: usize, lane: u32) -> Option<Pace> {
        if self.closed_loop {
            return Some(Pace::Closed);
        }
        let (lanes, lane) = (self.lanes as usize, lane as usize);
        // Lanes of different rooms alternate, so that the schedule of the whole is even.
        let schedule = if room < self.hot_rooms {
            let hot = self.hot_rooms;
            Schedule::shared(self.hot_rate * hot as f64, hot * lanes, lane * hot + room)
        } else {
            let others = self.rooms - self.hot_rooms;
            Schedule::shared(self.rate, others * lanes, lane * others + room - self.hot_rooms)
        };
        schedule.map(Pace::Open)
    }
}

/// Runs the load until it is told to stop, and reports.
///
/// # Errors
/// Files that cannot be written.
pub async fn run(args: LoadArgs) -> anyhow::Result<ExitCode> {
    if let Err(problem) = args.validate() {
        eprintln!("error: {problem}");
        return Ok(Exit::BadConfig.into());
    }
    let stop = CancellationToken::new();
    let connections_end = CancellationToken::new();
    let (ledger, writer) = ledger::open(args.ledger.as_deref()).context("cannot create the ledger")?;
    let (pool, mut keepers) =
        Pool::start(args.target.clone(), usize::from(args.connections), &connections_end);
    let run = Arc::new(Run {
        client: client::Client { pool, try_timeout: args.try_timeout },
        stats: Arc::new(Stats::new(args.rooms, args.hot_rooms)),
        ledger,
        clock: clock::RunClock::start(),
        stop: stop.clone(),
        app: args.app.clone(),
        run_id: format!("{:08x}", rand::random::<u32>()),
        prefix: args.prefix.clone(),
        check_interval: args.check_interval,
    });
    let progress = progress::start(&run, args.rooms, args.progress, args.progress_file.clone());
    let stopper = drive::stop_on_signal_or_file(stop.clone(), args.stop_file.clone());

    let elapsed = drive_all(&args, &run, &progress).await;

    stopper.end().await;
    let setting = Setting {
        run_id: run.run_id.clone(),
        app: args.app.clone(),
        rooms: args.rooms,
        hot_rooms: args.hot_rooms,
        mode: if args.closed_loop { "closed" } else { "open" },
    };
    let report = Report::new(setting, &run.stats, elapsed);
    let clean = run.stats.is_clean();
    progress.end().await.context("cannot write the progress file")?;
    connections_end.cancel();
    while keepers.join_next().await.is_some() {}
    // The last sender: the writer ends when it is gone.
    drop(run);
    writer.close().await.context("cannot write the ledger")?;
    eprintln!("{report}");
    write_report(&serde_json::to_string(&report)?, args.report.as_deref())
        .context("cannot write the report")?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Creates the rooms, if asked, and drives them. Gives how long they were driven.
async fn drive_all(args: &LoadArgs, run: &Arc<Run>, progress: &progress::Display) -> Duration {
    let fresh = if args.create {
        progress.phase(Phase::Creating);
        drive::create_rooms(run, args.rooms, args.seats()).await
    } else {
        vec![false; args.rooms]
    };
    progress.phase(Phase::Running);
    let began = Instant::now();
    let mut lanes = Vec::new();
    for (room, fresh) in fresh.into_iter().enumerate() {
        for lane in 0..args.lanes_of(room) {
            if let Some(pace) = args.pace(room, lane) {
                lanes.push(Lane { room, script: script::LaneScript::new(lane, fresh), pace });
            }
        }
    }
    let mut driven = drive::start_lanes(run, lanes, began);
    let over = async {
        match args.duration {
            Some(duration) => tokio::time::sleep_until(began + duration).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = run.stop.cancelled() => {}
        () = over => run.stop.cancel(),
        // No lane had anything to send.
        () = drive::all_ended(&mut driven) => {}
    }
    let elapsed = began.elapsed();
    progress.phase(Phase::Stopping);
    drive::all_ended(&mut driven).await;
    progress.phase(Phase::Done);
    elapsed
}

/// Writes a line of JSON to a file, or to standard output.
pub(crate) fn write_report(json: &str, path: Option<&Path>) -> std::io::Result<()> {
    match path {
        Some(path) => writeln!(File::create(path)?, "{json}"),
        None => writeln!(std::io::stdout(), "{json}"),
    }
}

#[cfg(test)]
mod tests;
