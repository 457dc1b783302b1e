//! What one client of a room sends, and what it must be told.
//!
//! Pure. A lane is one client: it sends one command at a time and owns one seat and a few users of its room, so
//! that every command is valid whatever other lanes do. Its cycle hands the seat from user to user: join the next,
//! take the seat from the one who has it, give it to the next, let the former leave. After an answer that leaves
//! the lane unsure, all its users leave and the cycle begins anew.

use roomcluster_proto::rooms::v1 as pb;
use roomcluster_proto::rooms::v1::command_result::Kind;

/// Users of a lane: one on the seat, one on the way, one to have left.
const USERS: usize = 3;
/// Seats that a room can have; lanes beyond it only join and leave.
pub(crate) const MAX_SEATS: u32 = 64;

/// One command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// Makes the room.
    Create {
        /// Its seats.
        seats: u32,
    },
    /// Makes a user present.
    Join {
        /// Which of the lane's users.
        user: usize,
    },
    /// Takes the lane's seat.
    MicUp {
        /// For which of the lane's users.
        user: usize,
    },
    /// Frees the lane's seat.
    MicDown {
        /// The user who has it.
        user: usize,
    },
    /// Ends a presence.
    Leave {
        /// Which of the lane's users.
        user: usize,
    },
}

impl Op {
    /// The name in ledger and reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Join { .. } => "join",
            Self::MicUp { .. } => "mic_up",
            Self::MicDown { .. } => "mic_down",
            Self::Leave { .. } => "leave",
        }
    }
}

/// An answer that breaks what the API promises.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WrongAnswer {
    #[error("seq {got} after {last}: it must rise")]
    SeqNotAscending { last: u64, got: u64 },
    #[error("epoch {got} after {last}: it must not fall")]
    EpochFell { last: u64, got: u64 },
    #[error("owner epoch {got} after {last}: it must not fall")]
    OwnerEpochFell { last: u64, got: u64 },
    #[error("the answer names no owner")]
    NoOwner,
    #[error("{op} was answered with {got}")]
    OtherKind { op: &'static str, got: &'static str },
    #[error("seat {got} instead of {wanted}")]
    OtherSeat { wanted: u32, got: u32 },
    #[error("mic session {got:?} instead of {wanted:?}")]
    OtherSession { wanted: String, got: String },
    #[error("a user who had joined was not present")]
    NotPresent,
    #[error("a room with one more user has {0} users")]
    PresentUsers(u32),
    #[error("version {version} was read after seq {seq} was acknowledged")]
    ReadBehind { version: u64, seq: u64 },
    #[error("the read room lacks {0}")]
    ReadLacks(&'static str),
}

