//! How rooms leave a pod before it is ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::DurationText;
use crate::rules;

/// How rooms leave a pod before it is ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::drain()))]
pub struct Drain {
    /// Release: the pod flushes and releases its rooms one by one, and their next request takes them to
    /// another pod.
    pub method: DrainMethod,
    /// Time for the rooms of one pod to leave, as in 30m; afterwards onTimeout applies.
    pub timeout: DurationText,
    /// Wait goes on waiting and reports it; Terminate ends the pod although it holds rooms.
    pub on_timeout: OnTimeout,
    /// What makes the operator drain a pod.
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub respond: Vec<DrainReason>,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            method: DrainMethod::default(),
            timeout: DurationText::from_mins(30),
            on_timeout: OnTimeout::default(),
            respond: vec![DrainReason::Upgrade, DrainReason::ScaleDown, DrainReason::NodeCordon],
        }
    }
}

/// How a pod gets rid of its rooms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum DrainMethod {
    /// Flush and release, room by room.
    #[default]
    Release,
}

/// What happens to a pod that holds rooms after the drain timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum OnTimeout {
    /// Go on waiting, and report it.
    #[default]
    Wait,
    /// End the pod although it holds rooms.
    Terminate,
}

/// Why a pod is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum DrainReason {
    /// The pod is of an old revision.
    Upgrade,
    /// The cluster has more pods than replicas.
    ScaleDown,
    /// The pod's node takes no new pods and is about to be emptied.
    NodeCordon,
}

impl DrainReason {
    /// The reason's name as the resource and annotations carry it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Upgrade => "Upgrade",
            Self::ScaleDown => "ScaleDown",
            Self::NodeCordon => "NodeCordon",
        }
    }
}
