//! Tells a node its order.

use crate::plan::{NodeOrder, PodRef};

use super::{ActError, Actor, Means};

impl Actor {
    /// Calls the node; a pod without an address has none to call.
    pub(super) async fn call(
        &self,
        pod: &PodRef,
        order: &NodeOrder,
        means: Means<'_>,
    ) -> Result<(), ActError> {
        let Some(node) = means.nodes.get(&pod.uid) else { return Err(ActError::Outdated) };
        let report = node.set_order(&pod.uid, order).await?;
        tracing::debug!(pod = %pod.name, epoch = %report.epoch, accepting = report.accepting, "node took its order");
        Ok(())
    }

    /// As [`Self::call`], where a pod without a process is left to be called once it has one.
    pub(super) async fn call_if_running(
        &self,
        pod: &PodRef,
        order: &NodeOrder,
        means: Means<'_>,
    ) -> Result<(), ActError> {
        match means.nodes.contains_key(&pod.uid) {
            true => self.call(pod, order, means).await,
            false => Ok(()),
        }
    }
}
