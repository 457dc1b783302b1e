//! The processes under test.

use std::future::pending;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use roomcluster_lifecycle::{
    BoxError, Check, ConfigError, Identity, LogFormat, PhaseReport, Process, Settings, Shutdown, args,
    run_main,
};

pub(crate) const VARIABLE: &str = "LIFECYCLE_TEST_ROLE";

#[derive(Parser)]
struct Args {
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:0")]
    admin_listen: SocketAddr,
    #[arg(long, env = "SHUTDOWN_TIMEOUT", default_value = "30s", value_parser = args::positive_duration)]
    shutdown_timeout: Duration,
    #[arg(long, env = "NODE_TOKEN", hide_env_values = true, value_parser = token)]
    node_token: Option<String>,
}

fn token(text: &str) -> Result<String, String> {
    if text.len() < 8 { Err(format!("{text} is too short")) } else { Ok(text.to_owned()) }
}

pub(crate) fn run(role: &str) -> ExitCode {
    let args: Args = args::parse_or_exit();
    let settings = Settings {
        identity: Identity::new("test-service", "test-1"),
        log_format: LogFormat::Json,
        admin_listen: args.admin_listen,
        shutdown_timeout: args.shutdown_timeout,
    };
    let role = role.to_owned();
    run_main(settings, |process| async move {
        // The parent reads where to probe.
        println!("admin {}", process.admin.local_addr());
        let plan = start(&role, &process).await?;
        println!("started");
        Ok(plan)
    })
}

async fn start(role: &str, process: &Process) -> Result<Shutdown, BoxError> {
    process.health.add_check(Check::hard("always"), || async { Ok::<_, String>(()) });
    let plan = process.shutdown();
    let second = Duration::from_secs(1);
    match role {
        "graceful" => {
            Ok(plan.phase("wait", second * 20, |_| wait_for_line()).phase("mysql", second, |_| async {}))
        }
        "hurried" => {
            process.tasks.spawn_once("reply", pending::<()>());
            process.tasks.spawn_once("reply", pending::<()>());
            Ok(plan.phase("cells", second * 20, |budget| async move { budget.hurry.cancelled().await }))
        }
        "stuck" => Ok(plan.phase("cells", second * 20, |_| pending::<()>()).unfinished("room_cell", || 5)),
        "cut" => Ok(plan.phase("grpc", second, |_| async { PhaseReport::done().cut("grpc_call", 2) })),
        "blocked" => {
            let tasks = process.tasks.clone();
            let plan = plan.phase("tasks", second, move |budget| async move {
                tasks.stop_and_join(budget.deadline).await
            });
            for _ in 0..64 {
                process.tasks.spawn_once("spin", async {
                    loop {
                        std::thread::yield_now();
                    }
                });
            }
            Ok(plan)
        }
        "panicking" => {
            process.tasks.spawn_essential("committer", |_| async {
                if true {
                    panic!("made to fail");
                }
            });
            Ok(plan.phase("mysql", second, |_| async {}))
        }
        "misconfigured" => Err(ConfigError::new("--sink-url", "not a URL").into()),
        "failing" => Err("the database does not answer".into()),
        "starting" => pending().await,
        other => Err(format!("no role {other}").into()),
    }
}

/// Ends when the parent writes to standard input.
async fn wait_for_line() {
    let read = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    read.await.expect("reading a line does not panic").expect("the parent keeps the pipe open");
}
