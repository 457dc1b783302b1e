//! What the operator counts of itself.
//!
//! Labels are names of clusters and constants; a cluster that is gone takes its series along.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Bounds of reconciles, in seconds: asking nodes dominates, and each call has a time-out of some seconds.
const RECONCILE_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0];
/// Bounds of drains, in seconds: from an idle pod to one whose rooms hold on for hours.
const DRAIN_BUCKETS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0];

/// A category of errors.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ErrorLabels {
    /// Its constant name.
    pub category: &'static str,
}

/// What became of rooms.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RoomLabels {
    /// `moved`, `forced` or `lost`.
    pub outcome: &'static str,
}

/// Why something is not done, in one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BlockedLabels {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub cluster: String,
    /// The constant name of the reason.
    pub reason: &'static str,
}

/// The metrics of the operator.
#[derive(Clone, Debug)]
pub struct OperatorMetrics {
    reconcile_seconds: Histogram,
    reconcile_errors: Family<ErrorLabels, Counter>,
    drain_seconds: Histogram,
    rooms: Family<RoomLabels, Counter>,
    blocked: Family<BlockedLabels, Gauge>,
    leader: Gauge,
}

impl Default for OperatorMetrics {
    fn default() -> Self {
        Self {
            reconcile_seconds: Histogram::new(RECONCILE_BUCKETS),
            reconcile_errors: Family::default(),
            drain_seconds: Histogram::new(DRAIN_BUCKETS),
            rooms: Family::default(),
            blocked: Family::default(),
            leader: Gauge::default(),
        }
    }
}

impl OperatorMetrics {
    /// Makes the metrics and registers them.
    #[must_use]
    pub fn registered_in(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "roomcluster_reconcile_seconds",
            "How long one reconcile of one RoomCluster took",
            metrics.reconcile_seconds.clone(),
        );
        registry.register(
            "roomcluster_reconcile_errors",
            "Reconciles and steps that failed, by category",
            metrics.reconcile_errors.clone(),
        );
        registry.register(
            "roomcluster_drain_seconds",
            "Time from a pod's drain order to its end",
            metrics.drain_seconds.clone(),
        );
        registry.register("roomcluster_rooms", "Rooms that left pods, by outcome", metrics.rooms.clone());
        registry.register(
            "roomcluster_blocked",
            "Pods of a RoomCluster about which something is not done, by reason",
            metrics.blocked.clone(),
        );
        registry.register(
            "roomcluster_leader",
            "Whether this operator holds the leader claim",
            metrics.leader.clone(),
        );
        metrics
    }

    /// A reconcile has ended.
    pub fn reconciled(&self, took: Duration) {
        self.reconcile_seconds.observe(took.as_secs_f64());
    }

    /// Something has failed.
    pub fn failed(&self, category: &'static str) {
        self.reconcile_errors.get_or_create(&ErrorLabels { category }).inc();
    }

    /// A drained pod was ended.
    pub fn drained(&self, took: Duration) {
        self.drain_seconds.observe(took.as_secs_f64());
    }

    /// So many rooms left pods in this way.
    pub fn rooms(&self, outcome: &'static str, rooms: u64) {
        self.rooms.get_or_create(&RoomLabels { outcome }).inc_by(rooms);
    }

    /// So many pods of a cluster wait for this reason; with zero the series ends.
    pub fn blocked(&self, labels: &BlockedLabels, pods: usize) {
        match i64::try_from(pods) {
            Ok(0) => {
                self.blocked.remove(labels);
            }
            pods => {
                self.blocked.get_or_create(labels).set(pods.unwrap_or(i64::MAX));
            }
        }
    }

    /// Whether the claim is held.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }
}
