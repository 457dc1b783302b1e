//! `make demo`, once the cluster is up: see [`e2e::demo`].

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    e2e::demo::run().await
}
