//! What a process promises to whoever starts and ends it.

use super::child::Running;

type Case = (&'static str, fn());

macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        pub(crate) const ALL: &[Case] = &[$((stringify!($name), $name)),+];
    };
}

cases![
    a_signal_makes_the_process_not_ready_and_it_ends_in_order,
    an_interrupt_ends_the_process_too,
    a_second_signal_hurries_it,
    a_third_signal_ends_it_and_says_what_was_cut,
    a_phase_that_hangs_is_cut_at_the_shutdown_timeout,
    a_blocked_runtime_is_not_ready_at_once_and_ended_from_outside,
    a_panicking_essential_task_ends_the_process_with_an_error,
    a_signal_during_the_start_ends_it,
    the_last_counts_can_be_scraped,
    bad_configuration_ends_with_64_and_names_the_flag,
    a_part_that_cannot_start_ends_with_1,
];

fn started(role: &str, args: &[&str]) -> Running {
    Running::start(role, args, Some("started"))
}

fn a_signal_makes_the_process_not_ready_and_it_ends_in_order() {
    let mut process = started("graceful", &[]);
    process.until_status("/healthz/ready", 200);
    process.signal("TERM");
    process.until_status("/healthz/ready", 503);
    let (_, body) = process.get("/healthz/ready");
    assert!(
        body.contains(r#""checks":[{"name":"lifecycle","status":"fail","message":"draining"}]"#),
        "{body}"
    );
    assert_eq!(process.get("/healthz/live").0, 200);
    let (_, metrics) = process.get("/metrics");
    assert!(metrics.contains("service_draining{service=\"test-service\",kind=\"draining\"} 1"), "{metrics}");
    process.write_line();
    let ended = process.ended();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let line = ended.line("the shutdown has ended");
    assert_eq!(line["signal"], "SIGTERM");
    assert_eq!(line["result"], "graceful");
    assert_eq!(line["shutdown_deadline_ms"], 30_000);
    let phases = line["phases"].as_str().unwrap();
    assert!(phases.starts_with("wait done ") && phases.contains(", mysql done "), "{phases}");
}

// S63: only ctrl-c was handled, or only SIGTERM.
fn an_interrupt_ends_the_process_too() {
    let mut process = started("graceful", &[]);
    process.signal("INT");
    process.until_log("changed its state");
    process.write_line();
    let ended = process.ended();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_eq!(ended.line("the shutdown has ended")["signal"], "SIGINT");
}

fn a_second_signal_hurries_it() {
    let mut process = started("hurried", &[]);
    process.signal("TERM");
    process.until_log(r#""state":"draining""#);
    process.signal("TERM");
    let ended = process.ended();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let line = ended.line("a second signal hurries the shutdown");
    assert!(line["unfinished_tasks"].as_u64().unwrap() >= 2, "{line}");
    assert!(line["unfinished"].as_str().unwrap().contains("reply"), "{line}");
}

fn a_third_signal_ends_it_and_says_what_was_cut() {
    let mut process = started("stuck", &[]);
    process.signal("TERM");
    process.until_log(r#""state":"draining""#);
    process.signal("INT");
    process.until_log("a second signal hurries");
    process.signal("TERM");
    let ended = process.ended();
    assert_eq!(ended.code, Some(70), "{}", ended.log);
    let line = ended.line("the process is ended by force");
    assert_eq!(line["reason"], "a third signal ends the process");
    assert_eq!(
        (&line["phase"], &line["resource"], &line["count"]),
        (&"cells".into(), &"room_cell".into(), &5.into())
    );
    assert_eq!(line["result"], "forced");
}

fn a_phase_that_hangs_is_cut_at_the_shutdown_timeout() {
    let process = started("stuck", &["--shutdown-timeout", "300ms"]);
    process.signal("TERM");
    let ended = process.ended();
    assert_eq!(ended.code, Some(70), "{}", ended.log);
    assert_eq!(ended.line("a shutdown phase was cut short")["resource"], "room_cell");
    assert_eq!(ended.line("the shutdown has ended")["result"], "cut_short");
}

fn a_blocked_runtime_is_not_ready_at_once_and_ended_from_outside() {
    let process = started("blocked", &["--shutdown-timeout", "1s"]);
    assert_eq!(process.get("/healthz/live").0, 200);
    process.signal("TERM");
    process.until_status("/healthz/ready", 503);
    let ended = process.ended();
    assert_eq!(ended.code, Some(70), "{}", ended.log);
    let line = ended.line("the process is ended by force");
    assert_eq!(line["reason"], "the shutdown time-out has passed");
    assert!(line["unfinished"].as_str().unwrap().contains("spin"), "{line}");
}

fn a_panicking_essential_task_ends_the_process_with_an_error() {
    let ended = started("panicking", &[]).ended();
    assert_eq!(ended.code, Some(1), "{}", ended.log);
    assert_eq!(ended.line("an essential task ended, the process drains")["task"], "committer");
    assert_eq!(ended.line("the code panicked")["panic"], "made to fail");
    assert_eq!(ended.line("the shutdown has ended")["result"], "graceful");
}

fn a_signal_during_the_start_ends_it() {
    let process = Running::start("starting", &[], Some("admin"));
    assert_eq!(process.get("/healthz/ready").0, 503);
    assert_eq!(process.get("/healthz/live").0, 200);
    process.signal("TERM");
    let ended = process.ended();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
}

// S72: a counter of the last moments was never scraped.
fn the_last_counts_can_be_scraped() {
    let mut process = started("cut", &[]);
    process.signal("TERM");
    process.until_log("the shutdown has ended");
    let (_, metrics) = process.get("/metrics");
    assert!(
        metrics.contains("service_shutdown_cut_total{phase=\"grpc\",resource=\"grpc_call\"} 2\n"),
        "{metrics}"
    );
    assert_eq!(process.ended().code, Some(70));
}

fn bad_configuration_ends_with_64_and_names_the_flag() {
    let ended = Running::start("graceful", &["--shutdown-timeout", "soon"], None).ended();
    assert_eq!(ended.code, Some(64), "{}", ended.log);
    assert!(
        ended.log.starts_with("error: --shutdown-timeout (or SHUTDOWN_TIMEOUT): \"soon\": "),
        "{}",
        ended.log
    );

    let ended = Running::start("graceful", &["--node-token", "hunter2"], None).ended();
    assert_eq!(ended.code, Some(64));
    assert!(ended.log.starts_with("error: --node-token (or NODE_TOKEN): "), "{}", ended.log);
    assert!(!ended.log.contains("hunter2"), "{}", ended.log);

    let ended = Running::start("misconfigured", &[], None).ended();
    assert_eq!(ended.code, Some(64));
    assert_eq!(ended.line("the process could not start")["error"], "--sink-url: not a URL");

    let other = started("graceful", &[]);
    let address = other.admin.unwrap().to_string();
    let ended = Running::start("graceful", &["--admin-listen", &address], None).ended();
    assert_eq!(ended.code, Some(64));
    let error = ended.line("the process could not start")["error"].to_string();
    assert!(error.contains("--admin-listen: cannot listen on "), "{error}");
}

fn a_part_that_cannot_start_ends_with_1() {
    let ended = Running::start("failing", &[], None).ended();
    assert_eq!(ended.code, Some(1), "{}", ended.log);
    assert_eq!(ended.line("the process could not start")["error"], "the database does not answer");
}
