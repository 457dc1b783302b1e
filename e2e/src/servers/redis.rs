//! A private Redis.

use std::time::Duration;

use anyhow::Context;
use redis::aio::MultiplexedConnection;

use super::guardian::Guardian;
use super::{free_port, wait_until_up};

/// Longest wait for one try to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A private Redis. It keeps an append-only file, so that a restart finds what was there.
pub struct Redis {
    guardian: Guardian,
    port: u16,
}

impl Redis {
    /// Starts a server.
    pub async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("redis-").tempdir()?;
        let port = free_port()?;
        let command = [
            "redis-server",
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--dir",
            &dir.path().display().to_string(),
            "--save",
            "",
            "--appendonly",
            "yes",
        ]
        .map(str::to_owned);
        let server = Self { guardian: Guardian::start(dir, &command)?, port };
        server.wait().await?;
        Ok(server)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Its URL through another port, as of a proxy.
    pub fn url_at(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}/")
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A connection of the test's own.
    pub async fn connection(&self) -> anyhow::Result<MultiplexedConnection> {
        let client = redis::Client::open(self.url())?;
        Ok(tokio::time::timeout(CONNECT_LIMIT, client.get_multiplexed_async_connection()).await??)
    }

    /// Removes all that it holds.
    pub async fn wipe(&self) -> anyhow::Result<()> {
        let mut connection = self.connection().await?;
        Ok(redis::cmd("FLUSHALL").query_async(&mut connection).await?)
    }

    /// Stops its process in its tracks.
    pub fn pause(&mut self) -> anyhow::Result<()> {
        self.guardian.order("STOP")
    }

    /// Lets it go on.
    pub fn resume(&mut self) -> anyhow::Result<()> {
        self.guardian.order("CONT")
    }

    /// Kills it; what it has written to disk stays.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.guardian.order("KILL")
    }

    /// Starts it after a kill, on the same port.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        // Also one that still runs: two servers would fight for the directory, and one would outlive the test.
        self.guardian.order("KILL")?;
        self.guardian.order("START")?;
        self.wait().await
    }

    async fn wait(&self) -> anyhow::Result<()> {
        wait_until_up("Redis", || async {
            let mut connection = self.connection().await?;
            redis::cmd("PING").query_async::<String>(&mut connection).await?;
            Ok(())
        })
        .await
        .context("redis-server did not answer; is the package redis-server installed?")
    }
}
