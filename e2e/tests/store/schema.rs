//! Migrations, and what the rows look like.

use dataplane::store::connect::{ConnectError, StoreOptions, migrate, open};
use prost::Message;
use roomcluster_proto::rooms::v1::EventEnvelope;
use secrecy::SecretString;
use sqlx::{Executor, Row};

use super::logic::RoomPhase;
use super::store::{CommitOutcome, StoreError};
use super::suite::{commit, commit_one, room, taken};
use super::{migrated, opened, raw, server};

#[tokio::test]
async fn migrations_at_the_same_time_all_end_well() {
    let url = SecretString::from(server().await.database().await.unwrap());
    let runs = futures::future::join_all((0..6).map(|_| migrate(&url))).await;
    assert!(runs.iter().all(Result::is_ok), "{runs:?}");
    open(&url, StoreOptions::default()).await.unwrap().check_schema().await.unwrap();
}

#[tokio::test]
async fn a_schema_of_another_version_is_told_and_left_alone() {
    let url = server().await.database().await.unwrap();
    let store = opened(&url, StoreOptions::default()).await;
    let error = store.check_schema().await.unwrap_err();
    assert!(matches!(error, StoreError::Schema { found: 0, wanted: 1 }), "{error:?}");
    let mut conn = raw(&url).await;
    assert!(conn.fetch_all("SHOW TABLES").await.unwrap().is_empty(), "nothing was written");
    migrate(&SecretString::from(url.as_str())).await.unwrap();
    store.check_schema().await.unwrap();
    conn.execute("INSERT INTO _sqlx_migrations VALUES (9, 'later', NOW(), TRUE, '', 0)").await.unwrap();
    let error = store.check_schema().await.unwrap_err();
    assert!(matches!(error, StoreError::Schema { found: 9, wanted: 1 }), "{error:?}");
}

