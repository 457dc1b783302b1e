//! How the server runs the statements: by their keys, whatever the size of the tables.

use std::collections::BTreeSet;

use e2e::servers::MariaDb;
use sqlx::{AssertSqlSafe, Executor};

use super::store::connect::StoreOptions;
use super::suite::{Store, commit, retaken, room, taken};
use super::{migrate, opened};
use crate::types::{CommandId, NodeId};

const ROOMS: u64 = 2_000;
/// A statement for n rooms looks at no more than this many times n rows.
const ROWS_PER_ROOM: usize = 2;
/// Rows that a read of one room's short log, or of a node's rooms, may look at beside.
const ROWS_BESIDE: usize = 8;

/// Fills the tables, so that a scan would show.
async fn fill(store: &Store) {
    let mut session = store.open_session().await.unwrap();
    for start in (0..ROOMS).step_by(200) {
        let mut batch = Vec::new();
        for i in start..start + 200 {
            let room = room(&format!("r{i}"));
            batch.push(commit(&room, taken(store, &room).await, 1, 5));
        }
        session.commit(&batch).await.unwrap();
    }
}

/// Runs every call on a few rooms, and commits in several sizes.
async fn exercise(store: &Store) {
    let mut session = store.open_session().await.unwrap();
    let mut next = 0;
    for size in [1, 3, 64, 200] {
        let mut batch = Vec::new();
        for i in next..next + size {
            let room = room(&format!("r{i}"));
            let claim = store.owner(&room).await.unwrap().unwrap().claim;
            let claim = if i < 7 { retaken(store, &room, claim, "node-b").await } else { claim };
            let mut commit = commit(&room, claim, 6, 6);
            commit.unseen = vec![CommandId::new("c6").unwrap(), CommandId::new("never").unwrap()];
            batch.push(commit);
        }
        next += size;
        session.commit(&batch).await.unwrap();
    }
    let room = room("r0");
    assert!(store.recover(&room).await.unwrap().is_some());
    assert!(store.exists(&room).await.unwrap());
    assert_eq!(store.recent_ids(&room, 3).await.unwrap().len(), 3);
    assert!(store.command(&room, &CommandId::new("c6").unwrap()).await.unwrap().is_some());
    assert_eq!(store.rooms_owned_by(&NodeId::new("node-b").unwrap(), 100).await.unwrap().1, 7);
    let claim = store.owner(&room).await.unwrap().unwrap().claim;
    assert!(store.release(&room, claim, 1).await.unwrap());
}

#[tokio::test]
async fn every_statement_of_the_hot_path_finds_its_rows_by_a_key() {
    let server = MariaDb::start().await.unwrap();
    let url = server.database().await.unwrap();
    migrate(&url.as_str().into()).await.unwrap();
    fill(&opened(&url, StoreOptions::default()).await).await;
    let mut root = server.root().await.unwrap();
    let database = url.rsplit('/').next().unwrap();
    let analyze = "ANALYZE TABLE room_owner, room_command_log, room_head, room_outbox, outbox_room";
    root.execute(AssertSqlSafe(format!("USE {database}; {analyze}"))).await.unwrap();
    root.execute("SET GLOBAL slow_query_log = ON, GLOBAL long_query_time = 0").await.unwrap();
    // Connections that are opened from now on are logged.
    exercise(&opened(&url, StoreOptions::default()).await).await;

    let log = server.slow_log();
    let mut kinds = BTreeSet::new();
    for entry in log.split("# User@Host: ").filter(|entry| entry.starts_with("rooms")) {
        let Some(start) = ["SELECT ", "INSERT ", "UPDATE "].iter().filter_map(|verb| entry.find(verb)).min()
        else {
            continue;
        };
        let text = &entry[start..];
        if !text.contains("room_id") {
            continue;
        }
        let shape: String = text.chars().take_while(|c| *c != '(' && *c != '?' && *c != '\'').collect();
        kinds.insert(shape);
        for flag in ["Full_scan: Yes", "Full_join: Yes", "Filesort: Yes", "Tmp_table: Yes"] {
            assert!(!entry.contains(flag), "{flag}: {entry}");
        }
        let examined: usize = entry
            .split("Rows_examined: ")
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .expect("each entry tells its rows");
        let rooms = text.matches("room_id =").count().max(1);
        let allowed = ROWS_PER_ROOM * rooms + ROWS_BESIDE;
        assert!(examined <= allowed, "{examined} rows for {rooms} rooms: {entry}");
    }
    assert!(kinds.len() >= 12, "all kinds of statements were seen: {kinds:#?}");
}
