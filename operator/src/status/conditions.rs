//! The conditions: each with a reason, a sentence, and the time of its last change.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use roomcluster_crds::{Phase, RoomClusterStatus};

use crate::plan::{BlockedReason, ObservedPod, Witness};

use super::{Facts, Narrative};

/// What a condition says, before its times are known.
struct Claimed {
    kind: &'static str,
    status: &'static str,
    reason: String,
    message: String,
}

/// All conditions, in a fixed order.
pub(super) fn all(facts: &Facts<'_>, narrative: &Narrative, before: &RoomClusterStatus) -> Vec<Condition> {
    let claimed = [
        available(facts),
        progressing(narrative),
        draining(facts),
        degraded(narrative),
        lease_store(facts, before),
        lease_view(facts),
    ];
    claimed.into_iter().map(|claimed| dated(claimed, facts, before)).collect()
}

fn dated(claimed: Claimed, facts: &Facts<'_>, before: &RoomClusterStatus) -> Condition {
    let old = before.conditions.iter().find(|old| old.type_ == claimed.kind);
    let unchanged_since =
        old.filter(|old| old.status == claimed.status).map(|old| old.last_transition_time.clone());
    Condition {
        type_: claimed.kind.to_owned(),
        status: claimed.status.to_owned(),
        reason: claimed.reason,
        message: claimed.message,
        last_transition_time: unchanged_since.unwrap_or(Time(facts.now)),
        observed_generation: Some(facts.generation),
    }
}

fn claim(kind: &'static str, holds: bool, reason: &str, message: impl Into<String>) -> Claimed {
    let status = if holds { "True" } else { "False" };
    Claimed { kind, status, reason: reason.to_owned(), message: message.into() }
}

fn available(facts: &Facts<'_>) -> Claimed {
    let (available, required) = (facts.counts().available, facts.policy.min_available());
    let message = format!("{available} pods are available, {required} are required");
    let holds = available >= required;
    claim("Available", holds, if holds { "EnoughPods" } else { "TooFewPods" }, message)
}

fn progressing(narrative: &Narrative) -> Claimed {
    const STOPPED: [&str; 4] = ["TemplateInvalid", "MigrationFailed", "ProgressDeadlineExceeded", "Refused"];
    match &narrative.trouble {
        Some((name, sentence)) if STOPPED.contains(name) => claim("Progressing", false, name, sentence),
        _ => {
            let reason = match narrative.activity {
                Phase::Pending => "Pending",
                Phase::Migrating => "Migrating",
                Phase::Scaling => "Scaling",
                Phase::Rolling => "Rolling",
                Phase::Draining => "Draining",
                Phase::Paused => "Paused",
                Phase::Degraded => "Degraded",
                Phase::Ready => "Complete",
            };
            claim("Progressing", true, reason, &narrative.message)
        }
    }
}

fn draining(facts: &Facts<'_>) -> Claimed {
    let pods: Vec<_> = facts.live().filter(|pod| pod.is_draining()).map(|pod| pod.name.as_str()).collect();
    match pods.as_slice() {
        [] => claim("Draining", false, "NoPod", "no pod drains"),
        pods => claim("Draining", true, "PodsDraining", format!("rooms leave {}", pods.join(", "))),
    }
}

fn degraded(narrative: &Narrative) -> Claimed {
    match &narrative.trouble {
        Some((name, sentence)) => claim("Degraded", true, name, sentence),
        None => claim("Degraded", false, "AsExpected", "nothing is known to be wrong"),
    }
}

/// Known only from answers of this reconcile; without any, what was last known stands.
fn lease_store(facts: &Facts<'_>, before: &RoomClusterStatus) -> Claimed {
    const KIND: &str = "LeaseStoreReachable";
    let asked = |pod: &ObservedPod| match &pod.witness {
        Witness::Answer(answer) => Some(Ok(answer.leased.is_some())),
        Witness::Silent { message } => Some(Err(message.clone())),
        Witness::NotAsked | Witness::Nobody => None,
    };
    let answers: Vec<_> = facts.observed.pods.iter().filter_map(asked).collect();
    let failed = answers.iter().find_map(|answer| answer.as_ref().err());
    if let Some(message) = failed {
        return claim(
            KIND,
            false,
            "NoWitness",
            format!("no pod could say what the database holds: {message}"),
        );
    }
    if answers.iter().any(|answer| answer == &Ok(false)) {
        return claim(
            KIND,
            false,
            "LeasesUnknown",
            "the lease store did not answer, or was wiped a moment ago",
        );
    }
    if !answers.is_empty() {
        return claim(KIND, true, "Answered", "pods reach the database and the lease store");
    }
    let old = before.conditions.iter().find(|old| old.type_ == KIND);
    old.map_or_else(
        || Claimed {
            kind: KIND,
            status: "Unknown",
            reason: "NotAsked".to_owned(),
            message: "nothing has depended on it yet".to_owned(),
        },
        |old| Claimed {
            kind: KIND,
            status: match old.status.as_str() {
                "True" => "True",
                "False" => "False",
                _ => "Unknown",
            },
            reason: old.reason.clone(),
            message: old.message.clone(),
        },
    )
}

fn lease_view(facts: &Facts<'_>) -> Claimed {
    const KIND: &str = "LeaseViewConsistent";
    let mut differing = facts.plan.blocked.iter().filter_map(|blocked| match &blocked.reason {
        BlockedReason::LeaseViewDiffers { unreleased } => Some((blocked.pod.as_ref()?, *unreleased)),
        _ => None,
    });
    match differing.next() {
        Some((pod, unreleased)) => {
            let message = format!(
                "pod {pod} counts no rooms and the database names {unreleased}; it is not ended while they differ"
            );
            claim(KIND, false, "CountsDiffer", message)
        }
        None => claim(KIND, true, "Consistent", "no pod's count differs from the database"),
    }
}
