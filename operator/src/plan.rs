//! What to do next with the pods of one cluster: a function of what was seen, the policy and the time.
//!
//! It knows no client, no clock and no randomness, and it remembers nothing: the orders that stand on the pods
//! are all the memory there is, so an operator that is killed anywhere goes on from what it sees.
//!
//! Invariants, whatever is observed:
//! - at most one step of a plan takes something away (begins a drain, or ends a pod);
//! - a pod is ended only on one of the [`Grounds`], and an unknown count is never one;
//! - no pod is created above `replicas + max_surge`, and no available pod is drained below
//!   `replicas - max_unavailable`;
//! - a pod of the target revision is never drained for an upgrade, so a room moves once.

mod begin;
mod create;
mod end;
mod observed;
mod orders;
mod policy;
mod roster;
mod standing;
mod step;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

pub use begin::trouble_of;
pub use observed::{
    BlockedRooms, Gate, Host, NodeReport, Observed, ObservedPod, Order, PendingReason, PendingRevision,
    Readiness, RoomContainer, RoomSample, Trouble, Witness, WitnessAnswer,
};
pub use policy::{Policy, UpgradeMode};
pub use standing::{Standing, is_of, standing};
pub use step::{Blocked, BlockedReason, Grounds, NodeOrder, Plan, PodRef, Step};

use end::{Surroundings, may_end};
use roster::{Member, Roster};

/// While rooms are on the move or a step was just taken.
const REQUEUE_MOVING: Duration = Duration::from_millis(500);
/// While a pod is not available: its node's word is not watched, it is asked.
const REQUEUE_SETTLING: Duration = Duration::from_secs(1);
/// When nothing is to be done: rooms are counted for the status, and what no watch tells is noticed.
const REQUEUE_IDLE: Duration = Duration::from_secs(10);

/// The steps to take now.
#[must_use]
pub fn plan(observed: &Observed, policy: &Policy, now: Timestamp) -> Plan {
    let roster = Roster::of(observed, policy, now);
    let mut blocked = roster.blocked.clone();
    blocked.extend(pending(observed));

    let mut steps = create::steps(&roster, observed, policy);
    steps.extend(orders::amendments(&roster, now));
    steps.extend(orders::gates(observed, &roster));
    steps.extend(orders::calls(&roster, observed, policy));
    steps.extend(destructive(&roster, observed, policy, now, &mut blocked));

    let requeue_after = if !steps.is_empty() || roster.members.iter().any(|member| member.pod.is_draining()) {
        REQUEUE_MOVING
    } else if roster.members.iter().any(|member| member.standing != Standing::Available) {
        REQUEUE_SETTLING
    } else {
        REQUEUE_IDLE
    };
    Plan { steps, blocked, requeue_after }
}

/// Ends one pod, or else begins one drain.
fn destructive(
    roster: &Roster<'_>,
    observed: &Observed,
    policy: &Policy,
    now: Timestamp,
    blocked: &mut Vec<Blocked>,
) -> Option<Step> {
    let mut step = None;
    for pod in observed.pods.iter().filter(|pod| !pod.is_terminating()) {
        let leaving = roster.member(pod).is_some_and(Member::is_leaving);
        let wants_end = pod.finished || (leaving && pod.is_draining());
        if !wants_end {
            continue;
        }
        match may_end(pod, policy, surroundings(pod, observed, policy), now) {
            Ok(grounds) if step.is_none() => step = Some(Step::EndPod { pod: pod.into(), grounds }),
            Ok(_) => blocked.push(Blocked::pod(pod, BlockedReason::OneStepAtATime)),
            Err(reason) => blocked.push(Blocked::pod(pod, reason)),
        }
    }
    begin::step(roster, observed, policy, now, step.is_some(), blocked).or(step)
}

fn surroundings(pod: &ObservedPod, observed: &Observed, policy: &Policy) -> Surroundings {
    let mut others = observed.pods.iter().filter(|other| other.uid != pod.uid && !other.finished);
    Surroundings {
        no_successor_ever: policy.replicas == 0
            && others.clone().all(|other| other.is_terminating() || other.is_draining()),
        is_alone: !others.any(|other| other.is_running() && !other.is_terminating()),
        blocks_others: policy.max_pods() <= 1,
    }
}

fn pending(observed: &Observed) -> Option<Blocked> {
    let reason = match &observed.pending.as_ref()?.why {
        PendingReason::TemplateInvalid { message } => {
            BlockedReason::TemplateInvalid { message: message.clone() }
        }
        PendingReason::MigrationRunning { job, trouble } => {
            BlockedReason::MigrationRunning { job: job.clone(), trouble: trouble.clone() }
        }
        PendingReason::MigrationFailed { job, message } => {
            BlockedReason::MigrationFailed { job: job.clone(), message: message.clone() }
        }
    };
    Some(Blocked::cluster(reason))
}
