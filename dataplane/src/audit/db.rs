//! Reads MySQL, MariaDB and SQLite in key order, page by page.
//!
//! Knows tables only through [`Paged`]. A page begins where the last one ended, so that memory stays bounded and
//! no transaction stays open. Numbers are read as signed: the largest that this program writes fits.

use std::collections::VecDeque;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Row};

use super::AuditError;
use super::rows::RoomRef;

/// Wait for a connection: an audit may come while a test's database still starts.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

/// A column's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Bytes(Vec<u8>),
    Int(i64),
}

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    Bytes,
    Int,
}

/// A row being taken apart, column by column.
#[derive(Debug)]
pub(crate) struct Columns(std::vec::IntoIter<Value>);

impl Columns {
    /// The next column, which holds bytes.
    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, AuditError> {
        match self.0.next() {
            Some(Value::Bytes(bytes)) => Ok(bytes),
            other => Err(AuditError::Column(format!("{other:?}"))),
        }
    }

    /// The next column, which holds a number that is not negative.
    pub(crate) fn number(&mut self) -> Result<u64, AuditError> {
        match self.0.next() {
            Some(Value::Int(number)) if number >= 0 => Ok(number.unsigned_abs()),
            other => Err(AuditError::Column(format!("{other:?}"))),
        }
    }

    /// The next two columns, which name a room.
    pub(crate) fn room(&mut self) -> Result<RoomRef, AuditError> {
        Ok(RoomRef { app: self.bytes()?, room: self.bytes()? })
    }
}

/// A database.
#[derive(Debug, Clone)]
pub(crate) enum Db {
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

macro_rules! fetch_rows {
    ($pool:expr, $sql:expr, $binds:expr, $columns:expr) => {{
        let mut query = sqlx::query(AssertSqlSafe($sql));
        for bind in $binds {
            query = match bind {
                Value::Bytes(bytes) => query.bind(bytes),
                Value::Int(number) => query.bind(number),
            };
        }
        let rows = query.fetch_all($pool).await.map_err(AuditError::Query)?;
        rows.iter()
            .map(|row| {
                let column = |(at, column): (usize, &Column)| match column {
                    Column::Bytes => row.try_get(at).map(Value::Bytes),
                    Column::Int => row.try_get(at).map(Value::Int),
                };
                let values: Result<Vec<_>, _> = $columns.iter().enumerate().map(column).collect();
                values.map_err(AuditError::Query)
            })
            .collect()
    }};
}

impl Db {
    /// Opens the database of a URL, for reading.
    pub(crate) async fn open(url: &SecretString) -> Result<Self, AuditError> {
        let text = url.expose_secret();
        // The parser's own error would repeat the URL, and with it the password.
        let invalid = |_| AuditError::Url;
        match text.split_once(':').map(|(scheme, _)| scheme) {
            Some("mysql" | "mariadb") => {
                let options: MySqlConnectOptions = text.parse().map_err(invalid)?;
                let pool = MySqlPoolOptions::new().max_connections(2).acquire_timeout(ACQUIRE_TIMEOUT);
                Ok(Self::MySql(pool.connect_with(options).await.map_err(AuditError::Connect)?))
            }
            Some("sqlite") => {
                let options: SqliteConnectOptions = text.parse().map_err(invalid)?;
                let options = options.create_if_missing(false);
                let pool = SqlitePoolOptions::new().max_connections(2).acquire_timeout(ACQUIRE_TIMEOUT);
                Ok(Self::Sqlite(pool.connect_with(options).await.map_err(AuditError::Connect)?))
            }
            _ => Err(AuditError::Url),
        }
    }

    /// A database of its own on disk, which goes when it is dropped.
    pub(crate) async fn scratch() -> Result<Self, AuditError> {
        // SQLite keeps a database without a name in a temporary file that belongs to its one connection.
        let options = SqliteConnectOptions::new()
            .filename("")
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Off)
            .synchronous(SqliteSynchronous::Off);
        let pool = SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        Ok(Self::Sqlite(pool.connect_with(options).await.map_err(AuditError::Connect)?))
    }

    /// All rows of a query.
    pub(crate) async fn fetch(
        &self,
        sql: String,
        binds: &[Value],
        columns: &[Column],
    ) -> Result<Vec<Vec<Value>>, AuditError> {
        match self {
            Self::MySql(pool) => fetch_rows!(pool, sql, binds, columns),
            Self::Sqlite(pool) => fetch_rows!(pool, sql, binds, columns),
        }
    }

