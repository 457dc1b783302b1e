use super::*;
use crate::metrics::Metrics;
use crate::state::{Identity, Signal};

fn tasks() -> (Lifecycle, Tasks) {
    let lifecycle = Lifecycle::new(Identity::new("room-service", "node-1"), Metrics::new());
    lifecycle.mark_running().unwrap();
    let tasks = Tasks::new(lifecycle.clone());
    (lifecycle, tasks)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

#[tokio::test(start_paused = true)]
async fn joining_names_those_who_do_not_end() {
    let (_, tasks) = tasks();
    tasks.spawn_once("quick", async {});
    tasks.spawn_once("stuck", std::future::pending::<()>());
    tasks.group().spawn_once("stuck", std::future::pending::<()>());
    let unfinished = tasks.join(soon()).await.unwrap_err();
    assert_eq!(unfinished.tasks, BTreeMap::from([("stuck", 2)]));
    assert_eq!(unfinished.to_string(), "2 tasks have not ended: stuck");
}

#[tokio::test(start_paused = true)]
async fn joining_returns_once_the_last_task_has_ended() {
    let (_, tasks) = tasks();
    for millis in 0..20 {
        tasks.spawn_once("sleeper", tokio::time::sleep(Duration::from_millis(millis)));
    }
    let began_at = Instant::now();
    tasks.join(soon()).await.unwrap();
    assert!(began_at.elapsed() < Duration::from_secs(1));
    assert_eq!(tasks.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_group_ends_alone_and_the_process_tasks_end_it_too() {
    let (_, tasks) = tasks();
    let first = tasks.group();
    let second = tasks.group();
    for group in [&tasks, &first, &second] {
        group.spawn_essential("loop", |stop| async move { stop.cancelled().await });
    }
    first.stop_and_join(soon()).await.unwrap();
    assert_eq!((first.running(), second.running(), tasks.running()), (0, 1, 2));
    tasks.stop_and_join(soon()).await.unwrap();
    assert_eq!(second.running(), 0);
}

#[tokio::test]
async fn a_panicking_essential_task_begins_a_drain() {
    let (lifecycle, tasks) = tasks();
    tasks.spawn_essential("committer", |_| async {
        if true {
            panic!("made to fail");
        }
    });
    lifecycle.draining().cancelled().await;
    let cause = lifecycle.drain_cause().unwrap();
    assert_eq!(*cause, DrainCause::TaskEnded { task: "committer", problem: "panicked".to_owned() });
    assert!(lifecycle.metrics().encode().contains("task_panics_total{task=\"committer\"} 1"));
}

#[tokio::test]
async fn an_essential_task_that_ends_early_says_why() {
    let (lifecycle, tasks) = tasks();
    tasks.spawn_essential("renewal", |_| async { Err("no store") });
    lifecycle.draining().cancelled().await;
    let cause = lifecycle.drain_cause().unwrap();
    assert_eq!(*cause, DrainCause::TaskEnded { task: "renewal", problem: "no store".to_owned() });
}

#[tokio::test]
async fn an_essential_task_may_end_once_it_is_told_to() {
    let (lifecycle, tasks) = tasks();
    let group = tasks.group();
    group.spawn_essential("loop", |stop| async move { stop.cancelled().await });
    group.stop_and_join(soon()).await.unwrap();
    assert_eq!(lifecycle.state(), State::Running);

    lifecycle.on_signal(Signal::Term);
    tasks.spawn_essential("late", |_| async {});
    tasks.join(soon()).await.unwrap();
    assert_eq!(lifecycle.drain_cause(), Some(&DrainCause::Signal(Signal::Term)));
}

#[tokio::test(start_paused = true)]
async fn a_restarting_task_comes_back_after_errors_and_panics_under_a_counter() {
    let (lifecycle, tasks) = tasks();
    let mut run = 0;
    let (done, ended) = tokio::sync::oneshot::channel();
    let mut done = Some(done);
    tasks.spawn_restarting("worker", Backoff::default(), move |stop| {
        run += 1;
        let done = if run == 3 { done.take() } else { None };
        async move {
            match run {
                1 => Err("lost the connection"),
                2 => panic!("made to fail"),
                _ => {
                    done.unwrap().send(()).unwrap();
                    stop.cancelled().await;
                    Ok(())
                }
            }
        }
    });
    ended.await.unwrap();
    assert_eq!(lifecycle.state(), State::Running);
    let text = lifecycle.metrics().encode();
    assert!(text.contains("task_restarts_total{task=\"worker\"} 2"), "{text}");
    assert!(text.contains("task_panics_total{task=\"worker\"} 1"), "{text}");
    tasks.stop_and_join(soon()).await.unwrap();
}

#[tokio::test]
async fn a_panic_in_a_short_task_is_counted_and_shows_in_its_handle() {
    let (lifecycle, tasks) = tasks();
    let handle = tasks.spawn_once("reply", async {
        if true {
            panic!("made to fail");
        }
        7
    });
    assert!(handle.await.unwrap_err().is_panic());
    assert_eq!(tasks.spawn_once("reply", async { 7 }).await.unwrap(), 7);
    assert_eq!(lifecycle.state(), State::Running);
    assert!(lifecycle.metrics().encode().contains("task_panics_total{task=\"reply\"} 1"));
}

#[test]
fn the_wait_before_a_restart_doubles_up_to_its_bound() {
    let backoff = Backoff { initial: Duration::from_millis(100), max: Duration::from_secs(1) };
    let waits_ms: Vec<_> = [1, 2, 3, 4, 5, 90].map(|failures| backoff.wait(failures).as_millis()).into();
    assert_eq!(waits_ms, [100, 200, 400, 800, 1_000, 1_000]);
}
