use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::routing::post;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceExt;

use super::*;
use crate::clock::ManualClock;
use crate::server::listen;
use crate::state::{Identity, Lifecycle, Signal};

/// Longer than any of these shutdowns takes, shorter than a person waits for a hanging test.
const BUDGET: Duration = Duration::from_secs(20);

struct Node {
    lifecycle: Lifecycle,
    server: GrpcServer,
    /// Lets the calls of `/slow` end.
    release: Arc<Notify>,
}

impl Node {
    fn start() -> Self {
        let lifecycle = Lifecycle::new(Identity::new("room-service", "node-1"), Metrics::new());
        let tasks = Tasks::new(lifecycle.clone());
        let health = Health::new(&lifecycle, Arc::new(ManualClock::default()), &tasks);
        lifecycle.mark_running().unwrap();
        let release = Arc::new(Notify::new());
        let released = release.clone();
        let slow = move || async move {
            released.notified().await;
            "released"
        };
        let peer = |request: axum::extract::Request| async move {
            let info = request.extensions().get::<TcpConnectInfo>().cloned().unwrap();
            info.remote_addr.unwrap().to_string()
        };
        let routes = Routes::from(Router::new().route("/slow", post(slow)).route("/peer", post(peer)));
        let listener = listen("--grpc-listen", "127.0.0.1:0".parse().unwrap()).unwrap();
        let server = GrpcServer::start(listener, routes, &health, &tasks).unwrap();
        Self { lifecycle, server, release }
    }

    async fn shutdown(&self) -> PhaseReport {
        self.lifecycle.on_signal(Signal::Term);
        let deadline = Instant::now() + BUDGET;
        let report = tokio::time::timeout_at(deadline, self.server.shutdown(deadline)).await;
        report.expect("the server ends within its budget without being cut")
    }

