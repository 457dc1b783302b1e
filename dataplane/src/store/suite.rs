//! What every store promises, checked the same way on each.
//!
//! Each check gets an empty, migrated store. The module is also included by the suite that runs on real servers;
//! there, too, `crate::store` and `crate::types` are the data plane's.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "only tests run it")]

use std::sync::Arc;

use crate::logic::{EncodedEvent, RoomPhase};
use crate::store::{
    CommitOutcome, LogRow, NewLogRow, OwnerRow, RoomCommit, RoomStore, Snapshot, StoreError, Take,
    TakeExpectation, TakeOutcome,
};
use crate::types::{Claim, CommandId, Epoch, Incarnation, LeaseToken, NodeId, NodeRef, RoomKey, Seq};

/// A store under test.
pub type Store = Arc<dyn RoomStore>;

/// Declares a test for each check; `$open` makes an empty, migrated store and what has to live as long.
macro_rules! store_suite {
    ($open:path; $($(#[$meta:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$meta])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let (_guard, store) = $open().await;
                suite::$name(store).await;
            }
        )*
    };
    ($open:path) => {
        store_suite! { $open;
            one_of_fifty_takes_wins,
            a_take_fences_the_commits_of_the_former_owner,
            a_release_counts_only_for_the_standing_claim,
            a_released_room_is_taken_at_the_next_epoch,
            each_room_of_a_batch_gets_its_own_outcome,
            an_id_that_committed_is_known_and_not_written_again,
            a_seq_that_exists_is_refused_alone,
            a_commit_that_would_leave_a_gap_is_refused_alone,
            two_rows_with_one_id_are_refused_alone,
            a_value_that_is_too_long_is_refused_alone,
            ids_differ_by_case_and_by_trailing_space,
            a_large_batch_commits_as_one,
            a_room_is_recovered_from_its_log,
            a_room_is_recovered_from_its_snapshot_and_the_log_above,
            a_snapshot_never_goes_back_and_is_fenced,
            recent_ids_come_newest_first,
            a_node_finds_its_rooms_and_lets_go_of_those_of_its_past,
            the_schema_is_the_one_that_this_program_works_with,
            an_empty_batch_commits_nothing,
        }
    };
}
pub(crate) use store_suite;

pub fn room(id: &str) -> RoomKey {
    RoomKey::new("app", id).unwrap()
}

pub fn node(name: &str) -> NodeRef {
    NodeRef {
        node_id: NodeId::new(name).unwrap(),
        incarnation: Incarnation([name.len() as u8; 16]),
        address: format!("{name}:7400"),
    }
}

pub fn token() -> LeaseToken {
    LeaseToken::random(&mut rand::rng())
}

pub fn take_of(room: &RoomKey, expect: TakeExpectation, by: &str) -> Take {
    Take { room: room.clone(), expect, node: node(by), token: token(), now_ms: 1_000 }
}

/// Takes a room that nobody has.
pub async fn taken(store: &Store, room: &RoomKey) -> Claim {
    match store.take(&take_of(room, TakeExpectation::Absent, "node-a")).await.unwrap() {
        TakeOutcome::Taken(claim) => claim,
        TakeOutcome::Lost(owner) => panic!("{room} has an owner: {owner:?}"),
    }
}

/// Takes a room from a claim.
pub async fn retaken(store: &Store, room: &RoomKey, from: Claim, by: &str) -> Claim {
    match store.take(&take_of(room, TakeExpectation::Exactly(from), by)).await.unwrap() {
        TakeOutcome::Taken(claim) => claim,
        TakeOutcome::Lost(owner) => panic!("{room} has another owner: {owner:?}"),
    }
}

pub fn row(seq: u64, id: &str) -> NewLogRow {
    let event = |text: String| EncodedEvent { event_type: "UserJoined", payload: text.into() };
    NewLogRow {
        seq: Seq(seq),
        command_id: CommandId::new(id).unwrap(),
        command_hash: [seq as u8; 32],
        result: format!("result of {id}").into(),
        events: vec![event(format!("{id}/0")), event(format!("{id}/1"))],
        committed_at_ms: 10_000 + seq as i64,
    }
}

