//! Real room-service processes for the service suite: started, ordered, paused, killed and asked.

use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roomcluster_proto::node::v1 as node_pb;
use roomcluster_proto::node::v1::node_service_client::NodeServiceClient;
use roomcluster_proto::rooms::v1 as pb;
use roomcluster_proto::rooms::v1::room_service_client::RoomServiceClient;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use crate::http;

/// The token that all nodes of a test share.
pub const TOKEN: &str = "test-token-of-the-nodes";
/// Longest wait for anything that should come.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How a node is started.
#[derive(Debug, Clone)]
pub struct NodeSpec {
    id: String,
    env: Vec<(String, String)>,
}

impl NodeSpec {
    /// A node of that name on those stores.
    pub fn new(id: &str, database_url: &str, redis_url: &str) -> Self {
        let env = [("DATABASE_URL", database_url), ("REDIS_URL", redis_url), ("FAULT_INJECTION", "true")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Self { id: id.to_owned(), env }
    }

    /// Sets one more variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A `dataplane outbox` process, as the sidecar of a pod; killed when dropped.
pub struct OutboxProcess {
    _child: Child,
}

impl OutboxProcess {
    /// Starts a worker on those stores.
    pub fn spawn(database_url: &str, sink_url: &str) -> Result<Self> {
        let mut command = Command::new(dataplane()?);
        command.arg("outbox").env_clear().kill_on_drop(true).stdin(Stdio::null());
        command.env("NODE_ID", "worker").env("DATABASE_URL", database_url).env("REDIS_URL", sink_url);
        command.env("ADMIN_LISTEN", format!("127.0.0.1:{}", free_port()?));
        command.stderr(log_file("outbox")?).env("LOG_FORMAT", "text");
        Ok(Self { _child: command.spawn().context("starting dataplane outbox")? })
    }
}

/// One room-service process.
pub struct Node {
    /// Its node id; its pod UID is `uid-{id}`.
    pub id: String,
    child: Child,
    grpc_port: u16,
    admin_port: u16,
}

impl Node {
    /// Starts a node and waits until it is ready.
    pub async fn ready(spec: NodeSpec) -> Result<Self> {
        let mut node = Self::spawn(spec)?;
        node.wait_ready().await?;
        Ok(node)
    }

    /// Starts a node.
    pub fn spawn(spec: NodeSpec) -> Result<Self> {
        let (grpc_port, admin_port) = (free_port()?, free_port()?);
        let mut command = Command::new(dataplane()?);
        command.arg("room").env_clear().kill_on_drop(true).stdin(Stdio::null());
        command.env("NODE_ID", &spec.id).env("POD_UID", format!("uid-{}", spec.id)).env("NODE_TOKEN", TOKEN);
        command.env("GRPC_LISTEN", format!("127.0.0.1:{grpc_port}"));
        command.env("ADVERTISE_ADDR", format!("127.0.0.1:{grpc_port}"));
        command.env("ADMIN_LISTEN", format!("127.0.0.1:{admin_port}"));
        command
            .stderr(log_file(&spec.id)?)
            .env("LOG_FORMAT", "text")
            .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "info".into()));
        command.envs(spec.env);
        let child = command.spawn().context("starting dataplane room")?;
        Ok(Self { id: spec.id, child, grpc_port, admin_port })
    }

