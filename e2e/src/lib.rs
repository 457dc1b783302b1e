//! The real servers, the cluster, and the suites that run on them.

pub mod http;
pub mod node;
pub mod servers;
