//! Takes against transactions that stall, and the property that all of it is for: one writer.

use std::time::{Duration, Instant};

use e2e::servers::MariaDb;
use sqlx::{AssertSqlSafe, Connection, Executor};

use super::store::connect::StoreOptions;
use super::store::{CommitOutcome, StoreError, TakeExpectation, TakeOutcome};
use super::suite::{Store, commit, commit_one, retaken, room, take_of, taken};
use super::{hold, migrated, opened, raw, run, server};

const SHARED: &str = "LOCK IN SHARE MODE";
const BOUND: Duration = Duration::from_secs(2);

async fn store_and_counters(url: &str) -> (Store, std::sync::Arc<super::store::connect::StoreCounters>) {
    let options = StoreOptions::default();
    let counters = options.counters.clone();
    (opened(url, options).await, counters)
}

#[tokio::test]
async fn a_take_ends_a_transaction_of_ours_that_stalls_and_gets_through_in_bound() {
    let url = migrated().await;
    let (store, counters) = store_and_counters(&url).await;
    let room = room("r");
    let old = taken(&store, &room).await;
    let mut stalled = raw(&url).await;
    hold(&mut stalled, "room_owner", &room, SHARED).await;
    let started = Instant::now();
    retaken(&store, &room, old, "node-b").await;
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
    assert_eq!(counters.ended_blockers(), 1);
    assert!(stalled.ping().await.is_err(), "its connection was ended");
}

#[tokio::test]
async fn many_takes_behind_one_stalled_transaction_end_it_once_and_not_each_other() {
    let url = migrated().await;
    let (store, counters) = store_and_counters(&url).await;
    let rooms: Vec<_> = (0..40).map(|i| room(&format!("r{i}"))).collect();
    let mut stalled = raw(&url).await;
    let mut takes = Vec::new();
    for room in &rooms {
        takes.push(take_of(room, TakeExpectation::Exactly(taken(&store, room).await), "node-b"));
    }
    run(&mut stalled, "BEGIN".to_owned()).await;
    run(&mut stalled, format!("SELECT * FROM room_owner {SHARED}")).await;
    // Two takers for each room, so that takes also wait behind takes.
    let rivals: Vec<_> = takes.iter().map(|t| take_of(&t.room, t.expect, "node-c")).collect();
    let outcomes = futures::future::join_all(takes.iter().chain(&rivals).map(|take| store.take(take))).await;
    let won = outcomes.iter().filter(|o| matches!(o, Ok(TakeOutcome::Taken(_)))).count();
    let lost = outcomes.iter().filter(|o| matches!(o, Ok(TakeOutcome::Lost(Some(_))))).count();
    assert_eq!((won, lost), (40, 40), "{outcomes:?}");
    // Several takes may see it before the first has ended it; none ends a connection of a take.
    assert!((1..=16).contains(&counters.ended_blockers()), "{}", counters.ended_blockers());
}

#[tokio::test]
async fn a_transaction_that_runs_for_too_long_is_ended_too() {
    let url = migrated().await;
    let (store, counters) = store_and_counters(&url).await;
    let room = room("r");
    let old = taken(&store, &room).await;
    let mut busy = raw(&url).await;
    hold(&mut busy, "room_owner", &room, SHARED).await;
    let started = Instant::now();
    let (slept, _) = tokio::join!(busy.execute("SELECT SLEEP(60)"), retaken(&store, &room, old, "node-b"));
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
    assert!(slept.is_err());
    assert!(counters.ended_blockers() >= 1);
}

#[tokio::test]
async fn a_transaction_of_another_user_is_left_alone_and_the_take_gives_up() {
    let url = migrated().await;
    let (store, counters) = store_and_counters(&url).await;
    let room = room("r");
    let old = taken(&store, &room).await;
    let mut root = server().await.root().await.unwrap();
    run(&mut root, format!("USE {}", url.rsplit('/').next().unwrap())).await;
    hold(&mut root, "room_owner", &room, SHARED).await;
    let started = Instant::now();
    let error = store.take(&take_of(&room, TakeExpectation::Exactly(old), "node-b")).await.unwrap_err();
    assert!(matches!(error, StoreError::Locked), "{error:?}");
    assert!(started.elapsed() < BOUND + Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(counters.ended_blockers(), 0);
    // While the take waited, a shared lock of the other user did not keep the owner from committing for good.
    assert_eq!(commit_one(&store, commit(&room, old, 1, 1)).await, CommitOutcome::Committed);
    run(&mut root, "ROLLBACK".to_owned()).await;
    retaken(&store, &room, old, "node-b").await;
}

// A user without PROCESS cannot see what blocks it; the server ends our own idle transactions by itself.
#[tokio::test]
async fn without_the_privilege_to_look_a_stalled_session_of_ours_still_ends_in_bound() {
    let mut server = MariaDb::start().await.unwrap();
    let mut root = server.root().await.unwrap();
    root.execute("REVOKE PROCESS ON *.* FROM rooms").await.unwrap();
    let url = server.database().await.unwrap();
    super::migrate(&url.as_str().into()).await.unwrap();
    let proxy = e2e::servers::TcpProxy::start(server.port()).await.unwrap();
    let options = StoreOptions { commit_timeout: Duration::from_millis(200), ..StoreOptions::default() };
    let broken = opened(&super::through(&proxy, &url, server.port()), options).await;
    let (store, counters) = store_and_counters(&url).await;
    let room = room("r");
    let old = taken(&store, &room).await;
    let mut session = broken.open_session().await.unwrap();
    proxy.set_trap(b"COMMIT", e2e::servers::Trap::Stall);
    let error = session.commit(&[commit(&room, old, 1, 1)]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unknown(_)), "{error:?}");
    let started = Instant::now();
    retaken(&store, &room, old, "node-b").await;
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
    assert_eq!(counters.ended_blockers(), 0);
    assert!(store.recover(&room).await.unwrap().is_none(), "the lost commit is gone for good");
    server.kill().unwrap();
}

