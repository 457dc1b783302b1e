//! Ledger and sink, sorted by room: they come in the order of time and may be larger than memory.
//!
//! They go into a scratch database on disk that ends with the audit, and are read back like any other table.

use sqlx::{QueryBuilder, Sqlite, SqlitePool};

use super::AuditError;
use super::db::Column::{Bytes, Int};
use super::db::{Column, Columns, Db, Paged};
use super::rows::RoomRef;

/// Rows written with one statement.
const BATCH: usize = 500;

const SCHEMA: &str = "
CREATE TABLE acked (
  app_code BLOB NOT NULL, room_id BLOB NOT NULL, seq INTEGER NOT NULL, command_id BLOB NOT NULL,
  epoch INTEGER NOT NULL, hash BLOB NOT NULL, number INTEGER NOT NULL,
  PRIMARY KEY (app_code, room_id, seq, number)) WITHOUT ROWID;
CREATE TABLE unsettled (
  app_code BLOB NOT NULL, room_id BLOB NOT NULL, command_id BLOB NOT NULL, refused INTEGER NOT NULL,
  PRIMARY KEY (app_code, room_id, command_id)) WITHOUT ROWID;
CREATE TABLE delivered (
  app_code BLOB NOT NULL, room_id BLOB NOT NULL, seq INTEGER NOT NULL, event_index INTEGER NOT NULL,
  place INTEGER NOT NULL, hash BLOB NOT NULL,
  PRIMARY KEY (app_code, room_id, seq, event_index)) WITHOUT ROWID;
";

/// An acknowledged command of a ledger.
#[derive(Debug, Clone)]
pub(crate) struct AckRow {
    pub(crate) room: RoomRef,
    pub(crate) seq: u64,
    /// Its number among all ledgers' lines: a seq that two commands claim is kept twice.
    pub(crate) number: u64,
    pub(crate) command_id: Vec<u8>,
    pub(crate) epoch: u64,
    pub(crate) hash: Vec<u8>,
}

impl Paged for AckRow {
    const SELECT: &'static str = "SELECT app_code, room_id, seq, number, command_id, epoch, hash FROM acked";
    const COLUMNS: &'static [Column] = &[Bytes, Bytes, Int, Int, Bytes, Int, Bytes];
    const KEY: &'static [&'static str] = &["app_code", "room_id", "seq", "number"];
    const PAGE: usize = 1_000;

    fn decode(mut columns: Columns) -> Result<Self, AuditError> {
        Ok(Self {
            room: columns.room()?,
            seq: columns.number()?,
            number: columns.number()?,
            command_id: columns.bytes()?,
            epoch: columns.number()?,
            hash: columns.bytes()?,
        })
    }

    fn room(&self) -> &RoomRef {
        &self.room
    }

    fn seq(&self) -> u64 {
        self.seq
    }
}

/// A command of a ledger that was given up or refused.
#[derive(Debug, Clone)]
pub(crate) struct UnsettledRow {
    pub(crate) room: RoomRef,
    pub(crate) command_id: Vec<u8>,
    pub(crate) refused: bool,
}

impl Paged for UnsettledRow {
    const SELECT: &'static str = "SELECT app_code, room_id, command_id, refused FROM unsettled";
    const COLUMNS: &'static [Column] = &[Bytes, Bytes, Bytes, Int];
    const KEY: &'static [&'static str] = &["app_code", "room_id", "command_id"];
    const PAGE: usize = 1_000;

    fn decode(mut columns: Columns) -> Result<Self, AuditError> {
        Ok(Self { room: columns.room()?, command_id: columns.bytes()?, refused: columns.number()? != 0 })
    }

    fn room(&self) -> &RoomRef {
        &self.room
    }

    fn seq(&self) -> u64 {
        0
    }
}

/// The first delivery of an event.
#[derive(Debug, Clone)]
pub(crate) struct DeliveredRow {
    pub(crate) room: RoomRef,
    pub(crate) seq: u64,
    pub(crate) index: u64,
    /// Where it came first among all deliveries of the sink.
    pub(crate) place: u64,
    /// blake3 of the event's bytes.
    pub(crate) hash: Vec<u8>,
}

