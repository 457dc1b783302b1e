//! Walks log, heads, owners, snapshots, outbox, ledger and sink together, room by room.
//!
//! All are read in the order of their keys, so that each is read once and memory is bounded by a page of each.

use super::AuditError;
use super::db::{Column, Db, Pages, Value};
use super::findings::{Findings, Kind};
use super::room::{Outgoing, RoomCheck, check_ack};
use super::rows::{HeadRow, LogRow, OutboxRow, OwnerRow, RoomRef, SnapshotRow};
use super::scratch::{AckRow, DeliveredRow, Scratch, UnsettledRow};
use crate::logic::RoomLogic;

/// Doubled ids that are named; their number is counted in full.
const DOUBLED_NAMED: usize = 100;

/// Everything that is compared.
pub(crate) struct Walk<'a, L> {
    logic: &'a L,
    db: &'a Db,
    sink_checked: bool,
    log: Pages<LogRow>,
    heads: Pages<HeadRow>,
    owners: Pages<OwnerRow>,
    snapshots: Pages<SnapshotRow>,
    outbox: Pages<OutboxRow>,
    acks: Pages<AckRow>,
    delivered: Pages<DeliveredRow>,
}

impl<'a, L: RoomLogic> Walk<'a, L> {
    /// From the first room on.
    pub(crate) fn new(logic: &'a L, db: &'a Db, scratch: &Scratch, sink_checked: bool) -> Self {
        Self {
            logic,
            db,
            sink_checked,
            log: Pages::new(db),
            heads: Pages::new(db),
            owners: Pages::new(db),
            snapshots: Pages::new(db),
            outbox: Pages::new(db),
            acks: Pages::new(&scratch.db),
            delivered: if sink_checked { Pages::new(&scratch.db) } else { Pages::none(&scratch.db) },
        }
    }

    /// Checks all rooms.
    pub(crate) async fn run(mut self, findings: &mut Findings) -> Result<(), AuditError> {
        while let Some(room) = self.next_room().await? {
            findings.counts.rooms += 1;
            self.check_room(room, findings).await?;
        }
        Ok(())
    }

    /// The first room that any of the tables has still rows of.
    async fn next_room(&mut self) -> Result<Option<RoomRef>, AuditError> {
        let mut first: Option<RoomRef> = None;
        let mut look = |room: Option<&RoomRef>| {
            if let Some(room) = room
                && first.as_ref().is_none_or(|first| room < first)
            {
                first = Some(room.clone());
            }
        };
        look(self.log.peek().await?.map(|row| &row.room));
        look(self.heads.peek().await?.map(|row| &row.room));
        look(self.owners.peek().await?.map(|row| &row.room));
        look(self.snapshots.peek().await?.map(|row| &row.room));
        look(self.outbox.peek().await?.map(|row| &row.room));
        look(self.acks.peek().await?.map(|row| &row.room));
        look(self.delivered.peek().await?.map(|row| &row.room));
        Ok(first)
    }

    async fn check_room(&mut self, room: RoomRef, findings: &mut Findings) -> Result<(), AuditError> {
        let head = self.heads.next_of(&room).await?;
        let owner = self.owners.next_of(&room).await?;
        let snapshot = self.snapshots.next_of(&room).await?;
        let mut check = RoomCheck::new(self.logic, room.clone(), snapshot, self.sink_checked);
        while let Some(row) = self.log.next_of(&room).await? {
            self.match_acks(&row, findings).await?;
            let outgoing = self.outgoing(&row, findings).await?;
            check.row(&row, &outgoing, findings);
        }
        while let Some(ack) = self.acks.next_of(&room).await? {
            self.ack_elsewhere(&ack, findings).await?;
        }
        while let Some(event) = self.delivered.next_of(&room).await? {
            findings.counts.events_delivered += 1;
            unexpected(&room, event.seq, event.index, "delivered", findings);
        }
        while let Some(event) = self.outbox.next_of(&room).await? {
            unexpected(&room, event.seq, event.index, "in the outbox", findings);
        }
        check.end(head.as_ref(), owner.as_ref(), findings);
        Ok(())
    }

    /// Compares the acknowledgements up to this row with it.
    async fn match_acks(&mut self, row: &LogRow, findings: &mut Findings) -> Result<(), AuditError> {
        while let Some(ack) = self.acks.next_up_to(&row.room, row.seq).await? {
            if ack.seq == row.seq && ack.command_id == row.command_id {
                check_ack(&ack, row, findings);
            } else {
                self.ack_elsewhere(&ack, findings).await?;
            }
        }
        Ok(())
    }

