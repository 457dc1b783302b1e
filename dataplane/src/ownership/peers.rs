//! The other nodes, as they last told of themselves.
//!
//! Refreshed with each renewal. While the lease store is silent the last picture stands: it only decides where
//! an unowned room goes first, never who owns one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::lease::NodeFacts;
use crate::types::NodeId;

/// What is known of the other nodes.
#[derive(Debug, Default)]
pub struct Peers {
    nodes: Mutex<HashMap<NodeId, NodeFacts>>,
}

impl Peers {
    /// Replaces the picture.
    pub fn refresh(&self, nodes: Vec<NodeFacts>) {
        *self.lock() = nodes.into_iter().map(|facts| (facts.node_id.clone(), facts)).collect();
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
