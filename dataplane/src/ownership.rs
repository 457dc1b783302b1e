//! Who executes a room: leases, epochs, routes and where an unowned room goes.
//!
//! The truth is the owner row in SQL; the lease store holds routes that expire and is a hint. The order is
//! always SQL first, then the lease store. Nothing here knows what a room does.

pub mod breaker;
pub mod embedded;
pub mod keeper;
pub mod lease;
pub mod peers;
pub mod placement;
pub mod redis;
pub mod resolve;

pub use keeper::{Lease, LeaseConfig, LeaseMetrics, Leases, Verdict};
pub use peers::Peers;
pub use placement::{Placement, Standing, place};
pub use resolve::{Resolution, resolve};

#[cfg(test)]
mod lease_suite;
