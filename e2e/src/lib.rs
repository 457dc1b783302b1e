//! What the service suite, the suite on a real cluster, and the demo are made of.
//!
//! For the cluster: everything acts as a user of the product would, through `kubectl`, `helm`, the API server, gRPC
//! and HTTP. Nothing reaches into the operator or the data plane.

pub mod demo;
pub mod http;
pub mod kubectl;
pub mod lounge;
pub mod node;
pub mod operator;
pub mod paths;
pub mod program;
pub mod servers;
pub mod site;
pub mod suite;
pub mod traffic;
pub mod wait;
