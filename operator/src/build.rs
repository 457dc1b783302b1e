//! Objects of a RoomCluster, made from what the user wrote.
//!
//! Everything here is a pure function: no client, no clock, no randomness. What must be random or known
//! comes in as an argument. Invariants: the same input makes the same object, and a pod of an old revision is
//! made from the [`Recipe`] that its ControllerRevision keeps, never from the spec of today.

mod controller_revision;
mod disruption_budget;
mod labels;
mod migration_job;
mod owner;
mod pod;
mod recipe;
mod services;
mod template;
mod token_secret;

#[cfg(test)]
mod fixture;

pub use controller_revision::{RevisionError, build_controller_revision, read_controller_revision};
pub use disruption_budget::build_disruption_budget;
pub use migration_job::{build_migration_job, migration_job_name};
pub use owner::{Owner, OwnerError};
pub use pod::build_pod;
pub use recipe::Recipe;
pub use services::{build_nodes_service, build_service};
pub use template::{InvalidTemplate, RoomTemplate};
pub use token_secret::{build_token_secret, read_token};
