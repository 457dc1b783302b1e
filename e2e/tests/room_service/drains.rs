//! How a node lets go of its rooms: by order, and at its end.

use std::time::Duration;

use anyhow::Result;
use e2e::node::{Node, create, eventually, join_until_answered, reason, within};
use nix::sys::signal::Signal;
use roomcluster_proto::node::v1 as node_pb;

use super::*;

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
