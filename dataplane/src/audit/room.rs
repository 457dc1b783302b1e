//! The checks of one room. Pure: rows come in, in order, and violations go out.
//!
//! Knows the room's logic only through its port. After a violation the check goes on with what it has, so that
//! one fault does not hide another.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::findings::{Findings, Kind};
use super::rows::{HeadRow, LogRow, OwnerRow, RoomRef, SnapshotRow};
use super::scratch::{AckRow, DeliveredRow};
use crate::logic::RoomLogic;
use crate::store::rows::decode_events;
use crate::types::{Hash32, hex};

/// State of an outbox row that was given up.
pub(crate) const STATE_FAILED: &[u8] = b"failed";
/// State of an outbox row that was delivered and has not left yet.
pub(crate) const STATE_DELIVERED: &[u8] = b"delivered";

/// What is known of the events of one command besides its log row.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// In the sink.
    pub(crate) delivered: Vec<DeliveredRow>,
    /// In the outbox: index and state.
    pub(crate) waiting: BTreeMap<u64, Vec<u8>>,
}

/// The check of one room's log.
pub(crate) struct RoomCheck<'a, L: RoomLogic> {
    logic: &'a L,
    room: RoomRef,
    sink_checked: bool,
    snapshot: Option<SnapshotRow>,
    last: Option<Last>,
    /// The epoch that each token stands for.
    tokens: HashMap<Vec<u8>, u64>,
    /// `None` behind a trimmed row, until a snapshot is reached.
    state: Option<L::State>,
    last_place: u64,
}

#[derive(Debug)]
struct Last {
    seq: u64,
    epoch: u64,
    token: Vec<u8>,
    owner: Vec<u8>,
}

impl<'a, L: RoomLogic> RoomCheck<'a, L> {
    /// A check of a room from its first row on.
    pub(crate) fn new(
        logic: &'a L,
        room: RoomRef,
        snapshot: Option<SnapshotRow>,
        sink_checked: bool,
    ) -> Self {
        Self {
            logic,
            room,
            sink_checked,
            snapshot,
            last: None,
            tokens: HashMap::new(),
            state: Some(logic.initial()),
            last_place: 0,
        }
    }

    /// Takes in the next log row with what is known of its events.
    pub(crate) fn row(&mut self, row: &LogRow, outgoing: &Outgoing, findings: &mut Findings) {
        findings.counts.commands += 1;
        self.check_order(row, findings);
        self.check_ownership(row, findings);
        match decode_events(row.events.clone()) {
            Ok(_) if row.events.is_empty() => {
                self.state = None;
                self.check_delivery_order(outgoing, findings);
            }
            Ok(events) => {
                self.replay(row, &events, findings);
                self.check_events(row, &events, outgoing, findings);
                self.check_delivery_order(outgoing, findings);
            }
            Err(error) => findings.violation(Kind::RowUnreadable, &self.room, row.seq, || error.to_string()),
        }
        self.check_snapshot(row.seq, findings);
        self.last =
            Some(Last { seq: row.seq, epoch: row.epoch, token: row.token.clone(), owner: row.owner.clone() });
    }

    /// Ends the room: compares with its head and its owner.
    pub(crate) fn end(self, head: Option<&HeadRow>, owner: Option<&OwnerRow>, findings: &mut Findings) {
        let room = &self.room;
        if let Some(snapshot) = &self.snapshot {
            let end = self.last.as_ref().map_or(0, |last| last.seq);
            findings.violation(Kind::SnapshotDiffers, room, snapshot.seq, || {
                format!("a snapshot at seq {} of a log that ends at {end}", snapshot.seq)
            });
        }
        match (head, &self.last) {
            (Some(head), Some(last)) => self.check_head(head, last, findings),
            (Some(head), None) => {
                findings.violation(Kind::HeadDiffers, room, head.seq, || "a head without a log".to_owned());
            }
            (None, Some(last)) => {
                findings.violation(Kind::HeadDiffers, room, last.seq, || "a log without a head".to_owned());
            }
            (None, None) => {}
        }
        if let Some(last) = &self.last {
            check_owner(room, owner, last, findings);
        }
    }

