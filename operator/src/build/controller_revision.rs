//! ControllerRevisions keep the recipes that pods were made from.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::ResourceExt;
use roomcluster_crds::names;

use super::{Owner, Recipe};
use crate::ids::Revision;

/// A ControllerRevision cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RevisionError {
    /// It does not say which revision it is.
    #[error("ControllerRevision {name} has no label {}", names::REVISION_LABEL)]
    NoHash {
        /// Its name.
        name: String,
    },
    /// It holds nothing.
    #[error("ControllerRevision {name} holds no data")]
    NoData {
        /// Its name.
        name: String,
    },
    /// It holds something else than a recipe.
    #[error("ControllerRevision {name} holds no recipe of a pod")]
    ParseData {
        /// Its name.
        name: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

/// The ControllerRevision that keeps a recipe; `number` orders the history.
#[must_use]
pub fn build_controller_revision(owner: &Owner, recipe: &Recipe, number: i64) -> ControllerRevision {
    let revision = recipe.revision();
    let mut metadata = owner.metadata(names::revision_name(owner.name(), revision.as_str()));
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(names::REVISION_LABEL.to_owned(), revision.as_str().to_owned());
    ControllerRevision { metadata, data: Some(RawExtension(recipe.to_json())), revision: number }
}

/// The revision and the recipe that a ControllerRevision keeps.
///
/// The revision is the one under which it was stored, even if this version of the operator would hash the
/// recipe to another.
///
/// # Errors
/// When it was not written by the operator, or by one with other recipes.
pub fn read_controller_revision(stored: &ControllerRevision) -> Result<(Revision, Recipe), RevisionError> {
    let name = || stored.name_any();
    let hash =
        stored.labels().get(names::REVISION_LABEL).ok_or_else(|| RevisionError::NoHash { name: name() })?;
    let data = stored.data.as_ref().ok_or_else(|| RevisionError::NoData { name: name() })?;
    let recipe = serde_json::from_value(data.0.clone())
        .map_err(|source| RevisionError::ParseData { name: name(), source })?;
    Ok((Revision::new(hash), recipe))
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn a_recipe_comes_back_from_history_as_it_went_in() {
        let (owner, recipe) = (fixture::owner(), fixture::recipe());
        let stored = build_controller_revision(&owner, &recipe, 7);
        assert_eq!(stored.name_any(), format!("lounge-{}", recipe.revision()));
        assert_eq!(stored.revision, 7);
        let (revision, kept) = read_controller_revision(&stored).unwrap();
        assert_eq!(revision, recipe.revision());
        assert_eq!(kept, recipe);
    }

    #[test]
    fn the_stored_name_of_a_revision_counts_and_not_what_its_recipe_would_hash_to() {
        let mut stored = build_controller_revision(&fixture::owner(), &fixture::recipe(), 1);
        stored.labels_mut().insert(names::REVISION_LABEL.to_owned(), "0ld".to_owned());
        assert_eq!(read_controller_revision(&stored).unwrap().0, Revision::new("0ld"));
    }

    #[test]
    fn a_foreign_object_is_an_error_and_not_an_empty_recipe() {
        let good = build_controller_revision(&fixture::owner(), &fixture::recipe(), 1);
        let mut stored = good.clone();
        stored.labels_mut().clear();
        assert!(matches!(read_controller_revision(&stored), Err(RevisionError::NoHash { .. })));
        let mut stored = good.clone();
        stored.data = None;
        assert!(matches!(read_controller_revision(&stored), Err(RevisionError::NoData { .. })));
        let mut stored = good;
        stored.data = Some(RawExtension(serde_json::json!({ "template": 1 })));
        assert!(matches!(read_controller_revision(&stored), Err(RevisionError::ParseData { .. })));
    }
}
