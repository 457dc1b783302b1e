use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::clock::ManualClock;
use crate::state::Signal;
use crate::test_log::capture;

const TIMEOUT: Duration = Duration::from_millis(200);
const PERIOD: Duration = Duration::from_secs(1);

fn health() -> (Lifecycle, Health) {
    let lifecycle = Lifecycle::new(Identity::new("room-service", "node-1"), Metrics::new());
    let tasks = Tasks::new(lifecycle.clone());
    let health = Health::new(&lifecycle, Arc::new(ManualClock::at(1_777_000_000_000)), &tasks);
    (lifecycle, health)
}

fn running() -> (Lifecycle, Health) {
    let (lifecycle, health) = health();
    lifecycle.mark_running().unwrap();
    (lifecycle, health)
}

fn check(name: &'static str) -> Check {
    Check::hard(name).timeout(TIMEOUT).period(PERIOD)
}

async fn becomes(health: &Health, status: Status) {
    let mut watch = health.subscribe();
    let changed = watch.wait_for(|now| *now == status);
    tokio::time::timeout(Duration::from_secs(30), changed).await.unwrap().unwrap();
}

fn failures(report: &Report) -> Vec<(&str, &str)> {
    report.failed.iter().map(|failed| (failed.name.as_str(), failed.message.as_str())).collect()
}

/// A dependency that tests break and mend.
#[derive(Clone, Default)]
struct Dependency {
    is_down: Arc<AtomicBool>,
    runs: Arc<AtomicUsize>,
}

impl Dependency {
    fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    async fn ask(self) -> Result<(), &'static str> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        if self.is_down.load(Ordering::SeqCst) { Err("connection refused") } else { Ok(()) }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_verdict_the_process_is_not_ready() {
    let (_, health) = running();
    health.add_check(check("mysql"), || async { Ok::<_, String>(()) });
    let report = health.ready();
    assert_eq!(report.status, Status::Unknown);
    assert_eq!(failures(&report), [("mysql", "no verdict yet")]);
    becomes(&health, Status::Ready).await;
}

#[tokio::test(start_paused = true)]
async fn ready_is_false_at_once_when_the_drain_begins() {
    let (lifecycle, health) = running();
    assert!(health.ready().is_ok());
    lifecycle.on_signal(Signal::Term);
    assert_eq!(failures(&health.ready()), [("lifecycle", "draining")]);
    assert!(health.live().is_ok());
}

// S53: a check with a time-out of 10 s ran 711 s, and overlapping runs piled up.
#[tokio::test(start_paused = true)]
async fn a_check_that_hangs_turns_ready_false_in_its_timeout_and_never_overlaps() {
    let (_, health) = running();
    let hangs = Arc::new(AtomicBool::new(false));
    let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    struct Leave(Arc<AtomicUsize>);
    impl Drop for Leave {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let (hang, count, peak) = (hangs.clone(), at_once.clone(), most.clone());
    health.add_check(check("mysql"), move || {
        let (hang, count, peak) = (hang.clone(), count.clone(), peak.clone());
        async move {
            peak.fetch_max(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let _leave = Leave(count);
            if hang.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            Ok::<_, String>(())
        }
    });
    becomes(&health, Status::Ready).await;
    let began_at = Instant::now();
    hangs.store(true, Ordering::SeqCst);
    becomes(&health, Status::NotReady).await;
    assert!(began_at.elapsed() <= PERIOD + TIMEOUT, "{:?}", began_at.elapsed());
    assert_eq!(failures(&health.ready()), [("mysql", "deadline exceeded")]);
    tokio::time::sleep(PERIOD * 20).await;
    assert_eq!(most.load(Ordering::SeqCst), 1);
    hangs.store(false, Ordering::SeqCst);
    becomes(&health, Status::Ready).await;
}

#[test]
fn a_check_that_blocks_its_runtime_fails_in_time_and_is_not_started_again() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let judge = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lifecycle = Lifecycle::new(Identity::new("room-service", "node-1"), Metrics::new());
    let entered = runtime.enter();
    let tasks = Tasks::new(lifecycle.clone());
    let clock = Arc::new(ManualClock::default());
    let health = Health::judged_on(judge.handle().clone(), &lifecycle, clock, &tasks);
    drop(entered);
    lifecycle.mark_running().unwrap();

    let runs = Arc::new(AtomicUsize::new(0));
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let counted = runs.clone();
    health.add_check(Check::hard("driver").timeout(TIMEOUT).period(Duration::from_millis(10)), move || {
        let (counted, blocked) = (counted.clone(), blocked.clone());
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            // Ends, with an error, when the test drops the other side; until then it ignores everything.
            let _ = blocked.lock().unwrap().recv();
            Ok::<_, String>(())
        }
    });
    judge.block_on(async {
        becomes(&health, Status::NotReady).await;
        assert_eq!(failures(&health.ready()), [("driver", "deadline exceeded")]);
        tokio::time::sleep(TIMEOUT * 2).await;
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        drop(release);
        becomes(&health, Status::Ready).await;
    });
    runtime.shutdown_background();
}

