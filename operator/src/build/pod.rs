//! A pod that holds rooms.
//!
//! The user's template, the operator's containers and identity, and defaults where the user says nothing.
//! The user's values win, except for what the drain rests on: gate, preStop, grace, environment.

mod containers;
mod defaults;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodReadinessGate, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use roomcluster_crds::{OutboxMode, names};

pub(super) use self::containers::store_env;
use self::containers::{Parts, build_outbox, build_room};
pub(super) use self::defaults::apply_security as apply_security_defaults;
use super::{InvalidTemplate, Owner, Recipe, RoomTemplate};
use crate::ids::Revision;

/// Annotation that tells kubectl which container is meant when none is named.
const DEFAULT_CONTAINER_ANNOTATION: &str = "kubectl.kubernetes.io/default-container";

/// A pod of a revision.
///
/// `revision` is passed beside the recipe because a recipe from history keeps the revision under which it
/// was stored.
///
/// # Errors
/// When no pod can be made from the recipe's template.
pub fn build_pod(owner: &Owner, revision: &Revision, recipe: &Recipe) -> Result<Pod, InvalidTemplate> {
    let RoomTemplate { room, pod } = RoomTemplate::of(recipe)?;
    let parts = Parts { cluster: owner.name(), revision, recipe };
    let mut init_containers = pod.init_containers.clone().unwrap_or_default();
    match recipe.outbox.mode {
        OutboxMode::Sidecar => init_containers.push(build_outbox(&parts, &room)),
        OutboxMode::InProcess => {}
    }
    let mut containers = vec![build_room(&parts, room)];
    containers.extend(pod.containers.iter().cloned());

    let mut spec = PodSpec {
        containers,
        init_containers: (!init_containers.is_empty()).then_some(init_containers),
        readiness_gates: Some(readiness_gates(&pod)),
        restart_policy: Some("Always".to_owned()),
        termination_grace_period_seconds: Some(
            pod.termination_grace_period_seconds.unwrap_or_else(|| i64::from(recipe.grace_seconds())),
        ),
        ..pod
    };
    defaults::apply(&mut spec, owner.name());
    Ok(Pod { metadata: metadata(owner, revision, recipe), spec: Some(spec), status: None })
}

fn metadata(owner: &Owner, revision: &Revision, recipe: &Recipe) -> ObjectMeta {
    let base = owner.unnamed_metadata();
    let mut labels: BTreeMap<String, String> = recipe.template.metadata.labels.clone();
    labels.extend(base.labels.unwrap_or_default());
    labels.insert(names::COMPONENT_LABEL.to_owned(), names::ROOM_COMPONENT.to_owned());
    labels.insert(names::REVISION_LABEL.to_owned(), revision.as_str().to_owned());
    let mut annotations = recipe.template.metadata.annotations.clone();
    annotations
        .entry(DEFAULT_CONTAINER_ANNOTATION.to_owned())
        .or_insert_with(|| names::ROOM_CONTAINER.to_owned());
    ObjectMeta {
        generate_name: Some(format!("{}-", owner.name())),
        labels: Some(labels),
        annotations: Some(annotations),
        ..base
    }
}

/// The operator's gate, and those of the user.
fn readiness_gates(pod: &PodSpec) -> Vec<PodReadinessGate> {
    let gate = PodReadinessGate { condition_type: names::ACCEPTING_GATE.to_owned() };
    let users = pod.readiness_gates.iter().flatten().filter(|users| **users != gate).cloned();
    std::iter::once(gate.clone()).chain(users).collect()
}
