//! Whether a pod may be ended now.
//!
//! Unknown counts as busy: an answer that is missing, that came before the drain order was in force, or that is
//! from another process than the one that took the order, says nothing about the pod's rooms. A running pod
//! needs two sources: its own count, and the database as another pod reads it.

use std::cmp::Reverse;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use roomcluster_crds::OnTimeout;

use crate::intent::DrainIntent;

use super::observed::{NodeReport, ObservedPod, Order, RoomContainer, RoomSample, Witness, WitnessAnswer};
use super::policy::Policy;
use super::step::{BlockedReason, Grounds};

/// How long a pod without a process, and without any other pod to ask, is kept: many times the life of a lease.
const UNWITNESSED_WAIT: Duration = Duration::from_secs(60);

/// What the rest of the cluster means for one pod's end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    /// The cluster is scaled to zero, and no other live pod serves.
    pub(super) no_successor_ever: bool,
    /// No other pod runs that could be a witness.
    pub(super) is_alone: bool,
    /// No other pod may be created before this one has ended: one replica without surge.
    pub(super) blocks_others: bool,
}

/// Why this pod may be ended now, or why not.
pub(super) fn may_end(
    pod: &ObservedPod,
    policy: &Policy,
    around: Surroundings,
    now: Timestamp,
) -> Result<Grounds, BlockedReason> {
    let verdict = match pod.container {
        RoomContainer::NeverStarted => never_ran(pod),
        RoomContainer::Down { .. } => not_running(pod, now),
        RoomContainer::Running { restarted } => emptied(pod, around, restarted),
    };
    match (verdict, policy.on_timeout) {
        (Err(_), OnTimeout::Terminate) if timed_out(pod, policy, now) => {
            Ok(Grounds::TimedOut { rooms: pod.rooms_hint() })
        }
        (verdict, OnTimeout::Terminate | OnTimeout::Wait) => verdict,
    }
}

fn timed_out(pod: &ObservedPod, policy: &Policy, now: Timestamp) -> bool {
    pod.intent
        .as_ref()
        .is_some_and(|intent| intent.is_drain() && elapsed_since(intent.since, now) > policy.drain_timeout)
}

/// The time from `since` to `now`; zero when the clocks disagree.
pub(super) fn elapsed_since(since: Timestamp, now: Timestamp) -> Duration {
    let elapsed: SignedDuration = now.duration_since(since);
    Duration::try_from(elapsed).unwrap_or_default()
}

/// A pod in which no process has ever run was never told to serve, so it holds nothing.
///
/// A witness that knows better is believed all the same; one that is silent is not waited for, so that a bad
/// image does not stick while the database is away.
fn never_ran(pod: &ObservedPod) -> Result<Grounds, BlockedReason> {
    match &pod.witness {
        Witness::Answer(answer) if !nothing_held(answer) => {
            Err(BlockedReason::LeasesAlive { leased: answer.leased })
        }
        Witness::Answer(_) | Witness::NotAsked | Witness::Nobody | Witness::Silent { .. } => {
            Ok(Grounds::NeverRan)
        }
    }
}

/// A pod whose process has ended has no cells; what may still stand is its leases.
///
/// A process that starts again after this look does not take rooms before it is told to, and the deletion
/// names the version of the pod that was looked at.
fn not_running(pod: &ObservedPod, now: Timestamp) -> Result<Grounds, BlockedReason> {
    match &pod.witness {
        Witness::Answer(answer) if nothing_held(answer) => Ok(Grounds::NotRunning),
        Witness::Answer(answer) => Err(BlockedReason::LeasesAlive { leased: answer.leased }),
        Witness::Silent { message } => Err(BlockedReason::WitnessSilent { message: message.clone() }),
        Witness::NotAsked => Err(BlockedReason::NoWitness),
        // Keeping the pod protects nothing: it has no process, and nobody else is there who could be wronged.
        Witness::Nobody if pod.finished || drained_for(pod, now) > UNWITNESSED_WAIT => {
            Ok(Grounds::NotRunning)
        }
        Witness::Nobody => Err(BlockedReason::NoWitness),
    }
}

fn drained_for(pod: &ObservedPod, now: Timestamp) -> Duration {
    pod.intent
        .as_ref()
        .filter(|intent| intent.is_drain())
        .map_or(Duration::ZERO, |i| elapsed_since(i.since, now))
}