// S48: the database is back, so the process is ready again without a restart. S47: it was live all the time.
#[tokio::test(start_paused = true)]
async fn an_outage_of_a_dependency_pulls_the_process_and_never_kills_it() {
    let (_, health) = running();
    let mysql = Dependency::default();
    let asked = mysql.clone();
    health.add_check(check("mysql"), move || asked.clone().ask());
    becomes(&health, Status::Ready).await;
    mysql.set_down(true);
    becomes(&health, Status::NotReady).await;
    assert_eq!(failures(&health.ready()), [("mysql", "connection refused")]);
    assert!(health.live().is_ok());
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert!(health.live().is_ok());
    mysql.set_down(false);
    becomes(&health, Status::Ready).await;
}

// S51: one slow answer in a while made probes flap.
#[tokio::test(start_paused = true)]
async fn a_check_may_be_told_to_fail_only_after_several_bad_runs() {
    let (_, health) = running();
    let redis = Dependency::default();
    let asked = redis.clone();
    health.add_check(check("redis").fail_after(3), move || asked.clone().ask());
    becomes(&health, Status::Ready).await;
    let runs_before = redis.runs.load(Ordering::SeqCst);
    redis.set_down(true);
    becomes(&health, Status::NotReady).await;
    assert_eq!(redis.runs.load(Ordering::SeqCst) - runs_before, 3);
}

#[tokio::test(start_paused = true)]
async fn a_first_verdict_that_is_bad_counts_at_once() {
    let (_, health) = running();
    health.add_check(check("redis").fail_after(3), || async { Err::<(), _>("no route") });
    becomes(&health, Status::NotReady).await;
    assert_eq!(failures(&health.ready()), [("redis", "no route")]);
}

#[tokio::test(start_paused = true)]
async fn a_soft_check_is_logged_and_counted_and_speaks_against_nothing() {
    let (_guard, log) = capture();
    let (_, health) = running();
    let wallet = Dependency::default();
    wallet.set_down(true);
    let asked = wallet.clone();
    health.add_check(Check::soft("wallet").timeout(TIMEOUT).period(PERIOD), move || asked.clone().ask());
    tokio::time::sleep(PERIOD * 5).await;
    assert!(health.ready().is_ok());
    let lines: Vec<_> = log.lines("the health status changed");
    let lines: Vec<_> = lines.iter().filter(|line| line["probe"] == "soft").collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["failed_check"], "wallet");
    let text = health.metrics().encode();
    let failed = wallet.runs.load(Ordering::SeqCst);
    let line =
        format!("health_dependency_failures_total{{service=\"room-service\",check=\"wallet\"}} {failed}\n");
    assert!(text.contains(&line), "{line} not in {text}");
}

#[tokio::test(start_paused = true)]
async fn a_panicking_check_fails_and_runs_again() {
    let (_, health) = running();
    let runs = Arc::new(AtomicUsize::new(0));
    health.add_check(check("odd"), move || {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        async move { if run == 0 { panic!("made to fail") } else { Ok::<_, String>(()) } }
    });
    becomes(&health, Status::NotReady).await;
    assert_eq!(failures(&health.ready()), [("odd", "the check panicked")]);
    becomes(&health, Status::Ready).await;
}

