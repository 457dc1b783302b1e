//! What differs between MySQL and MariaDB.

use std::time::Duration;

use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::super::connect::ConnectError;
use super::line::timed_out;

/// Which of the two servers this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// MariaDB 10.6 or newer.
    MariaDb,
    /// MySQL 8.0 or newer.
    MySql,
}

impl Dialect {
    /// Asks the server what it is.
    pub(super) async fn detect(connect: &MySqlConnectOptions, limit: Duration) -> Result<Self, ConnectError> {
        let ask = async {
            let mut conn = connect.connect().await?;
            let version: String =
                sqlx::query_scalar("SELECT CAST(VERSION() AS CHAR)").fetch_one(&mut conn).await?;
            // It has answered; how it takes the farewell does not matter.
            drop(conn.close().await);
            Ok(version)
        };
        let version = match tokio::time::timeout(limit, ask).await {
            Ok(answer) => answer.map_err(ConnectError::Connect)?,
            Err(_) => return Err(ConnectError::Connect(timed_out("connecting to the database"))),
        };
        Self::parse(&version).ok_or(ConnectError::OldServer { found: version })
    }

    /// Reads what `VERSION()` tells; `None` for a server without SKIP LOCKED.
    fn parse(version: &str) -> Option<Self> {
        let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        let version_number = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        if version.to_ascii_lowercase().contains("mariadb") {
            (version_number >= (10, 6)).then_some(Self::MariaDb)
        } else {
            (version_number >= (8, 0)).then_some(Self::MySql)
        }
    }

    /// The shared locking read that leaves out what another transaction has locked.
    pub(super) fn share_skip_locked(self) -> &'static str {
        match self {
            Self::MariaDb => " LOCK IN SHARE MODE SKIP LOCKED",
            Self::MySql => " FOR SHARE SKIP LOCKED",
        }
    }

    /// Sets up a session: strict, READ COMMITTED, short waits. On MariaDB the server itself ends a transaction
    /// that idles for a second, so that a client which was paused or cut off holds no lock for longer.
    pub(super) fn session_setup(self) -> &'static str {
        match self {
            Self::MariaDb => {
                "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                 SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, \
                 innodb_lock_wait_timeout = 1, lock_wait_timeout = 2, idle_transaction_timeout = 1, \
                 max_statement_time = 5, net_read_timeout = 5, net_write_timeout = 5"
            }
            Self::MySql => {
                "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                 SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, \
                 innodb_lock_wait_timeout = 1, lock_wait_timeout = 2, \
                 max_execution_time = 5000, net_read_timeout = 5, net_write_timeout = 5"
            }
        }
    }

    /// Which connections of our own user hold the lock that connection `?` waits for, without waiting
    /// themselves: their ids, and whether they are idle.
    pub(super) fn blockers(self) -> &'static str {
        match self {
            Self::MariaDb => {
                "SELECT CAST(p.ID AS UNSIGNED), p.COMMAND = 'Sleep' \
                 FROM information_schema.INNODB_LOCK_WAITS w \
                 JOIN information_schema.INNODB_TRX r ON r.trx_id = w.requesting_trx_id \
                 JOIN information_schema.INNODB_TRX b ON b.trx_id = w.blocking_trx_id \
                 JOIN information_schema.PROCESSLIST p ON p.ID = b.trx_mysql_thread_id \
                 JOIN information_schema.PROCESSLIST me ON me.ID = CONNECTION_ID() \
                 WHERE r.trx_mysql_thread_id = ? AND b.trx_state = 'RUNNING' \
                 AND p.USER = me.USER AND p.DB = me.DB"
            }
            Self::MySql => {
                "SELECT CAST(b.PROCESSLIST_ID AS UNSIGNED), b.PROCESSLIST_COMMAND = 'Sleep' \
                 FROM performance_schema.data_lock_waits w \
                 JOIN performance_schema.threads r ON r.THREAD_ID = w.REQUESTING_THREAD_ID \
                 JOIN performance_schema.threads b ON b.THREAD_ID = w.BLOCKING_THREAD_ID \
                 JOIN performance_schema.threads me ON me.PROCESSLIST_ID = CONNECTION_ID() \
                 WHERE r.PROCESSLIST_ID = ? AND b.PROCESSLIST_USER = me.PROCESSLIST_USER \
                 AND b.PROCESSLIST_DB = me.PROCESSLIST_DB AND NOT EXISTS (SELECT 1 \
                 FROM performance_schema.data_lock_waits x WHERE x.REQUESTING_THREAD_ID = w.BLOCKING_THREAD_ID)"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_without_skip_locked_are_refused() {
        let cases = [
            ("10.11.19-MariaDB-0+deb12u1", Some(Dialect::MariaDb)),
            ("10.6.0-MariaDB", Some(Dialect::MariaDb)),
            ("11.8.2-MariaDB-log", Some(Dialect::MariaDb)),
            ("10.5.29-MariaDB", None),
            ("8.0.43", Some(Dialect::MySql)),
            ("8.4.5-commercial", Some(Dialect::MySql)),
            ("5.7.44-log", None),
            ("", None),
        ];
        for (version, dialect) in cases {
            assert_eq!(Dialect::parse(version), dialect, "{version}");
        }
    }
}
