//! The Job that brings the database to the schema of an image, before pods of that image are made.
//!
//! Its name is a hash of image and database, so each pair is migrated once. The finished Job is the record of that:
//! it has no time to live, or it would vanish and be made again for ever.

use std::iter;

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{Affinity, Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use roomcluster_crds::names;
use serde_json::json;

use super::pod::{apply_security_defaults, store_env};
use super::recipe::short_hash;
use super::{InvalidTemplate, Owner, Recipe, RoomTemplate};

/// Attempts after the first; the wait between them doubles from ten seconds, so the database has some ten
/// minutes to come up.
const BACKOFF_LIMIT: i32 = 6;
/// Exit code of the data plane for a bad configuration, which another attempt does not mend.
const EXIT_BAD_CONFIG: i32 = 64;

/// Name of the Job that belongs to a recipe.
///
/// # Errors
/// When no pod can be made from the recipe's template.
pub fn migration_job_name(owner: &Owner, recipe: &Recipe) -> Result<String, InvalidTemplate> {
    RoomTemplate::of(recipe).map(|template| job_name(owner, recipe, &template.room))
}

/// The Job that belongs to a recipe.
///
/// # Errors
/// When no pod can be made from the recipe's template.
pub fn build_migration_job(owner: &Owner, recipe: &Recipe) -> Result<Job, InvalidTemplate> {
    let RoomTemplate { room, pod } = RoomTemplate::of(recipe)?;
    let mut metadata = owner.metadata(job_name(owner, recipe, &room));
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(names::COMPONENT_LABEL.to_owned(), names::MIGRATION_COMPONENT.to_owned());
    let pod_metadata = ObjectMeta { labels: metadata.labels.clone(), ..ObjectMeta::default() };
    let spec = JobSpec {
        backoff_limit: Some(BACKOFF_LIMIT),
        pod_failure_policy: Some(PodFailurePolicy { rules: vec![fail_at_once_if_misconfigured()] }),
        template: PodTemplateSpec { metadata: Some(pod_metadata), spec: Some(pod_spec(recipe, room, pod)) },
        ..JobSpec::default()
    };
    Ok(Job { metadata, spec: Some(spec), status: None })
}

fn job_name(owner: &Owner, recipe: &Recipe, room: &Container) -> String {
    let inputs = json!({ "image": room.image, "database": recipe.database });
    names::migration_job_name(owner.name(), &short_hash(&inputs))
}

/// A pod that reaches the database the way the rooms' pods do: same image, mounts, network and identity. The
/// user's other containers stay out, as the Job would wait for their end.
fn pod_spec(recipe: &Recipe, room: Container, pod: PodSpec) -> PodSpec {
    let migrate = Container {
        name: names::MIGRATE_CONTAINER.to_owned(),
        image: room.image,
        image_pull_policy: room.image_pull_policy,
        command: room.command,
        args: Some(vec!["migrate".to_owned()]),
        env: Some(store_env(recipe).into_iter().chain(room.env.into_iter().flatten()).collect()),
        env_from: room.env_from,
        security_context: room.security_context,
        volume_mounts: room.volume_mounts,
        ..Container::default()
    };
    let node_affinity = pod.affinity.and_then(|affinity| affinity.node_affinity);
    let mut spec = PodSpec {
        containers: iter::once(migrate).collect(),
        affinity: node_affinity.map(|node| Affinity { node_affinity: Some(node), ..Affinity::default() }),
        restart_policy: Some("Never".to_owned()),
        automount_service_account_token: Some(pod.automount_service_account_token.unwrap_or(false)),
        enable_service_links: Some(pod.enable_service_links.unwrap_or(false)),
        dns_config: pod.dns_config,
        dns_policy: pod.dns_policy,
        host_aliases: pod.host_aliases,
        image_pull_secrets: pod.image_pull_secrets,
        init_containers: pod.init_containers,
        node_selector: pod.node_selector,
        priority_class_name: pod.priority_class_name,
        runtime_class_name: pod.runtime_class_name,
        security_context: pod.security_context,
        service_account_name: pod.service_account_name,
        tolerations: pod.tolerations,
        volumes: pod.volumes,
        ..PodSpec::default()
    };
    apply_security_defaults(&mut spec);
    spec
}

fn fail_at_once_if_misconfigured() -> PodFailurePolicyRule {
    PodFailurePolicyRule {
        action: "FailJob".to_owned(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: Some(names::MIGRATE_CONTAINER.to_owned()),
            operator: "In".to_owned(),
            values: vec![EXIT_BAD_CONFIG],
        }),
        on_pod_conditions: None,
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;

    use super::super::fixture;
    use super::*;

    fn job(edit: impl FnOnce(&mut Recipe)) -> Job {
        let mut recipe = fixture::recipe();
        edit(&mut recipe);
        build_migration_job(&fixture::owner(), &recipe).unwrap()
    }

    fn pod(job: &Job) -> PodSpec {
        job.spec.clone().unwrap().template.spec.unwrap()
    }

    #[test]
    fn each_image_and_each_database_is_migrated_once() {
        let name = job(|_| ()).name_any();
        assert!(name.starts_with("lounge-migrate-"), "{name}");
        let image = |recipe: &mut Recipe| {
            recipe.template.spec.0["containers"][0]["image"] = json!("example/dataplane:v3")
        };
        assert_ne!(job(image).name_any(), name);
        assert_ne!(job(|recipe| recipe.database.url_secret_ref.key = "other".into()).name_any(), name);
        let label =
            |recipe: &mut Recipe| drop(recipe.template.metadata.labels.insert("team".into(), "b".into()));
        assert_eq!(job(label).name_any(), name);
        assert_eq!(job(|recipe| recipe.shutdown.timeout_seconds = 60).name_any(), name);
        assert_eq!(migration_job_name(&fixture::owner(), &fixture::recipe()).unwrap(), name);
    }

    #[test]
    fn the_record_of_a_migration_does_not_vanish_by_itself() {
        assert_eq!(job(|_| ()).spec.unwrap().ttl_seconds_after_finished, None);
    }

    #[test]
    fn the_job_runs_the_image_of_the_rooms_with_their_database() {
        let job = job(|_| ());
        let pod = pod(&job);
        assert_eq!(pod.containers.len(), 1);
        let migrate = &pod.containers[0];
        assert_eq!(migrate.image.as_deref(), Some("example/dataplane:v2"));
        assert_eq!(migrate.args.as_deref(), Some(&["migrate".to_owned()][..]));
        let env: Vec<&str> = migrate.env.iter().flatten().map(|variable| variable.name.as_str()).collect();
        assert_eq!(env, ["DATABASE_URL", "REDIS_URL", "LOG_FORMAT"]);
        assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
        assert_eq!(pod.security_context.unwrap().run_as_non_root, Some(true));
    }

    #[test]
    fn a_migration_pod_is_never_taken_for_a_pod_with_rooms() {
        let job = job(|_| ());
        let labels = job.spec.unwrap().template.metadata.unwrap().labels.unwrap();
        assert_eq!(labels[names::COMPONENT_LABEL], "migration");
        assert_eq!(labels[names::CLUSTER_LABEL], "lounge");
    }

    #[test]
    fn a_bad_configuration_fails_at_once_and_a_late_database_is_waited_for() {
        let spec = job(|_| ()).spec.unwrap();
        assert_eq!(spec.backoff_limit, Some(6));
        let rule = &spec.pod_failure_policy.unwrap().rules[0];
        assert_eq!(rule.action, "FailJob");
        assert_eq!(rule.on_exit_codes.as_ref().unwrap().values, [64]);
    }

    #[test]
    fn what_the_database_needs_to_be_reached_comes_along_and_other_containers_do_not() {
        let job = job(|recipe| {
            let pod = &mut recipe.template.spec.0;
            pod["containers"].as_array_mut().unwrap().push(json!({ "name": "log", "image": "log" }));
            pod.insert("initContainers".into(), json!([{ "name": "proxy", "restartPolicy": "Always" }]));
            pod.insert("imagePullSecrets".into(), json!([{ "name": "pull" }]));
            pod.insert("serviceAccountName".into(), json!("rooms"));
            pod.insert("affinity".into(), json!({ "podAntiAffinity": {}, "nodeAffinity": {} }));
        });
        let pod = pod(&job);
        assert_eq!(pod.containers.len(), 1);
        assert_eq!(pod.init_containers.unwrap()[0].name, "proxy");
        assert_eq!(pod.image_pull_secrets.unwrap()[0].name, "pull");
        assert_eq!(pod.service_account_name.as_deref(), Some("rooms"));
        let affinity = pod.affinity.unwrap();
        assert!(affinity.node_affinity.is_some() && affinity.pod_anti_affinity.is_none());
    }
}
