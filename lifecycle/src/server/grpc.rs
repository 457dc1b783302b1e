//! A gRPC server that ends in bounded time.
//!
//! The end has three steps: the listener closes and every client is told to go away; connections on which
//! nothing happens any more are closed without waiting for their clients; at the deadline the rest is cut and
//! counted. Knows nothing of the calls but that they are under way.
//!
//! There is no greatest connection age: it makes clients lose calls, and the end does not need it.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpConnectInfo};
use tower::{Layer, Service};

use super::connections::{Connection, Connections, OnConnection, TrackedStream};
use crate::health::Health;
use crate::metrics::{InflightGuard, Metrics, Protocol};
use crate::shutdown::PhaseReport;
use crate::tasks::Tasks;

/// Calls at a time on one connection; a peer that forwards for many users needs many.
const MAX_STREAMS_PER_CONNECTION: u32 = 4_096;
/// A client that does not answer a ping for [`KEEPALIVE_TIMEOUT`] is gone.
const KEEPALIVE_PERIOD: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that connects and says nothing for so long is not one of ours.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);
/// How often silent connections are looked for while serving.
const SWEEP_PERIOD: Duration = Duration::from_secs(5);
/// In a drain, a connection without calls and without bytes for so long has nothing more to say.
const QUIET_LIMIT: Duration = Duration::from_millis(500);
/// How often a drain looks for such connections.
const DRAIN_SWEEP_PERIOD: Duration = Duration::from_millis(50);
/// How long a cut may take to reach the tasks of the connections.
const CUT_LIMIT: Duration = Duration::from_millis(100);

/// A running gRPC server. Clones are handles to the same one.
#[derive(Clone)]
pub struct GrpcServer {
    address: SocketAddr,
    connections: Connections,
    stop: CancellationToken,
    ended: CancellationToken,
}

impl std::fmt::Debug for GrpcServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrpcServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl GrpcServer {
    /// Serves `routes` and the health protocol on a listener made by [`super::listen`], as the essential task
    /// `grpc-server`.
    ///
    /// # Errors
    /// The listener is broken.
    pub fn start(
        listener: TcpListener,
        routes: Routes,
        health: &Health,
        tasks: &Tasks,
    ) -> std::io::Result<Self> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let server = Self {
            address: listener.local_addr()?,
            connections: Connections::default(),
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        let routes = routes.add_service(health.grpc_service());
        let layer = CountLayer { metrics: health.metrics().clone() };
        let serving = server.clone();
        tasks.spawn_essential("grpc-server", move |_| async move {
            let _ended = serving.ended.clone().drop_guard();
            serving.serve(listener, routes, layer).await
        });
        Ok(server)
    }

    /// Where it serves; with port 0 asked for, the port that it got.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// How many connections have calls under way.
    pub fn busy_connections(&self) -> u64 {
        self.connections.count(|connection| connection.requests() > 0)
    }

    /// Takes no more connections and calls, lets the calls under way end until the deadline, and then cuts them.
    /// Reports the calls (`grpc_call`) and connections (`grpc_connection`) that were cut.
    pub async fn shutdown(&self, deadline: Instant) -> PhaseReport {
        self.stop.cancel();
        // Whoever has not said a word has no call under way, and would never answer "go away".
        self.connections.cut(|connection| !connection.has_spoken());
        let close_quiet = async {
            loop {
                tokio::time::sleep(DRAIN_SWEEP_PERIOD).await;
                self.connections
                    .cut(|connection| connection.requests() == 0 && connection.idle() > QUIET_LIMIT);
            }
        };
        tokio::select! {
            biased;
            () = self.ended.cancelled() => return PhaseReport::done(),
            () = tokio::time::sleep_until(deadline) => {}
            () = close_quiet => {}
        }
        let severed = self.connections.cut(|_| true);
        // If the tasks do not follow, the report is the same: the process ends without them.
        let _ = tokio::time::timeout(CUT_LIMIT, self.ended.cancelled()).await;
        PhaseReport::done().cut("grpc_call", severed.requests).cut("grpc_connection", severed.connections)
    }

    async fn serve(
        &self,
        listener: tokio::net::TcpListener,
        routes: Routes,
        layer: CountLayer,
    ) -> Result<(), tonic::transport::Error> {
        let connections = self.connections.clone();
        let incoming =
            futures::stream::unfold((connections, listener), |(connections, listener)| async move {
                let stream = connections.accept(&listener).await;
                Some((Ok::<_, std::io::Error>(stream), (connections, listener)))
            });
        let served = Server::builder()
            .layer(layer)
            .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
            .http2_keepalive_interval(Some(KEEPALIVE_PERIOD))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, self.stop.clone().cancelled_owned());
        let close_silent = async {
            let mut ticks = tokio::time::interval(SWEEP_PERIOD);
            loop {
                ticks.tick().await;
                self.connections
                    .cut(|connection| !connection.has_spoken() && connection.idle() > SILENCE_LIMIT);
            }
        };
        tokio::select! {
            biased;
            served = served => served,
            () = close_silent => Ok(()),
        }
    }
}

/// The connection that a call came by; found in the extensions of its request.
#[derive(Clone)]
pub(super) struct CameBy(Arc<Connection>);

impl Connected for TrackedStream {
    type ConnectInfo = CameBy;

    fn connect_info(&self) -> CameBy {
        CameBy(self.connection())
    }
}

/// Counts calls, in the metrics and on their connections, until the last byte of the answer is taken.
#[derive(Clone)]
struct CountLayer {
    metrics: Metrics,
}

impl<S> Layer<S> for CountLayer {
    type Service = CountService<S>;

    fn layer(&self, inner: S) -> CountService<S> {
        CountService { inner, metrics: self.metrics.clone() }
    }
}

#[derive(Clone)]
struct CountService<S> {
    inner: S,
    metrics: Metrics,
}

impl<S> Service<Request<Body>> for CountService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let came_by = request.extensions_mut().remove::<CameBy>();
        if let Some(CameBy(connection)) = &came_by {
            // Where `tonic::Request::remote_addr` looks for it.
            let info = TcpConnectInfo { local_addr: connection.local, remote_addr: connection.remote };
            request.extensions_mut().insert(info);
        }
        let guards: (InflightGuard, Option<OnConnection>) = (
            self.metrics.enter_request(Protocol::Grpc),
            came_by.map(|CameBy(connection)| OnConnection::enter(connection)),
        );
        let answer = self.inner.call(request);
        Box::pin(async move {
            let response = answer.await?;
            Ok(response.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _until_the_body_is_dropped = &guards;
                    frame
                }))
            }))
        })
    }
}

#[cfg(test)]
mod tests;
