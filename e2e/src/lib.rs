//! What the suites on a real cluster, and the demo, are made of.
//!
//! Everything here acts as a user of the product would: through `kubectl`, `helm`, the API server, gRPC and HTTP.
//! Nothing reaches into the operator or the data plane.

pub mod demo;
pub mod kubectl;
pub mod lounge;
pub mod operator;
pub mod paths;
pub mod program;
pub mod site;
pub mod suite;
pub mod traffic;
pub mod wait;
