//! What the outbox delivered, read back from the Redis streams.
//!
//! One stream for each app; an entry carries the event's id and its envelope. Entries come in the order of
//! delivery, so their number is the place that the order check needs.

use std::time::Duration;

use prost::Message;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use roomcluster_proto::rooms::v1::EventEnvelope;
use secrecy::{ExposeSecret, SecretString};

use super::AuditError;
use super::findings::{Findings, Kind};
use super::rows::RoomRef;
use super::scratch::{DeliveredRow, Scratch};

/// What the keys of all streams begin with; the app follows.
const STREAM_PREFIX: &[u8] = b"room:events:";
/// Entries read at a time.
const PAGE: usize = 1_000;
/// Bound of one reply.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// An entry: its id in the stream, then fields and values in turn.
type Entry = (String, Vec<Vec<u8>>);

/// Reads all streams into the scratch database.
pub(crate) async fn read(
    url: &SecretString,
    scratch: &mut Scratch,
    findings: &mut Findings,
) -> Result<(), AuditError> {
    let client = Client::open(url.expose_secret()).map_err(|_| AuditError::SinkUrl)?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(RESPONSE_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT));
    let mut connection =
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(AuditError::Sink)?;
    let mut place = 0;
    for key in stream_keys(&mut connection).await? {
        let app = &key[STREAM_PREFIX.len()..];
        let mut from = "-".to_owned();
        loop {
            let entries: Vec<Entry> = redis::cmd("XRANGE")
                .arg(&key)
                .arg(&from)
                .arg("+")
                .arg("COUNT")
                .arg(PAGE)
                .query_async(&mut connection)
                .await
                .map_err(AuditError::Sink)?;
            let Some((last, _)) = entries.last() else { break };
            from = format!("({last}");
            for (_, fields) in &entries {
                place += 1;
                take_in(app, fields, place, scratch, findings).await?;
            }
        }
    }
    scratch.flush().await
}

/// The streams, each once and in order: SCAN may name a key twice.
async fn stream_keys(connection: &mut MultiplexedConnection) -> Result<Vec<Vec<u8>>, AuditError> {
    let mut keys = Vec::new();
    let mut cursor = 0_u64;
    loop {
        let (next, page): (u64, Vec<Vec<u8>>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg([STREAM_PREFIX, b"*"].concat())
            .arg("COUNT")
            .arg(PAGE)
            .query_async(connection)
            .await
            .map_err(AuditError::Sink)?;
        keys.extend(page);
        if next == 0 {
            break;
        }
        cursor = next;
    }
    keys.sort();
    keys.dedup();
    Ok(keys)
}

/// Keeps one delivery, if it is one.
pub(crate) async fn take_in(
    app: &[u8],
    fields: &[Vec<u8>],
    place: u64,
    scratch: &mut Scratch,
    findings: &mut Findings,
) -> Result<(), AuditError> {
    match parse(app, fields, place) {
        Ok(row) => {
            // Until the distinct ones are known, every delivery counts as one more.
            findings.counts.events_redelivered += 1;
            scratch.delivered(row).await
        }
        Err(problem) => {
            let room =
                RoomRef { app: app.to_vec(), room: field(fields, b"room_id").unwrap_or_default().to_vec() };
            findings.violation(Kind::EventDiffers, &room, 0, || format!("delivery {place}: {problem}"));
            Ok(())
        }
    }
}

fn field<'a>(fields: &'a [Vec<u8>], name: &[u8]) -> Option<&'a [u8]> {
    fields.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_slice())
}

/// Reads an entry; its id, its envelope and its stream must name one event.
fn parse(app: &[u8], fields: &[Vec<u8>], place: u64) -> Result<DeliveredRow, String> {
    let envelope = field(fields, b"event").ok_or("it has no envelope")?;
    let envelope =
        EventEnvelope::decode(envelope).map_err(|error| format!("its envelope does not decode: {error}"))?;
    let EventEnvelope { event_id, app_code, room_id, seq, index, event, .. } = envelope;
    let id = field(fields, b"id").ok_or("it has no id")?;
    let wanted = format!("{app_code}/{room_id}/{seq}/{index}");
    if id != wanted.as_bytes() || event_id != wanted {
        let id = String::from_utf8_lossy(id);
        return Err(format!("its id is {id:?}, its envelope's {event_id:?}, its place {wanted:?}"));
    }
    if app_code.as_bytes() != app {
        return Err(format!(
            "an event of {app_code:?} is in the stream of {:?}",
            String::from_utf8_lossy(app)
        ));
    }
    Ok(DeliveredRow {
        room: RoomRef { app: app_code.into_bytes(), room: room_id.into_bytes() },
        seq,
        index: u64::from(index),
        place,
        hash: blake3::hash(&event).as_bytes().to_vec(),
    })
}
