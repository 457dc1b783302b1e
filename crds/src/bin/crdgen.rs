//! Prints the CustomResourceDefinition of RoomCluster, or with `--reference` its page for people.

use std::io::{Write, stdout};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let page = match std::env::args().nth(1).as_deref() {
        None => roomcluster_crds::crd_yaml()?,
        Some("--reference") => roomcluster_crds::reference()?,
        Some(other) => return Err(format!("{other:?} is no option; write --reference or nothing").into()),
    };
    stdout().write_all(page.as_bytes())?;
    Ok(())
}
