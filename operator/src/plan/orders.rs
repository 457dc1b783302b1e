//! What is told to nodes and written on pods so that both agree with the roster.
//!
//! Level-triggered: nothing is said to a node that already reports it, and nothing is written that stands.

use k8s_openapi::jiff::Timestamp;

use crate::intent::DrainIntent;

use super::observed::{Gate, Observed, ObservedPod, Order};
use super::policy::Policy;
use super::roster::{Member, Roster};
use super::step::{NodeOrder, Step};

/// Orders on pods that no longer say what is wanted: withdrawals, changed reasons, and epochs that the node
/// has overtaken (its annotation was lost or set back).
pub(super) fn amendments(roster: &Roster<'_>, now: Timestamp) -> Vec<Step> {
    roster.members.iter().filter_map(|member| amendment(member, now)).collect()
}

fn amendment(member: &Member<'_>, now: Timestamp) -> Option<Step> {
    let pod = member.pod;
    let overtaken = is_overtaken(pod);
    let withdraw = || Step::WithdrawDrain {
        pod: pod.into(),
        intent: DrainIntent {
            epoch: pod.next_epoch(),
            reasons: member.reasons.clone(),
            since: now,
            rooms_at_start: None,
        },
    };
    match &pod.intent {
        Some(intent) if intent.is_drain() && !member.is_leaving() => Some(withdraw()),
        Some(intent) if intent.is_drain() && overtaken => {
            let intent =
                DrainIntent { epoch: pod.next_epoch(), reasons: member.reasons.clone(), ..intent.clone() };
            Some(Step::AmendDrain { pod: pod.into(), intent })
        }
        Some(intent) if intent.is_drain() && intent.reasons != member.reasons => {
            let intent = DrainIntent { reasons: member.reasons.clone(), ..intent.clone() };
            Some(Step::AmendDrain { pod: pod.into(), intent })
        }
        Some(intent) if intent.is_drain() => None,
        Some(_) | None if overtaken && !member.is_leaving() => Some(withdraw()),
        Some(_) | None => None,
    }
}

/// Whether the node follows an order that nobody has written on its pod.
fn is_overtaken(pod: &ObservedPod) -> bool {
    let Some(report) = pod.own_report() else { return false };
    let Some(order) = report.order else { return false };
    let written = pod.intent.as_ref().map(|intent| intent.epoch);
    let wanted = wanted_order(pod);
    match written {
        Some(epoch) => report.epoch > epoch || (report.epoch == epoch && order != wanted),
        None => order != wanted,
    }
}

fn wanted_order(pod: &ObservedPod) -> Order {
    if pod.is_draining() { Order::Evacuate } else { Order::Serve }
}

/// Calls to nodes that report something else than what stands on their pods.
///
/// A pod whose annotation is about to change is called after the change has been seen.
pub(super) fn calls(roster: &Roster<'_>, observed: &Observed, policy: &Policy) -> Vec<Step> {
    roster.members.iter().filter_map(|member| call(member.pod, observed, policy)).collect()
}

fn call(pod: &ObservedPod, observed: &Observed, policy: &Policy) -> Option<Step> {
    let report = pod.own_report().filter(|_| pod.is_running())?;
    let (epoch, order) = (pod.wanted_epoch(), wanted_order(pod));
    let agrees = report.epoch == epoch && report.order == Some(order) && report.target == observed.target;
    if agrees || is_overtaken(pod) {
        return None;
    }
    let order =
        NodeOrder { epoch, order, target: observed.target.clone(), target_generation: policy.generation };
    Some(Step::SetOrder { pod: pod.into(), order })
}

/// Readiness gates that are not as they should be.
pub(super) fn gates(observed: &Observed, roster: &Roster<'_>) -> Vec<Step> {
    observed.pods.iter().filter_map(|pod| gate(pod, roster.member(pod).is_some())).collect()
}

/// The gate follows the node's own word; a node that cannot be asked keeps what it has, because Kubernetes'
/// own probe of it goes on, and an operator that is cut off must not take a healthy cluster out of service.
fn gate(pod: &ObservedPod, is_member: bool) -> Option<Step> {
    let is_out = pod.is_terminating() || pod.finished || pod.is_draining();
    let wanted = match pod.own_report() {
        _ if is_out => Some(Gate::Closed),
        Some(report) if pod.is_running() && is_member => {
            let confirmed = report.order == Some(Order::Serve) && report.epoch == pod.wanted_epoch();
            Some(if report.accepting && confirmed { Gate::Open } else { Gate::Closed })
        }
        Some(_) | None => None,
    };
    match (pod.gate, wanted?) {
        (Gate::Open, Gate::Closed) => Some(Step::SetGate { pod: pod.into(), open: false }),
        (Gate::Closed | Gate::Missing, Gate::Open) => Some(Step::SetGate { pod: pod.into(), open: true }),
        (Gate::Open | Gate::Closed | Gate::Missing, _) => None,
    }
}
