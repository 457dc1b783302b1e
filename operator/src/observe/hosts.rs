//! What is known of the Kubernetes nodes under the pods.
//!
//! Read from a watch. A node that the watch does not know counts as usable: the watch may lag behind the pods,
//! and pods of a node that is gone are cleared away by Kubernetes itself.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::runtime::reflector::{ObjectRef, Store};

use crate::plan::Host;

/// How long a node may be silent before its pods are replaced.
///
/// Beyond the 40 s after which Kubernetes calls it not ready, this leaves time for a reboot; the leases of its
/// rooms have expired long before, so nothing waits for this.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// The nodes of the Kubernetes cluster.
#[derive(Clone, Debug)]
pub struct Hosts {
    store: Option<Store<Node>>,
}

impl Hosts {
    /// Reads from this watch; without one, every host counts as usable.
    #[must_use]
    pub fn new(store: Option<Store<Node>>) -> Self {
        Self { store }
    }

    /// The state of the node with this name.
    #[must_use]
    pub fn host(&self, name: Option<&str>, now: Timestamp) -> Host {
        let Some(name) = name else { return Host::Unscheduled };
        let Some(store) = &self.store else { return Host::Usable };
        let nodes = store.state();
        let lost = nodes.iter().filter(|node| host_of(node, now) == Host::Lost).count();
        match store.get(&ObjectRef::new(name)).map(|node| host_of(&node, now)) {
            // Where most nodes are silent it is the control plane that is cut off, not they.
            Some(Host::Lost) if lost * 2 > nodes.len() => Host::Usable,
            Some(host) => host,
            None => Host::Usable,
        }
    }
}

fn host_of(node: &Node, now: Timestamp) -> Host {
    let ready = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref()?.iter().find(|c| c.type_ == "Ready"));
    let silent_since = ready.filter(|c| c.status != "True").and_then(|c| c.last_transition_time.as_ref());
    let lost = silent_since.is_some_and(|since| {
        now.duration_since(since.0) > SignedDuration::try_from(LOST_AFTER).unwrap_or(SignedDuration::MAX)
    });
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    match (lost, cordoned) {
        (true, _) => Host::Lost,
        (false, true) => Host::Cordoned,
        (false, false) => Host::Usable,
    }
}

/// What of a node matters here; a change in anything else wakes nobody.
#[must_use]
pub fn fingerprint(node: &Node) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    node.metadata.uid.hash(&mut hasher);
    node.spec.as_ref().and_then(|spec| spec.unschedulable).hash(&mut hasher);
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    ready.map(|ready| &ready.status).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(yaml: &str, at: &str) -> Host {
        let node: Node = serde_norway::from_str(yaml).unwrap();
        host_of(&node, at.parse().unwrap())
    }

    #[test]
    fn a_cordoned_node_is_told_from_one_that_is_lost() {
        let at = "2026-01-01T00:01:30Z";
        let silent = "{metadata: {name: n}, status: {conditions: [{type: Ready, status: Unknown, lastTransitionTime: '2026-01-01T00:00:00Z'}]}}";
        assert_eq!(host("{metadata: {name: n}, spec: {unschedulable: true}}", at), Host::Cordoned);
        assert_eq!(host("{metadata: {name: n}}", at), Host::Usable);
        assert_eq!(host(silent, at), Host::Lost);
        assert_eq!(host(silent, "2026-01-01T00:00:30Z"), Host::Usable);
    }
}