/// Rows `from..=to` of a room, with ids `c{seq}`.
pub fn commit(room: &RoomKey, claim: Claim, from: u64, to: u64) -> RoomCommit {
    RoomCommit {
        room: room.clone(),
        claim,
        rows: (from..=to).map(|seq| row(seq, &format!("c{seq}"))).collect(),
        state_hash: [to as u8; 32],
        phase: (from == 1).then_some(RoomPhase::Active),
        unseen: Vec::new(),
    }
}

pub fn as_logged(row: &NewLogRow, epoch: Epoch) -> LogRow {
    LogRow {
        seq: row.seq,
        command_id: row.command_id.clone(),
        command_hash: row.command_hash,
        result: row.result.clone(),
        events: row.events.iter().map(|e| e.payload.clone()).collect(),
        epoch,
        committed_at_ms: row.committed_at_ms,
    }
}

pub async fn commit_one(store: &Store, batch: RoomCommit) -> CommitOutcome {
    let mut session = store.open_session().await.unwrap();
    session.commit(&[batch]).await.unwrap().remove(0)
}

pub async fn head(store: &Store, room: &RoomKey) -> u64 {
    store.recover(room).await.unwrap().map_or(0, |r| r.head_seq.0)
}

fn is_refused(outcome: &CommitOutcome) -> bool {
    matches!(outcome, CommitOutcome::Refused(_))
}

// C9, C10, C16, C21: many first takes at once.
pub async fn one_of_fifty_takes_wins(store: Store) {
    let room = room("r");
    for round in 0..5_u64 {
        let expect = match store.owner(&room).await.unwrap() {
            None => TakeExpectation::Absent,
            Some(owner) => TakeExpectation::Exactly(owner.claim),
        };
        let takes: Vec<_> = (0..50).map(|i| take_of(&room, expect, &format!("node-{i}"))).collect();
        let outcomes = futures::future::join_all(takes.iter().map(|take| store.take(take))).await;
        let outcomes: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
        let winners: Vec<_> =
            takes.iter().zip(&outcomes).filter(|(_, o)| matches!(o, TakeOutcome::Taken(_))).collect();
        let [(take, TakeOutcome::Taken(claim))] = winners[..] else { panic!("{outcomes:?}") };
        assert_eq!(*claim, Claim { epoch: Epoch(round + 1), token: take.token });
        let standing = OwnerRow { claim: *claim, node: take.node.clone(), released_at_ms: None };
        for outcome in outcomes.iter().filter(|o| !matches!(o, TakeOutcome::Taken(_))) {
            assert_eq!(*outcome, TakeOutcome::Lost(Some(standing.clone())));
        }
    }
}

// C1, C7, C11, C18: the former owner goes on.
pub async fn a_take_fences_the_commits_of_the_former_owner(store: Store) {
    let room = room("r");
    let old = taken(&store, &room).await;
    assert_eq!(commit_one(&store, commit(&room, old, 1, 2)).await, CommitOutcome::Committed);
    let new = retaken(&store, &room, old, "node-b").await;
    let CommitOutcome::Fenced(Some(owner)) = commit_one(&store, commit(&room, old, 3, 3)).await else {
        panic!("the former owner committed");
    };
    assert_eq!((owner.claim, owner.node), (new, node("node-b")));
    // Right epoch with another token, and right token with another epoch, are no claim either.
    for claim in [Claim { token: token(), ..new }, Claim { epoch: new.epoch.next(), ..new }] {
        let outcome = commit_one(&store, commit(&room, claim, 3, 3)).await;
        assert!(matches!(outcome, CommitOutcome::Fenced(Some(_))), "{outcome:?}");
    }
    assert_eq!(head(&store, &room).await, 2);
    assert_eq!(commit_one(&store, commit(&room, new, 3, 3)).await, CommitOutcome::Committed);
}

