//! Connections that can be looked over and cut from outside.
//!
//! A cut makes the next read or write fail, which ends the connection's task whatever protocol it speaks.
//! Knows bytes and times only; requests are counted in by the layers above.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The wait after a failed accept: out of file descriptors, say. Without it the loop would spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// All open connections of a server. Clones are handles.
#[derive(Clone, Default)]
pub(super) struct Connections {
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    next_id: u64,
    by_id: HashMap<u64, Arc<Connection>>,
}

/// What is known about a connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    opened_at: Instant,
    /// Milliseconds from `opened_at` to the last byte in either direction.
    active_ms: AtomicU64,
    has_spoken: AtomicBool,
    requests: AtomicUsize,
    cut: CancellationToken,
}

impl Connection {
    fn new(stream: &TcpStream) -> Self {
        Self {
            local: stream.local_addr().ok(),
            remote: stream.peer_addr().ok(),
            opened_at: Instant::now(),
            active_ms: AtomicU64::new(0),
            has_spoken: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
            cut: CancellationToken::new(),
        }
    }

    /// How long no byte has passed.
    pub(super) fn idle(&self) -> Duration {
        let active = Duration::from_millis(self.active_ms.load(Ordering::Relaxed));
        self.opened_at.elapsed().saturating_sub(active)
    }

    /// Whether the client has sent a byte.
    pub(super) fn has_spoken(&self) -> bool {
        self.has_spoken.load(Ordering::Relaxed)
    }

    /// How many requests are being answered on it.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Acquire)
    }

    fn touch(&self) {
        let age_ms = u64::try_from(self.opened_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.active_ms.store(age_ms, Ordering::Relaxed);
    }
}

/// Counts a request on its connection until it is dropped.
#[derive(Debug)]
pub(super) struct OnConnection(Arc<Connection>);

impl OnConnection {
    pub(super) fn enter(connection: Arc<Connection>) -> Self {
        connection.requests.fetch_add(1, Ordering::AcqRel);
        Self(connection)
    }
}

impl Drop for OnConnection {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Connections {
    /// Accepts the next connection; a failed accept is logged and tried again.
    pub(super) async fn accept(&self, listener: &TcpListener) -> TrackedStream {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return self.track(stream),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn track(&self, stream: TcpStream) -> TrackedStream {
        // Small replies must not wait for the acknowledgement of the one before. Only a dead socket refuses.
        let _ = stream.set_nodelay(true);
        let connection = Arc::new(Connection::new(&stream));
        let mut open = self.lock();
        let id = open.next_id;
        open.next_id += 1;
        open.by_id.insert(id, Arc::clone(&connection));
        drop(open);
        let cut = Box::pin(connection.cut.clone().cancelled_owned());
        TrackedStream { stream, connection, cut, _entry: TrackedEntry { id, connections: self.clone() } }
    }

    /// Cuts the connections that `which` picks; says how many, and how many requests they carried.
    pub(super) fn cut(&self, which: impl Fn(&Connection) -> bool) -> Severed {
        let mut severed = Severed::default();
        for connection in self.lock().by_id.values() {
            if !connection.cut.is_cancelled() && which(connection) {
                severed.connections += 1;
                severed.requests += connection.requests() as u64;
                connection.cut.cancel();
            }
        }
        severed
    }

    /// How many open connections `which` picks.
    pub(super) fn count(&self, which: impl Fn(&Connection) -> bool) -> u64 {
        self.lock().by_id.values().filter(|connection| which(connection)).count() as u64
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a cut hit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Severed {
    pub(super) connections: u64,
    pub(super) requests: u64,
}

/// A TCP stream that is tracked and can be cut.
pub(super) struct TrackedStream {
    stream: TcpStream,
    connection: Arc<Connection>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _entry: TrackedEntry,
}

/// Takes the connection off the list when its stream is dropped.
struct TrackedEntry {
    id: u64,
    connections: Connections,
}

impl Drop for TrackedEntry {
    fn drop(&mut self) {
        self.connections.lock().by_id.remove(&self.id);
    }
}

impl TrackedStream {
    pub(super) fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection)
    }

    /// Asks for a cut where the stream would wait, and makes the cut wake the task.
    fn poll_cut<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.cut.as_mut().poll(cx).map(|()| Err(io::ErrorKind::ConnectionAborted.into()))
    }

    fn after_write<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_pending() {
            return self.poll_cut(cx);
        }
        self.connection.touch();
        written
    }
}

impl AsyncRead for TrackedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.connection.cut.is_cancelled() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let filled = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_pending() {
            return self.poll_cut(cx);
        }
        if buf.filled().len() > filled {
            self.connection.has_spoken.store(true, Ordering::Relaxed);
            self.connection.touch();
        }
        read
    }
}

impl AsyncWrite for TrackedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.after_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.after_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
