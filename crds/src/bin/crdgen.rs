//! Prints the CustomResourceDefinition of RoomCluster.

use std::io::{Write, stdout};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    stdout().write_all(roomcluster_crds::crd_yaml()?.as_bytes())?;
    Ok(())
}
