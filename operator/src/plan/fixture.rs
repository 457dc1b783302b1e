//! Pods and policies for the tests of the plan.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use roomcluster_crds::{DrainReason, OnTimeout};

use super::{
    BlockedReason, Gate, Host, NodeReport, Observed, ObservedPod, Order, Plan, Policy, Readiness,
    RoomContainer, RoomSample, Step, Trouble, UpgradeMode, Witness, WitnessAnswer, plan,
};
use crate::ids::{DrainEpoch, Incarnation, PodName, PodUid, Revision};
use crate::intent::DrainIntent;

/// Seconds after the epoch at which the tests plan.
pub(crate) const NOW_SECS: i64 = 10_000;

pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(NOW_SECS).unwrap()
}

pub(crate) fn ago(secs: i64) -> Timestamp {
    now().checked_sub(SignedDuration::from_secs(secs)).unwrap()
}

pub(crate) fn rev(name: &str) -> Revision {
    Revision::new(name)
}

pub(crate) fn policy(replicas: u32) -> Policy {
    Policy {
        replicas,
        max_surge: 1,
        max_unavailable: 0,
        partition: 0,
        max_draining_rooms: 1_000,
        upgrade: UpgradeMode::Rolling,
        min_ready: Duration::from_secs(5),
        progress_deadline: Duration::from_secs(600),
        drain_timeout: Duration::from_secs(1800),
        on_timeout: OnTimeout::Wait,
        respond: BTreeSet::from([DrainReason::Upgrade, DrainReason::ScaleDown, DrainReason::NodeCordon]),
        generation: 7,
    }
}

/// A cluster whose last full revision is `v1`, asked for `target`.
pub(crate) fn cluster(target: &str, pods: impl IntoIterator<Item = ObservedPod>) -> Observed {
    Observed {
        pods: pods.into_iter().collect(),
        target: Some(rev(target)),
        current: Some(rev("v1")),
        pending: None,
    }
}

/// A pod that has served for long, and whose node has been told the target `v2`.
pub(crate) fn serving(name: &str, revision: &str, rooms: u64) -> ObservedPod {
    let uid = PodUid::new(format!("uid-{name}"));
    let incarnation = Incarnation::new("one");
    ObservedPod {
        name: PodName::new(name),
        resource_version: "1".to_owned(),
        revision: rev(revision),
        created_at: ago(1000),
        terminating_since: None,
        finished: false,
        container: RoomContainer::Running { restarted: false },
        trouble: None,
        ready: Readiness { is_ready: true, since: Some(ago(900)) },
        gate: Gate::Open,
        in_endpoints: true,
        host: Host::Usable,
        intent: None,
        report: Some(NodeReport {
            uid: uid.clone(),
            incarnation: incarnation.clone(),
            epoch: DrainEpoch::FIRST,
            order: Some(Order::Serve),
            accepting: true,
            rooms,
            target: Some(rev("v2")),
            blocked: Vec::new(),
        }),
        sample: Some(RoomSample { uid: uid.clone(), epoch: DrainEpoch::FIRST, incarnation, rooms }),
        witness: Witness::NotAsked,
        uid,
    }
}

/// A pod whose image cannot be pulled.
pub(crate) fn unpullable(name: &str, revision: &str) -> ObservedPod {
    ObservedPod {
        container: RoomContainer::NeverStarted,
        trouble: Some(Trouble { reason: "ImagePullBackOff".to_owned(), message: "no such image".to_owned() }),
        ready: Readiness { is_ready: false, since: Some(ago(100)) },
        gate: Gate::Missing,
        in_endpoints: false,
        report: None,
        sample: None,
        ..serving(name, revision, 0)
    }
}

/// A pod whose process keeps failing.
pub(crate) fn crashing(name: &str, revision: &str) -> ObservedPod {
    ObservedPod {
        container: RoomContainer::Down { backing_off: true },
        trouble: Some(Trouble { reason: "CrashLoopBackOff".to_owned(), message: String::new() }),
        ..unpullable(name, revision)
    }
}

/// The pod with a drain order in force, taken out of traffic.
pub(crate) fn draining(mut pod: ObservedPod, reason: DrainReason) -> ObservedPod {
    let epoch = DrainEpoch::new(2);
    pod.intent = Some(DrainIntent {
        epoch,
        reasons: BTreeSet::from([reason]),
        since: ago(30),
        rooms_at_start: pod.rooms_hint(),
    });
    pod.gate = Gate::Closed;
    pod.ready = Readiness { is_ready: false, since: Some(ago(29)) };
    pod.in_endpoints = false;
    if let Some(report) = &mut pod.report {
        report.epoch = epoch;
        report.order = Some(Order::Evacuate);
        report.accepting = false;
    }
    if let Some(sample) = &mut pod.sample {
        sample.epoch = epoch;
    }
    pod
}

/// The pod with an answer about it from `by`.
pub(crate) fn witnessed(mut pod: ObservedPod, by: &str, unreleased: u64, leased: Option<u64>) -> ObservedPod {
    pod.witness = Witness::Answer(WitnessAnswer { by: PodName::new(by), unreleased, leased });
    pod
}

pub(crate) fn planned(observed: &Observed, policy: &Policy) -> Plan {
    plan(observed, policy, now())
}

/// The destructive step and the creations, in short words.
pub(crate) fn gist(plan: &Plan) -> Vec<String> {
    let gist = |step: &Step| match step {
        Step::CreatePod { revision } => Some(format!("create {revision}")),
        Step::BeginDrain { pod, .. } => Some(format!("drain {}", pod.name)),
        Step::EndPod { pod, .. } => Some(format!("end {}", pod.name)),
        Step::WithdrawDrain { pod, .. } => Some(format!("withdraw {}", pod.name)),
        Step::AmendDrain { .. } | Step::SetOrder { .. } | Step::SetGate { .. } => None,
    };
    plan.steps.iter().filter_map(gist).collect()
}

/// Why nothing happens to a pod, or to the cluster with an empty name.
pub(crate) fn blocked<'a>(plan: &'a Plan, pod: &str) -> Option<&'a BlockedReason> {
    let matches = |name: Option<&PodName>| name.map_or("", PodName::as_str) == pod;
    plan.blocked.iter().find(|blocked| matches(blocked.pod.as_ref())).map(|blocked| &blocked.reason)
}
