//! The registry of a process, and the metrics that every process has.
//!
//! Label sets are closed: service, node-independent names of checks, tasks, phases and resources. No room id and
//! no user id ever becomes a label. The encoder adds `_total` to counters
//! and a full stop to help texts, so both are registered without.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of the check histogram; the time-outs of the health checks are 50 to 500 ms.
const CHECK_BUCKETS_MS: [f64; 11] = [1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 300.0, 500.0, 1000.0];

/// Label pairs whose names and values are all fixed when the program is built or its process starts.
pub(crate) type Labels = Vec<(&'static str, String)>;

pub(crate) type HistogramFamily = Family<Labels, Histogram, fn() -> Histogram>;

/// A registry that all parts of a process share, and that the admin server encodes. Clones are handles.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    pub(crate) process: Arc<ProcessMetrics>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// A registry with the metrics of this crate.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let process = Arc::new(ProcessMetrics::registered_in(&mut registry));
        Self { registry: Arc::new(Mutex::new(registry)), process }
    }

    /// Registers metrics of the caller: `metrics.register(|registry| registry.register("name", "Help", metric))`.
    pub fn register<R>(&self, register: impl FnOnce(&mut Registry) -> R) -> R {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        register(&mut registry)
    }

    /// The registry as OpenMetrics text.
    pub fn encode(&self) -> String {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        encode(&mut text, &registry).expect("writing into a String does not fail");
        text
    }
}

/// What this crate measures itself.
pub(crate) struct ProcessMetrics {
    pub(crate) service_draining: Family<Labels, Gauge>,
    pub(crate) service_shutdown_duration_ms: Family<Labels, Gauge>,
    pub(crate) service_shutdown_forced: Family<Labels, Counter>,
    pub(crate) service_shutdown_cut: Family<Labels, Counter>,
    pub(crate) inflight_requests: Gauge,
    pub(crate) grpc_inflight_requests: Gauge,
    pub(crate) http_inflight_requests: Gauge,
    pub(crate) task_panics: Family<Labels, Counter>,
    pub(crate) task_restarts: Family<Labels, Counter>,
    pub(crate) health_ready_status: Family<Labels, Gauge>,
    pub(crate) health_live_status: Family<Labels, Gauge>,
    pub(crate) health_check_duration_ms: HistogramFamily,
    pub(crate) health_dependency_failures: Family<Labels, Counter>,
}

fn check_histogram() -> Histogram {
    Histogram::new(CHECK_BUCKETS_MS)
}

impl ProcessMetrics {
    fn registered_in(registry: &mut Registry) -> Self {
        let metrics = Self {
            service_draining: Family::default(),
            service_shutdown_duration_ms: Family::default(),
            service_shutdown_forced: Family::default(),
            service_shutdown_cut: Family::default(),
            inflight_requests: Gauge::default(),
            grpc_inflight_requests: Gauge::default(),
            http_inflight_requests: Gauge::default(),
            task_panics: Family::default(),
            task_restarts: Family::default(),
            health_ready_status: Family::default(),
            health_live_status: Family::default(),
            health_check_duration_ms: Family::new_with_constructor(check_histogram),
            health_dependency_failures: Family::default(),
        };
        metrics.register_lifecycle(registry);
        metrics.register_health(registry);
        metrics
    }

    fn register_lifecycle(&self, registry: &mut Registry) {
        registry.register(
            "service_draining",
            "Whether the process evacuates (withdrawable) or drains (final), by kind",
            self.service_draining.clone(),
        );
        registry.register(
            "service_shutdown_duration_ms",
            "How long the ordered shutdown has taken, from its cause to the last phase",
            self.service_shutdown_duration_ms.clone(),
        );
        registry.register(
            "service_shutdown_forced",
            "Shutdown phases and whole shutdowns that were cut short",
            self.service_shutdown_forced.clone(),
        );
        registry.register(
            "service_shutdown_cut",
            "Resources that were cut off while the process ended, by phase and resource",
            self.service_shutdown_cut.clone(),
        );
        registry.register(
            "inflight_requests",
            "Requests that are being answered",
            self.inflight_requests.clone(),
        );
        registry.register(
            "grpc_inflight_requests",
            "gRPC calls that are being answered, streams included",
            self.grpc_inflight_requests.clone(),
        );
        registry.register(
            "http_inflight_requests",
            "HTTP requests that are being answered",
            self.http_inflight_requests.clone(),
        );
        registry.register("task_panics", "Tasks that panicked, by name", self.task_panics.clone());
        registry.register(
            "task_restarts",
            "Tasks that ended early and were started again, by name",
            self.task_restarts.clone(),
        );
    }

    fn register_health(&self, registry: &mut Registry) {
        registry.register(
            "health_ready_status",
            "Whether the process may get new traffic",
            self.health_ready_status.clone(),
        );
        registry.register(
            "health_live_status",
            "Whether the main loops of the process make progress",
            self.health_live_status.clone(),
        );
        registry.register(
            "health_check_duration_ms",
            "How long a health check took, by check",
            self.health_check_duration_ms.clone(),
        );
        registry.register(
            "health_dependency_failures",
            "Health checks that failed or ran out of time, by check",
            self.health_dependency_failures.clone(),
        );
    }
}

/// Which protocol a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// A gRPC call; a stream counts until its end.
    Grpc,
    /// An HTTP request.
    Http,
}

/// Counts a request as in flight until it is dropped.
#[derive(Debug)]
pub struct InflightGuard {
    total: Gauge,
    of_protocol: Gauge,
}

impl Metrics {
    /// Counts one request as in flight, for as long as the guard lives.
    pub fn enter_request(&self, protocol: Protocol) -> InflightGuard {
        let of_protocol = match protocol {
            Protocol::Grpc => self.process.grpc_inflight_requests.clone(),
            Protocol::Http => self.process.http_inflight_requests.clone(),
        };
        let total = self.process.inflight_requests.clone();
        total.inc();
        of_protocol.inc();
        InflightGuard { total, of_protocol }
    }

    /// How many requests are in flight.
    pub fn inflight_requests(&self) -> u64 {
        u64::try_from(self.process.inflight_requests.get()).unwrap_or(0)
    }
}

impl Drop for InflightGuard {
    fn drop(&mut self) {
        self.total.dec();
        self.of_protocol.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_until_its_guard_is_dropped() {
        let metrics = Metrics::new();
        let grpc = metrics.enter_request(Protocol::Grpc);
        let http = metrics.enter_request(Protocol::Http);
        assert_eq!(metrics.inflight_requests(), 2);
        assert!(metrics.encode().contains("\ngrpc_inflight_requests 1\n"));
        drop(grpc);
        drop(http);
        assert_eq!(metrics.inflight_requests(), 0);
    }

    #[test]
    fn metrics_of_the_caller_are_encoded_with_those_of_this_crate() {
        let metrics = Metrics::new();
        let mine = Counter::<u64>::default();
        metrics.register(|registry| registry.register("mine", "Mine", mine.clone()));
        mine.inc();
        let text = metrics.encode();
        assert!(text.contains("mine_total 1"), "{text}");
        assert!(text.contains("# HELP mine Mine.\n# TYPE mine counter\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
