//! The statements of the MySQL store, as text.
//!
//! A call must hold no lock across a round trip, so each is one text of several statements. Prepared statements
//! can not do that; therefore ids and errors stand in the text as hexadecimal literals, which need no quoting and
//! can not end early, and numbers as numbers.
//!
//! Rows are named by whole primary keys, never by ranges: InnoDB's DELETE of a range also locks the record after
//! it, which may be an insert of a producer that has not committed, and the report would wait for it.
//!
//! Indexes are forced: on a table of a few rows the optimizer prefers to read all of it, and would lock, or wait for,
//! rows that are none of the statement's business. For the same reason the claimed rooms come first in their joins.
//!
//! Under READ COMMITTED an UPDATE reads its subqueries without locks; a DELETE or a multi-table statement does
//! not. So only single-table updates look into a second table, and a DELETE looks into none.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::super::{
    AppQuota, BLOCKED_DUE_MS, ClaimRequest, ClaimToken, MAX_BACKLOG_ROOMS, MAX_OLDEST_ROOMS, Next,
    RoomReport, cut_error,
};
use crate::outbox::event::EventPosition;
use crate::types::{RoomKey, hex};

/// Sets `@now` to the database's clock. Sessions are in UTC, so no hour comes twice.
const SET_NOW: &str = "SET @now = CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED);\n";

/// Reads the database's clock.
pub(super) const NOW: &str = "SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)";

fn bytes(value: &[u8]) -> String {
    format!("X'{}'", hex(value))
}

fn token(value: ClaimToken) -> String {
    bytes(&value.0)
}

fn room_is(room: &RoomKey) -> String {
    format!(
        "app_code = {} AND room_id = {}",
        bytes(room.app_code().as_bytes()),
        bytes(room.room_id().as_bytes())
    )
}

fn rooms_are<'a>(rooms: impl IntoIterator<Item = &'a RoomKey>) -> String {
    let each: Vec<String> = rooms.into_iter().map(|room| format!("({})", room_is(room))).collect();
    format!("({})", each.join(" OR "))
}

fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}

/// Exactly these events, each by its whole primary key.
fn events_are<'a>(rooms: impl IntoIterator<Item = (&'a RoomKey, &'a [EventPosition])>) -> String {
    let mut each = Vec::new();
    for (room, positions) in rooms {
        let mut indexes_of: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for at in positions {
            indexes_of.entry(at.seq.0).or_default().push(at.index);
        }
        let mut seqs_of: BTreeMap<Vec<u32>, Vec<u64>> = BTreeMap::new();
        for (seq, indexes) in indexes_of {
            seqs_of.entry(indexes).or_default().push(seq);
        }
        for (indexes, seqs) in seqs_of {
            let (seqs, indexes) = (list(seqs), list(indexes));
            each.push(format!("({} AND seq IN ({seqs}) AND event_index IN ({indexes}))", room_is(room)));
        }
    }
    format!("({})", each.join(" OR "))
}

/// Takes the due rooms of each tenant. Index: `outbox_room_due`. The last statement gives what was taken.
pub(super) fn claim(request: &ClaimRequest) -> String {
    let token = token(request.token);
    let mut text =
        format!("{SET_NOW}SET @until = @now + {};\nSTART TRANSACTION;\n", request.lease.as_millis());
    for quota in &request.quotas {
        claim_app(&mut text, request, quota, &token);
    }
    let apps = list(request.quotas.iter().map(|quota| bytes(quota.app_code.as_bytes())));
    let _infallible = write!(
        text,
        "COMMIT;\nSELECT app_code, room_id, attempts, lost_claims, due_ms FROM outbox_room \
         FORCE INDEX (outbox_room_due) WHERE app_code IN ({apps}) AND due_ms = @until AND lease_token = {token}"
    );
    text
}

