use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::routing::post;
use serde_json::{Value, json};

use super::*;
use crate::clock::ManualClock;
use crate::metrics::Metrics;
use crate::state::{Identity, Lifecycle, Signal};
use crate::tasks::Tasks;

/// A process of one worker thread, so that one blocking task blocks all of it.
struct Process {
    runtime: Option<tokio::runtime::Runtime>,
    lifecycle: Lifecycle,
    tasks: Tasks,
    health: Health,
    admin: AdminServer,
}

impl Process {
    fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let entered = runtime.enter();
        let lifecycle = Lifecycle::new(Identity::new("room-service", "node-1"), Metrics::new());
        let tasks = Tasks::new(lifecycle.clone());
        let health = Health::new(&lifecycle, Arc::new(ManualClock::at(1_777_000_000_000)), &tasks);
        let admin =
            AdminServer::start("--admin-listen", "127.0.0.1:0".parse().unwrap(), health.clone()).unwrap();
        drop(entered);
        lifecycle.mark_running().unwrap();
        Self { runtime: Some(runtime), lifecycle, tasks, health, admin }
    }

    fn get(&self, path: &str) -> (u16, String, String) {
        request(self.admin.local_addr(), "GET", path)
    }

    fn get_json(&self, path: &str) -> (u16, Value) {
        let (status, _, body) = self.get(path);
        (status, serde_json::from_str(&body).unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

fn request(address: SocketAddr, method: &str, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

/// Asks again until the answer is right.
fn until<T: std::fmt::Debug>(mut ask: impl FnMut() -> T, is_right: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let answer = ask();
        if is_right(&answer) {
            return answer;
        }
        assert!(Instant::now() < deadline, "still {answer:?}");
        std::thread::yield_now();
    }
}

#[test]
fn probes_answer_exactly_as_specified() {
    let process = Process::start();
    let order = process.health.closed_gate("order", "waits for the first order");
    let ok = json!({
        "status": "ok",
        "service": "room-service",
        "node_id": "node-1",
        "time_unix_ms": 1_777_000_000_000_i64,
    });
    let fail = json!({
        "status": "fail",
        "service": "room-service",
        "node_id": "node-1",
        "time_unix_ms": 1_777_000_000_000_i64,
        "checks": [{"name": "order", "status": "fail", "message": "waits for the first order"}],
    });
    assert_eq!(process.get_json("/healthz/ready"), (503, fail));
    assert_eq!(process.get_json("/healthz/live"), (200, ok.clone()));
    order.open();
    assert_eq!(process.get_json("/healthz/ready"), (200, ok));
    let (_, head, _) = process.get("/healthz/ready");
    assert!(head.contains("content-type: application/json"), "{head}");
}

#[test]
fn ready_is_refused_and_live_is_not_from_the_moment_of_the_signal() {
    let process = Process::start();
    process.lifecycle.on_signal(Signal::Term);
    let (status, body) = process.get_json("/healthz/ready");
    assert_eq!(status, 503);
    assert_eq!(body["checks"], json!([{"name": "lifecycle", "status": "fail", "message": "draining"}]));
    assert_eq!(process.get_json("/healthz/live").0, 200);
}

// S55: probes on the busy runtime were answered late, and the platform killed the process under load.
#[test]
fn probes_answer_while_the_main_runtime_is_blocked_and_live_fails_once_its_beat_is_late() {
    let process = Process::start();
    process.health.watch_runtime(Duration::from_secs(1));
    let is_blocked = Arc::new(AtomicBool::new(false));
    let may_go_on = Arc::new(AtomicBool::new(false));
    let (blocked, go_on) = (is_blocked.clone(), may_go_on.clone());
    process.tasks.spawn_once("spin", async move {
        blocked.store(true, Ordering::SeqCst);
        while !go_on.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    });
    until(|| is_blocked.load(Ordering::SeqCst), |blocked| *blocked);
    assert_eq!(process.get_json("/healthz/live").0, 200, "a busy runtime is not a dead one");
    assert_eq!(process.get_json("/healthz/ready").0, 200);
    let (_, body) = until(|| process.get_json("/healthz/live"), |(status, _)| *status == 500);
    assert_eq!(body["checks"][0]["name"], "runtime");
    may_go_on.store(true, Ordering::SeqCst);
    until(|| process.get_json("/healthz/live"), |(status, _)| *status == 200);
}

#[test]
fn metrics_are_open_metrics_text_and_up_to_date() {
    let process = Process::start();
    let _order = process.health.closed_gate("order", "waits");
    let (status, head, body) = process.get("/metrics");
    assert_eq!(status, 200);
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    assert!(body.contains("health_ready_status{service=\"room-service\"} 0\n"), "{body}");
    assert!(body.contains("health_live_status{service=\"room-service\"} 1\n"), "{body}");
    assert!(body.ends_with("# EOF\n"), "{body}");
}

// S72: a counter of the last moments was never scraped.
#[test]
fn whoever_waits_for_a_scrape_sees_the_next_one() {
    let process = Process::start();
    process.get("/metrics");
    let admin = process.admin.clone();
    let scraped = process.tasks.spawn_once("wait", async move { admin.scraped().await });
    let scrapes = until(
        || {
            process.get("/metrics");
            scraped.is_finished()
        },
        |finished| *finished,
    );
    assert!(scrapes);
}

#[test]
fn routes_of_the_caller_come_in_while_it_serves() {
    let process = Process::start();
    let address = process.admin.local_addr();
    assert_eq!(request(address, "POST", "/admin/pre-stop").0, 404);
    process.admin.merge(Router::new().route("/admin/pre-stop", post(|| async { "done" })));
    process.admin.merge(Router::new().route("/admin/other", post(|| async { "other" })));
    assert_eq!(request(address, "POST", "/admin/pre-stop").2, "done");
    assert_eq!(request(address, "POST", "/admin/other").2, "other");
    assert_eq!(process.get("/healthz/live").0, 200);
}

#[test]
fn a_port_in_use_names_flag_and_address() {
    let process = Process::start();
    let address = process.admin.local_addr();
    let error = AdminServer::start("--admin-listen", address, process.health.clone()).unwrap_err();
    assert_eq!(error.flag, "--admin-listen");
    assert!(error.problem.starts_with(&format!("cannot listen on {address}: ")), "{error}");
}

// S60, S67: an idle connection of a scraper held the drain.
#[test]
fn slow_and_idle_clients_do_not_hold_up_the_end() {
    let mut process = Process::start();
    let address = process.admin.local_addr();
    let mut idle = TcpStream::connect(address).unwrap();
    write!(idle, "GET /healthz/live HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    idle.read_exact(&mut [0; 12]).unwrap();
    let mut slow = TcpStream::connect(address).unwrap();
    write!(slow, "GET /healthz/li").unwrap();
    let other = AdminServer::start("--admin-listen", "127.0.0.1:0".parse().unwrap(), process.health.clone());
    drop(std::mem::replace(&mut process.admin, other.unwrap()));
    until(|| TcpStream::connect(address).is_err(), |refused| *refused);
    let mut rest = Vec::new();
    // Both are closed: an end of stream or a reset, but no wait.
    let _ = idle.read_to_end(&mut rest);
    let _ = slow.read_to_end(&mut rest);
}