#[tokio::test(start_paused = true)]
async fn gates_close_and_open_readiness_with_their_reason() {
    let (lifecycle, health) = running();
    let order = health.closed_gate("order", "waits for the first order");
    assert_eq!(failures(&health.ready()), [("order", "waits for the first order")]);
    order.open();
    assert!(order.is_open() && health.ready().is_ok());
    let pre_stop = health.open_gate("pre_stop");
    pre_stop.close("the pod is about to end");
    assert!(!health.ready().is_ok());
    pre_stop.open();
    lifecycle.set_evacuating(true);
    assert_eq!(failures(&health.ready()), [("evacuating", "the node gives its rooms away")]);
    lifecycle.set_evacuating(false);
    assert!(health.ready().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_status_change_is_logged_once_with_its_fields() {
    let (_guard, log) = capture();
    let (lifecycle, health) = health();
    let mysql = Dependency::default();
    let asked = mysql.clone();
    health.add_check(check("mysql"), move || asked.clone().ask());
    lifecycle.mark_running().unwrap();
    becomes(&health, Status::Ready).await;
    mysql.set_down(true);
    becomes(&health, Status::NotReady).await;
    tokio::time::sleep(PERIOD * 60).await;
    let lines = log.lines("the health status changed");
    let changes: Vec<_> = lines
        .iter()
        .map(|line| (line["old_status"].as_str().unwrap(), line["new_status"].as_str().unwrap()))
        .collect();
    assert_eq!(changes, [("unknown", "ready"), ("ready", "not_ready")]);
    let last = &lines[1];
    assert_eq!(last["service"], "room-service");
    assert_eq!(last["node_id"], "node-1");
    assert_eq!(last["failed_check"], "mysql");
    assert_eq!(last["reason"], "connection refused");
    assert!(last["duration_ms"].is_u64(), "{last}");
}

#[tokio::test(start_paused = true)]
async fn live_fails_with_the_name_of_the_loop_that_stopped() {
    let (_, health) = running();
    let bound = Duration::from_secs(10);
    let renewal = health.heartbeat("renewal", bound);
    let outbox = health.heartbeat("outbox", bound);
    tokio::time::advance(bound).await;
    renewal.beat();
    assert!(health.live().is_ok(), "the bound itself is not late");
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(failures(&health.live()), [("outbox", "no beat for 10001 ms, bound 10000 ms")]);
    outbox.beat();
    assert!(health.live().is_ok());
    drop(renewal);
    tokio::time::advance(bound + Duration::from_millis(1)).await;
    outbox.beat();
    assert_eq!(health.live().failed[0].name, "renewal", "a loop that vanished is not forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_was_told_to_end_is_not_missed() {
    let (lifecycle, health) = running();
    let bound = Duration::from_secs(10);
    health.heartbeat("scan", bound).retire();
    let second = health.heartbeat("renewal", bound);
    let again = health.heartbeat("renewal", bound);
    tokio::time::advance(bound * 2).await;
    again.beat();
    assert!(health.live().is_ok(), "a loop that is started again takes over its name");
    drop(second);
    tokio::time::advance(bound * 2).await;
    assert!(!health.live().is_ok());
    lifecycle.on_signal(Signal::Term);
    assert!(health.live().is_ok(), "the shutdown's deadline bounds a drain, not the loops");
}

#[tokio::test(start_paused = true)]
async fn a_verdict_that_is_too_old_counts_as_failed() {
    let (_, health) = running();
    health.add_check(check("mysql"), || async { Ok::<_, String>(()) });
    becomes(&health, Status::Ready).await;
    health.inner.tasks.stop_and_join(Instant::now() + PERIOD).await.unwrap();
    tokio::time::advance(PERIOD * 6).await;
    let report = health.ready();
    assert_eq!(report.status, Status::NotReady);
    assert!(report.failed[0].message.starts_with("no verdict for "), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_long_message_is_cut_between_characters() {
    let (_, health) = running();
    health.add_check(check("mysql"), || async { Err::<(), _>("ä".repeat(1_000)) });
    becomes(&health, Status::NotReady).await;
    assert_eq!(health.ready().failed[0].message, "ä".repeat(150));
}

#[tokio::test(start_paused = true)]
async fn the_gauges_follow_the_status() {
    let (lifecycle, health) = running();
    let shows = |name: &str, value: u8| {
        health.refresh_metrics();
        let line = format!("{name}{{service=\"room-service\"}} {value}\n");
        let text = health.metrics().encode();
        assert!(text.contains(&line), "{line} not in {text}");
    };
    shows("health_ready_status", 1);
    shows("health_live_status", 1);
    let _renewal = health.heartbeat("renewal", Duration::from_secs(1));
    tokio::time::advance(Duration::from_secs(2)).await;
    shows("health_live_status", 0);
    lifecycle.on_signal(Signal::Term);
    shows("health_ready_status", 0);
}
