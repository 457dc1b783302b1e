//! The lease store forgets, or is gone, in the middle of a roll.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::lounge::{Lounge, V1, V2};
use e2e::site::{ROLL_PATIENCE, Site, image_of};
use e2e::suite::{Company, on_site};
use e2e::traffic::Plan;
use e2e::wait::{throughout, until};
use kube::ResourceExt;

/// How long Redis is away.
const AWAY: Duration = Duration::from_secs(30);

/// P8. O1, O3: what Redis forgets moves no room.
#[tokio::test]
async fn redis_wiped_in_the_middle_of_a_roll_moves_no_room_twice_and_ends_no_pod_with_rooms() {
    on_site("wiped", Company::Shared, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default()).await?;
        let load = site.busy(&Plan::default()).await?;
        site.set_image(V2).await?;
        await_first_pod_replaced(site).await?;

        site.redis(&["FLUSHALL"]).await?;

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

/// P8, P9. O1, O22.
#[tokio::test]
async fn redis_away_for_half_a_minute_in_the_middle_of_a_roll_delays_it_and_harms_nobody() {
    on_site("away", Company::Shared, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default()).await?;
        let mut load = site.busy(&Plan::default()).await?;
        site.set_image(V2).await?;
        await_first_pod_replaced(site).await?;
        let restarts = restarts(site).await?;

        site.kubectl.run(&["scale", "deployment/redis", "--replicas=0"]).await?;
        throughout("no pod with rooms is ended, and clients go on", AWAY, async || {
            ended_pods_were_empty(site).await?;
            load.await_more().await
        })
        .await?;
        site.kubectl.run(&["scale", "deployment/redis", "--replicas=1"]).await?;

        site.await_settled(V2, ROLL_PATIENCE).await?;
        ensure!(self::restarts(site).await? <= restarts, "a container was restarted because Redis was away");
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

async fn await_first_pod_replaced(site: &Site) -> Result<()> {
    until("the first pod is replaced", ROLL_PATIENCE, async || {
        let old = site.pods().await?.iter().filter(|pod| image_of(pod) == Some(V1)).count();
        ensure!(old < 3, "{old} pods of the old revision");
        Ok(())
    })
    .await
}

/// A pod that is being ended owns no room in the database.
async fn ended_pods_were_empty(site: &Site) -> Result<()> {
    for pod in site.pods().await?.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
        let (name, rooms) = (pod.name_any(), site.unreleased_rooms(&pod.name_any()).await?);
        ensure!(rooms == 0, "{name} is being ended and owns {rooms} rooms");
    }
    Ok(())
}

async fn restarts(site: &Site) -> Result<i32> {
    let pods = site.pods().await?;
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref());
    Ok(statuses.flatten().map(|container| container.restart_count).sum())
}
