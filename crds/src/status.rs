//! What the operator reports.
//!
//! A number that is not known is absent; it is never reported as zero.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::drain::DrainReason;

/// What the operator last saw and is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RoomClusterStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pods that count towards replicas: neither surge pods nor pods that are leaving.
    pub replicas: u32,
    /// Pods that take traffic.
    pub ready_replicas: u32,
    /// Pods of the target revision.
    pub updated_replicas: u32,
    /// Pods whose rooms are leaving.
    pub draining_replicas: u32,
    /// Rooms held by all pods; absent while the count of any pod is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rooms: Option<u64>,
    /// Selector of the pods, for autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Revision that pods run which are not yet updated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,
    /// Revision that the spec asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_revision: Option<String>,
    /// What the operator is doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// One sentence: what is awaited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Since when the phase and the message are these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Conditions: Available, Progressing, Draining, Degraded, and others as they apply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Every pod of the cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub pods: Vec<PodStatus>,
    /// What became of the rooms that left pods during the last roll.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ledger: Option<Ledger>,
}

/// What the operator is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Phase {
    /// Nothing was made yet, or something that the user names is missing.
    Pending,
    /// The migration Job runs; pods of the new revision wait for it.
    Migrating,
    /// Pods are being made or taken away because replicas changed.
    Scaling,
    /// Pods of an old revision are being replaced.
    Rolling,
    /// Rooms are leaving pods for another reason than a roll.
    Draining,
    /// The user has paused the cluster.
    Paused,
    /// Something failed and is named in the message.
    Degraded,
    /// All is as asked for.
    Ready,
}

/// One pod of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Revision that the pod was built from.
    pub revision: String,
    /// Where the pod stands.
    pub phase: PodPhase,
    /// Rooms that the pod holds; absent while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rooms: Option<u64>,
    /// The standing drain order, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<PodDrain>,
}

/// Where a pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum PodPhase {
    /// The pod has not been ready yet.
    Starting,
    /// The pod takes traffic.
    Ready,
    /// The pod was ready and is not now.
    NotReady,
    /// Its rooms are leaving.
    Draining,
    /// Its rooms have left; it is about to be ended.
    Empty,
    /// The pod is being deleted.
    Terminating,
    /// A container fails, or the pod cannot start.
    Failed,
}

/// The drain of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodDrain {
    /// Number of the order; a later order has a higher one.
    pub epoch: u64,
    /// Why the pod is drained.
    pub reasons: Vec<DrainReason>,
    /// When the order was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// Rooms that have not left; absent while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// Why the pod is not ended yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
}

/// What became of rooms that left pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ledger {
    /// Rooms that were flushed and released.
    pub released: u64,
    /// Rooms that their pod still held when it was ended because of onTimeout.
    pub forced: u64,
    /// Rooms of pods that vanished.
    pub lost: u64,
}
