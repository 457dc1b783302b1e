//! What surrounds each test of the cluster suite: a site of its own, and a diagnosis when it fails.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use anyhow::{Context, Result, anyhow};
use futures::FutureExt;
use tokio::sync::RwLock;

use crate::operator::Scope;
use crate::paths::Paths;
use crate::program;
use crate::site::Site;

/// Held by every test; alone by those that change nodes or the whole cluster.
static CLUSTER: RwLock<()> = RwLock::const_new(());

/// Whether other tests may run meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// It touches only what is in its site.
    Shared,
    /// It touches nodes, or all namespaces.
    Alone,
}

/// Runs a test in a site of its own that has stores and an operator.
///
/// # Panics
/// When the test fails, with a diagnosis; the site is gone afterwards in any case.
pub async fn on_site(name: &str, company: Company, test: impl AsyncFnOnce(&Site) -> Result<()>) {
    let _shared;
    let _alone;
    match company {
        Company::Shared => _shared = CLUSTER.read().await,
        Company::Alone => _alone = CLUSTER.write().await,
    }
    let (site, outcome) = match open(name).await {
        Ok(site) => {
            let outcome = AssertUnwindSafe(test(&site)).catch_unwind().await;
            (site, outcome.unwrap_or_else(|panic| Err(anyhow!("{}", words_of(&*panic)))))
        }
        Err(error) => panic!("the site {name} does not come up: {error:#}"),
    };
    if let Err(error) = &outcome {
        // Read at once, since the site is about to go.
        eprintln!("{name} failed: {error:#}\n{}", site.diagnose().await);
    }
    let closed = async {
        // What a release has outside of its namespace goes with it; there may be none left.
        let _ = site.operator.uninstall().await;
        site.close().await
    };
    let closed = closed.await;
    if let Err(error) = outcome {
        panic!("{error:#}");
    }
    if let Err(error) = closed {
        panic!("the site {name} does not go away: {error:#}");
    }
}

async fn open(name: &str) -> Result<Site> {
    let paths = Paths::from_env()?;
    let definition = paths.definition();
    let definition = definition.to_str().context("the checkout's path is no UTF-8")?;
    let args = ["apply", "--server-side", "--force-conflicts", "-f", definition];
    program::run("kubectl", &args, "", std::time::Duration::from_secs(30)).await?.ok()?;
    let site = Site::open(name, &paths).await?;
    match site.operator.install(&paths, Scope::Namespace, &[]).await {
        Ok(()) => Ok(site),
        Err(error) => {
            let text = site.diagnose().await;
            Err(error.context(text))
        }
    }
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    literal
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the test panicked".to_owned())
}
