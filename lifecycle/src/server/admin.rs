//! Probes and scrapes, answered from a thread of their own.
//!
//! The thread has its own single-threaded runtime, so that neither a blocked nor a busy main runtime fails the
//! port. It serves until the very end of the process, and is then dropped with all its connections: no client
//! can hold it up. Routes of the caller run on this thread too, so they must not block.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, serve};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::connections::{Connections, TrackedStream};
use crate::args::ConfigError;
use crate::health::{Health, Report};

/// A connection on which nothing passes for so long is closed; scrapes come more often.
const IDLE_LIMIT: Duration = Duration::from_secs(75);
/// How often idle connections are looked for.
const SWEEP_PERIOD: Duration = Duration::from_secs(5);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The HTTP server for probes, metrics and the caller's own routes. Ends when the last handle is dropped.
#[derive(Clone)]
pub struct AdminServer {
    handle: Arc<Handle>,
}

struct Handle {
    address: SocketAddr,
    pages: Pages,
    stop: CancellationToken,
}

impl std::fmt::Debug for AdminServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminServer").field("address", &self.handle.address).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[derive(Clone)]
struct Pages {
    health: Health,
    extra: Arc<RwLock<Router>>,
    scraped: Arc<Notify>,
}

impl AdminServer {
    /// Serves on `address`, which came by `flag`. Probes are answered when this returns.
    ///
    /// # Errors
    /// The address cannot be bound, or the machine gives no thread.
    pub fn start(flag: &'static str, address: SocketAddr, health: Health) -> Result<Self, ConfigError> {
        let listener = super::listen(flag, address)?;
        let cannot =
            |error: std::io::Error| ConfigError::new(flag, format!("cannot serve {address}: {error}"));
        let address = listener.local_addr().map_err(cannot)?;
        let pages = Pages { health, extra: Arc::default(), scraped: Arc::default() };
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let (routes, stopped) = (routes(pages.clone()), stop.clone());
        std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        biased;
                        () = stopped.cancelled() => {}
                        () = run(listener, routes) => {}
                    }
                });
                runtime.shutdown_background();
            })
            .map_err(cannot)?;
        Ok(Self { handle: Arc::new(Handle { address, pages, stop }) })
    }

    /// Where it serves; with port 0 asked for, the port that it got.
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.address
    }

    /// Adds routes. They run on the admin thread and must not block it.
    pub fn merge(&self, routes: Router) {
        let mut extra = self.handle.pages.extra.write().unwrap_or_else(PoisonError::into_inner);
        let known = std::mem::take(&mut *extra);
        *extra = known.merge(routes);
    }

    /// Waits for the next scrape of the metrics; its answer may still be on its way.
    pub async fn scraped(&self) {
        self.handle.pages.scraped.notified().await;
    }
}

fn routes(pages: Pages) -> Router {
    Router::new()
        .route("/healthz/live", get(live))
        .route("/healthz/ready", get(ready))
        .route("/metrics", get(metrics))
        .fallback(extra)
        .with_state(pages)
}

async fn live(State(pages): State<Pages>) -> Response {
    let report = pages.health.live();
    answer(&pages.health, report, StatusCode::INTERNAL_SERVER_ERROR)
}

async fn ready(State(pages): State<Pages>) -> Response {
    let report = pages.health.ready();
    answer(&pages.health, report, StatusCode::SERVICE_UNAVAILABLE)
}

fn answer(health: &Health, report: Report, on_failure: StatusCode) -> Response {
    let status = if report.is_ok() { StatusCode::OK } else { on_failure };
    (status, Json(health.answer(report))).into_response()
}

async fn metrics(State(pages): State<Pages>) -> Response {
    pages.health.refresh_metrics();
    let text = pages.health.metrics().encode();
    pages.scraped.notify_waiters();
    ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response()
}

async fn extra(State(pages): State<Pages>, request: Request) -> Response {
    let routes = pages.extra.read().unwrap_or_else(PoisonError::into_inner).clone();
    routes.oneshot(request).await.into_response()
}

async fn run(listener: TcpListener, routes: Router) {
    let listener = tokio::net::TcpListener::from_std(listener)
        .expect("the listener is non-blocking and this is a runtime with IO");
    let connections = Connections::default();
    let sweeps = sweep(connections.clone());
    let served = serve(Tracked { listener, connections }, routes);
    tokio::join!(async { served.await.expect("axum's server has no error") }, sweeps);
}

async fn sweep(connections: Connections) {
    let mut ticks = tokio::time::interval(SWEEP_PERIOD);
    loop {
        ticks.tick().await;
        connections.cut(|connection| connection.idle() > IDLE_LIMIT);
    }
}

struct Tracked {
    listener: tokio::net::TcpListener,
    connections: Connections,
}

impl serve::Listener for Tracked {
    type Io = TrackedStream;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        (self.connections.accept(&self.listener).await, ())
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
