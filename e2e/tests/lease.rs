//! The lease store's suite on a real Redis, and what only a real server can show.

#![allow(clippy::unwrap_used, reason = "tests")]

use dataplane::{ownership, types};

#[path = "../../dataplane/src/ownership/lease_suite.rs"]
mod lease_suite;

use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::servers::{Redis, TcpProxy};
use lease_suite::{LONG, Leases, claim, facts, put, room, route, standing, write};
use ownership::lease::RoutePut;
use ownership::redis::{RedisLeases, RedisOptions};
use redis::AsyncCommands;
use secrecy::SecretString;

/// A time to live that a test can wait out. The server's age counts in whole seconds.
const TTL: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

fn open(url: String) -> Leases {
    Arc::new(RedisLeases::open(&SecretString::from(url), RedisOptions::default()).unwrap())
}

async fn on_redis() -> (Redis, Leases) {
    let redis = Redis::start().await.unwrap();
    let leases = open(redis.url());
    (redis, leases)
}

lease_suite::lease_suite!(on_redis);

async fn absence_counts(leases: &Leases) -> bool {
    let view = leases.routes(&[room("absent")], TTL).await.unwrap().remove(0);
    assert_eq!(view.route, None);
    view.absence_counts
}

/// Waits until an absent route says that a lease ended, and tells how long that took.
async fn until_absence_counts(leases: &Leases) -> Duration {
    let started = Instant::now();
    while !absence_counts(leases).await {
        tokio::time::sleep(POLL).await;
    }
    started.elapsed()
}

#[tokio::test]
async fn the_keys_are_those_that_the_specification_names() {
    let (redis, leases) = on_redis().await;
    put(&leases, write(&room("r 1"), claim(7, 0xab), "node-a"), LONG).await;
    leases.announce(&facts("node-a", 1), LONG).await.unwrap();
    let mut raw = redis.connection().await.unwrap();
    let stored: String = raw.get("room:route:app\0r 1").await.unwrap();
    assert_eq!(stored, format!("00000000000000000007:{}:node-a", "ab".repeat(16)));
    let address: String = raw.get("room:node:node-a").await.unwrap();
    assert_eq!(address, "node-a:7400");
    for key in ["room:route:app\0r 1", "room:node:node-a", "room:node-facts:node-a"] {
        let ttl: i64 = raw.pttl(key).await.unwrap();
        assert!((1..=60_000).contains(&ttl), "{key}: {ttl}");
    }
    let ttl: i64 = raw.pttl("room:store-marker").await.unwrap();
    assert_eq!(ttl, -1, "the marker has no time to live");
}

// C68, C72 and P8: an empty store says nothing about leases.
#[tokio::test]
async fn after_a_wipe_absence_says_nothing_for_one_time_to_live() {
    let (redis, leases) = on_redis().await;
    assert!(!absence_counts(&leases).await, "no marker yet");
    leases.announce(&facts("node-a", 1), LONG).await.unwrap();
    until_absence_counts(&leases).await;
    redis.wipe().await.unwrap();
    assert!(!absence_counts(&leases).await, "wiped");
    leases.announce(&facts("node-a", 1), LONG).await.unwrap();
    let waited = until_absence_counts(&leases).await;
    assert!(waited >= TTL - POLL, "{waited:?}");
}

// A store that comes back with its marker has let leases expire meanwhile that nobody could renew.
#[tokio::test]
async fn after_a_restart_absence_says_nothing_for_one_time_to_live_although_the_marker_is_old() {
    let (mut redis, leases) = on_redis().await;
    leases.announce(&facts("node-a", 1), LONG).await.unwrap();
    until_absence_counts(&leases).await;
    redis.kill().unwrap();
    redis.restart().await.unwrap();
    // A client that has seen nothing of it.
    let fresh = open(redis.url());
    let mut raw = redis.connection().await.unwrap();
    assert!(raw.exists::<_, bool>("room:store-marker").await.unwrap());
    assert!(!absence_counts(&fresh).await);
    until_absence_counts(&fresh).await;
}

// C19, C72: a store that stalls has let leases expire that nobody could renew.
#[tokio::test]
async fn after_an_outage_that_a_client_saw_absence_says_nothing_for_one_time_to_live() {
    let (mut redis, leases) = on_redis().await;
    leases.announce(&facts("node-a", 1), LONG).await.unwrap();
    until_absence_counts(&leases).await;
    redis.pause().unwrap();
    assert!(leases.routes(&[room("r")], TTL).await.is_err());
    redis.resume().unwrap();
    let started = Instant::now();
    while leases.probe().await.is_err() {
        tokio::time::sleep(POLL).await;
    }
    assert!(!absence_counts(&leases).await);
    until_absence_counts(&leases).await;
    assert!(started.elapsed() >= TTL - POLL);
    // A client that did not look meanwhile has nothing to forget.
    assert!(absence_counts(&open(redis.url())).await);
}

