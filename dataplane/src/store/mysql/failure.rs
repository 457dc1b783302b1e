//! What an error of the driver means for the transaction that met it.

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;

use super::super::StoreError;

/// Why a transaction did not commit.
#[derive(Debug)]
pub(super) enum Failure {
    /// Its rows cannot be stored: one of them is in the way, and a part of the batch may do.
    Rows(String),
    /// Deadlock, lock wait or a row that changed underneath: the same again may do.
    Contended,
    /// The connection is gone, or the server gave up. Nothing was written.
    Lost(sqlx::Error),
    /// The connection was lost while COMMIT was under way.
    Unknown(sqlx::Error),
    /// A statement that this server does not understand, or a row that cannot be read.
    Fault(StoreError),
}

impl Failure {
    /// For calls that are one statement, or only read.
    pub(super) fn into_store_error(self) -> StoreError {
        match self {
            Self::Rows(problem) => StoreError::Statement(sqlx::Error::Protocol(problem)),
            Self::Contended => StoreError::Locked,
            Self::Lost(e) => StoreError::Unavailable(e),
            Self::Unknown(e) => StoreError::Unknown(e),
            Self::Fault(e) => e,
        }
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        let sqlx::Error::Database(db) = &error else {
            return match error {
                sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } | sqlx::Error::Encode(_) => {
                    Self::Fault(StoreError::Statement(error))
                }
                other => Self::Lost(other),
            };
        };
        match number(db.as_ref()) {
            // Duplicate key, null, out of range, wrong value, too long, and an update of a row that is not as
            // the batch expects it.
            1062 | 1048 | 1264 | 1366 | 1406 | 3819 | 4025 => Self::Rows(db.message().to_owned()),
            // Row changed since it was read, lock wait, deadlock, NOWAIT.
            1020 | 1205 | 1213 | 3572 => Self::Contended,
            number if is_server_trouble(number) => Self::Lost(error),
            _ => Self::Fault(StoreError::Statement(error)),
        }
    }
}

/// An error at COMMIT: unless the server says that it rolled back, nobody knows.
pub(super) fn at_commit(error: sqlx::Error) -> Failure {
    match &error {
        sqlx::Error::Database(db) if matches!(number(db.as_ref()), 1213 | 1205 | 1020) => Failure::Contended,
        _ => Failure::Unknown(error),
    }
}

/// Errors of the server, not of the statement: another try, or another server, may do.
fn is_server_trouble(number: u16) -> bool {
    matches!(
        number,
        // Resources: disk full, out of memory, too many connections, threads or statements, table full.
        1021 | 1037 | 1038 | 1040 | 1041 | 1114 | 1135 | 1203 | 1226 | 1461
        // Access, as while a password is changed.
        | 1044 | 1045 | 1049 | 1129 | 1130 | 1698
        // Shutdown, killed, interrupted, aborted, broken packets, idle for too long.
        | 1053 | 1152 | 1153 | 1154
            ..=1161 | 1184 | 1317 | 1927 | 1950 | 4031 | 4166
        // Read-only: this server is no longer the primary.
        | 1290 | 1792 | 1836
        // Time limits of statements.
        | 1907 | 1969 | 3024
        // Cluster not ready.
        | 1047 | 3100 | 3101
    )
}

fn number(error: &dyn DatabaseError) -> u16 {
    error.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number)
}

/// Whether the error says that a table does not exist.
pub(in crate::store) fn is_missing_table(error: &dyn DatabaseError) -> bool {
    number(error) == 1146
}

/// Whether the error says that the key exists.
pub(super) fn is_duplicate(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(db) if number(db.as_ref()) == 1062)
}

/// An error of a call that only reads, or is one statement in a transaction of its own.
pub(super) fn of_call(error: sqlx::Error) -> StoreError {
    Failure::from(error).into_store_error()
}
