//! Installing, upgrading and removing the operator.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::lounge::{Lounge, V1};
use e2e::operator::{RELEASE, SELECTOR, Scope};
use e2e::site::{Site, uid_of};
use e2e::suite::{Company, on_site};
use e2e::traffic::Plan;
use e2e::wait::{throughout, until};

/// Longer than the operator's pause when all is quiet.
const QUIET: Duration = Duration::from_secs(12);

#[tokio::test]
async fn an_operator_upgrade_that_changes_nothing_the_user_wrote_rolls_nothing() {
    on_site("same", Company::Shared, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default()).await?;
        let load = site.busy(&Plan::default()).await?;
        let before = uids(site).await?;
        let leader = leader(site).await?;

        let next = ["image.tag=e2e-next", "podAnnotations.release=next"];
        site.operator.install(&site.paths, Scope::Namespace, &next).await?;
        until("the new operator leads", Duration::from_secs(60), async || {
            let now = self::leader(site).await?;
            ensure!(now != leader && !now.is_empty(), "{now} leads");
            Ok(())
        })
        .await?;

        throughout("the pods stay as they are", QUIET, async || {
            ensure!(uids(site).await? == before, "pods were replaced");
            site.is_settled(V1).await
        })
        .await?;
        let verdict = site.verdict(load).await?;
        verdict.untouched()?;
        ensure!(verdict.load.moves_total == 0, "{} rooms moved", verdict.load.moves_total);
        Ok(())
    })
    .await;
}

/// O65. With the chart's own scope: it brings the definition of the resource.
#[tokio::test]
async fn helm_uninstall_leaves_room_clusters_and_their_pods_alone() {
    on_site("uninstalled", Company::Alone, async |site: &Site| -> Result<()> {
        site.operator.uninstall().await?;
        // The chart is to bring the definition: it does not take over one that others have applied.
        site.kubectl.run(&["delete", "crd", "roomclusters.roomcluster.dev", "--timeout=30s"]).await?;
        site.operator.install(&site.paths, Scope::Cluster, &[]).await?;
        site.settle(&Lounge::default()).await?;
        let mut load = site.busy(&Plan::default()).await?;
        let before = uids(site).await?;

        site.operator.uninstall().await?;
        throughout("RoomCluster and pods stay", QUIET, async || {
            site.cluster().await?;
            ensure!(uids(site).await? == before, "pods were ended");
            load.await_more().await
        })
        .await?;

        site.operator.install(&site.paths, Scope::Cluster, &[]).await?;
        throughout("the operator takes them up as they are", QUIET, async || {
            ensure!(uids(site).await? == before, "pods were replaced");
            Ok(())
        })
        .await?;
        site.is_settled(V1).await?;
        let verdict = site.verdict(load).await?;
        verdict.untouched()?;
        ensure!(verdict.load.moves_total == 0, "{} rooms moved", verdict.load.moves_total);
        Ok(())
    })
    .await;
}

async fn uids(site: &Site) -> Result<Vec<String>> {
    Ok(site.pods().await?.iter().map(uid_of).collect())
}

/// Who holds the lease, of the pods that exist.
async fn leader(site: &Site) -> Result<String> {
    let holder =
        site.kubectl.run(&["get", "leases", "-o", "jsonpath={.items[*].spec.holderIdentity}"]).await?;
    let pods = site.kubectl.run(&["get", "pods", "-l", SELECTOR, "-o", "name"]).await?;
    ensure!(!holder.is_empty(), "nobody leads {RELEASE}; pods:\n{pods}");
    Ok(holder)
}