impl Paged for DeliveredRow {
    const SELECT: &'static str = "SELECT app_code, room_id, seq, event_index, place, hash FROM delivered";
    const COLUMNS: &'static [Column] = &[Bytes, Bytes, Int, Int, Int, Bytes];
    const KEY: &'static [&'static str] = &["app_code", "room_id", "seq", "event_index"];
    const PAGE: usize = 1_000;

    fn decode(mut columns: Columns) -> Result<Self, AuditError> {
        Ok(Self {
            room: columns.room()?,
            seq: columns.number()?,
            index: columns.number()?,
            place: columns.number()?,
            hash: columns.bytes()?,
        })
    }

    fn room(&self) -> &RoomRef {
        &self.room
    }

    fn seq(&self) -> u64 {
        self.seq
    }
}

/// The scratch database and what waits to be written to it.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// For reading.
    pub(crate) db: Db,
    pool: SqlitePool,
    acked: Vec<AckRow>,
    unsettled: Vec<UnsettledRow>,
    delivered: Vec<DeliveredRow>,
}

impl Scratch {
    /// An empty one.
    pub(crate) async fn open() -> Result<Self, AuditError> {
        let db = Db::scratch().await?;
        let Db::Sqlite(pool) = &db else { return Err(AuditError::Url) };
        let pool = pool.clone();
        sqlx::raw_sql(SCHEMA).execute(&pool).await.map_err(AuditError::Scratch)?;
        Ok(Self { db, pool, acked: Vec::new(), unsettled: Vec::new(), delivered: Vec::new() })
    }

    /// Keeps an acknowledged command.
    pub(crate) async fn acked(&mut self, row: AckRow) -> Result<(), AuditError> {
        self.acked.push(row);
        if self.acked.len() < BATCH { Ok(()) } else { self.flush().await }
    }

    /// Keeps a command that was given up or refused.
    pub(crate) async fn unsettled(&mut self, row: UnsettledRow) -> Result<(), AuditError> {
        self.unsettled.push(row);
        if self.unsettled.len() < BATCH { Ok(()) } else { self.flush().await }
    }

    /// Keeps a delivery; only the first of an event counts.
    pub(crate) async fn delivered(&mut self, row: DeliveredRow) -> Result<(), AuditError> {
        self.delivered.push(row);
        if self.delivered.len() < BATCH { Ok(()) } else { self.flush().await }
    }

    /// Writes what waits.
    pub(crate) async fn flush(&mut self) -> Result<(), AuditError> {
        let acked = std::mem::take(&mut self.acked);
        self.insert(
            "INSERT INTO acked (app_code, room_id, seq, number, command_id, epoch, hash) ",
            acked,
            |row, to| {
                to.push_bind(row.room.app)
                    .push_bind(row.room.room)
                    .push_bind(signed(row.seq))
                    .push_bind(signed(row.number))
                    .push_bind(row.command_id)
                    .push_bind(signed(row.epoch))
                    .push_bind(row.hash);
            },
        )
        .await?;
        let unsettled = std::mem::take(&mut self.unsettled);
        let sql = "INSERT OR REPLACE INTO unsettled (app_code, room_id, command_id, refused) ";
        self.insert(sql, unsettled, |row, to| {
            to.push_bind(row.room.app)
                .push_bind(row.room.room)
                .push_bind(row.command_id)
                .push_bind(i64::from(row.refused));
        })
        .await?;
        let delivered = std::mem::take(&mut self.delivered);
        let sql = "INSERT OR IGNORE INTO delivered (app_code, room_id, seq, event_index, place, hash) ";
        self.insert(sql, delivered, |row, to| {
            to.push_bind(row.room.app)
                .push_bind(row.room.room)
                .push_bind(signed(row.seq))
                .push_bind(signed(row.index))
                .push_bind(signed(row.place))
                .push_bind(row.hash);
        })
        .await
    }

    async fn insert<T>(
        &self,
        sql: &'static str,
        rows: Vec<T>,
        mut bind: impl FnMut(T, &mut sqlx::query_builder::Separated<'_, Sqlite, &'static str>),
    ) -> Result<(), AuditError> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut query = QueryBuilder::<Sqlite>::new(sql);
        query.push_values(rows, |mut to, row| bind(row, &mut to));
        query.build().execute(&self.pool).await.map_err(AuditError::Scratch)?;
        Ok(())
    }
}

/// SQLite has signed numbers only; what does not fit was never written by this program and equals nothing.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
