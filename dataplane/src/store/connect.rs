//! Opens a store by its URL, and changes its schema.
//!
//! [`migrate`] is the only thing in the program that changes a schema. No error shows a password.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use url::Url;

use super::mysql::MySqlStore;
use super::sqlite::SqliteStore;
use super::{RoomStore, StoreError};

static MYSQL_MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../migrations/mysql");
static SQLITE_MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../migrations/sqlite");

/// How long one run of [`migrate`] waits for another.
const MIGRATE_LOCK_WAIT_SECONDS: u32 = 300;
/// Longest wait for the connection that migrates.
const MIGRATE_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often SQLite's migration is tried while another process migrates the same file.
const SQLITE_MIGRATE_TRIES: u32 = 20;

/// How a store is reached: every limit is explicit.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Connections for reads, releases and snapshots.
    pub max_connections: u32,
    /// Connections for takes, which may wait for locks.
    pub max_takes: u32,
    /// Longest wait for a new connection.
    pub connect_timeout: Duration,
    /// Longest wait for a free connection of the pool.
    pub acquire_timeout: Duration,
    /// Longest wait for one statement; the connection is given up then.
    pub statement_timeout: Duration,
    /// Longest wait for COMMIT; the outcome is unknown then.
    pub commit_timeout: Duration,
    /// What the store counts.
    pub counters: Arc<StoreCounters>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            max_connections: 8,
            max_takes: 16,
            connect_timeout: Duration::from_secs(1),
            acquire_timeout: Duration::from_secs(2),
            statement_timeout: Duration::from_secs(3),
            commit_timeout: Duration::from_secs(5),
            counters: Arc::default(),
        }
    }
}

/// What a store counts, for its metrics.
#[derive(Debug, Default)]
pub struct StoreCounters {
    ended_blockers: AtomicU64,
    retried_batches: AtomicU64,
    split_batches: AtomicU64,
    opened_sessions: AtomicU64,
}

impl StoreCounters {
    /// Transactions that stood in the way of a take and were ended.
    pub fn ended_blockers(&self) -> u64 {
        self.ended_blockers.load(Ordering::Relaxed)
    }

    /// Batches that ran again after a deadlock or a lock wait.
    pub fn retried_batches(&self) -> u64 {
        self.retried_batches.load(Ordering::Relaxed)
    }

    /// Batches that were split because a row of theirs cannot be stored.
    pub fn split_batches(&self) -> u64 {
        self.split_batches.load(Ordering::Relaxed)
    }

    /// Connections opened for commits, first ones and those after a loss.
    pub fn opened_sessions(&self) -> u64 {
        self.opened_sessions.load(Ordering::Relaxed)
    }

