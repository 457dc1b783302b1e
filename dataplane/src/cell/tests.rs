use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use roomcluster_lifecycle::{Identity, Lifecycle, ManualClock, Metrics, Tasks};
use roomcluster_proto::rooms::v1 as pb;
use tokio::time::Instant;

use super::*;
use crate::ownership::embedded::EmbeddedLeases;
use crate::ownership::lease::LeaseStore;
use crate::ownership::{LeaseConfig, LeaseMetrics, Leases};
use crate::room::VoiceRoom;
use crate::store::{Take, TakeOutcome, connect};
use crate::types::{Claim, Incarnation, LeaseToken, NodeId, NodeRef};

/// Two nodes on one database and one lease store, all embedded.
struct World {
    store: Arc<dyn RoomStore>,
    leases: Arc<dyn LeaseStore>,
    tasks: Tasks,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", dir.path().join("rooms.db").display()).into();
        connect::migrate(&url).await.unwrap();
        let store = connect::open(&url, connect::StoreOptions::default()).await.unwrap();
        let lifecycle = Lifecycle::new(Identity::new("test", "test"), Metrics::new());
        Self { store, leases: Arc::new(EmbeddedLeases::new()), tasks: Tasks::new(lifecycle), _dir: dir }
    }

    fn node(&self, name: &str, config: CellConfig) -> Cells<VoiceRoom> {
        let node = node_ref(name);
        let ttl = LeaseConfig::new(Duration::from_secs(6));
        let leases = Arc::new(Leases::new(node, Arc::clone(&self.leases), ttl, LeaseMetrics::default()));
        let metrics = CellMetrics::default();
        let config_of_committer = CommitterConfig { sessions: 1, ..CommitterConfig::default() };
        let committer = Committer::start(&self.tasks, &self.store, &leases, &metrics, config_of_committer);
        Cells::new(Shared {
            logic: VoiceRoom,
            store: Arc::clone(&self.store),
            leases,
            committer,
            tasks: self.tasks.clone(),
            clock: Arc::new(ManualClock::at(1_000)),
            config,
            metrics,
        })
    }
}

fn node_ref(name: &str) -> NodeRef {
    NodeRef {
        node_id: NodeId::new(name).unwrap(),
        incarnation: Incarnation([1; 16]),
        address: format!("{name}:7400"),
    }
}

fn room(name: &str) -> RoomKey {
    RoomKey::new("app", name).unwrap()
}

fn command(id: &str, kind: pb::room_command::Kind) -> Request {
    let payload = pb::RoomCommand { kind: Some(kind) }.encode_to_vec().into();
    Request::Command { command_id: CommandId::new(id).unwrap(), payload }
}

fn create(id: &str) -> Request {
    let request = pb::CreateRoomRequest { scope: None, owner_user_id: "host".into(), seat_count: 4 };
    command(id, pb::room_command::Kind::Create(request))
}

fn join(id: &str, user: &str) -> Request {
    command(id, pb::room_command::Kind::Join(pb::JoinRoomRequest { scope: None, user_id: user.into() }))
}

fn mic_down(id: &str, user: &str) -> Request {
    command(id, pb::room_command::Kind::MicDown(pb::MicDownRequest { scope: None, user_id: user.into() }))
}

