//! Servers that end in bounded time, whatever their clients do.
//!
//! [`AdminServer`] answers probes and scrapes from its own thread; [`GrpcServer`] serves the process's calls on
//! the runtime of its tasks. Both track their connections in `connections`, so that a client that never
//! speaks, stops answering or keeps an idle connection holds up nothing.

mod admin;
mod connections;
mod grpc;

use std::net::{SocketAddr, TcpListener};

pub use admin::AdminServer;
pub use grpc::GrpcServer;

use crate::args::ConfigError;

/// Listens on an address; the error names the flag that the address came by.
///
/// # Errors
/// The address cannot be bound.
pub fn listen(flag: &'static str, address: SocketAddr) -> Result<TcpListener, ConfigError> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|error| ConfigError::new(flag, format!("cannot listen on {address}: {error}")))
}
