use std::sync::Mutex;

use super::*;
use crate::metrics::Metrics;
use crate::state::{Signal, State};
use crate::test_log::capture;

const TOTAL: Duration = Duration::from_secs(30);

fn process() -> Lifecycle {
    let lifecycle = Lifecycle::new(Identity::new("room-service", "node-1"), Metrics::new());
    lifecycle.mark_running().unwrap();
    lifecycle
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn phases_run_in_order_and_the_process_is_stopped_after_the_last() {
    let lifecycle = process();
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let (order, lifecycle) = (order.clone(), lifecycle.clone());
        move |_: Budget| async move { order.lock().unwrap().push((name, lifecycle.state())) }
    };
    let plan = Shutdown::new(TOTAL)
        .phase("grpc", seconds(20), note("grpc"))
        .phase("cells", seconds(10), note("cells"))
        .phase("mysql", seconds(1), note("mysql"));
    lifecycle.on_signal(Signal::Term);
    let ledger = plan.run(&lifecycle).await;
    let draining = State::Draining;
    assert_eq!(*order.lock().unwrap(), [("grpc", draining), ("cells", draining), ("mysql", draining)]);
    assert_eq!(lifecycle.state(), State::Stopped);
    assert!(ledger.is_graceful());
}

#[tokio::test(start_paused = true)]
async fn a_phase_that_overruns_is_cut_and_the_later_ones_still_run() {
    let (_guard, log) = capture();
    let lifecycle = process();
    let later = Arc::new(Mutex::new(None));
    let seen = later.clone();
    let plan = Shutdown::new(TOTAL)
        .phase("cells", seconds(10), |_| std::future::pending::<()>())
        .unfinished("room_cell", || 3)
        .phase("mysql", seconds(2), move |budget| async move {
            *seen.lock().unwrap() = Some(budget.deadline - Instant::now());
            tokio::time::sleep(seconds(1)).await;
        });
    lifecycle.on_signal(Signal::Term);
    let ledger = plan.run(&lifecycle).await;

    assert_eq!(*later.lock().unwrap(), Some(seconds(2)));
    let [cells, mysql] = <[Entry; 2]>::try_from(ledger.entries.clone()).unwrap();
    assert_eq!((cells.outcome, cells.budget_ms, cells.duration_ms), (Outcome::CutOff, 10_000, 10_250));
    assert_eq!(cells.report.cuts(), [Cut { resource: "room_cell", count: 3 }]);
    assert_eq!((mysql.outcome, mysql.budget_ms, mysql.duration_ms), (Outcome::Done, 2_000, 1_000));
    assert_eq!(ledger.result(), "cut_short");

    let [cut] = log.lines("a shutdown phase was cut short").try_into().unwrap();
    assert_eq!(
        (&cut["phase"], &cut["resource"], &cut["count"]),
        (&"cells".into(), &"room_cell".into(), &3.into())
    );
    let text = lifecycle.metrics().encode();
    assert!(text.contains("service_shutdown_forced_total{service=\"room-service\"} 1\n"), "{text}");
    assert!(
        text.contains("service_shutdown_cut_total{phase=\"cells\",resource=\"room_cell\"} 3\n"),
        "{text}"
    );
    assert!(text.contains("service_shutdown_duration_ms{service=\"room-service\"} 11250\n"), "{text}");
}

// S70: no total deadline.
#[tokio::test(start_paused = true)]
async fn if_every_phase_hangs_the_total_is_kept() {
    let lifecycle = process();
    let mut plan = Shutdown::new(TOTAL);
    for name in ["grpc", "cells", "outbox", "redis", "mysql"] {
        plan = plan.phase(name, seconds(20), |_| std::future::pending::<()>());
    }
    lifecycle.on_signal(Signal::Term);
    let ledger = plan.run(&lifecycle).await;
    assert_eq!(ledger.entries.len(), 5);
    assert!(ledger.entries.iter().all(|entry| entry.budget_ms > 5_000), "{ledger}");
    assert!(ledger.duration_ms <= 30_250, "{ledger}");
}

