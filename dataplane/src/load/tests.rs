//! The whole client against a service in this process that answers, fails and moves rooms as told.

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use clap::Parser;
use serde_json::Value;

use super::ledger::{LedgerEntry, LedgerReader};
use super::*;

mod service;

use service::{FakeService, Rooms};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    load: LoadArgs,
}

fn args(flags: &[&str]) -> LoadArgs {
    Cli::parse_from(["load"].iter().chain(flags)).load
}

struct Outcome {
    exit: String,
    report: Value,
    ledger: Vec<LedgerEntry>,
}

/// Runs the client with these flags; report and ledger go to a directory of its own.
async fn load(flags: &[&str]) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let mut args = args(flags);
    args.report = Some(dir.path().join("report.json"));
    args.ledger = Some(dir.path().join("ledger.jsonl"));
    args.progress_file = Some(dir.path().join("progress.json"));
    let exit = format!("{:?}", run(args).await.unwrap());
    let progress: Value = read_json(&dir.path().join("progress.json"));
    assert_eq!(progress["state"], "done");
    Outcome {
        exit,
        report: read_json(&dir.path().join("report.json")),
        ledger: LedgerReader::open(&dir.path().join("ledger.jsonl")).unwrap().map(Result::unwrap).collect(),
    }
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn exit(code: ExitCode) -> String {
    format!("{code:?}")
}

#[tokio::test]
async fn a_clean_run_acknowledges_every_command_and_writes_each_to_the_ledger() {
    let rooms = Rooms::new();
    let service = FakeService::start("a", &rooms).await;
    let ran = load(&[
        "--target",
        &service.url(),
        "--rooms",
        "6",
        "--create",
        "--rate",
        "300",
        "--hot-rooms",
        "2",
        "--hot-rate",
        "50",
        "--duration",
        "1s",
        "--check-interval",
        "100ms",
    ])
    .await;
    assert_eq!(ran.exit, exit(ExitCode::SUCCESS), "{}", ran.report);
    assert_eq!(ran.report["load"], "pass");
    assert_eq!(ran.report["rooms_created"], 6);
    assert!(ran.report["reads"].as_u64().unwrap() > 0, "{}", ran.report);
    assert_eq!(ran.report["owners"]["a"], 6);
    let acked = ran.report["commands_acked"].as_u64().unwrap();
    assert_eq!(acked, rooms.committed());
    assert_eq!(ran.ledger.len() as u64, acked);
    // 400 commands a second for a second, and the creates: never more, however slow the machine was meanwhile.
    assert!((7..=420).contains(&acked), "{acked}");
}

#[tokio::test]
async fn a_command_that_took_effect_but_was_answered_unavailable_is_sent_again_under_its_id() {
    let rooms = Rooms::new();
    rooms.fail_after_commit_every.store(5, SeqCst);
    let service = FakeService::start("a", &rooms).await;
    let ran =
        load(&["--target", &service.url(), "--rooms", "4", "--create", "--rate", "100", "--duration", "1s"])
            .await;
    assert_eq!(ran.exit, exit(ExitCode::SUCCESS), "{}", ran.report);
    assert!(ran.report["replayed"].as_u64().unwrap() > 0, "{}", ran.report);
    assert!(ran.report["tries_max"].as_u64().unwrap() >= 2);
    assert_eq!(ran.report["commands_acked"], rooms.committed());
}

#[tokio::test]
async fn a_server_that_dies_costs_no_command_as_the_connections_go_to_the_other() {
    let rooms = Rooms::new();
    let (first, second) = (FakeService::start("a", &rooms).await, FakeService::start("b", &rooms).await);
    let (one, two) = (first.url(), second.url());
    let flags =
        ["--target", &one, "--target", &two, "--rooms", "8", "--create", "--rate", "200", "--duration", "2s"];
    let killer = async {
        while rooms.committed() < 150 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        first.kill().await;
        rooms.move_all("b");
    };
    let (ran, ()) = tokio::join!(load(&flags), killer);
    assert_eq!(ran.exit, exit(ExitCode::SUCCESS), "{}", ran.report);
    assert_eq!(ran.report["client_errors"], 0);
    assert_eq!(ran.report["rooms_moved"], 8);
    assert_eq!(ran.report["moves_per_room_max"], 1);
    assert_eq!(ran.report["pause_ms"]["count"], 8);
    assert_eq!(ran.report["owners"]["b"], 8);
}

