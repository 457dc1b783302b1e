//! Connections that run texts of several statements.
//!
//! A connection that saw an error, a time-out or a cancelled call is never used again: what it may still be doing
//! is the server's to finish or to roll back. Nothing waits for a connection to be free; the callers bound how
//! many calls they have under way.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::TryStreamExt;
use sqlx::Either;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor};

use crate::store::StoreError;

/// Idle connections that are kept.
const MAX_IDLE: usize = 8;
/// How often a text is run again after a deadlock or a lock wait.
const MAX_TRIES: u32 = 5;
/// What every connection begins with. The lock wait bounds how long a stalled transaction can hold a call up.
const SET_UP: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
     SET SESSION time_zone = '+00:00', SESSION innodb_lock_wait_timeout = 2";
/// MariaDB only: the server ends a transaction that its client has left open, for example by stopping between
/// a failed statement and the end of the connection. MySQL does not know the variable, and that is no fault.
const SET_UP_MARIADB: &str = "SET SESSION idle_transaction_timeout = 2";

/// What one statement of a text gave.
#[derive(Default)]
pub(super) struct Answer {
    /// Its rows.
    pub(super) rows: Vec<MySqlRow>,
    /// The rows that it matched.
    pub(super) matched: u64,
}

/// The connections.
pub(super) struct Sessions {
    options: MySqlConnectOptions,
    timeout: Duration,
    idle: Mutex<Vec<MySqlConnection>>,
}

impl Sessions {
    pub(super) fn new(options: MySqlConnectOptions, timeout: Duration) -> Self {
        Self { options, timeout, idle: Mutex::default() }
    }

    /// Runs the statements of a text and gives the answer of each.
    ///
    /// The text must be safe to run again: it is, after a deadlock, a lock wait or MariaDB's 1020.
    pub(super) async fn run(&self, text: &str) -> Result<Vec<Answer>, StoreError> {
        let mut tries = 1;
        loop {
            match self.run_once(text).await {
                Err(StoreError::Locked) if tries < MAX_TRIES => {
                    tokio::time::sleep(Duration::from_millis(rand::random_range(1..=10) * u64::from(tries)))
                        .await;
                    tries += 1;
                }
                outcome => return outcome,
            }
        }
    }

    async fn run_once(&self, text: &str) -> Result<Vec<Answer>, StoreError> {
        let timed_out = || StoreError::Unavailable(sqlx::Error::PoolTimedOut);
        let idle = self.idle().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => tokio::time::timeout(self.timeout, self.connect()).await.map_err(|_| timed_out())??,
        };
        let answers = tokio::time::timeout(self.timeout, collect(&mut connection, text))
            .await
            .map_err(|_| timed_out())?
            .map_err(classify)?;
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
        Ok(answers)
    }

    async fn connect(&self) -> Result<MySqlConnection, StoreError> {
        let mut connection = self.options.connect().await.map_err(StoreError::Unavailable)?;
        connection.execute(sqlx::raw_sql(SET_UP)).await.map_err(StoreError::Unavailable)?;
        match connection.execute(sqlx::raw_sql(SET_UP_MARIADB)).await {
            Ok(_) | Err(sqlx::Error::Database(_)) => Ok(connection),
            Err(error) => Err(StoreError::Unavailable(error)),
        }
    }

    /// Forgets the idle connections.
    pub(super) fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<MySqlConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn collect(connection: &mut MySqlConnection, text: &str) -> Result<Vec<Answer>, sqlx::Error> {
    let mut answers = Vec::new();
    let mut rows = Vec::new();
    let mut stream = connection.fetch_many(sqlx::raw_sql(AssertSqlSafe(text.to_owned())));
    while let Some(item) = stream.try_next().await? {
        match item {
            Either::Right(row) => rows.push(row),
            Either::Left(done) => {
                answers.push(Answer { rows: std::mem::take(&mut rows), matched: done.rows_affected() });
            }
        }
    }
    Ok(answers)
}

/// Which kind of failure this is: lock conflicts may be run again, the rest waits for the next call.
fn classify(error: sqlx::Error) -> StoreError {
    const LOCK_CONFLICTS: [u16; 3] = [1213, 1205, 1020];
    // Too many connections, shutting down, connection killed, and the three ways to say "read only".
    const OUTAGES: [u16; 6] = [1040, 1053, 1927, 1290, 1792, 1836];
    let number = match &error {
        sqlx::Error::Database(database) => {
            database.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
        }
        _ => return StoreError::Unavailable(error),
    };
    match number {
        Some(number) if LOCK_CONFLICTS.contains(&number) => StoreError::Locked,
        Some(number) if OUTAGES.contains(&number) => StoreError::Unavailable(error),
        _ => StoreError::Statement(error),
    }
}
