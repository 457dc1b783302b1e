//! The messages and services that cross a process boundary, generated from `proto/*/v1/*.proto`.
//!
//! The .proto files are the reference: what a field means, its unit and its errors stand there.

#![allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, reason = "generated code")]

/// The public API of the voice room.
pub mod rooms {
    /// First stable version.
    pub mod v1 {
        tonic::include_proto!("rooms.v1");
    }
}

/// What the operator says to a node.
pub mod node {
    /// First stable version.
    pub mod v1 {
        tonic::include_proto!("node.v1");
    }
}

/// What nodes say to each other.
pub mod peer {
    /// First stable version.
    pub mod v1 {
        tonic::include_proto!("peer.v1");
    }
}
