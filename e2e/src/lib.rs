//! The real servers, the cluster, and the suites that run on them.

pub mod servers;
