//! Everything that must stand before pods are planned: the objects around them, and the revision they are to
//! have.
//!
//! A new revision is adopted as the target only once Kubernetes would accept its pod and its migration is done.
//! Until then the cluster keeps the target that it has, and nothing of it is touched. A revision that has pods
//! has been adopted; nothing about adoption is remembered elsewhere.

mod around;
mod history;
mod migration;

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use roomcluster_crds::RoomCluster;

use crate::build::{Owner, Recipe, build_pod};
use crate::error::refusal;
use crate::ids::Revision;
use crate::leader::{Claim, NotLeading};
use crate::plan::{ObservedPod, PendingReason, PendingRevision};

pub use around::Surrounding;
use history::History;

/// Why a cluster could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// Another operator writes.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    /// An object could not be written.
    #[error("write {what}")]
    Write {
        /// Which.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// An object could not be read.
    #[error("read {what}")]
    Read {
        /// Which.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// The Secret of the node API holds no token.
    #[error("secret {name} holds no token; delete it while no pod runs, and it is made anew")]
    NoToken {
        /// Its name.
        name: String,
    },
}

/// The revisions of a cluster.
#[derive(Debug)]
pub struct Revisions {
    /// What pods are to have; none before the first one has been adopted.
    pub target: Option<Revision>,
    /// What all pods had last.
    pub current: Option<Revision>,
    /// What waits to become the target.
    pub pending: Option<PendingRevision>,
    /// What to build pods of each revision from.
    pub recipes: HashMap<Revision, Recipe>,
}

/// Prepares clusters.
#[derive(Clone)]
pub struct Preparer {
    client: Client,
    claim: Claim,
}

impl Preparer {
    /// Reads and writes with this client while the claim is held.
    #[must_use]
    pub fn new(client: Client, claim: Claim) -> Self {
        Self { client, claim }
    }

    /// Decides which revision pods are to have, and stores it in the history.
    ///
    /// # Errors
    /// When Kubernetes does not answer.
    pub async fn revisions(
        &self,
        cluster: &RoomCluster,
        owner: &Owner,
        pods: &[ObservedPod],
    ) -> Result<Revisions, PrepareError> {
        let recipe = Recipe::of(&cluster.spec);
        let wanted = recipe.revision();
        let mut history = History::read(&self.client, owner).await?;
        let pending = match pods.iter().any(|pod| pod.revision == wanted) {
            true => None,
            false => self.obstacle(owner, &wanted, &recipe).await?,
        };
        let target = match &pending {
            None => {
                self.claim.check()?;
                history.adopt(&self.client, owner, &recipe).await?;
                Some(wanted.clone())
            }
            Some(_) => history.newest_of(pods),
        };
        let current = current(cluster, pods, target.as_ref());
        self.claim.check()?;
        let in_use = |revision: &Revision| {
            Some(revision) == target.as_ref()
                || Some(revision) == current.as_ref()
                || pods.iter().any(|pod| pod.revision == *revision)
        };
        history.trim(&self.client, owner, cluster.spec.revision_history_limit, in_use).await?;
        Ok(Revisions {
            target,
            current,
            pending: pending.map(|why| PendingRevision { revision: wanted, why }),
            recipes: history.into_recipes(),
        })
    }

    /// Why the revision may not become the target yet.
    async fn obstacle(
        &self,
        owner: &Owner,
        revision: &Revision,
        recipe: &Recipe,
    ) -> Result<Option<PendingReason>, PrepareError> {
        let pod = match build_pod(owner, revision, recipe) {
            Ok(pod) => pod,
            Err(invalid) => return Ok(Some(PendingReason::TemplateInvalid { message: invalid.sentence() })),
        };
        if let Some(message) = self.refused(owner, &pod).await? {
            return Ok(Some(PendingReason::TemplateInvalid { message }));
        }
        migration::obstacle(&self.client, &self.claim, owner, recipe).await
    }

    /// What Kubernetes would say to the pod: admission, defaults and validation, without storing it.
    async fn refused(&self, owner: &Owner, pod: &Pod) -> Result<Option<String>, PrepareError> {
        let api = Api::<Pod>::namespaced(self.client.clone(), owner.namespace());
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        match api.create(&dry_run, pod).await {
            Ok(_) => Ok(None),
            Err(error) => match refusal(&error) {
                Some(message) => Ok(Some(message.to_owned())),
                None => Err(PrepareError::Read { what: "a dry run of the pod", source: Box::new(error) }),
            },
        }
    }
}

/// The last revision that all pods had: as the status says, or, where that was lost, the one that most pods
/// have beside the target.
fn current(cluster: &RoomCluster, pods: &[ObservedPod], target: Option<&Revision>) -> Option<Revision> {
    let recorded = cluster.status.as_ref().and_then(|status| status.current_revision.as_ref());
    recorded.map(Revision::new).or_else(|| {
        let mut counts: HashMap<&Revision, usize> = HashMap::new();
        let serving = pods.iter().filter(|pod| pod.is_live() && pod.ready.is_ready);
        for pod in serving.filter(|pod| Some(&pod.revision) != target) {
            *counts.entry(&pod.revision).or_default() += 1;
        }
        counts
            .into_iter()
            .max_by_key(|(revision, count)| (*count, *revision))
            .map(|(revision, _)| revision.clone())
    })
}

#[cfg(test)]
mod tests {
    use roomcluster_crds::RoomClusterStatus;
    use serde_json::json;

    use super::*;
    use crate::plan::fixture::{rev, serving, unpullable};

    fn cluster(current: Option<&str>) -> RoomCluster {
        let mut cluster: RoomCluster = serde_json::from_value(json!({
            "apiVersion": "roomcluster.dev/v1alpha1", "kind": "RoomCluster", "metadata": { "name": "lounge" },
            "spec": {
                "template": { "spec": { "containers": [] } },
                "database": { "urlSecretRef": { "name": "d", "key": "url" } },
                "redis": { "urlSecretRef": { "name": "r", "key": "url" } },
            },
        }))
        .unwrap();
        let current_revision = current.map(ToOwned::to_owned);
        cluster.status = Some(RoomClusterStatus { current_revision, ..RoomClusterStatus::default() });
        cluster
    }

    #[test]
    fn a_lost_status_is_made_good_by_what_most_pods_serve() {
        let pods =
            [serving("a", "v1", 0), serving("b", "v1", 0), serving("c", "v2", 0), unpullable("n", "v3")];
        assert_eq!(
            current(&cluster(Some("v0")), &pods, Some(&rev("v3"))),
            Some(rev("v0")),
            "what is recorded counts"
        );
        assert_eq!(current(&cluster(None), &pods, Some(&rev("v3"))), Some(rev("v1")));
        assert_eq!(
            current(&cluster(None), &pods[..2], Some(&rev("v1"))),
            None,
            "a first roll has nothing before it"
        );
    }
}
