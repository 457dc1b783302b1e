//! Who stays and who leaves, and why.
//!
//! Every reason is worked out anew from what is seen. A pod that already drains is the first choice wherever
//! there is one, so that an order is not moved from pod to pod while its rooms travel.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use roomcluster_crds::DrainReason;

use super::observed::{Host, Observed, ObservedPod};
use super::policy::{Policy, UpgradeMode};
use super::standing::{Standing, is_of, standing};
use super::step::{Blocked, BlockedReason};

/// The live pods of a cluster, in the order in which they are given up.
#[derive(Clone, Debug)]
pub(super) struct Roster<'a> {
    pub(super) members: Vec<Member<'a>>,
    pub(super) blocked: Vec<Blocked>,
}

/// One live pod.
#[derive(Clone, Debug)]
pub(super) struct Member<'a> {
    pub(super) pod: &'a ObservedPod,
    pub(super) standing: Standing,
    /// Of the target revision.
    pub(super) is_target: bool,
    /// Of the current revision.
    pub(super) is_current: bool,
    /// Why it is to leave; none: it stays.
    pub(super) reasons: BTreeSet<DrainReason>,
}

impl Member<'_> {
    pub(super) fn is_leaving(&self) -> bool {
        !self.reasons.is_empty()
    }

    pub(super) fn leaves_only_for_upgrade(&self) -> bool {
        self.reasons.iter().eq([&DrainReason::Upgrade])
    }
}

impl<'a> Roster<'a> {
    pub(super) fn of(observed: &'a Observed, policy: &Policy, now: Timestamp) -> Self {
        let live = observed.pods.iter().filter(|pod| pod.is_live());
        let mut members: Vec<_> = live
            .map(|pod| Member {
                pod,
                standing: standing(pod, policy, now),
                is_target: is_of(pod, observed.target.as_ref()),
                is_current: is_of(pod, observed.current.as_ref()),
                reasons: BTreeSet::new(),
            })
            .collect();
        members.sort_by_cached_key(|member| given_up_first(member));
        let mut roster = Self { members, blocked: Vec::new() };
        if policy.upgrade == UpgradeMode::Paused {
            roster.note_paused(policy);
            return roster;
        }
        roster.leave_cordoned_hosts(policy);
        roster.leave_old_revisions(observed, policy);
        roster.leave_surplus(observed, policy);
        roster
    }

    /// The member that this pod is; none if it no longer counts.
    pub(super) fn member(&self, pod: &ObservedPod) -> Option<&Member<'a>> {
        self.members.iter().find(|member| member.pod.uid == pod.uid)
    }

    /// Members that stay.
    pub(super) fn staying(&self) -> impl Iterator<Item = &Member<'a>> {
        self.members.iter().filter(|member| !member.is_leaving())
    }

    /// Members that take traffic and rooms.
    pub(super) fn available(&self) -> u32 {
        count(self.members.iter().filter(|member| member.standing == Standing::Available))
    }

    fn note_paused(&mut self, policy: &Policy) {
        let would_change = self.members.iter().any(|member| !member.is_target)
            || count(self.members.iter()) > policy.replicas;
        if would_change {
            self.blocked.push(Blocked::cluster(BlockedReason::Paused));
        }
    }

    fn leave_cordoned_hosts(&mut self, policy: &Policy) {
        self.ask_to_leave(u32::MAX, DrainReason::NodeCordon, policy, |member| {
            member.pod.host == Host::Cordoned
        });
    }

    /// Pods of other revisions leave, except `partition` pods of the current one: those that would be given
    /// up last.
    fn leave_old_revisions(&mut self, observed: &Observed, policy: &Policy) {
        if policy.upgrade != UpgradeMode::Rolling || observed.target.is_none() {
            return;
        }
        self.ask_to_leave(u32::MAX, DrainReason::Upgrade, policy, |m| !m.is_target && !m.is_current);
        let keepable = count(self.members.iter().filter(|m| !m.is_target && m.is_current && !m.is_leaving()));
        let kept = policy.partition.min(policy.replicas).min(keepable);
        self.ask_to_leave(keepable - kept, DrainReason::Upgrade, policy, |m| {
            !m.is_target && m.is_current && !m.is_leaving()
        });
        self.ask_to_leave(u32::MAX, DrainReason::Upgrade, policy, |m| !m.is_target && m.is_leaving());
    }

    /// Pods beyond `replicas` leave.
    ///
    /// While a partition holds, each revision gives up its own surplus; otherwise old ones go first. During a
    /// roll, old pods beyond `replicas`, and pods beyond the surge, are surplus too: a roll that is stuck can be
    /// scaled down, and old pods do not take the room of those that are to replace them.
    fn leave_surplus(&mut self, observed: &Observed, policy: &Policy) {
        let reason = DrainReason::ScaleDown;
        let mut surplus = count(self.staying()).saturating_sub(policy.replicas);
        let is_partitioned = policy.upgrade == UpgradeMode::Rolling && observed.target != observed.current;
        if is_partitioned {
            let updated = policy.replicas.saturating_sub(policy.partition);
            let new = count(self.staying().filter(|member| member.is_target));
            let surplus_new = new.saturating_sub(updated).min(surplus);
            surplus -= self.ask_to_leave(surplus_new, reason, policy, |m| m.is_target && !m.is_leaving());
        }
        surplus -= self.ask_to_leave(surplus, reason, policy, |m| m.pod.is_draining() && !m.is_leaving());
        surplus -= self.ask_to_leave(surplus, reason, policy, |m| !m.is_target && !m.is_leaving());
        self.ask_to_leave(surplus, reason, policy, |m| !m.is_leaving());

        let upgrading = count(self.members.iter().filter(|m| m.leaves_only_for_upgrade()));
        let beyond_surge = count(self.members.iter()).saturating_sub(policy.max_pods());
        let on_their_way = count(self.members.iter().filter(|m| m.reasons.contains(&reason)));
        let beyond = beyond_surge.max(upgrading.saturating_sub(policy.replicas));
        self.ask_to_leave(beyond.saturating_sub(on_their_way), reason, policy, |m| {
            m.leaves_only_for_upgrade()
        });
    }

    /// Gives the first `pods` members that match a reason to leave, if the policy drains for it; says how many
    /// matched.
    fn ask_to_leave(
        &mut self,
        pods: u32,
        reason: DrainReason,
        policy: &Policy,
        matches: impl Fn(&Member<'a>) -> bool,
    ) -> u32 {
        let mut asked = 0;
        for member in &mut self.members {
            if asked < pods && matches(member) {
                asked += 1;
                if policy.respond.contains(&reason) {
                    member.reasons.insert(reason);
                } else {
                    let why = BlockedReason::NotAnswered { reason: reason.as_str() };
                    self.blocked.push(Blocked::pod(member.pod, why));
                }
            }
        }
        asked
    }
}

/// Those that already drain, then the broken, the idle, and of the available ones those with the fewest rooms.
fn given_up_first(member: &Member<'_>) -> impl Ord + use<> {
    let pod = member.pod;
    let hosts = u8::from(pod.host != Host::Cordoned);
    let rooms = pod.rooms_hint().unwrap_or(u64::MAX);
    (!pod.is_draining(), member.standing, hosts, rooms, Reverse(pod.created_at), pod.name.clone())
}

pub(super) fn count<'a, 'b: 'a>(members: impl Iterator<Item = &'a Member<'b>>) -> u32 {
    u32::try_from(members.count()).unwrap_or(u32::MAX)
}
