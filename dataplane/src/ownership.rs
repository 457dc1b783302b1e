//! Who executes a room: leases, epochs, takes and routes.

pub mod embedded;
pub mod lease;
pub mod redis;

#[cfg(test)]
mod lease_suite;