    /// Where it serves gRPC.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc_port)
    }

    /// A fresh client of its public API.
    pub fn rooms(&self) -> Result<RoomServiceClient<Channel>> {
        Ok(RoomServiceClient::new(self.channel()?))
    }

    /// A channel that connects at its first call.
    pub fn channel(&self) -> Result<Channel> {
        Ok(Endpoint::from_shared(self.url())?.connect_timeout(Duration::from_secs(1)).connect_lazy())
    }

    /// Gives an order, with the token.
    pub async fn order(
        &self,
        epoch: u64,
        order: node_pb::Order,
        target: &str,
    ) -> Result<node_pb::NodeStatus> {
        let request = node_pb::SetOrderRequest {
            pod_uid: format!("uid-{}", self.id),
            drain_epoch: epoch,
            order: order.into(),
            target_revision: target.to_owned(),
            target_generation: 1,
        };
        let mut client = NodeServiceClient::new(self.channel()?);
        Ok(client.set_order(authorized(request)?).await?.into_inner())
    }

    /// Its state, with the token.
    pub async fn status(&self) -> Result<node_pb::NodeStatus> {
        let mut client = NodeServiceClient::new(self.channel()?);
        Ok(client.get_node(authorized(node_pb::GetNodeRequest {})?).await?.into_inner())
    }

    /// What it tells from SQL of another node's rooms.
    pub async fn rooms_owned_by(&self, node_id: &str) -> Result<node_pb::RoomsOwnedByResponse> {
        let request = node_pb::RoomsOwnedByRequest { node_id: node_id.to_owned() };
        let mut client = NodeServiceClient::new(self.channel()?);
        Ok(client.rooms_owned_by(authorized(request)?).await?.into_inner())
    }

    /// Asks its admin port; gives the HTTP status and the body.
    pub async fn admin(&self, method: &str, path: &str) -> Result<(u16, String)> {
        http::ask(self.admin_port, method, path).await
    }

    /// Arms a fault point.
    pub async fn arm(&self, point: &str, action: &str) -> Result<()> {
        let (status, body) = self.admin("PUT", &format!("/faults/{point}?action={action}")).await?;
        ensure!(status == 204, "arming {point}: {status} {body}");
        Ok(())
    }

    /// Disarms a fault point.
    pub async fn disarm(&self, point: &str) -> Result<()> {
        let (status, body) = self.admin("DELETE", &format!("/faults/{point}")).await?;
        ensure!(status == 204, "disarming {point}: {status} {body}");
        Ok(())
    }

    /// Waits until it is ready.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let mut last = String::new();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                bail!("node {} ended while it started: {status}", self.id);
            }
            match self.admin("GET", "/healthz/ready").await {
                Ok((200, _)) => return Ok(()),
                Ok((_, body)) => last = body,
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("node {} is not ready: {last}", self.id)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().context("the process has ended")?;
        kill(Pid::from_raw(i32::try_from(pid)?), signal)?;
        Ok(())
    }

    /// Whether the process is stopped (SIGSTOP).
    pub fn is_stopped(&self) -> bool {
        let Some(pid) = self.child.id() else { return false };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:") && line.contains("T ("))
    }

    /// Waits until the process has ended.
    pub async fn wait_end(&mut self) -> Result<ExitStatus> {
        Ok(tokio::time::timeout(PATIENCE * 2, self.child.wait())
            .await
            .context("the process does not end")??)
    }
}

fn authorized<T>(message: T) -> Result<tonic::Request<T>> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse()?);
    request.set_timeout(Duration::from_secs(5));
    Ok(request)
}

/// Waits until a condition holds.
pub async fn eventually<F, Fut>(what: &str, condition: F) -> Result<()>
where
    F: Fn() -> Fut,
    Fut: Future<Output = bool>,
{
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if condition().await {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    bail!("it did not come: {what}")
}

/// The scope of a command.
pub fn scope(room: &str, command_id: &str) -> Option<pb::CommandScope> {
    Some(pb::CommandScope { app_code: "app".into(), room_id: room.into(), command_id: command_id.into() })
}

/// A CreateRoom.
pub fn create(room: &str) -> pb::CreateRoomRequest {
    pb::CreateRoomRequest { scope: scope(room, "create"), owner_user_id: "host".into(), seat_count: 8 }
}

/// A JoinRoom whose command id is `join-{user}`.
pub fn join(room: &str, user: &str) -> pb::JoinRoomRequest {
    pb::JoinRoomRequest { scope: scope(room, &format!("join-{user}")), user_id: user.into() }
}

/// A request with a deadline.
pub fn within<T>(deadline: Duration, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(deadline);
    request
}

/// Joins with retries under the same command id until it is answered; gives the answer and the tries.
pub async fn join_until_answered(node: &Node, room: &str, user: &str) -> Result<(pb::CommandResponse, u32)> {
    let end = Instant::now() + PATIENCE;
    let mut tries = 0;
    let mut last = String::new();
    while Instant::now() < end {
        tries += 1;
        match node.rooms()?.join_room(within(Duration::from_secs(2), join(room, user))).await {
            Ok(response) => return Ok((response.into_inner(), tries)),
            Err(status) => last = format!("{:?}: {}", status.code(), status.message()),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("no answer for {user} in {room} after {tries} tries: {last}")
}

/// The stable reason of an error.
pub fn reason(status: &tonic::Status) -> String {
    use tonic_types::StatusExt;
    status.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}

/// Runs the binary to its end.
pub async fn run_dataplane(args: &[&str], env: &[(&str, &str)]) -> Result<std::process::Output> {
    let mut command = Command::new(dataplane()?);
    command.args(args).env_clear().envs(env.iter().copied()).kill_on_drop(true).stdin(Stdio::null());
    Ok(tokio::time::timeout(PATIENCE * 4, command.output()).await.context("dataplane does not end")??)
}

/// The binary that cargo built beside the tests.
fn dataplane() -> Result<std::path::PathBuf> {
    let mut path = std::env::current_exe()?;
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.push("dataplane");
    ensure!(path.exists(), "{} is not there; run `cargo build -p dataplane` first", path.display());
    Ok(path)
}

/// Logs of nodes are kept for reading after a failure, one file a node, under the temporary directory.
fn log_file(id: &str) -> Result<std::fs::File> {
    let dir = std::env::temp_dir().join(format!("roomcluster-nodes-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let path = dir.join(format!("{:03}-{id}.log", NEXT.fetch_add(1, Ordering::Relaxed)));
    println!("log of node {id}: {}", path.display());
    Ok(std::fs::File::create(path)?)
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