fn claim_app(text: &mut String, request: &ClaimRequest, quota: &AppQuota, token: &str) {
    let due = request.due_by_ms.map_or("@now".to_owned(), |due_by| format!("LEAST(@now, {due_by})"));
    let _infallible = writeln!(
        text,
        "UPDATE (SELECT app_code, room_id FROM outbox_room FORCE INDEX (outbox_room_due) \
         WHERE app_code = {app} AND due_ms <= {due} ORDER BY due_ms LIMIT {rooms} FOR UPDATE SKIP LOCKED) c \
         STRAIGHT_JOIN outbox_room r FORCE INDEX (PRIMARY) ON r.app_code = c.app_code AND r.room_id = c.room_id \
         SET r.lost_claims = IF(r.lease_token IS NULL, 0, r.lost_claims + 1), r.attempts = r.attempts + 1, \
         r.due_ms = @until, r.lease_until_ms = @until, r.worker_id = {worker}, r.lease_token = {token};",
        app = bytes(quota.app_code.as_bytes()),
        rooms = quota.rooms,
        worker = bytes(request.worker_id.as_bytes()),
    );
}

/// The first undelivered events of each room, in order. Index: the primary key.
pub(super) fn read<'a>(rooms: impl IntoIterator<Item = (&'a RoomKey, u32)>) -> String {
    let each = rooms.into_iter().map(|(room, limit)| {
        format!(
            "(SELECT app_code, room_id, seq, event_index, event_type, envelope, attempts FROM room_outbox \
             WHERE {} AND state <> 'failed' ORDER BY seq, event_index LIMIT {limit})",
            room_is(room)
        )
    });
    each.collect::<Vec<_>>().join("\nUNION ALL ")
}

/// Marks events `delivering`, if the claim on their room still stands.
pub(super) fn mark<'a>(
    claim: ClaimToken,
    worker_id: &str,
    until_ms: i64,
    rooms: impl IntoIterator<Item = (&'a RoomKey, &'a [EventPosition])>,
) -> String {
    format!(
        "UPDATE room_outbox e FORCE INDEX (PRIMARY) SET state = 'delivering', worker_id = {worker}, lock_until_ms = {until_ms}, \
         claim_token = {token}, attempts = attempts + 1 WHERE {events} AND state <> 'failed' \
         AND EXISTS (SELECT 1 FROM outbox_room r WHERE r.app_code = e.app_code AND r.room_id = e.room_id \
         AND r.lease_token = {token})",
        worker = bytes(worker_id.as_bytes()),
        token = token(claim),
        events = events_are(rooms),
    )
}

/// Which of these events carry the claim's token.
pub(super) fn marked<'a>(
    claim: ClaimToken,
    rooms: impl IntoIterator<Item = (&'a RoomKey, &'a [EventPosition])>,
) -> String {
    let (events, token) = (events_are(rooms), token(claim));
    format!(
        "SELECT app_code, room_id, seq, event_index FROM room_outbox WHERE {events} AND claim_token = {token}"
    )
}

/// The text of a report, and which of its statements count what.
pub(super) struct ReportText {
    /// The statements; the last one gives the rooms that are still held by the claim.
    pub(super) text: String,
    /// Places of the statements that change event rows.
    pub(super) event_statements: Vec<usize>,
}

/// Records a report in one transaction: event rows first, then the rooms, skipping those that a producer locks.
pub(super) fn report(claim: ClaimToken, rooms: &[RoomReport]) -> ReportText {
    let token = token(claim);
    let mut statements =
        vec![SET_NOW.trim_end().trim_end_matches(';').to_owned(), "START TRANSACTION".to_owned()];
    let first_event_statement = statements.len();
    let delivered: Vec<_> = rooms
        .iter()
        .filter(|report| !report.delivered.is_empty())
        .map(|report| (&report.room, report.delivered.as_slice()))
        .collect();
    if !delivered.is_empty() {
        let events = events_are(delivered);
        statements.push(format!(
            "DELETE e FROM room_outbox e FORCE INDEX (PRIMARY) WHERE {events} AND claim_token = {token}"
        ));
    }
    for report in rooms {
        statements.extend(undelivered(report, &token));
    }
    let event_statements = (first_event_statement..statements.len()).collect();
    let mut groups: BTreeMap<(u64, Next), Vec<&RoomKey>> = BTreeMap::new();
    for report in rooms.iter().filter(|report| !report.recount) {
        groups.entry((report.settled(), report.next)).or_default().push(&report.room);
    }
    for ((settled, next), group) in groups {
        statements.push(format!(
            "UPDATE (SELECT app_code, room_id FROM outbox_room FORCE INDEX (PRIMARY) WHERE {} \
             AND lease_token = {token} LIMIT {} FOR UPDATE SKIP LOCKED) c \
             STRAIGHT_JOIN outbox_room r FORCE INDEX (PRIMARY) ON r.app_code = c.app_code AND r.room_id = c.room_id SET {}",
            rooms_are(group.iter().copied()),
            group.len(),
            give_back(settled, next),
        ));
    }
    statements.push("COMMIT".to_owned());
    let rooms = rooms_are(rooms.iter().map(|report| &report.room));
    statements
        .push(format!("SELECT app_code, room_id FROM outbox_room WHERE {rooms} AND lease_token = {token}"));
    ReportText { text: statements.join(";\n"), event_statements }
}

