//! The lease store on Redis.
//!
//! Keys: `room:route:{app_code}\0{room_id}` holds `epoch:token:node`; `room:node:{node_id}` the node's address and
//! `room:node-facts:{node_id}` what else it tells, in JSON; `room:nodes` orders the nodes by when they expire;
//! `room:store-marker` says since when the store is whole. Every conditional write is one script.
//!
//! An absent route counts as a lease that ended only if the store could have kept it for one time to live: the
//! marker is that old, the server has been up for that long, and this client has not missed an answer meanwhile.

mod link;
mod values;

use std::time::Duration;

use async_trait::async_trait;
use futures::future::try_join_all;
use redis::Script;
use secrecy::SecretString;

use super::lease::{LeaseError, LeaseStore, NodeFacts, RoutePut, RouteView, RouteWrite};
use crate::types::{Claim, Incarnation, NodeId, RoomKey};

use link::Link;
use values::{claim_prefix, decode_facts, decode_route, encode_facts, encode_route, route_key};

/// Routes in one call of a script: Redis serves nobody else meanwhile.
const ROUTES_PER_CALL: usize = 256;
/// Routes in the calls that are under way at once: few enough that the last one is answered in time.
const ROUTES_AT_ONCE: usize = 8 * ROUTES_PER_CALL;

const MARKER: &str = "room:store-marker";
const NODES: &str = "room:nodes";
const PROBE: &str = "room:probe";
/// The probe's key goes away by itself.
const PROBE_TTL_MS: u64 = 10_000;

/// How the lease store is reached.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// Longest wait for a new connection.
    pub connect_timeout: Duration,
    /// Longest wait for an answer.
    pub response_timeout: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self { connect_timeout: Duration::from_millis(200), response_timeout: Duration::from_millis(200) }
    }
}

/// The lease store on Redis.
pub struct RedisLeases {
    link: Link,
    scripts: Scripts,
}

struct Scripts {
    put_routes: Script,
    routes: Script,
    remove_routes: Script,
    announce: Script,
    withdraw: Script,
}

impl RedisLeases {
    /// Reads the URL. Connects at the first call, so that a start does not wait for Redis.
    pub fn open(url: &SecretString, options: RedisOptions) -> Result<Self, LeaseError> {
        Ok(Self {
            link: Link::new(url, options)?,
            scripts: Scripts {
                put_routes: Script::new(include_str!("lease_scripts/put_routes.lua")),
                routes: Script::new(include_str!("lease_scripts/routes.lua")),
                remove_routes: Script::new(include_str!("lease_scripts/remove_routes.lua")),
                announce: Script::new(include_str!("lease_scripts/announce.lua")),
                withdraw: Script::new(include_str!("lease_scripts/withdraw.lua")),
            },
        })
    }

    async fn put_some(&self, writes: &[RouteWrite], ttl: Duration) -> Result<Vec<RoutePut>, LeaseError> {
        let mut call = self.scripts.put_routes.arg(millis(ttl));
        for write in writes {
            call.key(route_key(&write.room)).arg(encode_route(write.claim, &write.node_id));
        }
        let answers: Vec<Vec<u8>> = self.link.invoke(&call).await?;
        if answers.len() != writes.len() {
            return Err(unexpected("a script answered for another number of routes"));
        }
        answers
            .iter()
            .map(|standing| match standing.as_slice() {
                [] => Ok(RoutePut::Held),
                standing => decode_route(standing)
                    .map(RoutePut::Refused)
                    .ok_or_else(|| unexpected("a route that cannot be read stands in the way")),
            })
            .collect()
    }

    async fn look_at_some(&self, rooms: &[RoomKey], ttl: Duration) -> Result<Vec<RouteView>, LeaseError> {
        let mut call = self.scripts.routes.key(MARKER);
        for room in rooms {
            call.key(route_key(room));
        }
        let answers: Vec<redis::Value> = self.link.invoke(&call).await?;
        let [now_ms, marker_ms, uptime_s, routes @ ..] = answers.as_slice() else {
            return Err(unexpected("a script answered too little"));
        };
        if routes.len() != rooms.len() {
            return Err(unexpected("a script answered for another number of routes"));
        }
        let age_ms = number(now_ms)?.saturating_sub(number(marker_ms)?);
        let whole = number(marker_ms)? > 0
            && age_ms >= i64::try_from(millis(ttl)).unwrap_or(i64::MAX)
            && number(uptime_s)? > i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX)
            && self.link.answered_for(ttl);
        routes
            .iter()
            .map(|value| {
                let stored: Vec<u8> = redis::from_redis_value(value.clone())
                    .map_err(|_| unexpected("a script answered with another type"))?;
                let route = decode_route(&stored);
                // What cannot be read says nothing, neither of an owner nor of a lease that ended.
                let absence_counts = whole && stored.is_empty();
                Ok(RouteView { route, absence_counts })
            })
            .collect()
    }
}

