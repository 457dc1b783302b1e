//! The port to where events go.
//!
//! A sink gets events of one room in their order and tells how many of the first were confirmed and why it
//! stopped. Nothing behind the first failure may go out: the shape of [`Delivery`] cannot say otherwise.
//! Delivery is at least once; consumers deduplicate by [`OutboxEvent::id`], scoped to the tenant. Each batch
//! starts at the first event that is not confirmed, so that the *first* arrivals are in order, whatever repeats
//! are mixed in.

use async_trait::async_trait;

use super::event::OutboxEvent;

pub mod memory;
pub mod redis;

/// Why a delivery stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Refused or not reachable: the event did not arrive. Retried for ever.
    Retry(String),
    /// No answer: the event may have arrived. Retried for ever.
    Unknown(String),
    /// Proof that this event can never be delivered as it is. Never for what another attempt might mend.
    Bad(String),
}

/// What became of the events of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// So many of the first were confirmed.
    pub delivered: usize,
    /// Why the next one was not; `None` when all were.
    pub stop: Option<Stop>,
}

impl Delivery {
    /// All events were confirmed.
    pub fn all(events: &[OutboxEvent]) -> Self {
        Self { delivered: events.len(), stop: None }
    }

    /// Stopped at the event after the first `delivered`.
    pub fn stopped(delivered: usize, stop: Stop) -> Self {
        Self { delivered, stop: Some(stop) }
    }
}

/// Where events go.
#[async_trait]
pub trait Sink: Send + Sync {
    /// A name for logs.
    fn name(&self) -> &'static str;
    /// Delivers events of one room, in order, at least one.
    ///
    /// May be dropped at any point: the events that were under way then count as unknown. Called for many rooms
    /// at once.
    async fn deliver(&self, events: &[OutboxEvent]) -> Delivery;
}