/// The statements for the events of a room that were not delivered.
fn undelivered(report: &RoomReport, token: &str) -> Vec<String> {
    const FREE: &str = "worker_id = NULL, lock_until_ms = NULL, claim_token = NULL";
    let mut statements = Vec::new();
    let only = |positions| events_are([(&report.room, positions)]);
    if let Some((position, error)) = &report.failed {
        let (events, error) = (only(std::slice::from_ref(position)), bytes(cut_error(error).as_bytes()));
        statements.push(format!(
            "UPDATE room_outbox FORCE INDEX (PRIMARY) SET state = 'failed', last_error = {error}, {FREE} \
             WHERE {events} AND claim_token = {token}"
        ));
    }
    let (tried, untried) = match &report.error {
        Some(_) => report.retryable.split_at(report.retryable.len().min(1)),
        None => report.retryable.split_at(0),
    };
    if let (Some(error), false) = (&report.error, tried.is_empty()) {
        let (events, error) = (only(tried), bytes(cut_error(error).as_bytes()));
        statements.push(format!(
            "UPDATE room_outbox FORCE INDEX (PRIMARY) SET state = 'retryable', last_error = {error}, {FREE} \
             WHERE {events} AND claim_token = {token}"
        ));
    }
    if !untried.is_empty() {
        let events = only(untried);
        statements.push(format!(
            "UPDATE room_outbox FORCE INDEX (PRIMARY) SET state = 'retryable', {FREE} WHERE {events} AND claim_token = {token}"
        ));
    }
    statements
}

/// The assignments that give a room back. `due_ms` comes before `pending`, so that it reads the old one.
fn give_back(settled: u64, next: Next) -> String {
    let due = match next {
        Next::Now | Next::Untried => format!("IF(pending > {settled}, @now, NULL)"),
        Next::Due(due_ms) => format!("IF(pending > {settled}, {due_ms}, NULL)"),
        Next::After(pause) => format!("IF(pending > {settled}, @now + {}, NULL)", pause.as_millis()),
        // Also when nothing is left: the next event must wait too.
        Next::Blocked => BLOCKED_DUE_MS.to_string(),
    };
    let attempts = match next {
        Next::Untried => "IF(attempts > 0, attempts - 1, 0)",
        _ if settled > 0 => "0",
        Next::Now | Next::Due(_) | Next::After(_) | Next::Blocked => "attempts",
    };
    format!(
        "due_ms = {due}, attempts = {attempts}, pending = GREATEST(pending - {settled}, 0), \
         lease_token = NULL, lease_until_ms = NULL, worker_id = NULL"
    )
}

/// Gives one room back, waiting for its lock.
pub(super) fn settle(claim: ClaimToken, report: &RoomReport) -> String {
    let (room, token) = (room_is(&report.room), token(claim));
    if report.recount {
        return format!(
            "{SET_NOW}START TRANSACTION;\n\
             SELECT 1 FROM outbox_room WHERE {room} AND lease_token = {token} FOR UPDATE;\n\
             {}{} WHERE {room} AND lease_token = {token};\nCOMMIT",
            count_left(&room),
            set_counted(),
        );
    }
    let assignments = give_back(report.settled(), report.next);
    format!("{SET_NOW}UPDATE outbox_room SET {assignments} WHERE {room} AND lease_token = {token}")
}

/// Counts what a room has left into `@left`. Exact while the room's row is locked: producers lock it too.
fn count_left(room: &str) -> String {
    format!("SET @left = (SELECT COUNT(*) FROM room_outbox WHERE {room} AND state <> 'failed');\n")
}

