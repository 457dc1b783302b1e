//! Labels and selectors of a cluster's objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use roomcluster_crds::names;

/// Labels of every object of the cluster.
pub(super) fn of_cluster(cluster: &str) -> BTreeMap<String, String> {
    map([
        (names::NAME_LABEL, names::APP_NAME),
        (names::INSTANCE_LABEL, cluster),
        (names::MANAGED_BY_LABEL, names::OPERATOR_NAME),
        (names::CLUSTER_LABEL, cluster),
    ])
}

/// What selects the pods that hold rooms.
pub(super) fn room_pods(cluster: &str) -> BTreeMap<String, String> {
    map([(names::CLUSTER_LABEL, cluster), (names::COMPONENT_LABEL, names::ROOM_COMPONENT)])
}

/// The same as a selector object.
pub(super) fn room_pod_selector(cluster: &str) -> LabelSelector {
    LabelSelector { match_labels: Some(room_pods(cluster)), ..LabelSelector::default() }
}

fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}
