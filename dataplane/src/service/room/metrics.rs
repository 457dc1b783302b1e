//! The series that the operator waits for.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use roomcluster_lifecycle::Process;

use super::Orders;
use crate::cell::Cells;
use crate::room::VoiceRoom;
use crate::types::NodeRef;

/// Shows `room_leases` with pod UID, drain epoch and incarnation, so that a sample can be told from one of
/// another pod, of before the order, or of a former process.
pub(super) fn register(process: &Process, cells: &Cells<VoiceRoom>, orders: &Arc<Orders>, node: &NodeRef) {
    let leases = LeaseCount { cells: cells.clone(), orders: Arc::clone(orders), node: node.clone() };
    process.metrics.register(|registry| registry.register_collector(Box::new(leases)));
}

struct LeaseCount {
    cells: Cells<VoiceRoom>,
    orders: Arc<Orders>,
    node: NodeRef,
}

impl std::fmt::Debug for LeaseCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeaseCount")
    }
}

impl Collector for LeaseCount {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        // The epoch is read first: a count that is read later belongs to it or to a newer order, never an older.
        let epoch = self.orders.drain_epoch().to_string();
        let rooms = i64::try_from(self.cells.count()).unwrap_or(i64::MAX);
        let labels = [
            ("node_id", self.node.node_id.as_str()),
            ("pod_uid", self.orders.pod_uid()),
            ("drain_epoch", epoch.as_str()),
            ("incarnation", &self.node.incarnation.to_hex()),
        ];
        let help = "Rooms that this node executes, loads or is letting go.";
        let mut metric = encoder.encode_descriptor("room_leases", help, None, MetricType::Gauge)?;
        let family = metric.encode_family(&labels)?;
        ConstGauge::new(rooms).encode(family)?;
        let draining = if self.orders.is_evacuating() { rooms } else { 0 };
        let help = "Rooms that an evacuating node still has to let go.";
        let metric = encoder.encode_descriptor("room_cells_draining", help, None, MetricType::Gauge)?;
        ConstGauge::new(draining).encode(metric)
    }
}
