//! A database, a ledger and a sink that fit together, until a test breaks something.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use roomcluster_proto::rooms::v1::EventEnvelope;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqliteSynchronous};
use sqlx::{AssertSqlSafe, query};

use crate::audit::db::Db;
use crate::audit::findings::Findings;
use crate::audit::scratch::Scratch;
use crate::audit::{judge, sink, take_entry};
use crate::load::ledger::{Acked, LedgerEntry, Unsettled};
use crate::logic::{Context, Decision, DecodeError, EncodedEvent, Rejection, RoomLogic, RoomPhase};
use crate::store::rows::encode_events;
use crate::types::{Hash32, RoomKey, Seq, hex};

const SCHEMA: &str = include_str!("../../../../migrations/sqlite/0001_rooms.sql");
const APP: &str = "app";

/// A logic whose state is the bytes of all events.
pub(crate) struct Tally;

impl RoomLogic for Tally {
    type State = Vec<u8>;
    type Command = ();
    type Event = Vec<u8>;
    const SNAPSHOT_FORMAT: u32 = 1;

    fn initial(&self) -> Vec<u8> {
        Vec::new()
    }
    fn decode_command(&self, _: &[u8]) -> Result<(), DecodeError> {
        Ok(())
    }
    fn creates_room(&self, (): &()) -> bool {
        true
    }
    fn decide(&self, _: &Vec<u8>, (): &(), _: Context<'_>) -> Result<Decision<Vec<u8>>, Rejection> {
        Ok(Decision { events: Vec::new(), result: Bytes::new() })
    }
    fn evolve(&self, state: &mut Vec<u8>, event: &Vec<u8>) {
        state.extend(event);
    }
    fn encode_event(&self, event: &Vec<u8>) -> EncodedEvent {
        EncodedEvent { event_type: "T", payload: event.clone().into() }
    }
    fn decode_event(&self, payload: &[u8]) -> Result<Vec<u8>, DecodeError> {
        Ok(payload.to_vec())
    }
    fn encode_snapshot(&self, state: &Vec<u8>) -> Vec<u8> {
        state.clone()
    }
    fn decode_snapshot(&self, _: u32, payload: &[u8]) -> Result<Vec<u8>, DecodeError> {
        Ok(payload.to_vec())
    }
    fn state_hash(&self, state: &Vec<u8>) -> Hash32 {
        *blake3::hash(state).as_bytes()
    }
    fn last_event_ms(&self, _: &Vec<u8>) -> i64 {
        0
    }
    fn phase(&self, _: &Vec<u8>) -> Option<RoomPhase> {
        None
    }
    fn query(&self, _: &Vec<u8>, _: &[u8], _: Seq, _: &RoomKey) -> Result<Bytes, Rejection> {
        Ok(Bytes::new())
    }
    fn touch(&self, _: &mut Vec<u8>, _: &[u8], _: i64) -> Result<Bytes, Rejection> {
        Ok(Bytes::new())
    }
}

#[derive(Default)]
struct Room {
    seq: u64,
    epoch: u64,
    token: Vec<u8>,
    owner: String,
    state: Vec<u8>,
}

/// Database, ledger and sink.
pub(crate) struct World {
    pub(crate) url: String,
    pub(crate) acks: Vec<LedgerEntry>,
    /// The entries of the app's stream: fields and values in turn.
    pub(crate) deliveries: Vec<Vec<Vec<u8>>>,
    pool: SqlitePool,
    rooms: BTreeMap<String, Room>,
    _dir: tempfile::TempDir,
}

