//! The RoomCluster that tests and the demo apply.
//!
//! Made of JSON and not of the resource's Rust types: it is to be what a user writes, with nothing filled in.

use serde_json::{Value, json};

/// Name of the RoomCluster in each site.
pub const NAME: &str = "lounge";
/// The data plane before a roll.
pub const V1: &str = "roomcluster.local/dataplane:v1";
/// The same program with another environment, so another image.
pub const V2: &str = "roomcluster.local/dataplane:v2";

/// A RoomCluster as a user writes it.
#[derive(Clone, Debug)]
pub struct Lounge {
    /// Pods.
    pub replicas: u32,
    /// Image of the data plane.
    pub image: String,
    /// Further variables of the room container.
    pub env: Vec<(&'static str, &'static str)>,
    /// Fields of the spec that are laid over the others.
    pub overrides: Value,
}

impl Default for Lounge {
    fn default() -> Self {
        Self { replicas: 3, image: V1.to_owned(), env: Vec::new(), overrides: json!({}) }
    }
}

impl Lounge {
    /// With another image.
    #[must_use]
    pub fn image(mut self, image: &str) -> Self {
        image.clone_into(&mut self.image);
        self
    }

    /// With another number of pods.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// With switches for faults in the pods, and a wait that suits a test.
    #[must_use]
    pub fn with_faults(mut self) -> Self {
        self.env.push(("FAULT_INJECTION", "true"));
        self
    }

    /// With other fields of the spec.
    #[must_use]
    pub fn overrides(mut self, overrides: Value) -> Self {
        self.overrides = overrides;
        self
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> Value {
        let env: Vec<Value> =
            self.env.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        let secret = |name: &str| json!({ "urlSecretRef": { "name": name, "key": "url" } });
        let mut spec = json!({
            "replicas": self.replicas,
            "template": { "spec": { "containers": [{
                "name": "room",
                "image": self.image,
                "imagePullPolicy": "IfNotPresent",
                "env": env,
                "resources": { "requests": { "cpu": "50m", "memory": "64Mi" } },
            }] } },
            "database": secret("rooms-db"),
            "redis": secret("rooms-redis"),
            "outbox": { "mode": "Sidecar", "sinkUrlSecretRef": { "name": "rooms-sink", "key": "url" } },
            "upgrade": { "minReadySeconds": 1 },
        });
        if let (Value::Object(spec), Value::Object(overrides)) = (&mut spec, &self.overrides) {
            spec.extend(overrides.clone());
        }
        json!({
            "apiVersion": "roomcluster.dev/v1alpha1",
            "kind": "RoomCluster",
            "metadata": { "name": NAME },
            "spec": spec,
        })
    }
}