// C2: a late release of a former owner.
pub async fn a_release_counts_only_for_the_standing_claim(store: Store) {
    let room = room("r");
    let old = taken(&store, &room).await;
    let new = retaken(&store, &room, old, "node-b").await;
    assert!(!store.release(&room, old, 2_000).await.unwrap());
    assert_eq!(store.owner(&room).await.unwrap().unwrap().released_at_ms, None);
    assert_eq!(commit_one(&store, commit(&room, new, 1, 1)).await, CommitOutcome::Committed);
    assert!(!store.release(&room, Claim { token: token(), ..new }, 2_000).await.unwrap());
    assert!(store.release(&room, new, 2_000).await.unwrap());
    assert!(!store.release(&room, new, 3_000).await.unwrap(), "it is released already");
    assert_eq!(store.owner(&room).await.unwrap().unwrap().released_at_ms, Some(2_000));
}

pub async fn a_released_room_is_taken_at_the_next_epoch(store: Store) {
    let room = room("r");
    let old = taken(&store, &room).await;
    assert!(store.release(&room, old, 2_000).await.unwrap());
    let outcome = commit_one(&store, commit(&room, old, 1, 1)).await;
    assert!(matches!(outcome, CommitOutcome::Fenced(Some(_))), "{outcome:?}");
    let lost = store.take(&take_of(&room, TakeExpectation::Absent, "node-b")).await.unwrap();
    assert!(matches!(lost, TakeOutcome::Lost(Some(_))));
    let new = retaken(&store, &room, old, "node-b").await;
    assert_eq!(new.epoch, old.epoch.next());
    assert_eq!(store.owner(&room).await.unwrap().unwrap().released_at_ms, None);
    assert_eq!(commit_one(&store, commit(&room, new, 1, 1)).await, CommitOutcome::Committed);
    // A take that expects a claim of a room without a row takes nothing.
    let nowhere = RoomKey::new("app", "nowhere").unwrap();
    let outcome = store.take(&take_of(&nowhere, TakeExpectation::Exactly(old), "node-b")).await.unwrap();
    assert_eq!(outcome, TakeOutcome::Lost(None));
}

pub async fn each_room_of_a_batch_gets_its_own_outcome(store: Store) {
    let rooms: Vec<_> = ["z", "a", "m", "none", "known", "dup"].map(room).to_vec();
    let mut claims = Vec::new();
    for room in &rooms {
        claims.push(if room.room_id() == "none" {
            Claim { epoch: Epoch(1), token: token() }
        } else {
            taken(&store, room).await
        });
    }
    for i in [4, 5] {
        let outcome = commit_one(&store, commit(&rooms[i], claims[i], 1, 1)).await;
        assert_eq!(outcome, CommitOutcome::Committed);
    }
    let stale = Claim { token: token(), ..claims[2] };
    let mut known = commit(&rooms[4], claims[4], 2, 2);
    known.rows[0].command_id = CommandId::new("c1").unwrap();
    known.unseen = vec![CommandId::new("c1").unwrap()];
    let batch = [
        commit(&rooms[0], claims[0], 1, 3),
        commit(&rooms[1], claims[1], 1, 1),
        commit(&rooms[2], stale, 1, 1),
        commit(&rooms[3], claims[3], 1, 1),
        known,
        commit(&rooms[5], claims[5], 1, 1),
    ];
    let mut session = store.open_session().await.unwrap();
    let outcomes = session.commit(&batch).await.unwrap();
    assert_eq!(outcomes[..2], [CommitOutcome::Committed, CommitOutcome::Committed]);
    assert!(matches!(&outcomes[2], CommitOutcome::Fenced(Some(owner)) if owner.claim == claims[2]));
    assert_eq!(outcomes[3], CommitOutcome::Fenced(None));
    assert_eq!(outcomes[4], CommitOutcome::Known(vec![as_logged(&row(1, "c1"), Epoch(1))]));
    assert!(is_refused(&outcomes[5]), "{:?}", outcomes[5]);
    let heads = futures::future::join_all(rooms.iter().map(|room| head(&store, room))).await;
    assert_eq!(heads, [3, 1, 0, 0, 1, 1]);
}

