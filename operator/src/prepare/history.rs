//! The ControllerRevisions of a cluster: what pods of each revision are built from.

use std::collections::HashMap;

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use roomcluster_crds::names;
use serde_json::json;

use crate::build::{Owner, Recipe, build_controller_revision, read_controller_revision};
use crate::error::{is_outdated, sentence};
use crate::ids::Revision;
use crate::plan::ObservedPod;

use super::PrepareError;

/// The stored revisions, the newest last.
#[derive(Debug)]
pub(super) struct History {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    number: i64,
    revision: Revision,
    recipe: Recipe,
}

impl History {
    pub(super) async fn read(client: &Client, owner: &Owner) -> Result<Self, PrepareError> {
        let own = ListParams::default().labels(&format!("{}={}", names::CLUSTER_LABEL, owner.name()));
        let list = api(client, owner).list(&own).await.map_err(|source| PrepareError::Read {
            what: "the controller revisions",
            source: Box::new(source),
        })?;
        let mut entries: Vec<_> = list.items.iter().filter_map(entry).collect();
        entries.sort_by_key(|entry| entry.number);
        Ok(Self { entries })
    }

    /// Stores the recipe as the newest revision.
    pub(super) async fn adopt(
        &mut self,
        client: &Client,
        owner: &Owner,
        recipe: &Recipe,
    ) -> Result<(), PrepareError> {
        let revision = recipe.revision();
        let newest = self.entries.last().map_or(0, |entry| entry.number);
        let write =
            |source| PrepareError::Write { what: "the controller revision", source: Box::new(source) };
        let Some(index) = self.entries.iter().position(|entry| entry.revision == revision) else {
            let stored = build_controller_revision(owner, recipe, newest + 1);
            let name = stored.name_any();
            api(client, owner).create(&PostParams::default(), &stored).await.map_err(write)?;
            self.entries.push(Entry { name, number: newest + 1, revision, recipe: recipe.clone() });
            return Ok(());
        };
        if self.entries[index].number < newest {
            // Going back makes an old revision the newest, as in a Deployment.
            let mut entry = self.entries.remove(index);
            entry.number = newest + 1;
            let patch = Patch::Merge(json!({ "revision": entry.number }));
            api(client, owner).patch(&entry.name, &PatchParams::default(), &patch).await.map_err(write)?;
            self.entries.push(entry);
        }
        Ok(())
    }

    /// The newest revision that pods have.
    pub(super) fn newest_of(&self, pods: &[ObservedPod]) -> Option<Revision> {
        let has_pods = |entry: &&Entry| pods.iter().any(|pod| pod.revision == entry.revision);
        self.entries.iter().rev().find(has_pods).map(|entry| entry.revision.clone())
    }

    /// Deletes the oldest revisions beyond `limit` that nobody needs.
    pub(super) async fn trim(
        &mut self,
        client: &Client,
        owner: &Owner,
        limit: u32,
        in_use: impl Fn(&Revision) -> bool,
    ) -> Result<(), PrepareError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let unused: Vec<_> = self
            .entries
            .iter()
            .filter(|entry| !in_use(&entry.revision))
            .map(|entry| entry.name.clone())
            .collect();
        for name in unused.iter().take(unused.len().saturating_sub(limit)) {
            match api(client, owner).delete(name, &DeleteParams::default()).await {
                Ok(_) => {}
                Err(error) if is_outdated(&error) => {}
                Err(source) => {
                    let what = "the controller revisions";
                    return Err(PrepareError::Write { what, source: Box::new(source) });
                }
            }
            self.entries.retain(|entry| entry.name != *name);
        }
        Ok(())
    }

    pub(super) fn into_recipes(self) -> HashMap<Revision, Recipe> {
        self.entries.into_iter().map(|entry| (entry.revision, entry.recipe)).collect()
    }
}

fn entry(stored: &ControllerRevision) -> Option<Entry> {
    match read_controller_revision(stored) {
        Ok((revision, recipe)) => {
            Some(Entry { name: stored.name_any(), number: stored.revision, revision, recipe })
        }
        Err(error) => {
            tracing::warn!(name = stored.name_any(), error = sentence(&error), "revision not read");
            None
        }
    }
}

fn api(client: &Client, owner: &Owner) -> Api<ControllerRevision> {
    Api::namespaced(client.clone(), owner.namespace())
}
