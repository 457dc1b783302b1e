//! `kubectl` in one namespace, for what people do by it: apply, exec, drain, evict, read logs.
//!
//! Runs inside `e2e/cluster/cluster exec`, which puts it on the path and tells it the cluster.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use crate::program::{self, Outcome};

/// Longest run of a command that is not told otherwise.
const PATIENCE: Duration = Duration::from_secs(90);

/// `kubectl --namespace NAME`.
#[derive(Clone, Debug)]
pub struct Kubectl {
    namespace: String,
}

impl Kubectl {
    /// For one namespace.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned() }
    }

    /// Runs it and tells what it left, well or not.
    ///
    /// # Errors
    /// When it cannot be started or does not end.
    pub async fn attempt(&self, args: &[&str], input: &str) -> Result<Outcome> {
        let all: Vec<&str> = ["--namespace", self.namespace.as_str()].iter().chain(args).copied().collect();
        program::run("kubectl", &all, input, PATIENCE).await
    }

    /// Runs it and tells what it printed.
    ///
    /// # Errors
    /// When it fails.
    pub async fn run(&self, args: &[&str]) -> Result<String> {
        self.attempt(args, "").await?.ok()
    }

    /// Applies a manifest, YAML or JSON.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn apply(&self, manifest: &str) -> Result<String> {
        self.attempt(&["apply", "-f", "-"], manifest).await?.ok()
    }

    /// Asks for an eviction, as `kubectl drain` and autoscalers do: the code of the answer, and what it says.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn evict(&self, pod: &str) -> Result<Eviction> {
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "name": pod, "namespace": self.namespace },
        });
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", self.namespace);
        let outcome =
            self.attempt(&["create", "--raw", &path, "-f", "-", "-v=6"], &eviction.to_string()).await?;
        if outcome.success {
            return Ok(Eviction::Granted);
        }
        let said = outcome.stderr;
        // In one line of the log or in another, depending on the version.
        let refused = ["429", "TooManyRequests", "Too Many Requests"].iter().any(|sign| said.contains(sign));
        if refused {
            return Ok(Eviction::Refused(said));
        }
        Err(anyhow::anyhow!("{said}")).with_context(|| format!("evict {pod}"))
    }
}

/// The answer to an eviction.
#[derive(Debug)]
pub enum Eviction {
    /// The pod is being ended.
    Granted,
    /// 429, and what it says.
    Refused(String),
}
