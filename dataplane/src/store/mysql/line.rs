//! A connection whose every step is bounded.
//!
//! It belongs to one caller at a time and is dropped, not handed back, when anything about it is in doubt: the
//! server then rolls back whatever was open.

use std::time::Duration;

use sqlx::SqlStr;
use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{ConnectOptions, Executor, Row};

use super::super::connect::StoreOptions;
use super::super::rows::MAX_ROW_BYTES;
use super::dialect::Dialect;
use super::failure::{Failure, at_commit};
use super::statements::Statements;

/// Statements that a connection keeps prepared: more than all the shapes that are in use.
const STATEMENT_CACHE: usize = 128;
/// What a packet carries beside the rows, with room to spare.
const PACKET_SLACK: usize = 64 * 1024;

/// Opens lines.
pub(super) struct Connector {
    pub(super) connect: MySqlConnectOptions,
    pub(super) dialect: Dialect,
    pub(super) options: StoreOptions,
    pub(super) statements: Statements,
}

impl Connector {
    pub(super) fn new(connect: MySqlConnectOptions, dialect: Dialect, options: StoreOptions) -> Self {
        Self { connect, dialect, options, statements: Statements::new(dialect) }
    }

    pub(super) async fn line(&self) -> Result<Line, Failure> {
        let open = async {
            let mut conn = self.connect.connect().await?;
            conn.execute(self.dialect.session_setup()).await?;
            let row = sqlx::query(
                "SELECT CAST(CONNECTION_ID() AS UNSIGNED), CAST(@@max_allowed_packet AS UNSIGNED)",
            )
            .fetch_one(&mut conn)
            .await?;
            let packet: u64 = row.try_get(1)?;
            Ok::<_, sqlx::Error>(Line {
                conn,
                id: row.try_get(0)?,
                max_row_bytes: usize::try_from(packet)
                    .unwrap_or(usize::MAX)
                    .saturating_sub(PACKET_SLACK)
                    .min(MAX_ROW_BYTES),
                statement_timeout: self.options.statement_timeout,
                commit_timeout: self.options.commit_timeout,
            })
        };
        match tokio::time::timeout(self.options.connect_timeout, open).await {
            Ok(line) => line.map_err(Failure::Lost),
            Err(_) => Err(Failure::Lost(timed_out("connecting to the database"))),
        }
    }
}

/// What every connection is opened with.
pub(super) fn prepare(connect: MySqlConnectOptions) -> MySqlConnectOptions {
    connect
        .charset("utf8mb4")
        .collation("utf8mb4_bin")
        .pipes_as_concat(false)
        .timezone(Some("+00:00".to_owned()))
        .statement_cache_capacity(STATEMENT_CACHE)
        .disable_statement_logging()
}

/// A connection with its limits.
pub(super) struct Line {
    conn: MySqlConnection,
    /// The server's number for it.
    pub(super) id: u64,
    /// The largest row that the server takes.
    pub(super) max_row_bytes: usize,
    statement_timeout: Duration,
    commit_timeout: Duration,
}

impl Line {
    pub(super) async fn begin(&mut self) -> Result<(), Failure> {
        let begin = self.conn.execute("BEGIN");
        bounded(self.statement_timeout, begin).await?;
        Ok(())
    }

    pub(super) async fn rollback(&mut self) -> Result<(), Failure> {
        let rollback = self.conn.execute("ROLLBACK");
        bounded(self.statement_timeout, rollback).await?;
        Ok(())
    }

    pub(super) async fn commit(&mut self) -> Result<(), Failure> {
        let commit = self.conn.execute("COMMIT");
        bounded(self.commit_timeout, commit).await.map_err(at_commit)?;
        Ok(())
    }

    /// Gives the number of affected rows; an updated row counts as two in an INSERT that may update.
    pub(super) async fn execute(
        &mut self,
        sql: SqlStr,
        arguments: MySqlArguments,
    ) -> Result<u64, sqlx::Error> {
        let run = self.conn.execute(sqlx::query_with(sql, arguments));
        Ok(bounded(self.statement_timeout, run).await?.rows_affected())
    }

    pub(super) async fn fetch(
        &mut self,
        sql: SqlStr,
        arguments: MySqlArguments,
    ) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let run = self.conn.fetch_all(sqlx::query_with(sql, arguments));
        bounded(self.statement_timeout, run).await
    }
}

async fn bounded<T>(
    limit: Duration,
    run: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match tokio::time::timeout(limit, run).await {
        Ok(done) => done,
        Err(_) => Err(timed_out("a statement")),
    }
}

/// The error of a wait that we ended ourselves.
pub(super) fn timed_out(what: &str) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, format!("{what} took too long")))
}

/// Whether the error is of such a wait.
pub(super) fn is_timeout(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(e) if e.kind() == std::io::ErrorKind::TimedOut)
}
