//! A sink in memory: for tests and for the development server.
//!
//! It keeps the newest events up to a bound, and can be told how to fail.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::{Delivery, Sink, Stop};
use crate::outbox::event::OutboxEvent;

/// Decides about each event, in order, whether its delivery stops there.
pub type Fault = Arc<dyn Fn(&OutboxEvent) -> Option<Stop> + Send + Sync>;

/// The sink.
#[derive(Clone)]
pub struct MemorySink {
    kept: Arc<Mutex<VecDeque<OutboxEvent>>>,
    capacity: usize,
    fault: Arc<Mutex<Option<Fault>>>,
}

impl MemorySink {
    /// Keeps at most `capacity` events, the newest.
    pub fn new(capacity: usize) -> Self {
        Self { kept: Arc::default(), capacity, fault: Arc::default() }
    }

    /// Fails from now on as `fault` says; `None` heals it.
    pub fn set_fault(&self, fault: Option<Fault>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// What arrived, in order of arrival.
    pub fn events(&self) -> Vec<OutboxEvent> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[async_trait]
impl Sink for MemorySink {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn deliver(&self, events: &[OutboxEvent]) -> Delivery {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for (delivered, event) in events.iter().enumerate() {
            if let Some(stop) = fault.as_ref().and_then(|fault| fault(event)) {
                // An unknown outcome is simulated as its worse half: the event did arrive.
                if matches!(stop, Stop::Unknown(_)) {
                    kept.push_back(event.clone());
                }
                return Delivery::stopped(delivered, stop);
            }
            kept.push_back(event.clone());
            if kept.len() > self.capacity {
                kept.pop_front();
            }
        }
        Delivery::all(events)
    }
}
