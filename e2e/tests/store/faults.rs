//! What happens to commits when rows are locked, connections break and servers end.

use std::time::{Duration, Instant};

use e2e::servers::{MariaDb, TcpProxy, Trap};
use sqlx::{Connection, Row};

use super::store::connect::StoreOptions;
use super::store::{CommitOutcome, RoomCommit, StoreError};
use super::suite::{Store, commit, commit_one, head, retaken, room, taken};
use super::{hold, migrated, opened, raw, run, server, through};
use crate::types::{Claim, RoomKey};

/// What a wait for a lock costs at the least.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(10);

async fn rooms_with_claims(store: &Store, count: usize) -> Vec<(RoomKey, Claim)> {
    let mut rooms = Vec::new();
    for i in 0..count {
        let room = room(&format!("r{i:03}"));
        let claim = taken(store, &room).await;
        rooms.push((room, claim));
    }
    rooms
}

fn batch_of(rooms: &[(RoomKey, Claim)], seq: u64) -> Vec<RoomCommit> {
    rooms.iter().map(|(room, claim)| commit(room, *claim, seq, seq)).collect()
}

/// All committed but the given one, which is locked.
fn only_locked(outcomes: &[CommitOutcome], locked: usize) -> bool {
    outcomes.iter().enumerate().all(|(i, outcome)| {
        *outcome == if i == locked { CommitOutcome::Locked } else { CommitOutcome::Committed }
    })
}

#[tokio::test]
async fn one_locked_owner_row_does_not_stall_the_other_rooms() {
    let url = migrated().await;
    let store = opened(&url, StoreOptions::default()).await;
    let rooms = rooms_with_claims(&store, 64).await;
    let mut session = store.open_session().await.unwrap();
    let mut other = raw(&url).await;
    hold(&mut other, "room_owner", &rooms[17].0, "FOR UPDATE").await;

    let started = Instant::now();
    let outcomes = session.commit(&batch_of(&rooms, 1)).await.unwrap();
    let lasted = started.elapsed();
    assert!(only_locked(&outcomes, 17), "{outcomes:?}");
    assert!(lasted < LOCK_WAIT, "it waited for the lock: {lasted:?}");

    run(&mut other, "ROLLBACK".to_owned()).await;
    let outcomes = session.commit(&batch_of(&rooms[17..18], 1)).await.unwrap();
    assert_eq!(outcomes, [CommitOutcome::Committed]);
}

#[tokio::test]
async fn a_locked_room_that_has_another_owner_is_fenced_at_once() {
    let url = migrated().await;
    let store = opened(&url, StoreOptions::default()).await;
    let (room, old) = rooms_with_claims(&store, 1).await.remove(0);
    let new = retaken(&store, &room, old, "node-b").await;
    let mut other = raw(&url).await;
    hold(&mut other, "room_owner", &room, "FOR UPDATE").await;
    let outcome = commit_one(&store, commit(&room, old, 1, 1)).await;
    assert!(matches!(&outcome, CommitOutcome::Fenced(Some(owner)) if owner.claim == new), "{outcome:?}");
}

// A worker of the outbox that stalls while it holds a room's row.
#[tokio::test]
async fn a_locked_outbox_row_stalls_the_other_rooms_once_at_most() {
    let url = migrated().await;
    let options = StoreOptions::default();
    let counters = options.counters.clone();
    let store = opened(&url, options).await;
    let rooms = rooms_with_claims(&store, 32).await;
    let mut session = store.open_session().await.unwrap();
    assert!(
        session.commit(&batch_of(&rooms, 1)).await.unwrap().iter().all(|o| *o == CommitOutcome::Committed)
    );
    let mut other = raw(&url).await;
    hold(&mut other, "outbox_room", &rooms[5].0, "FOR UPDATE").await;

    let outcomes = session.commit(&batch_of(&rooms, 2)).await.unwrap();
    assert!(only_locked(&outcomes, 5), "{outcomes:?}");
    assert_eq!(counters.retried_batches(), 1);
    let started = Instant::now();
    let mut batch = batch_of(&rooms, 3);
    batch[5] = commit(&rooms[5].0, rooms[5].1, 2, 2);
    let outcomes = session.commit(&batch).await.unwrap();
    assert!(only_locked(&outcomes, 5), "{outcomes:?}");
    assert!(started.elapsed() < LOCK_WAIT, "it waited again: {:?}", started.elapsed());
    assert_eq!(counters.retried_batches(), 1);

    run(&mut other, "ROLLBACK".to_owned()).await;
    let outcomes = session.commit(&batch[5..6]).await.unwrap();
    assert_eq!(outcomes, [CommitOutcome::Committed]);
}

