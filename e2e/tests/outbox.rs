//! The outbox on a real MariaDB and a real Redis.
//!
//! The numbers are those of the cases that the tests are after.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test owns its tasks, and ends where it fails"
)]

#[path = "outbox/bench.rs"]
mod bench;
#[path = "outbox/delivery.rs"]
mod delivery;
#[path = "outbox/faults.rs"]
mod faults;
#[path = "outbox/locks.rs"]
mod locks;
#[path = "outbox/shutdown.rs"]
mod shutdown;
