//! What becomes of a command when its node, its connection or its reply is lost.

use std::time::Duration;

use anyhow::Result;
use e2e::node::{
    Node, NodeSpec, PATIENCE, create, eventually, join, join_until_answered, reason, scope, within,
};
use e2e::servers::{TcpProxy, Trap};
use nix::sys::signal::Signal;
use roomcluster_proto::rooms::v1 as pb;
use tokio::time::Instant;

use super::*;

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
