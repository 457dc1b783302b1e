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
        for pod in &old {
            refused(site, &pod.name_any()).await.context(format!("{draining} evacuates"))?;
        }

        // Another pod fails meanwhile: one more that is not healthy.
        let broken =
            old.iter().find(|pod| pod.name_any() != draining).context("there is one pod only")?.name_any();
        site.kubectl.run(&["delete", "pod", &broken, "--wait=false"]).await?;
        for pod in old.iter().filter(|pod| pod.name_any() != broken) {
            refused(site, &pod.name_any()).await.context(format!("{broken} ends"))?;
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

async fn refused(site: &Site, pod: &str) -> Result<()> {
    match site.kubectl.evict(pod).await? {
        Eviction::Refused(_) => Ok(()),
        Eviction::Granted => bail!("the eviction of {pod} was granted"),
    }
}