// P3: a retry after a move, on a node that has never seen the id.
pub async fn an_id_that_committed_is_known_and_not_written_again(store: Store) {
    let room = room("r");
    let claim = taken(&store, &room).await;
    assert_eq!(commit_one(&store, commit(&room, claim, 1, 3)).await, CommitOutcome::Committed);
    let claim = retaken(&store, &room, claim, "node-b").await;
    let mut retry = commit(&room, claim, 4, 6);
    retry.rows[1].command_id = CommandId::new("c3").unwrap();
    retry.rows[2].command_id = CommandId::new("c1").unwrap();
    retry.unseen = retry.rows.iter().map(|row| row.command_id.clone()).collect();
    let known = vec![as_logged(&row(1, "c1"), Epoch(1)), as_logged(&row(3, "c3"), Epoch(1))];
    assert_eq!(commit_one(&store, retry).await, CommitOutcome::Known(known.clone()));
    assert_eq!(head(&store, &room).await, 3);
    assert_eq!(store.command(&room, &known[1].command_id).await.unwrap().as_ref(), Some(&known[1]));
    assert_eq!(store.command(&room, &CommandId::new("c4").unwrap()).await.unwrap(), None);
}

// C1, C87: a seq is written once.
pub async fn a_seq_that_exists_is_refused_alone(store: Store) {
    let rooms: Vec<_> = (0..9).map(|i| room(&format!("r{i}"))).collect();
    let mut batch = Vec::new();
    for room in &rooms {
        let claim = taken(&store, room).await;
        assert_eq!(commit_one(&store, commit(room, claim, 1, 2)).await, CommitOutcome::Committed);
        batch.push(commit(room, claim, 3, 3));
    }
    batch[4] = commit(&rooms[4], batch[4].claim, 2, 2);
    batch[4].rows[0].command_id = CommandId::new("another id").unwrap();
    expect_only_refused(&store, &batch, 4).await;
    assert_eq!(head(&store, &rooms[4]).await, 2);
}

// P1: the log has no gap, also after a database that lost its last commits.
pub async fn a_commit_that_would_leave_a_gap_is_refused_alone(store: Store) {
    let rooms: Vec<_> = (0..6).map(|i| room(&format!("r{i}"))).collect();
    let mut batch = Vec::new();
    for (i, room) in rooms.iter().enumerate() {
        let claim = taken(&store, room).await;
        if i != 1 {
            assert_eq!(commit_one(&store, commit(room, claim, 1, 2)).await, CommitOutcome::Committed);
        }
        batch.push(commit(room, claim, 3, 3));
    }
    // Room 1 has no log at all.
    expect_only_refused(&store, &batch, 1).await;
    assert_eq!(head(&store, &rooms[1]).await, 0);
    let ahead = commit(&rooms[2], batch[2].claim, 5, 5);
    assert!(is_refused(&commit_one(&store, ahead).await));
    assert_eq!(head(&store, &rooms[2]).await, 3);
}

pub async fn two_rows_with_one_id_are_refused_alone(store: Store) {
    let rooms = [room("a"), room("b"), room("c")];
    let mut batch = Vec::new();
    for room in &rooms {
        batch.push(commit(room, taken(&store, room).await, 1, 2));
    }
    batch[0].rows[1].command_id = batch[0].rows[0].command_id.clone();
    expect_only_refused(&store, &batch, 0).await;
}

pub async fn a_value_that_is_too_long_is_refused_alone(store: Store) {
    let rooms = [room("a"), room("b"), room("c")];
    let mut batch = Vec::new();
    for room in &rooms {
        batch.push(commit(room, taken(&store, room).await, 1, 1));
    }
    batch[2].rows[0].result = vec![7; 16 << 20].into();
    expect_only_refused(&store, &batch, 2).await;
}

/// Runs the batch; the given room is refused, the others commit. Then the refused one's claim still stands.
async fn expect_only_refused(store: &Store, batch: &[RoomCommit], refused: usize) {
    let mut session = store.open_session().await.unwrap();
    let outcomes = session.commit(batch).await.unwrap();
    for (i, outcome) in outcomes.iter().enumerate() {
        if i == refused {
            assert!(is_refused(outcome), "room {i}: {outcome:?}");
        } else {
            assert_eq!(*outcome, CommitOutcome::Committed, "room {i}");
        }
    }
    let owner = store.owner(&batch[refused].room).await.unwrap().unwrap();
    assert_eq!(owner.claim, batch[refused].claim);
}

