//! A TCP proxy that breaks connections where a test wants it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Bytes that are passed on at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// What the proxy does with all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    /// Passes nothing on, and closes nothing.
    Stall,
    /// Closes all, and takes no new one.
    Cut,
}

/// What happens to the connection on which a client next sends certain bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    /// The bytes do not reach the server, and both sides are closed.
    CutBefore,
    /// The bytes reach the server, its answer does not reach the client, and both sides are closed.
    CutAfter,
    /// The bytes do not reach the server, and nothing is closed.
    Stall,
}

/// A proxy on a free port of the loopback interface.
pub struct TcpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Ends with the proxy, and all connections with it.
    _tasks: JoinSet<()>,
}

struct Shared {
    target: SocketAddr,
    mode: watch::Sender<Mode>,
    trap: Mutex<Option<(Vec<u8>, Trap)>>,
    sprung: watch::Sender<u32>,
}

impl TcpProxy {
    /// Starts a proxy to a port of the loopback interface.
    pub async fn start(target_port: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let shared = Arc::new(Shared {
            target: SocketAddr::from((Ipv4Addr::LOCALHOST, target_port)),
            mode: watch::Sender::new(Mode::Pass),
            trap: Mutex::new(None),
            sprung: watch::Sender::new(0),
        });
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, _tasks: tasks })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Closes all connections, and every new one at once.
    pub fn cut(&self) {
        self.shared.mode.send_replace(Mode::Cut);
    }

    /// Passes nothing on, in either direction.
    pub fn stall(&self) {
        self.shared.mode.send_replace(Mode::Stall);
    }

    /// Passes everything on again.
    pub fn resume(&self) {
        self.shared.mode.send_replace(Mode::Pass);
    }

    /// Sets a trap for the next connection on which a client sends these bytes.
    pub fn set_trap(&self, bytes: &[u8], trap: Trap) {
        *self.shared.trap() = Some((bytes.to_vec(), trap));
    }

    /// Waits until so many traps have sprung.
    pub async fn sprung(&self, times: u32) {
        let mut sprung = self.shared.sprung.subscribe();
        sprung.wait_for(|count| *count >= times).await.expect("the proxy holds the sender");
    }
}

impl Shared {
    fn trap(&self) -> std::sync::MutexGuard<'_, Option<(Vec<u8>, Trap)>> {
        self.trap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The trap that these bytes spring.
    fn spring(&self, chunk: &[u8]) -> Option<Trap> {
        let mut slot = self.trap();
        let trap = slot.as_ref().filter(|(bytes, _)| chunk.windows(bytes.len()).any(|part| part == bytes))?.1;
        *slot = None;
        self.sprung.send_modify(|count| *count += 1);
        Some(trap)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        if *shared.mode.borrow() == Mode::Cut {
            continue;
        }
        connections.spawn(serve(client, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(shared.target).await else { return };
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let trap = watch::Sender::new(None);
    let mut mode = shared.mode.subscribe();
    // The first to end drops all four halves, which closes both sides.
    tokio::select! {
        biased;
        _ = mode.wait_for(|mode| *mode == Mode::Cut) => {}
        () = upstream(from_client, to_server, &shared, &trap) => {}
        () = downstream(from_server, to_client, &shared, &trap) => {}
    }
}

/// From the client to the server, past the trap.
async fn upstream(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    sprung: &watch::Sender<Option<Trap>>,
) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Some(len) = next_chunk(&mut from, &mut buffer, shared).await {
        match shared.spring(&buffer[..len]) {
            Some(Trap::CutBefore) => return,
            Some(Trap::Stall) => std::future::pending().await,
            Some(Trap::CutAfter) => {
                sprung.send_replace(Some(Trap::CutAfter));
            }
            None => {}
        }
        if to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}

/// From the server to the client, until the trap has sprung.
async fn downstream(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    sprung: &watch::Sender<Option<Trap>>,
) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Some(len) = next_chunk(&mut from, &mut buffer, shared).await {
        if sprung.borrow().is_some() || to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}

/// The next bytes, once they may pass.
async fn next_chunk(from: &mut OwnedReadHalf, buffer: &mut [u8], shared: &Shared) -> Option<usize> {
    let len = from.read(buffer).await.ok().filter(|len| *len > 0)?;
    let mut mode = shared.mode.subscribe();
    mode.wait_for(|mode| *mode == Mode::Pass).await.ok()?;
    Some(len)
}
