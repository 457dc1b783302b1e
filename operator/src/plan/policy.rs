//! What the user asks for, with percentages resolved.

use std::collections::BTreeSet;
use std::time::Duration;

use roomcluster_crds::{DrainReason, OnTimeout, RoomClusterSpec, UpgradeType};

/// The rules of one plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Pods that are to serve.
    pub replicas: u32,
    /// Pods above `replicas` that may exist during a replacement.
    pub max_surge: u32,
    /// Pods below `replicas` that may be unavailable during a replacement.
    pub max_unavailable: u32,
    /// Pods that stay at the current revision.
    pub partition: u32,
    /// Rooms that may be on the move at once; the first draining pod is exempt.
    pub max_draining_rooms: u64,
    /// Whether pods of an old revision are replaced by the operator.
    pub upgrade: UpgradeMode,
    /// How long a pod must have been ready before it counts as available.
    pub min_ready: Duration,
    /// How long a new pod may take to become available.
    pub progress_deadline: Duration,
    /// How long one pod's rooms may take to leave.
    pub drain_timeout: Duration,
    /// What happens then.
    pub on_timeout: OnTimeout,
    /// The reasons for which pods are drained at all.
    pub respond: BTreeSet<DrainReason>,
    /// Orders the targets that nodes are told.
    pub generation: i64,
}

/// Who starts the replacement of a pod of an old revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeMode {
    /// The operator.
    Rolling,
    /// Somebody who deletes it.
    OnDelete,
    /// Nobody: no pod is drained for any reason.
    Paused,
}

impl Policy {
    /// The rules that a spec of this generation sets.
    #[must_use]
    pub fn of(spec: &RoomClusterSpec, generation: i64) -> Self {
        let rolling = &spec.upgrade.rolling_update;
        let budget = rolling.pod_budget(spec.replicas);
        let upgrade = match (spec.paused, spec.upgrade.kind) {
            (true, _) => UpgradeMode::Paused,
            (false, UpgradeType::RollingUpdate) => UpgradeMode::Rolling,
            (false, UpgradeType::OnDelete) => UpgradeMode::OnDelete,
        };
        Self {
            replicas: spec.replicas,
            max_surge: budget.surge_pods,
            max_unavailable: budget.unavailable_pods,
            partition: rolling.partition,
            max_draining_rooms: rolling.max_draining_rooms,
            upgrade,
            min_ready: Duration::from_secs(spec.upgrade.min_ready_seconds.into()),
            progress_deadline: Duration::from_secs(spec.upgrade.progress_deadline_seconds.into()),
            drain_timeout: spec.drain.timeout.get(),
            on_timeout: spec.drain.on_timeout,
            respond: spec.drain.respond.iter().copied().collect(),
            generation,
        }
    }

    /// The number of available pods below which nothing healthy is drained.
    #[must_use]
    pub fn min_available(&self) -> u32 {
        self.replicas.saturating_sub(self.max_unavailable)
    }

    /// The number of live pods above which none is created.
    #[must_use]
    pub fn max_pods(&self) -> u32 {
        self.replicas.saturating_add(self.max_surge)
    }
}
