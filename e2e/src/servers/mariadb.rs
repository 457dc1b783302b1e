//! A private MariaDB.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, MySqlConnection};

use super::guardian::Guardian;
use super::{free_port, wait_until_up};

/// The application's user. It is not root, so that tests see what its privileges allow.
const USER: &str = "rooms";
/// Its password.
const PASSWORD: &str = "only-for-tests";
/// Longest wait for one try to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A private MariaDB.
pub struct MariaDb {
    guardian: Guardian,
    port: u16,
    databases: AtomicU32,
}

impl MariaDb {
    /// Starts a server with the durability of production: each commit is on disk.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(&[]).await
    }

    /// Starts a server with further options.
    pub async fn start_with(options: &[&str]) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("mariadb-").tempdir()?;
        let data = format!("--datadir={}/data", dir.path().display());
        // Servers that share a directory for temporary files remove each other's.
        std::fs::create_dir(dir.path().join("tmp"))?;
        let temporary = format!("--tmpdir={}/tmp", dir.path().display());
        let installed = Command::new("mariadb-install-db")
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .args([data.as_str(), temporary.as_str(), "--user=root", "--skip-name-resolve"])
            .output()
            .context("cannot run mariadb-install-db; is the package mariadb-server installed?")?;
        anyhow::ensure!(
            installed.status.success(),
            "mariadb-install-db failed: {}",
            String::from_utf8_lossy(&installed.stderr)
        );
        let port = free_port()?;
        let mut command = vec!["mariadbd".to_owned(), "--no-defaults".to_owned(), data, temporary];
        command.extend([
            format!("--socket={}/socket", dir.path().display()),
            format!("--port={port}"),
            format!("--slow-query-log-file={}/slow-log", dir.path().display()),
            "--log-slow-verbosity=query_plan".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            "--user=root".to_owned(),
            "--skip-name-resolve".to_owned(),
            "--max-connections=1000".to_owned(),
            "--innodb-buffer-pool-size=256M".to_owned(),
            "--innodb-log-file-size=256M".to_owned(),
        ]);
        command.extend(options.iter().map(|&option| option.to_owned()));
        let server = Self { guardian: Guardian::start(dir, &command)?, port, databases: AtomicU32::new(0) };
        server.wait().await?;
        let mut root = server.root().await?;
        root.execute(AssertSqlSafe(format!(
            "CREATE USER {USER} IDENTIFIED BY '{PASSWORD}'; GRANT PROCESS ON *.* TO {USER}; \
             GRANT ALL ON `rooms\\_%`.* TO {USER}"
        )))
        .await?;
        root.close().await?;
        Ok(server)
    }

    /// Makes an empty database of its own, and gives its URL.
    pub async fn database(&self) -> anyhow::Result<String> {
        self.database_at(self.port).await
    }

    /// The same, reached through another port, as of a proxy.
    pub async fn database_at(&self, port: u16) -> anyhow::Result<String> {
        let name = format!("rooms_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let mut root = self.root().await?;
        root.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
        root.close().await?;
        Ok(format!("mysql://{USER}:{PASSWORD}@127.0.0.1:{port}/{name}"))
    }

    /// A connection of root, without a database.
    pub async fn root(&self) -> anyhow::Result<MySqlConnection> {
        let connect = MySqlConnectOptions::new().host("127.0.0.1").port(self.port).username("root");
        Ok(tokio::time::timeout(CONNECT_LIMIT, connect.connect()).await??)
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it has logged, for a test that fails.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.guardian.dir().join("log")).unwrap_or_default()
    }

    /// What its slow log holds, once a test has turned that on.
    pub fn slow_log(&self) -> String {
        let bytes = std::fs::read(self.guardian.dir().join("slow-log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Stops its process in its tracks.
    pub fn pause(&mut self) -> anyhow::Result<()> {
        self.guardian.order("STOP")
    }

    /// Lets it go on.
    pub fn resume(&mut self) -> anyhow::Result<()> {
        self.guardian.order("CONT")
    }

    /// Kills it; its data stays.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.guardian.order("KILL")
    }

    /// Kills it if it still runs, and starts it again on the same port with the same data.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        // Also one that still runs: two servers would fight for the directory, and one would outlive the test.
        self.guardian.order("KILL")?;
        self.guardian.order("START")?;
        self.wait().await
    }

    async fn wait(&self) -> anyhow::Result<()> {
        wait_until_up("MariaDB", || async {
            self.root().await?.close().await?;
            Ok(())
        })
        .await
        .with_context(|| self.log())
    }
}
