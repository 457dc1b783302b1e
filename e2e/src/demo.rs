//! The demo: a roll from v1 to v2 under load, shown live, and its report.
//!
//! It acts as a user does: installs the chart, applies a RoomCluster, changes its image. The cluster is there
//! already, with the images in it.

mod report;
mod view;

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join;
use kube::ResourceExt;
use tokio::time::{Instant, sleep};

use crate::lounge::{Lounge, V1, V2};
use crate::operator::{Operator, Scope};
use crate::paths::Paths;
use crate::site::{ROLL_PATIENCE, Site, image_of, uid_of};
use crate::traffic::{Load, Plan};
use report::Report;
use view::{PodRow, Screen, Snapshot};

/// Rooms that clients use; a tenth of them so often that a pause can be measured.
const PLAN: Plan = Plan { rooms: 300, prefix: "room-", rate: 270, hot_rooms: 30, hot_rate: 20 };
/// Pods of the RoomCluster.
const PODS: u32 = 3;
/// Load before the roll, and after it.
const STEADY: Duration = Duration::from_secs(3);
/// Between two looks at the roll.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Runs it, prints the report and leaves it in the output folder.
///
/// # Errors
/// When a step fails, or a promise was not kept.
pub async fn run() -> Result<()> {
    let began = Instant::now();
    let say = |text: &str| println!("demo: {:5.1} s  {text}", began.elapsed().as_secs_f64());
    let paths = Paths::from_env()?;
    let path = paths.output().join("report.json");
    tokio::fs::create_dir_all(paths.output()).await.context("make the output folder")?;
    // Whoever finds a report there finds that of this run.
    if let Err(error) = tokio::fs::remove_file(&path).await
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error).with_context(|| format!("remove the old {}", path.display()));
    }

    say("installs the chart of the operator, MariaDB and Redis");
    let operator = Operator::new("roomcluster-system");
    let ((), site) =
        try_join(operator.install(&paths, Scope::Cluster, &[]), Site::open("demo", &paths)).await?;
    say("applies a RoomCluster of three pods, image v1");
    let outcome = roll(&site, &say).await;
    let (pods_rolled, load) = match outcome {
        Ok(rolled) => rolled,
        Err(error) => {
            eprintln!("{}", site.diagnose().await);
            return Err(error);
        }
    };
    say("stops the clients and audits database, ledger and events");
    let verdict = site.verdict(load).await?;
    let report = Report::new(pods_rolled, PLAN.rooms, &verdict);
    let text = serde_json::to_string_pretty(&report).context("write the report as JSON")? + "\n";
    tokio::fs::write(&path, text).await.with_context(|| format!("write {}", path.display()))?;
    println!();
    for line in report.lines() {
        println!("  {line}");
    }
    println!("\ndemo: {:5.1} s  the report is in {}", began.elapsed().as_secs_f64(), path.display());
    for problem in &verdict.load.problems {
        println!("demo: a client says: {problem}");
    }
    for violation in &verdict.audit.violations {
        println!("demo: the audit says: {violation}");
    }
    report.promises_kept(PODS as usize)
}

/// Brings the cluster up, rolls it under load, and returns how many pods were replaced, with the clients at work.
async fn roll(site: &Site, say: &impl Fn(&str)) -> Result<(usize, Load)> {
    let lounge = Lounge::default().replicas(PODS);
    site.settle(&lounge).await?;
    say("starts clients on 300 rooms, 30 of them at 20 commands a second");
    let mut load = site.busy(&PLAN).await?;
    sleep(STEADY).await;
    let before: Vec<String> = site.pods().await?.iter().map(uid_of).collect();
    say("changes the image from v1 to v2");
    site.set_image(V2).await?;
    watch(site, &mut load).await?;
    sleep(STEADY).await;
    let after = site.pods().await?;
    let left = after.iter().filter(|pod| before.contains(&uid_of(pod)) || image_of(pod) == Some(V1)).count();
    Ok((before.len() - left, load))
}

/// Shows the roll until it is over.
async fn watch(site: &Site, load: &mut Load) -> Result<()> {
    let began = Instant::now();
    let mut screen = Screen::new();
    loop {
        let snapshot = look(site, load, began).await?;
        screen.show(&snapshot);
        match site.is_settled(V2).await {
            Ok(()) => return Ok(()),
            Err(error) if began.elapsed() > ROLL_PATIENCE => {
                return Err(error).context("the roll does not end");
            }
            Err(_) => sleep(LOOK_EVERY).await,
        }
    }
}

async fn look(site: &Site, load: &mut Load, began: Instant) -> Result<Snapshot> {
    let status = site.status().await?;
    let pods = site
        .pods()
        .await?
        .iter()
        .map(|pod| PodRow {
            name: pod.name_any(),
            tag: image_of(pod).and_then(|image| image.rsplit(':').next()).unwrap_or("-").to_owned(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_else(|| "-".to_owned()),
            reported: status.pods.iter().find(|reported| reported.name == pod.name_any()).cloned(),
        })
        .collect();
    Ok(Snapshot { elapsed_s: began.elapsed().as_secs_f64(), status, pods, clients: load.progress().await? })
}