#[tokio::test(start_paused = true)]
async fn the_total_counts_from_the_signal() {
    let lifecycle = process();
    lifecycle.on_signal(Signal::Term);
    tokio::time::advance(seconds(28)).await;
    let plan = Shutdown::new(TOTAL).phase("grpc", seconds(20), |_| std::future::pending::<()>());
    let ledger = plan.run(&lifecycle).await;
    assert_eq!(ledger.entries[0].budget_ms, 2_000);
    assert_eq!(ledger.duration_ms, 30_250);
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_hurries_what_is_left() {
    let lifecycle = process();
    let plan = Shutdown::new(TOTAL).phase("stubborn", seconds(20), |_| std::future::pending::<()>()).phase(
        "willing",
        seconds(20),
        |budget| async move { budget.hurry.cancelled().await },
    );
    lifecycle.on_signal(Signal::Term);
    let signals = async {
        tokio::time::sleep(seconds(1)).await;
        lifecycle.on_signal(Signal::Term);
    };
    let (ledger, ()) = tokio::join!(plan.run(&lifecycle), signals);
    assert!(ledger.duration_ms <= 1_000 + 5_250, "{ledger}");
    assert_eq!(ledger.entries[1].outcome, Outcome::Done);
}

#[tokio::test(start_paused = true)]
async fn a_failing_and_a_panicking_phase_stop_no_later_one() {
    let lifecycle = process();
    let plan = Shutdown::new(TOTAL)
        .phase("redis", seconds(1), |_| async { Err("connection lost") })
        .phase("outbox", seconds(1), |_| async {
            if true {
                panic!("made to fail");
            }
        })
        .phase("mysql", seconds(1), |_| async { PhaseReport::done().cut("connection", 0) });
    let ledger = plan.run(&lifecycle).await;
    let outcomes: Vec<_> =
        ledger.entries.iter().map(|entry| (entry.outcome, entry.report.problem())).collect();
    let expected = [
        (Outcome::Failed, Some("connection lost")),
        (Outcome::Failed, Some("the phase panicked")),
        (Outcome::Done, None),
    ];
    assert_eq!(outcomes, expected);
    assert_eq!(ledger.result(), "failed");
}

#[tokio::test(start_paused = true)]
async fn a_phase_that_keeps_its_deadline_reports_its_own_cuts() {
    let lifecycle = process();
    let plan = Shutdown::new(TOTAL).phase("grpc", seconds(2), |budget| async move {
        tokio::time::sleep_until(budget.deadline).await;
        PhaseReport::done().cut("grpc_call", 2).cut("grpc_connection", 1)
    });
    let ledger = plan.run(&lifecycle).await;
    assert_eq!(ledger.entries[0].outcome, Outcome::Done);
    assert_eq!(ledger.result(), "cut_short");
    assert_eq!(ledger.to_string(), "grpc done 2000/2000 ms (cut 2 grpc_call) (cut 1 grpc_connection)");
}

#[tokio::test(start_paused = true)]
async fn the_end_is_logged_once_with_its_fields() {
    let (_guard, log) = capture();
    let lifecycle = process();
    let _in_flight = lifecycle.metrics().enter_request(crate::metrics::Protocol::Grpc);
    let plan = Shutdown::new(TOTAL)
        .phase("grpc", seconds(2), |_| tokio::time::sleep(Duration::from_millis(40)))
        .counts(|| ShutdownCounts { active_room_cells: Some(7), ..ShutdownCounts::default() });
    lifecycle.on_signal(Signal::Int);
    plan.run(&lifecycle).await;
    let [line] = log.lines("the shutdown has ended").try_into().unwrap();
    let expected = [
        ("service", "room-service".into()),
        ("node_id", "node-1".into()),
        ("signal", "SIGINT".into()),
        ("state", "stopped".into()),
        ("ready", false.into()),
        ("inflight_requests", 1.into()),
        ("active_room_cells", 7.into()),
        ("shutdown_deadline_ms", 30_000.into()),
        ("duration_ms", 40.into()),
        ("result", "graceful".into()),
        ("phases", "grpc done 40/2000 ms".into()),
    ];
    for (field, value) in expected {
        assert_eq!(line[field], serde_json::Value::clone(&value), "{field} in {line}");
    }
    assert!(line.get("active_ws_connections").is_none(), "{line}");
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_can_be_read_from_outside() {
    let lifecycle = process();
    let plan = Shutdown::new(TOTAL)
        .phase("cells", seconds(1), |_| std::future::pending::<()>())
        .unfinished("room_cell", || 4);
    let progress = plan.progress();
    assert!(progress.running().is_none());
    let look = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        progress.running()
    };
    let (_, running) = tokio::join!(plan.run(&lifecycle), look);
    assert_eq!(running, Some(("cells", Cut { resource: "room_cell", count: 4 })));
    assert!(progress.running().is_none());
}
