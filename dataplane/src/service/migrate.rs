//! `dataplane migrate`: the only thing that changes a schema.

use clap::Args;
use roomcluster_lifecycle::BoxError;
use secrecy::SecretString;

use super::errors::config_error;
use crate::store::{SCHEMA_VERSION, connect};

/// Flags of `dataplane migrate`.
#[derive(Debug, Clone, Args)]
pub struct MigrateArgs {
    /// The database: mysql://, mariadb:// or sqlite://.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
}

/// Brings the schema to [`SCHEMA_VERSION`]. Two at once both end well.
pub async fn run(args: &MigrateArgs) -> Result<(), BoxError> {
    connect::migrate(&args.database_url).await.map_err(|error| config_error("--database-url", error))?;
    println!("The schema is at version {SCHEMA_VERSION}.");
    Ok(())
}