// MySQL commits at each CREATE TABLE, so that a job that is killed leaves a part of its migration behind.
#[tokio::test]
async fn a_migration_that_was_cut_in_the_middle_runs_again() {
    let url = migrated().await;
    let mut conn = raw(&url).await;
    conn.execute("UPDATE _sqlx_migrations SET success = FALSE; DROP TABLE rooms, outbox_room").await.unwrap();
    let store = opened(&url, StoreOptions::default()).await;
    assert!(store.check_schema().await.is_err());
    migrate(&SecretString::from(url.as_str())).await.unwrap();
    store.check_schema().await.unwrap();
    let claim = taken(&store, &room("r")).await;
    assert_eq!(commit_one(&store, commit(&room("r"), claim, 1, 1)).await, CommitOutcome::Committed);
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_server_are_told_without_the_secret() {
    let url = server().await.database().await.unwrap().replace("only-for-tests", "hunter2");
    let error = open(&SecretString::from(url), StoreOptions::default()).await.err().expect("refused");
    assert!(matches!(error, ConnectError::Connect(_)) && error.is_retryable(), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    let nowhere = SecretString::from("mysql://u:hunter2@127.0.0.1:1/db");
    let error = open(&nowhere, StoreOptions::default()).await.err().expect("refused");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
}

// P4: every committed event is on its way, in order, under an id that never changes.
#[tokio::test]
async fn events_of_a_commit_wait_in_the_outbox_in_order() {
    let url = migrated().await;
    let store = opened(&url, StoreOptions::default()).await;
    let room = room("r/1");
    let claim = taken(&store, &room).await;
    let mut batch = commit(&room, claim, 1, 3);
    batch.rows[1].events.clear();
    assert_eq!(commit_one(&store, batch).await, CommitOutcome::Committed);
    let mut conn = raw(&url).await;
    let rows = conn
        .fetch_all(
            "SELECT seq, event_index, event_type, envelope, state FROM room_outbox ORDER BY seq, event_index",
        )
        .await
        .unwrap();
    let told: Vec<_> = rows
        .iter()
        .map(|row| {
            assert_eq!(row.get::<Vec<u8>, _>(4), b"pending");
            let envelope = EventEnvelope::decode(row.get::<&[u8], _>(3)).unwrap();
            assert_eq!((envelope.seq, envelope.index), (row.get(0), row.get(1)));
            assert_eq!(envelope.event_type.as_bytes(), row.get::<Vec<u8>, _>(2));
            (envelope.event_id, envelope.command_id, envelope.event, envelope.epoch)
        })
        .collect();
    let event = |seq: u64, index: u32| {
        (
            format!("app/r/1/{seq}/{index}"),
            format!("c{seq}"),
            format!("c{seq}/{index}").into_bytes().into(),
            1,
        )
    };
    assert_eq!(told, [event(1, 0), event(1, 1), event(3, 0), event(3, 1)]);
    let due = conn.fetch_one("SELECT pending, due_ms FROM outbox_room").await.unwrap();
    assert_eq!(due.get::<i64, _>(0), 4);
    let first_due: i64 = due.get(1);
    assert!(first_due > 1_600_000_000_000, "database time in ms: {first_due}");

    // More events add up; a room that is due stays due since then, and one that is not becomes due.
    assert_eq!(commit_one(&store, commit(&room, claim, 4, 4)).await, CommitOutcome::Committed);
    let due = conn.fetch_one("SELECT pending, due_ms FROM outbox_room").await.unwrap();
    assert_eq!((due.get::<i64, _>(0), due.get::<i64, _>(1)), (6, first_due));
    conn.execute("UPDATE outbox_room SET due_ms = NULL, pending = 0").await.unwrap();
    assert_eq!(commit_one(&store, commit(&room, claim, 5, 5)).await, CommitOutcome::Committed);
    let due = conn.fetch_one("SELECT pending, due_ms FROM outbox_room").await.unwrap();
    assert!(due.get::<i64, _>(1) >= first_due);
}

#[tokio::test]
async fn a_room_is_listed_from_its_creation_to_its_end() {
    let url = migrated().await;
    let store = opened(&url, StoreOptions::default()).await;
    let room = room("r");
    let claim = taken(&store, &room).await;
    let mut conn = raw(&url).await;
    let mut listed = async || {
        let row = conn.fetch_one("SELECT status, created_at_ms, closed_at_ms FROM rooms").await.unwrap();
        (row.get::<Vec<u8>, _>(0), row.get::<i64, _>(1), row.get::<Option<i64>, _>(2))
    };
    assert_eq!(commit_one(&store, commit(&room, claim, 1, 2)).await, CommitOutcome::Committed);
    assert_eq!(listed().await, (b"active".to_vec(), 10_001, None));
    let mut close = commit(&room, claim, 3, 4);
    close.phase = Some(RoomPhase::Closed);
    assert_eq!(commit_one(&store, close).await, CommitOutcome::Committed);
    assert_eq!(listed().await, (b"closed".to_vec(), 10_001, Some(10_004)));
}

// C88: what a recovery cannot read, it says so.
#[tokio::test]
async fn a_log_that_is_trimmed_or_broken_above_its_snapshot_is_corrupt() {
    let url = migrated().await;
    let store = opened(&url, StoreOptions::default()).await;
    let room = room("r");
    let claim = taken(&store, &room).await;
    assert_eq!(commit_one(&store, commit(&room, claim, 1, 5)).await, CommitOutcome::Committed);
    let snapshot = super::store::Snapshot {
        seq: super::types::Seq(2),
        epoch: claim.epoch,
        format: 1,
        state_hash: [2; 32],
        state: vec![2].into(),
    };
    assert!(store.write_snapshot(&room, claim, &snapshot).await.unwrap());
    let mut conn = raw(&url).await;
    conn.execute("UPDATE room_command_log SET events = '' WHERE seq <= 2").await.unwrap();
    assert_eq!(store.recover(&room).await.unwrap().unwrap().tail.len(), 3, "trimmed below the snapshot");
    for damage in [
        "UPDATE room_command_log SET events = '' WHERE seq = 3",
        "UPDATE room_command_log SET events = 'x' WHERE seq = 3",
        "DELETE FROM room_command_log WHERE seq = 4",
        "DELETE FROM room_command_log WHERE seq = 5",
        "UPDATE room_snapshot SET seq = 9",
    ] {
        conn.execute(damage).await.unwrap();
        let error = store.recover(&room).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{damage}: {error:?}");
    }
}

// One row that cannot be read does not take the other rooms of a batch down.
#[tokio::test]
async fn an_owner_row_that_cannot_be_read_is_refused_alone() {
    let url = migrated().await;
    let store = opened(&url, StoreOptions::default()).await;
    let rooms = ["a", "b", "c"].map(room);
    let mut batch = Vec::new();
    for room in &rooms {
        batch.push(commit(room, taken(&store, room).await, 1, 1));
    }
    let mut conn = raw(&url).await;
    conn.execute("UPDATE room_owner SET address = 0xff WHERE room_id = 'b'").await.unwrap();
    let mut session = store.open_session().await.unwrap();
    let outcomes = session.commit(&batch).await.unwrap();
    assert!(matches!(
        &outcomes[..],
        [CommitOutcome::Committed, CommitOutcome::Refused(_), CommitOutcome::Committed]
    ));
}
