//! Named points at which a test can make a process stop, hang or die.
//!
//! Off unless `--fault-injection` is given; a point then costs one relaxed load. The points stand between the
//! steps of a commit, a take and a flush, so that a test can freeze a real process exactly there.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::routing::put;
use nix::sys::signal::{Signal, raise};
use tracing::warn;

static ENABLED: AtomicBool = AtomicBool::new(false);
static POINTS: LazyLock<Mutex<HashMap<String, Action>>> = LazyLock::new(Mutex::default);

/// How often a hanging point looks whether it may go on.
const HANG_PAUSE: Duration = Duration::from_millis(20);

/// What a point does to who passes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The process stops itself (SIGSTOP), once, until it is sent SIGCONT.
    Stop,
    /// Whoever passes waits until the action is removed.
    Hang,
    /// The process dies on the spot.
    Abort,
}

impl FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stop" => Ok(Self::Stop),
            "hang" => Ok(Self::Hang),
            "abort" => Ok(Self::Abort),
            other => Err(format!("`{other}` is no action; write stop, hang or abort")),
        }
    }
}

/// Turns the points on, for the life of the process.
pub fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
    warn!("Fault injection is on");
}

/// Arms or disarms a point.
pub fn set(point: &str, action: Option<Action>) {
    let mut points = POINTS.lock().unwrap_or_else(PoisonError::into_inner);
    match action {
        Some(action) => points.insert(point.to_owned(), action),
        None => points.remove(point),
    };
}

/// Passes a point.
pub async fn point(name: &'static str) {
    if !ENABLED.load(Ordering::Relaxed) {
        return;
    }
    while let Some(action) = armed(name) {
        match action {
            Action::Stop => {
                set(name, None);
                warn!(point = name, "Stopping at a fault point");
                let _sent = raise(Signal::SIGSTOP);
            }
            Action::Hang => tokio::time::sleep(HANG_PAUSE).await,
            Action::Abort => std::process::abort(),
        }
    }
}

fn armed(name: &str) -> Option<Action> {
    POINTS.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
}

/// `PUT /faults/{point}?action=hang` arms a point, `DELETE /faults/{point}` disarms it.
pub fn routes() -> Router {
    Router::new().route("/faults/{point}", put(arm).delete(disarm))
}

async fn arm(
    Path(name): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<StatusCode, (StatusCode, String)> {
    let action = query.get("action").map_or("", String::as_str);
    let action = action.parse().map_err(|problem| (StatusCode::BAD_REQUEST, problem))?;
    set(&name, Some(action));
    Ok(StatusCode::NO_CONTENT)
}

async fn disarm(Path(name): Path<String>) -> StatusCode {
    set(&name, None);
    StatusCode::NO_CONTENT
}