#[tokio::test]
async fn a_server_that_accepts_and_stays_silent_costs_a_try_and_no_command() {
    let rooms = Rooms::new();
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let service = FakeService::start("a", &rooms).await;
    let (dead, live) = (format!("http://{}", silent.local_addr().unwrap()), service.url());
    let ran = load(&[
        "--target",
        &dead,
        "--target",
        &live,
        "--rooms",
        "4",
        "--create",
        "--rate",
        "100",
        "--duration",
        "500ms",
        "--try-timeout",
        "200ms",
    ])
    .await;
    assert_eq!(ran.exit, exit(ExitCode::SUCCESS), "{}", ran.report);
    assert!(ran.report["retries"].as_u64().unwrap() > 0, "{}", ran.report);
    assert_eq!(ran.report["commands_acked"], rooms.committed());
}

#[tokio::test]
async fn without_any_server_a_command_is_given_up_and_stands_in_the_ledger_as_unknown() {
    let rooms = Rooms::new();
    let service = FakeService::start("a", &rooms).await;
    let url = service.url();
    service.kill().await;
    let ran = load(&[
        "--target",
        &url,
        "--rooms",
        "2",
        "--rate",
        "100",
        "--duration",
        "100ms",
        "--try-timeout",
        "50ms",
    ])
    .await;
    assert_eq!(ran.exit, exit(ExitCode::FAILURE));
    assert_eq!(ran.report["client_errors"], 2);
    assert!(ran.ledger.iter().all(|entry| matches!(entry, LedgerEntry::Unknown(lost) if lost.tries == 5)));
    assert_eq!(ran.ledger.len(), 2);
}

#[tokio::test]
async fn a_wrong_answer_fails_the_run_and_is_named() {
    let rooms = Rooms::new();
    rooms.repeat_seq_at.store(7, SeqCst);
    let service = FakeService::start("a", &rooms).await;
    let ran = load(&[
        "--target",
        &service.url(),
        "--rooms",
        "1",
        "--create",
        "--rate",
        "100",
        "--duration",
        "300ms",
    ])
    .await;
    assert_eq!(ran.exit, exit(ExitCode::FAILURE));
    assert_eq!(ran.report["wrong_answers"], 1, "{}", ran.report);
    let problem = ran.report["problems"][0].as_str().unwrap();
    assert!(problem.contains("seq 6 after 6"), "{problem}");
}

#[tokio::test]
async fn a_stop_file_ends_a_closed_loop() {
    let rooms = Rooms::new();
    let service = FakeService::start("a", &rooms).await;
    let dir = tempfile::tempdir().unwrap();
    let stop_file = dir.path().join("stop");
    let (url, file) = (service.url(), stop_file.to_str().unwrap().to_owned());
    let flags = [
        "--target",
        &url,
        "--rooms",
        "2",
        "--create",
        "--closed-loop",
        "--concurrency",
        "5",
        "--stop-file",
        &file,
    ];
    let stopper = async {
        while rooms.committed() < 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        std::fs::write(&stop_file, b"").unwrap();
    };
    let (ran, ()) = tokio::join!(load(&flags), stopper);
    assert_eq!(ran.exit, exit(ExitCode::SUCCESS), "{}", ran.report);
    assert_eq!(ran.report["mode"], "closed");
    assert_eq!(ran.report["commands_acked"], rooms.committed());
}

#[tokio::test]
async fn a_second_run_takes_the_rooms_as_they_are() {
    let rooms = Rooms::new();
    let service = FakeService::start("a", &rooms).await;
    let url = service.url();
    let flags = ["--target", &url, "--rooms", "2", "--create", "--rate", "100", "--duration", "250ms"];
    for rooms_created in [2, 0] {
        let ran = load(&flags).await;
        assert_eq!(ran.exit, exit(ExitCode::SUCCESS), "{}", ran.report);
        assert_eq!(ran.report["rooms_created"], rooms_created);
    }
}

#[test]
fn flags_that_contradict_each_other_are_named() {
    let base = ["--target", "http://h:1"];
    let cases: [(&[&str], &str); 5] = [
        (&["--rooms", "0"], "--rooms"),
        (&["--rooms", "3", "--hot-rooms", "4"], "--hot-rooms"),
        (&["--rooms", "3", "--closed-loop", "--concurrency", "2"], "--concurrency"),
        (&["--hot-rate", "NaN"], "--hot-rate"),
        (&["--app", ""], "app_code"),
    ];
    for (flags, named) in cases {
        let problem = args(&[&base[..], flags].concat()).validate().unwrap_err().to_string();
        assert!(problem.contains(named), "{problem}");
    }
    assert_eq!(args(&base).validate(), Ok(()));
}

#[test]
fn clients_of_the_closed_loop_spread_evenly() {
    let args = args(&["--target", "http://h:1", "--rooms", "3", "--closed-loop", "--concurrency", "7"]);
    let lanes: Vec<_> = (0..3).map(|room| args.lanes_of(room)).collect();
    assert_eq!(lanes, [3, 2, 2]);
}
