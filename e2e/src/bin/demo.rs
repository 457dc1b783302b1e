//! `make demo`, once the cluster is up: see [`e2e::demo`].

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match e2e::demo::run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}