    fn check_order(&self, row: &LogRow, findings: &mut Findings) {
        let (last_seq, last_epoch) = self.last.as_ref().map_or((0, 0), |last| (last.seq, last.epoch));
        if row.seq == last_seq {
            findings.violation(Kind::SeqDoubled, &self.room, row.seq, || "two rows have this seq".to_owned());
        } else if row.seq != last_seq + 1 {
            findings.violation(Kind::Gap, &self.room, row.seq, || format!("it follows seq {last_seq}"));
        }
        if row.epoch < last_epoch {
            findings.violation(Kind::EpochFell, &self.room, row.seq, || {
                format!("epoch {} follows epoch {last_epoch}", row.epoch)
            });
        }
    }

    fn check_ownership(&mut self, row: &LogRow, findings: &mut Findings) {
        match &self.last {
            Some(last) if last.epoch == row.epoch => {
                if last.token != row.token {
                    findings.violation(Kind::EpochTwoTokens, &self.room, row.seq, || {
                        format!(
                            "epoch {} has the tokens {} and {}",
                            row.epoch,
                            hex(&last.token),
                            hex(&row.token)
                        )
                    });
                }
                if last.owner != row.owner {
                    findings.violation(Kind::EpochTwoOwners, &self.room, row.seq, || {
                        let name = |owner| String::from_utf8_lossy(owner).into_owned();
                        format!(
                            "epoch {} has the owners {} and {}",
                            row.epoch,
                            name(&last.owner),
                            name(&row.owner)
                        )
                    });
                }
            }
            _ => findings.counts.epochs += 1,
        }
        let epoch = *self.tokens.entry(row.token.clone()).or_insert(row.epoch);
        if epoch != row.epoch {
            findings.violation(Kind::TokenTwoEpochs, &self.room, row.seq, || {
                format!("token {} has the epochs {epoch} and {}", hex(&row.token), row.epoch)
            });
        }
    }

    fn replay(&mut self, row: &LogRow, events: &[Bytes], findings: &mut Findings) {
        let Some(state) = &mut self.state else { return };
        for event in events {
            match self.logic.decode_event(event) {
                Ok(event) => self.logic.evolve(state, &event),
                Err(error) => {
                    findings.violation(Kind::RowUnreadable, &self.room, row.seq, || error.to_string());
                }
            }
        }
    }

    fn check_snapshot(&mut self, seq: u64, findings: &mut Findings) {
        let Some(snapshot) = self.snapshot.take_if(|snapshot| snapshot.seq <= seq) else { return };
        findings.counts.snapshots_checked += 1;
        let format = u32::try_from(snapshot.format).unwrap_or(u32::MAX);
        let state = match self.logic.decode_snapshot(format, &snapshot.state) {
            Ok(state) => state,
            Err(error) => {
                return findings.violation(Kind::SnapshotDiffers, &self.room, seq, || error.to_string());
            }
        };
        if self.logic.state_hash(&state) != snapshot.state_hash {
            findings.violation(Kind::SnapshotDiffers, &self.room, seq, || {
                "its state does not have the hash that it names".to_owned()
            });
        }
        match &self.state {
            Some(replayed) => self.compare_hash("the snapshot", snapshot.state_hash, replayed, seq, findings),
            None => self.state = Some(state),
        }
    }

    fn compare_hash(&self, whose: &str, named: Hash32, state: &L::State, seq: u64, findings: &mut Findings) {
        let replayed = self.logic.state_hash(state);
        if replayed != named {
            findings.violation(Kind::StateHashDiffers, &self.room, seq, || {
                format!("{whose} names {}, the log leads to {}", hex(&named), hex(&replayed))
            });
        }
    }

