//! The Job that brings the database to the schema of a revision, before its first pod.
//!
//! A Job that waits for ever (its image cannot be pulled) never fails by itself, so its pods are asked as well.
//! A stale Job of that kind is cleared away once another one is wanted.

use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use roomcluster_crds::names;

use crate::build::{Owner, Recipe, build_migration_job, migration_job_name};
use crate::error::refusal;
use crate::leader::Claim;
use crate::observe::pod_trouble;
use crate::plan::PendingReason;

use super::PrepareError;

/// Why pods of this recipe have to wait; none when the migration is done.
pub(super) async fn obstacle(
    client: &Client,
    claim: &Claim,
    owner: &Owner,
    recipe: &Recipe,
) -> Result<Option<PendingReason>, PrepareError> {
    let name = match migration_job_name(owner, recipe) {
        Ok(name) => name,
        Err(invalid) => return Ok(Some(PendingReason::TemplateInvalid { message: invalid.sentence() })),
    };
    let api = Api::<Job>::namespaced(client.clone(), owner.namespace());
    let read = |source| PrepareError::Read { what: "the migration job", source: Box::new(source) };
    let write = |source| PrepareError::Write { what: "the migration job", source: Box::new(source) };
    let job = match api.get_opt(&name).await.map_err(read)? {
        Some(job) => job,
        None => {
            let job = match build_migration_job(owner, recipe) {
                Ok(job) => job,
                Err(invalid) => {
                    return Ok(Some(PendingReason::TemplateInvalid { message: invalid.sentence() }));
                }
            };
            claim.check()?;
            clear_stale(&api, owner, &name).await?;
            claim.check()?;
            match api.create(&PostParams::default(), &job).await {
                Ok(job) => job,
                Err(error) => {
                    return match refusal(&error) {
                        Some(message) => Ok(Some(PendingReason::MigrationFailed {
                            job: name,
                            message: message.to_owned(),
                        })),
                        None => Err(write(error)),
                    };
                }
            }
        }
    };
    match end(&job) {
        Some(End::Complete) => Ok(None),
        Some(End::Failed(message)) => Ok(Some(PendingReason::MigrationFailed { job: name, message })),
        None => {
            let trouble = trouble(client, owner, &name).await?;
            Ok(Some(PendingReason::MigrationRunning { job: name, trouble }))
        }
    }
}

enum End {
    Complete,
    Failed(String),
}

fn end(job: &Job) -> Option<End> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let is_true = |kind: &str| conditions.iter().find(|c| c.type_ == kind && c.status == "True");
    match (is_true("Complete"), is_true("Failed")) {
        (Some(_), _) => Some(End::Complete),
        (None, Some(failed)) => Some(End::Failed(reason_of(failed))),
        (None, None) => None,
    }
}

fn reason_of(condition: &JobCondition) -> String {
    let parts = [condition.reason.as_deref(), condition.message.as_deref()];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

async fn trouble(client: &Client, owner: &Owner, job: &str) -> Result<Option<String>, PrepareError> {
    let api = Api::<Pod>::namespaced(client.clone(), owner.namespace());
    let own = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
    let list = api
        .list(&own)
        .await
        .map_err(|source| PrepareError::Read { what: "the migration's pods", source: Box::new(source) })?;
    Ok(list.items.iter().find_map(|pod| {
        let trouble = pod_trouble(pod)?;
        Some(format!("pod {}: {}: {}", pod.name_any(), trouble.reason, trouble.message))
    }))
}

/// Deletes other migrations of this cluster that wait and have never run; one that runs is let run.
async fn clear_stale(api: &Api<Job>, owner: &Owner, wanted: &str) -> Result<(), PrepareError> {
    let own = ListParams::default().labels(&format!(
        "{}={},{}={}",
        names::CLUSTER_LABEL,
        owner.name(),
        names::COMPONENT_LABEL,
        names::MIGRATION_COMPONENT
    ));
    let jobs = api
        .list(&own)
        .await
        .map_err(|source| PrepareError::Read { what: "the migration jobs", source: Box::new(source) })?;
    let is_stale = |job: &&Job| {
        let runs = job.status.as_ref().and_then(|status| status.ready).unwrap_or(0) > 0;
        job.name_any() != wanted && end(job).is_none() && !runs
    };
    for job in jobs.items.iter().filter(is_stale) {
        let deleted = api.delete(&job.name_any(), &DeleteParams::background()).await;
        if let Err(source) = deleted
            && !crate::error::is_outdated(&source)
        {
            return Err(PrepareError::Write { what: "a stale migration job", source: Box::new(source) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(conditions: &str) -> Job {
        serde_norway::from_str(&format!("{{metadata: {{name: j}}, status: {{conditions: [{conditions}]}}}}"))
            .unwrap()
    }

    #[test]
    fn a_job_has_ended_only_by_a_condition_that_is_true() {
        assert!(end(&Job::default()).is_none());
        assert!(end(&job("{type: Complete, status: 'False'}")).is_none());
        assert!(end(&job("{type: FailureTarget, status: 'True'}")).is_none(), "its pods still run");
        assert!(matches!(end(&job("{type: Complete, status: 'True'}")), Some(End::Complete)));
        let failed = job("{type: Failed, status: 'True', reason: BackoffLimitExceeded, message: too often}");
        let Some(End::Failed(message)) = end(&failed) else { panic!("it failed") };
        assert_eq!(message, "BackoffLimitExceeded: too often");
    }
}