// A busy room: batch follows batch, so that there is hardly a moment without a shared lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_gets_past_an_owner_that_never_stops_committing() {
    let url = migrated().await;
    let (store, counters) = store_and_counters(&url).await;
    let room = room("r");
    let old = taken(&store, &room).await;
    let owner = async {
        let mut session = store.open_session().await.unwrap();
        let mut seq = 1;
        let limit = Instant::now() + 5 * BOUND;
        loop {
            assert!(Instant::now() < limit, "nobody took the room");
            match session.commit(&[commit(&room, old, seq, seq + 15)]).await.unwrap().remove(0) {
                CommitOutcome::Committed => seq += 16,
                CommitOutcome::Locked => {}
                CommitOutcome::Fenced(_) => return seq - 1,
                other => panic!("{other:?}"),
            }
        }
    };
    let taker = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let started = Instant::now();
        retaken(&store, &room, old, "node-b").await;
        started.elapsed()
    };
    let (last, lasted) = tokio::join!(owner, taker);
    assert!(lasted < Duration::from_secs(1), "{lasted:?}");
    assert_eq!(counters.ended_blockers(), 0);
    assert_eq!(super::suite::head(&store, &room).await, last);
}

// P1, C1: owners and takers at random; the log tells of each whether it ever was alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_owners_and_takers_do_the_log_has_one_writer_at_a_time() {
    let url = migrated().await;
    let (store, _) = store_and_counters(&url).await;
    let rooms: Vec<_> = (0..4).map(|i| room(&format!("r{i}"))).collect();
    for room in &rooms {
        taken(&store, room).await;
    }
    let until = Instant::now() + Duration::from_secs(3);
    let writers = (0..6).map(|writer| {
        let (store, rooms) = (store.clone(), rooms.clone());
        async move { restless_owner(&store, &rooms, writer, until).await }
    });
    let acknowledged: Vec<_> = futures::future::join_all(writers).await.concat();
    let mut conn = raw(&url).await;
    for room in &rooms {
        let recovery = store.recover(room).await.unwrap().expect("the room has committed");
        assert!(recovery.tail.is_sorted_by_key(|row| row.epoch), "an epoch fell along the log");
        let mut mine: Vec<_> = acknowledged
            .iter()
            .filter(|(r, _, _)| r == room)
            .map(|(_, seq, id)| (*seq, id.as_str()))
            .collect();
        mine.sort_unstable();
        let logged: Vec<_> = recovery.tail.iter().map(|r| (r.seq.0, r.command_id.as_str())).collect();
        assert_eq!(mine, logged, "what was acknowledged is the log");
        let sql = "SELECT COUNT(*) - COUNT(DISTINCT epoch) FROM \
                   (SELECT DISTINCT epoch, lease_token, owner_node_id FROM room_command_log WHERE room_id = ?) t";
        let doubled: i64 = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .bind(room.room_id().as_bytes())
            .fetch_one(&mut conn)
            .await
            .unwrap();
        assert_eq!(doubled, 0, "an epoch had two owners");
    }
}

/// Takes rooms from whoever has them and commits until it is fenced, over and over.
async fn restless_owner(
    store: &Store,
    rooms: &[super::RoomKey],
    writer: usize,
    until: Instant,
) -> Vec<(super::RoomKey, u64, String)> {
    let mut session = store.open_session().await.unwrap();
    let mut acknowledged = Vec::new();
    let mut turn = writer;
    let mut counter = 0;
    while Instant::now() < until {
        turn += 1;
        let room = &rooms[turn % rooms.len()];
        let expect = TakeExpectation::Exactly(store.owner(room).await.unwrap().unwrap().claim);
        let take = take_of(room, expect, &format!("node-{writer}"));
        let Ok(TakeOutcome::Taken(claim)) = store.take(&take).await else { continue };
        let mut seq = store.recover(room).await.unwrap().map_or(0, |r| r.head_seq.0);
        for _ in 0..1 + turn % 5 {
            seq += 1;
            counter += 1;
            let mut batch = commit(room, claim, seq, seq);
            let id = format!("w{writer}-{counter}");
            batch.rows[0].command_id = super::types::CommandId::new(&id).unwrap();
            match session.commit(&[batch]).await.unwrap().remove(0) {
                CommitOutcome::Committed => acknowledged.push((room.clone(), seq, id)),
                CommitOutcome::Fenced(_) | CommitOutcome::Locked => break,
                other => panic!("{other:?}"),
            }
        }
    }
    acknowledged
}
