//! The offline proof of the promises, from database, ledgers and sink.
//!
//! It reads what the others wrote and trusts none of it: P1 from the logs, heads, owners and a replay; P2 and P3
//! from the ledgers of acknowledged commands; P4 from the sink and the outbox. It knows a room only through
//! [`RoomLogic`]. Rows are streamed in the order of their keys, so that memory stays bounded. It is meant for a
//! database at rest; on a busy one, commands and events that come meanwhile look like faults.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use roomcluster_lifecycle::args::{Exit, duration};
use secrecy::SecretString;
use serde::Serialize;
use tokio::time::Instant;

use crate::load::ledger::{LedgerEntry, LedgerReader, ReadLedgerError};
use crate::load::write_report;
use crate::logic::RoomLogic;
use crate::room::VoiceRoom;

mod db;
mod findings;
mod merge;
mod room;
mod rows;
mod scratch;
mod sink;

use db::Db;
use findings::{Counts, Findings, Violation};
use rows::RoomRef;
use scratch::{AckRow, Scratch, UnsettledRow};

/// How often the outbox is looked at while the audit waits for it.
const OUTBOX_POLL: Duration = Duration::from_millis(250);

/// Proves from database, ledgers and sink that nothing was lost and nothing happened twice.
#[derive(Debug, Clone, Args)]
pub struct AuditArgs {
    /// The database, as mysql://… or sqlite:…
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_parser = parse_secret)]
    pub database_url: SecretString,
    /// A ledger that `dataplane load` wrote. May be given several times.
    #[arg(long)]
    pub ledger: Vec<PathBuf>,
    /// The Redis that the outbox delivered to; without it deliveries are not checked.
    #[arg(long, value_parser = parse_secret)]
    pub sink: Option<SecretString>,
    /// How long to wait until the outbox is empty; what waits then is a violation.
    #[arg(long, default_value = "30s", value_parser = duration)]
    pub wait: Duration,
    /// Writes the report there instead of to standard output.
    #[arg(long)]
    pub report: Option<PathBuf>,
}

fn parse_secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(SecretString::from(text))
}

