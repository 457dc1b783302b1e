//! The operator of RoomCluster: rolls the pods of a cluster without cutting a room.

pub mod ids;
pub mod intent;
pub mod leader;
pub mod observe;
pub mod plan;
