//! A sink that logs what it gets: for the development server.

use async_trait::async_trait;
use tracing::info;

use crate::outbox::event::OutboxEvent;
use crate::outbox::sink::{Delivery, Sink};

/// Logs each event.
pub(super) struct LogSink;

#[async_trait]
impl Sink for LogSink {
    fn name(&self) -> &'static str {
        "log"
    }

    async fn deliver(&self, events: &[OutboxEvent]) -> Delivery {
        for event in events {
            info!(event_id = event.id(), event_type = event.event_type, "An event was delivered");
        }
        Delivery::all(events)
    }
}
