//! An event on its way out, and its place in the order of its room.
//!
//! It knows the envelope, never what is inside it. The check here is the only judgement about a payload that the
//! worker makes itself: an envelope that does not decode, or that names another event than its row, would break
//! the deduplication of every consumer, and no retry mends it.

use bytes::Bytes;
use prost::Message;
use roomcluster_proto::rooms::v1::EventEnvelope;

use crate::types::{RoomKey, Seq};

/// An event's place in its room. The order of the fields is the order of delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventPosition {
    /// The command that it came from.
    pub seq: Seq,
    /// Its number among the command's events, from 0.
    pub index: u32,
}

/// One committed event as the outbox holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEvent {
    /// The room.
    pub room: RoomKey,
    /// Where it stands in the room's order.
    pub position: EventPosition,
    /// The name of its kind.
    pub event_type: String,
    /// The encoded `rooms.v1.EventEnvelope`.
    pub envelope: Bytes,
    /// How often it was read for delivery, this time included.
    pub attempts: u32,
}

/// Proof that an event can never be delivered as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEnvelope {
    /// The bytes are no envelope.
    #[error("the envelope does not decode: {0}")]
    Undecodable(String),
    /// The envelope is another event's.
    #[error("the envelope is of {found}, not of {wanted}")]
    OtherEvent {
        /// What the envelope says.
        found: String,
        /// What the row is.
        wanted: String,
    },
}

impl OutboxEvent {
    /// The stable id by which consumers deduplicate: `{app_code}/{room_id}/{seq}/{index}`.
    pub fn id(&self) -> String {
        event_id(self.room.app_code(), self.room.room_id(), self.position.seq.0, self.position.index)
    }

    /// Whether the envelope is one, and this event's.
    pub fn check(&self) -> Result<(), BadEnvelope> {
        let envelope = EventEnvelope::decode(self.envelope.clone())
            .map_err(|error| BadEnvelope::Undecodable(error.to_string()))?;
        let same = envelope.app_code == self.room.app_code()
            && envelope.room_id == self.room.room_id()
            && envelope.seq == self.position.seq.0
            && envelope.index == self.position.index;
        if same {
            return Ok(());
        }
        let found = event_id(&envelope.app_code, &envelope.room_id, envelope.seq, envelope.index);
        Err(BadEnvelope::OtherEvent { found, wanted: self.id() })
    }
}

fn event_id(app_code: &str, room_id: &str, seq: u64, index: u32) -> String {
    format!("{app_code}/{room_id}/{seq}/{index}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::testing::event;

    #[test]
    fn an_envelope_of_its_own_row_passes() {
        assert_eq!(event("app", "room", 7, 1).check(), Ok(()));
        assert_eq!(event("app", "room", 7, 1).id(), "app/room/7/1");
    }

    #[test]
    fn an_envelope_that_does_not_decode_is_bad() {
        let mut bad = event("app", "room", 7, 1);
        bad.envelope = Bytes::from_static(b"\xff\xff\xff");
        assert!(matches!(bad.check(), Err(BadEnvelope::Undecodable(_))));
    }

    #[test]
    fn an_envelope_of_another_event_is_bad() {
        for other in [event("app", "room", 8, 1), event("app", "room", 7, 0), event("app", "Room", 7, 1)] {
            let mut bad = event("app", "room", 7, 1);
            bad.envelope = other.envelope;
            assert!(matches!(bad.check(), Err(BadEnvelope::OtherEvent { .. })), "{bad:?}");
        }
    }

    #[test]
    fn positions_order_by_seq_then_index() {
        let at = |seq, index| EventPosition { seq: Seq(seq), index };
        assert!(at(1, 9) < at(2, 0));
        assert!(at(2, 0) < at(2, 1));
    }
}
