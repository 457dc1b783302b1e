//! The data plane of RoomCluster.
//!
//! Layers, each knowing only those above it in this list:
//! [`types`] the ids and numbers with a meaning; [`logic`] the port to a room's logic; [`room`] the voice room,
//! pure; [`store`] the durable truth; [`ownership`] leases, epochs and routes; [`cell`] the executor of one room;
//! [`forward`] local, forward or refuse; [`outbox`] delivery of committed events; [`service`] one module per
//! process role. [`load`] and [`audit`] are the client that keeps a ledger and the proof afterwards.

pub mod audit;
pub mod cell;
pub mod faults;
pub mod forward;
pub mod load;
pub mod logic;
pub mod outbox;
pub mod ownership;
pub mod room;
pub mod service;
pub mod store;
pub mod types;
