//! Readiness as a pure function of what is known, and its wire form.
//!
//! Knows no clock, task or lock.

use serde::Serialize;

use crate::state::{Identity, State, View};

/// What a process says about itself; the three values of the gRPC health protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It starts, or a check has no verdict yet. Counts as not ready.
    Unknown,
    /// It may get new traffic.
    Ready,
    /// It must not get new traffic.
    NotReady,
}

impl Status {
    /// The name in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Ready => "ready",
            Self::NotReady => "not_ready",
        }
    }
}

/// Something that speaks against being ready or live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailedCheck {
    /// The name of the check, gate or loop.
    pub name: String,
    status: &'static str,
    /// Why it fails.
    pub message: String,
}

impl FailedCheck {
    pub(crate) fn new(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { name: name.into(), status: "fail", message: message.into() }
    }
}

/// A status and what speaks against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The status.
    pub status: Status,
    /// All that fails; empty if and only if the status is `Ready`.
    pub failed: Vec<FailedCheck>,
}

impl Report {
    pub(crate) fn ok() -> Self {
        Self { status: Status::Ready, failed: Vec::new() }
    }

    pub(crate) fn of_failures(failed: Vec<FailedCheck>) -> Self {
        let status = if failed.is_empty() { Status::Ready } else { Status::NotReady };
        Self { status, failed }
    }

    /// Whether nothing fails.
    pub fn is_ok(&self) -> bool {
        self.status == Status::Ready
    }

    /// Name and message of the first failure; empty words if there is none.
    pub(crate) fn first_failure(&self) -> (&str, &str) {
        self.failed.first().map_or(("", ""), |failed| (&failed.name, &failed.message))
    }
}

/// What a hard check says at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CheckView {
    /// It has not run yet.
    NoVerdict { name: &'static str },
    /// It failed, ran out of time, or its verdict is too old.
    Failed(FailedCheck),
}

/// Puts lifecycle, gates and checks together. Whatever fails is listed, whoever failed first.
pub(super) fn ready(view: View, gates: &[FailedCheck], checks: &[CheckView]) -> Report {
    let mut failed = Vec::new();
    let mut status = Status::Ready;
    match view.state {
        State::Running => {}
        State::Starting => status = Status::Unknown,
        State::Draining | State::Stopped => status = Status::NotReady,
    }
    if view.state != State::Running {
        failed.push(FailedCheck::new("lifecycle", view.state.as_str()));
    }
    if view.evacuating && view.state < State::Draining {
        failed.push(FailedCheck::new("evacuating", "the node gives its rooms away"));
    }
    failed.extend_from_slice(gates);
    let mut lacks_verdict = false;
    for check in checks {
        failed.push(match check {
            CheckView::Failed(failed) => failed.clone(),
            CheckView::NoVerdict { name } => {
                lacks_verdict = true;
                FailedCheck::new(*name, "no verdict yet")
            }
        });
    }
    if status == Status::Ready && lacks_verdict {
        status = Status::Unknown;
    }
    if status == Status::Ready && !failed.is_empty() {
        status = Status::NotReady;
    }
    Report { status, failed }
}

/// The JSON body of `/healthz/live` and `/healthz/ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    status: &'static str,
    service: String,
    node_id: String,
    time_unix_ms: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    checks: Vec<FailedCheck>,
}

impl Answer {
    pub(crate) fn new(identity: &Identity, time_unix_ms: i64, report: Report) -> Self {
        Self {
            status: if report.is_ok() { "ok" } else { "fail" },
            service: identity.service.clone(),
            node_id: identity.node_id.clone(),
            time_unix_ms,
            checks: report.failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: View = View { state: State::Running, evacuating: false };

    #[test]
    fn nothing_is_ready_that_is_not_running() {
        for (state, status) in [
            (State::Starting, Status::Unknown),
            (State::Running, Status::Ready),
            (State::Draining, Status::NotReady),
            (State::Stopped, Status::NotReady),
        ] {
            let report = ready(View { state, evacuating: false }, &[], &[]);
            assert_eq!(report.status, status, "{state}");
            assert_eq!(report.failed.is_empty(), status == Status::Ready, "{state}");
        }
    }

    #[test]
    fn gates_checks_and_evacuation_each_speak_against_it() {
        let gate = FailedCheck::new("order", "waits for the first order");
        let check = CheckView::Failed(FailedCheck::new("mysql", "deadline exceeded"));
        let report = ready(View { state: State::Running, evacuating: true }, &[gate], &[check]);
        assert_eq!(report.status, Status::NotReady);
        let names: Vec<_> = report.failed.iter().map(|failed| failed.name.as_str()).collect();
        assert_eq!(names, ["evacuating", "order", "mysql"]);
    }

    #[test]
    fn a_check_without_verdict_is_unknown_until_the_drain_decides() {
        let checks = [CheckView::NoVerdict { name: "redis" }];
        assert_eq!(ready(RUNNING, &[], &checks).status, Status::Unknown);
        let draining = View { state: State::Draining, evacuating: false };
        assert_eq!(ready(draining, &[], &checks).status, Status::NotReady);
    }

    #[test]
    fn the_body_has_exactly_the_specified_form() {
        let identity = Identity::new("gateway-service", "gateway-node-1");
        let json = |report| serde_json::to_value(Answer::new(&identity, 1_777_000_000_000, report)).unwrap();
        let ok = serde_json::json!({
            "status": "ok",
            "service": "gateway-service",
            "node_id": "gateway-node-1",
            "time_unix_ms": 1_777_000_000_000_i64,
        });
        assert_eq!(json(Report::ok()), ok);
        let fail = serde_json::json!({
            "status": "fail",
            "service": "gateway-service",
            "node_id": "gateway-node-1",
            "time_unix_ms": 1_777_000_000_000_i64,
            "checks": [{"name": "room_grpc", "status": "fail", "message": "deadline exceeded"}],
        });
        let failed = FailedCheck::new("room_grpc", "deadline exceeded");
        assert_eq!(json(Report::of_failures(vec![failed])), fail);
    }
}