    fn check_events(&mut self, row: &LogRow, events: &[Bytes], outgoing: &Outgoing, findings: &mut Findings) {
        findings.counts.events += events.len() as u64;
        for (index, event) in (0_u64..).zip(events) {
            let delivered = outgoing.delivered.iter().find(|delivered| delivered.index == index);
            if let Some(delivered) = delivered
                && delivered.hash != blake3::hash(event).as_bytes()
            {
                findings.violation(Kind::EventDiffers, &self.room, row.seq, || {
                    format!("event {index} was delivered with other bytes than the log has")
                });
            }
            match outgoing.waiting.get(&index).map(Vec::as_slice) {
                Some(STATE_DELIVERED) | None if delivered.is_some() || !self.sink_checked => {}
                Some(STATE_DELIVERED) | None => {
                    findings.counts.events_missing += 1;
                    findings.violation(Kind::EventMissing, &self.room, row.seq, || {
                        format!("event {index} is neither in the sink nor in the outbox")
                    });
                }
                Some(STATE_FAILED) => {
                    findings.counts.events_pending += 1;
                    findings.violation(Kind::EventFailed, &self.room, row.seq, || {
                        format!("the outbox gave event {index} up")
                    });
                }
                Some(state) => {
                    findings.counts.events_pending += 1;
                    findings.violation(Kind::EventPending, &self.room, row.seq, || {
                        format!("event {index} still waits in the outbox, {}", String::from_utf8_lossy(state))
                    });
                }
            }
        }
        let known = events.len() as u64;
        let beyond = outgoing
            .delivered
            .iter()
            .map(|delivered| delivered.index)
            .chain(outgoing.waiting.keys().copied());
        if let Some(index) = beyond.filter(|index| *index >= known).max() {
            findings.violation(Kind::EventUnexpected, &self.room, row.seq, || {
                format!("event {index} of a command with {known} events")
            });
        }
    }

    fn check_delivery_order(&mut self, outgoing: &Outgoing, findings: &mut Findings) {
        for delivered in &outgoing.delivered {
            if delivered.place < self.last_place {
                findings.violation(Kind::EventReordered, &self.room, delivered.seq, || {
                    format!("event {} was first delivered after one that follows it", delivered.index)
                });
            }
            self.last_place = self.last_place.max(delivered.place);
        }
    }

    fn check_head(&self, head: &HeadRow, last: &Last, findings: &mut Findings) {
        if head.seq != last.seq || head.epoch != last.epoch {
            findings.violation(Kind::HeadDiffers, &self.room, last.seq, || {
                format!(
                    "the head is at seq {}, epoch {}; the log ends at {}, epoch {}",
                    head.seq, head.epoch, last.seq, last.epoch
                )
            });
        }
        match &self.state {
            Some(state) => self.compare_hash("the head", head.state_hash, state, last.seq, findings),
            None => findings.violation(Kind::TrimmedWithoutSnapshot, &self.room, last.seq, || {
                "events were trimmed that no snapshot covers".to_owned()
            }),
        }
    }
}

fn check_owner(room: &RoomRef, owner: Option<&OwnerRow>, last: &Last, findings: &mut Findings) {
    let problem = match owner {
        None => "the room has no owner row".to_owned(),
        Some(owner) if owner.epoch < last.epoch => {
            format!("the owner row has epoch {}, the log ends under {}", owner.epoch, last.epoch)
        }
        Some(owner)
            if owner.epoch == last.epoch && (owner.token != last.token || owner.owner != last.owner) =>
        {
            format!("the owner row names another owner or token of epoch {}", owner.epoch)
        }
        Some(_) => return,
    };
    findings.violation(Kind::OwnerDiffers, room, last.seq, || problem);
}

/// Compares an acknowledgement with the row at its place.
pub(crate) fn check_ack(ack: &AckRow, row: &LogRow, findings: &mut Findings) {
    let id = || String::from_utf8_lossy(&ack.command_id).into_owned();
    if ack.hash != hex(&row.result_hash).as_bytes() {
        findings.violation(Kind::AckOtherResult, &ack.room, ack.seq, || {
            format!("command {} was acknowledged with another result than the log has", id())
        });
    }
    if ack.epoch != row.epoch {
        findings.violation(Kind::AckOtherEpoch, &ack.room, ack.seq, || {
            format!("command {} was acknowledged under epoch {}, the log has {}", id(), ack.epoch, row.epoch)
        });
    }
}
