//! What waits for a room, and whether the room takes more. Synchronous.
//!
//! Invariants: at most one driver at a time; the resident state is either here or with the driver; a mailbox
//! that is leaving parks what comes, so that nothing overtakes what was there before; one that is gone takes
//! nothing.

use std::collections::VecDeque;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::resident::{PendingSnapshot, Resident};
use super::{Answer, CellError, Request};
use crate::logic::RoomLogic;
use crate::store::TakeExpectation;

/// A request with the way back to its caller.
pub(super) struct Envelope {
    pub(super) request: Request,
    pub(super) deadline: Instant,
    pub(super) reply: oneshot::Sender<Result<Answer, CellError>>,
}

impl Envelope {
    /// Answers; a caller that has gone does not matter.
    pub(super) fn answer(self, answer: Result<Answer, CellError>) {
        let _gone = self.reply.send(answer);
    }
}

/// What the room itself is asked, in its place among the requests.
pub(super) enum Control<L: RoomLogic> {
    /// The state to be written as a snapshot; `None` if nothing has changed since the last one.
    Snapshot(oneshot::Sender<Option<PendingSnapshot>>),
    /// Everything before this is done; hand over the resident state.
    Retire(oneshot::Sender<Option<Box<Resident<L>>>>),
}

/// One thing to do.
pub(super) enum Item<L: RoomLogic> {
    Request(Envelope),
    Control(Control<L>),
}

/// Whether the room takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Letting go: what comes is parked.
    Leaving,
    Gone,
}

/// What became of an offered request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Offer {
    Queued,
    /// Queued, and the caller must start the driver.
    StartDriver,
    Full,
    Gone,
}

/// What the driver does next.
pub(super) enum Work<L: RoomLogic> {
    Requests(Vec<Envelope>),
    Control(Control<L>),
    /// Nothing to do: the driver has ended.
    Rest,
}

pub(super) struct Mailbox<L: RoomLogic> {
    items: VecDeque<Item<L>>,
    parked: Vec<Envelope>,
    phase: Phase,
    driving: bool,
    resident: Option<Box<Resident<L>>>,
    expect: TakeExpectation,
}

impl<L: RoomLogic> Mailbox<L> {
    pub(super) fn new(expect: TakeExpectation) -> Self {
        Self {
            items: VecDeque::new(),
            parked: Vec::new(),
            phase: Phase::Serving,
            driving: false,
            resident: None,
            expect,
        }
    }

    /// What the owner row is expected to be when the room is taken for the first time.
    pub(super) fn expect(&self) -> TakeExpectation {
        self.expect
    }

    pub(super) fn offer(&mut self, envelope: Envelope, limit: usize) -> Offer {
        match self.phase {
            Phase::Gone => Offer::Gone,
            _ if self.items.len() + self.parked.len() >= limit => Offer::Full,
            Phase::Leaving => {
                self.parked.push(envelope);
                Offer::Queued
            }
            Phase::Serving => self.push(Item::Request(envelope)),
        }
    }

    /// Asks the room itself; only while it serves.
    pub(super) fn control(&mut self, control: Control<L>) -> Offer {
        match self.phase {
            Phase::Serving => self.push(Item::Control(control)),
            Phase::Leaving | Phase::Gone => Offer::Gone,
        }
    }

    /// Puts the last item into the mailbox: what comes after it is parked.
    pub(super) fn retire(&mut self, control: Control<L>) -> Offer {
        let offer = self.control(control);
        if self.phase == Phase::Serving {
            self.phase = Phase::Leaving;
        }
        offer
    }

    /// Takes up serving again with what was parked. True if the caller must start the driver.
    pub(super) fn reopen(&mut self, resident: Option<Box<Resident<L>>>) -> bool {
        if self.phase != Phase::Leaving {
            return false;
        }
        self.phase = Phase::Serving;
        self.resident = resident;
        self.items.extend(self.parked.drain(..).map(Item::Request));
        let start = !self.items.is_empty() && !self.driving;
        self.driving |= start;
        start
    }

    /// Ends the mailbox and gives back who waits.
    pub(super) fn end(&mut self) -> Vec<Envelope> {
        self.phase = Phase::Gone;
        self.resident = None;
        let queued = self.items.drain(..).filter_map(|item| match item {
            Item::Request(envelope) => Some(envelope),
            Item::Control(_) => None,
        });
        queued.chain(self.parked.drain(..)).collect()
    }

    /// The next work for the driver, which gives back the resident state when there is none.
    pub(super) fn next(&mut self, limit: usize, resident: &mut Option<Box<Resident<L>>>) -> Work<L> {
        if let Some(Item::Control(control)) = self.items.pop_front_if(|item| matches!(item, Item::Control(_)))
        {
            return Work::Control(control);
        }
        let requests = self.take_requests(limit);
        if requests.is_empty() {
            self.driving = false;
            if self.phase != Phase::Gone {
                self.resident = resident.take();
            }
            return Work::Rest;
        }
        Work::Requests(requests)
    }

    /// The resident state, for the driver that begins.
    pub(super) fn resident(&mut self) -> Option<Box<Resident<L>>> {
        self.resident.take()
    }

    /// Whether nothing waits and no driver runs; such a room may be unloaded.
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Serving && !self.driving && self.items.is_empty()
    }

    /// When the room was last used, while it is idle.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        if self.is_idle() { self.resident.as_ref().map(|resident| resident.used_at) } else { None }
    }

    fn take_requests(&mut self, limit: usize) -> Vec<Envelope> {
        let mut requests = Vec::new();
        while requests.len() < limit
            && let Some(Item::Request(envelope)) =
                self.items.pop_front_if(|item| matches!(item, Item::Request(_)))
        {
            requests.push(envelope);
        }
        requests
    }

    fn push(&mut self, item: Item<L>) -> Offer {
        self.items.push_back(item);
        if self.driving {
            return Offer::Queued;
        }
        self.driving = true;
        Offer::StartDriver
    }
}
