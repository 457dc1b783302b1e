//! `dataplane pre-stop`: the pod's preStop hook, as the binary itself, so that the image needs no shell.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Args;
use roomcluster_lifecycle::{BoxError, args};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// More than the node itself waits.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);

/// Flags of `dataplane pre-stop`.
#[derive(Debug, Clone, Args)]
pub struct PreStopArgs {
    /// Where the room process of this pod serves its admin port; asked on loopback.
    #[arg(long, env = "ADMIN_LISTEN", default_value = "0.0.0.0:7401")]
    pub admin_listen: SocketAddr,
    /// How long the room process waits before it answers.
    #[arg(long, env = "PRE_STOP_WAIT", default_value = "2s", value_parser = args::duration)]
    pub pre_stop_wait: Duration,
}

/// Tells the room process that its end is near, and returns when it may come.
pub async fn run(args: &PreStopArgs) -> Result<(), BoxError> {
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), args.admin_listen.port());
    tokio::time::timeout(args.pre_stop_wait + ANSWER_MARGIN, ask(address)).await?
}

/// One request of fixed text: no HTTP client is worth carrying for it.
async fn ask(address: SocketAddr) -> Result<(), BoxError> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST /admin/pre-stop HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    if answer.starts_with("HTTP/1.1 2") {
        return Ok(());
    }
    Err(format!("the room process answered {:?}", answer.lines().next().unwrap_or_default()).into())
}
