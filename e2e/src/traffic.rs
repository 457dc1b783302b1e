//! Clients that drive rooms, and the proof afterwards: `dataplane load` and `dataplane audit`.
//!
//! They run beside the tests, where Services and pods are reachable, and keep their ledgers in the output folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use tokio::process::{Child, Command};

use crate::program;
use crate::wait::until;

/// Commands in flight at the end have 5 s; the ledger is written meanwhile.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// The audit reads all that was written, and waits for events to arrive.
const AUDIT_PATIENCE: Duration = Duration::from_secs(120);

/// A Service chooses a pod for each connection at random: with so many, every pod of a few gets some.
const CONNECTIONS: &str = "24";

/// What clients do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rooms, named by `prefix` and an index.
    pub rooms: u32,
    /// What the rooms' names begin with.
    pub prefix: &'static str,
    /// Commands a second over all rooms that are not hot.
    pub rate: u32,
    /// So many rooms get `hot_rate` commands a second each.
    pub hot_rooms: u32,
    /// Commands a second in each hot room.
    pub hot_rate: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self { rooms: 60, prefix: "room-", rate: 60, hot_rooms: 5, hot_rate: 10 }
    }
}

/// A spread of times.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Spread {
    /// How many values.
    pub count: u64,
    /// Half are at most this.
    pub p50: f64,
    /// All but one in a hundred are at most this.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

/// What the clients saw.
#[derive(Clone, Debug, Deserialize)]
pub struct LoadReport {
    /// Commands whose answer arrived.
    pub commands_acked: u64,
    /// Commands given up after the retries that the API documents.
    pub client_errors: u64,
    /// Reads and heartbeats given up.
    pub read_errors: u64,
    /// Answers that contradict what was asked.
    pub wrong_answers: u64,
    /// Most tries of one command.
    pub tries_max: u32,
    /// Changes of owner that were seen.
    pub moves_total: u64,
    /// Most changes of owner of one room.
    pub moves_per_room_max: u32,
    /// Rooms that changed their owner.
    pub rooms_moved: u64,
    /// From the last acknowledgement of the old owner to the first of the new one, in hot rooms.
    pub pause_ms: Spread,
    /// The first problems, in words.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// What the clients see now.
#[derive(Clone, Debug, Deserialize)]
pub struct Progress {
    /// `creating`, `running`, `stopping` or `done`.
    pub state: String,
    /// Acknowledged so far.
    pub commands_acked: u64,
    /// Acknowledged in the last second.
    pub commands_per_s: f64,
    /// Commands given up.
    pub client_errors: u64,
    /// Answers that contradict what was asked.
    pub wrong_answers: u64,
    /// Tries beyond the first.
    pub retries: u64,
    /// Rooms that changed their owner.
    pub rooms_moved: u64,
    /// The longest pause so far.
    pub pause_max_ms: f64,
    /// Rooms by the node that answered last.
    pub owners: BTreeMap<String, u64>,
}

/// What the database, the ledgers and the sink prove.
#[derive(Clone, Debug, Deserialize)]
pub struct AuditReport {
    /// `pass` or `fail`.
    pub audit: String,
    /// Acknowledged, and not in the log.
    pub commands_lost: u64,
    /// In effect more than once.
    pub commands_doubled: u64,
    /// Committed, and not delivered.
    pub events_missing: u64,
    /// Commands in the log.
    pub commands: u64,
    /// The first violations.
    #[serde(default)]
    pub violations: Vec<serde_json::Value>,
}

/// Clients at work.
#[derive(Debug)]
pub struct Load {
    child: Child,
    folder: PathBuf,
    name: String,
}

impl Load {
    /// Starts clients against `target`; their files are in `folder` and begin with `name`.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub async fn start(
        dataplane: &Path,
        folder: &Path,
        name: &str,
        target: &str,
        plan: &Plan,
    ) -> Result<Self> {
        tokio::fs::create_dir_all(folder).await.context("make the folder of the clients")?;
        let file = |suffix: &str| folder.join(format!("{name}.{suffix}"));
        for old in ["ledger.jsonl", "load.json", "progress.json", "stop"] {
            match tokio::fs::remove_file(file(old)).await {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).context("remove the files of an earlier run");
                }
                _ => {}
            }
        }
        let log = std::fs::File::create(file("log")).context("make the log of the clients")?;
        let child = Command::new(dataplane)
            .args([
                "load",
                "--create",
                "--target",
                target,
                "--connections",
                CONNECTIONS,
                "--prefix",
                plan.prefix,
            ])
            .args(["--rooms", &plan.rooms.to_string(), "--rate", &plan.rate.to_string()])
            .args(["--hot-rooms", &plan.hot_rooms.to_string(), "--hot-rate", &plan.hot_rate.to_string()])
            .arg("--ledger")
            .arg(file("ledger.jsonl"))
            .arg("--report")
            .arg(file("load.json"))
            .arg("--progress-file")
            .arg(file("progress.json"))
            .arg("--stop-file")
            .arg(file("stop"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("share the log of the clients")?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("start the clients")?;
        Ok(Self { child, folder: folder.to_owned(), name: name.to_owned() })
    }

    fn file(&self, suffix: &str) -> PathBuf {
        self.folder.join(format!("{}.{suffix}", self.name))
    }

    /// The ledger of what was acknowledged.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.file("ledger.jsonl")
    }

    /// What the clients see now.
    ///
    /// # Errors
    /// When they have not said anything yet, or have ended.
    pub async fn progress(&mut self) -> Result<Progress> {
        if let Some(status) = self.child.try_wait().context("look at the clients")? {
            bail!("the clients have ended with {status}:\n{}", self.log().await);
        }
        read_json(&self.file("progress.json")).await
    }

    /// Waits until `rooms` rooms have answered and commands flow.
    ///
    /// # Errors
    /// When they do not within half a minute.
    pub async fn await_rooms(&mut self, rooms: u32) -> Result<()> {
        until("every room answers", Duration::from_secs(30), async || {
            let progress = self.progress().await?;
            let answered: u64 = progress.owners.values().sum();
            ensure!(progress.state == "running", "the clients are {}", progress.state);
            ensure!(answered == u64::from(rooms), "{answered} of {rooms} rooms have answered");
            Ok(())
        })
        .await
    }

    /// Waits until commands are acknowledged that were not before.
    ///
    /// # Errors
    /// When none are for 10 s.
    pub async fn await_more(&mut self) -> Result<()> {
        let before = self.progress().await?.commands_acked;
        until("further commands are acknowledged", Duration::from_secs(10), async || {
            let now = self.progress().await?.commands_acked;
            ensure!(now > before, "still {now}");
            Ok(())
        })
        .await
    }

    /// Ends the clients, which finish what is in flight, and reads their report.
    ///
    /// # Errors
    /// When they leave none.
    pub async fn stop(mut self) -> Result<LoadReport> {
        tokio::fs::write(self.file("stop"), "").await.context("tell the clients to stop")?;
        tokio::time::timeout(STOP_PATIENCE, self.child.wait())
            .await
            .context("the clients do not stop")?
            .context("wait for the clients")?;
        match read_json(&self.file("load.json")).await {
            Ok(report) => Ok(report),
            Err(error) => Err(error.context(format!("the clients left no report:\n{}", self.log().await))),
        }
    }

    async fn log(&self) -> String {
        tokio::fs::read_to_string(self.file("log")).await.unwrap_or_default()
    }
}

