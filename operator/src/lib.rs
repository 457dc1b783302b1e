//! The operator of RoomCluster: rolls the pods of a cluster without cutting a room.
//!
//! Layers, each knowing only those above it in this list:
//! [`ids`], [`intent`] and [`error`], the words; [`plan`], pure, decides; [`status`] and [`events`], pure, tell;
//! [`build`], pure, makes objects; [`leader`], [`observe`], [`prepare`] and [`act`] read and write;
//! [`reconcile`] is one round of them for one cluster; [`controller`] says when; [`process`] starts and ends it.

pub mod act;
pub mod build;
pub mod controller;
pub mod error;
pub mod events;
pub mod ids;
pub mod intent;
pub mod leader;
pub mod metrics;
pub mod observe;
pub mod plan;
pub mod prepare;
pub mod process;
pub mod reconcile;
pub mod status;
