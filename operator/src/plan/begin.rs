//! Which pod to drain next.
//!
//! Budgets in pods and in rooms. The first pod that may drain is chosen; for each of the others stands why not.

use k8s_openapi::jiff::Timestamp;

use super::observed::{Observed, ObservedPod, Order, RoomContainer};
use super::policy::Policy;
use super::roster::{Member, Roster};
use super::standing::Standing;
use super::step::{Blocked, BlockedReason, NodeOrder, Step};
use crate::intent::DrainIntent;

/// The drain to begin now, unless another destructive step `is_taken`.
pub(super) fn step(
    roster: &Roster<'_>,
    observed: &Observed,
    policy: &Policy,
    now: Timestamp,
    is_taken: bool,
    blocked: &mut Vec<Blocked>,
) -> Option<Step> {
    let mut chosen = None;
    for member in roster.members.iter().filter(|member| member.is_leaving() && !member.pod.is_draining()) {
        let verdict = may_begin(member, roster, observed, policy);
        match verdict {
            Ok(()) if chosen.is_none() && !is_taken => chosen = Some(begin(member, observed, policy, now)),
            Ok(()) => blocked.push(Blocked::pod(member.pod, BlockedReason::OneStepAtATime)),
            Err(reason) => blocked.push(Blocked::pod(member.pod, reason)),
        }
    }
    chosen
}

fn begin(member: &Member<'_>, observed: &Observed, policy: &Policy, now: Timestamp) -> Step {
    let intent = DrainIntent {
        epoch: member.pod.next_epoch(),
        reasons: member.reasons.clone(),
        since: now,
        rooms_at_start: member.pod.rooms_hint(),
    };
    let order = NodeOrder {
        epoch: intent.epoch,
        order: Order::Evacuate,
        target: observed.target.clone(),
        target_generation: policy.generation,
    };
    Step::BeginDrain { pod: member.pod.into(), intent, order }
}

fn may_begin(
    member: &Member<'_>,
    roster: &Roster<'_>,
    observed: &Observed,
    policy: &Policy,
) -> Result<(), BlockedReason> {
    if policy.replicas == 0 {
        // Nothing is to remain, so there is nothing to preserve; in turn they would only hand rooms around.
        return Ok(());
    }
    if member.leaves_only_for_upgrade() && !is_given_up(member) {
        if observed.pending.is_some() {
            return Err(BlockedReason::NewerRevisionPending);
        }
        successor_ready(roster, policy)?;
    }
    match member.standing {
        Standing::Broken => Ok(()),
        Standing::Unavailable => {
            someone_available(roster, policy)?;
            room_budget(member.pod, roster, policy)
        }
        Standing::Available => {
            pod_budget(roster, policy)?;
            room_budget(member.pod, roster, policy)
        }
    }
}

/// A broken pod of a revision that is neither wanted nor proven: it goes without any condition, and so a bad
/// image does not stand in the way of the one that corrects it.
///
/// Broken pods of the *current* revision are not given up like that: they may come back, and the target may be
/// worse.
fn is_given_up(member: &Member<'_>) -> bool {
    member.standing == Standing::Broken && !member.is_current
}

/// A pod of the target revision is there to take rooms. Without surge the first pod has to make room for it.
fn successor_ready(roster: &Roster<'_>, policy: &Policy) -> Result<(), BlockedReason> {
    let mut targets = roster.members.iter().filter(|member| member.is_target).peekable();
    let makes_room = policy.max_surge == 0 && targets.peek().is_none();
    let trouble = targets.clone().find_map(|member| trouble_of(member.pod));
    if makes_room || targets.any(|member| member.standing == Standing::Available) {
        Ok(())
    } else {
        Err(BlockedReason::TargetNotAvailable { trouble })
    }
}

/// What is wrong with a pod, in one phrase that names it.
#[must_use]
pub fn trouble_of(pod: &ObservedPod) -> Option<String> {
    let trouble = pod.trouble.as_ref()?;
    Some(match trouble.message.as_str() {
        "" => format!("pod {}: {}", pod.name, trouble.reason),
        message => format!("pod {}: {}: {message}", pod.name, trouble.reason),
    })
}

fn someone_available(roster: &Roster<'_>, policy: &Policy) -> Result<(), BlockedReason> {
    let available = roster.available();
    if available > 0 || policy.min_available() == 0 {
        Ok(())
    } else {
        Err(BlockedReason::TooFewAvailable { available, required: policy.min_available() })
    }
}

fn pod_budget(roster: &Roster<'_>, policy: &Policy) -> Result<(), BlockedReason> {
    let (available, required) = (roster.available(), policy.min_available());
    if available > required { Ok(()) } else { Err(BlockedReason::TooFewAvailable { available, required }) }
}

/// One pod may always drain; further ones only with their rooms within the limit.
fn room_budget(pod: &ObservedPod, roster: &Roster<'_>, policy: &Policy) -> Result<(), BlockedReason> {
    let mut moving = roster
        .members
        .iter()
        .filter(|m| m.pod.is_draining() && matches!(m.pod.container, RoomContainer::Running { .. }))
        .map(|m| m.pod.rooms_hint())
        .filter(|rooms| *rooms != Some(0))
        .peekable();
    if moving.peek().is_none() {
        return Ok(());
    }
    let moving: Option<u64> = moving.sum();
    let (Some(moving), Some(rooms)) = (moving, pod.rooms_hint()) else {
        return Err(BlockedReason::RoomsUnknown);
    };
    let limit = policy.max_draining_rooms;
    if moving.saturating_add(rooms) <= limit {
        Ok(())
    } else {
        Err(BlockedReason::RoomBudget { moving, limit })
    }
}
