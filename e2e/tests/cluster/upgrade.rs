//! The main job.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::lounge::{Lounge, V2};
use e2e::site::{ROLL_PATIENCE, Site, uid_of};
use e2e::suite::{Company, on_site};
use e2e::traffic::Plan;
use tokio::time::sleep;

/// P1–P7.
#[tokio::test]
async fn an_upgrade_under_load_loses_nothing_and_moves_each_room_at_most_once() {
    on_site("upgrade", Company::Shared, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default()).await?;
        let plan = Plan { rooms: 100, ..Plan::default() };
        let load = site.busy(&plan).await?;
        let before: Vec<String> = site.pods().await?.iter().map(uid_of).collect();

        site.set_image(V2).await?;
        site.await_settled(V2, ROLL_PATIENCE).await?;

        sleep(Duration::from_secs(2)).await;
        let after = site.pods().await?;
        ensure!(after.iter().all(|pod| !before.contains(&uid_of(pod))), "a pod was not replaced");
        let verdict = site.verdict(load).await?;
        verdict.untouched()?;
        let load = &verdict.load;
        ensure!(load.moves_per_room_max <= 1, "a room moved {} times", load.moves_per_room_max);
        ensure!(load.rooms_moved > 0, "no room was on a pod that was replaced: the roll proves nothing");
        Ok(())
    })
    .await;
}
