//! The cluster suite: what RoomCluster promises, on a real cluster, each promise a test whose name states it.
//!
//! Tests act as users do and look at what users see. `scripts/test cluster` brings the cluster up and runs this
//! program in it.

mod cluster {
    mod bad_image;
    mod eviction;
    mod operator_killed;
    mod packaging;
    mod pod_loss;
    mod recreate;
    mod redis;
    mod stuck_rooms;
    mod tokens;
    mod upgrade;
}
