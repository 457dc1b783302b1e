//! Makes events for the tests of this module.

use bytes::Bytes;
use prost::Message;
use roomcluster_proto::rooms::v1::EventEnvelope;

use super::event::{EventPosition, OutboxEvent};
use crate::types::{RoomKey, Seq};

/// The encoded envelope of an event.
pub(crate) fn envelope(app_code: &str, room_id: &str, seq: u64, index: u32) -> Vec<u8> {
    EventEnvelope {
        event_id: format!("{app_code}/{room_id}/{seq}/{index}"),
        app_code: app_code.to_owned(),
        room_id: room_id.to_owned(),
        seq,
        index,
        ..EventEnvelope::default()
    }
    .encode_to_vec()
}

/// A well-formed event.
pub(crate) fn event(app_code: &str, room_id: &str, seq: u64, index: u32) -> OutboxEvent {
    OutboxEvent {
        room: RoomKey::new(app_code, room_id).expect("the test's ids are valid"),
        position: EventPosition { seq: Seq(seq), index },
        event_type: "Tested".to_owned(),
        envelope: Bytes::from(envelope(app_code, room_id, seq, index)),
        attempts: 1,
    }
}