// C61, C69: the connection comes back by itself.
#[tokio::test]
async fn a_silent_store_costs_a_call_no_more_than_its_time_outs_and_a_dead_one_nothing() {
    let (mut redis, leases) = on_redis().await;
    let room = room("r");
    put(&leases, write(&room, claim(1, 1), "node-a"), LONG).await;
    redis.pause().unwrap();
    for _ in 0..3 {
        let started = Instant::now();
        assert!(leases.probe().await.is_err());
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    }
    redis.resume().unwrap();
    redis.kill().unwrap();
    let started = Instant::now();
    let calls = futures::future::join_all((0..200).map(|_| leases.probe())).await;
    assert!(calls.iter().all(Result::is_err));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    redis.restart().await.unwrap();
    while leases.probe().await.is_err() {
        tokio::time::sleep(POLL).await;
    }
    // The script cache of the new server is empty; the scripts load themselves.
    assert_eq!(put(&leases, write(&room, claim(2, 2), "node-b"), LONG).await, RoutePut::Held);
    assert_eq!(standing(&leases, &room).await, Some(route(claim(2, 2), "node-b")));
}

// A half-open connection: the peer is gone and nobody has said so.
#[tokio::test]
async fn a_connection_that_swallows_everything_is_replaced() {
    let redis = Redis::start().await.unwrap();
    let proxy = TcpProxy::start(redis.port()).await.unwrap();
    let leases = open(redis.url_at(proxy.port()));
    leases.probe().await.unwrap();
    proxy.stall();
    assert!(leases.probe().await.is_err());
    proxy.cut();
    assert!(leases.probe().await.is_err());
    proxy.resume();
    while leases.probe().await.is_err() {
        tokio::time::sleep(POLL).await;
    }
}

#[tokio::test]
async fn a_flushed_script_cache_is_filled_again() {
    let (redis, leases) = on_redis().await;
    let room = room("r");
    put(&leases, write(&room, claim(1, 1), "node-a"), LONG).await;
    let mut raw = redis.connection().await.unwrap();
    redis::cmd("SCRIPT").arg("FLUSH").query_async::<()>(&mut raw).await.unwrap();
    assert_eq!(put(&leases, write(&room, claim(1, 1), "node-a"), LONG).await, RoutePut::Held);
    assert_eq!(leases.remove_routes(&[(room, claim(1, 1))]).await.unwrap(), 1);
}

#[tokio::test]
async fn what_is_not_a_route_neither_stands_in_the_way_nor_counts_as_absent() {
    let (redis, leases) = on_redis().await;
    leases.announce(&facts("node-a", 1), LONG).await.unwrap();
    until_absence_counts(&leases).await;
    let mut raw = redis.connection().await.unwrap();
    raw.set::<_, _, ()>("room:route:app\0r", "zz").await.unwrap();
    raw.set::<_, _, ()>("room:node-facts:node-a", "no facts").await.unwrap();
    let view = leases.routes(&[room("r")], TTL).await.unwrap().remove(0);
    assert_eq!((view.route, view.absence_counts), (None, false));
    assert_eq!(put(&leases, write(&room("r"), claim(1, 1), "node-a"), LONG).await, RoutePut::Held);
    assert!(leases.nodes().await.unwrap().is_empty());
    // A node announces itself over it, and withdraws what nobody can read.
    leases.announce(&facts("node-a", 1), LONG).await.unwrap();
    assert_eq!(leases.nodes().await.unwrap(), [facts("node-a", 1)]);
}

#[tokio::test]
async fn the_index_of_nodes_forgets_the_dead() {
    let (redis, leases) = on_redis().await;
    for i in 0..50 {
        leases.announce(&facts(&format!("gone-{i}"), 1), Duration::from_millis(20)).await.unwrap();
    }
    let mut raw = redis.connection().await.unwrap();
    loop {
        leases.announce(&facts("node-a", 1), Duration::from_millis(20)).await.unwrap();
        if raw.zcard::<_, u64>("room:nodes").await.unwrap() == 1 {
            return;
        }
        tokio::time::sleep(POLL).await;
    }
}

#[test]
fn a_url_that_is_not_valid_is_refused_without_showing_its_secret() {
    let error = RedisLeases::open(&SecretString::from("http://u:hunter2@h"), RedisOptions::default()).err();
    let error = error.expect("refused");
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}
