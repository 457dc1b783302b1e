//! The other nodes, as they last told of themselves.
//!
//! Refreshed with each renewal. While the lease store is silent the last picture stands: it only decides where
//! an unowned room goes first, never who owns one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::lease::{LeaseError, LeaseStore, NodeFacts};
use crate::types::NodeId;

/// A picture that is younger is not asked for again by a request.
const FRESH: Duration = Duration::from_millis(200);

/// What is known of the other nodes.
#[derive(Debug, Default)]
pub struct Peers {
    nodes: Mutex<HashMap<NodeId, NodeFacts>>,
    asked_at: Mutex<Option<Instant>>,
}

impl Peers {
    /// Asks the lease store for all nodes.
    pub async fn refresh(&self, store: &dyn LeaseStore) -> Result<(), LeaseError> {
        *self.asked_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        let nodes = store.nodes().await?;
        *self.lock() = nodes.into_iter().map(|facts| (facts.node_id.clone(), facts)).collect();
        Ok(())
    }

    /// Asks again, unless that has just been done: before a room goes to a node that is second choice, or to none.
    pub async fn refresh_if_old(&self, store: &dyn LeaseStore) {
        let asked_at = *self.asked_at.lock().unwrap_or_else(PoisonError::into_inner);
        if asked_at.is_none_or(|at| at.elapsed() > FRESH) {
            // A silent store leaves the last picture, which is all there is.
            let _silent = self.refresh(store).await;
        }
    }

    /// Remembers that a node takes no rooms, until it says otherwise.
    pub fn mark_not_accepting(&self, node: &NodeId) {
        if let Some(facts) = self.lock().get_mut(node) {
            facts.accepting = false;
        }
    }

    /// All known nodes.
    pub fn all(&self) -> Vec<NodeFacts> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, NodeFacts>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
