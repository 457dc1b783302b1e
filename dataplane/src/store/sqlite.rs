//! SQLite, for one machine.
//!
//! One connection writes, in transactions that lock the file from their beginning (`BEGIN IMMEDIATE`): the fence
//! of a commit is the lock of the whole file. Reads run beside it (WAL). Another process may use the same file.

mod commit;
mod failure;
mod read;
mod take;

use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use tokio::sync::{Mutex, MutexGuard};

use super::connect::{ConnectError, StoreOptions};
use super::{
    CommitSession, LogRow, OwnerRow, RecentId, Recovery, RoomStore, Snapshot, StoreError, Take, TakeOutcome,
};
use crate::types::{Claim, CommandId, NodeId, NodeRef, RoomKey};

use commit::SqliteSession;
use failure::of_call;

/// How long a transaction waits for one of another process. Below the bound of a take.
const BUSY_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Connections that read.
const READERS: u32 = 4;

/// The store on SQLite.
pub struct SqliteStore {
    files: Arc<Files>,
}

/// The connections to one database.
pub(in crate::store) struct Files {
    /// `None` once the store is closed.
    writer: Mutex<Option<SqliteConnection>>,
    /// `None` for a database in memory, which is its one connection.
    readers: Option<SqlitePool>,
}

impl SqliteStore {
    /// Opens the file, and makes it if it does not exist; its schema comes from a migration.
    pub async fn open(connect: SqliteConnectOptions, options: &StoreOptions) -> Result<Self, ConnectError> {
        let connect = prepare(connect).create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
        let writer = connect.connect().await.map_err(ConnectError::Connect)?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(options.acquire_timeout)
            .connect_lazy_with(connect);
        Ok(Self::new(writer, Some(readers)))
    }

    /// Opens a database in memory, and migrates it: nobody else can.
    pub async fn open_in_memory(connect: SqliteConnectOptions) -> Result<Self, ConnectError> {
        let mut writer = prepare(connect).connect().await.map_err(ConnectError::Connect)?;
        super::connect::migrate_open_sqlite(&mut writer).await.map_err(ConnectError::Migrate)?;
        Ok(Self::new(writer, None))
    }

    fn new(writer: SqliteConnection, readers: Option<SqlitePool>) -> Self {
        Self { files: Arc::new(Files { writer: Mutex::new(Some(writer)), readers }) }
    }
}

/// What every connection is opened with.
fn prepare(connect: SqliteConnectOptions) -> SqliteConnectOptions {
    connect.synchronous(SqliteSynchronous::Full).busy_timeout(BUSY_TIMEOUT).disable_statement_logging()
}

impl Files {
    /// The connection that writes.
    async fn writer(&self) -> Result<Writer<'_>, StoreError> {
        let writer = Writer(self.writer.lock().await);
        if writer.0.is_none() {
            return Err(StoreError::Unavailable(sqlx::Error::PoolClosed));
        }
        Ok(writer)
    }

    /// A connection that reads.
    async fn reader(&self) -> Result<Reader<'_>, StoreError> {
        Ok(match &self.readers {
            Some(pool) => Reader::Pool(pool.acquire().await.map_err(of_call)?),
            None => Reader::Writer(self.writer().await?),
        })
    }
}

/// Holds the connection that writes.
struct Writer<'a>(MutexGuard<'a, Option<SqliteConnection>>);

impl Writer<'_> {
    fn conn(&mut self) -> &mut SqliteConnection {
        self.0.as_mut().expect("checked when the lock was taken, and only close() takes it out")
    }
}

/// Holds a connection that reads.
enum Reader<'a> {
    Pool(sqlx::pool::PoolConnection<sqlx::Sqlite>),
    Writer(Writer<'a>),
}

impl Reader<'_> {
    fn conn(&mut self) -> &mut SqliteConnection {
        match self {
            Self::Pool(conn) => conn.deref_mut(),
            Self::Writer(writer) => writer.conn(),
        }
    }
}

#[async_trait]
impl RoomStore for SqliteStore {
    async fn ping(&self) -> Result<(), StoreError> {
        read::ping(self.files.reader().await?.conn()).await
    }

    async fn check_schema(&self) -> Result<(), StoreError> {
        read::check_schema(self.files.reader().await?.conn()).await
    }

    async fn owner(&self, room: &RoomKey) -> Result<Option<OwnerRow>, StoreError> {
        read::owner(self.files.reader().await?.conn(), room).await
    }

    async fn exists(&self, room: &RoomKey) -> Result<bool, StoreError> {
        read::exists(self.files.reader().await?.conn(), room).await
    }

    async fn take(&self, take: &Take) -> Result<TakeOutcome, StoreError> {
        take::take(self.files.writer().await?.conn(), take).await
    }

    async fn release(&self, room: &RoomKey, claim: Claim, now_ms: i64) -> Result<bool, StoreError> {
        take::release(self.files.writer().await?.conn(), room, claim, now_ms).await
    }

    async fn release_former_incarnations(&self, node: &NodeRef, now_ms: i64) -> Result<u64, StoreError> {
        take::release_former_incarnations(self.files.writer().await?.conn(), node, now_ms).await
    }

    async fn rooms_owned_by(
        &self,
        node: &NodeId,
        limit: u32,
    ) -> Result<(Vec<(RoomKey, Claim)>, u64), StoreError> {
        read::rooms_owned_by(self.files.reader().await?.conn(), node, limit).await
    }

    async fn recover(&self, room: &RoomKey) -> Result<Option<Recovery>, StoreError> {
        read::recover(self.files.reader().await?.conn(), room).await
    }

    async fn recent_ids(&self, room: &RoomKey, limit: u32) -> Result<Vec<RecentId>, StoreError> {
        read::recent_ids(self.files.reader().await?.conn(), room, limit).await
    }

    async fn command(&self, room: &RoomKey, command_id: &CommandId) -> Result<Option<LogRow>, StoreError> {
        read::command(self.files.reader().await?.conn(), room, command_id).await
    }

    async fn write_snapshot(
        &self,
        room: &RoomKey,
        claim: Claim,
        snapshot: &Snapshot,
    ) -> Result<bool, StoreError> {
        take::snapshot(self.files.writer().await?.conn(), room, claim, snapshot).await
    }

    async fn open_session(&self) -> Result<Box<dyn CommitSession>, StoreError> {
        Ok(Box::new(SqliteSession::new(Arc::clone(&self.files))))
    }

    async fn close(&self, timeout: Duration) {
        let close = async {
            if let Some(writer) = self.files.writer.lock().await.take()
                && let Err(error) = writer.close().await
            {
                tracing::warn!(error = %error, "the database file was not closed cleanly");
            }
            if let Some(readers) = &self.files.readers {
                readers.close().await;
            }
        };
        if tokio::time::timeout(timeout, close).await.is_err() {
            tracing::warn!("connections to the database were still in use when the store was closed");
        }
    }
}

#[cfg(test)]
mod tests;
