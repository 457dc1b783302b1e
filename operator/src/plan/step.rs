//! What a plan consists of: steps to take, and named reasons for what is not done.

use std::fmt;
use std::time::Duration;

use crate::ids::{DrainEpoch, PodName, PodUid, Revision};
use crate::intent::DrainIntent;

use super::observed::{ObservedPod, Order};

/// What is to be done now, what is not and why, and when to look again.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// In this order. At most one of them is destructive.
    pub steps: Vec<Step>,
    /// What would be done if something else were different.
    pub blocked: Vec<Blocked>,
    /// When to look again, even if nothing is seen to change.
    pub requeue_after: Duration,
}

/// One thing to do. Every one may be repeated.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create a pod.
    CreatePod {
        /// Of this revision.
        revision: Revision,
    },
    /// Write a drain order on the pod, close its gate, and call its node. Destructive.
    BeginDrain {
        /// The pod.
        pod: PodRef,
        /// What to write.
        intent: DrainIntent,
        /// What to tell its node.
        order: NodeOrder,
    },
    /// Correct the reasons that stand on a draining pod; the order stays.
    AmendDrain {
        /// The pod.
        pod: PodRef,
        /// What to write.
        intent: DrainIntent,
    },
    /// Take a drain back: a higher epoch without reasons.
    WithdrawDrain {
        /// The pod.
        pod: PodRef,
        /// What to write.
        intent: DrainIntent,
    },
    /// Tell the node its order.
    SetOrder {
        /// The pod.
        pod: PodRef,
        /// The order.
        order: NodeOrder,
    },
    /// Write the readiness gate.
    SetGate {
        /// The pod.
        pod: PodRef,
        /// Whether traffic may come.
        open: bool,
    },
    /// Delete the pod. Destructive.
    EndPod {
        /// The pod.
        pod: PodRef,
        /// Why it may be ended.
        grounds: Grounds,
    },
}

/// A pod as it was seen: a step that no longer meets this very object fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    /// Its name.
    pub name: PodName,
    /// Its UID.
    pub uid: PodUid,
    /// The version that was seen.
    pub resource_version: String,
}

/// What a node is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeOrder {
    /// Number of the order.
    pub epoch: DrainEpoch,
    /// What to do.
    pub order: Order,
    /// The revision that rooms are to land on.
    pub target: Option<Revision>,
    /// Orders the targets.
    pub target_generation: i64,
}

/// Why a pod may be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grounds {
    /// Its own count is zero, and so is the witness's.
    Empty,
    /// No process of it has ever run.
    NeverRan,
    /// None runs now, and the witness found nothing that is still held.
    NotRunning,
    /// It is the only pod that there can be, and holds nothing by its own count and by the database.
    OnlyPod,
    /// It is the last pod, scaled to zero: nobody is left who could take the rooms, its own end releases them.
    NoSuccessor {
        /// Rooms it held.
        rooms: u64,
    },
    /// The drain's time-out has passed and the policy says so.
    TimedOut {
        /// Rooms it held, if that was known.
        rooms: Option<u64>,
    },
}

impl Step {
    /// Whether it takes something away from somebody.
    #[must_use]
    pub fn is_destructive(&self) -> bool {
        match self {
            Self::BeginDrain { .. } | Self::EndPod { .. } => true,
            Self::CreatePod { .. }
            | Self::AmendDrain { .. }
            | Self::WithdrawDrain { .. }
            | Self::SetOrder { .. }
            | Self::SetGate { .. } => false,
        }
    }
}

/// Something that is not done, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The pod that it concerns; none when it concerns the whole cluster.
    pub pod: Option<PodName>,
    /// Why.
    pub reason: BlockedReason,
}

