//! When clusters are reconciled: on every change of them, of their pods or migrations, when a Kubernetes node is
//! cordoned, silent or back, when the leader claim is taken, and after the time that the last plan named.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, future, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::controller::Action;
use kube::runtime::reflector::store::Writer;
use kube::runtime::{Config, Controller, WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use roomcluster_crds::{RoomCluster, names};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::sentence;
use crate::leader::Claim;
use crate::observe::fingerprint;
use crate::reconcile::{ReconcileError, Reconciler};

/// Clusters that are reconciled at the same time: a cluster whose nodes hang must not hold up the others.
const RECONCILES_AT_ONCE: u16 = 16;
/// Changes that come in a burst, as of a pod that starts, are taken together.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// A reconcile that takes longer hangs somewhere, and is begun anew.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(60);
/// The first wait after a failed reconcile; it doubles with each further one.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest wait after failed reconciles.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Wake-ups of all clusters that may wait to be taken: more say nothing that one does not.
const WAKE_UPS: usize = 1;

/// Runs the watches and the reconciles until told to stop; waits for those that run.
pub async fn run(
    client: Client,
    namespace: Option<String>,
    reconciler: Arc<Reconciler>,
    nodes: Writer<Node>,
    stop: CancellationToken,
) {
    let clusters = api::<RoomCluster>(&client, namespace.as_deref());
    let of_clusters =
        watcher::Config::default().labels(&format!("{}={}", names::MANAGED_BY_LABEL, names::OPERATOR_NAME));
    let (wake, woken) = mpsc::channel(WAKE_UPS);
    let leadership = stream::unfold(reconciler.claim().clone(), |mut claim: Claim| async move {
        claim.acquired().await.map(|()| ((), claim))
    });
    let woken = stream::unfold(woken, |mut woken| async move { woken.recv().await.map(|()| ((), woken)) });
    let stopped = stop.clone();
    let reconciles = Controller::new(clusters, watcher::Config::default())
        .owns(api::<Pod>(&client, namespace.as_deref()), of_clusters.clone())
        .owns(api::<Job>(&client, namespace.as_deref()), of_clusters)
        .reconcile_all_on(leadership)
        .reconcile_all_on(woken)
        .with_config(Config::default().concurrency(RECONCILES_AT_ONCE).debounce(DEBOUNCE))
        .graceful_shutdown_on(async move { stopped.cancelled().await })
        .run(reconcile, retry, reconciler)
        .for_each(|result| {
            if let Err(error) = result {
                tracing::debug!(error = sentence(&error), "reconcile or watch failed");
            }
            future::ready(())
        });
    let watch_nodes = watch_nodes(Api::all(client), nodes, wake);
    tokio::pin!(reconciles);
    tokio::select! {
        biased;
        () = &mut reconciles => return,
        () = watch_nodes => {}
    }
    reconciles.await;
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

async fn reconcile(cluster: Arc<RoomCluster>, reconciler: Arc<Reconciler>) -> Result<Action, ReconcileError> {
    let began_at = Instant::now();
    let result = timeout(RECONCILE_TIMEOUT, reconciler.reconcile(&cluster)).await;
    reconciler.metrics().reconciled(began_at.elapsed());
    result.unwrap_or(Err(ReconcileError::TimedOut(RECONCILE_TIMEOUT)))
}

#[expect(clippy::needless_pass_by_value, reason = "the controller passes them so")]
fn retry(cluster: Arc<RoomCluster>, error: &ReconcileError, reconciler: Arc<Reconciler>) -> Action {
    let failures = reconciler.count_failure(&cluster, error);
    tracing::warn!(
        namespace = cluster.namespace(),
        cluster = cluster.name_any(),
        failures,
        error = sentence(error),
        "reconcile failed"
    );
    Action::requeue(wait_after(failures))
}

fn wait_after(failures: u32) -> Duration {
    RETRY_FIRST.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(RETRY_MAX)
}

/// Keeps the store of Kubernetes nodes, and wakes all clusters when one of them changes in a way that matters.
async fn watch_nodes(nodes: Api<Node>, writer: Writer<Node>, wake: mpsc::Sender<()>) {
    let touched =
        watcher(nodes, watcher::Config::default()).default_backoff().reflect(writer).touched_objects();
    let changes = changes(touched.filter_map(|node| {
        let node = node.inspect_err(|error| {
            tracing::warn!(error = sentence(error), "watch of nodes failed");
        });
        future::ready(node.ok())
    }));
    changes
        .for_each(|()| {
            // A wake-up that already waits covers this one.
            let _already_waiting = wake.try_send(());
            future::ready(())
        })
        .await;
}

/// One item for each change that matters.
fn changes(nodes: impl Stream<Item = Node>) -> impl Stream<Item = ()> {
    let mut known: HashMap<String, (u64, bool)> = HashMap::new();
    nodes.filter_map(move |node| {
        let seen = (fingerprint(&node), node.metadata.deletion_timestamp.is_some());
        let is_change = known.insert(node.name_any(), seen) != Some(seen);
        future::ready(is_change.then_some(()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(unschedulable: bool, heartbeat: &str) -> Node {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": "n", "resourceVersion": heartbeat },
            "spec": { "unschedulable": unschedulable },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_heartbeat_of_a_node_wakes_nobody_and_a_cordon_does() {
        let nodes = stream::iter([node(false, "1"), node(false, "2"), node(true, "3"), node(true, "4")]);
        assert_eq!(changes(nodes).count().await, 2);
    }

    #[test]
    fn the_wait_after_failures_grows_up_to_its_bound() {
        assert_eq!(wait_after(1), RETRY_FIRST);
        assert_eq!(wait_after(3), RETRY_FIRST * 4);
        assert_eq!(wait_after(60), RETRY_MAX);
    }
}