    /// An acknowledged command is not where it should be: elsewhere, or lost?
    async fn ack_elsewhere(&self, ack: &AckRow, findings: &mut Findings) -> Result<(), AuditError> {
        let id = || String::from_utf8_lossy(&ack.command_id).into_owned();
        let sql = "SELECT CAST(seq AS SIGNED) FROM room_command_log \
             WHERE app_code = ? AND room_id = ? AND command_id = ? ORDER BY seq LIMIT 1";
        let found =
            self.db.fetch(sql.to_owned(), &key_of(&ack.room, &ack.command_id), &[Column::Int]).await?;
        match found.first().and_then(|row| row.first()) {
            Some(Value::Int(seq)) => findings.violation(Kind::AckOtherSeq, &ack.room, ack.seq, || {
                format!("command {} was acknowledged at this seq, the log has it at {seq}", id())
            }),
            Some(Value::Bytes(_)) | None => {
                findings.counts.commands_lost += 1;
                findings.violation(Kind::AckLost, &ack.room, ack.seq, || {
                    format!("command {} was acknowledged and is not in the log", id())
                });
            }
        }
        Ok(())
    }

    /// What is known of the events of this row; those of rows that do not exist are violations.
    async fn outgoing(&mut self, row: &LogRow, findings: &mut Findings) -> Result<Outgoing, AuditError> {
        let mut outgoing = Outgoing::default();
        while let Some(event) = self.delivered.next_up_to(&row.room, row.seq).await? {
            findings.counts.events_delivered += 1;
            if event.seq == row.seq {
                outgoing.delivered.push(event);
            } else {
                unexpected(&row.room, event.seq, event.index, "delivered", findings);
            }
        }
        while let Some(event) = self.outbox.next_up_to(&row.room, row.seq).await? {
            if event.seq == row.seq {
                outgoing.waiting.insert(event.index, event.state);
            } else {
                unexpected(&row.room, event.seq, event.index, "in the outbox", findings);
            }
        }
        Ok(outgoing)
    }
}

fn unexpected(room: &RoomRef, seq: u64, index: u64, place: &str, findings: &mut Findings) {
    findings.violation(Kind::EventUnexpected, room, seq, || {
        format!("event {index} is {place}, its command is not in the log")
    });
}

fn key_of(room: &RoomRef, command_id: &[u8]) -> [Value; 3] {
    [Value::Bytes(room.app.clone()), Value::Bytes(room.room.clone()), Value::Bytes(command_id.to_vec())]
}

/// Finds command ids that a room's log has twice.
pub(crate) async fn check_doubled(db: &Db, findings: &mut Findings) -> Result<(), AuditError> {
    // Served by the unique key over (app_code, room_id, command_id), where there is one.
    let groups = "SELECT app_code, room_id, command_id, COUNT(*) AS times, MAX(seq) AS last FROM room_command_log \
         GROUP BY app_code, room_id, command_id HAVING COUNT(*) > 1";
    let sql = format!("SELECT COALESCE(CAST(SUM(times - 1) AS SIGNED), 0) FROM ({groups}) doubled");
    findings.counts.commands_doubled = db.number(&sql, &[]).await?;
    if findings.counts.commands_doubled == 0 {
        return Ok(());
    }
    let sql = format!(
        "SELECT app_code, room_id, command_id, CAST(times AS SIGNED), CAST(last AS SIGNED) FROM ({groups}) doubled \
         LIMIT {DOUBLED_NAMED}"
    );
    let columns = [Column::Bytes, Column::Bytes, Column::Bytes, Column::Int, Column::Int];
    for row in db.fetch(sql, &[], &columns).await? {
        if let [
            Value::Bytes(app),
            Value::Bytes(room),
            Value::Bytes(id),
            Value::Int(times),
            Value::Int(last),
        ] = &row[..]
        {
            let room = RoomRef { app: app.clone(), room: room.clone() };
            findings.violation(Kind::CommandDoubled, &room, last.unsigned_abs(), || {
                format!("command {} is in the log {times} times", String::from_utf8_lossy(id))
            });
        }
    }
    Ok(())
}

/// Looks up what became of the commands that were given up or refused.
pub(crate) async fn check_unsettled(
    db: &Db,
    scratch: &Scratch,
    findings: &mut Findings,
) -> Result<(), AuditError> {
    let mut unsettled = Pages::<UnsettledRow>::new(&scratch.db);
    while let Some(row) = unsettled.next().await? {
        let sql = "SELECT CAST(COUNT(*) AS SIGNED) FROM room_command_log \
             WHERE app_code = ? AND room_id = ? AND command_id = ?";
        let times = db.number(sql, &key_of(&row.room, &row.command_id)).await?;
        match (row.refused, times) {
            (_, 0) => {}
            // More than once is found by the search for doubled ids.
            (false, _) => findings.counts.unknown_committed += 1,
            (true, _) => findings.violation(Kind::RefusedInLog, &row.room, 0, || {
                format!("command {} was refused and is in the log", String::from_utf8_lossy(&row.command_id))
            }),
        }
    }
    Ok(())
}
