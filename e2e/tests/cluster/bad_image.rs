//! Templates that cannot run.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::lounge::{Lounge, V1, V2};
use e2e::site::{ROLL_PATIENCE, Site, image_of, is_ready, uid_of};
use e2e::suite::{Company, on_site};
use e2e::traffic::Plan;
use e2e::wait::{throughout, until};

/// An image that no node has, and no registry either.
const MISSING: &str = "roomcluster.local/dataplane:missing";

/// O15, O19.
#[tokio::test]
async fn a_bad_image_costs_at_most_the_surge_pod_and_a_corrected_template_gets_through() {
    on_site("bad-image", Company::Shared, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default()).await?;
        let load = site.busy(&Plan::default()).await?;
        let old: Vec<String> = site.pods().await?.iter().map(uid_of).collect();

        site.set_image(MISSING).await?;
        await_named(site, "dataplane:missing").await?;
        only_the_surge_pod_suffers(site, &old).await?;

        // The image is there, and the process refuses its settings.
        let mut wrong = Lounge::default().image(V2);
        wrong.env.push(("LEASE_TTL", "soon"));
        site.apply(&wrong).await?;
        await_named(site, "CrashLoopBackOff").await?;
        only_the_surge_pod_suffers(site, &old).await?;

        site.apply(&Lounge::default().image(V2)).await?;
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

async fn await_named(site: &Site, word: &str) -> Result<()> {
    until("the status names what is wrong", Duration::from_secs(60), async || {
        let message = site.status().await?.message.unwrap_or_default();
        ensure!(message.contains(word), "it says: {message}");
        Ok(())
    })
    .await
}

async fn only_the_surge_pod_suffers(site: &Site, old: &[String]) -> Result<()> {
    throughout("the old pods are untouched", Duration::from_secs(5), async || {
        let pods = site.pods().await?;
        let serving = pods
            .iter()
            .filter(|pod| old.contains(&uid_of(pod)) && is_ready(pod) && image_of(pod) == Some(V1))
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .count();
        ensure!(serving == old.len(), "{serving} of {} old pods serve", old.len());
        // The broken pod that a corrected one replaces may still be ending.
        let living = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
        ensure!(living <= old.len() + 1, "{living} pods exist beside those that end");
        Ok(())
    })
    .await
}
