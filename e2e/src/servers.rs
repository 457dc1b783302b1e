//! Private MariaDB and Redis servers, and a TCP proxy that breaks connections.
//!
//! Each server lives in a directory of its own and listens on a free port of the loopback interface. A guardian
//! shell holds it: when the test ends, by whatever means, the guardian ends the server and removes the directory.

mod guardian;
mod mariadb;
mod proxy;
mod redis;

pub use mariadb::MariaDb;
pub use proxy::{TcpProxy, Trap};
pub use redis::Redis;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

/// How long a server may take to come up.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks at whether it is up.
const START_POLL: Duration = Duration::from_millis(20);

/// A port of the loopback interface that was free just now.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?.local_addr()?.port())
}

/// Waits until a server answers.
async fn wait_until_up<F>(what: &str, mut ask: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let started = tokio::time::Instant::now();
    loop {
        match ask().await {
            Ok(()) => return Ok(()),
            Err(error) if started.elapsed() > START_LIMIT => {
                return Err(error.context(format!("{what} did not come up")));
            }
            Err(_) => tokio::time::sleep(START_POLL).await,
        }
    }
}