/// Where the cycle stands: the next command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Join,
    MicDown,
    MicUp,
    LeaveFormer,
    /// Makes sure that none of the lane's users is left; carries the next to leave.
    Reset(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mic {
    session: String,
    /// After it the service may free the seat by itself.
    publish_deadline_ms: i64,
}

/// The script of one lane.
#[derive(Debug)]
pub(crate) struct LaneScript {
    lane: u32,
    seat: Option<u32>,
    users: [String; USERS],
    step: Step,
    current: Option<usize>,
    next: usize,
    mic: Option<Mic>,
    last_seq: u64,
    last_epoch: u64,
    last_owner_epoch: u64,
}

impl LaneScript {
    /// A lane of a room. `fresh` says that nobody of this lane can be in the room.
    pub(crate) fn new(lane: u32, fresh: bool) -> Self {
        Self {
            lane,
            seat: (lane < MAX_SEATS).then_some(lane + 1),
            users: std::array::from_fn(|user| format!("user-{lane}-{user}")),
            step: if fresh { Step::Join } else { Step::Reset(0) },
            current: None,
            next: 0,
            mic: None,
            last_seq: 0,
            last_epoch: 0,
            last_owner_epoch: 0,
        }
    }

    /// The lane's number within its room.
    pub(crate) fn lane(&self) -> u32 {
        self.lane
    }

    /// The seat that the lane asks for.
    pub(crate) fn seat(&self) -> u32 {
        self.seat.unwrap_or_default()
    }

    /// The id of a user of this lane.
    pub(crate) fn user(&self, user: usize) -> &str {
        &self.users[user]
    }

    /// A user who is present, if any.
    pub(crate) fn present_user(&self) -> Option<&str> {
        match self.step {
            Step::Reset(_) => None,
            Step::Join | Step::MicDown | Step::MicUp | Step::LeaveFormer => {
                self.current.map(|user| self.users[user].as_str())
            }
        }
    }

    /// The next command. Asking again gives the same.
    pub(crate) fn next(&self) -> Op {
        match (self.step, self.current) {
            (Step::Join, _) => Op::Join { user: self.next },
            (Step::MicDown, Some(user)) => Op::MicDown { user },
            (Step::MicUp | Step::MicDown, _) => Op::MicUp { user: self.next },
            (Step::LeaveFormer, Some(user)) => Op::Leave { user },
            (Step::LeaveFormer, None) => Op::Join { user: self.next },
            (Step::Reset(user), _) => Op::Leave { user },
        }
    }

    /// Takes in an acknowledgement and goes on; after a wrong one the lane starts anew.
    pub(crate) fn acked(&mut self, op: Op, answer: &pb::CommandResponse) -> Result<(), WrongAnswer> {
        let verdict = self.check_order(answer).and_then(|()| self.check_result(op, answer));
        match &verdict {
            Ok(()) => self.advance(op),
            Err(_) => self.unsure(),
        }
        verdict
    }

    /// Takes in a refusal. True when it is in order: the seat was freed because nobody published in time.
    pub(crate) fn refused(&mut self, op: Op, now_ms: i64) -> bool {
        let timed_out = match op {
            Op::MicDown { .. } => self.mic_may_be_gone(now_ms),
            Op::Create { .. } | Op::Join { .. } | Op::MicUp { .. } | Op::Leave { .. } => false,
        };
        self.unsure();
        timed_out
    }

    /// The outcome of a command is not known, or was not as expected: all users leave first.
    pub(crate) fn unsure(&mut self) {
        self.step = Step::Reset(0);
        self.current = None;
        self.mic = None;
    }

    /// Checks a read of the room against what this lane was told.
    pub(crate) fn check_read(&self, room: Option<&pb::Room>, now_ms: i64) -> Result<(), WrongAnswer> {
        let room = room.ok_or(WrongAnswer::ReadLacks("everything"))?;
        if room.version < self.last_seq {
            return Err(WrongAnswer::ReadBehind { version: room.version, seq: self.last_seq });
        }
        if room.status() != pb::RoomStatus::Active {
            return Err(WrongAnswer::ReadLacks("an active status"));
        }
        let Some(user) = self.present_user() else { return Ok(()) };
        if !room.users.iter().any(|present| present.user_id == user) {
            return Err(WrongAnswer::ReadLacks("a user who had joined"));
        }
        let Some(mic) = self.mic.as_ref().filter(|_| !self.mic_may_be_gone(now_ms)) else { return Ok(()) };
        let held = room.seats.iter().any(|seat| {
            seat.seat_no == self.seat()
                && seat.mic_session_id == mic.session
                && seat.state() != pb::MicState::Idle
        });
        if held { Ok(()) } else { Err(WrongAnswer::ReadLacks("a seat that was taken")) }
    }

    fn mic_may_be_gone(&self, now_ms: i64) -> bool {
        self.mic.as_ref().is_some_and(|mic| mic.publish_deadline_ms > 0 && now_ms >= mic.publish_deadline_ms)
    }

    fn check_order(&mut self, answer: &pb::CommandResponse) -> Result<(), WrongAnswer> {
        let owner_epoch = answer.owner.as_ref().ok_or(WrongAnswer::NoOwner)?.epoch;
        let (seq, epoch) = (self.last_seq, self.last_epoch);
        if answer.seq <= seq {
            return Err(WrongAnswer::SeqNotAscending { last: seq, got: answer.seq });
        }
        if answer.epoch < epoch || answer.epoch == 0 {
            return Err(WrongAnswer::EpochFell { last: epoch, got: answer.epoch });
        }
        // Whoever answers now owns the room at least as late as the command committed.
        let last = self.last_owner_epoch.max(answer.epoch);
        if owner_epoch < last {
            return Err(WrongAnswer::OwnerEpochFell { last, got: owner_epoch });
        }
        (self.last_seq, self.last_epoch, self.last_owner_epoch) = (answer.seq, answer.epoch, owner_epoch);
        Ok(())
    }

    fn check_result(&mut self, op: Op, answer: &pb::CommandResponse) -> Result<(), WrongAnswer> {
        let kind = answer.result.as_ref().and_then(|result| result.kind.as_ref());
        match (op, kind) {
            (Op::Create { seats }, Some(Kind::Created(created))) => check_seat(seats, created.seat_count),
            (Op::Join { .. }, Some(Kind::Joined(joined))) => {
                if joined.present_users == 0 {
                    return Err(WrongAnswer::PresentUsers(0));
                }
                Ok(())
            }
            (Op::MicUp { .. }, Some(Kind::MicUp(up))) => {
                check_seat(self.seat(), up.seat_no)?;
                self.mic = Some(Mic {
                    session: up.mic_session_id.clone(),
                    publish_deadline_ms: up.publish_deadline_ms,
                });
                Ok(())
            }
            (Op::MicDown { .. }, Some(Kind::MicDown(down))) => {
                check_seat(self.seat(), down.seat_no)?;
                let wanted = self.mic.take().map(|mic| mic.session).unwrap_or_default();
                if wanted == down.mic_session_id {
                    return Ok(());
                }
                Err(WrongAnswer::OtherSession { wanted, got: down.mic_session_id.clone() })
            }
            (Op::Leave { .. }, Some(Kind::Left(left))) => match self.step {
                Step::Reset(_) => Ok(()),
                Step::Join | Step::MicDown | Step::MicUp | Step::LeaveFormer if left.was_present => Ok(()),
                Step::Join | Step::MicDown | Step::MicUp | Step::LeaveFormer => Err(WrongAnswer::NotPresent),
            },
            (_, got) => Err(WrongAnswer::OtherKind { op: op.name(), got: kind_name(got) }),
        }
    }

    fn advance(&mut self, op: Op) {
        self.step = match (op, self.step) {
            (Op::Create { .. }, step) => step,
            (_, Step::Reset(user)) if user + 1 < USERS => Step::Reset(user + 1),
            (_, Step::Reset(_)) => Step::Join,
            (_, Step::Join) => match (self.seat, self.current) {
                (Some(_), Some(_)) => Step::MicDown,
                (Some(_), None) => Step::MicUp,
                (None, _) => self.hand_on(),
            },
            (_, Step::MicDown) => Step::MicUp,
            (_, Step::MicUp) => self.hand_on(),
            (_, Step::LeaveFormer) => {
                self.current = Some(self.next);
                self.next = (self.next + 1) % USERS;
                Step::Join
            }
        };
    }

    /// The next user is in place: the former leaves, if there is one.
    fn hand_on(&mut self) -> Step {
        if self.current.is_some() {
            return Step::LeaveFormer;
        }
        self.current = Some(self.next);
        self.next = (self.next + 1) % USERS;
        Step::Join
    }
}

fn check_seat(wanted: u32, got: u32) -> Result<(), WrongAnswer> {
    if wanted == got { Ok(()) } else { Err(WrongAnswer::OtherSeat { wanted, got }) }
}

fn kind_name(kind: Option<&Kind>) -> &'static str {
    match kind {
        Some(Kind::Created(_)) => "created",
        Some(Kind::Joined(_)) => "joined",
        Some(Kind::Left(_)) => "left",
        Some(Kind::MicUp(_)) => "mic_up",
        Some(Kind::MicDown(_)) => "mic_down",
        Some(Kind::Closed(_)) => "closed",
        None => "nothing",
    }
}

#[cfg(test)]
mod tests;