/// A pod with a running process: order confirmed, own count zero, no traffic, database agrees.
fn emptied(pod: &ObservedPod, around: Surroundings, restarted: bool) -> Result<Grounds, BlockedReason> {
    let intent = pod.intent.as_ref().filter(|i| i.is_drain()).ok_or(BlockedReason::OrderNotConfirmed)?;
    let (report, sample) = confirmed(pod, intent)?;
    let still_ready = pod.ready.is_ready || pod.in_endpoints;
    let rooms = report.rooms.max(sample.rooms);
    if rooms > 0 {
        let stranded = around.no_successor_ever && rooms_without_successor(report) >= rooms;
        return match (stranded, still_ready) {
            // Nobody is left who could take them and nobody will be: the pod's own end flushes and releases
            // them, and the next pod of this cluster, if there ever is one, loads them from the database.
            (true, false) => Ok(Grounds::NoSuccessor { rooms }),
            (true, true) => Err(BlockedReason::StillReady),
            (false, _) => Err(BlockedReason::HoldsRooms { rooms, held_by: held_by(report) }),
        };
    }
    if still_ready {
        return Err(BlockedReason::StillReady);
    }
    witnessed_empty(pod, around, restarted)
}

/// The node's own words, provided that both speak of this pod, this order and the same process.
fn confirmed<'a>(
    pod: &'a ObservedPod,
    intent: &DrainIntent,
) -> Result<(&'a NodeReport, &'a RoomSample), BlockedReason> {
    let report = pod.own_report().ok_or(BlockedReason::RoomCountUnknown)?;
    if report.order != Some(Order::Evacuate) || report.epoch != intent.epoch {
        return Err(BlockedReason::OrderNotConfirmed);
    }
    let sample = pod.sample.as_ref().ok_or(BlockedReason::RoomCountUnknown)?;
    let same =
        sample.uid == pod.uid && sample.epoch == intent.epoch && sample.incarnation == report.incarnation;
    if same { Ok((report, sample)) } else { Err(BlockedReason::OrderNotConfirmed) }
}

/// The second source.
///
/// The pod itself is a sufficient witness only when it is the only one and no other can come before it has
/// ended: the last one of a cluster scaled to zero, or a single replica without surge. Its answer is about the
/// database, not about its memory, so it is still another source than its count; and the error that another
/// process guards against, rooms that a confused node still executes, can then hurt nobody: no other process
/// exists that could execute them too, and the end that follows is the node's own, which flushes and releases
/// whatever it finds.
fn witnessed_empty(
    pod: &ObservedPod,
    around: Surroundings,
    restarted: bool,
) -> Result<Grounds, BlockedReason> {
    match &pod.witness {
        Witness::NotAsked | Witness::Nobody => Err(BlockedReason::NoWitness),
        Witness::Silent { message } => Err(BlockedReason::WitnessSilent { message: message.clone() }),
        Witness::Answer(answer) => {
            let by_itself = answer.by == pod.name;
            let is_only = around.is_alone && (around.no_successor_ever || around.blocks_others);
            if by_itself && !is_only {
                return Err(BlockedReason::NoWitness);
            }
            // Rows of an earlier process of this pod stay unreleased for ever; once their leases are known to
            // be gone, nobody holds them.
            let empty = answer.unreleased == 0 || (restarted && answer.leased == Some(0));
            match (empty, by_itself) {
                (true, true) => Ok(Grounds::OnlyPod),
                (true, false) => Ok(Grounds::Empty),
                (false, _) => Err(BlockedReason::LeaseViewDiffers { unreleased: answer.unreleased }),
            }
        }
    }
}

fn nothing_held(answer: &WitnessAnswer) -> bool {
    answer.unreleased == 0 || answer.leased == Some(0)
}

fn rooms_without_successor(report: &NodeReport) -> u64 {
    report.blocked.iter().filter(|blocked| blocked.reason == "NoSuccessor").map(|blocked| blocked.rooms).sum()
}

fn held_by(report: &NodeReport) -> Option<String> {
    let mut blocked: Vec<_> = report.blocked.iter().filter(|blocked| blocked.rooms > 0).collect();
    blocked.sort_by_key(|blocked| Reverse(blocked.rooms));
    let reasons: Vec<_> =
        blocked.iter().map(|blocked| format!("{}: {}", blocked.reason, blocked.rooms)).collect();
    (!reasons.is_empty()).then(|| reasons.join(", "))
}

#[cfg(test)]
mod tests;
