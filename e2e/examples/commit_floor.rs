//! Measures commits of the store beside a bare client that sends the same statements in the same run.
//!
//! `cargo run --release -p e2e --example commit_floor [seconds]`. One command a room and batch, 200 bytes of
//! result and one event; K rooms a batch on C connections, each with rooms of its own. Every commit is on disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dataplane::logic::{EncodedEvent, RoomPhase};
use dataplane::store::connect::{StoreOptions, migrate, open};
use dataplane::store::{
    CommitOutcome, NewLogRow, RoomCommit, RoomStore, Take, TakeExpectation, TakeOutcome, rows,
};
use dataplane::types::{Claim, CommandId, Incarnation, LeaseToken, NodeId, NodeRef, RoomKey, Seq};
use e2e::servers::MariaDb;
use futures::future::try_join_all;
use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection};
use sqlx::{Arguments, AssertSqlSafe, ConnectOptions, Executor, SqlSafeStr, SqlStr};

/// Rooms a batch, connections.
const SHAPES: [(usize, usize); 8] = [(1, 1), (1, 8), (16, 1), (16, 4), (64, 1), (64, 4), (256, 1), (256, 8)];
/// Bytes of a result.
const RESULT_BYTES: usize = 200;

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let seconds = std::env::args().nth(1).map_or(Ok(3), |text| text.parse()).context("seconds")?;
    let period = Duration::from_secs(seconds);
    let server = MariaDb::start().await?;
    println!("{:>5} {:>5} {:>12} {:>12} {:>7}", "K", "C", "store /s", "bare /s", "ratio");
    for (rooms, connections) in SHAPES {
        let store = measure(&server, rooms, connections, period, Client::Store).await?;
        let bare = measure(&server, rooms, connections, period, Client::Bare).await?;
        println!("{rooms:>5} {connections:>5} {store:>12.0} {bare:>12.0} {:>7.2}", store / bare);
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Client {
    Store,
    Bare,
}

/// Commands a second.
async fn measure(
    server: &MariaDb,
    rooms: usize,
    connections: usize,
    period: Duration,
    client: Client,
) -> anyhow::Result<f64> {
    let url = server.database().await?;
    migrate(&url.as_str().into()).await?;
    let store = open(&url.as_str().into(), StoreOptions::default()).await?;
    let mut lanes = Vec::new();
    for lane in 0..connections {
        let mut owned = Vec::new();
        for i in 0..rooms {
            owned.push(owned_room(&store, &format!("lane{lane}-room{i:05}")).await?);
        }
        lanes.push(owned);
    }
    let started = Instant::now();
    let runs = lanes.into_iter().map(|owned| {
        let (store, url) = (Arc::clone(&store), url.clone());
        async move {
            match client {
                Client::Store => run_store(&store, &owned, started + period).await,
                Client::Bare => run_bare(&url, &owned, started + period).await,
            }
        }
    });
    let commands: usize = try_join_all(runs).await?.into_iter().sum();
    Ok(commands as f64 / started.elapsed().as_secs_f64())
}

async fn owned_room(store: &Arc<dyn RoomStore>, id: &str) -> anyhow::Result<(RoomKey, Claim)> {
    let node = NodeRef {
        node_id: NodeId::new("room-service-0")?,
        incarnation: Incarnation([1; 16]),
        address: "10.0.0.1:7400".to_owned(),
    };
    let room = RoomKey::new("app", id)?;
    let token = LeaseToken::random(&mut rand::rng());
    let take = Take { room: room.clone(), expect: TakeExpectation::Absent, node, token, now_ms: 0 };
    match store.take(&take).await? {
        TakeOutcome::Taken(claim) => Ok((room, claim)),
        TakeOutcome::Lost(owner) => anyhow::bail!("the room has an owner: {owner:?}"),
    }
}

fn batch(owned: &[(RoomKey, Claim)], seq: u64) -> anyhow::Result<Vec<RoomCommit>> {
    owned
        .iter()
        .map(|(room, claim)| {
            let event = EncodedEvent { event_type: "UserJoined", payload: vec![7; RESULT_BYTES].into() };
            let row = NewLogRow {
                seq: Seq(seq),
                command_id: CommandId::new(&format!("command-{seq}"))?,
                command_hash: [seq as u8; 32],
                result: vec![1; RESULT_BYTES].into(),
                events: vec![event],
                committed_at_ms: 1,
            };
            Ok(RoomCommit {
                room: room.clone(),
                claim: *claim,
                rows: vec![row],
                state_hash: [seq as u8; 32],
                phase: (seq == 1).then_some(RoomPhase::Active),
                unseen: Vec::new(),
            })
        })
        .collect()
}

async fn run_store(
    store: &Arc<dyn RoomStore>,
    owned: &[(RoomKey, Claim)],
    until: Instant,
) -> anyhow::Result<usize> {
    let mut session = store.open_session().await?;
    let mut done = 0;
    let mut seq = 0;
    while Instant::now() < until {
        seq += 1;
        let outcomes = session.commit(&batch(owned, seq)?).await?;
        ensure!(outcomes.iter().all(|o| *o == CommitOutcome::Committed), "{outcomes:?}");
        done += outcomes.len();
    }
    Ok(done)
}

/// The texts of the store's statements for a number of rooms that is a power of two.
struct Texts {
    fence: SqlStr,
    log: SqlStr,
    outbox: SqlStr,
    due: SqlStr,
    head: SqlStr,
}

impl Texts {
    fn new(rooms: usize) -> Self {
        let text = |head: &str, row: &str, separator: &str, tail: &str| {
            AssertSqlSafe(format!("{head}{}{tail}", vec![row; rooms].join(separator))).into_sql_str()
        };
        Self {
            fence: text(
                "SELECT app_code, room_id, epoch, lease_token, owner_node_id, incarnation, address, \
                 released_at_ms FROM room_owner WHERE ",
                "(app_code = ? AND room_id = ?)",
                " OR ",
                " LOCK IN SHARE MODE SKIP LOCKED",
            ),
            log: text("INSERT INTO room_command_log VALUES ", "(?,?,?,?,?,?,?,?,?,?,?)", ",", ""),
            outbox: text(
                "INSERT INTO room_outbox (app_code, room_id, seq, event_index, event_type, envelope, state, \
                 created_at_ms) VALUES ",
                "(?,?,?,?,?,?,?,?)",
                ",",
                "",
            ),
            due: text(
                "INSERT INTO outbox_room (app_code, room_id, due_ms, pending) VALUES ",
                "(?, ?, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED), ?)",
                ",",
                " ON DUPLICATE KEY UPDATE pending = pending + VALUES(pending), \
                 due_ms = COALESCE(due_ms, VALUES(due_ms))",
            ),
            head: text(
                "INSERT INTO room_head VALUES ",
                "(?,?,?,?,?,?,?)",
                ",",
                " ON DUPLICATE KEY UPDATE seq = VALUES(seq), base_seq = VALUES(base_seq), \
                 epoch = VALUES(epoch), state_hash = VALUES(state_hash), updated_at_ms = VALUES(updated_at_ms)",
            ),
        }
    }
}

async fn run_bare(url: &str, owned: &[(RoomKey, Claim)], until: Instant) -> anyhow::Result<usize> {
    let options: MySqlConnectOptions = url.parse()?;
    let mut conn = options.disable_statement_logging().connect().await?;
    conn.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
    let texts = Texts::new(owned.len());
    let mut done = 0;
    let mut seq = 0;
    while Instant::now() < until {
        seq += 1;
        bare_batch(&mut conn, &texts, &batch(owned, seq)?).await?;
        done += owned.len();
    }
    Ok(done)
}

async fn bare_batch(conn: &mut MySqlConnection, texts: &Texts, batch: &[RoomCommit]) -> anyhow::Result<()> {
    let arguments = |each: fn(&mut MySqlArguments, &RoomCommit) -> Result<(), sqlx::error::BoxDynError>| {
        let mut arguments = MySqlArguments::default();
        for commit in batch {
            arguments.add(commit.room.app_code().as_bytes()).map_err(sqlx::Error::Encode)?;
            arguments.add(commit.room.room_id().as_bytes()).map_err(sqlx::Error::Encode)?;
            each(&mut arguments, commit).map_err(sqlx::Error::Encode)?;
        }
        Ok::<_, sqlx::Error>(arguments)
    };
    conn.execute("BEGIN").await?;
    let owners = conn.fetch_all(sqlx::query_with(texts.fence.clone(), arguments(|_, _| Ok(()))?)).await?;
    ensure!(owners.len() == batch.len(), "a row is locked");
    let log = arguments(|a, c| {
        let row = &c.rows[0];
        a.add(row.seq.0)?;
        a.add(row.command_id.as_str().as_bytes())?;
        a.add(&row.command_hash[..])?;
        a.add(&row.result[..])?;
        a.add(rows::encode_events(&row.events))?;
        a.add(c.claim.epoch.0)?;
        a.add(&c.claim.token.0[..])?;
        a.add(&b"room-service-0"[..])?;
        a.add(1_i64)
    })?;
    conn.execute(sqlx::query_with(texts.log.clone(), log)).await?;
    let outbox = arguments(|a, c| {
        let (row, event) = (&c.rows[0], &c.rows[0].events[0]);
        a.add(row.seq.0)?;
        a.add(0_u32)?;
        a.add(event.event_type.as_bytes())?;
        a.add(rows::encode_envelope(c, row, 0, event))?;
        a.add(&b"pending"[..])?;
        a.add(1_i64)
    })?;
    conn.execute(sqlx::query_with(texts.outbox.clone(), outbox)).await?;
    conn.execute(sqlx::query_with(texts.due.clone(), arguments(|a, _| a.add(1_i64))?)).await?;
    let head = arguments(|a, c| {
        a.add(c.rows[0].seq.0 - 1)?;
        a.add(c.rows[0].seq.0)?;
        a.add(c.claim.epoch.0)?;
        a.add(&c.state_hash[..])?;
        a.add(1_i64)
    })?;
    conn.execute(sqlx::query_with(texts.head.clone(), head)).await?;
    conn.execute("COMMIT").await?;
    Ok(())
}
