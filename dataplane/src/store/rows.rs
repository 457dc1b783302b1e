//! What both databases store in the same bytes: events, envelopes, and ids read back.
//!
//! Knows no database. A list of events always has at least one byte, so that an empty blob means one thing only:
//! the row was trimmed.

use bytes::Bytes;
use prost::Message;
use prost::encoding::{decode_varint, encode_varint};
use roomcluster_proto::rooms::v1::EventEnvelope;

use super::{NewLogRow, OwnerRow, RoomCommit, StoreError};
use crate::logic::{EncodedEvent, RoomPhase};
use crate::types::{Claim, CommandId, Epoch, Hash32, Incarnation, LeaseToken, NodeId, NodeRef, RoomKey, Seq};

/// Largest command that a store takes, result, events and all: less than a packet and a column of MySQL hold.
pub const MAX_ROW_BYTES: usize = 15 << 20;

/// State of an event that nobody has claimed yet.
pub const OUTBOX_PENDING: &str = "pending";

/// Writes a list of events: their number, then each behind its length, numbers as varints.
pub fn encode_events(events: &[EncodedEvent]) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + events.iter().map(|e| e.payload.len() + 5).sum::<usize>());
    encode_varint(events.len() as u64, &mut out);
    for event in events {
        encode_varint(event.payload.len() as u64, &mut out);
        out.extend_from_slice(&event.payload);
    }
    out
}

/// Reads what [`encode_events`] wrote; a trimmed row gives no events.
pub fn decode_events(stored: Vec<u8>) -> Result<Vec<Bytes>, StoreError> {
    if stored.is_empty() {
        return Ok(Vec::new());
    }
    let mut rest = Bytes::from(stored);
    let count = varint(&mut rest)?;
    let mut events = Vec::with_capacity(count.min(rest.len()));
    for _ in 0..count {
        let len = varint(&mut rest)?;
        if len > rest.len() {
            return Err(corrupt("list of events", "an event is cut off"));
        }
        events.push(rest.split_to(len));
    }
    if !rest.is_empty() {
        return Err(corrupt("list of events", "bytes follow the last event"));
    }
    Ok(events)
}

fn varint(rest: &mut Bytes) -> Result<usize, StoreError> {
    let number = decode_varint(rest).map_err(|e| corrupt("list of events", e))?;
    usize::try_from(number).map_err(|e| corrupt("list of events", e))
}

/// The envelope of one event, as the outbox delivers it.
pub fn encode_envelope(commit: &RoomCommit, row: &NewLogRow, index: u32, event: &EncodedEvent) -> Vec<u8> {
    let room = &commit.room;
    EventEnvelope {
        event_id: format!("{}/{}/{}/{index}", room.app_code(), room.room_id(), row.seq),
        app_code: room.app_code().to_owned(),
        room_id: room.room_id().to_owned(),
        seq: row.seq.0,
        index,
        epoch: commit.claim.epoch.0,
        command_id: row.command_id.as_str().to_owned(),
        committed_at_ms: row.committed_at_ms,
        event_type: event.event_type.to_owned(),
        event: event.payload.clone(),
    }
    .encode_to_vec()
}

/// How much a command takes in the store, generously.
pub(super) fn row_bytes(row: &NewLogRow) -> usize {
    row.result.len() + row.events.iter().map(|e| e.payload.len() + 16).sum::<usize>() + 1_024
}

/// What is wrong with a commit that no store could hold.
pub(super) fn too_large(commit: &RoomCommit, limit: usize) -> Option<String> {
    let largest = commit.rows.iter().map(row_bytes).max()?;
    (largest > limit).then(|| format!("a command of {largest} bytes; the store takes {limit}"))
}

/// The event's number within its command. A command has far fewer events than fit.
pub(super) fn event_index(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// How `rooms.status` names a phase.
pub(super) fn phase_name(phase: RoomPhase) -> &'static str {
    match phase {
        RoomPhase::Active => "active",
        RoomPhase::Closed => "closed",
    }
}

/// The columns of an owner row, undecoded.
pub(super) struct RawOwner {
    pub(super) epoch: u64,
    pub(super) token: Vec<u8>,
    pub(super) node_id: Vec<u8>,
    pub(super) incarnation: Vec<u8>,
    pub(super) address: Vec<u8>,
    pub(super) released_at_ms: Option<i64>,
}

