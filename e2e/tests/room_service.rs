//! Real room-service processes on a real MariaDB and a real Redis: ownership, commits, drains, bad input.

use std::time::Duration;

use anyhow::Result;
use e2e::node::{
    Node, NodeSpec, OutboxProcess, PATIENCE, create, eventually, join, join_until_answered, reason,
    run_dataplane, scope, within,
};
use e2e::servers::{MariaDb, Redis, TcpProxy, Trap};
use nix::sys::signal::Signal;
use roomcluster_proto::node::v1 as node_pb;
use roomcluster_proto::node::v1::node_service_client::NodeServiceClient;
use roomcluster_proto::peer::v1 as peer_pb;
use roomcluster_proto::peer::v1::peer_service_client::PeerServiceClient;
use roomcluster_proto::rooms::v1 as pb;
use tokio::time::Instant;
use tonic::Code;

/// The stores of one test.
struct Stores {
    mariadb: MariaDb,
    redis: Redis,
    database_url: String,
    _outbox: OutboxProcess,
}

impl Stores {
    async fn start() -> Result<Self> {
        let stores = Self::unmigrated().await?;
        stores.migrate().await?;
        Ok(stores)
    }

    async fn unmigrated() -> Result<Self> {
        let (mariadb, redis) = (MariaDb::start().await?, Redis::start().await?);
        let database_url = mariadb.database().await?;
        let outbox = OutboxProcess::spawn(&database_url, &sink_url(&redis))?;
        Ok(Self { mariadb, redis, database_url, _outbox: outbox })
    }

    async fn migrate(&self) -> Result<()> {
        let output = run_dataplane(&["migrate"], &[("DATABASE_URL", &self.database_url)]).await?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Forgets all leases and routes; the events that went out are another store's.
    async fn wipe_leases(&self) -> Result<()> {
        let mut connection = self.redis.connection().await?;
        Ok(redis::cmd("FLUSHDB").query_async(&mut connection).await?)
    }

    fn spec(&self, id: &str) -> NodeSpec {
        NodeSpec::new(id, &self.database_url, &self.redis.url())
    }

    /// Proves P1 to P4 on database and sink.
    async fn audit(&self) -> Result<()> {
        let args = ["audit", "--wait", "30s", "--sink", &sink_url(&self.redis)];
        let output = run_dataplane(&args, &[("DATABASE_URL", &self.database_url)]).await?;
        anyhow::ensure!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    async fn committed(&self, room: &str) -> Result<Vec<String>> {
        use sqlx::Connection;
        let mut connection = sqlx::MySqlConnection::connect(&self.database_url).await?;
        let rows: Vec<(Vec<u8>,)> = sqlx::query_as(
            "SELECT command_id FROM room_command_log WHERE app_code = 'app' AND room_id = ? ORDER BY seq",
        )
        .bind(room.as_bytes())
        .fetch_all(&mut connection)
        .await?;
        Ok(rows.into_iter().map(|(id,)| String::from_utf8_lossy(&id).into_owned()).collect())
    }
}

/// The sink is a database of its own, so that wiping the leases wipes no events.
fn sink_url(redis: &Redis) -> String {
    format!("{}1", redis.url())
}

async fn get_room(node: &Node, room: &str) -> Result<pb::GetRoomResponse> {
    let request = pb::GetRoomRequest { app_code: "app".into(), room_id: room.into() };
    Ok(node.rooms()?.get_room(within(Duration::from_secs(5), request)).await?.into_inner())
}

async fn owner(node: &Node, room: &str) -> Result<String> {
    Ok(get_room(node, room).await?.owner.unwrap_or_default().node_id)
}

/// P1, P3: frozen between any two steps of a commit for longer than its lease, a node cannot write afterwards,
/// and its room goes on elsewhere in bounded time.
async fn paused_at(point: &str) -> Result<()> {
    const TTL: Duration = Duration::from_secs(2);
    /// Lease, take and one second for starting the clients.
    const BOUND: Duration = Duration::from_millis(2_000 + 2_000 + 1_000);
    let stores = Stores::start().await?;
    let a = Node::ready(stores.spec("a").env("LEASE_TTL", "2s")).await?;
    let b = Node::ready(stores.spec("b").env("LEASE_TTL", "2s")).await?;
    a.rooms()?.create_room(create("r")).await?;
    a.arm(point, "stop").await?;

    let mut client = a.rooms()?;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { client.join_room(within(PATIENCE, join("r", "frozen"))).await });
    eventually("the node stops itself", || async { a.is_stopped() }).await?;
    let stopped_at = Instant::now();
    let (answer, _) = join_until_answered(&b, "r", "bob").await?;
    let blocked_for = stopped_at.elapsed();
    assert!(blocked_for < BOUND, "{point}: the successor was blocked for {blocked_for:?}");
    assert!(answer.epoch > 1, "{point}: the successor has an epoch of its own");
    tokio::time::sleep(TTL.saturating_sub(stopped_at.elapsed())).await;

    a.signal(Signal::SIGCONT)?;
    let late = tasks.join_next().await.expect("one task")?;
    // Whatever the frozen caller was told is true, and asking again with the same id settles it.
    let logged = stores.committed("r").await?.contains(&"join-frozen".to_owned());
    if late.is_ok() {
        assert!(
            stores.committed("r").await?.contains(&"join-frozen".to_owned()),
            "{point}: told done, and is not"
        );
    }
    let (settled, _) = join_until_answered(&b, "r", "frozen").await?;
    assert!(
        !logged || settled.replayed || late.is_ok(),
        "{point}: it was in the log before it was asked again"
    );
    let ids = stores.committed("r").await?;
    assert_eq!(ids.iter().filter(|id| *id == "join-frozen").count(), 1, "{point}: {ids:?}");
    let (again, _) = join_until_answered(&a, "r", "cid").await?;
    assert_eq!(again.owner.unwrap_or_default().node_id, "b", "{point}: the former owner forwards");
    stores.audit().await
}

macro_rules! paused {
    ($($name:ident: $point:literal,)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() -> Result<()> {
            paused_at($point).await
        }
    )*};
}

