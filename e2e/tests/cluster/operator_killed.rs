//! An operator that dies in the middle of its work.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::lounge::{Lounge, V2};
use e2e::site::{ROLL_PATIENCE, Site, image_of};
use e2e::suite::{Company, on_site};
use e2e::traffic::Plan;
use e2e::wait::until;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use roomcluster_crds::names::DRAIN_ANNOTATION;

/// A step of the roll is seen within this time, a new leader's wait for the old one's lease included.
const STEP_PATIENCE: Duration = Duration::from_secs(60);

/// The steps, in their order, and how each is seen.
const STEPS: &[(&str, fn(&[Pod]) -> bool)] = &[
    ("a pod of the new revision exists", |pods| pods.iter().any(is_new)),
    ("a pod is told to drain", |pods| pods.iter().any(is_told_to_drain)),
    ("a pod is being ended, or was", |pods| pods.iter().any(is_ending) || old_pods(pods) < 3),
    ("the second pod is told to drain", |pods| old_pods(pods) == 2 && pods.iter().any(is_told_to_drain)),
    ("the last pod is told to drain", |pods| old_pods(pods) == 1 && pods.iter().any(is_told_to_drain)),
];

/// O62: progress is what stands on the pods.
#[tokio::test]
async fn an_operator_killed_at_each_step_of_a_roll_goes_on_from_there() {
    on_site("killed", Company::Shared, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default()).await?;
        let load = site.busy(&Plan::default()).await?;

        site.set_image(V2).await?;
        site.operator.kill().await?;
        for (step, is_seen) in STEPS {
            until(step, STEP_PATIENCE, async || {
                let pods = site.pods().await?;
                ensure!(is_seen(&pods), "{}", serde_json::to_string(&site.status().await?)?);
                Ok(())
            })
            .await?;
            site.operator.kill().await?;
        }

        site.await_settled(V2, ROLL_PATIENCE).await?;
        let verdict = site.verdict(load).await?;
        verdict.untouched()?;
        ensure!(
            verdict.load.moves_per_room_max <= 1,
            "a room moved {} times",
            verdict.load.moves_per_room_max
        );
        Ok(())
    })
    .await;
}

fn is_new(pod: &Pod) -> bool {
    image_of(pod) == Some(V2)
}

fn old_pods(pods: &[Pod]) -> usize {
    pods.iter().filter(|pod| !is_new(pod)).count()
}

fn is_told_to_drain(pod: &Pod) -> bool {
    pod.annotations().contains_key(DRAIN_ANNOTATION)
}

fn is_ending(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}