    /// The number that a query gives.
    pub(crate) async fn number(&self, sql: &str, binds: &[Value]) -> Result<u64, AuditError> {
        let rows = self.fetch(sql.to_owned(), binds, &[Column::Int]).await?;
        let row = rows.into_iter().next().ok_or_else(|| AuditError::Column("no row".to_owned()))?;
        Columns(row.into_iter()).number()
    }

    /// The condition that a key is above a given one, with the binds in their order.
    fn above(&self, key: &[&str], last: &[Value]) -> (String, Vec<Value>) {
        match self {
            // SQLite walks the index from a row value; its OR would sort.
            Self::Sqlite(_) => {
                let marks = vec!["?"; key.len()].join(", ");
                (format!("({}) > ({marks})", key.join(", ")), last.to_vec())
            }
            // MySQL makes ranges of nested conditions, and none of a row value.
            Self::MySql(_) => {
                let (mut text, mut binds) = (String::new(), Vec::new());
                for (at, column) in key.iter().enumerate() {
                    binds.push(last[at].clone());
                    if at + 1 == key.len() {
                        text.push_str(&format!("{column} > ?"));
                    } else {
                        text.push_str(&format!("({column} > ? OR ({column} = ? AND "));
                        binds.push(last[at].clone());
                    }
                }
                text.push_str(&"))".repeat(key.len() - 1));
                (text, binds)
            }
        }
    }
}

/// A kind of row that is read in the order of its key.
pub(crate) trait Paged: Sized {
    /// The columns, those of the key first, and the table.
    const SELECT: &'static str;
    /// What the columns hold.
    const COLUMNS: &'static [Column];
    /// The columns of the key, a prefix of an index.
    const KEY: &'static [&'static str];
    /// Rows read at a time.
    const PAGE: usize;

    /// Takes a row apart.
    fn decode(columns: Columns) -> Result<Self, AuditError>;
    /// The room that the row belongs to.
    fn room(&self) -> &RoomRef;
    /// Where the row stands in its room.
    fn seq(&self) -> u64;
}

/// The rows of a table in the order of their key.
#[derive(Debug)]
pub(crate) struct Pages<T> {
    db: Db,
    buffer: VecDeque<T>,
    last: Option<Vec<Value>>,
    ended: bool,
}

impl<T: Paged> Pages<T> {
    /// From the first row on.
    pub(crate) fn new(db: &Db) -> Self {
        Self { db: db.clone(), buffer: VecDeque::new(), last: None, ended: false }
    }

    /// No rows at all.
    pub(crate) fn none(db: &Db) -> Self {
        Self { ended: true, ..Self::new(db) }
    }

    /// The next row, without taking it.
    pub(crate) async fn peek(&mut self) -> Result<Option<&T>, AuditError> {
        if self.buffer.is_empty() && !self.ended {
            self.read_page().await?;
        }
        Ok(self.buffer.front())
    }

    /// Takes the next row.
    pub(crate) async fn next(&mut self) -> Result<Option<T>, AuditError> {
        self.peek().await?;
        Ok(self.buffer.pop_front())
    }

    /// Takes the next row if it belongs to this room.
    pub(crate) async fn next_of(&mut self, room: &RoomRef) -> Result<Option<T>, AuditError> {
        match self.peek().await? {
            Some(row) if row.room() == room => self.next().await,
            _ => Ok(None),
        }
    }

    /// Takes the next row if it belongs to this room and stands at `seq` or before.
    pub(crate) async fn next_up_to(&mut self, room: &RoomRef, seq: u64) -> Result<Option<T>, AuditError> {
        match self.peek().await? {
            Some(row) if row.room() == room && row.seq() <= seq => self.next().await,
            _ => Ok(None),
        }
    }

    async fn read_page(&mut self) -> Result<(), AuditError> {
        let (condition, binds) = match &self.last {
            Some(last) => {
                let (condition, binds) = self.db.above(T::KEY, last);
                (format!(" WHERE {condition}"), binds)
            }
            None => (String::new(), Vec::new()),
        };
        let sql = format!("{}{condition} ORDER BY {} LIMIT {}", T::SELECT, T::KEY.join(", "), T::PAGE);
        let rows = self.db.fetch(sql, &binds, T::COLUMNS).await?;
        self.ended = rows.len() < T::PAGE;
        if let Some(last) = rows.last() {
            self.last = Some(last[..T::KEY.len()].to_vec());
        }
        for row in rows {
            self.buffer.push_back(T::decode(Columns(row.into_iter()))?);
        }
        Ok(())
    }
}
