//! One reconcile of one cluster: read, prepare, plan, act, report.
//!
//! It starts from the API server and not from the watch's cache, which may lag behind what this operator, or
//! the one before it, has done. Whatever fails, what is known is reported, and the next reconcile starts anew.

mod memory;

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, Client, Resource, ResourceExt};
use roomcluster_crds::{RoomCluster, RoomClusterStatus, names};
use roomcluster_lifecycle::SharedClock;
use serde_json::json;

use crate::act::{ActError, Actor, Means, Taken};
use crate::build::{Owner, OwnerError};
use crate::error::sentence;
use crate::events::{self, Publisher};
use crate::leader::{Claim, NotLeading};
use crate::metrics::OperatorMetrics;
use crate::observe::{ClusterRef, Hosts, ObserveError, Reader};
use crate::plan::{Grounds, Observed, ObservedPod, Policy, Step, plan};
use crate::prepare::{PrepareError, Preparer, Surrounding};
use crate::status::{self, Facts};

use memory::Memory;

/// How soon a cluster is planned whose pods were just adopted.
const AFTER_ADOPTION: Duration = Duration::from_millis(500);
/// How often an operator that does not lead looks whether it does.
const STANDBY_RECHECK: Duration = Duration::from_secs(5);

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// Another operator writes.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    /// The cluster's object could not be read.
    #[error("read the RoomCluster")]
    ReadCluster(#[source] Box<kube::Error>),
    /// The cluster's object lacks what every stored object has.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// What is around the pods is not in place.
    #[error("prepare the cluster")]
    Prepare(#[from] PrepareError),
    /// The pods could not be read.
    #[error("observe the cluster")]
    Observe(#[from] ObserveError),
    /// The status could not be written.
    #[error("write the status")]
    WriteStatus(#[source] Box<kube::Error>),
    /// It took too long.
    #[error("the reconcile took longer than {} s", .0.as_secs())]
    TimedOut(Duration),
}

impl ReconcileError {
    /// A constant name, as a label of metrics.
    #[must_use]
    pub fn category(&self) -> &'static str {
        match self {
            Self::NotLeading(_) | Self::Prepare(PrepareError::NotLeading(_)) => "not_leading",
            Self::ReadCluster(_) | Self::Observe(_) => "read",
            Self::Owner(_) => "owner",
            Self::Prepare(_) => "prepare",
            Self::WriteStatus(_) => "status",
            Self::TimedOut(_) => "timeout",
        }
    }
}

/// Reconciles clusters.
pub struct Reconciler {
    client: Client,
    claim: Claim,
    clock: SharedClock,
    metrics: OperatorMetrics,
    preparer: Preparer,
    surrounding: Surrounding,
    reader: Reader,
    actor: Actor,
    publisher: Publisher,
    memory: Memory,
}

impl Reconciler {
    /// Reconciles with this client while the claim is held.
    #[must_use]
    pub fn new(
        client: Client,
        claim: Claim,
        clock: SharedClock,
        metrics: OperatorMetrics,
        hosts: Hosts,
        pod_name: &str,
    ) -> Self {
        Self {
            preparer: Preparer::new(client.clone(), claim.clone()),
            surrounding: Surrounding::default(),
            reader: Reader::new(client.clone(), hosts),
            actor: Actor::new(client.clone(), claim.clone()),
            publisher: Publisher::new(client.clone(), pod_name),
            memory: Memory::default(),
            client,
            claim,
            clock,
            metrics,
        }
    }

    /// The claim under which is written.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// The metrics.
    #[must_use]
    pub fn metrics(&self) -> &OperatorMetrics {
        &self.metrics
    }

    /// Counts a failed reconcile; says how many have failed in a row.
    pub fn count_failure(&self, cluster: &RoomCluster, error: &ReconcileError) -> u32 {
        self.metrics.failed(error.category());
        self.memory.count_failure(&key(cluster))
    }

    /// Brings one cluster a step nearer to what is asked for.
    ///
    /// # Errors
    /// When Kubernetes could not be read or written; what was done until then stands.
    pub async fn reconcile(&self, cached: &RoomCluster) -> Result<Action, ReconcileError> {
        if !self.claim.is_held() {
            // A claim may also be lost and regained without a change that anybody would notice.
            return Ok(Action::requeue(STANDBY_RECHECK));
        }
        let namespace = cached.namespace().ok_or(OwnerError::NoNamespace)?;
        let api = Api::<RoomCluster>::namespaced(self.client.clone(), &namespace);
        let read = api.get_opt(&cached.name_any()).await;
        let read = read.map_err(|error| ReconcileError::ReadCluster(Box::new(error)))?;
        // A cluster on its way out is Kubernetes' to clear away: its pods are garbage, and each of them
        // releases its rooms when it ends. Creating or draining now would only be in the way.
        let Some(cluster) = read.filter(|cluster| cluster.metadata.deletion_timestamp.is_none()) else {
            self.forget(cached);
            return Ok(Action::await_change());
        };
        let action = self.reconcile_live(&cluster).await?;
        self.memory.succeeded(&key(&cluster));
        Ok(action)
    }

    async fn reconcile_live(&self, cluster: &RoomCluster) -> Result<Action, ReconcileError> {
        let owner = Owner::of(cluster)?;
        let token = self.preparer.surround(&owner, &self.surrounding).await?;
        let now = self.now();
        let uid = cluster.uid().unwrap_or_default();
        let subject =
            ClusterRef { namespace: owner.namespace(), name: owner.name(), uid: &uid, token: &token };
        let seen = self.reader.pods(subject, now).await?;
        if self.adopt(cluster, &owner, &seen.orphans).await {
            // Planned without them, replacements would be created for pods that are there.
            return Ok(Action::requeue(AFTER_ADOPTION));
        }
        let revisions = self.preparer.revisions(cluster, &owner, &seen.pods).await?;

        let generation = cluster.metadata.generation.unwrap_or_default();
        let policy = Policy::of(&cluster.spec, generation);
        let observed = Observed {
            pods: seen.pods,
            target: revisions.target,
            current: revisions.current,
            pending: revisions.pending,
        };
        let plan = plan(&observed, &policy, now);
        let means = Means { owner: &owner, recipes: &revisions.recipes, nodes: &seen.nodes, now };
        let taken = self.actor.act(plan.steps.clone(), means).await;

        let (done, refused) = self.sort_out(&owner, taken);
        self.count(&observed, &done, now);
        let facts = Facts {
            cluster: owner.name(),
            generation,
            observed: &observed,
            policy: &policy,
            plan: &plan,
            taken: &done,
            refused: refused.as_deref(),
            now,
        };
        self.report(cluster, &owner, &facts).await?;
        Ok(Action::requeue(plan.requeue_after))
    }

    /// Takes over pods that nobody controls; says whether there were any.
    async fn adopt(&self, cluster: &RoomCluster, owner: &Owner, orphans: &[ObservedPod]) -> bool {
        let Some(reference) = cluster.controller_owner_ref(&()) else { return false };
        let orphans = orphans.iter().filter(|pod| !pod.is_terminating());
        let mut any = false;
        for orphan in orphans {
            any = true;
            if let Err(error) = self.actor.adopt(owner.namespace(), &orphan.into(), &reference).await {
                tracing::warn!(cluster = owner.name(), pod = %orphan.name, error = sentence(&error), "pod not adopted");
            }
        }
        any
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.clock.now_ms()).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    fn forget(&self, cluster: &RoomCluster) {
        let namespace = cluster.namespace().unwrap_or_default();
        self.surrounding.forget(&namespace, &cluster.name_any());
        self.reader.forget(&cluster.uid().unwrap_or_default());
        self.memory.forget(&key(cluster), &self.metrics);
    }

    /// Steps that were taken, and the words of Kubernetes about one that it will not take.
    fn sort_out(&self, owner: &Owner, taken: Vec<Taken>) -> (Vec<Step>, Option<String>) {
        let mut done = Vec::new();
        let mut refused = None;
        for Taken { step, result } in taken {
            let Err(error) = result else {
                done.push(step);
                continue;
            };
            self.metrics.failed(error.category());
            if !error.is_retryable() {
                refused = Some(sentence(&error));
            }
            match error {
                ActError::Outdated | ActError::NotLeading(_) => {
                    tracing::debug!(cluster = owner.name(), ?step, "step left to the next plan");
                }
                error => {
                    tracing::warn!(cluster = owner.name(), ?step, error = sentence(&error), "step failed")
                }
            }
        }
        (done, refused)
    }

    fn count(&self, observed: &Observed, done: &[Step], now: Timestamp) {
        for step in done {
            let Step::EndPod { pod, grounds } = step else { continue };
            let intent = |seen: &ObservedPod| (seen.uid == pod.uid).then(|| seen.intent.clone()).flatten();
            let Some(intent) = observed.pods.iter().find_map(intent) else { continue };
            self.metrics.drained(Duration::try_from(now.duration_since(intent.since)).unwrap_or_default());
            let started_with = intent.rooms_at_start.unwrap_or(0);
            match grounds {
                Grounds::TimedOut { rooms } => {
                    let forced = rooms.unwrap_or(started_with);
                    self.metrics.rooms("forced", forced);
                    self.metrics.rooms("moved", started_with.saturating_sub(forced));
                }
                Grounds::Empty | Grounds::OnlyPod | Grounds::NoSuccessor { .. } => {
                    self.metrics.rooms("moved", started_with);
                }
                Grounds::NeverRan | Grounds::NotRunning => {}
            }
        }
    }

    /// Writes the status if it has changed, and tells what is new.
    async fn report(
        &self,
        cluster: &RoomCluster,
        owner: &Owner,
        facts: &Facts<'_>,
    ) -> Result<(), ReconcileError> {
        let before = cluster.status.clone().unwrap_or_default();
        let after = status::status(facts, &before);
        if after != before {
            self.claim.check()?;
            self.write_status(owner, &after).await?;
        }
        let lost = |status: &RoomClusterStatus| status.ledger.unwrap_or_default().lost;
        self.metrics.rooms("lost", lost(&after).saturating_sub(lost(&before)));
        let mut notices: Vec<_> = facts.taken.iter().filter_map(events::of_step).collect();
        notices.extend(events::of_transition(&before, &after));
        let new = self.memory.newly_blocked(&key(cluster), &facts.plan.blocked, &self.metrics);
        for blocked in new {
            tracing::info!(
                cluster = owner.name(), pod = blocked.pod.as_ref().map(ToString::to_string),
                reason = blocked.reason.name(), detail = %blocked.reason, "step blocked"
            );
            notices.push(events::of_blocked(&blocked));
        }
        let reference = owner.object_reference();
        for notice in notices {
            self.publisher.publish(&notice, &reference, facts.now).await;
        }
        Ok(())
    }

    /// Applied, not merged, so that what is no longer known disappears; only the status is named, so that
    /// nobody who writes the spec meanwhile gets a conflict.
    async fn write_status(&self, owner: &Owner, status: &RoomClusterStatus) -> Result<(), ReconcileError> {
        let api = Api::<RoomCluster>::namespaced(self.client.clone(), owner.namespace());
        let patch = json!({
            "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
            "kind": "RoomCluster",
            "metadata": { "name": owner.name() },
            "status": status,
        });
        let apply = PatchParams::apply(names::OPERATOR_NAME).force();
        let written = api.patch_status(owner.name(), &apply, &Patch::Apply(patch)).await;
        written.map(drop).map_err(|error| ReconcileError::WriteStatus(Box::new(error)))
    }
}

/// Which cluster: a new one of the same name is another.
fn key(cluster: &RoomCluster) -> memory::Key {
    memory::Key {
        namespace: cluster.namespace().unwrap_or_default(),
        name: cluster.name_any(),
        uid: cluster.uid().unwrap_or_default(),
    }
}