impl World {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rooms.db");
        // The test does not outlive the machine: nothing is synced.
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Memory)
            .synchronous(SqliteSynchronous::Off);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        sqlx::raw_sql(SCHEMA).execute(&pool).await.unwrap();
        let url = format!("sqlite:{}", path.display());
        Self { url, acks: Vec::new(), deliveries: Vec::new(), pool, rooms: BTreeMap::new(), _dir: dir }
    }

    pub(crate) async fn sql(&mut self, sql: &'static str) {
        let changed = query(sql).execute(&self.pool).await.unwrap().rows_affected();
        assert!(changed > 0, "nothing was planted by {sql}");
    }

    /// A node takes a room under a fresh token.
    pub(crate) async fn take(&mut self, room: &str, epoch: u64, node: &str) {
        let token = format!("{room:8}{epoch:8}").into_bytes();
        query(
            "INSERT OR REPLACE INTO room_owner (app_code, room_id, epoch, lease_token, owner_node_id, incarnation, \
             address, acquired_at_ms) VALUES (?, ?, ?, ?, ?, zeroblob(16), X'', 0)",
        )
        .bind(APP.as_bytes())
        .bind(room.as_bytes())
        .bind(epoch as i64)
        .bind(&token)
        .bind(node.as_bytes())
        .execute(&self.pool)
        .await
        .unwrap();
        let entry = self.rooms.entry(room.to_owned()).or_default();
        (entry.epoch, entry.token, entry.owner) = (epoch, token, node.to_owned());
    }

    /// A command commits, is acknowledged, and its events are delivered.
    pub(crate) async fn commit(&mut self, room_id: &str, id: &str, events: &[&'static [u8]]) {
        let room = self.rooms.get_mut(room_id).unwrap();
        room.seq += 1;
        room.state.extend(events.concat());
        let encoded: Vec<_> = events
            .iter()
            .map(|event| EncodedEvent { event_type: "T", payload: Bytes::from_static(event) })
            .collect();
        query(
            "INSERT INTO room_command_log (app_code, room_id, seq, command_id, command_hash, result, events, epoch, \
             lease_token, owner_node_id, committed_at_ms) VALUES (?, ?, ?, ?, zeroblob(32), ?, ?, ?, ?, ?, 0)",
        )
        .bind(APP.as_bytes())
        .bind(room_id.as_bytes())
        .bind(room.seq as i64)
        .bind(id.as_bytes())
        .bind(result_of(id))
        .bind(encode_events(&encoded))
        .bind(room.epoch as i64)
        .bind(&room.token)
        .bind(room.owner.as_bytes())
        .execute(&self.pool)
        .await
        .unwrap();
        query(
            "INSERT OR REPLACE INTO room_head (app_code, room_id, base_seq, seq, epoch, state_hash, updated_at_ms) \
             VALUES (?, ?, 0, ?, ?, ?, 0)",
        )
        .bind(APP.as_bytes())
        .bind(room_id.as_bytes())
        .bind(room.seq as i64)
        .bind(room.epoch as i64)
        .bind(blake3::hash(&room.state).as_bytes().to_vec())
        .execute(&self.pool)
        .await
        .unwrap();
        let seq = room.seq;
        self.acknowledge(room_id, id, seq);
        for (index, event) in (0..).zip(events) {
            self.deliver(room_id, seq, index, event);
        }
    }

    /// A client was told that a command committed.
    pub(crate) fn acknowledge(&mut self, room: &str, id: &str, seq: u64) {
        let (epoch, owner) =
            self.rooms.get(room).map(|room| (room.epoch, room.owner.clone())).unwrap_or_default();
        self.acks.push(LedgerEntry::Ack(Acked {
            app: APP.into(),
            room: room.into(),
            id: id.into(),
            op: "join".into(),
            seq,
            epoch,
            owner,
            owner_epoch: epoch,
            hash: hex(blake3::hash(&result_of(id)).as_bytes()),
            sent_ms: 0,
            acked_ms: 0,
            sent_us: 0,
            acked_us: 0,
            tries: 1,
            replayed: false,
        }));
    }

    /// A client gave a command up.
    pub(crate) fn give_up(&mut self, room: &str, id: &str) {
        self.acks.push(LedgerEntry::Unknown(unsettled(room, id)));
    }

    /// A client was told no.
    pub(crate) fn refuse(&mut self, room: &str, id: &str) {
        self.acks.push(LedgerEntry::Refused(unsettled(room, id)));
    }

    /// The sink got an event.
    pub(crate) fn deliver(&mut self, room: &str, seq: u64, index: u32, event: &[u8]) {
        let envelope = EventEnvelope {
            event_id: format!("{APP}/{room}/{seq}/{index}"),
            app_code: APP.into(),
            room_id: room.into(),
            seq,
            index,
            event: event.to_vec().into(),
            ..Default::default()
        };
        let id = envelope.event_id.clone().into_bytes();
        self.deliveries.push(vec![b"id".to_vec(), id, b"event".to_vec(), envelope.encode_to_vec()]);
    }

    /// The sink got an event again.
    pub(crate) fn redeliver(&mut self, delivery: usize) {
        self.deliveries.push(self.deliveries[delivery].clone());
    }

    /// An event waits in the outbox.
    pub(crate) async fn enqueue(&mut self, room: &str, seq: u64, index: u32, state: &str) {
        query(
            "INSERT INTO room_outbox (app_code, room_id, seq, event_index, event_type, envelope, state, created_at_ms) \
             VALUES (?, ?, ?, ?, X'', X'', ?, 0)",
        )
        .bind(APP.as_bytes())
        .bind(room.as_bytes())
        .bind(seq as i64)
        .bind(index)
        .bind(state.as_bytes())
        .execute(&self.pool)
        .await
        .unwrap();
    }

    /// A snapshot was written.
    pub(crate) async fn snapshot(&mut self, room: &str, seq: u64, state: &[u8]) {
        query(
            "INSERT INTO room_snapshot (app_code, room_id, seq, epoch, format, state_hash, state, written_at_ms) \
             VALUES (?, ?, ?, 1, 1, ?, ?, 0)",
        )
        .bind(APP.as_bytes())
        .bind(room.as_bytes())
        .bind(seq as i64)
        .bind(blake3::hash(state).as_bytes().to_vec())
        .bind(state)
        .execute(&self.pool)
        .await
        .unwrap();
    }

    /// The schema loses what keeps ids from being doubled.
    pub(crate) async fn drop_unique_key(&mut self) {
        let copy = "CREATE TABLE copy AS SELECT * FROM room_command_log; DROP TABLE room_command_log; \
             ALTER TABLE copy RENAME TO room_command_log;";
        sqlx::raw_sql(AssertSqlSafe(copy)).execute(&self.pool).await.unwrap();
    }

    /// Audits all of it.
    pub(crate) async fn examine(&self) -> Findings {
        let db = Db::open(&self.url.clone().into()).await.unwrap();
        let mut scratch = Scratch::open().await.unwrap();
        let mut findings = Findings::default();
        for entry in &self.acks {
            take_entry(entry.clone(), &mut scratch, &mut findings).await.unwrap();
        }
        for (place, fields) in (1..).zip(&self.deliveries) {
            sink::take_in(APP.as_bytes(), fields, place, &mut scratch, &mut findings).await.unwrap();
        }
        judge(&db, &Tally, &mut scratch, true, &mut findings).await.unwrap();
        findings
    }
}

fn result_of(id: &str) -> Vec<u8> {
    format!("result of {id}").into_bytes()
}

fn unsettled(room: &str, id: &str) -> Unsettled {
    Unsettled {
        app: APP.into(),
        room: room.into(),
        id: id.into(),
        op: "join".into(),
        sent_ms: 0,
        gave_up_ms: 0,
        tries: 5,
        error: "lost".into(),
    }
}
