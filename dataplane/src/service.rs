//! One module per process role, thin.

pub mod dev;
pub mod errors;
pub mod migrate;
pub mod outbox;
pub mod pre_stop;
pub mod room;