/// Commits once over a proxy that breaks the connection at COMMIT, and gives what is in the log after a take.
async fn after_a_break_at_commit(trap: Trap) -> (u64, Store, RoomKey, Claim) {
    let url = migrated().await;
    let proxy = TcpProxy::start(server().await.port()).await.unwrap();
    let options = StoreOptions { commit_timeout: Duration::from_millis(300), ..StoreOptions::default() };
    let broken = opened(&through(&proxy, &url, server().await.port()), options).await;
    let store = opened(&url, StoreOptions::default()).await;
    let room = room("r");
    let old = taken(&store, &room).await;
    let mut session = broken.open_session().await.unwrap();
    assert_eq!(session.commit(&[commit(&room, old, 1, 1)]).await.unwrap(), [CommitOutcome::Committed]);

    proxy.set_trap(b"COMMIT", trap);
    let error = session.commit(&[commit(&room, old, 2, 2)]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unknown(_)), "{error:?}");
    // The barrier: whatever became of the commit, it is decided once the take is through.
    let started = Instant::now();
    let new = retaken(&store, &room, old, "node-b").await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    let decided = head(&store, &room).await;
    // The session is good for the next commit, and that one is fenced.
    let outcome = session.commit(&[commit(&room, old, decided + 1, decided + 1)]).await.unwrap();
    assert!(matches!(outcome[..], [CommitOutcome::Fenced(Some(_))]), "{outcome:?}");
    (decided, store, room, new)
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_unknown_and_stands_after_the_barrier() {
    let (decided, store, room, claim) = after_a_break_at_commit(Trap::CutAfter).await;
    assert_eq!(decided, 2);
    assert_eq!(commit_one(&store, commit(&room, claim, 3, 3)).await, CommitOutcome::Committed);
}

#[tokio::test]
async fn a_commit_that_never_arrives_is_unknown_and_gone_after_the_barrier() {
    let (decided, store, room, claim) = after_a_break_at_commit(Trap::CutBefore).await;
    assert_eq!(decided, 1);
    assert_eq!(commit_one(&store, commit(&room, claim, 2, 2)).await, CommitOutcome::Committed);
}

// C7, C11: the former owner's transaction is open, and nobody has told the server that its client is gone.
#[tokio::test]
async fn a_commit_that_hangs_before_the_server_is_unknown_and_gone_after_the_barrier() {
    let (decided, store, room, claim) = after_a_break_at_commit(Trap::Stall).await;
    assert_eq!(decided, 1);
    assert_eq!(commit_one(&store, commit(&room, claim, 2, 2)).await, CommitOutcome::Committed);
}