pub async fn ids_differ_by_case_and_by_trailing_space(store: Store) {
    let rooms = ["room", "Room", "room ", "röom", "roöm", "ROOM"].map(room);
    for (i, room) in rooms.iter().enumerate() {
        let claim = taken(&store, room).await;
        let last = i as u64 + 1;
        let mut batch = commit(room, claim, 1, last);
        batch.rows.iter_mut().zip(["c", "C", "c ", "ç", "C ", "Ç"]).for_each(|(row, id)| {
            row.command_id = CommandId::new(id).unwrap();
        });
        assert_eq!(commit_one(&store, batch).await, CommitOutcome::Committed);
    }
    for (i, room) in rooms.iter().enumerate() {
        assert_eq!(head(&store, room).await, i as u64 + 1);
    }
    let found = store.command(&rooms[5], &CommandId::new("c ").unwrap()).await.unwrap().unwrap();
    assert_eq!(found.seq, Seq(3));
    assert_eq!(store.command(&rooms[0], &CommandId::new("C").unwrap()).await.unwrap(), None);
}

pub async fn a_large_batch_commits_as_one(store: Store) {
    let rooms: Vec<_> = (0..300).map(|i| room(&format!("r{i}"))).collect();
    let mut batch = Vec::new();
    for (i, room) in rooms.iter().enumerate() {
        let mut commit = commit(room, taken(&store, room).await, 1, 1 + i as u64 % 4);
        commit.unseen = commit.rows.iter().map(|row| row.command_id.clone()).collect();
        batch.push(commit);
    }
    batch[0].rows[0].result = vec![1; 3 << 20].into();
    let mut session = store.open_session().await.unwrap();
    let outcomes = session.commit(&batch).await.unwrap();
    assert_eq!(outcomes, vec![CommitOutcome::Committed; 300]);
    for (i, room) in rooms.iter().enumerate() {
        assert_eq!(head(&store, room).await, 1 + i as u64 % 4);
    }
}

pub async fn a_room_is_recovered_from_its_log(store: Store) {
    let room = room("r");
    assert!(store.recover(&room).await.unwrap().is_none());
    assert!(!store.exists(&room).await.unwrap());
    let claim = taken(&store, &room).await;
    assert!(!store.exists(&room).await.unwrap(), "a room that is only owned has not committed");
    let mut batch = commit(&room, claim, 1, 4);
    batch.rows[2].events.clear();
    assert_eq!(commit_one(&store, batch.clone()).await, CommitOutcome::Committed);
    assert!(store.exists(&room).await.unwrap());
    let recovery = store.recover(&room).await.unwrap().unwrap();
    assert_eq!((recovery.head_seq, recovery.state_hash), (Seq(4), [4; 32]));
    assert_eq!(recovery.snapshot, None);
    let logged: Vec<_> = batch.rows.iter().map(|row| as_logged(row, claim.epoch)).collect();
    assert_eq!(recovery.tail, logged);
}

pub async fn a_room_is_recovered_from_its_snapshot_and_the_log_above(store: Store) {
    let room = room("r");
    let claim = taken(&store, &room).await;
    assert_eq!(commit_one(&store, commit(&room, claim, 1, 4)).await, CommitOutcome::Committed);
    let snapshot = snapshot(3, claim);
    assert!(store.write_snapshot(&room, claim, &snapshot).await.unwrap());
    let recovery = store.recover(&room).await.unwrap().unwrap();
    assert_eq!(recovery.snapshot, Some(snapshot));
    assert_eq!(recovery.tail, [as_logged(&row(4, "c4"), claim.epoch)]);
}

fn snapshot(seq: u64, claim: Claim) -> Snapshot {
    Snapshot {
        seq: Seq(seq),
        epoch: claim.epoch,
        format: seq as u32,
        state_hash: [seq as u8; 32],
        state: vec![seq as u8; 1_000].into(),
    }
}