/// Why something is not done now. The names reach status, events, log and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockedReason {
    /// The roll is paused.
    Paused,
    /// The policy does not drain for this reason.
    NotAnswered {
        /// The reason.
        reason: &'static str,
    },
    /// No pod of the target revision is available yet.
    TargetNotAvailable {
        /// What is wrong with it, if Kubernetes says.
        trouble: Option<String>,
    },
    /// A newer revision is about to become the target.
    NewerRevisionPending,
    /// The pod template is refused.
    TemplateInvalid {
        /// In the words of who refused.
        message: String,
    },
    /// The migration is not done.
    MigrationRunning {
        /// The Job.
        job: String,
        /// Why it does not get on, if Kubernetes says.
        trouble: Option<String>,
    },
    /// The migration has failed.
    MigrationFailed {
        /// The Job.
        job: String,
        /// What Kubernetes says.
        message: String,
    },
    /// One pod less would be too few.
    TooFewAvailable {
        /// Pods that are available.
        available: u32,
        /// Pods that must stay so.
        required: u32,
    },
    /// Too many rooms are on the move.
    RoomBudget {
        /// Rooms on the move.
        moving: u64,
        /// The limit.
        limit: u64,
    },
    /// A pod that cannot be drained without knowing how many rooms would move.
    RoomsUnknown,
    /// Another destructive step comes first.
    OneStepAtATime,
    /// The node did not answer, or its metrics did not.
    RoomCountUnknown,
    /// The node has not got the order yet, or another process has started since.
    OrderNotConfirmed,
    /// The pod still holds rooms.
    HoldsRooms {
        /// How many.
        rooms: u64,
        /// What the node says keeps them.
        held_by: Option<String>,
    },
    /// The pod still gets traffic.
    StillReady,
    /// Nobody could say what the database holds.
    WitnessSilent {
        /// The last error.
        message: String,
    },
    /// No other pod runs that could be asked.
    NoWitness,
    /// The pod says zero and the database does not.
    LeaseViewDiffers {
        /// Rooms that the database names.
        unreleased: u64,
    },
    /// Rooms of a process that has ended are still leased.
    LeasesAlive {
        /// How many; none when the lease store did not say.
        leased: Option<u64>,
    },
}

impl BlockedReason {
    /// A constant name: a label of metrics, a reason of events.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Paused => "Paused",
            Self::NotAnswered { .. } => "NotAnswered",
            Self::TargetNotAvailable { .. } => "TargetNotAvailable",
            Self::NewerRevisionPending => "NewerRevisionPending",
            Self::TemplateInvalid { .. } => "TemplateInvalid",
            Self::MigrationRunning { .. } => "MigrationRunning",
            Self::MigrationFailed { .. } => "MigrationFailed",
            Self::TooFewAvailable { .. } => "TooFewAvailable",
            Self::RoomBudget { .. } => "RoomBudget",
            Self::RoomsUnknown => "RoomsUnknown",
            Self::OneStepAtATime => "OneStepAtATime",
            Self::RoomCountUnknown => "RoomCountUnknown",
            Self::OrderNotConfirmed => "OrderNotConfirmed",
            Self::HoldsRooms { .. } => "HoldsRooms",
            Self::StillReady => "StillReady",
            Self::WitnessSilent { .. } => "WitnessSilent",
            Self::NoWitness => "NoWitness",
            Self::LeaseViewDiffers { .. } => "LeaseViewDiffers",
            Self::LeasesAlive { .. } => "LeasesAlive",
        }
    }

    /// The nearest name for what is in the way: the node's own word where it gave one, else [`Self::name`].
    #[must_use]
    pub fn cause(&self) -> &str {
        match self {
            // The node's word is a list of reasons with counts, the weightiest first.
            Self::HoldsRooms { held_by: Some(why), .. } => why.split(':').next().unwrap_or(why),
            other => other.name(),
        }
    }

    /// Whether it holds for every pod whose turn has not come, so that saying it of one says it of all.
    #[must_use]
    pub const fn is_of_the_whole_roll(&self) -> bool {
        match self {
            Self::Paused
            | Self::NotAnswered { .. }
            | Self::TargetNotAvailable { .. }
            | Self::NewerRevisionPending
            | Self::TemplateInvalid { .. }
            | Self::MigrationRunning { .. }
            | Self::MigrationFailed { .. }
            | Self::TooFewAvailable { .. }
            | Self::RoomBudget { .. }
            | Self::RoomsUnknown
            | Self::OneStepAtATime => true,
            Self::RoomCountUnknown
            | Self::OrderNotConfirmed
            | Self::HoldsRooms { .. }
            | Self::StillReady
            | Self::WitnessSilent { .. }
            | Self::NoWitness
            | Self::LeaseViewDiffers { .. }
            | Self::LeasesAlive { .. } => false,
        }
    }

    /// Whether it passes by itself as things go on; otherwise a person should look.
    #[must_use]
    pub const fn is_legitimate_wait(&self) -> bool {
        match self {
            Self::TargetNotAvailable { trouble: Some(_) }
            | Self::TemplateInvalid { .. }
            | Self::MigrationFailed { .. }
            | Self::MigrationRunning { trouble: Some(_), .. }
            | Self::LeaseViewDiffers { .. }
            | Self::NotAnswered { .. } => false,
            Self::TargetNotAvailable { trouble: None }
            | Self::Paused
            | Self::NewerRevisionPending
            | Self::MigrationRunning { trouble: None, .. }
            | Self::TooFewAvailable { .. }
            | Self::RoomBudget { .. }
            | Self::RoomsUnknown
            | Self::OneStepAtATime
            | Self::RoomCountUnknown
            | Self::OrderNotConfirmed
            | Self::HoldsRooms { .. }
            | Self::StillReady
            | Self::WitnessSilent { .. }
            | Self::NoWitness
            | Self::LeasesAlive { .. } => true,
        }
    }
}

