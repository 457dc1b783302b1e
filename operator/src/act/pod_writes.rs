//! Writes to pods. Each names the UID that it means, and where it takes something away, the version too.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use roomcluster_crds::names;
use serde_json::json;

use crate::build::build_pod;
use crate::ids::Revision;
use crate::intent::DrainIntent;
use crate::plan::{Grounds, PodRef};

use super::{ActError, Actor, Means};

impl Actor {
    fn pods(&self, means: Means<'_>) -> Api<Pod> {
        Api::namespaced(self.client.clone(), means.owner.namespace())
    }

    pub(super) async fn create_pod(&self, revision: &Revision, means: Means<'_>) -> Result<(), ActError> {
        let recipe = means.recipes.get(revision).ok_or_else(|| ActError::NoRecipe(revision.clone()))?;
        let pod = build_pod(means.owner, revision, recipe)?;
        let created = self.pods(means).create(&PostParams::default(), &pod).await;
        let created = created.map_err(ActError::kube("create a pod"))?;
        tracing::info!(cluster = means.owner.name(), pod = created.name_any(), %revision, "pod created");
        Ok(())
    }

    /// Takes over a pod that nobody controls, as one that an earlier cluster of this name has left.
    ///
    /// # Errors
    /// When the leader claim is lost, or Kubernetes refuses.
    pub async fn adopt(&self, namespace: &str, pod: &PodRef, owner: &OwnerReference) -> Result<(), ActError> {
        self.claim.check()?;
        let patch = json!({ "metadata": {
            "uid": pod.uid.as_str(),
            "resourceVersion": pod.resource_version,
            "ownerReferences": [owner],
        }});
        let api = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let patched = api.patch(pod.name.as_str(), &PatchParams::default(), &Patch::Strategic(patch)).await;
        patched.map_err(ActError::kube("adopt the pod"))?;
        tracing::info!(namespace, cluster = owner.name, pod = %pod.name, "pod adopted");
        Ok(())
    }

    /// Reads the pod anew and makes sure that it is the object that the plan was made for.
    pub(super) async fn same(&self, pod: &PodRef, means: Means<'_>) -> Result<(), ActError> {
        let live = self.pods(means).get(pod.name.as_str()).await.map_err(ActError::kube("read the pod"))?;
        let is_same = live.metadata.uid.as_deref() == Some(pod.uid.as_str())
            && live.metadata.resource_version.as_ref() == Some(&pod.resource_version);
        if is_same { Ok(()) } else { Err(ActError::Outdated) }
    }

    /// Writes the order on the pod, provided that nobody has written to it since.
    pub(super) async fn write_intent(
        &self,
        pod: &PodRef,
        intent: &DrainIntent,
        means: Means<'_>,
    ) -> Result<(), ActError> {
        let annotation = intent.to_annotation(&pod.uid);
        let patch = json!({ "metadata": {
            "uid": pod.uid.as_str(),
            "resourceVersion": pod.resource_version,
            "annotations": { (names::DRAIN_ANNOTATION): annotation },
        }});
        let params =
            PatchParams { field_manager: Some(names::OPERATOR_NAME.to_owned()), ..PatchParams::default() };
        let patched = self.pods(means).patch(pod.name.as_str(), &params, &Patch::Merge(patch)).await;
        patched.map_err(ActError::kube("write the drain order on the pod"))?;
        tracing::info!(
            cluster = means.owner.name(), pod = %pod.name, epoch = %intent.epoch, reasons = ?intent.reasons,
            "drain order written"
        );
        Ok(())
    }

    pub(super) async fn set_gate(&self, pod: &PodRef, open: bool, means: Means<'_>) -> Result<(), ActError> {
        let (status, reason) = if open { ("True", "Accepting") } else { ("False", "NotAccepting") };
        let patch = json!({
            "metadata": { "uid": pod.uid.as_str() },
            "status": { "conditions": [{
                "type": names::ACCEPTING_GATE,
                "status": status,
                "reason": reason,
                "lastTransitionTime": Time(means.now),
            }]},
        });
        let params =
            PatchParams { field_manager: Some(names::OPERATOR_NAME.to_owned()), ..PatchParams::default() };
        let patched =
            self.pods(means).patch_status(pod.name.as_str(), &params, &Patch::Strategic(patch)).await;
        patched.map_err(ActError::kube("write the readiness gate"))?;
        tracing::info!(cluster = means.owner.name(), pod = %pod.name, open, "readiness gate set");
        Ok(())
    }

    pub(super) async fn end_pod(
        &self,
        pod: &PodRef,
        grounds: &Grounds,
        means: Means<'_>,
    ) -> Result<(), ActError> {
        // Also a pod that is cut by the policy's word gets its full grace: its own end is bounded, and it
        // flushes and releases what it still can.
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.as_str().to_owned()),
                resource_version: Some(pod.resource_version.clone()),
            }),
            ..DeleteParams::default()
        };
        let deleted = self.pods(means).delete(pod.name.as_str(), &params).await;
        deleted.map_err(ActError::kube("delete the pod"))?;
        tracing::info!(cluster = means.owner.name(), pod = %pod.name, ?grounds, "pod ended");
        Ok(())
    }
}
