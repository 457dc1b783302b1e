//! What an error of SQLite means.

use super::super::StoreError;

/// SQLite's result codes without their extensions.
const BUSY: u32 = 5;
const LOCKED: u32 = 6;
const TOO_BIG: u32 = 18;
const CONSTRAINT: u32 = 19;

/// Whether the rows of the statement cannot be stored, and why.
pub(super) fn is_of_rows(error: &sqlx::Error) -> Option<String> {
    match (primary_code(error)?, error) {
        (TOO_BIG | CONSTRAINT, sqlx::Error::Database(db)) => Some(db.message().to_owned()),
        _ => None,
    }
}

/// An error of a call that did not reach COMMIT, or that is one statement.
pub(super) fn of_call(error: sqlx::Error) -> StoreError {
    match primary_code(&error) {
        Some(BUSY | LOCKED) => StoreError::Locked,
        // Read-only file, interrupted, disk error, disk full, cannot open, file lock protocol.
        Some(8..=10 | 13..=15) => StoreError::Unavailable(error),
        Some(_) => StoreError::Statement(error),
        None => match error {
            sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } | sqlx::Error::Encode(_) => {
                StoreError::Statement(error)
            }
            other => StoreError::Unavailable(other),
        },
    }
}

/// An error at COMMIT: a busy file has not committed; of anything else nobody knows.
pub(super) fn at_commit(error: sqlx::Error) -> StoreError {
    match primary_code(&error) {
        Some(BUSY | LOCKED) => StoreError::Locked,
        _ => StoreError::Unknown(error),
    }
}

/// Whether the error says that a table does not exist.
pub(super) fn is_missing_table(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(db) if db.message().starts_with("no such table"))
}

fn primary_code(error: &sqlx::Error) -> Option<u32> {
    let sqlx::Error::Database(db) = error else { return None };
    db.code()?.parse::<u32>().ok().map(|code| code & 0xff)
}
