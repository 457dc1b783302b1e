//! A site: one namespace with stores, an operator, one RoomCluster and its clients.
//!
//! It knows Kubernetes and where things are, and no test. Invariant: whatever a site makes is in its namespace or
//! in its folder of the output, so sites stand side by side.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use roomcluster_crds::{Phase, PodStatus, RoomCluster, RoomClusterStatus, names};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::kubectl::Kubectl;
use crate::lounge::{self, Lounge};
use crate::operator::Operator;
use crate::paths::Paths;
use crate::program;
use crate::traffic::{self, AuditOf, AuditReport, Load, LoadReport, Plan};
use crate::wait::until;

mod diagnosis;

/// Stores that come up from images which are there.
const STORES_PATIENCE: Duration = Duration::from_secs(90);
/// A first start: migration, pods, readiness.
const START_PATIENCE: Duration = Duration::from_secs(120);
/// A roll of three pods.
pub const ROLL_PATIENCE: Duration = Duration::from_secs(180);

/// From a pod's readiness to its place behind the Service, on every node.
const SERVICE_LAG: Duration = Duration::from_secs(2);

/// One namespace and what is in it.
#[derive(Clone)]
pub struct Site {
    /// Its namespace.
    pub name: String,
    /// Where the programs are.
    pub paths: Paths,
    /// `kubectl` in the namespace.
    pub kubectl: Kubectl,
    /// The operator that serves the namespace.
    pub operator: Operator,
    client: Client,
}

/// What a run of clients proved.
#[derive(Debug)]
pub struct Verdict {
    /// What the clients saw.
    pub load: LoadReport,
    /// What the database, the ledger and the sink prove.
    pub audit: AuditReport,
}

impl Verdict {
    /// Nothing lost, nothing done twice, nothing given up, nothing wrong.
    ///
    /// # Errors
    /// With all that is not so.
    pub fn untouched(&self) -> Result<()> {
        let Self { load, audit } = self;
        let clean = load.client_errors == 0 && load.wrong_answers == 0 && load.read_errors == 0;
        ensure!(clean && self.is_safe(), "users noticed: {load:#?}\n{audit:#?}");
        ensure!(load.commands_acked > 0, "nothing was done: {load:#?}");
        Ok(())
    }

    /// Nothing lost and nothing done twice; clients may have been refused.
    ///
    /// # Errors
    /// With all that is not so.
    pub fn safe(&self) -> Result<()> {
        ensure!(self.is_safe() && self.load.wrong_answers == 0, "{:#?}\n{:#?}", self.audit, self.load);
        ensure!(self.load.commands_acked > 0, "nothing was done: {:#?}", self.load);
        Ok(())
    }

    fn is_safe(&self) -> bool {
        let audit = &self.audit;
        audit.audit == "pass"
            && audit.commands_lost == 0
            && audit.commands_doubled == 0
            && audit.events_missing == 0
    }
}

impl Site {
    /// Makes the namespace anew, with stores that answer. No operator yet, and no RoomCluster.
    ///
    /// # Errors
    /// When something does not come up.
    pub async fn open(name: &str, paths: &Paths) -> Result<Self> {
        let client = Client::try_default().await.context("reach the cluster")?;
        let site = Self {
            name: name.to_owned(),
            paths: paths.clone(),
            kubectl: Kubectl::new(name),
            operator: Operator::new(name),
            client,
        };
        site.close().await?;
        site.kubectl.run(&["create", "namespace", name]).await?;
        for manifest in ["stores.yaml", "sink.yaml"] {
            let path = paths.manifest(manifest);
            let text =
                tokio::fs::read_to_string(&path).await.with_context(|| format!("read {}", path.display()))?;
            site.kubectl.apply(&text).await?;
        }
        site.await_stores().await?;
        Ok(site)
    }

    /// Waits until the stores answer, as seen from the clients.
    ///
    /// # Errors
    /// When they do not.
    pub async fn await_stores(&self) -> Result<()> {
        until("the stores answer", STORES_PATIENCE, async || {
            for store in ["redis", "sink"] {
                let host = format!("{store}.{}", self.name);
                let pong =
                    program::run("redis-cli", &["-h", &host, "ping"], "", Duration::from_secs(5)).await?;
                ensure!(pong.ok()?.trim() == "PONG", "{store} does not answer");
            }
            let host = format!("--host=mariadb.{}", self.name);
            let args = [host.as_str(), "--user=rooms", "--password=rooms", "rooms", "--execute=select 1"];
            program::run("mariadb", &args, "", Duration::from_secs(5)).await?.ok()
        })
        .await?;
        Ok(())
    }