    pub(super) fn count_ended_blocker(&self) {
        self.ended_blockers.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_retried_batch(&self) {
        self.retried_batches.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_split_batch(&self) {
        self.split_batches.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_opened_session(&self) {
        self.opened_sessions.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why a store was not opened or migrated.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Not a URL that names a database.
    #[error("the database URL is not valid: {problem}")]
    Url {
        /// What is wrong with it, without its text.
        problem: &'static str,
    },
    /// The server was not reached, or did not let us in.
    #[error("the database was not reached")]
    Connect(#[source] sqlx::Error),
    /// It lacks what the fence needs.
    #[error("the server is {found}; this program needs MariaDB 10.6, MySQL 8.0 or newer")]
    OldServer {
        /// What it calls itself.
        found: String,
    },
    /// The schema was not brought up to date.
    #[error("a migration failed")]
    Migrate(#[source] sqlx::migrate::MigrateError),
}

impl ConnectError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Connect(_))
    }
}

/// A database URL, read.
pub(super) enum Target {
    MySql(MySqlConnectOptions),
    Sqlite(SqliteConnectOptions),
    /// A database that ends with its one connection.
    SqliteInMemory(SqliteConnectOptions),
}

/// Reads a database URL: `mysql://`, `mariadb://` or `sqlite:`.
pub(super) fn parse(url: &SecretString) -> Result<Target, ConnectError> {
    let bad = |problem| ConnectError::Url { problem };
    let url = Url::parse(url.expose_secret()).map_err(|_| bad("it cannot be read as a URL"))?;
    match url.scheme() {
        "mysql" | "mariadb" => {
            let options = MySqlConnectOptions::from_url(&url)
                .map_err(|_| bad("user, host, port or a parameter cannot be read"))?;
            if options.get_database().is_none_or(str::is_empty) {
                return Err(bad("it names no database; write mysql://user@host/database"));
            }
            Ok(Target::MySql(options))
        }
        "sqlite" => {
            let options = SqliteConnectOptions::from_url(&url)
                .map_err(|_| bad("the path or a parameter cannot be read"))?;
            let in_memory = url.path().ends_with(":memory:")
                || url.query_pairs().any(|(name, value)| name == "mode" && value == "memory");
            Ok(if in_memory { Target::SqliteInMemory(options) } else { Target::Sqlite(options) })
        }
        _ => Err(bad("its scheme is not mysql, mariadb or sqlite")),
    }
}

/// Opens the store that the URL names. The schema is left as it is; see [`RoomStore::check_schema`].
pub async fn open(url: &SecretString, options: StoreOptions) -> Result<Arc<dyn RoomStore>, ConnectError> {
    Ok(match parse(url)? {
        Target::MySql(connect) => Arc::new(MySqlStore::open(connect, options).await?),
        Target::Sqlite(connect) => Arc::new(SqliteStore::open(connect, &options).await?),
        Target::SqliteInMemory(connect) => Arc::new(SqliteStore::open_in_memory(connect).await?),
    })
}

/// Brings the schema up to date. Runs at the same time wait for each other and all end well.
pub async fn migrate(url: &SecretString) -> Result<(), ConnectError> {
    match parse(url)? {
        Target::MySql(connect) => migrate_mysql(&connect).await,
        Target::Sqlite(connect) => migrate_sqlite(&connect.create_if_missing(true)).await,
        // It is migrated when it is opened: nobody else can reach it.
        Target::SqliteInMemory(_) => Ok(()),
    }
}

async fn migrate_mysql(options: &MySqlConnectOptions) -> Result<(), ConnectError> {
    let timed_out = |_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
    let connected = tokio::time::timeout(MIGRATE_CONNECT_TIMEOUT, options.connect()).await;
    let mut conn = connected.map_err(timed_out).flatten().map_err(ConnectError::Connect)?;
    let locked: Option<i64> =
        sqlx::query_scalar("SELECT GET_LOCK(CONCAT('roomcluster/', MD5(DATABASE())), ?)")
            .bind(MIGRATE_LOCK_WAIT_SECONDS)
            .fetch_one(&mut conn)
            .await
            .map_err(ConnectError::Connect)?;
    if locked != Some(1) {
        let waited = std::io::Error::new(std::io::ErrorKind::TimedOut, "another migration still runs");
        return Err(ConnectError::Connect(sqlx::Error::Io(waited)));
    }
    forget_cut_migrations(&mut conn).await.map_err(ConnectError::Connect)?;
    MYSQL_MIGRATIONS.run_direct(None, &mut conn, false).await.map_err(ConnectError::Migrate)?;
    // The lock ends with the connection, whether or not the server hears a farewell.
    drop(conn.close().await);
    Ok(())
}

/// Lets a migration that was cut in the middle run again: each is written so that it may.
///
/// MySQL commits at each CREATE TABLE, so that a process which is killed leaves a part behind.
async fn forget_cut_migrations(conn: &mut sqlx::MySqlConnection) -> Result<(), sqlx::Error> {
    let done = sqlx::query("DELETE FROM _sqlx_migrations WHERE success = FALSE").execute(conn).await;
    match done {
        Err(sqlx::Error::Database(e)) if super::mysql::is_missing_table(e.as_ref()) => Ok(()),
        other => other.map(drop),
    }
}

/// Migrates a database that lives in this one connection.
pub(super) async fn migrate_open_sqlite(
    conn: &mut sqlx::SqliteConnection,
) -> Result<(), sqlx::migrate::MigrateError> {
    SQLITE_MIGRATIONS.run_direct(None, conn, false).await
}

async fn migrate_sqlite(options: &SqliteConnectOptions) -> Result<(), ConnectError> {
    let mut tries = 0;
    loop {
        let mut conn = options.connect().await.map_err(ConnectError::Connect)?;
        // SQLite has no lock around a whole run: one of two runs at once fails, and finds nothing left to do.
        match SQLITE_MIGRATIONS.run_direct(None, &mut conn, false).await {
            Ok(()) => return Ok(()),
            Err(
                sqlx::migrate::MigrateError::Execute(_) | sqlx::migrate::MigrateError::ExecuteMigration(..),
            ) if tries < SQLITE_MIGRATE_TRIES => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(10 * u64::from(tries))).await;
            }
            Err(other) => return Err(ConnectError::Migrate(other)),
        }
    }
}

/// Compares the version that the database has with the one that this program works with.
pub(super) fn compare_schema(found: Option<i64>) -> Result<(), StoreError> {
    let found = found.unwrap_or(0);
    if found == super::SCHEMA_VERSION {
        Ok(())
    } else {
        Err(StoreError::Schema { found, wanted: super::SCHEMA_VERSION })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_migration_of_each_database_is_the_schema_version() {
        for migrations in [&MYSQL_MIGRATIONS, &SQLITE_MIGRATIONS] {
            assert_eq!(migrations.iter().map(|m| m.version).max(), Some(super::super::SCHEMA_VERSION));
        }
    }

    #[test]
    fn a_url_is_refused_without_showing_its_secret() {
        for url in ["postgres://u:hunter2@h/db", "mysql://u:hunter2@h", "hunter2", "mysql://u:hunter2@h:x/db"]
        {
            let error = parse(&SecretString::from(url)).err().expect("refused");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
