//! Pods that go although the operator did not ask them to.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::lounge::{Lounge, NAME, V1};
use e2e::program;
use e2e::site::{ROLL_PATIENCE, Site, uid_of};
use e2e::suite::{Company, on_site};
use e2e::traffic::Plan;
use e2e::wait::until;
use kube::ResourceExt;
use roomcluster_crds::names;

/// O47: no controller is asked, so SIGTERM alone must do.
#[tokio::test]
async fn deleting_a_pod_under_load_loses_nothing() {
    on_site("pod-deleted", Company::Shared, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default()).await?;
        let load = site.busy(&Plan::default()).await?;
        let victim = site.pods().await?.into_iter().next().context("there is no pod")?;

        site.kubectl.run(&["delete", "pod", &victim.name_any(), "--wait=false"]).await?;
        until("the pod is gone", ROLL_PATIENCE, async || {
            let pods = site.pods().await?;
            ensure!(!pods.iter().any(|pod| uid_of(pod) == uid_of(&victim)), "it is still there");
            Ok(())
        })
        .await?;

        site.await_settled(V1, ROLL_PATIENCE).await?;
        site.verdict(load).await?.untouched()
    })
    .await;
}

/// O36, O45: the cordon begins the drain, and the operator ends it.
#[tokio::test]
async fn draining_a_node_under_load_loses_nothing_and_comes_to_its_end() {
    on_site("node-drained", Company::Alone, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default()).await?;
        let load = site.busy(&Plan::default()).await?;
        let pods = site.pods().await?;
        let node =
            pods.first().and_then(|pod| pod.spec.as_ref()?.node_name.clone()).context("no pod has a node")?;

        let drained = drain(site, &node).await;
        let settled = site.await_settled(V1, ROLL_PATIENCE).await;
        site.kubectl.run(&["uncordon", &node]).await?;
        drained?;
        settled?;

        for pod in site.pods().await? {
            let here = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            ensure!(here != Some(node.as_str()), "{} is on the node that was drained", pod.name_any());
        }
        site.verdict(load).await?.untouched()
    })
    .await;
}

/// The stores stay: their data would go with their pods.
async fn drain(site: &Site, node: &str) -> Result<()> {
    let selector = format!("--pod-selector={}", names::pod_selector(NAME));
    let args = [
        "--namespace",
        &site.name,
        "drain",
        node,
        &selector,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout=150s",
    ];
    program::run("kubectl", &args, "", Duration::from_secs(170)).await?.ok()?;
    Ok(())
}
