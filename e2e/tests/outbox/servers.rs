//! A private MariaDB and a private Redis, on loopback ports of their own, gone with the value.

use std::process::Stdio;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions, MySqlSslMode};
use tempfile::TempDir;
use tokio::process::{Child, Command};

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) struct MariaDb {
    dir: TempDir,
    port: u16,
    child: Child,
}

impl MariaDb {
    pub(crate) async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let data = dir.path().join("data");
        let installed = Command::new("mariadb-install-db")
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg(format!("--datadir={}", data.display()))
            .arg("--innodb-log-file-size=8M")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .await
            .unwrap();
        assert!(installed.success());
        let port = free_port();
        let child = Self::spawn(&dir, port);
        let server = Self { dir, port, child };
        let pool = server.connect("").await;
        sqlx::raw_sql("CREATE DATABASE rooms").execute(&pool).await.unwrap();
        let pool = server.pool().await;
        sqlx::migrate!("../migrations/mysql").run(&pool).await.unwrap();
        server
    }

    fn spawn(dir: &TempDir, port: u16) -> Child {
        Command::new("mariadbd")
            .args(["--no-defaults", "--user=root", "--bind-address=127.0.0.1", "--skip-log-bin"])
            .args([
                "--innodb-buffer-pool-size=64M",
                "--innodb-log-file-size=8M",
                "--innodb-print-all-deadlocks=ON",
            ])
            .args(["--innodb-flush-log-at-trx-commit=2", "--max-connections=200"])
            .arg(format!("--port={port}"))
            .arg(format!("--datadir={}", dir.path().join("data").display()))
            .arg(format!("--socket={}", dir.path().join("socket").display()))
            .arg(format!("--log-error={}", dir.path().join("log").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    /// Ends the server like a crash and starts it again.
    pub(crate) async fn restart(&mut self, down: Duration) {
        self.child.kill().await.unwrap();
        tokio::time::sleep(down).await;
        self.child = Self::spawn(&self.dir, self.port);
    }

    pub(crate) fn options(&self, database: &str) -> MySqlConnectOptions {
        let options = MySqlConnectOptions::new()
            .host("127.0.0.1")
            .port(self.port)
            .username("root")
            .ssl_mode(MySqlSslMode::Disabled);
        if database.is_empty() { options } else { options.database(database) }
    }

    async fn connect(&self, database: &str) -> MySqlPool {
        for _ in 0..600 {
            let pool = MySqlPoolOptions::new()
                .max_connections(16)
                .after_connect(|connection, _| {
                    Box::pin(async move {
                        sqlx::query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                            .execute(connection)
                            .await?;
                        Ok(())
                    })
                })
                .connect_with(self.options(database))
                .await;
            match pool {
                Ok(pool) => return pool,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        panic!(
            "MariaDB did not start: {}",
            std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
        );
    }

    pub(crate) async fn pool(&self) -> MySqlPool {
        self.connect("rooms").await
    }
}

pub(crate) struct Redis {
    dir: TempDir,
    port: u16,
    child: Child,
}

impl Redis {
    pub(crate) async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let port = free_port();
        let child = Self::spawn(&dir, port);
        let server = Self { dir, port, child };
        server.ready().await;
        server
    }

    fn spawn(dir: &TempDir, port: u16) -> Child {
        Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always"])
            .args(["--port", &port.to_string()])
            .arg("--dir")
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    async fn ready(&self) {
        for _ in 0..200 {
            if self.client().get_multiplexed_async_connection().await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("Redis did not start");
    }

    pub(crate) fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap()
    }

    pub(crate) async fn stop(&mut self) {
        self.child.kill().await.unwrap();
    }

    pub(crate) async fn start_again(&mut self) {
        self.child = Self::spawn(&self.dir, self.port);
        self.ready().await;
    }
}
