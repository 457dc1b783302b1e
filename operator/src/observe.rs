//! Reads: what stands in Kubernetes, what nodes say, what their metrics say, what the database says.
//!
//! Pods are listed from the API server in each reconcile, never taken from a cache: a decision on a stale list
//! creates twice or ends two. What cannot be read about one pod is unknown for that pod; only what concerns the
//! whole cluster fails the reconcile.

mod connections;
mod hosts;
mod node_api;
mod pod;
mod scrape;
mod witness;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use futures::{StreamExt, future, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client};
use roomcluster_crds::names;

use crate::error::sentence;
use crate::ids::PodUid;
use crate::plan::{Host, ObservedPod};

use connections::Connections;

pub use hosts::{Hosts, fingerprint};
pub use node_api::{NodeApi, NodeApiError};
pub use pod::trouble as pod_trouble;
pub use scrape::{ScrapeError, Scraper};

/// Nodes that are asked at the same time: a thousand of them are read in some tens of seconds even if none
/// answers, and no more sockets than this are open.
const NODES_ASKED_AT_ONCE: usize = 128;

/// Why a cluster could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The list of pods.
    #[error("list pods")]
    ListPods(#[source] Box<kube::Error>),
    /// The list of EndpointSlices.
    #[error("list endpoint slices")]
    ListEndpointSlices(#[source] Box<kube::Error>),
}

/// What is read of one cluster's pods, and how to speak to them.
#[derive(Debug)]
pub struct SeenPods {
    /// The pods.
    pub pods: Vec<ObservedPod>,
    /// Pods with the cluster's labels that nobody controls.
    pub orphans: Vec<ObservedPod>,
    /// Clients of those nodes that have an address.
    pub nodes: HashMap<PodUid, NodeApi>,
}

/// Reads clusters.
#[derive(Clone)]
pub struct Reader {
    client: Client,
    scraper: Scraper,
    hosts: Hosts,
    connections: Connections,
}

/// Which cluster to read.
#[derive(Clone, Copy, Debug)]
pub struct ClusterRef<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID: pods of an earlier cluster of the same name are not its own.
    pub uid: &'a str,
    /// The token of its node API.
    pub token: &'a str,
}

impl Reader {
    /// Reads with this client, and what is known of hosts from there.
    #[must_use]
    pub fn new(client: Client, hosts: Hosts) -> Self {
        Self { client, scraper: Scraper::default(), hosts, connections: Connections::default() }
    }

    /// Forgets a cluster that is gone.
    pub fn forget(&self, cluster_uid: &str) {
        self.connections.forget(cluster_uid);
    }

    /// Reads all pods of a cluster.
    ///
    /// # Errors
    /// When Kubernetes does not tell which pods there are.
    pub async fn pods(&self, cluster: ClusterRef<'_>, now: Timestamp) -> Result<SeenPods, ObserveError> {
        let api = Api::<Pod>::namespaced(self.client.clone(), cluster.namespace);
        let all = ListParams::default().labels(&names::pod_selector(cluster.name));
        let list = async { api.list(&all).await.map_err(|error| ObserveError::ListPods(Box::new(error))) };
        let (list, serving) = future::try_join(list, self.serving(cluster)).await?;

        let mut pods = Vec::with_capacity(list.items.len());
        for object in list.items.iter().filter(|pod| controller(pod) == Some(cluster.uid)) {
            let host = self.hosts.host(pod::host_name(object), now);
            let uid = PodUid::new(object.metadata.uid.clone().unwrap_or_default());
            let Some(observed) = pod::observe(object, host, serving.contains(&uid), now) else { continue };
            let address = pod::address(object).filter(|_| observed.is_running());
            pods.push((observed, address));
        }
        let addresses = pods.iter().filter_map(|(pod, address)| Some((pod.uid.clone(), (*address)?)));
        let nodes = self.connections.of(cluster, addresses);
        let asked = pods.into_iter().map(|(observed, address)| {
            let node = nodes.get(&observed.uid).cloned();
            self.ask(observed, address, node)
        });
        let mut pods: Vec<_> = stream::iter(asked).buffered(NODES_ASKED_AT_ONCE).collect().await;
        witness::ask(&mut pods, &nodes).await;
        let orphans = list.items.iter().filter(|pod| controller(pod).is_none());
        let orphans = orphans.filter_map(|object| pod::observe(object, Host::Usable, false, now)).collect();
        Ok(SeenPods { pods, orphans, nodes })
    }

    /// Asks one node for its state, and only then for its count: a count that is received after the node has
    /// confirmed its order is newer than the order.
    async fn ask(&self, mut pod: ObservedPod, ip: Option<IpAddr>, node: Option<NodeApi>) -> ObservedPod {
        let (Some(ip), Some(node)) = (ip, node) else { return pod };
        match node.report().await {
            Ok(report) => pod.report = Some(report),
            Err(error) if error.is_unauthenticated() => {
                tracing::warn!(pod = %pod.name, error = sentence(&error), "node refuses the token");
                return pod;
            }
            Err(error) => {
                tracing::debug!(pod = %pod.name, error = sentence(&error), "node did not answer");
                return pod;
            }
        }
        if !pod.is_draining() {
            // For the status the node's own report is enough; the count matters where a pod is to end.
            return pod;
        }
        match self.scraper.rooms(ip).await {
            Ok(sample) => pod.sample = Some(sample),
            Err(error) => {
                tracing::debug!(pod = %pod.name, error = sentence(&error), "metrics did not answer");
            }
        }
        pod
    }

    async fn serving(&self, cluster: ClusterRef<'_>) -> Result<HashSet<PodUid>, ObserveError> {
        let api = Api::<EndpointSlice>::namespaced(self.client.clone(), cluster.namespace);
        let own = ListParams::default().labels(&format!("kubernetes.io/service-name={}", cluster.name));
        let slices =
            api.list(&own).await.map_err(|error| ObserveError::ListEndpointSlices(Box::new(error)))?;
        let endpoints = slices.items.into_iter().flat_map(|slice| slice.endpoints);
        let ready = endpoints.filter(|e| e.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true));
        Ok(ready.filter_map(|endpoint| endpoint.target_ref?.uid).map(PodUid::new).collect())
    }
}

/// UID of who controls the pod.
fn controller(pod: &Pod) -> Option<&str> {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}