/// Why the audit could not be made. A violation is not an error.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// Not a URL that names a database.
    #[error("--database-url: it is not of the form mysql://user:password@host/database or sqlite:path")]
    Url,
    /// The database was not reached.
    #[error("the database was not reached")]
    Connect(#[source] sqlx::Error),
    /// A statement failed.
    #[error("the database could not be read")]
    Query(#[source] sqlx::Error),
    /// A column holds what it cannot hold.
    #[error("a column holds {0}")]
    Column(String),
    /// The scratch database.
    #[error("the scratch database could not be written")]
    Scratch(#[source] sqlx::Error),
    /// Not a URL that names a Redis.
    #[error("--sink: it is not of the form redis://host:port")]
    SinkUrl,
    /// The sink could not be read.
    #[error("the sink could not be read")]
    Sink(#[source] redis::RedisError),
    /// A ledger could not be opened.
    #[error("the ledger {path} could not be opened")]
    OpenLedger {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A ledger could not be read.
    #[error(transparent)]
    ReadLedger(#[from] ReadLedgerError),
}

/// The verdict.
#[derive(Debug, Serialize)]
struct Report<'a> {
    audit: &'static str,
    sink: &'static str,
    #[serde(flatten)]
    counts: Counts,
    violations_total: u64,
    violations: &'a [Violation],
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { audit, counts, violations_total, .. } = self;
        writeln!(
            f,
            "audit {audit}: {} rooms, {} commands under {} epochs; {} acknowledged: {} lost, {} doubled; \
             {} given up, {} of them committed",
            counts.rooms,
            counts.commands,
            counts.epochs,
            counts.acked,
            counts.commands_lost,
            counts.commands_doubled,
            counts.unknown,
            counts.unknown_committed,
        )?;
        write!(
            f,
            "{} events: {} missing, {} waiting, sink {}; {violations_total} violations",
            counts.events, counts.events_missing, counts.events_pending, self.sink,
        )?;
        match self.violations.first() {
            Some(first) => write!(f, "\nfirst violation: {first}"),
            None => Ok(()),
        }
    }
}

/// Makes the audit of voice rooms and reports.
///
/// # Errors
/// Whatever kept the audit from being made; a violation is the exit code 1.
pub async fn run(args: AuditArgs) -> anyhow::Result<ExitCode> {
    run_with(args, VoiceRoom).await
}

/// Makes the audit of rooms of any logic and reports.
///
/// # Errors
/// Whatever kept the audit from being made; a violation is the exit code 1.
pub async fn run_with<L: RoomLogic>(args: AuditArgs, logic: L) -> anyhow::Result<ExitCode> {
    let findings = match audit(&args, &logic).await {
        Ok(findings) => findings,
        Err(error @ (AuditError::Url | AuditError::SinkUrl)) => {
            eprintln!("error: {error}");
            return Ok(Exit::BadConfig.into());
        }
        Err(error) => return Err(error.into()),
    };
    let pass = findings.total() == 0;
    let report = Report {
        audit: if pass { "pass" } else { "fail" },
        sink: if args.sink.is_some() { "checked" } else { "not checked" },
        counts: findings.counts,
        violations_total: findings.total(),
        violations: findings.named(),
    };
    eprintln!("{report}");
    write_report(&serde_json::to_string(&report)?, args.report.as_deref())
        .context("cannot write the report")?;
    Ok(if pass { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares everything with everything.
async fn audit<L: RoomLogic>(args: &AuditArgs, logic: &L) -> Result<Findings, AuditError> {
    let db = Db::open(&args.database_url).await?;
    let mut scratch = Scratch::open().await?;
    let mut findings = Findings::default();
    for path in &args.ledger {
        read_ledger(path, &mut scratch, &mut findings).await?;
    }
    wait_for_outbox(&db, args.wait).await?;
    if let Some(url) = &args.sink {
        sink::read(url, &mut scratch, &mut findings).await?;
    }
    judge(&db, logic, &mut scratch, args.sink.is_some(), &mut findings).await?;
    Ok(findings)
}

/// Judges what was read.
async fn judge<L: RoomLogic>(
    db: &Db,
    logic: &L,
    scratch: &mut Scratch,
    sink_checked: bool,
    findings: &mut Findings,
) -> Result<(), AuditError> {
    scratch.flush().await?;
    merge::Walk::new(logic, db, scratch, sink_checked).run(findings).await?;
    findings.counts.events_redelivered -= findings.counts.events_delivered;
    merge::check_doubled(db, findings).await?;
    merge::check_unsettled(db, scratch, findings).await
}

/// Sorts a ledger into the scratch database.
async fn read_ledger(path: &Path, scratch: &mut Scratch, findings: &mut Findings) -> Result<(), AuditError> {
    let ledger = LedgerReader::open(path)
        .map_err(|source| AuditError::OpenLedger { path: path.display().to_string(), source })?;
    for entry in ledger {
        take_entry(entry?, scratch, findings).await?;
    }
    Ok(())
}

async fn take_entry(
    entry: LedgerEntry,
    scratch: &mut Scratch,
    findings: &mut Findings,
) -> Result<(), AuditError> {
    let refused = matches!(entry, LedgerEntry::Refused(_));
    match entry {
        LedgerEntry::Ack(ack) => {
            findings.counts.acked += 1;
            let room = RoomRef { app: ack.app.into_bytes(), room: ack.room.into_bytes() };
            let (seq, epoch, number) = (ack.seq, ack.epoch, findings.counts.acked);
            let (command_id, hash) = (ack.id.into_bytes(), ack.hash.into_bytes());
            scratch.acked(AckRow { room, seq, number, command_id, epoch, hash }).await
        }
        LedgerEntry::Unknown(entry) | LedgerEntry::Refused(entry) => {
            if refused {
                findings.counts.refused += 1;
            } else {
                findings.counts.unknown += 1;
            }
            let room = RoomRef { app: entry.app.into_bytes(), room: entry.room.into_bytes() };
            scratch.unsettled(UnsettledRow { room, command_id: entry.id.into_bytes(), refused }).await
        }
    }
}

/// Waits until nothing is on its way any more, but no longer than asked.
async fn wait_for_outbox(db: &Db, wait: Duration) -> Result<(), AuditError> {
    let deadline = Instant::now() + wait;
    let sql = "SELECT EXISTS (SELECT 1 FROM room_outbox WHERE state NOT IN (?, ?))";
    let binds = [room::STATE_FAILED, room::STATE_DELIVERED].map(|state| db::Value::Bytes(state.to_vec()));
    while db.number(sql, &binds).await? > 0 && Instant::now() < deadline {
        tokio::time::sleep(OUTBOX_POLL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
