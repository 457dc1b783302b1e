//! Where the programs and files are that the suites use.
//!
//! `scripts/` builds them and tells their places by environment variables: what runs on the cluster and what
//! drives it are then the same build.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The places.
#[derive(Clone, Debug)]
pub struct Paths {
    checkout: PathBuf,
    dataplane: PathBuf,
    output: PathBuf,
}

impl Paths {
    /// As the environment tells.
    ///
    /// # Errors
    /// When it does not: then the suite was not started by `make`.
    pub fn from_env() -> Result<Self> {
        let read = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .with_context(|| format!("{name} is not set: run `make test-cluster` or `make demo`"))
        };
        Ok(Self {
            checkout: read("ROOMCLUSTER_CHECKOUT")?,
            dataplane: read("ROOMCLUSTER_DATAPLANE")?,
            output: read("ROOMCLUSTER_OUTPUT")?,
        })
    }

    /// The program of the data plane, here for its `load` and `audit`.
    #[must_use]
    pub fn dataplane(&self) -> &Path {
        &self.dataplane
    }

    /// The chart of the operator.
    #[must_use]
    pub fn chart(&self) -> PathBuf {
        self.checkout.join("charts/roomcluster-operator")
    }

    /// The definition of the resource.
    #[must_use]
    pub fn definition(&self) -> PathBuf {
        self.checkout.join("crds/roomclusters.roomcluster.dev.yaml")
    }

    /// One of the manifests of `e2e/cluster/manifests`.
    #[must_use]
    pub fn manifest(&self, name: &str) -> PathBuf {
        self.checkout.join("e2e/cluster/manifests").join(name)
    }

    /// The script that cuts and heals nodes.
    #[must_use]
    pub fn cluster_script(&self) -> PathBuf {
        self.checkout.join("e2e/cluster/cluster")
    }

    /// Where reports, ledgers and diagnoses go.
    #[must_use]
    pub fn output(&self) -> &Path {
        &self.output
    }
}
