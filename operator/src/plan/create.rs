//! Which pods to create.
//!
//! A pod that leaves no longer counts for replicas, so its replacement may come first; the surge limits how
//! many pods exist. A pod on its way out (Terminating, finished, on a lost host) counts for nothing.

use crate::ids::Revision;

use super::observed::Observed;
use super::policy::{Policy, UpgradeMode};
use super::roster::{Roster, count};
use super::step::Step;

/// Pods created in one reconcile: a large cluster comes up in portions, so that one reconcile stays short.
const MAX_CREATED_AT_ONCE: u32 = 50;

/// The pods to create now.
///
/// Where the surge leaves no room, some pod leaves and has not gone yet: what it waits for says why.
pub(super) fn steps(roster: &Roster<'_>, observed: &Observed, policy: &Policy) -> Vec<Step> {
    let staying = count(roster.staying());
    let missing = policy.replicas.saturating_sub(staying);
    if missing == 0 {
        return Vec::new();
    }
    let Some(target) = &observed.target else { return Vec::new() };
    let pods = count(roster.members.iter());
    let room = policy.max_pods().saturating_sub(pods);
    let number = missing.min(room).min(MAX_CREATED_AT_ONCE);
    let staying_new = count(roster.staying().filter(|member| member.is_target));
    (0..number)
        .map(|nth| Step::CreatePod {
            revision: revision(target, observed, policy, staying_new + nth).clone(),
        })
        .collect()
}

/// The revision of a pod that is created while `new` pods of the target revision stay.
fn revision<'a>(target: &'a Revision, observed: &'a Observed, policy: &Policy, new: u32) -> &'a Revision {
    let current = observed.current.as_ref().unwrap_or(target);
    match policy.upgrade {
        UpgradeMode::Rolling if new < policy.replicas.saturating_sub(policy.partition) => target,
        UpgradeMode::Rolling | UpgradeMode::Paused => current,
        UpgradeMode::OnDelete => target,
    }
}
