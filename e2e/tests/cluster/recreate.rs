//! No pod is left, and then there are some again.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::lounge::{Lounge, NAME, V1};
use e2e::site::{ROLL_PATIENCE, Site};
use e2e::suite::{Company, on_site};
use e2e::traffic::{Load, Plan};
use e2e::wait::until;
use serde_json::json;

/// Every pod ends at once, so clients must be refused in the end; nothing may be lost for that.
#[tokio::test]
async fn a_room_cluster_deleted_under_load_and_made_again_has_all_its_rooms() {
    on_site("deleted", Company::Shared, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default()).await?;
        let load = site.busy(&Plan::default()).await?;

        site.kubectl.run(&["delete", "roomcluster", NAME, "--timeout=20s"]).await?;
        await_no_pods(site).await?;

        comes_back(site, load, async || site.settle(&Lounge::default()).await).await
    })
    .await;
}

/// Also the last pod ends: there is no successor to wait for.
#[tokio::test]
async fn a_room_cluster_scaled_to_zero_and_back_has_all_its_rooms() {
    on_site("zero", Company::Shared, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default()).await?;
        let load = site.busy(&Plan::default()).await?;

        site.patch(json!({ "replicas": 0 })).await?;
        await_no_pods(site).await?;

        comes_back(site, load, async || {
            site.patch(json!({ "replicas": 3 })).await?;
            site.await_settled(V1, ROLL_PATIENCE).await
        })
        .await
    })
    .await;
}

async fn await_no_pods(site: &Site) -> Result<()> {
    until("no pod is left", Duration::from_secs(90), async || {
        let left = site.pods().await?.len();
        ensure!(left == 0, "{left} pods are left");
        Ok(())
    })
    .await
}

/// The rooms answer again, and both runs of clients find all that they were told.
async fn comes_back(site: &Site, load: Load, bring_back: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    let first_ledger = load.ledger();
    let first = load.stop().await?;
    ensure!(first.commands_acked > 0 && first.wrong_answers == 0, "{first:#?}");

    bring_back().await?;
    let mut load = site.load("again", &Plan::default()).await?;
    load.await_rooms(Plan::default().rooms).await?;
    let second_ledger = load.ledger();
    let second = load.stop().await?;
    ensure!(second.client_errors == 0 && second.wrong_answers == 0, "{second:#?}");

    let audit = site.audit(&[first_ledger, second_ledger]).await?;
    ensure!(audit.audit == "pass" && audit.commands_lost == 0 && audit.commands_doubled == 0, "{audit:#?}");
    Ok(())
}