impl fmt::Display for BlockedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused => f.write_str("the cluster is paused"),
            Self::NotAnswered { reason } => write!(f, "spec.drain.respond does not name {reason}"),
            Self::TargetNotAvailable { trouble: Some(trouble) } => {
                write!(f, "no pod of the target revision is available: {trouble}")
            }
            Self::TargetNotAvailable { trouble: None } => {
                f.write_str("no pod of the target revision is available yet")
            }
            Self::NewerRevisionPending => f.write_str("a newer revision is about to become the target"),
            Self::TemplateInvalid { message } => write!(f, "the pod template is refused: {message}"),
            Self::MigrationRunning { job, trouble: None } => write!(f, "migration Job {job} is not done"),
            Self::MigrationRunning { job, trouble: Some(trouble) } => {
                write!(f, "migration Job {job} is not done: {trouble}")
            }
            Self::MigrationFailed { job, message } => {
                write!(f, "migration Job {job} failed: {message}; delete the Job to run it again")
            }
            Self::TooFewAvailable { available, required } => {
                write!(f, "{available} pods are available and {required} must stay so")
            }
            Self::RoomBudget { moving, limit } => {
                write!(f, "{moving} rooms are on the move and {limit} may be")
            }
            Self::RoomsUnknown => f.write_str("its room count is unknown and another pod drains"),
            Self::OneStepAtATime => f.write_str("another pod comes first"),
            Self::RoomCountUnknown => f.write_str("its room count is unknown"),
            Self::OrderNotConfirmed => f.write_str("its node has not confirmed the drain order"),
            Self::HoldsRooms { rooms, held_by: Some(why) } => write!(f, "it holds {rooms} rooms ({why})"),
            Self::HoldsRooms { rooms, held_by: None } => write!(f, "it holds {rooms} rooms"),
            Self::StillReady => f.write_str("it still gets traffic"),
            Self::WitnessSilent { message } => {
                write!(f, "no other pod could say what the database holds: {message}")
            }
            Self::NoWitness => f.write_str("no other pod runs that could be asked what the database holds"),
            Self::LeaseViewDiffers { unreleased } => {
                write!(f, "it says that it holds no room and the database names {unreleased}")
            }
            Self::LeasesAlive { leased: Some(leased) } => {
                write!(f, "{leased} rooms of its ended process are still leased")
            }
            Self::LeasesAlive { leased: None } => {
                f.write_str("whether rooms of its ended process are still leased is unknown")
            }
        }
    }
}

impl Blocked {
    /// Something about the whole cluster.
    #[must_use]
    pub fn cluster(reason: BlockedReason) -> Self {
        Self { pod: None, reason }
    }

    /// Something about one pod.
    #[must_use]
    pub fn pod(pod: &ObservedPod, reason: BlockedReason) -> Self {
        Self { pod: Some(pod.name.clone()), reason }
    }
}

impl From<&ObservedPod> for PodRef {
    fn from(pod: &ObservedPod) -> Self {
        Self { name: pod.name.clone(), uid: pod.uid.clone(), resource_version: pod.resource_version.clone() }
    }
}
