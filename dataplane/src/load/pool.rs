//! Connections that are replaced as soon as they fail.
//!
//! A pool knows addresses and connections, not what is sent over them. Each slot has a keeper that resolves the
//! target, connects and publishes the client; a caller that saw it fail says so, and the keeper starts over with
//! the next address. No slot stays with an address that died: a fresh resolve comes before every connect.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Uri;
use roomcluster_proto::rooms::v1::room_service_client::RoomServiceClient;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

/// A live peer on the same network answers a SYN well within this.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Between rounds over all addresses when none answers.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Finds a peer that vanished without a word, together with the next.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(1);
/// How long a peer may take to answer a keep-alive.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(1);

/// A `http://host:port` to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    origin: Uri,
    host: String,
    port: u16,
}

/// Why a text is not a target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form http://host:port")]
pub struct InvalidTarget(String);

impl std::str::FromStr for Target {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, InvalidTarget> {
        let invalid = || InvalidTarget(text.to_owned());
        let origin: Uri = text.parse().map_err(|_| invalid())?;
        let (Some("http"), Some(host), Some(port)) = (origin.scheme_str(), origin.host(), origin.port_u16())
        else {
            return Err(invalid());
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(invalid());
        }
        Ok(Self { origin, host, port })
    }
}

/// A connection lent to one try.
#[derive(Debug, Clone)]
pub(crate) struct Lent {
    /// The client.
    pub(crate) client: RoomServiceClient<Channel>,
    slot: usize,
    generation: u64,
}

#[derive(Debug, Default)]
struct Slot {
    live: Mutex<Live>,
    broken: Notify,
}

#[derive(Debug, Default)]
struct Live {
    generation: u64,
    client: Option<RoomServiceClient<Channel>>,
}

/// The connections of a run.
#[derive(Debug)]
pub(crate) struct Pool {
    targets: Vec<Target>,
    slots: Vec<Slot>,
    turn: AtomicUsize,
    connected: Notify,
}

impl Pool {
    /// A pool and its keepers, which run until `stop`.
    pub(crate) fn start(
        targets: Vec<Target>,
        slots: usize,
        stop: &CancellationToken,
    ) -> (Arc<Self>, JoinSet<()>) {
        let pool = Arc::new(Self {
            targets,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            turn: AtomicUsize::new(0),
            connected: Notify::new(),
        });
        let mut keepers = JoinSet::new();
        for slot in 0..slots {
            let (pool, stop) = (pool.clone(), stop.clone());
            keepers.spawn(async move {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = pool.keep(slot) => {}
                }
            });
        }
        (pool, keepers)
    }

    /// The next live connection; waits at most `timeout` for one.
    pub(crate) async fn lend(&self, timeout: Duration) -> Option<Lent> {
        let wait = async {
            loop {
                let connected = self.connected.notified();
                tokio::pin!(connected);
                // Registered before the look, so that a connection made in between is not missed.
                connected.as_mut().enable();
                if let Some(lent) = self.next_live() {
                    return lent;
                }
                connected.await;
            }
        };
        tokio::time::timeout(timeout, wait).await.ok()
    }

    /// The connection failed: it is replaced, unless that happened already.
    pub(crate) fn failed(&self, lent: &Lent) {
        let slot = &self.slots[lent.slot];
        let mut live = slot.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.generation == lent.generation && live.client.take().is_some() {
            slot.broken.notify_one();
        }
    }

    fn next_live(&self) -> Option<Lent> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        (0..self.slots.len()).find_map(|step| {
            let slot = (first + step) % self.slots.len();
            let live = self.slots[slot].live.lock().unwrap_or_else(PoisonError::into_inner);
            live.client.clone().map(|client| Lent { client, slot, generation: live.generation })
        })
    }

    /// Keeps one slot connected.
    async fn keep(&self, slot: usize) {
        // Slots begin at different addresses and go on to the next after each failure.
        let mut turn = slot;
        loop {
            match self.connect(turn).await {
                Some(channel) => {
                    {
                        let mut live = self.slots[slot].live.lock().unwrap_or_else(PoisonError::into_inner);
                        live.generation += 1;
                        live.client = Some(RoomServiceClient::new(channel));
                    }
                    self.connected.notify_waiters();
                    self.slots[slot].broken.notified().await;
                }
                None => tokio::time::sleep(RECONNECT_PAUSE).await,
            }
            turn += 1;
        }
    }

    /// Resolves the targets afresh and tries each address once, beginning with the `turn`-th.
    async fn connect(&self, turn: usize) -> Option<Channel> {
        let mut addresses = Vec::new();
        for target in &self.targets {
            let resolved =
                tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::lookup_host((&*target.host, target.port)));
            if let Ok(Ok(found)) = resolved.await {
                addresses.extend(found.map(|address| (address, target)));
            }
        }
        let count = addresses.len();
        for step in 0..count {
            let (address, target) = addresses[(turn + step) % count];
            if let Ok(channel) = endpoint(address, target).connect().await {
                return Some(channel);
            }
        }
        None
    }
}

fn endpoint(address: SocketAddr, target: &Target) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}"))
        .expect("a socket address makes a valid URI")
        .origin(target.origin.clone())
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_plain_http_url_with_a_port() {
        let target: Target = "http://rooms.demo.svc:7400".parse().unwrap();
        assert_eq!((target.host.as_str(), target.port), ("rooms.demo.svc", 7400));
        assert_eq!("http://[::1]:7400".parse::<Target>().unwrap().host, "::1");
        for bad in ["rooms:7400", "http://rooms", "https://rooms:7400", "", "http://:7400"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