#[tokio::test]
async fn a_connection_that_breaks_before_commit_is_replaced_and_the_batch_commits() {
    let url = migrated().await;
    let proxy = TcpProxy::start(server().await.port()).await.unwrap();
    let options = StoreOptions::default();
    let counters = options.counters.clone();
    let store = opened(&through(&proxy, &url, server().await.port()), options).await;
    let rooms = rooms_with_claims(&store, 3).await;
    let mut session = store.open_session().await.unwrap();
    // Statements are prepared at their first use, so that their text passes the proxy.
    proxy.set_trap(b"INSERT INTO room_head", Trap::CutBefore);
    let outcomes = session.commit(&batch_of(&rooms, 1)).await.unwrap();
    assert_eq!(outcomes, vec![CommitOutcome::Committed; 3]);
    proxy.sprung(1).await;
    assert_eq!(counters.opened_sessions(), 2);
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable_and_the_session_comes_back() {
    let url = migrated().await;
    let proxy = TcpProxy::start(server().await.port()).await.unwrap();
    let options = StoreOptions { statement_timeout: Duration::from_millis(300), ..StoreOptions::default() };
    let store = opened(&through(&proxy, &url, server().await.port()), options).await;
    let rooms = rooms_with_claims(&store, 3).await;
    let mut session = store.open_session().await.unwrap();
    proxy.cut();
    let error = session.commit(&batch_of(&rooms, 1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)) && error.is_retryable(), "{error:?}");
    let error = store.owner(&rooms[0].0).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    proxy.resume();
    assert_eq!(session.commit(&batch_of(&rooms, 1)).await.unwrap(), vec![CommitOutcome::Committed; 3]);
    // A path that swallows everything is unavailable too, and does not hang.
    proxy.stall();
    let error = session.commit(&batch_of(&rooms, 2)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    proxy.cut();
    proxy.resume();
    assert_eq!(session.commit(&batch_of(&rooms, 2)).await.unwrap(), vec![CommitOutcome::Committed; 3]);
}

#[tokio::test]
async fn a_commit_that_its_caller_drops_leaves_no_transaction_open() {
    let url = migrated().await;
    let store = opened(&url, StoreOptions::default()).await;
    let (room, claim) = rooms_with_claims(&store, 1).await.remove(0);
    let mut session = store.open_session().await.unwrap();
    assert_eq!(session.commit(&[commit(&room, claim, 1, 1)]).await.unwrap(), [CommitOutcome::Committed]);
    let mut other = raw(&url).await;
    hold(&mut other, "outbox_room", &room, "FOR UPDATE").await;
    let batch = [commit(&room, claim, 2, 2)];
    let dropped = tokio::time::timeout(Duration::from_millis(200), session.commit(&batch)).await;
    assert!(dropped.is_err(), "it waits for the outbox row");
    run(&mut other, "ROLLBACK".to_owned()).await;
    other.close().await.unwrap();
    let mut root = server().await.root().await.unwrap();
    let database = url.rsplit('/').next().unwrap().to_owned();
    loop {
        let open: i64 = sqlx::query(
            "SELECT COUNT(*) FROM information_schema.INNODB_TRX t \
             JOIN information_schema.PROCESSLIST p ON p.ID = t.trx_mysql_thread_id WHERE p.DB = ?",
        )
        .bind(&database)
        .fetch_one(&mut root)
        .await
        .unwrap()
        .get(0);
        if open == 0 {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    assert_eq!(head(&store, &room).await, 1);
    assert_eq!(session.commit(&batch).await.unwrap(), [CommitOutcome::Committed]);
}

#[tokio::test]
async fn a_server_that_was_killed_or_paused_is_found_again_with_all_that_it_confirmed() {
    let mut server = MariaDb::start().await.unwrap();
    let url = server.database().await.unwrap();
    super::migrate(&url.as_str().into()).await.unwrap();
    let options = StoreOptions { statement_timeout: Duration::from_millis(500), ..StoreOptions::default() };
    let store = opened(&url, options).await;
    let rooms = rooms_with_claims(&store, 3).await;
    let mut session = store.open_session().await.unwrap();
    assert_eq!(session.commit(&batch_of(&rooms, 1)).await.unwrap(), vec![CommitOutcome::Committed; 3]);

    server.kill().unwrap();
    let error = session.commit(&batch_of(&rooms, 2)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    server.restart().await.unwrap();
    assert_eq!(head(&store, &rooms[0].0).await, 1);
    assert_eq!(session.commit(&batch_of(&rooms, 2)).await.unwrap(), vec![CommitOutcome::Committed; 3]);
    retaken(&store, &rooms[0].0, rooms[0].1, "node-b").await;

    server.pause().unwrap();
    let error = session.commit(&batch_of(&rooms[1..], 3)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(store.ping().await.is_err());
    server.resume().unwrap();
    assert_eq!(session.commit(&batch_of(&rooms[1..], 3)).await.unwrap(), vec![CommitOutcome::Committed; 2]);
}

#[tokio::test]
async fn a_deadlock_between_batches_is_retried_inside() {
    let url = migrated().await;
    let options = StoreOptions::default();
    let store = opened(&url, options).await;
    let rooms = rooms_with_claims(&store, 8).await;
    let mut sessions = Vec::new();
    for _ in 0..2 {
        sessions.push(store.open_session().await.unwrap());
    }
    assert!(
        sessions[0]
            .commit(&batch_of(&rooms, 1))
            .await
            .unwrap()
            .iter()
            .all(|o| *o == CommitOutcome::Committed)
    );
    // Another program updates the outbox rows against the order of the batches.
    let mut other = raw(&url).await;
    let backwards: Vec<_> = rooms.iter().rev().map(|(room, _)| room.clone()).collect();
    let worker = async {
        for _ in 0..30 {
            let _rolled_back_if_it_is_the_victim = backwards_round(&mut other, &backwards).await;
        }
    };
    let committer = async {
        let mut seq = 2;
        for _ in 0..60 {
            let outcomes = sessions[1].commit(&batch_of(&rooms, seq)).await.unwrap();
            let all = outcomes.iter().all(|o| *o == CommitOutcome::Committed);
            let none = outcomes.iter().all(|o| *o == CommitOutcome::Locked);
            assert!(all || none, "{outcomes:?}");
            seq += u64::from(all);
        }
        seq
    };
    let ((), seq) = tokio::join!(worker, committer);
    assert!(seq > 30, "most batches got through: {seq}");
    for (room, _) in &rooms {
        assert_eq!(head(&store, room).await, seq - 1);
    }
}

async fn backwards_round(conn: &mut sqlx::MySqlConnection, rooms: &[RoomKey]) -> Result<(), sqlx::Error> {
    let mut transaction = conn.begin().await?;
    for room in rooms {
        sqlx::query("UPDATE outbox_room SET attempts = attempts + 1 WHERE app_code = ? AND room_id = ?")
            .bind(room.app_code().as_bytes())
            .bind(room.room_id().as_bytes())
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await
}
