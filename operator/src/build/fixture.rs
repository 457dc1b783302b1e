//! One cluster that the tests of this folder start from.

use roomcluster_crds::RoomCluster;
use serde_json::json;

use super::{Owner, Recipe};

pub(super) const CLUSTER_UID: &str = "6f1d7a52-6a3c-4b52-8a55-0c2f4bb9a1de";

pub(super) fn cluster() -> RoomCluster {
    serde_json::from_value(json!({
        "apiVersion": "roomcluster.dev/v1alpha1",
        "kind": "RoomCluster",
        "metadata": { "name": "lounge", "namespace": "games", "uid": CLUSTER_UID },
        "spec": {
            "replicas": 3,
            "template": {
                "metadata": { "labels": { "team": "a" } },
                "spec": {
                    "containers": [{
                        "name": "room",
                        "image": "example/dataplane:v2",
                        "env": [{ "name": "LOG_FORMAT", "value": "json" }],
                        "resources": { "requests": { "cpu": "500m" } },
                    }],
                },
            },
            "database": { "urlSecretRef": { "name": "lounge-db", "key": "url" } },
            "redis": { "urlSecretRef": { "name": "lounge-redis", "key": "redis-url" } },
        },
    }))
    .expect("the fixture is a RoomCluster")
}

pub(super) fn owner() -> Owner {
    Owner::of(&cluster()).expect("the fixture has a UID")
}

pub(super) fn recipe() -> Recipe {
    Recipe::of(&cluster().spec)
}
