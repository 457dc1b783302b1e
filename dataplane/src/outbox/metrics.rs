//! What the worker counts.
//!
//! The tenant is a label, but a closed set: the first [`MAX_APP_LABELS`] tenants have their own, the others share
//! one. Alert on failed events and on the oldest age, not only on the backlog.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::store::AppBacklog;

/// Tenants with a label of their own.
pub const MAX_APP_LABELS: usize = 100;
/// The label of all other tenants.
pub const OTHER_APPS: &str = "_other";

type AppLabel = [(&'static str, String); 1];

/// The worker's metrics.
#[derive(Debug, Default)]
pub struct OutboxMetrics {
    alive: Gauge,
    inflight: Gauge,
    shutdown_released: Gauge,
    shutdown_committed: Gauge,
    shutdown_pending: Gauge,
    fenced: Counter,
    rescued: Counter,
    store_errors: Counter,
    delivered: Family<AppLabel, Counter>,
    retried: Family<AppLabel, Counter>,
    failed: Family<AppLabel, Counter>,
    backlog: Family<AppLabel, Gauge>,
    oldest_age_ms: Family<AppLabel, Gauge>,
    labels: Mutex<BTreeSet<String>>,
}

impl OutboxMetrics {
    /// Makes the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let m = Self::default();
        let gauge =
            |registry: &mut Registry, name, help, gauge: &Gauge| registry.register(name, help, gauge.clone());
        gauge(registry, "room_outbox_worker_alive", "1 while the outbox worker's loop runs", &m.alive);
        gauge(registry, "worker_inflight_messages", "Events claimed and not reported yet", &m.inflight);
        gauge(
            registry,
            "outbox_shutdown_pending",
            "Undelivered events that were left when the worker ended; other workers deliver them",
            &m.shutdown_pending,
        );
        gauge(
            registry,
            "worker_shutdown_released_messages",
            "Events given back unsent while the worker ended",
            &m.shutdown_released,
        );
        gauge(
            registry,
            "worker_shutdown_committed_messages",
            "Events delivered and recorded while the worker ended",
            &m.shutdown_committed,
        );
        let counter = |registry: &mut Registry, name, help, counter: &Counter| {
            registry.register(name, help, counter.clone())
        };
        counter(
            registry,
            "outbox_fenced",
            "Events whose report came after their lease was another's, or repeated a report",
            &m.fenced,
        );
        counter(registry, "outbox_rescued_rooms", "Rooms that had fallen out of the claims", &m.rescued);
        counter(registry, "outbox_store_errors", "Calls to the database that failed", &m.store_errors);
        registry.register("outbox_delivered", "Events confirmed by the sink", m.delivered.clone());
        registry.register(
            "outbox_retried",
            "Events refused, unknown or behind such a one",
            m.retried.clone(),
        );
        registry.register("outbox_failed", "Events proven to be bad and set aside", m.failed.clone());
        registry.register("outbox_backlog", "Undelivered events", m.backlog.clone());
        registry.register(
            "outbox_oldest_age_ms",
            "Age of the oldest undelivered event, in milliseconds",
            m.oldest_age_ms.clone(),
        );
        m
    }

    fn label(&self, app_code: &str) -> AppLabel {
        let mut labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        let own = labels.contains(app_code)
            || (labels.len() < MAX_APP_LABELS && labels.insert(app_code.to_owned()));
        [("app_code", if own { app_code } else { OTHER_APPS }.to_owned())]
    }

    pub(crate) fn set_alive(&self, alive: bool) {
        self.alive.set(i64::from(alive));
    }

    pub(crate) fn set_inflight(&self, events: u64) {
        self.inflight.set(as_gauge(events));
    }

    pub(crate) fn add_delivered(&self, app_code: &str, events: u64) {
        self.delivered.get_or_create(&self.label(app_code)).inc_by(events);
    }

    pub(crate) fn add_retried(&self, app_code: &str, events: u64) {
        self.retried.get_or_create(&self.label(app_code)).inc_by(events);
    }

    pub(crate) fn add_failed(&self, app_code: &str) {
        self.failed.get_or_create(&self.label(app_code)).inc();
    }

    pub(crate) fn add_fenced(&self, events: u64) {
        self.fenced.inc_by(events);
    }

    pub(crate) fn add_rescued(&self, rooms: u64) {
        self.rescued.inc_by(rooms);
    }

    pub(crate) fn add_store_error(&self) {
        self.store_errors.inc();
    }

    pub(crate) fn set_shutdown(&self, committed: u64, released: u64) {
        self.shutdown_committed.set(as_gauge(committed));
        self.shutdown_released.set(as_gauge(released));
    }

    pub(crate) fn set_shutdown_pending(&self, events: u64) {
        self.shutdown_pending.set(as_gauge(events));
    }

    pub(crate) fn set_backlogs(&self, backlogs: &[AppBacklog]) {
        let (mut pending, mut oldest) = (0, 0);
        let mut others = false;
        for backlog in backlogs {
            let label = self.label(&backlog.app_code);
            if label[0].1 == OTHER_APPS {
                others = true;
                pending += backlog.pending;
                oldest = oldest.max(backlog.oldest_age_ms);
            } else {
                self.backlog.get_or_create(&label).set(as_gauge(backlog.pending));
                self.oldest_age_ms.get_or_create(&label).set(as_gauge(backlog.oldest_age_ms));
            }
        }
        if others {
            let label = [("app_code", OTHER_APPS.to_owned())];
            self.backlog.get_or_create(&label).set(as_gauge(pending));
            self.oldest_age_ms.get_or_create(&label).set(as_gauge(oldest));
        }
    }

    /// Events of a tenant that were proven to be bad.
    pub fn failed_total(&self, app_code: &str) -> u64 {
        self.failed.get_or_create(&self.label(app_code)).get()
    }

    /// Events that were reported too late.
    pub fn fenced_total(&self) -> u64 {
        self.fenced.get()
    }
}

fn as_gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