    /// Takes the namespace away with all that is in it.
    ///
    /// # Errors
    /// When it stays.
    pub async fn close(&self) -> Result<()> {
        let args = ["delete", "namespace", &self.name, "--ignore-not-found", "--wait=false"];
        self.kubectl.run(&args).await?;
        until("the namespace is gone", Duration::from_secs(120), async || {
            let found = self.kubectl.run(&["get", "namespace", &self.name, "--ignore-not-found"]).await?;
            if !found.trim().is_empty() {
                // Nobody needs the rest of a grace period here.
                let args =
                    ["delete", "pods", "--all", "--grace-period=1", "--wait=false", "--ignore-not-found"];
                self.kubectl.attempt(&args, "").await?;
            }
            ensure!(found.trim().is_empty(), "{found}");
            Ok(())
        })
        .await
    }

    /// The folder for this site's files.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.paths.output().join(&self.name)
    }

    // ---- the RoomCluster ------------------------------------------------------------------------------------

    fn clusters(&self) -> Api<RoomCluster> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Pods by name.
    #[must_use]
    pub fn pod_api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// The client of the API server.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Applies the RoomCluster as a user does.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn apply(&self, lounge: &Lounge) -> Result<()> {
        self.kubectl.apply(&lounge.manifest().to_string()).await?;
        Ok(())
    }

    /// Applies it and waits until all is as asked for.
    ///
    /// # Errors
    /// When it does not become so.
    pub async fn settle(&self, lounge: &Lounge) -> Result<()> {
        self.apply(lounge).await?;
        self.await_settled(&lounge.image, START_PATIENCE).await
    }

    /// Changes the spec by a merge patch.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn patch(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.clusters()
            .patch(lounge::NAME, &PatchParams::default(), &patch)
            .await
            .context("patch the RoomCluster")?;
        Ok(())
    }

    /// Changes the image, as `kubectl set image` would.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn set_image(&self, image: &str) -> Result<()> {
        let patch =
            json!([{ "op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image }]);
        let patch = patch.to_string();
        self.kubectl.run(&["patch", "roomcluster", lounge::NAME, "--type=json", "--patch", &patch]).await?;
        Ok(())
    }

    /// The RoomCluster as it is.
    ///
    /// # Errors
    /// When there is none.
    pub async fn cluster(&self) -> Result<RoomCluster> {
        self.clusters().get(lounge::NAME).await.context("read the RoomCluster")
    }

    /// What the operator reports; empty before it has.
    ///
    /// # Errors
    /// When there is no RoomCluster.
    pub async fn status(&self) -> Result<RoomClusterStatus> {
        Ok(self.cluster().await?.status.unwrap_or_default())
    }

    /// What the operator reports of one pod.
    ///
    /// # Errors
    /// When it does not speak of it.
    pub async fn pod_status(&self, pod: &str) -> Result<PodStatus> {
        let status = self.status().await?;
        status.pods.into_iter().find(|each| each.name == pod).with_context(|| format!("no word about {pod}"))
    }

    /// The pods that hold rooms, oldest first, those that are being ended included.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        let params = ListParams::default().labels(&names::pod_selector(lounge::NAME));
        let mut pods = self.pod_api().list(&params).await.context("list the pods")?.items;
        pods.sort_by_key(|pod| (pod.creation_timestamp(), pod.name_any()));
        Ok(pods)
    }

    /// Waits until pods, image and report are all as the spec asks, and nothing else is left.
    ///
    /// # Errors
    /// When they do not become so.
    pub async fn await_settled(&self, image: &str, within: Duration) -> Result<()> {
        until("the RoomCluster is as asked for", within, async || self.is_settled(image).await).await
    }

    /// Whether all is as the spec asks.
    ///
    /// # Errors
    /// With what is not.
    pub async fn is_settled(&self, image: &str) -> Result<()> {
        let cluster = self.cluster().await?;
        let (wanted, status) = (cluster.spec.replicas, cluster.status.unwrap_or_default());
        let report = || serde_json::to_string(&status).unwrap_or_default();
        ensure!(status.observed_generation == cluster.metadata.generation, "not yet seen: {}", report());
        ensure!(status.phase == Some(Phase::Ready), "not Ready: {}", report());
        ensure!(
            status.ready_replicas == wanted && status.updated_replicas == wanted,
            "replicas: {}",
            report()
        );
        let pods = self.pods().await?;
        ensure!(pods.len() == wanted as usize, "{} pods exist, {wanted} are asked for", pods.len());
        for pod in &pods {
            let name = pod.name_any();
            ensure!(image_of(pod) == Some(image), "{name} runs {:?}", image_of(pod));
            ensure!(pod.metadata.deletion_timestamp.is_none(), "{name} is being ended");
            ensure!(is_ready(pod), "{name} is not ready");
        }
        Ok(())
    }

    // ---- clients --------------------------------------------------------------------------------------------

    /// Where clients find the rooms.
    #[must_use]
    pub fn target(&self) -> String {
        format!("http://{}.{}:{}", lounge::NAME, self.name, names::GRPC_PORT)
    }

    /// Starts clients.
    ///
    /// # Errors
    /// When they cannot be started.
    pub async fn load(&self, name: &str, plan: &Plan) -> Result<Load> {
        Load::start(self.paths.dataplane(), &self.folder(), name, &self.target(), plan).await
    }

    /// Starts clients and waits until each room answers.
    ///
    /// # Errors
    /// When one does not.
    pub async fn busy(&self, plan: &Plan) -> Result<Load> {
        // kube-proxy gathers changes for a second: before that, all connections would end at the first pod.
        sleep(SERVICE_LAG).await;
        let mut load = self.load("load", plan).await?;
        load.await_rooms(plan.rooms).await?;
        Ok(load)
    }

    /// Stops the clients and proves what became of their commands.
    ///
    /// # Errors
    /// When it cannot be told.
    pub async fn verdict(&self, load: Load) -> Result<Verdict> {
        let ledger = load.ledger();
        let load = load.stop().await?;
        let audit = self.audit(&[ledger]).await?;
        Ok(Verdict { load, audit })
    }

    /// Audits all that was done here, with every ledger of it.
    ///
    /// # Errors
    /// When it cannot be told.
    pub async fn audit(&self, ledgers: &[PathBuf]) -> Result<AuditReport> {
        let of = AuditOf {
            database_url: &format!("mysql://rooms:rooms@mariadb.{}:3306/rooms", self.name),
            sink: &format!("redis://sink.{}:6379/0", self.name),
            ledgers,
            report: self.folder().join("audit.json"),
        };
        traffic::audit(self.paths.dataplane(), &of).await
    }

    // ---- faults ---------------------------------------------------------------------------------------------

    /// Switches a fault on in a pod.
    ///
    /// # Errors
    /// When the pod does not take it.
    pub async fn put_fault(&self, pod: &Pod, point: &str, action: &str) -> Result<()> {
        self.admin("PUT", pod, &format!("faults/{point}?action={action}")).await?;
        Ok(())
    }

    /// Switches it off.
    ///
    /// # Errors
    /// When the pod does not answer.
    pub async fn clear_fault(&self, pod: &Pod, point: &str) -> Result<()> {
        self.admin("DELETE", pod, &format!("faults/{point}")).await?;
        Ok(())
    }

    /// What a pod counts.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn metrics(&self, pod: &Pod) -> Result<String> {
        self.admin("GET", pod, "metrics").await
    }

    async fn admin(&self, method: &str, pod: &Pod, path: &str) -> Result<String> {
        let url = format!("http://{}:{}/{path}", ip_of(pod)?, names::ADMIN_PORT);
        let args = ["-sS", "--fail-with-body", "-X", method, "--max-time", "5", &url];
        program::run("curl", &args, "", Duration::from_secs(10)).await?.ok()
    }

    /// A command of the Redis that holds the leases.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn redis(&self, command: &[&str]) -> Result<String> {
        let host = format!("redis.{}", self.name);
        let args: Vec<&str> = ["-h", host.as_str()].iter().chain(command).copied().collect();
        program::run("redis-cli", &args, "", Duration::from_secs(5)).await?.ok()
    }

    /// Rooms that the database still gives to a pod: the truth, whatever the operator believes.
    ///
    /// # Errors
    /// When it does not answer, or not with a number.
    pub async fn unreleased_rooms(&self, pod: &str) -> Result<u64> {
        let host = format!("--host=mariadb.{}", self.name);
        let query = format!(
            "SELECT COUNT(*) FROM room_owner WHERE owner_node_id = '{pod}' AND released_at_ms IS NULL"
        );
        let args =
            [&host, "--user=rooms", "--password=rooms", "--skip-column-names", "rooms", "--execute", &query];
        let answer = program::run("mariadb", &args, "", Duration::from_secs(5)).await?.ok()?;
        answer.trim().parse().with_context(|| format!("no count: {answer}"))
    }
}

/// Image of the room container.
#[must_use]
pub fn image_of(pod: &Pod) -> Option<&str> {
    let containers = &pod.spec.as_ref()?.containers;
    containers.iter().find(|each| each.name == names::ROOM_CONTAINER)?.image.as_deref()
}

/// Whether the pod takes traffic.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Address of the pod.
///
/// # Errors
/// When it has none yet.
pub fn ip_of(pod: &Pod) -> Result<String> {
    let ip = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
    ip.with_context(|| format!("{} has no address", pod.name_any()))
}

/// UID of the pod.
#[must_use]
pub fn uid_of(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}
