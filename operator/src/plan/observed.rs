//! What the operator saw of one cluster in one reconcile.
//!
//! Facts only, each as old as this reconcile; what they mean is decided in the other modules of the plan. What
//! could not be seen is `None`, never a zero.

use k8s_openapi::jiff::Timestamp;

use crate::ids::{DrainEpoch, Incarnation, PodName, PodUid, Revision};
use crate::intent::DrainIntent;

/// One cluster as seen in one reconcile.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Every pod of the cluster that the API server still knows.
    pub pods: Vec<ObservedPod>,
    /// The revision that pods are to have. `None` until the first one has been accepted.
    pub target: Option<Revision>,
    /// The last revision that all pods had.
    pub current: Option<Revision>,
    /// A newer revision that may not be rolled yet, and why.
    pub pending: Option<PendingRevision>,
}

/// A revision that the user asks for and that the plan may not create pods of yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRevision {
    /// Its hash.
    pub revision: Revision,
    /// Why it waits.
    pub why: PendingReason,
}

/// Why a revision waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingReason {
    /// Kubernetes, or the operator, refuses the pod template.
    TemplateInvalid {
        /// The refusal, in the words of who refused.
        message: String,
    },
    /// The migration Job is not done.
    MigrationRunning {
        /// Its name.
        job: String,
        /// Why it does not get on, if Kubernetes says.
        trouble: Option<String>,
    },
    /// The migration Job gave up.
    MigrationFailed {
        /// Its name.
        job: String,
        /// What Kubernetes says about it.
        message: String,
    },
}

/// One pod as seen in one reconcile.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedPod {
    /// Its name, which is also the node id.
    pub name: PodName,
    /// Its UID.
    pub uid: PodUid,
    /// The version of the object that was read; a destructive step names it.
    pub resource_version: String,
    /// The revision it was built from.
    pub revision: Revision,
    /// When it was created.
    pub created_at: Timestamp,
    /// Since when it is being deleted.
    pub terminating_since: Option<Timestamp>,
    /// Whether all its containers have ended for good.
    pub finished: bool,
    /// The room container.
    pub container: RoomContainer,
    /// Why the pod does not run as it should, in the words of Kubernetes.
    pub trouble: Option<Trouble>,
    /// The pod's Ready condition.
    pub ready: Readiness,
    /// The readiness gate.
    pub gate: Gate,
    /// Whether an EndpointSlice still sends new traffic to it.
    pub in_endpoints: bool,
    /// The Kubernetes node under it.
    pub host: Host,
    /// The order that stands on it.
    pub intent: Option<DrainIntent>,
    /// What the node in it said, asked in this reconcile.
    pub report: Option<NodeReport>,
    /// What its metrics said, scraped in this reconcile after `report` was received.
    pub sample: Option<RoomSample>,
    /// What another pod found in the database about it.
    pub witness: Witness,
}

/// The room container's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomContainer {
    /// No process of it has ever started in this pod.
    NeverStarted,
    /// A process runs.
    Running {
        /// Whether an earlier process of this pod has ended.
        restarted: bool,
    },
    /// A process has run and none runs now.
    Down {
        /// Whether Kubernetes has begun to wait longer and longer before the next start.
        backing_off: bool,
    },
}

/// Why a pod does not run as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// One word, such as `ImagePullBackOff`.
    pub reason: String,
    /// The sentence that Kubernetes adds.
    pub message: String,
}

/// The Ready condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Whether it is True.
    pub is_ready: bool,
    /// Since when it is as it is.
    pub since: Option<Timestamp>,
}

/// The readiness gate's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Nobody has set it, which Kubernetes counts as False.
    Missing,
    /// Traffic may come.
    Open,
    /// No new traffic.
    Closed,
}

/// The Kubernetes node under a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// None yet.
    Unscheduled,
    /// One that takes pods, or one about which nothing is known.
    Usable,
    /// One that takes no new pods.
    Cordoned,
    /// One that has been silent for too long.
    Lost,
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The pod that it believes to be in.
    pub uid: PodUid,
    /// The start of its process.
    pub incarnation: Incarnation,
    /// The epoch of the order in force; zero before any.
    pub epoch: DrainEpoch,
    /// The order in force.
    pub order: Option<Order>,
    /// Whether it takes new rooms.
    pub accepting: bool,
    /// Rooms held.
    pub rooms: u64,
    /// The revision that it sends rooms to.
    pub target: Option<Revision>,
    /// Why rooms do not let go, and how many.
    pub blocked: Vec<BlockedRooms>,
}

/// Rooms that do not let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedRooms {
    /// `SnapshotFlush`, `LeaseRelease`, `Database` or `NoSuccessor`.
    pub reason: String,
    /// How many.
    pub rooms: u64,
}

/// An order to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Accept rooms.
    Serve,
    /// Let go of all rooms, take none.
    Evacuate,
}

/// The room count in a node's metrics, with what ties it to one order of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomSample {
    /// The pod that the process believes to be in.
    pub uid: PodUid,
    /// The order that was in force when it counted.
    pub epoch: DrainEpoch,
    /// The start of its process.
    pub incarnation: Incarnation,
    /// Rooms owned, loading or releasing.
    pub rooms: u64,
}

/// What the database says of one node's rooms, told by another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witness {
    /// Nothing depended on it in this reconcile.
    NotAsked,
    /// There is no other pod that runs.
    Nobody,
    /// Those that were asked did not answer, or answered as somebody else.
    Silent {
        /// The last one's error.
        message: String,
    },
    /// An answer.
    Answer(WitnessAnswer),
}

/// A witness's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessAnswer {
    /// Who answered: the pod itself only where the plan allows that.
    pub by: PodName,
    /// Rooms whose owner row names the node and is not released.
    pub unreleased: u64,
    /// Those whose lease is alive; `None` when the lease store did not say.
    pub leased: Option<u64>,
}

impl ObservedPod {
    /// Whether it is being deleted.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.terminating_since.is_some()
    }

    /// Whether it still counts towards replicas: it is not on its way out, and not on a lost host.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.is_terminating() && !self.finished && self.host != Host::Lost
    }

    /// Whether its node has been told to evacuate, as far as the pod's annotation says.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.intent.as_ref().is_some_and(DrainIntent::is_drain)
    }

    /// Whether a process of the room container runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.container, RoomContainer::Running { .. })
    }

    /// What the node said, unless somebody else answered at the pod's address.
    #[must_use]
    pub fn own_report(&self) -> Option<&NodeReport> {
        self.report.as_ref().filter(|report| report.uid == self.uid)
    }

    /// Rooms held, from whichever own source answered; for ordering and for people, not for safety.
    #[must_use]
    pub fn rooms_hint(&self) -> Option<u64> {
        let sampled = self.sample.as_ref().filter(|sample| sample.uid == self.uid).map(|sample| sample.rooms);
        sampled.or(self.own_report().map(|report| report.rooms))
    }

    /// The epoch of the order that is to be in force now: what stands on the pod, or what the node already has.
    #[must_use]
    pub fn wanted_epoch(&self) -> DrainEpoch {
        let reported = self.own_report().map_or(DrainEpoch::FIRST, |report| report.epoch);
        match &self.intent {
            Some(intent) => intent.epoch,
            None => reported.max(DrainEpoch::FIRST),
        }
    }

    /// An epoch above every one that this pod can have seen.
    #[must_use]
    pub fn next_epoch(&self) -> DrainEpoch {
        let reported = self.own_report().map_or(DrainEpoch::FIRST, |report| report.epoch);
        self.wanted_epoch().max(reported).next()
    }
}
