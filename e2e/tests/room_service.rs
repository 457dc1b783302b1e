//! Real room-service processes on a real MariaDB and a real Redis: ownership, commits, drains, bad input.

#[path = "room_service/commits.rs"]
mod commits;
#[path = "room_service/drains.rs"]
mod drains;
#[path = "room_service/input.rs"]
mod input;
#[path = "room_service/outages.rs"]
mod outages;

use std::time::Duration;

use anyhow::Result;
use e2e::node::{Node, NodeSpec, OutboxProcess, run_dataplane, within};
use e2e::servers::{MariaDb, Redis};
use roomcluster_proto::rooms::v1 as pb;

/// The stores of one test.
struct Stores {
    mariadb: MariaDb,
    redis: Redis,
    database_url: String,
    _outbox: OutboxProcess,
}

impl Stores {
    async fn start() -> Result<Self> {
        let stores = Self::unmigrated().await?;
        stores.migrate().await?;
        Ok(stores)
    }

    async fn unmigrated() -> Result<Self> {
        let (mariadb, redis) = (MariaDb::start().await?, Redis::start().await?);
        let database_url = mariadb.database().await?;
        let outbox = OutboxProcess::spawn(&database_url, &sink_url(&redis))?;
        Ok(Self { mariadb, redis, database_url, _outbox: outbox })
    }

    async fn migrate(&self) -> Result<()> {
        let output = run_dataplane(&["migrate"], &[("DATABASE_URL", &self.database_url)]).await?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Forgets all leases and routes; the events that went out are another store's.
    async fn wipe_leases(&self) -> Result<()> {
        let mut connection = self.redis.connection().await?;
        Ok(redis::cmd("FLUSHDB").query_async(&mut connection).await?)
    }

    fn spec(&self, id: &str) -> NodeSpec {
        NodeSpec::new(id, &self.database_url, &self.redis.url())
    }

    /// Proves P1 to P4 on database and sink.
    async fn audit(&self) -> Result<()> {
        let args = ["audit", "--wait", "30s", "--sink", &sink_url(&self.redis)];
        let output = run_dataplane(&args, &[("DATABASE_URL", &self.database_url)]).await?;
        anyhow::ensure!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    async fn committed(&self, room: &str) -> Result<Vec<String>> {
        use sqlx::Connection;
        let mut connection = sqlx::MySqlConnection::connect(&self.database_url).await?;
        let rows: Vec<(Vec<u8>,)> = sqlx::query_as(
            "SELECT command_id FROM room_command_log WHERE app_code = 'app' AND room_id = ? ORDER BY seq",
        )
        .bind(room.as_bytes())
        .fetch_all(&mut connection)
        .await?;
        Ok(rows.into_iter().map(|(id,)| String::from_utf8_lossy(&id).into_owned()).collect())
    }
}

/// The sink is a database of its own, so that wiping the leases wipes no events.
fn sink_url(redis: &Redis) -> String {
    format!("{}1", redis.url())
}

async fn get_room(node: &Node, room: &str) -> Result<pb::GetRoomResponse> {
    let request = pb::GetRoomRequest { app_code: "app".into(), room_id: room.into() };
    Ok(node.rooms()?.get_room(within(Duration::from_secs(5), request)).await?.into_inner())
}

async fn owner(node: &Node, room: &str) -> Result<String> {
    Ok(get_room(node, room).await?.owner.unwrap_or_default().node_id)
}
