//! The RoomCluster resource: its types, its schema with the rules that the API server checks, and the names
//! that stand on its objects.
//!
//! This crate knows no client and no operator. Invariant: the committed `roomclusters.roomcluster.dev.yaml`
//! and the chart's copy are what [`crd_yaml`] prints (`cargo run -p roomcluster-crds --bin crdgen`).

pub mod drain;
pub mod duration;
pub mod names;
mod reference;
mod rules;
mod schema;
pub mod spec;
pub mod status;
pub mod template;
pub mod upgrade;

#[cfg(test)]
mod tests;

pub use drain::{Drain, DrainMethod, DrainReason, OnTimeout};
pub use duration::DurationText;
pub use reference::reference;
pub use schema::crd;
pub use spec::{
    Database, Outbox, OutboxMode, Redis, RoomCluster, RoomClusterSpec, SecretKeyRef, Shutdown,
    SidecarResources,
};
pub use status::{Ledger, Phase, PodDrain, PodPhase, PodStatus, RoomClusterStatus};
pub use template::{OpenPodSpec, PodTemplate, TemplateError, TemplateMeta};
pub use upgrade::{PodBudget, PodCount, RollingUpdate, Upgrade, UpgradeType};

/// The CustomResourceDefinition as YAML.
///
/// # Errors
/// When the definition cannot be written as YAML, which its types exclude.
pub fn crd_yaml() -> Result<String, serde_norway::Error> {
    serde_norway::to_string(&crd())
}
