//! Rooms that do not let go of their pod.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::lounge::{Lounge, NAME, V2};
use e2e::site::{ROLL_PATIENCE, Site, uid_of};
use e2e::suite::{Company, on_site};
use e2e::traffic::Plan;
use e2e::wait::{throughout, until};
use kube::ResourceExt;

/// P6. O1, O5, O22, O40: a pod is never ended on hope, and an admin can see what the roll waits for.
#[tokio::test]
async fn a_pod_whose_rooms_do_not_let_go_is_not_ended_and_they_still_answer() {
    on_site("stuck", Company::Shared, async |site: &Site| -> Result<()> {
        site.settle(&Lounge::default().with_faults()).await?;
        let mut load = site.busy(&Plan::default()).await?;
        let old = site.pods().await?;
        for pod in &old {
            site.put_fault(pod, "snapshot.flush", "hang").await?;
        }

        site.set_image(V2).await?;
        let (stuck, reason) =
            until("a pod is said to be stuck", ROLL_PATIENCE, async || blocked(site).await).await?;
        let pod = old.iter().find(|pod| pod.name_any() == stuck).context("a new pod is drained")?;
        ensure!(reason.contains("SnapshotFlush"), "the reason is not told: {reason}");

        throughout("the pod stays, and its rooms answer", Duration::from_secs(8), async || {
            let now = site.pod_api().get(&stuck).await?;
            ensure!(
                uid_of(&now) == uid_of(pod) && now.metadata.deletion_timestamp.is_none(),
                "{stuck} was ended"
            );
            let progress = load.progress().await?;
            ensure!(
                progress.owners.get(&stuck).is_some_and(|rooms| *rooms > 0),
                "its rooms left: {progress:?}"
            );
            ensure!(progress.client_errors == 0, "{progress:?}");
            Ok(())
        })
        .await?;
        load.await_more().await?;
        let others_drain = site.status().await?.draining_replicas;
        ensure!(others_drain == 1, "{others_drain} pods drain at once");

        let message = site.status().await?.message.unwrap_or_default();
        ensure!(message.contains(&stuck), "the status does not name the pod: {message}");
        let events = site
            .kubectl
            .run(&["get", "events", "-o", "jsonpath={range .items[*]}{.message}{'\\n'}{end}"])
            .await?;
        ensure!(
            events.lines().any(|event| event.contains(&stuck) && event.contains("SnapshotFlush")),
            "no event of {NAME} names the pod and the reason:\n{events}"
        );
        let log = site.operator.log().await?;
        ensure!(
            log.lines().any(|line| line.contains(&stuck) && line.contains("SnapshotFlush")),
            "the operator's log does not name the pod and the reason"
        );

        for pod in &old {
            // Those that a release of the first pod has let go on may be gone meanwhile.
            let _ = site.clear_fault(pod, "snapshot.flush").await;
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

/// The pod that is drained and not ended, and the reason.
async fn blocked(site: &Site) -> Result<(String, String)> {
    let status = site.status().await?;
    let pod = status.pods.into_iter().find_map(|pod| Some((pod.name, pod.drain?.blocked_by?)));
    let (name, reason) = pod.context("no pod is blocked")?;
    ensure!(reason.contains("SnapshotFlush"), "{name} is blocked by {reason}");
    Ok((name, reason))
}
