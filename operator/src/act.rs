//! Carries out the steps of a plan.
//!
//! Before each write the leader claim is asked, and before each destructive one the pod is read again: it must
//! still be the very object that the plan was made for, and the write itself names its UID and version, so that
//! a change in between makes the write fail and not hit. A step that fails for that reason is no error: the
//! next plan is made from what is there then.

mod node_order;
mod pod_writes;

use std::collections::HashMap;

use futures::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use kube::Client;

use crate::build::{Owner, Recipe};
use crate::error::{is_outdated, refusal, sentence};
use crate::ids::{PodUid, Revision};
use crate::leader::{Claim, NotLeading};
use crate::observe::{NodeApi, NodeApiError};
use crate::plan::Step;

/// Gates and orders are written to so many pods at the same time.
const STEPS_AT_ONCE: usize = 16;

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// Another operator writes.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    /// The pod is not the one any more that the plan was made for.
    #[error("the pod has changed since it was looked at")]
    Outdated,
    /// Nothing says how to build a pod of this revision.
    #[error("no controller revision tells how to build a pod of revision {0}")]
    NoRecipe(Revision),
    /// The pod's template is invalid.
    #[error("build the pod")]
    Build(#[from] crate::build::InvalidTemplate),
    /// Kubernetes refuses or does not answer.
    #[error("{what}")]
    Kube {
        /// What was tried.
        what: &'static str,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// The node refuses or does not answer.
    #[error("call the node")]
    Node(#[from] NodeApiError),
}

impl ActError {
    fn kube(what: &'static str) -> impl Fn(kube::Error) -> Self {
        move |source| match is_outdated(&source) {
            true => Self::Outdated,
            false => Self::Kube { what, source: Box::new(source) },
        }
    }

    /// Whether the next plan simply sees what happened.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Outdated | Self::Node(_) | Self::NotLeading(_) => true,
            Self::Kube { source, .. } => refusal(source).is_none(),
            Self::NoRecipe(_) | Self::Build(_) => false,
        }
    }

    /// A constant name, as a label of metrics.
    #[must_use]
    pub fn category(&self) -> &'static str {
        match self {
            Self::NotLeading(_) => "not_leading",
            Self::Outdated => "outdated",
            Self::NoRecipe(_) | Self::Build(_) => "template",
            Self::Kube { .. } => "kubernetes",
            Self::Node(_) => "node",
        }
    }
}

/// What became of a step.
#[derive(Debug)]
pub struct Taken {
    /// The step.
    pub step: Step,
    /// How it went.
    pub result: Result<(), ActError>,
}

/// What the steps of one cluster need.
#[derive(Clone, Copy, Debug)]
pub struct Means<'a> {
    /// The cluster.
    pub owner: &'a Owner,
    /// What pods are built from.
    pub recipes: &'a HashMap<Revision, Recipe>,
    /// Clients of the nodes.
    pub nodes: &'a HashMap<PodUid, NodeApi>,
    /// The time, for conditions.
    pub now: Timestamp,
}

/// Carries out steps.
#[derive(Clone)]
pub struct Actor {
    client: Client,
    claim: Claim,
}

impl Actor {
    /// Writes with this client while the claim is held.
    #[must_use]
    pub fn new(client: Client, claim: Claim) -> Self {
        Self { client, claim }
    }

    /// Takes all steps: those that only tell something to different pods at the same time, the others in turn.
    pub async fn act(&self, steps: Vec<Step>, means: Means<'_>) -> Vec<Taken> {
        let (telling, other): (Vec<_>, Vec<_>) =
            steps.into_iter().partition(|step| matches!(step, Step::SetGate { .. } | Step::SetOrder { .. }));
        let telling = telling.into_iter().map(|step| self.take(step, means));
        let mut taken: Vec<_> = stream::iter(telling).buffer_unordered(STEPS_AT_ONCE).collect().await;
        for step in other {
            taken.push(self.take(step, means).await);
        }
        taken
    }

    async fn take(&self, step: Step, means: Means<'_>) -> Taken {
        let result = self.attempt(&step, means).await;
        Taken { step, result }
    }

    async fn attempt(&self, step: &Step, means: Means<'_>) -> Result<(), ActError> {
        self.claim.check()?;
        match step {
            Step::CreatePod { revision } => self.create_pod(revision, means).await,
            Step::SetGate { pod, open } => self.set_gate(pod, *open, means).await,
            Step::SetOrder { pod, order } => self.call(pod, order, means).await,
            Step::AmendDrain { pod, intent } | Step::WithdrawDrain { pod, intent } => {
                self.write_intent(pod, intent, means).await
            }
            Step::BeginDrain { pod, intent, order } => {
                self.same(pod, means).await?;
                self.claim.check()?;
                self.write_intent(pod, intent, means).await?;
                self.claim.check()?;
                self.set_gate(pod, false, means).await?;
                // The order stands from here on; a node that does not take it now is called again by each plan.
                if let Err(error) = self.call_if_running(pod, order, means).await {
                    tracing::warn!(pod = %pod.name, error = sentence(&error), "node not called at once");
                }
                Ok(())
            }
            Step::EndPod { pod, grounds } => {
                self.same(pod, means).await?;
                self.claim.check()?;
                self.end_pod(pod, grounds, means).await
            }
        }
    }
}
