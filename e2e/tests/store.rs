//! The store's suite on a real MariaDB, and what only a real server can show.

#![allow(clippy::unwrap_used, reason = "tests")]

use dataplane::{logic, store, types};

#[path = "../../dataplane/src/store/suite.rs"]
mod suite;

use std::sync::Arc;

use e2e::servers::{MariaDb, TcpProxy};
use secrecy::SecretString;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use store::RoomStore;
use store::connect::{StoreOptions, migrate, open};
use suite::store_suite;
use tokio::sync::OnceCell;
use types::RoomKey;

/// One server for all tests that do not stop it; each has a database of its own.
async fn server() -> &'static MariaDb {
    static SERVER: OnceCell<MariaDb> = OnceCell::const_new();
    SERVER.get_or_init(|| async { MariaDb::start().await.unwrap() }).await
}

async fn on_mariadb() -> ((), Arc<dyn RoomStore>) {
    let store = opened(&migrated().await, StoreOptions::default()).await;
    ((), store)
}

store_suite!(on_mariadb);

/// The URL of a database of its own, migrated.
async fn migrated() -> String {
    let url = server().await.database().await.unwrap();
    migrate(&SecretString::from(url.as_str())).await.unwrap();
    url
}

async fn opened(url: &str, options: StoreOptions) -> Arc<dyn RoomStore> {
    open(&SecretString::from(url), options).await.unwrap()
}

/// The same database through another port.
fn through(proxy: &TcpProxy, url: &str, port: u16) -> String {
    url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()))
}

/// A plain connection of the same user to the same database, as of another process.
async fn raw(url: &str) -> MySqlConnection {
    MySqlConnection::connect(url).await.unwrap()
}

async fn run(conn: &mut MySqlConnection, sql: String) {
    conn.execute(AssertSqlSafe(sql)).await.unwrap();
}

/// Locks the row of a room in a table until the connection ends its transaction.
async fn hold(conn: &mut MySqlConnection, table: &str, room: &RoomKey, mode: &str) {
    run(conn, "BEGIN".to_owned()).await;
    let sql = format!("SELECT 1 FROM {table} WHERE app_code = ? AND room_id = ? {mode}");
    let found = sqlx::query(AssertSqlSafe(sql))
        .bind(room.app_code().as_bytes())
        .bind(room.room_id().as_bytes())
        .fetch_all(conn)
        .await
        .unwrap();
    assert_eq!(found.len(), 1, "the row to lock is there");
}

#[path = "store/faults.rs"]
mod faults;
#[path = "store/plans.rs"]
mod plans;
#[path = "store/schema.rs"]
mod schema;
#[path = "store/takes.rs"]
mod takes;
