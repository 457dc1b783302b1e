//! The cluster as the owner of other objects.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use roomcluster_crds::{RoomCluster, names};

use super::labels;

/// A cluster as the API server knows it: what its objects need to say whose they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Owner {
    name: String,
    namespace: String,
    reference: OwnerReference,
}

/// The resource does not come from the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnerError {
    /// Every stored RoomCluster has a namespace.
    #[error("the RoomCluster has no namespace, so it was not read from the API server")]
    NoNamespace,
    /// Every stored RoomCluster has a name and a UID.
    #[error("the RoomCluster has no name or no UID, so it was not read from the API server")]
    NoUid,
}

impl Owner {
    /// The cluster as an owner.
    ///
    /// # Errors
    /// When the resource was not read from the API server.
    pub fn of(cluster: &RoomCluster) -> Result<Self, OwnerError> {
        let namespace = cluster.metadata.namespace.clone().ok_or(OwnerError::NoNamespace)?;
        let mut reference = cluster.controller_owner_ref(&()).ok_or(OwnerError::NoUid)?;
        reference.block_owner_deletion = Some(true);
        Ok(Self { name: reference.name.clone(), namespace, reference })
    }

    /// Name of the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Namespace of the cluster and of all its objects.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The cluster as events refer to it.
    #[must_use]
    pub fn object_reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(format!("{}/{}", names::GROUP, names::VERSION)),
            kind: Some("RoomCluster".to_owned()),
            name: Some(self.name.clone()),
            namespace: Some(self.namespace.clone()),
            uid: Some(self.reference.uid.clone()),
            ..ObjectReference::default()
        }
    }

    /// Metadata of an object that belongs to the cluster, with the labels of all its objects.
    pub(super) fn metadata(&self, name: String) -> ObjectMeta {
        ObjectMeta { name: Some(name), ..self.unnamed_metadata() }
    }

    /// The same for an object whose name the API server makes.
    pub(super) fn unnamed_metadata(&self) -> ObjectMeta {
        ObjectMeta {
            namespace: Some(self.namespace.clone()),
            labels: Some(labels::of_cluster(&self.name)),
            owner_references: Some(vec![self.reference.clone()]),
            ..ObjectMeta::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn objects_of_a_cluster_belong_to_it_and_to_no_other_controller() {
        let metadata = fixture::owner().metadata("lounge-x".to_owned());
        let owners = metadata.owner_references.unwrap();
        assert_eq!(owners.len(), 1);
        assert_eq!((owners[0].kind.as_str(), owners[0].name.as_str()), ("RoomCluster", "lounge"));
        assert_eq!(owners[0].uid, fixture::CLUSTER_UID);
        assert_eq!((owners[0].controller, owners[0].block_owner_deletion), (Some(true), Some(true)));
        assert_eq!(metadata.namespace.as_deref(), Some("games"));
    }

    #[test]
    fn a_resource_that_was_never_stored_owns_nothing() {
        let mut cluster = fixture::cluster();
        cluster.metadata.uid = None;
        assert_eq!(Owner::of(&cluster), Err(OwnerError::NoUid));
        cluster.metadata.namespace = None;
        assert_eq!(Owner::of(&cluster), Err(OwnerError::NoNamespace));
    }
}
