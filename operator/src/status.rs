//! What the operator reports: a function of what was seen, what is planned, and the status before.
//!
//! It knows no client and no clock. Invariant: a number that is not known is left out, and a time changes only
//! together with what it is the time of.

mod conditions;
mod ledger;
mod narrative;
mod pods;

#[cfg(test)]
mod tests;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use roomcluster_crds::{RoomClusterStatus, names};

use crate::plan::{Observed, ObservedPod, Plan, Policy, Standing, Step, is_of, standing};

pub use narrative::Narrative;

/// Everything that a status is made from.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Name of the cluster.
    pub cluster: &'a str,
    /// Generation of the spec that was planned for.
    pub generation: i64,
    /// What was seen.
    pub observed: &'a Observed,
    /// The rules.
    pub policy: &'a Policy,
    /// What is done and what is not.
    pub plan: &'a Plan,
    /// Steps that were carried out.
    pub taken: &'a [Step],
    /// What Kubernetes refused, in its words.
    pub refused: Option<&'a str>,
    /// The time.
    pub now: Timestamp,
}

/// The pods of a cluster in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    live: u32,
    available: u32,
    ready: u32,
    updated: u32,
    draining: u32,
}

impl Facts<'_> {
    fn live(&self) -> impl Iterator<Item = &ObservedPod> {
        self.observed.pods.iter().filter(|pod| pod.is_live())
    }

    fn is_target(&self, pod: &ObservedPod) -> bool {
        is_of(pod, self.observed.target.as_ref())
    }

    fn standing(&self, pod: &ObservedPod) -> Standing {
        standing(pod, self.policy, self.now)
    }

    fn counts(&self) -> Counts {
        let count = |matches: &dyn Fn(&ObservedPod) -> bool| {
            u32::try_from(self.live().filter(|pod| matches(pod)).count()).unwrap_or(u32::MAX)
        };
        Counts {
            live: count(&|_| true),
            available: count(&|pod| self.standing(pod) == Standing::Available),
            ready: count(&|pod| pod.ready.is_ready && !pod.is_draining()),
            updated: count(&|pod| self.is_target(pod) && !pod.is_draining()),
            draining: count(&ObservedPod::is_draining),
        }
    }

    /// Every pod that counts has the target revision and is available, and there are as many as asked for.
    fn is_settled(&self) -> bool {
        let counts = self.counts();
        self.observed.target.is_some()
            && self.observed.pending.is_none()
            && counts.available == self.policy.replicas
            && counts.live == self.policy.replicas
            && self.live().all(|pod| self.is_target(pod))
    }
}

/// The status to write.
#[must_use]
pub fn status(facts: &Facts<'_>, before: &RoomClusterStatus) -> RoomClusterStatus {
    let counts = facts.counts();
    let narrative = narrative::tell(facts);
    let current = match facts.is_settled() {
        true => facts.observed.target.as_ref().map(|target| target.as_str().to_owned()),
        false => before.current_revision.clone().or_else(|| text(facts.observed.current.as_ref())),
    };
    let wanted = facts.observed.pending.as_ref().map(|pending| &pending.revision);
    RoomClusterStatus {
        observed_generation: Some(facts.generation),
        // Surge pods and leaving pods would mislead an autoscaler.
        replicas: (counts.live - counts.draining).min(facts.policy.replicas),
        ready_replicas: counts.ready,
        updated_replicas: counts.updated,
        draining_replicas: counts.draining,
        rooms: pods::rooms(facts),
        selector: Some(names::pod_selector(facts.cluster)),
        current_revision: current,
        update_revision: text(wanted.or(facts.observed.target.as_ref())),
        phase: Some(narrative.phase),
        since: Some(since(&narrative, before, facts.now)),
        conditions: conditions::all(facts, &narrative, before),
        pods: facts.observed.pods.iter().map(|pod| pods::pod(pod, facts)).collect(),
        ledger: ledger::ledger(facts, before),
        message: Some(narrative.message),
    }
}

fn text(revision: Option<&crate::ids::Revision>) -> Option<String> {
    revision.map(|revision| revision.as_str().to_owned())
}

/// Since when the same thing is awaited. Counts in the sentence may change meanwhile.
fn since(narrative: &Narrative, before: &RoomClusterStatus, now: Timestamp) -> Time {
    let without_digits = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    let is_same = before.phase == Some(narrative.phase)
        && before.message.as_deref().map(without_digits) == Some(without_digits(&narrative.message));
    before.since.clone().filter(|_| is_same).unwrap_or(Time(now))
}
