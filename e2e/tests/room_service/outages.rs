//! Stores that are wiped, away or restarted, and nodes that are killed.

use std::time::Duration;

use anyhow::Result;
use e2e::node::{Node, create, eventually, join, join_until_answered, within};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::*;

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
