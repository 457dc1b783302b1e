//! Who executes a room: leases, epochs, takes and routes.

pub mod lease;