paused! {
    a_node_paused_before_the_lease_is_verified_cannot_write_afterwards: "commit.before-verify",
    a_node_paused_before_begin_cannot_write_afterwards: "commit.before-begin",
    a_node_paused_after_the_fence_does_not_block_its_successor: "commit.after-fence",
    a_node_paused_before_commit_does_not_block_its_successor: "commit.before-commit",
    a_node_paused_after_commit_has_committed_once: "commit.after-commit",
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_reply_was_lost_gives_the_stored_result_on_another_node() -> Result<()> {
    let stores = Stores::start().await?;
    let mut a = Node::ready(stores.spec("a").env("LEASE_TTL", "2s")).await?;
    let b = Node::ready(stores.spec("b").env("LEASE_TTL", "2s")).await?;
    a.rooms()?.create_room(create("r")).await?;
    a.arm("commit.after-commit", "abort").await?;
    let lost = a.rooms()?.join_room(within(Duration::from_secs(5), join("r", "ann"))).await;
    assert!(lost.is_err(), "the node died before it answered");
    a.wait_end().await?;
    let told =
        b.rooms()?.get_command(pb::GetCommandRequest { scope: scope("r", "join-ann") }).await?.into_inner();
    assert_eq!(told.outcome(), pb::get_command_response::Outcome::Committed);
    let (answer, _) = join_until_answered(&b, "r", "ann").await?;
    assert!(answer.replayed);
    assert_eq!(Some(&answer.result), told.response.as_ref().map(|response| &response.result));
    assert_eq!(stores.committed("r").await?, ["create", "join-ann"]);
    stores.audit().await
}

/// P2, P3: whichever way the connection is lost while COMMIT is under way, the caller is told the truth, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lost_at_commit_never_makes_a_command_look_failed_nor_runs_it_twice() -> Result<()> {
    let stores = Stores::start().await?;
    let proxy = TcpProxy::start(stores.mariadb.port()).await?;
    let direct = format!(":{}/", stores.mariadb.port());
    let proxied = stores.database_url.replace(&direct, &format!(":{}/", proxy.port()));
    anyhow::ensure!(proxied != stores.database_url, "the URL names no port: {proxied}");
    let a = Node::ready(NodeSpec::new("a", &proxied, &stores.redis.url())).await?;
    a.rooms()?.create_room(create("r")).await?;
    for (n, trap) in
        [Trap::CutBefore, Trap::CutAfter, Trap::CutAfter, Trap::CutBefore].into_iter().enumerate()
    {
        let (user, before) = (format!("u{n}"), stores.committed("r").await?.len() as u64);
        // COM_QUERY, not the words READ COMMITTED of a new session.
        proxy.set_trap(b"\x03COMMIT", trap);
        let request = within(Duration::from_secs(15), join("r", &user));
        let answer = a.rooms()?.join_room(request).await?.into_inner();
        proxy.sprung(u32::try_from(n)? + 1).await;
        assert_eq!(answer.seq, before + 1, "the command has the next place");
        let ids = stores.committed("r").await?;
        assert_eq!(ids.len() as u64, before + 1, "it ran once: {ids:?}");
    }
    stores.audit().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_concurrent_first_commands_at_two_nodes_make_one_room() -> Result<()> {
    let stores = Stores::start().await?;
    let (a, b) = tokio::try_join!(Node::ready(stores.spec("a")), Node::ready(stores.spec("b")))?;
    let (at_a, at_b) = (a.rooms()?, b.rooms()?);
    let creates = (0..1_000).map(|n| {
        let mut client = if n % 2 == 0 { at_a.clone() } else { at_b.clone() };
        async move {
            let id = format!("create-{n}");
            let request =
                pb::CreateRoomRequest { scope: scope("r", &id), owner_user_id: "host".into(), seat_count: 8 };
            client.create_room(within(Duration::from_secs(20), request)).await
        }
    });
    let answers = futures::future::join_all(creates).await;
    let made = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(made, 1, "one create wins");
    let unexpected = answers
        .iter()
        .filter_map(|answer| answer.as_ref().err())
        .find(|status| !matches!(reason(status).as_str(), "ROOM_EXISTS" | "ROOM_BUSY"));
    assert!(unexpected.is_none(), "{unexpected:?}");
    assert_eq!(owner(&a, "r").await?, owner(&b, "r").await?);
    stores.audit().await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_sigterm_every_room_is_released_and_serves_elsewhere_at_once() -> Result<()> {
    let stores = Stores::start().await?;
    let mut a = Node::ready(stores.spec("a")).await?;
    let b = Node::ready(stores.spec("b")).await?;
    for n in 0..40 {
        a.rooms()?.create_room(create(&format!("r{n}"))).await?;
    }
    assert_eq!(b.rooms_owned_by("a").await?.unreleased, 40);
    a.signal(Signal::SIGTERM)?;
    let status = a.wait_end().await?;
    assert_eq!(status.code(), Some(0), "the end was in order");
    let left = b.rooms_owned_by("a").await?;
    assert_eq!((left.unreleased, left.leased, left.leases_known), (0, 0, true));
    for n in 0..40 {
        let (_, tries) = join_until_answered(&b, &format!("r{n}"), "ann").await?;
        assert_eq!(tries, 1, "nothing to wait for");
    }
    stores.audit().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_takes_no_room_before_its_first_order_and_obeys_only_newer_ones() -> Result<()> {
    let stores = Stores::start().await?;
    let mut a = Node::spawn(stores.spec("a").env("AWAIT_ORDER", "true"))?;
    eventually("only the order is missing", || async {
        a.admin("GET", "/healthz/ready").await.is_ok_and(|(status, body)| {
            status == 503
                && body.contains("order")
                && !body.contains("mysql")
                && !body.contains("redis")
                && !body.contains("registered")
        })
    })
    .await?;
    let refused = a.rooms()?.create_room(within(Duration::from_secs(2), create("r"))).await.unwrap_err();
    assert_eq!(reason(&refused), "NO_SUCCESSOR", "{refused:?}");
    a.order(3, node_pb::Order::Serve, "").await?;
    a.wait_ready().await?;
    a.rooms()?.create_room(create("r")).await?;

    for (epoch, order, wrong) in [
        (2, node_pb::Order::Evacuate, "STALE_DRAIN_EPOCH"),
        (3, node_pb::Order::Evacuate, "DRAIN_EPOCH_REUSED"),
        (4, node_pb::Order::Unspecified, "ORDER_UNSPECIFIED"),
    ] {
        let error = a.order(epoch, order, "").await.unwrap_err();
        let status = error.downcast_ref::<tonic::Status>().expect("a status");
        assert_eq!(reason(status), wrong);
    }
    let status = a.order(3, node_pb::Order::Serve, "").await?;
    assert!(status.accepting, "the same order again changes nothing");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evacuating_node_hands_every_room_to_the_target_revision_and_can_be_called_back() -> Result<()> {
    let stores = Stores::start().await?;
    let a = Node::ready(stores.spec("a").env("REVISION", "v1")).await?;
    let b = Node::ready(stores.spec("b").env("REVISION", "v1")).await?;
    let c = Node::ready(stores.spec("c").env("REVISION", "v2")).await?;
    for n in 0..20 {
        a.rooms()?.create_room(create(&format!("r{n}"))).await?;
    }
    for node in [&b, &c] {
        node.order(1, node_pb::Order::Serve, "v2").await?;
    }
    a.order(1, node_pb::Order::Evacuate, "v2").await?;
    eventually("the node is empty", || async { a.status().await.is_ok_and(|status| status.rooms_held == 0) })
        .await?;
    assert_eq!(b.rooms_owned_by("a").await?.unreleased, 0);
    for n in 0..20 {
        // Asked at a node of the old revision, and at the one that evacuates.
        let node = if n % 2 == 0 { &b } else { &a };
        assert_eq!(owner(node, &format!("r{n}")).await?, "c", "straight to the target");
    }
    let (ready, body) = a.admin("GET", "/healthz/ready").await?;
    assert_eq!(ready, 503, "{body}");
    a.order(2, node_pb::Order::Serve, "").await?;
    eventually("the node is ready again", || async {
        a.admin("GET", "/healthz/ready").await.is_ok_and(|(status, _)| status == 200)
    })
    .await?;
    stores.audit().await
}

// C40, O5: a flush that hangs, and a count that is zero too early.
#[tokio::test(flavor = "multi_thread")]
async fn rooms_whose_flush_hangs_are_still_counted_and_still_answer() -> Result<()> {
    let stores = Stores::start().await?;
    let a = Node::ready(stores.spec("a").env("SNAPSHOT_FLUSH_TIMEOUT", "300ms")).await?;
    let b = Node::ready(stores.spec("b")).await?;
    for n in 0..5 {
        a.rooms()?.create_room(create(&format!("r{n}"))).await?;
    }
    a.arm("snapshot.flush", "hang").await?;
    a.order(1, node_pb::Order::Evacuate, "").await?;
    eventually("the node says what blocks it", || async {
        a.status().await.is_ok_and(|status| {
            status.blocked.iter().any(|blocked| blocked.reason == "SnapshotFlush" && blocked.rooms == 5)
        })
    })
    .await?;
    for n in 0..5 {
        let (answer, tries) = join_until_answered(&b, &format!("r{n}"), "ann").await?;
        assert_eq!((answer.owner.unwrap_or_default().node_id.as_str(), tries), ("a", 1));
    }
    let (_, metrics) = a.admin("GET", "/metrics").await?;
    let series = metrics.lines().find(|line| line.starts_with("room_leases{")).unwrap_or_default();
    assert!(
        series.ends_with(" 5")
            && series.contains("drain_epoch=\"1\"")
            && series.contains("pod_uid=\"uid-a\""),
        "{series}"
    );
    assert_eq!(b.rooms_owned_by("a").await?.unreleased, 5);
    a.disarm("snapshot.flush").await?;
    eventually("the rooms let go", || async { a.status().await.is_ok_and(|status| status.rooms_held == 0) })
        .await?;
    assert_eq!(b.rooms_owned_by("a").await?.unreleased, 0);
    stores.audit().await
}

// C4, C15, P8: a wiped lease store moves no room and ends no commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_redis_moves_no_room() -> Result<()> {
    let stores = Stores::start().await?;
    let (a, b) = tokio::try_join!(Node::ready(stores.spec("a")), Node::ready(stores.spec("b")))?;
    for n in 0..20 {
        a.rooms()?.create_room(create(&format!("r{n}"))).await?;
    }
    for round in 0..3 {
        stores.wipe_leases().await?;
        for n in 0..20 {
            let node = if n % 2 == 0 { &a } else { &b };
            let (answer, _) = join_until_answered(node, &format!("r{n}"), &format!("u{round}")).await?;
            assert_eq!(answer.owner.unwrap_or_default().node_id, "a", "r{n} stays");
        }
    }
    stores.audit().await
}

// C61, C69, C72, P8: a lease store that is away.
#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_away_open_connections_go_on_and_nothing_moves() -> Result<()> {
    let mut stores = Stores::start().await?;
    let a = Node::ready(stores.spec("a").env("LEASE_TTL", "2s")).await?;
    let b = Node::ready(stores.spec("b").env("LEASE_TTL", "2s")).await?;
    for n in 0..10 {
        a.rooms()?.create_room(create(&format!("r{n}"))).await?;
    }
    let mut open = a.rooms()?;
    stores.redis.pause()?;
    let away = Instant::now();
    let mut round = 0;
    while away.elapsed() < Duration::from_secs(6) {
        for n in 0..10 {
            let request = join(&format!("r{n}"), &format!("u{round}"));
            let answer = open.join_room(within(Duration::from_secs(5), request)).await?.into_inner();
            assert_eq!(answer.owner.unwrap_or_default().node_id, "a");
        }
        let (answer, _) = join_until_answered(&b, "r0", &format!("b{round}")).await?;
        assert_eq!(
            answer.owner.unwrap_or_default().node_id,
            "a",
            "the other node forwards by the row in SQL"
        );
        round += 1;
    }
    let (live, _) = a.admin("GET", "/healthz/live").await?;
    assert_eq!(live, 200, "liveness does not depend on Redis");
    stores.redis.resume()?;
    for node in [&a, &b] {
        eventually("the node is ready again", || async {
            node.admin("GET", "/healthz/ready").await.is_ok_and(|(status, _)| status == 200)
        })
        .await?;
    }
    for n in 0..10 {
        assert_eq!(owner(&b, &format!("r{n}")).await?, "a");
    }
    stores.audit().await
}

// C52: the owner is killed.
#[tokio::test(flavor = "multi_thread")]
async fn the_rooms_of_a_killed_node_come_back_when_its_leases_have_expired() -> Result<()> {
    let stores = Stores::start().await?;
    let a = Node::ready(stores.spec("a").env("LEASE_TTL", "2s")).await?;
    let b = Node::ready(stores.spec("b").env("LEASE_TTL", "2s")).await?;
    for n in 0..10 {
        a.rooms()?.create_room(create(&format!("r{n}"))).await?;
    }
    a.signal(Signal::SIGKILL)?;
    for n in 0..10 {
        let (answer, _) = join_until_answered(&b, &format!("r{n}"), "ann").await?;
        assert_eq!(answer.owner.unwrap_or_default().node_id, "b");
    }
    stores.audit().await
}

// O32: a node that comes back under its name must not be blocked by what its former process left.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_releases_what_its_former_process_owned() -> Result<()> {
    let stores = Stores::start().await?;
    let mut a = Node::ready(stores.spec("a")).await?;
    let b = Node::ready(stores.spec("b")).await?;
    for n in 0..5 {
        a.rooms()?.create_room(create(&format!("r{n}"))).await?;
    }
    a.signal(Signal::SIGKILL)?;
    a.wait_end().await?;
    let a = Node::ready(stores.spec("a")).await?;
    assert_eq!(b.rooms_owned_by("a").await?.unreleased, 0);
    join_until_answered(&a, "r0", "ann").await?;
    stores.audit().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_may_restart_under_the_nodes() -> Result<()> {
    let mut stores = Stores::start().await?;
    let a = Node::ready(stores.spec("a")).await?;
    a.rooms()?.create_room(create("r")).await?;
    stores.mariadb.restart().await?;
    join_until_answered(&a, "r", "ann").await?;
    let (live, _) = a.admin("GET", "/healthz/live").await?;
    assert_eq!(live, 200);
    assert_eq!(stores.committed("r").await?, ["create", "join-ann"]);
    stores.audit().await
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_operator_and_peers_need_the_node_token() -> Result<()> {
    let stores = Stores::start().await?;
    let a = Node::ready(stores.spec("a")).await?;
    for header in [None, Some("Bearer wrong"), Some("test-token-of-the-nodes")] {
        let mut order = tonic::Request::new(node_pb::GetNodeRequest {});
        let mut execute = tonic::Request::new(peer_pb::ExecuteRequest::default());
        if let Some(header) = header {
            order.metadata_mut().insert("authorization", header.parse()?);
            execute.metadata_mut().insert("authorization", header.parse()?);
        }
        let order = NodeServiceClient::new(a.channel()?).get_node(order).await.unwrap_err();
        let execute = PeerServiceClient::new(a.channel()?).execute(execute).await.unwrap_err();
        for status in [order, execute] {
            assert_eq!(
                (status.code(), reason(&status).as_str()),
                (Code::Unauthenticated, "NODE_TOKEN_REFUSED")
            );
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_gets_the_right_code_and_a_stable_reason_and_loses_nothing() -> Result<()> {
    let stores = Stores::start().await?;
    let a = Node::ready(stores.spec("a")).await?;
    let mut rooms = a.rooms()?;
    let long = "x".repeat(200);
    let bad = |app: &str, room: &str, id: &str| pb::JoinRoomRequest {
        scope: Some(pb::CommandScope { app_code: app.into(), room_id: room.into(), command_id: id.into() }),
        user_id: "ann".into(),
    };
    let table = [
        (bad("", "r", "c"), Code::InvalidArgument, "ID_MISSING"),
        (bad("app", "", "c"), Code::InvalidArgument, "ID_MISSING"),
        (bad("app", "r", ""), Code::InvalidArgument, "ID_MISSING"),
        (pb::JoinRoomRequest { scope: None, user_id: "ann".into() }, Code::InvalidArgument, "ID_MISSING"),
        (bad("app", &long, "c"), Code::InvalidArgument, "ID_TOO_LONG"),
        (bad("app", "r", &long), Code::InvalidArgument, "ID_TOO_LONG"),
        (bad("app", "r\0", "c"), Code::InvalidArgument, "ID_HAS_CONTROL_CHARACTER"),
        (bad("app", "r", "c\n"), Code::InvalidArgument, "ID_HAS_CONTROL_CHARACTER"),
        (bad("app", "nowhere", "c"), Code::NotFound, "ROOM_NOT_FOUND"),
    ];
    for (request, code, why) in table {
        let status = rooms.join_room(request.clone()).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (code, why), "{request:?}");
    }

    rooms.create_room(create("r")).await?;
    let huge = pb::JoinRoomRequest { scope: scope("r", "huge"), user_id: "x".repeat(1 << 20) };
    let status = rooms.join_room(huge).await.unwrap_err();
    assert!(matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted), "{status:?}");
    rooms.close_room(pb::CloseRoomRequest { scope: scope("r", "close"), user_id: "host".into() }).await?;
    let status = rooms.join_room(join("r", "ann")).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::FailedPrecondition, "ROOM_CLOSED"));
    assert_eq!(stores.committed("r").await?, ["create", "close"]);
    stores.audit().await
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_compared_as_bytes_end_to_end() -> Result<()> {
    let stores = Stores::start().await?;
    let a = Node::ready(stores.spec("a")).await?;
    for room in ["Room", "room", "room ", " room", "rööm", "ROOM"] {
        a.rooms()?.create_room(create(room)).await?;
        join_until_answered(&a, room, "ann").await?;
        join_until_answered(&a, room, "ann ").await?;
    }
    assert_eq!(stores.committed("room ").await?, ["create", "join-ann", "join-ann "]);
    stores.audit().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_meets_another_schema_is_not_ready_and_says_so() -> Result<()> {
    let stores = Stores::unmigrated().await?;
    let mut a = Node::spawn(stores.spec("a"))?;
    eventually("the node names the schema", || async {
        a.admin("GET", "/healthz/ready").await.is_ok_and(|(status, body)| {
            status == 503 && body.contains("\"schema\"") && body.contains("dataplane migrate")
        })
    })
    .await?;
    stores.migrate().await?;
    a.wait_ready().await?;
    stores.migrate().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_flags_end_the_process_with_the_flags_name_and_no_secret() -> Result<()> {
    let good = [
        ("NODE_ID", "a"),
        ("ADVERTISE_ADDR", "127.0.0.1:7400"),
        ("DATABASE_URL", "mysql://u:hunter2@127.0.0.1:1/x"),
        ("REDIS_URL", "redis://:hunter2@127.0.0.1:1"),
        ("NODE_TOKEN", "hunter2"),
        ("ADMIN_LISTEN", "127.0.0.1:0"),
    ];
    let table = [
        ("NODE_ID", "a\nb", "--node-id"),
        ("ADVERTISE_ADDR", "0.0.0.0:7400", "--advertise-addr"),
        ("ADVERTISE_ADDR", "nowhere", "--advertise-addr"),
        ("DATABASE_URL", "oracle://u:hunter2@h/x", "--database-url"),
        ("REDIS_URL", "http://:hunter2@h", "--redis-url"),
        ("LEASE_TTL", "soon", "--lease-ttl"),
        ("COMMIT_SESSIONS", "0", "--commit-sessions"),
    ];
    for (name, value, flag) in table {
        let env: Vec<_> = good.iter().copied().filter(|(n, _)| *n != name).chain([(name, value)]).collect();
        let output = run_dataplane(&["room"], &env).await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{name}={value:?}: {said}");
        assert!(said.contains(flag), "{name}={value:?}: {said}");
        assert!(!said.contains("hunter2"), "{name}={value:?} shows a secret: {said}");
    }
    Ok(())
}
