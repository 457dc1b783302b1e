//! What a user asks for.
//!
//! A field is here only if the operator honours it. Every default is part of the promise: changing one would
//! roll running pods, because the API server stores defaults beside what the user wrote.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::drain::Drain;
use crate::rules;
use crate::status::RoomClusterStatus;
use crate::template::PodTemplate;
use crate::upgrade::Upgrade;

/// Seconds of the grace period beyond the sum of the shutdown phases.
pub const GRACE_RESERVE_SECONDS: u32 = 10;

/// A set of pods that hold rooms, rolled without cutting one.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "roomcluster.dev",
    version = "v1alpha1",
    kind = "RoomCluster",
    plural = "roomclusters",
    shortname = "rcs",
    namespaced,
    status = "RoomClusterStatus",
    derive = "PartialEq",
    doc = "A set of pods that hold rooms, rolled without cutting one.",
    validation = Rule::new(rules::cluster_name()).message(rules::CLUSTER_NAME_MESSAGE),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas", description = "Pods asked for"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas", description = "Pods that take traffic"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedReplicas", description = "Pods of the target revision"),
    printcolumn(name = "Draining", type_ = "integer", json_path = ".status.drainingReplicas", description = "Pods whose rooms are leaving"),
    printcolumn(name = "Rooms", type_ = "integer", json_path = ".status.rooms", description = "Rooms held by all pods; empty while unknown"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "What the operator is doing"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", description = "What is awaited", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::spec()))]
pub struct RoomClusterSpec {
    /// Pods that shall hold rooms.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: u32,
    /// The pods: image, resources, environment, affinity, volumes, anything that a pod takes.
    pub template: PodTemplate,
    /// The database that is the truth about rooms.
    pub database: Database,
    /// The Redis that carries leases and routes.
    pub redis: Redis,
    /// How committed events leave the pods.
    #[serde(default)]
    pub outbox: Outbox,
    /// How pods of an old revision are replaced.
    #[serde(default)]
    pub upgrade: Upgrade,
    /// How rooms leave a pod before it is ended.
    #[serde(default)]
    pub drain: Drain,
    /// Budgets of a pod's own shutdown.
    #[serde(default)]
    pub shutdown: Shutdown,
    /// Stops rolls, scaling and drains; pods that fail or vanish are still replaced.
    #[serde(default)]
    pub paused: bool,
    /// Old revisions that are kept for going back.
    #[serde(default = "default_revision_history_limit")]
    #[schemars(range(min = 0, max = 100))]
    pub revision_history_limit: u32,
}

fn default_replicas() -> u32 {
    1
}

fn default_revision_history_limit() -> u32 {
    10
}

impl RoomClusterSpec {
    /// The grace period that a pod needs so that no phase of its shutdown is cut.
    #[must_use]
    pub fn grace_seconds(&self) -> u32 {
        self.shutdown.grace_seconds(self.outbox.mode)
    }
}

/// The database that is the truth about rooms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Database {
    /// Secret with the database URL.
    pub url_secret_ref: SecretKeyRef,
}

/// The Redis that carries leases and routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Redis {
    /// Secret with the Redis URL.
    pub url_secret_ref: SecretKeyRef,
}

/// One key of a Secret in the namespace of the RoomCluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key whose value is the URL.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// How committed events leave the pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Outbox {
    /// Sidecar delivers from a container of its own, which ends after the room container; InProcess delivers
    /// from the room container.
    pub mode: OutboxMode,
    /// Secret with the URL of the sink; the Redis of the cluster when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink_url_secret_ref: Option<SecretKeyRef>,
    /// Resources of the sidecar. A pod is of the Guaranteed class only if its sidecar has limits as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<SidecarResources>,
}

/// Requests and limits of the outbox sidecar.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SidecarResources {
    /// What the sidecar may use at most, as in {memory: 64Mi}.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities_schema")]
    pub limits: BTreeMap<String, Quantity>,
    /// What is kept free for the sidecar, as in {cpu: 50m}.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities_schema")]
    pub requests: BTreeMap<String, Quantity>,
}

fn quantities_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": { "x-kubernetes-int-or-string": true } })
}

/// Where the outbox worker runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum OutboxMode {
    /// In a native sidecar that ends after the room container.
    #[default]
    Sidecar,
    /// In the room container.
    InProcess,
}

/// Budgets of a pod's own shutdown, which begins with SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Shutdown {
    /// Seconds from the end of readiness to SIGTERM, so that load balancers stop sending.
    #[schemars(range(min = 0, max = 300))]
    pub pre_stop_wait_seconds: u32,
    /// Seconds that the room container may take to end its work.
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Seconds that the outbox sidecar may take afterwards to deliver what is due.
    #[schemars(range(min = 1, max = 3600))]
    pub worker_drain_timeout_seconds: u32,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { pre_stop_wait_seconds: 2, timeout_seconds: 30, worker_drain_timeout_seconds: 30 }
    }
}

impl Shutdown {
    /// The grace period that covers every phase one after the other, and a reserve.
    #[must_use]
    pub fn grace_seconds(&self, mode: OutboxMode) -> u32 {
        let sidecar_seconds = match mode {
            OutboxMode::Sidecar => self.worker_drain_timeout_seconds,
            OutboxMode::InProcess => 0,
        };
        self.pre_stop_wait_seconds + self.timeout_seconds + sidecar_seconds + GRACE_RESERVE_SECONDS
    }
}
