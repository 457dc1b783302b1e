use super::super::suite::store_suite;
use super::super::{connect, suite};
use super::*;
use secrecy::SecretString;

async fn on_disk() -> (tempfile::TempDir, Arc<dyn RoomStore>) {
    let dir = tempfile::tempdir().unwrap();
    let url = SecretString::from(format!("sqlite://{}/rooms.db", dir.path().display()));
    connect::migrate(&url).await.unwrap();
    (dir, connect::open(&url, StoreOptions::default()).await.unwrap())
}

store_suite!(on_disk);

mod in_memory {
    use super::*;

    async fn open() -> ((), Arc<dyn RoomStore>) {
        let url = SecretString::from("sqlite::memory:");
        connect::migrate(&url).await.unwrap();
        ((), connect::open(&url, StoreOptions::default()).await.unwrap())
    }

    store_suite!(open);
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_at_the_same_time_all_end_well() {
    let dir = tempfile::tempdir().unwrap();
    let url = SecretString::from(format!("sqlite://{}/rooms.db", dir.path().display()));
    let store = connect::open(&url, StoreOptions::default()).await.unwrap();
    let error = store.check_schema().await.unwrap_err();
    assert!(matches!(error, StoreError::Schema { found: 0, wanted: 1 }), "{error:?}");
    let runs = futures::future::join_all((0..8).map(|_| connect::migrate(&url))).await;
    assert!(runs.iter().all(Result::is_ok), "{runs:?}");
    store.check_schema().await.unwrap();
    connect::migrate(&url).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_its_caller_drops_leaves_no_transaction_open() {
    let (dir, store) = on_disk().await;
    let room = suite::room("r");
    let claim = suite::taken(&store, &room).await;
    let url = format!("sqlite://{}/rooms.db", dir.path().display());
    let mut other = SqliteConnection::connect(&url).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let mut session = store.open_session().await.unwrap();
    let batch = [suite::commit(&room, claim, 1, 1)];
    let wait = Duration::from_millis(100);
    assert!(tokio::time::timeout(wait, session.commit(&batch)).await.is_err(), "it waits for the file");
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    // The other connection gets the file, which the dropped call must not hold.
    sqlx::query("PRAGMA busy_timeout = 10000").execute(&mut other).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    assert!(!store.exists(&room).await.unwrap());
    assert_eq!(session.commit(&batch).await.unwrap(), [super::super::CommitOutcome::Committed]);
}

#[tokio::test]
async fn a_file_that_another_process_keeps_is_locked_within_the_bound_of_a_take() {
    let (dir, store) = on_disk().await;
    let room = suite::room("r");
    let url = format!("sqlite://{}/rooms.db", dir.path().display());
    let mut other = SqliteConnection::connect(&url).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let take = suite::take_of(&room, super::super::TakeExpectation::Absent, "node-a");
    let error = store.take(&take).await.unwrap_err();
    assert!(matches!(error, StoreError::Locked), "{error:?}");
    assert!(BUSY_TIMEOUT < Duration::from_millis(super::super::TAKE_BOUND_MS));
    assert_eq!(store.owner(&room).await.unwrap(), None, "reads go on");
}
