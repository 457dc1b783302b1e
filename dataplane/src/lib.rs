//! The data plane of RoomCluster.