fn query() -> Request {
    Request::Query { payload: Bytes::new() }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

async fn ask(cells: &Cells<VoiceRoom>, room: &RoomKey, request: Request) -> Result<Answer, CellError> {
    let expect = cells.shared().store.owner(room).await.unwrap();
    let expect = expect.map_or(TakeExpectation::Absent, |row| TakeExpectation::Exactly(row.claim));
    let cell = cells.open(room, expect);
    cells.submit(&cell, request, soon()).await
}

async fn users(cells: &Cells<VoiceRoom>, room: &RoomKey) -> Vec<String> {
    let answer = ask(cells, room, query()).await.unwrap();
    let room = pb::Room::decode(answer.result.as_ref()).unwrap();
    room.users.into_iter().map(|user| user.user_id).collect()
}

async fn take_by(world: &World, node: &str, room: &RoomKey) -> Claim {
    let row = world.store.owner(room).await.unwrap().unwrap();
    let take = Take {
        room: room.clone(),
        expect: TakeExpectation::Exactly(row.claim),
        node: node_ref(node),
        token: LeaseToken([9; 16]),
        now_ms: 0,
    };
    match world.store.take(&take).await.unwrap() {
        TakeOutcome::Taken(claim) => claim,
        TakeOutcome::Lost(row) => panic!("lost to {row:?}"),
    }
}

// C9: many first commands at one node made the same grain several times.
#[tokio::test]
async fn a_thousand_concurrent_first_commands_make_one_cell_and_one_take() {
    let world = World::new().await;
    let cells = world.node("a", CellConfig { mailbox_limit: 2_000, ..CellConfig::default() });
    let room = room("r");
    ask(&cells, &room, create("create")).await.unwrap();
    cells.let_go(&cells.get(&room).unwrap(), LetGoMode::Evacuate).await;
    let claim = world.store.owner(&room).await.unwrap().unwrap().claim;

    let asks = (0..1_000).map(|n| {
        let (cells, room) = (cells.clone(), room.clone());
        async move {
            let cell = cells.open(&room, TakeExpectation::Exactly(claim));
            cells.submit(&cell, join(&format!("j{n}"), &format!("u{n}")), soon()).await.unwrap().seq
        }
    });
    let mut seqs = futures::future::join_all(asks).await;
    seqs.sort_unstable();
    assert_eq!(seqs, (2..=1_001).map(Seq).collect::<Vec<_>>(), "each command has a place of its own");
    assert_eq!(cells.count(), 1);
    let row = world.store.owner(&room).await.unwrap().unwrap();
    assert_eq!(row.claim.epoch, claim.epoch.next(), "the room was taken once");
}

#[tokio::test]
async fn a_retry_gives_the_stored_result_also_on_another_node_and_after_later_commands() {
    let world = World::new().await;
    // A memory of one id, so that the retry is not known by heart.
    let config = CellConfig { recent_ids: 1, ..CellConfig::default() };
    let (a, b) = (world.node("a", config), world.node("b", config));
    let room = room("r");
    ask(&a, &room, create("c1")).await.unwrap();
    let first = ask(&a, &room, join("c2", "ann")).await.unwrap();
    let last = ask(&a, &room, join("c3", "bob")).await.unwrap();
    let again = ask(&a, &room, join("c2", "ann")).await.unwrap();
    assert_eq!((again.seq, &again.result, again.replayed), (first.seq, &first.result, true));

    assert_eq!(a.let_go(&a.get(&room).unwrap(), LetGoMode::Evacuate).await, LetGo::Released);
    let elsewhere = ask(&b, &room, join("c3", "bob")).await.unwrap();
    assert_eq!((elsewhere.seq, &elsewhere.result, elsewhere.replayed), (last.seq, &last.result, true));
    assert!(elsewhere.owner_epoch > last.owner_epoch);
    let next = ask(&b, &room, join("c4", "cid")).await.unwrap();
    assert_eq!(next.seq, last.seq.next());
}

// A command that would be refused now may have committed before, and its answer was lost.
#[tokio::test]
async fn a_retry_that_no_longer_fits_the_state_still_gives_the_stored_result() {
    let world = World::new().await;
    let cells = world.node("a", CellConfig { recent_ids: 1, ..CellConfig::default() });
    let room = room("r");
    ask(&cells, &room, create("c1")).await.unwrap();
    ask(&cells, &room, join("c2", "ann")).await.unwrap();
    let up = pb::MicUpRequest { scope: None, user_id: "ann".into(), seat_no: 1 };
    ask(&cells, &room, command("c3", pb::room_command::Kind::MicUp(up))).await.unwrap();
    let down = ask(&cells, &room, mic_down("c4", "ann")).await.unwrap();
    ask(&cells, &room, join("c5", "bob")).await.unwrap();
    let again = ask(&cells, &room, mic_down("c4", "ann")).await.unwrap();
    assert_eq!((again.seq, again.replayed), (down.seq, true));
    let fresh = ask(&cells, &room, mic_down("c6", "ann")).await.unwrap_err();
    assert!(matches!(fresh, CellError::Rejected(rejection) if rejection.reason == "NOT_ON_MIC"));
}

#[tokio::test]
async fn one_id_for_two_commands_is_refused() {
    let world = World::new().await;
    for recent_ids in [1, 100] {
        let cells = world.node("a", CellConfig { recent_ids, ..CellConfig::default() });
        let room = room(&format!("r{recent_ids}"));
        ask(&cells, &room, create("c1")).await.unwrap();
        ask(&cells, &room, join("c2", "ann")).await.unwrap();
        ask(&cells, &room, join("c3", "ann")).await.unwrap();
        let reused = ask(&cells, &room, join("c2", "bob")).await;
        assert_eq!(reused, Err(CellError::CommandIdReused));
        assert_eq!(users(&cells, &room).await, ["ann"]);
    }
}

#[tokio::test]
async fn a_former_owner_is_fenced_out_and_drops_the_room() {
    let world = World::new().await;
    let (a, b) = (world.node("a", CellConfig::default()), world.node("b", CellConfig::default()));
    let room = room("r");
    ask(&a, &room, create("c1")).await.unwrap();
    take_by(&world, "b", &room).await;
    assert_eq!(ask(&a, &room, join("c2", "ann")).await, Err(CellError::FencedOut));
    assert!(a.get(&room).is_none(), "the cell is gone");
    assert_eq!(users(&b, &room).await, Vec::<String>::new(), "nothing was written");
}

// C1: two nodes forced to own one room.
#[tokio::test]
async fn of_two_nodes_that_fight_for_a_room_each_command_commits_once_in_one_log() {
    let world = World::new().await;
    let (a, b) = (world.node("a", CellConfig::default()), world.node("b", CellConfig::default()));
    let room = room("r");
    ask(&a, &room, create("c0")).await.unwrap();
    let mut acked = Vec::new();
    for n in 0..40 {
        let node = if n % 3 == 0 { &a } else { &b };
        let request = join(&format!("j{n}"), &format!("u{n}"));
        let answer = loop {
            match ask(node, &room, request.clone()).await {
                Ok(answer) => break answer,
                Err(CellError::FencedOut | CellError::Left) => {}
                Err(other) => panic!("{other}"),
            }
        };
        acked.push(answer);
    }
    let places: Vec<_> = acked.iter().map(|answer| answer.seq).collect();
    assert_eq!(places, (2..=41).map(Seq).collect::<Vec<_>>());
    assert!(acked.is_sorted_by_key(|answer| answer.epoch), "the epoch never falls");
    assert_eq!(users(&a, &room).await.len(), 40);
}

#[tokio::test]
async fn a_room_that_was_never_created_is_not_taken() {
    let world = World::new().await;
    let cells = world.node("a", CellConfig::default());
    for request in [query(), join("c1", "ann")] {
        let error = ask(&cells, &room("nowhere"), request).await.unwrap_err();
        assert!(matches!(error, CellError::Rejected(rejection) if rejection.reason == "ROOM_NOT_FOUND"));
    }
    assert_eq!(cells.count(), 0);
    assert_eq!(world.store.owner(&room("nowhere")).await.unwrap(), None);
}

#[tokio::test]
async fn a_released_room_comes_back_as_it_was() {
    let world = World::new().await;
    let config = CellConfig { snapshot_every: 3, ..CellConfig::default() };
    let (a, b) = (world.node("a", config), world.node("b", config));
    let room = room("r");
    ask(&a, &room, create("c0")).await.unwrap();
    for n in 0..10 {
        ask(&a, &room, join(&format!("j{n}"), &format!("u{n}"))).await.unwrap();
    }
    let before = users(&a, &room).await;
    assert_eq!(a.let_go(&a.get(&room).unwrap(), LetGoMode::Drain).await, LetGo::Released);
    assert_eq!(a.count(), 0);
    let row = world.store.owner(&room).await.unwrap().unwrap();
    assert!(row.released_at_ms.is_some());
    let views = world.leases.routes(std::slice::from_ref(&room), Duration::from_secs(6)).await.unwrap();
    assert_eq!(views[0].route, None, "the route is gone with the lease");
    let recovery = world.store.recover(&room).await.unwrap().unwrap();
    assert_eq!(recovery.snapshot.unwrap().seq, Seq(11), "the snapshot was flushed on the way out");
    assert_eq!(users(&b, &room).await, before);
}

// C25: a stop that overtakes the mailbox loses commands.
#[tokio::test]
async fn what_was_in_the_mailbox_completes_before_a_room_lets_go() {
    let world = World::new().await;
    let cells = world.node("a", CellConfig { batch_limit: 2, ..CellConfig::default() });
    let room = room("r");
    ask(&cells, &room, create("c0")).await.unwrap();
    let cell = cells.get(&room).unwrap();
    let asks = (0..50).map(|n| {
        let (cells, cell) = (cells.clone(), Arc::clone(&cell));
        async move { cells.submit(&cell, join(&format!("j{n}"), &format!("u{n}")), soon()).await }
    });
    let (answers, let_go) =
        tokio::join!(futures::future::join_all(asks), cells.let_go(&cell, LetGoMode::Evacuate));
    assert_eq!(let_go, LetGo::Released);
    let acked = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(answers.iter().all(|answer| matches!(answer, Ok(_) | Err(CellError::Left))), "{answers:?}");
    assert_eq!(users(&cells, &room).await.len(), acked, "who was told to look again did nothing");
}

#[tokio::test]
async fn a_full_mailbox_refuses_at_once() {
    let world = World::new().await;
    let cells = world.node("a", CellConfig { mailbox_limit: 4, batch_limit: 1, ..CellConfig::default() });
    let room = room("r");
    ask(&cells, &room, create("c0")).await.unwrap();
    let cell = cells.get(&room).unwrap();
    let asks = (0..100).map(|n| cells.submit(&cell, join(&format!("j{n}"), "u"), soon()));
    let answers = futures::future::join_all(asks).await;
    let busy = answers.iter().filter(|answer| **answer == Err(CellError::Busy)).count();
    let done = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(busy > 0 && done > 0 && busy + done == 100, "{busy} busy, {done} done");
}

#[tokio::test]
async fn idle_rooms_are_found_and_busy_ones_are_not() {
    let world = World::new().await;
    let cells = world.node("a", CellConfig::default());
    ask(&cells, &room("r"), create("c0")).await.unwrap();
    assert_eq!(cells.idle_for(Duration::from_secs(60)).len(), 0);
    assert_eq!(cells.idle_for(Duration::ZERO).len(), 1);
}
