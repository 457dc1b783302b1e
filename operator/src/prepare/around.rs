//! The objects around the pods: two Services, the disruption budget, and the Secret with the node token.
//!
//! Applied server-side, so that other people's fields on them stay; the Secret is created once and then only
//! read. Applying what already stands is skipped for a while, because a reconcile is frequent and this is not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use roomcluster_crds::names;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::build::{
    Owner, build_disruption_budget, build_nodes_service, build_service, build_token_secret, read_token,
};
use crate::error::is_outdated;

use super::{PrepareError, Preparer};

/// After this time the objects are applied again: whoever deletes one gets it back within it.
const REAPPLY_AFTER: Duration = Duration::from_secs(30);

/// Remembers which clusters' objects were put in place, when, and with which token.
#[derive(Debug, Default)]
pub struct Surrounding {
    placed: Mutex<HashMap<(String, String), (Instant, String)>>,
}

impl Surrounding {
    /// The token of a cluster whose objects were put in place a short while ago.
    fn token(&self, owner: &Owner) -> Option<String> {
        let placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        placed.get(&key(owner)).filter(|(at, _)| at.elapsed() < REAPPLY_AFTER).map(|(_, token)| token.clone())
    }

    fn placed(&self, owner: &Owner, token: String) {
        self.placed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key(owner), (Instant::now(), token));
    }

    /// Forgets a cluster that is gone.
    pub fn forget(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        self.placed.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }
}

fn key(owner: &Owner) -> (String, String) {
    (owner.namespace().to_owned(), owner.name().to_owned())
}

impl Preparer {
    /// Puts the objects around the pods in place; answers with the token of the cluster's node API.
    ///
    /// # Errors
    /// When Kubernetes refuses one, or does not answer, or the Secret is not one of ours.
    pub async fn surround(&self, owner: &Owner, memory: &Surrounding) -> Result<String, PrepareError> {
        if let Some(token) = memory.token(owner) {
            return Ok(token);
        }
        self.apply(owner, &build_disruption_budget(owner), "the disruption budget").await?;
        self.apply::<Service>(owner, &build_service(owner), "the service").await?;
        self.apply::<Service>(owner, &build_nodes_service(owner), "the service of all nodes").await?;
        let token = self.token(owner).await?;
        memory.placed(owner, token.clone());
        Ok(token)
    }

    async fn apply<K>(&self, owner: &Owner, object: &K, what: &'static str) -> Result<(), PrepareError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Serialize + DeserializeOwned,
        K: Clone + std::fmt::Debug,
    {
        self.claim.check()?;
        let api = Api::<K>::namespaced(self.client.clone(), owner.namespace());
        let apply = PatchParams::apply(names::OPERATOR_NAME).force();
        let applied = api.patch(&object.name_any(), &apply, &Patch::Apply(object)).await;
        applied.map(drop).map_err(|source| PrepareError::Write { what, source: Box::new(source) })
    }

    /// The token, made on the first call.
    async fn token(&self, owner: &Owner) -> Result<String, PrepareError> {
        let api = Api::<Secret>::namespaced(self.client.clone(), owner.namespace());
        let name = names::token_secret_name(owner.name());
        let read = |source| PrepareError::Read { what: "the node token", source: Box::new(source) };
        let stored = match api.get_opt(&name).await.map_err(read)? {
            Some(secret) => secret,
            None => {
                self.claim.check()?;
                let secret = build_token_secret(owner, &rand::random());
                match api.create(&PostParams::default(), &secret).await {
                    Ok(secret) => secret,
                    // Somebody made it meanwhile; what stands is what pods get.
                    Err(error) if is_outdated(&error) => api.get(&name).await.map_err(read)?,
                    Err(source) => {
                        return Err(PrepareError::Write { what: "the node token", source: Box::new(source) });
                    }
                }
            }
        };
        read_token(&stored).ok_or(PrepareError::NoToken { name })
    }
}
