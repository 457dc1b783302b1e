//! The RoomCluster resource.
