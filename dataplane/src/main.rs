//! The one binary of the data plane; each role is a subcommand.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use dataplane::service::{dev, migrate, outbox, pre_stop, room};
use dataplane::{audit, load};
use roomcluster_lifecycle::{BoxError, args, run_main};

/// RoomCluster's data plane.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Executes rooms (room-service).
    Room(Box<room::RoomArgs>),
    /// Delivers committed events, beside any number of room processes.
    Outbox(Box<outbox::OutboxArgs>),
    /// Everything in one process, on SQLite, with nothing to install.
    Dev(dev::DevArgs),
    /// Brings the database schema up to date. Nothing else ever changes it.
    Migrate(migrate::MigrateArgs),
    /// The pod's preStop hook.
    PreStop(pre_stop::PreStopArgs),
    /// Drives rooms like real clients, checks every answer, keeps a ledger.
    Load(Box<load::LoadArgs>),
    /// Proves the promises offline, from database, ledger and sink.
    Audit(Box<audit::AuditArgs>),
}

fn main() -> ExitCode {
    match args::parse_or_exit::<Cli>().role {
        Role::Room(args) => run_main(args.settings(), |process| room::start(process, *args)),
        Role::Outbox(args) => run_main(args.settings(), |process| outbox::start(process, *args)),
        Role::Dev(args) => run_main(args.settings(), |process| dev::start(process, args)),
        Role::Migrate(args) => once(async move { migrate::run(&args).await.map(|()| ExitCode::SUCCESS) }),
        Role::PreStop(args) => once(async move { pre_stop::run(&args).await.map(|()| ExitCode::SUCCESS) }),
        Role::Load(args) => once(async move { Ok(load::run(*args).await?) }),
        Role::Audit(args) => once(async move { Ok(audit::run(*args).await?) }),
    }
}

/// Runs a command that ends by itself.
fn once(command: impl Future<Output = Result<ExitCode, BoxError>>) -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(command).unwrap_or_else(|error| {
        eprintln!("error: {}", with_causes(error.as_ref()));
        args::exit_of(error.as_ref()).into()
    })
}

/// An error and what led to it, outermost first.
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
