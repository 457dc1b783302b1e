//! Connections to nodes that are kept from one reconcile to the next.
//!
//! A kept connection is only ever a short cut: every answer names the pod that it is from, so one that leads to
//! another pod by now is noticed like a new one would be.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ids::PodUid;

use super::ClusterRef;
use super::node_api::NodeApi;

type OfCluster = HashMap<PodUid, (IpAddr, String, NodeApi)>;

/// The connections to the nodes of all clusters, by the cluster's UID.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    kept: Arc<Mutex<HashMap<String, OfCluster>>>,
}

impl Connections {
    /// Clients of these nodes: kept ones where address and token are the same. All others of the cluster end.
    pub(super) fn of(
        &self,
        cluster: ClusterRef<'_>,
        nodes: impl IntoIterator<Item = (PodUid, IpAddr)>,
    ) -> HashMap<PodUid, NodeApi> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = kept.remove(cluster.uid).unwrap_or_default();
        let mut now = OfCluster::new();
        for (uid, ip) in nodes {
            let same =
                before.remove(&uid).filter(|(old_ip, token, _)| *old_ip == ip && token == cluster.token);
            let node = same.map(|(_, _, node)| node).or_else(|| NodeApi::new(ip, cluster.token).ok());
            if let Some(node) = node {
                now.insert(uid, (ip, cluster.token.to_owned(), node));
            }
        }
        let nodes = now.iter().map(|(uid, (_, _, node))| (uid.clone(), node.clone())).collect();
        kept.insert(cluster.uid.to_owned(), now);
        nodes
    }

    /// Ends the connections to a cluster that is gone.
    pub(super) fn forget(&self, cluster_uid: &str) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(cluster_uid);
    }
}
