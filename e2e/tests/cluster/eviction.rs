//! Evictions, as autoscalers and `kubectl drain` ask for them.

use anyhow::{Context, Result, bail, ensure};
use e2e::kubectl::Eviction;
use e2e::lounge::{Lounge, V2};
use e2e::site::{ROLL_PATIENCE, Site};
use e2e::suite::{Company, on_site};
use e2e::traffic::Plan;
use e2e::wait::until;
use kube::ResourceExt;

/// P6. The known trap of disruption budgets: a surge pod, or a pod that is not ready, makes room for an eviction.
#[tokio::test]
async fn the_eviction_of_a_pod_with_rooms_is_refused_whatever_the_others_do() {
    on_site("evicted", Company::Shared, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default().with_faults()).await?;
        let load = site.busy(&Plan::default()).await?;
        let old = site.pods().await?;
        for pod in &old {
            refused(site, &pod.name_any()).await.context("all pods are ready")?;
            site.put_fault(pod, "snapshot.flush", "hang").await?;
        }

        site.set_image(V2).await?;
        let draining = until("a pod evacuates, beside a surge pod", ROLL_PATIENCE, async || {
            let status = site.status().await?;
            let pod = status.pods.into_iter().find(|pod| pod.drain.is_some()).context("none drains")?;
            ensure!(pod.rooms.is_some_and(|rooms| rooms > 0), "{pod:?}");
            Ok(pod.name)
        })
        .await?;
        ensure!(site.pods().await?.len() > old.len(), "there is no surge pod");
        let with_rooms = pods_with_rooms(site).await?;
        ensure!(with_rooms.contains(&draining) && with_rooms.len() > 1, "only {with_rooms:?} have rooms");
        for pod in &with_rooms {
            refused(site, pod).await.context(format!("{draining} evacuates"))?;
        }

        // Another pod ends meanwhile: one more that is not healthy.
        let ending = with_rooms.iter().find(|pod| **pod != draining).context("one pod has all rooms")?;
        site.kubectl.run(&["delete", "pod", ending, "--wait=false"]).await?;
        for pod in with_rooms.iter().filter(|pod| *pod != ending) {
            refused(site, pod).await.context(format!("{ending} ends"))?;
        }

        for pod in &old {
            // One of them is ending.
            let _ = site.clear_fault(pod, "snapshot.flush").await;
        }
        site.await_settled(V2, ROLL_PATIENCE).await?;
        site.verdict(load).await?.safe()
    })
    .await;
}

async fn pods_with_rooms(site: &Site) -> Result<Vec<String>> {
    let pods = site.status().await?.pods;
    Ok(pods.into_iter().filter(|pod| pod.rooms.is_some_and(|rooms| rooms > 0)).map(|pod| pod.name).collect())
}

async fn refused(site: &Site, pod: &str) -> Result<()> {
    match site.kubectl.evict(pod).await? {
        Eviction::Refused(_) => Ok(()),
        Eviction::Granted => bail!("the eviction of {pod} was granted"),
    }
}