/// What the audit is made of.
#[derive(Debug)]
pub struct AuditOf<'a> {
    /// The database.
    pub database_url: &'a str,
    /// The sink of the events.
    pub sink: &'a str,
    /// Every ledger of clients that used this database.
    pub ledgers: &'a [PathBuf],
    /// Where the report goes.
    pub report: PathBuf,
}

/// Proves the promises from the database, the ledgers and the sink.
///
/// # Errors
/// When the audit cannot be made; a report that says `fail` is no error here.
pub async fn audit(dataplane: &Path, of: &AuditOf<'_>) -> Result<AuditReport> {
    let report = of.report.display().to_string();
    let mut args: Vec<String> =
        ["audit", "--database-url", of.database_url, "--sink", of.sink, "--wait", "30s", "--report", &report]
            .map(str::to_owned)
            .to_vec();
    for ledger in of.ledgers {
        args.extend(["--ledger".to_owned(), ledger.display().to_string()]);
    }
    let program = dataplane.to_str().context("the checkout's path is no UTF-8")?;
    let outcome = program::run(program, &args, "", AUDIT_PATIENCE).await?;
    match read_json(&of.report).await {
        Ok(report) => Ok(report),
        Err(error) => {
            Err(error.context(format!("the audit left no report:\n{}{}", outcome.stdout, outcome.stderr)))
        }
    }
}

async fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let text = tokio::fs::read(path).await.with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("understand {}", path.display()))
}
