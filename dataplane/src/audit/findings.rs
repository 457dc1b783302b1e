//! What the audit found: counts, and the first violations by name.

use std::fmt;

use serde::Serialize;

use super::rows::RoomRef;

/// Violations named in the report; further ones are only counted.
pub(crate) const VIOLATIONS_NAMED: usize = 20;

/// What is wrong, and by that which promise is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// A seq is missing in a log.
    Gap,
    /// Two rows of a log have one seq.
    SeqDoubled,
    /// An epoch is lower than that of the row before.
    EpochFell,
    /// One epoch has two lease tokens.
    EpochTwoTokens,
    /// One epoch has two owners.
    EpochTwoOwners,
    /// One lease token has two epochs.
    TokenTwoEpochs,
    /// The head is not where the log ends.
    HeadDiffers,
    /// The owner row is missing, behind the log, or contradicts it.
    OwnerDiffers,
    /// A log row holds bytes that its logic cannot read.
    RowUnreadable,
    /// The log does not lead to the state that the head or a snapshot names.
    StateHashDiffers,
    /// A snapshot is newer than the head, or does not read back.
    SnapshotDiffers,
    /// Events were trimmed that no snapshot covers.
    TrimmedWithoutSnapshot,
    /// An acknowledged command is not in the log.
    AckLost,
    /// A command id is in a log twice.
    CommandDoubled,
    /// An acknowledged command is in the log at another place.
    AckOtherSeq,
    /// An acknowledged command has another result in the log.
    AckOtherResult,
    /// An acknowledged command has another epoch in the log.
    AckOtherEpoch,
    /// A command that was refused is in the log.
    RefusedInLog,
    /// A committed event was not delivered.
    EventMissing,
    /// A committed event has waited in the outbox too long.
    EventPending,
    /// The outbox gave an event up.
    EventFailed,
    /// An event was first delivered after one that follows it.
    EventReordered,
    /// An event was delivered, or waits, that no command committed.
    EventUnexpected,
    /// A delivered event has other bytes than the log.
    EventDiffers,
}

impl Kind {
    /// The promise that is broken.
    pub(crate) fn promise(self) -> &'static str {
        match self {
            Self::Gap
            | Self::SeqDoubled
            | Self::EpochFell
            | Self::EpochTwoTokens
            | Self::EpochTwoOwners
            | Self::TokenTwoEpochs
            | Self::HeadDiffers
            | Self::OwnerDiffers
            | Self::RowUnreadable
            | Self::StateHashDiffers
            | Self::SnapshotDiffers
            | Self::TrimmedWithoutSnapshot => "P1",
            Self::AckLost | Self::EventUnexpected => "P2",
            Self::CommandDoubled
            | Self::AckOtherSeq
            | Self::AckOtherResult
            | Self::AckOtherEpoch
            | Self::RefusedInLog => "P3",
            Self::EventMissing
            | Self::EventPending
            | Self::EventFailed
            | Self::EventReordered
            | Self::EventDiffers => "P4",
        }
    }
}

/// One broken promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Violation {
    pub(crate) promise: &'static str,
    pub(crate) kind: Kind,
    pub(crate) app: String,
    pub(crate) room: String,
    pub(crate) seq: u64,
    pub(crate) detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { promise, kind, app, room, seq, detail } = self;
        write!(f, "{promise} {kind:?} in {app}/{room} at seq {seq}: {detail}")
    }
}

/// Counts over the whole audit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Rooms seen anywhere.
    pub(crate) rooms: u64,
    /// Log rows.
    pub(crate) commands: u64,
    /// Acknowledged commands that are not in a log.
    pub(crate) commands_lost: u64,
    /// Log rows beyond the first of their command id.
    pub(crate) commands_doubled: u64,
    /// Events in the logs.
    pub(crate) events: u64,
    /// Events neither delivered nor waiting.
    pub(crate) events_missing: u64,
    /// Events that wait in the outbox.
    pub(crate) events_pending: u64,
    /// Events in the sink, each once.
    pub(crate) events_delivered: u64,
    /// Deliveries beyond the first of their event.
    pub(crate) events_redelivered: u64,
    /// Acknowledged commands in the ledgers.
    pub(crate) acked: u64,
    /// Commands given up.
    pub(crate) unknown: u64,
    /// Commands given up that are in a log.
    pub(crate) unknown_committed: u64,
    /// Commands that were refused.
    pub(crate) refused: u64,
    /// Epochs that committed something.
    pub(crate) epochs: u64,
    /// Snapshots compared with the log.
    pub(crate) snapshots_checked: u64,
}

/// Counts and violations.
#[derive(Debug, Clone, Default)]
pub(crate) struct Findings {
    /// Counts so far.
    pub(crate) counts: Counts,
    violations: Vec<Violation>,
    violations_total: u64,
}

impl Findings {
    /// Counts a violation and names it, if it is among the first.
    pub(crate) fn violation(
        &mut self,
        kind: Kind,
        room: &RoomRef,
        seq: u64,
        detail: impl FnOnce() -> String,
    ) {
        self.violations_total += 1;
        if self.violations.len() < VIOLATIONS_NAMED {
            self.violations.push(Violation {
                promise: kind.promise(),
                kind,
                app: String::from_utf8_lossy(&room.app).into_owned(),
                room: String::from_utf8_lossy(&room.room).into_owned(),
                seq,
                detail: detail(),
            });
        }
    }

    /// The violations that are named.
    pub(crate) fn named(&self) -> &[Violation] {
        &self.violations
    }

    /// How many there are in all.
    pub(crate) fn total(&self) -> u64 {
        self.violations_total
    }
}
