//! The store's suite on a real MariaDB, and what only a real server can show.

#![allow(clippy::unwrap_used, reason = "tests")]

use dataplane::{logic, store, types};

#[path = "../../dataplane/src/store/suite.rs"]
mod suite;

use std::sync::Arc;

use e2e::servers::MariaDb;
use secrecy::SecretString;
use store::RoomStore;
use store::connect::{StoreOptions, migrate, open};
use suite::store_suite;
use tokio::sync::OnceCell;

/// One server for all tests that do not stop it; each has a database of its own.
async fn server() -> &'static MariaDb {
    static SERVER: OnceCell<MariaDb> = OnceCell::const_new();
    SERVER.get_or_init(|| async { MariaDb::start().await.unwrap() }).await
}

async fn on_mariadb() -> ((), Arc<dyn RoomStore>) {
    let url = SecretString::from(server().await.database().await.unwrap());
    migrate(&url).await.unwrap();
    ((), open(&url, StoreOptions::default()).await.unwrap())
}

store_suite!(on_mariadb);