#[async_trait]
impl LeaseStore for RedisLeases {
    async fn probe(&self) -> Result<(), LeaseError> {
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(PROBE).arg(1).arg("PX").arg(PROBE_TTL_MS).ignore().cmd("GET").arg(PROBE);
        let (_read,): (u8,) = self.link.query(&pipe).await?;
        Ok(())
    }

    async fn put_routes(&self, writes: &[RouteWrite], ttl: Duration) -> Result<Vec<RoutePut>, LeaseError> {
        let mut answers = Vec::with_capacity(writes.len());
        for wave in writes.chunks(ROUTES_AT_ONCE) {
            let mut calls = Vec::new();
            for some in wave.chunks(ROUTES_PER_CALL) {
                calls.push(self.put_some(some, ttl));
            }
            answers.extend(try_join_all(calls).await?.into_iter().flatten());
        }
        Ok(answers)
    }

    async fn routes(&self, rooms: &[RoomKey], ttl: Duration) -> Result<Vec<RouteView>, LeaseError> {
        let mut answers = Vec::with_capacity(rooms.len());
        for wave in rooms.chunks(ROUTES_AT_ONCE) {
            let mut calls = Vec::new();
            for some in wave.chunks(ROUTES_PER_CALL) {
                calls.push(self.look_at_some(some, ttl));
            }
            answers.extend(try_join_all(calls).await?.into_iter().flatten());
        }
        Ok(answers)
    }

    async fn remove_routes(&self, routes: &[(RoomKey, Claim)]) -> Result<u64, LeaseError> {
        let mut removed = 0;
        for wave in routes.chunks(ROUTES_AT_ONCE) {
            let mut calls = Vec::new();
            for some in wave.chunks(ROUTES_PER_CALL) {
                calls.push(self.remove_some(some));
            }
            removed += try_join_all(calls).await?.into_iter().sum::<u64>();
        }
        Ok(removed)
    }

    async fn announce(&self, facts: &NodeFacts, ttl: Duration) -> Result<(), LeaseError> {
        let mut call = self.scripts.announce.key(node_key(&facts.node_id));
        call.key(facts_key(&facts.node_id)).key(NODES).key(MARKER);
        call.arg(facts.node_id.as_str()).arg(&facts.address).arg(encode_facts(facts)).arg(millis(ttl));
        self.link.invoke::<u64>(&call).await?;
        Ok(())
    }

    async fn withdraw(&self, node: &NodeId, incarnation: Incarnation) -> Result<(), LeaseError> {
        let mut call = self.scripts.withdraw.key(node_key(node));
        call.key(facts_key(node)).key(NODES).arg(node.as_str()).arg(incarnation.to_hex());
        self.link.invoke::<u64>(&call).await?;
        Ok(())
    }

    async fn node(&self, node: &NodeId) -> Result<Option<NodeFacts>, LeaseError> {
        Ok(self.facts_of(std::slice::from_ref(node)).await?.pop())
    }

    async fn nodes(&self) -> Result<Vec<NodeFacts>, LeaseError> {
        let mut pipe = redis::pipe();
        pipe.cmd("ZRANGE").arg(NODES).arg(0).arg(-1);
        let (names,): (Vec<String>,) = self.link.query(&pipe).await?;
        let nodes: Vec<NodeId> = names.iter().filter_map(|name| NodeId::new(name).ok()).collect();
        let mut alive = Vec::with_capacity(nodes.len());
        for some in nodes.chunks(ROUTES_PER_CALL) {
            alive.extend(self.facts_of(some).await?);
        }
        Ok(alive)
    }
}

impl RedisLeases {
    async fn remove_some(&self, routes: &[(RoomKey, Claim)]) -> Result<u64, LeaseError> {
        let mut call = self.scripts.remove_routes.prepare_invoke();
        for (room, claim) in routes {
            call.key(route_key(room)).arg(claim_prefix(*claim));
        }
        self.link.invoke(&call).await
    }

    /// What the nodes that are alive among these tell, in order.
    async fn facts_of(&self, nodes: &[NodeId]) -> Result<Vec<NodeFacts>, LeaseError> {
        if nodes.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        pipe.cmd("MGET").arg(nodes.iter().map(node_key).collect::<Vec<_>>());
        pipe.cmd("MGET").arg(nodes.iter().map(facts_key).collect::<Vec<_>>());
        let (addresses, facts): (Vec<Option<String>>, Vec<Option<String>>) = self.link.query(&pipe).await?;
        let told = nodes.iter().zip(addresses).zip(facts);
        Ok(told.filter_map(|((node, address), facts)| decode_facts(node, address?, &facts?)).collect())
    }
}

fn node_key(node: &NodeId) -> String {
    format!("room:node:{node}")
}

fn facts_key(node: &NodeId) -> String {
    format!("room:node-facts:{node}")
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn number(value: &redis::Value) -> Result<i64, LeaseError> {
    match value {
        redis::Value::Int(number) => Ok(*number),
        _ => Err(unexpected("a script answered with another type")),
    }
}

fn unexpected(problem: &str) -> LeaseError {
    LeaseError { problem: problem.to_owned() }
}
