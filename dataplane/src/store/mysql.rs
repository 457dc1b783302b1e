//! MySQL and MariaDB.
//!
//! Reads, releases and snapshots go over a pool; commits over sessions of their own; takes over a lane of their
//! own, since they may wait for locks. All sessions are READ COMMITTED and wait at most a second for a lock.
//!
//! The database user needs the PROCESS privilege (MySQL: also SELECT on performance_schema), so that a take can
//! see which transaction stands in its way. Without it MariaDB still ends an idle transaction after a second;
//! MySQL does not.

mod dialect;
mod failure;
mod line;
mod read;
mod session;
mod statements;
mod take;
mod transact;
mod write;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};

use super::connect::{ConnectError, StoreOptions};
use super::{
    CommitSession, LogRow, OwnerRow, RecentId, Recovery, RoomStore, Snapshot, StoreError, Take, TakeOutcome,
};
use crate::types::{Claim, CommandId, NodeId, NodeRef, RoomKey};

use dialect::Dialect;
use line::Connector;
use session::MySqlSession;
use take::TakeLane;

pub(super) use failure::is_missing_table;

/// Idle connections of the pool are closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// The store on MySQL or MariaDB.
pub struct MySqlStore {
    pool: MySqlPool,
    connector: Arc<Connector>,
    takes: TakeLane,
}

impl MySqlStore {
    /// Connects once, to learn what the server is.
    pub async fn open(connect: MySqlConnectOptions, options: StoreOptions) -> Result<Self, ConnectError> {
        let connect = line::prepare(connect);
        let dialect = Dialect::detect(&connect, options.connect_timeout).await?;
        let pool = MySqlPoolOptions::new()
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout)
            .idle_timeout(IDLE_TIMEOUT)
            .test_before_acquire(true)
            .after_connect(move |conn, _| {
                Box::pin(async move {
                    sqlx::Executor::execute(conn, dialect.session_setup()).await?;
                    Ok(())
                })
            })
            .connect_lazy_with(connect.clone());
        let takes = TakeLane::new(options.max_takes, options.acquire_timeout);
        let connector = Arc::new(Connector::new(connect, dialect, options));
        Ok(Self { pool, connector, takes })
    }

    /// Runs a call on the pool within the time that a statement may take.
    async fn bounded<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let options = &self.connector.options;
        let limit = options.acquire_timeout + options.statement_timeout;
        match tokio::time::timeout(limit, call).await {
            Ok(done) => done,
            Err(_) => Err(StoreError::Unavailable(line::timed_out("a call to the database"))),
        }
    }
}

#[async_trait]
impl RoomStore for MySqlStore {
    async fn ping(&self) -> Result<(), StoreError> {
        self.bounded(read::ping(&self.pool)).await
    }

    async fn check_schema(&self) -> Result<(), StoreError> {
        self.bounded(read::check_schema(&self.pool)).await
    }

    async fn owner(&self, room: &RoomKey) -> Result<Option<OwnerRow>, StoreError> {
        self.bounded(read::owner(&self.pool, room)).await
    }

    async fn exists(&self, room: &RoomKey) -> Result<bool, StoreError> {
        self.bounded(read::exists(&self.pool, room)).await
    }

    async fn take(&self, take: &Take) -> Result<TakeOutcome, StoreError> {
        self.takes.take(&self.connector, &self.pool, take).await
    }

    async fn release(&self, room: &RoomKey, claim: Claim, now_ms: i64) -> Result<bool, StoreError> {
        self.bounded(write::release(&self.pool, room, claim, now_ms)).await
    }

    async fn release_former_incarnations(&self, node: &NodeRef, now_ms: i64) -> Result<u64, StoreError> {
        write::release_former_incarnations(&self.pool, node, now_ms).await
    }

    async fn rooms_owned_by(
        &self,
        node: &NodeId,
        limit: u32,
    ) -> Result<(Vec<(RoomKey, Claim)>, u64), StoreError> {
        self.bounded(read::rooms_owned_by(&self.pool, node, limit)).await
    }

    async fn recover(&self, room: &RoomKey) -> Result<Option<Recovery>, StoreError> {
        self.bounded(read::recover(&self.pool, room)).await
    }

    async fn recent_ids(&self, room: &RoomKey, limit: u32) -> Result<Vec<RecentId>, StoreError> {
        self.bounded(read::recent_ids(&self.pool, room, limit)).await
    }

    async fn command(&self, room: &RoomKey, command_id: &CommandId) -> Result<Option<LogRow>, StoreError> {
        self.bounded(read::command(&self.pool, room, command_id)).await
    }

    async fn write_snapshot(
        &self,
        room: &RoomKey,
        claim: Claim,
        snapshot: &Snapshot,
    ) -> Result<bool, StoreError> {
        let limit = self.connector.options.commit_timeout;
        let write = write::snapshot(&self.pool, self.connector.dialect, room, claim, snapshot);
        match tokio::time::timeout(limit, write).await {
            Ok(done) => done,
            Err(_) => Err(StoreError::Unavailable(line::timed_out("writing a snapshot"))),
        }
    }

    async fn open_session(&self) -> Result<Box<dyn CommitSession>, StoreError> {
        Ok(Box::new(MySqlSession::open(Arc::clone(&self.connector)).await?))
    }

    async fn close(&self, timeout: Duration) {
        self.takes.close();
        // What is still in use after the time-out ends with the process.
        if tokio::time::timeout(timeout, self.pool.close()).await.is_err() {
            tracing::warn!("connections to the database were still in use when the store was closed");
        }
    }
}
