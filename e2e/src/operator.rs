//! The operator, installed by its chart.
//!
//! A site has an operator of its own, which serves that namespace only: tests kill, upgrade and uninstall theirs
//! without touching each other.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::kubectl::Kubectl;
use crate::paths::Paths;
use crate::program;
use crate::wait::until;

/// A release that is rolled out or taken away.
const HELM_PATIENCE: Duration = Duration::from_secs(120);
/// Name of the release.
pub const RELEASE: &str = "rooms";
/// The labels of the operator's pods.
pub const SELECTOR: &str = "app.kubernetes.io/name=roomcluster-operator";

/// One release of the chart.
#[derive(Clone, Debug)]
pub struct Operator {
    namespace: String,
    kubectl: Kubectl,
}

impl Operator {
    /// The release in this namespace.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), kubectl: Kubectl::new(namespace) }
    }

    /// Installs it, or upgrades it, with further `--set` values.
    ///
    /// # Errors
    /// When helm refuses, or the operator does not become ready.
    pub async fn install(&self, paths: &Paths, scope: Scope, values: &[&str]) -> Result<()> {
        let chart = paths.chart();
        let mut args = vec![
            "upgrade",
            "--install",
            RELEASE,
            chart.to_str().context("the checkout's path is no UTF-8")?,
            "--namespace",
            &self.namespace,
            "--create-namespace",
            "--wait",
            "--timeout",
            "100s",
            "--set",
            "image.repository=roomcluster.local/operator,image.tag=e2e",
        ];
        let (watch, name) = (
            format!("watchNamespace={}", self.namespace),
            format!("fullnameOverride={}", self.release_name()),
        );
        args.extend(["--set", &name]);
        if scope == Scope::Namespace {
            // The definition belongs to no single release then.
            args.extend(["--set", &watch, "--set", "crds.install=false"]);
        }
        for value in values {
            args.extend(["--set", value]);
        }
        program::run("helm", &args, "", HELM_PATIENCE).await?.ok()?;
        Ok(())
    }

    /// Name of the Deployment and of the cluster-wide role, so different in each namespace.
    #[must_use]
    pub fn release_name(&self) -> String {
        format!("{}-operator", self.namespace)
    }

    /// Takes the release away, and leaves what it is not to touch.
    ///
    /// # Errors
    /// When helm refuses.
    pub async fn uninstall(&self) -> Result<()> {
        let args = ["uninstall", RELEASE, "--namespace", &self.namespace, "--wait", "--timeout", "60s"];
        program::run("helm", &args, "", HELM_PATIENCE).await?.ok()?;
        Ok(())
    }

    /// Kills its process outright: no shutdown, no release of the leader's lease.
    ///
    /// # Errors
    /// When there is none to kill.
    pub async fn kill(&self) -> Result<()> {
        let args = ["delete", "pod", "-l", SELECTOR, "--grace-period=0", "--force", "--wait=false"];
        let said = self.kubectl.run(&args).await?;
        anyhow::ensure!(said.contains("deleted"), "there was no operator to kill");
        Ok(())
    }

    /// Waits until one is ready that is not about to end.
    ///
    /// # Errors
    /// When none is within a minute.
    pub async fn await_ready(&self) -> Result<()> {
        let deployment = format!("deployment/{}", self.release_name());
        until("the operator is ready", Duration::from_secs(60), async || {
            self.kubectl.run(&["rollout", "status", &deployment, "--timeout=1s"]).await
        })
        .await?;
        Ok(())
    }

    /// What it has logged.
    ///
    /// # Errors
    /// When kubectl fails.
    pub async fn log(&self) -> Result<String> {
        self.kubectl.run(&["logs", "-l", SELECTOR, "--tail=-1", "--prefix=false"]).await
    }
}

/// Which namespaces an operator serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Its own one.
    Namespace,
    /// All, as the chart installs it by default, with the definition of the resource.
    Cluster,
}