    async fn until_calls(&self, calls: u64) {
        while self.lifecycle.metrics().inflight_requests() != calls {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

fn call(channel: &Channel, path: &'static str) -> impl Future<Output = Result<String, String>> + use<> {
    let channel = channel.clone();
    async move {
        let request = Request::post(path).body(Body::empty()).unwrap();
        let response = channel.oneshot(request).await.map_err(|error| error.to_string())?;
        let bytes = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok(String::from_utf8(bytes.to_vec()).unwrap())
    }
}

/// Passes bytes on until it is frozen; then both sides see a peer that stopped answering.
async fn proxy(to: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let frozen = Arc::new(AtomicBool::new(false));
    let is_frozen = frozen.clone();
    tokio::task::spawn_local(async move {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(to).await.unwrap();
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::join!(
            pass_on(from_client, to_server, is_frozen.clone()),
            pass_on(from_server, to_client, is_frozen),
        );
    });
    (address, frozen)
}

async fn pass_on(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    frozen: Arc<AtomicBool>,
) {
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if frozen.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

async fn status(channel: &Channel, service: &str) -> Result<ServingStatus, tonic::Code> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let response = HealthClient::new(channel.clone()).check(request).await.map_err(|status| status.code())?;
    Ok(response.into_inner().status())
}

// S59 (a): a connection that never sent a byte held the server for an hour.
#[tokio::test]
async fn a_connection_that_never_speaks_does_not_hold_up_the_end() {
    let node = Node::start();
    let mut silent = TcpStream::connect(node.server.local_addr()).await.unwrap();
    while node.server.connections.count(|_| true) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(node.shutdown().await, PhaseReport::done());
    let mut rest = Vec::new();
    let closed = silent.read_to_end(&mut rest);
    let _end_or_reset = tokio::time::timeout(BUDGET, closed).await.expect("the connection is closed");
}

// S59: a connection that spoke a little of the preface.
#[tokio::test]
async fn a_connection_that_stops_in_its_preface_does_not_hold_up_the_end() {
    let node = Node::start();
    let mut client = TcpStream::connect(node.server.local_addr()).await.unwrap();
    client.write_all(b"PRI * HT").await.unwrap();
    while node.server.connections.count(Connection::has_spoken) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(node.shutdown().await, PhaseReport::done());
}

// S60: an idle keep-alive connection kept the server up.
#[tokio::test]
async fn an_idle_client_does_not_hold_up_the_end_and_is_not_counted_as_cut() {
    let node = Node::start();
    let channel = channel(node.server.local_addr()).await;
    assert_eq!(status(&channel, "").await, Ok(ServingStatus::Serving));
    assert_eq!(node.shutdown().await, PhaseReport::done());
}

// S59 (b): a client that stopped answering, with nothing under way.
#[tokio::test]
async fn a_client_that_stops_answering_does_not_hold_up_the_end() {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let node = Node::start();
            let (address, frozen) = proxy(node.server.local_addr()).await;
            let channel = channel(address).await;
            assert_eq!(status(&channel, "").await, Ok(ServingStatus::Serving));
            frozen.store(true, Ordering::SeqCst);
            assert_eq!(node.shutdown().await, PhaseReport::done());
        })
        .await;
}

#[tokio::test]
async fn a_call_under_way_gets_its_answer_and_new_connections_are_refused() {
    let node = Node::start();
    let channel = channel(node.server.local_addr()).await;
    let (answer, report) = tokio::join!(call(&channel, "/slow"), async {
        node.until_calls(1).await;
        assert_eq!(node.server.busy_connections(), 1);
        let shutdown = node.shutdown();
        let release = async {
            while TcpStream::connect(node.server.local_addr()).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Longer than a quiet connection is kept: a call in silence is not a quiet connection.
            tokio::time::sleep(QUIET_LIMIT + DRAIN_SWEEP_PERIOD * 2).await;
            node.release.notify_one();
        };
        tokio::join!(shutdown, release).0
    });
    assert_eq!(answer.as_deref(), Ok("released"));
    assert_eq!(report, PhaseReport::done());
    assert_eq!(node.lifecycle.metrics().inflight_requests(), 0);
}

// S62: a call that never ends held GracefulStop for ever.
#[tokio::test]
async fn calls_that_do_not_end_are_cut_at_the_deadline_and_counted() {
    let node = Node::start();
    let channel = channel(node.server.local_addr()).await;
    let calls = futures::future::join(call(&channel, "/slow"), call(&channel, "/slow"));
    let (answers, report) = tokio::join!(calls, async {
        node.until_calls(2).await;
        let deadline = Instant::now() + Duration::from_millis(300);
        let report = node.server.shutdown(deadline).await;
        assert!(node.server.ended.is_cancelled(), "the cut reached the connections");
        report
    });
    assert!(answers.0.is_err() && answers.1.is_err());
    assert_eq!(report, PhaseReport::done().cut("grpc_call", 2).cut("grpc_connection", 1));
    node.until_calls(0).await;
}

// S62: an open health watch held the end up; S58: Watch("") was silent.
#[tokio::test]
async fn an_open_health_watch_is_told_of_the_drain_and_let_go() {
    let node = Node::start();
    let channel = channel(node.server.local_addr()).await;
    for service in ["", "room-service"] {
        assert_eq!(status(&channel, service).await, Ok(ServingStatus::Serving), "{service:?}");
    }
    assert_eq!(status(&channel, "im-service").await, Err(tonic::Code::NotFound));
    let request = HealthCheckRequest { service: String::new() };
    let mut watch = HealthClient::new(channel.clone()).watch(request).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    node.lifecycle.set_evacuating(true);
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    node.lifecycle.set_evacuating(false);
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    node.lifecycle.on_signal(Signal::Term);
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(watch.message().await.unwrap().is_none(), "the watch ends");
    for service in ["", "room-service"] {
        assert_eq!(status(&channel, service).await, Ok(ServingStatus::NotServing), "{service:?}");
    }
    assert_eq!(node.shutdown().await, PhaseReport::done());
}

#[tokio::test]
async fn a_call_knows_its_peer_and_the_unknown_is_unimplemented() {
    let node = Node::start();
    let channel = channel(node.server.local_addr()).await;
    assert!(call(&channel, "/peer").await.unwrap().starts_with("127.0.0.1:"));
    assert_eq!(call(&channel, "/nothing").await.as_deref(), Ok(""));
    node.until_calls(0).await;
}
