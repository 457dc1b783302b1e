//! Events to Redis streams: `room:events:{app_code}`, one stream for each tenant.
//!
//! An entry has the fields `id`, `room_id`, `seq`, `index`, `type` and `event` (the encoded envelope). One script
//! call appends the events of a room: plain pipelined XADDs would go on behind one that failed. No error of Redis
//! is proof of a bad event, so nothing here is terminal. Streams are trimmed only if that was configured: what a
//! consumer has not read yet is then lost to it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, RedisError, Script};

use super::{Delivery, Sink, Stop};
use crate::outbox::event::OutboxEvent;

const APPEND_ROOM: &str = include_str!("redis/append_room.lua");

/// The stream of a tenant.
pub fn stream_key(app_code: &str) -> String {
    format!("room:events:{app_code}")
}

/// The sink.
pub struct RedisStreamSink {
    client: Client,
    config: ConnectionManagerConfig,
    link: Mutex<Link>,
    append_room: Script,
    max_len: u64,
}

/// The connection, and how often it was replaced.
#[derive(Clone)]
struct Link {
    connection: ConnectionManager,
    generation: u64,
}

impl RedisStreamSink {
    /// Connects when first used, and again whenever the connection is lost or silent.
    ///
    /// `max_len` trims each stream to about so many entries; `None` never trims. Needs a Tokio runtime.
    pub fn new(client: Client, timeout: Duration, max_len: Option<u64>) -> Result<Self, RedisError> {
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout))
            .set_number_of_retries(1)
            .set_max_delay(Duration::from_secs(1));
        let connection = ConnectionManager::new_lazy_with_config(client.clone(), config.clone())?;
        let link = Mutex::new(Link { connection, generation: 0 });
        Ok(Self {
            client,
            config,
            link,
            append_room: Script::new(APPEND_ROOM),
            max_len: max_len.unwrap_or(0),
        })
    }

    fn link(&self) -> Link {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives up a connection that is silent: its peer may be gone without a word, and the library would keep it
    /// until TCP gives up after many minutes.
    fn replace(&self, silent: &Link) {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if link.generation != silent.generation {
            return;
        }
        if let Ok(connection) =
            ConnectionManager::new_lazy_with_config(self.client.clone(), self.config.clone())
        {
            *link = Link { connection, generation: silent.generation + 1 };
        }
    }
}

#[async_trait]
impl Sink for RedisStreamSink {
    fn name(&self) -> &'static str {
        "redis-stream"
    }

    async fn deliver(&self, events: &[OutboxEvent]) -> Delivery {
        let Some(head) = events.first() else { return Delivery::all(events) };
        let mut call = self.append_room.key(stream_key(head.room.app_code()));
        call.arg(self.max_len);
        for event in events {
            call.arg(event.id())
                .arg(event.room.room_id())
                .arg(event.position.seq.0)
                .arg(event.position.index)
                .arg(&event.event_type)
                .arg(event.envelope.as_ref());
        }
        let mut link = self.link();
        match call.invoke_async::<Answer>(&mut link.connection).await {
            Ok((appended, None)) if appended == events.len() => Delivery::all(events),
            Ok((appended, Some(error))) if appended < events.len() => {
                Delivery::stopped(appended, Stop::Retry(error))
            }
            Ok(_) => Delivery::stopped(
                0,
                Stop::Unknown("the script gave an answer that it can not give".to_owned()),
            ),
            Err(error) => {
                if error.is_timeout() {
                    self.replace(&link);
                }
                Delivery::stopped(0, stop_of(&error))
            }
        }
    }
}

/// How many were appended, and why it stopped.
type Answer = (usize, Option<String>);

/// Whether an error proves that nothing was appended.
fn stop_of(error: &RedisError) -> Stop {
    match error.kind() {
        // The server answered, and it answers a script as a whole only if that did not run.
        ErrorKind::Server(_) => Stop::Retry(error.to_string()),
        _ if error.is_connection_refusal() => Stop::Retry(error.to_string()),
        _ => Stop::Unknown(error.to_string()),
    }
}