pub async fn a_snapshot_never_goes_back_and_is_fenced(store: Store) {
    let room = room("r");
    let old = taken(&store, &room).await;
    assert_eq!(commit_one(&store, commit(&room, old, 1, 9)).await, CommitOutcome::Committed);
    assert!(store.write_snapshot(&room, old, &snapshot(5, old)).await.unwrap());
    assert!(store.write_snapshot(&room, old, &snapshot(3, old)).await.unwrap(), "not fenced, only late");
    let new = retaken(&store, &room, old, "node-b").await;
    assert!(!store.write_snapshot(&room, old, &snapshot(8, old)).await.unwrap());
    let stands = |r: crate::store::Recovery| r.snapshot.unwrap();
    assert_eq!(stands(store.recover(&room).await.unwrap().unwrap()), snapshot(5, old));
    assert!(store.write_snapshot(&room, new, &snapshot(8, new)).await.unwrap());
    assert_eq!(stands(store.recover(&room).await.unwrap().unwrap()), snapshot(8, new));
    assert!(store.release(&room, new, 1).await.unwrap());
    assert!(!store.write_snapshot(&room, new, &snapshot(9, new)).await.unwrap());
}

pub async fn recent_ids_come_newest_first(store: Store) {
    let room = room("r");
    let claim = taken(&store, &room).await;
    assert!(store.recent_ids(&room, 5).await.unwrap().is_empty());
    assert_eq!(commit_one(&store, commit(&room, claim, 1, 9)).await, CommitOutcome::Committed);
    let recent = store.recent_ids(&room, 3).await.unwrap();
    let told: Vec<_> = recent.iter().map(|id| (id.seq.0, id.command_id.as_str())).collect();
    assert_eq!(told, [(9, "c9"), (8, "c8"), (7, "c7")]);
    assert_eq!(recent[0].command_hash, [9; 32]);
}

// C55, C56: what a node left behind is found, and only that.
pub async fn a_node_finds_its_rooms_and_lets_go_of_those_of_its_past(store: Store) {
    let past = node("node-a");
    let present = NodeRef { incarnation: Incarnation([99; 16]), ..past.clone() };
    let rooms: Vec<_> = (0..5).map(|i| room(&format!("r{i}"))).collect();
    let mut claims = Vec::new();
    for room in &rooms {
        claims.push(taken(&store, room).await);
    }
    retaken(&store, &rooms[0], claims[0], "node-b").await;
    let kept = Take { node: present.clone(), ..take_of(&rooms[1], TakeExpectation::Exactly(claims[1]), "x") };
    let TakeOutcome::Taken(kept_claim) = store.take(&kept).await.unwrap() else { panic!("lost") };
    assert!(store.release(&rooms[2], claims[2], 5).await.unwrap());

    let (found, all) = store.rooms_owned_by(&past.node_id, 2).await.unwrap();
    assert_eq!((found.len(), all), (2, 3));
    let (mut found, all) = store.rooms_owned_by(&past.node_id, 100).await.unwrap();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let expected =
        vec![(rooms[1].clone(), kept_claim), (rooms[3].clone(), claims[3]), (rooms[4].clone(), claims[4])];
    assert_eq!((found, all), (expected, 3));

    assert_eq!(store.release_former_incarnations(&present, 7_000).await.unwrap(), 2);
    assert_eq!(store.release_former_incarnations(&present, 8_000).await.unwrap(), 0);
    let (found, all) = store.rooms_owned_by(&past.node_id, 100).await.unwrap();
    assert_eq!((found, all), (vec![(rooms[1].clone(), kept_claim)], 1));
    assert_eq!(store.owner(&rooms[2]).await.unwrap().unwrap().released_at_ms, Some(5));
    assert_eq!(store.owner(&rooms[3]).await.unwrap().unwrap().released_at_ms, Some(7_000));
    let (found, all) = store.rooms_owned_by(&NodeId::new("node-b").unwrap(), 100).await.unwrap();
    assert_eq!((found.len(), all), (1, 1));
}

pub async fn the_schema_is_the_one_that_this_program_works_with(store: Store) {
    store.check_schema().await.unwrap();
    store.ping().await.unwrap();
}

pub async fn an_empty_batch_commits_nothing(store: Store) {
    let mut session = store.open_session().await.unwrap();
    assert_eq!(session.commit(&[]).await.unwrap(), []);
    store.close(std::time::Duration::from_secs(5)).await;
    let error = store.ping().await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}
