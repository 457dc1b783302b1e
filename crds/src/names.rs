//! Names that stand on Kubernetes objects of a RoomCluster.
//!
//! Whoever reads or writes such an object (the operator, the command-line plugin, the end-to-end suites)
//! takes the name from here. Once released, a name is a promise: pods that run carry it.

/// API group of the resource.
pub const GROUP: &str = "roomcluster.dev";
/// API version of the resource.
pub const VERSION: &str = "v1alpha1";
/// Prefix of label and annotation keys that only the operator writes.
pub const PREFIX: &str = "roomcluster.dev/";

/// Label: name of the RoomCluster that the object belongs to.
pub const CLUSTER_LABEL: &str = "roomcluster.dev/cluster";
/// Label: revision hash that a pod was built from; equals the `REVISION` of its processes.
pub const REVISION_LABEL: &str = "roomcluster.dev/revision";
/// Label: what kind of part the object is.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Label: the product's name.
pub const NAME_LABEL: &str = "app.kubernetes.io/name";
/// Label: name of the RoomCluster, for tools that know only the common labels.
pub const INSTANCE_LABEL: &str = "app.kubernetes.io/instance";
/// Label: who made the object.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";

/// Value of [`NAME_LABEL`].
pub const APP_NAME: &str = "roomcluster";
/// Value of [`MANAGED_BY_LABEL`]; also the field manager of the operator's writes.
pub const OPERATOR_NAME: &str = "roomcluster-operator";
/// Value of [`COMPONENT_LABEL`] on pods that hold rooms.
pub const ROOM_COMPONENT: &str = "room";
/// Value of [`COMPONENT_LABEL`] on migration Jobs and their pods.
pub const MIGRATION_COMPONENT: &str = "migration";

/// Pod condition type of the readiness gate: whether the operator lets the pod take traffic.
pub const ACCEPTING_GATE: &str = "roomcluster.dev/accepting";
/// Annotation on a pod: the standing drain order as JSON.
pub const DRAIN_ANNOTATION: &str = "roomcluster.dev/drain";

/// Container that runs the rooms.
pub const ROOM_CONTAINER: &str = "room";
/// Native sidecar that delivers the outbox.
pub const OUTBOX_CONTAINER: &str = "outbox";
/// Port name of the gRPC listener.
pub const GRPC_PORT_NAME: &str = "grpc";
/// Port number of the gRPC listener.
pub const GRPC_PORT: i32 = 7400;
/// Port name of the room container's health and metrics listener.
pub const ADMIN_PORT_NAME: &str = "admin";
/// Port number of the room container's health and metrics listener.
pub const ADMIN_PORT: i32 = 7401;
/// Port name of the sidecar's health and metrics listener.
pub const OUTBOX_ADMIN_PORT_NAME: &str = "outbox-admin";
/// Container of a migration Job.
pub const MIGRATE_CONTAINER: &str = "migrate";
/// Port number of the sidecar's health and metrics listener.
pub const OUTBOX_ADMIN_PORT: i32 = 7402;
/// Key of the token in the Secret of [`token_secret_name`].
pub const TOKEN_KEY: &str = "token";

/// Longest accepted name of a RoomCluster: derived names (a Job's `<cluster>-migrate-<hash>`) stay below 63.
pub const CLUSTER_NAME_MAX_LENGTH: usize = 40;

/// Environment that the operator sets; the same name in a template is refused.
pub const RESERVED_ENV: &[&str] = &[
    "ADMIN_LISTEN",
    "ADVERTISE_ADDR",
    "AWAIT_ORDER",
    "DATABASE_URL",
    "GRPC_LISTEN",
    "NODE_ID",
    "NODE_TOKEN",
    "OUTBOX_MODE",
    "POD_IP",
    "POD_UID",
    "PRE_STOP_WAIT",
    "REDIS_URL",
    "REVISION",
    "SHUTDOWN_TIMEOUT",
    "WORKER_DRAIN_TIMEOUT",
];

/// Labels besides those with [`PREFIX`] that only the operator writes.
pub const RESERVED_LABELS: &[&str] = &[COMPONENT_LABEL, INSTANCE_LABEL, MANAGED_BY_LABEL, NAME_LABEL];

/// Selector of the pods that hold the rooms of one cluster, as `status.selector` carries it.
#[must_use]
pub fn pod_selector(cluster: &str) -> String {
    format!("{CLUSTER_LABEL}={cluster},{COMPONENT_LABEL}={ROOM_COMPONENT}")
}

/// Name of the Secret with the token of the node API.
#[must_use]
pub fn token_secret_name(cluster: &str) -> String {
    format!("{cluster}-node-token")
}

/// Name of the headless Service that lists every pod, ready or not.
#[must_use]
pub fn nodes_service_name(cluster: &str) -> String {
    format!("{cluster}-nodes")
}

/// Name of the PodDisruptionBudget that refuses evictions of pods with rooms.
#[must_use]
pub fn disruption_budget_name(cluster: &str) -> String {
    format!("{cluster}-rooms")
}

/// Name of the migration Job for one image and one database.
#[must_use]
pub fn migration_job_name(cluster: &str, hash: &str) -> String {
    format!("{cluster}-migrate-{hash}")
}

/// Name of the ControllerRevision with one revision hash.
#[must_use]
pub fn revision_name(cluster: &str, hash: &str) -> String {
    format!("{cluster}-{hash}")
}
