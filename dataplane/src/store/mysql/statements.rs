//! The statements of a commit, in sizes of powers of two.
//!
//! A connection prepares each text once. Texts for every possible number of rows would be hundreds for each
//! connection, and the server keeps a limited number in all. So reads are padded to the next power of two by
//! repeating a key, and writes are cut into powers of two.

use std::ops::Range;

use sqlx::mysql::MySqlArguments;
use sqlx::{Arguments, Encode, MySql, Type};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use super::dialect::Dialect;

/// Most rows in one statement.
pub(super) const MAX_ROWS: usize = 1 << (SIZES - 1);
/// 1, 2, 4 … 256.
const SIZES: usize = 9;
/// Bytes after which a write goes on in another statement.
const MAX_BYTES: usize = 1 << 20;

const OWNER: &str = "SELECT app_code, room_id, epoch, lease_token, owner_node_id, incarnation, address, \
    released_at_ms FROM room_owner WHERE ";
const KNOWN: &str = "SELECT app_code, room_id, seq, command_id, command_hash, result, events, epoch, \
    committed_at_ms FROM room_command_log FORCE INDEX (room_command_log_by_id) WHERE ";
const LOG: &str = "INSERT INTO room_command_log (app_code, room_id, seq, command_id, command_hash, result, \
    events, epoch, lease_token, owner_node_id, committed_at_ms) VALUES ";
const OUTBOX: &str = "INSERT INTO room_outbox (app_code, room_id, seq, event_index, event_type, envelope, \
    state, created_at_ms) VALUES ";
const HEAD: &str =
    "INSERT INTO room_head (app_code, room_id, base_seq, seq, epoch, state_hash, updated_at_ms) VALUES ";
// A head that is not where the batch begins becomes NULL, which the column refuses: the log has no gap.
const HEAD_MOVES: &str = " ON DUPLICATE KEY UPDATE seq = IF(seq = VALUES(base_seq), VALUES(seq), NULL), \
    base_seq = VALUES(base_seq), epoch = VALUES(epoch), state_hash = VALUES(state_hash), \
    updated_at_ms = VALUES(updated_at_ms)";
const DUE: &str = "INSERT INTO outbox_room (app_code, room_id, due_ms, pending) VALUES ";
const DUE_MOVES: &str = " ON DUPLICATE KEY UPDATE pending = pending + VALUES(pending), \
    due_ms = COALESCE(due_ms, VALUES(due_ms))";
const DUE_ROOMS: &str = "SELECT app_code, room_id FROM outbox_room WHERE ";
const ROOMS: &str = "INSERT INTO rooms (app_code, room_id, status, created_at_ms, closed_at_ms) VALUES ";
const ROOMS_MOVE: &str =
    " ON DUPLICATE KEY UPDATE status = VALUES(status), closed_at_ms = VALUES(closed_at_ms)";

/// One statement in all its sizes.
pub(super) struct Shapes([SqlStr; SIZES]);

impl Shapes {
    fn new(head: &str, row: &str, separator: &str, tail: &str) -> Self {
        Self(std::array::from_fn(|size| {
            let rows = vec![row; 1 << size].join(separator);
            AssertSqlSafe(format!("{head}{rows}{tail}")).into_sql_str()
        }))
    }

    /// The text for `rows` rows, padded up to a power of two, and that power.
    pub(super) fn padded(&self, rows: usize) -> (SqlStr, usize) {
        let size = rows.next_power_of_two();
        (self.0[size.trailing_zeros() as usize].clone(), size)
    }
}

/// The statements of a commit.
pub(super) struct Statements {
    /// The fence: owner rows, locked shared, without those that others have locked. Primary key.
    pub(super) fence: Shapes,
    /// The same without locks.
    pub(super) peek: Shapes,
    /// Commands by id. `room_command_log_by_id`.
    pub(super) known: Shapes,
    /// New rows of the log.
    pub(super) log: Shapes,
    /// New events.
    pub(super) outbox: Shapes,
    /// Heads that move on. Primary key.
    pub(super) head: Shapes,
    /// Rooms with events on their way. Primary key.
    pub(super) due: Shapes,
    /// Which of them exist. Primary key.
    pub(super) due_peek: Shapes,
    /// Which of them can be locked at once. Primary key.
    pub(super) due_lock: Shapes,
    /// Rooms that were created or closed. Primary key.
    pub(super) rooms: Shapes,
}

impl Statements {
    pub(super) fn new(dialect: Dialect) -> Self {
        let by_room = "(app_code = ? AND room_id = ?)";
        let by_id = "(app_code = ? AND room_id = ? AND command_id = ?)";
        let due = "(?, ?, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED), ?)";
        Self {
            fence: Shapes::new(OWNER, by_room, " OR ", dialect.share_skip_locked()),
            peek: Shapes::new(OWNER, by_room, " OR ", ""),
            known: Shapes::new(KNOWN, by_id, " OR ", ""),
            log: Shapes::new(LOG, "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", ", ", ""),
            outbox: Shapes::new(OUTBOX, "(?, ?, ?, ?, ?, ?, ?, ?)", ", ", ""),
            head: Shapes::new(HEAD, "(?, ?, ?, ?, ?, ?, ?)", ", ", HEAD_MOVES),
            due: Shapes::new(DUE, due, ", ", DUE_MOVES),
            due_peek: Shapes::new(DUE_ROOMS, by_room, " OR ", ""),
            due_lock: Shapes::new(DUE_ROOMS, by_room, " OR ", " FOR UPDATE SKIP LOCKED"),
            rooms: Shapes::new(ROOMS, "(?, ?, ?, ?, ?)", ", ", ROOMS_MOVE),
        }
    }
}

/// Cuts `rows` rows into pieces whose lengths are powers of two and whose bytes stay in bounds.
pub(super) fn pieces(rows: usize, bytes_of: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < rows {
        let mut len = 1 << (rows - start).min(MAX_ROWS).ilog2();
        while len > 1 && (start..start + len).map(&bytes_of).sum::<usize>() > MAX_BYTES {
            len /= 2;
        }
        pieces.push(start..start + len);
        start += len;
    }
    pieces
}

/// Adds a parameter.
pub(super) fn bind<'q, T>(arguments: &mut MySqlArguments, value: T)
where
    T: Encode<'q, MySql> + Type<MySql> + 'q,
{
    Arguments::add(arguments, value).expect("bytes and whole numbers always encode");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_cut_into_powers_of_two_that_cover_all_rows_within_the_bounds() {
        let lens = |rows, bytes| pieces(rows, |_| bytes).iter().map(Range::len).collect::<Vec<_>>();
        assert_eq!(lens(0, 1), Vec::<usize>::new());
        assert_eq!(lens(7, 1), [4, 2, 1]);
        assert_eq!(lens(600, 1), [256, 256, 64, 16, 8]);
        assert_eq!(lens(4, MAX_BYTES / 2), [2, 2]);
        assert_eq!(lens(3, MAX_BYTES * 5), [1, 1, 1]);
    }

    #[test]
    fn reads_are_padded_to_the_next_power_of_two() {
        let fence = Statements::new(Dialect::MariaDb).fence;
        for (rows, size) in [(1, 1), (3, 4), (64, 64), (65, 128), (256, 256)] {
            let (sql, padded) = fence.padded(rows);
            assert_eq!(padded, size);
            assert_eq!(sql.as_str().matches('?').count(), 2 * size);
        }
    }
}