impl RawOwner {
    pub(super) fn decode(self) -> Result<OwnerRow, StoreError> {
        Ok(OwnerRow {
            claim: claim(self.epoch, &self.token)?,
            node: NodeRef {
                node_id: node_id(&self.node_id)?,
                incarnation: Incarnation(fixed("incarnation", &self.incarnation)?),
                address: text("node address", &self.address)?.to_owned(),
            },
            released_at_ms: self.released_at_ms,
        })
    }
}

/// Whether the row lets this claim commit.
pub(super) fn owns(owner: &OwnerRow, claim: Claim) -> bool {
    owner.claim == claim && owner.released_at_ms.is_none()
}

pub(super) fn claim(epoch: u64, token: &[u8]) -> Result<Claim, StoreError> {
    Ok(Claim { epoch: Epoch(epoch), token: LeaseToken(fixed("lease token", token)?) })
}

pub(super) fn room_key(app_code: &[u8], room_id: &[u8]) -> Result<RoomKey, StoreError> {
    RoomKey::new(text("app_code", app_code)?, text("room_id", room_id)?).map_err(|e| corrupt("room key", e))
}

pub(super) fn command_id(stored: &[u8]) -> Result<CommandId, StoreError> {
    CommandId::new(text("command id", stored)?).map_err(|e| corrupt("command id", e))
}

pub(super) fn node_id(stored: &[u8]) -> Result<NodeId, StoreError> {
    NodeId::new(text("node id", stored)?).map_err(|e| corrupt("node id", e))
}

pub(super) fn hash32(what: &'static str, stored: &[u8]) -> Result<Hash32, StoreError> {
    fixed(what, stored)
}

fn fixed<const N: usize>(what: &'static str, stored: &[u8]) -> Result<[u8; N], StoreError> {
    stored.try_into().map_err(|_| corrupt(what, format!("{} bytes instead of {N}", stored.len())))
}

fn text<'a>(what: &'static str, stored: &'a [u8]) -> Result<&'a str, StoreError> {
    std::str::from_utf8(stored).map_err(|e| corrupt(what, e))
}

#[expect(clippy::needless_pass_by_value, reason = "errors and texts are given away")]
pub(super) fn corrupt(what: &'static str, problem: impl ToString) -> StoreError {
    StoreError::Corrupt { what, problem: problem.to_string() }
}

/// Checks that a tail continues a snapshot up to the head, row by row, with its events.
///
/// `Ok(false)` when a row was trimmed: a newer snapshot has replaced the one that was read.
pub(super) fn tail_is_whole(
    base: Seq,
    head: Seq,
    tail: impl Iterator<Item = (Seq, bool)>,
) -> Result<bool, StoreError> {
    let mut last = base;
    for (seq, trimmed) in tail {
        if seq != last.next() {
            return Err(corrupt("command log", format!("seq {seq} follows {last}")));
        }
        if trimmed {
            return Ok(false);
        }
        last = seq;
    }
    if last != head {
        return Err(corrupt("command log", format!("it ends at {last}, the head is at {head}")));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(payload: &'static [u8]) -> EncodedEvent {
        EncodedEvent { event_type: "T", payload: Bytes::from_static(payload) }
    }

    #[test]
    fn a_list_of_events_reads_back_and_never_looks_trimmed() {
        for list in [vec![], vec![event(b"")], vec![event(b"a"), event(b""), event(&[7; 300])]] {
            let stored = encode_events(&list);
            assert!(!stored.is_empty());
            let back = decode_events(stored).unwrap();
            assert_eq!(back, list.iter().map(|e| e.payload.clone()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_list_of_events_that_is_cut_or_too_long_is_corrupt() {
        let stored = encode_events(&[event(b"abc"), event(b"d")]);
        for len in 1..stored.len() {
            assert!(decode_events(stored[..len].to_vec()).is_err(), "cut at {len}");
        }
        assert!(decode_events([stored, vec![0]].concat()).is_err());
    }

    #[test]
    fn a_tail_with_a_gap_or_an_early_end_is_corrupt_and_a_trimmed_one_is_not_whole() {
        let check = |base, head, seqs: &[(u64, bool)]| {
            tail_is_whole(Seq(base), Seq(head), seqs.iter().map(|(s, t)| (Seq(*s), *t)))
        };
        assert!(check(2, 4, &[(3, false), (4, false)]).unwrap());
        assert!(check(2, 2, &[]).unwrap());
        assert!(!check(2, 4, &[(3, true), (4, false)]).unwrap());
        assert!(check(2, 4, &[(4, false)]).is_err());
        assert!(check(2, 4, &[(3, false)]).is_err());
    }
}
