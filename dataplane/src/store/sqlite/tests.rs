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
