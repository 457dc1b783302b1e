//! What cells count. No label carries a room.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// Counters of a node's cells.
#[derive(Debug, Clone, Default)]
pub struct CellMetrics {
    commands: Counter,
    batches: Counter,
    batch_rooms: Counter,
    takes: Counter,
    fenced_out: Counter,
    unknown_commits: Counter,
    snapshot_flush: Counter,
    snapshot_flush_failed: Counter,
    lease_release: Counter,
    lease_release_failed: Counter,
}

impl CellMetrics {
    /// Counters that `registry` shows.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let mut add =
            |name: &str, help: &str, counter: &Counter| registry.register(name, help, counter.clone());
        add("room_commands", "Commands that committed here.", &metrics.commands);
        add("room_commit_batches", "Transactions that committed commands.", &metrics.batches);
        add("room_commit_batch_rooms", "Rooms in those transactions.", &metrics.batch_rooms);
        add("room_takes", "Rooms taken, each under a new epoch.", &metrics.takes);
        add(
            "room_fenced_out",
            "Commits that the fence refused because another node owned the room.",
            &metrics.fenced_out,
        );
        add("room_commit_unknown", "Commits whose connection was lost at COMMIT.", &metrics.unknown_commits);
        add("room_snapshot_flush", "Snapshots that were begun to be written.", &metrics.snapshot_flush);
        add(
            "room_snapshot_flush_failed",
            "Snapshots that were not written in time.",
            &metrics.snapshot_flush_failed,
        );
        // Two names, as the two pages of the specification have it.
        add(
            "room_snapshot_flush_failures",
            "Snapshots that were not written in time.",
            &metrics.snapshot_flush_failed,
        );
        add("room_lease_release", "Leases released.", &metrics.lease_release);
        add("room_lease_release_failed", "Leases that could not be released.", &metrics.lease_release_failed);
        metrics
    }

    pub(super) fn committed(&self, commands: usize) {
        self.commands.inc_by(commands as u64);
    }

    pub(super) fn batch_committed(&self, rooms: usize) {
        self.batches.inc();
        self.batch_rooms.inc_by(rooms as u64);
    }

    pub(super) fn taken(&self) {
        self.takes.inc();
    }

    pub(super) fn fenced_out(&self) {
        self.fenced_out.inc();
    }

    pub(super) fn unknown_commit(&self) {
        self.unknown_commits.inc();
    }

    pub(super) fn snapshot_flush(&self) {
        self.snapshot_flush.inc();
    }

    pub(super) fn snapshot_flush_failed(&self) {
        self.snapshot_flush_failed.inc();
    }

    pub(super) fn lease_released(&self) {
        self.lease_release.inc();
    }

    pub(super) fn lease_release_failed(&self) {
        self.lease_release_failed.inc();
    }
}