fn set_counted() -> &'static str {
    "UPDATE outbox_room SET due_ms = IF(@left > 0, @now, NULL), pending = @left, \
     lease_token = NULL, lease_until_ms = NULL, worker_id = NULL"
}

/// The tenant after this one. Index: the primary key, one step.
pub(super) fn next_app(after: &[u8]) -> String {
    format!("SELECT MIN(app_code) FROM outbox_room WHERE app_code > {}", bytes(after))
}

/// Undelivered events of a tenant and the time of the oldest. Index: `outbox_room_due`, then primary keys.
pub(super) fn backlog(app_code: &str) -> String {
    let app = bytes(app_code.as_bytes());
    format!(
        "SELECT CAST(COALESCE(SUM(w.pending), 0) AS SIGNED) FROM (SELECT pending FROM outbox_room \
         FORCE INDEX (outbox_room_due) WHERE app_code = {app} AND due_ms IS NOT NULL LIMIT {MAX_BACKLOG_ROOMS}) w;\n\
         SELECT {now} - MIN((SELECT e.created_at_ms FROM room_outbox e WHERE e.app_code = r.app_code \
         AND e.room_id = r.room_id AND e.state <> 'failed' ORDER BY e.seq, e.event_index LIMIT 1)) \
         FROM (SELECT app_code, room_id FROM outbox_room FORCE INDEX (outbox_room_due) WHERE app_code = {app} \
         AND due_ms IS NOT NULL ORDER BY due_ms LIMIT {MAX_OLDEST_ROOMS}) r",
        now = NOW.trim_start_matches("SELECT "),
    )
}

/// The room of the first event row after a room's, or of all, and when it is due. Index: the primary key, one step.
pub(super) fn next_room(after: Option<&RoomKey>) -> String {
    let after = after.map_or("1".to_owned(), |room| {
        let (app, room) = (bytes(room.app_code().as_bytes()), bytes(room.room_id().as_bytes()));
        format!("(e.app_code = {app} AND e.room_id > {room} OR e.app_code > {app})")
    });
    format!(
        "SELECT e.app_code, e.room_id, (SELECT r.due_ms FROM outbox_room r WHERE r.app_code = e.app_code \
         AND r.room_id = e.room_id) FROM room_outbox e WHERE {after} ORDER BY e.app_code, e.room_id LIMIT 1"
    )
}

/// Makes a room claimable that has undelivered events and is not. The last statement but COMMIT counts.
pub(super) fn mend(room: &RoomKey) -> String {
    let this = room_is(room);
    let (app, id) = (bytes(room.app_code().as_bytes()), bytes(room.room_id().as_bytes()));
    format!(
        "{SET_NOW}START TRANSACTION;\n\
         INSERT INTO outbox_room (app_code, room_id, due_ms, pending) VALUES ({app}, {id}, NULL, 0) \
         ON DUPLICATE KEY UPDATE pending = pending;\n\
         {}UPDATE outbox_room SET due_ms = @now, pending = @left WHERE {this} AND due_ms IS NULL AND @left > 0;\n\
         COMMIT",
        count_left(&this),
    )
}

/// Failed events with their errors.
pub(super) fn failed(limit: u32) -> String {
    format!(
        "SELECT app_code, room_id, seq, event_index, event_type, envelope, attempts, last_error FROM room_outbox \
         WHERE state = 'failed' ORDER BY app_code, room_id, seq, event_index LIMIT {limit}"
    )
}

/// Puts the failed events of a room on their way again. The fourth statement counts them.
pub(super) fn revive(room: &RoomKey) -> String {
    let this = room_is(room);
    format!(
        "{SET_NOW}START TRANSACTION;\n\
         SELECT 1 FROM outbox_room WHERE {this} FOR UPDATE;\n\
         UPDATE room_outbox FORCE INDEX (PRIMARY) SET state = 'retryable' WHERE {this} AND state = 'failed';\n\
         SET @revived = ROW_COUNT();\n\
         UPDATE outbox_room SET pending = pending + @revived, \
         due_ms = IF(due_ms IS NULL OR due_ms = {BLOCKED_DUE_MS}, @now, due_ms) WHERE {this} AND @revived > 0;\n\
         COMMIT"
    )
}
