//! The model: pods that start, serve, hand rooms over, crash and end, as Kubernetes and the nodes would do it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

use super::super::fixture::{NOW_SECS, rev};
use super::super::{
    Gate, Host, NodeReport, Observed, ObservedPod, Order, Policy, Readiness, RoomContainer, RoomSample,
    Standing, Step, Trouble, UpgradeMode, Witness, WitnessAnswer, plan, standing,
};
use crate::ids::{DrainEpoch, Incarnation, PodName, PodUid, Revision};
use crate::intent::DrainIntent;

const START_SECS: i64 = 3;
const END_SECS: i64 = 4;
const RESTART_SECS: i64 = 10;
const ROOMS_MOVED_EACH_SEC: usize = 5;
const HOSTS: usize = 3;

/// How pods of a template come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Image {
    Good,
    Unpullable,
    Crashing,
}

#[derive(Clone, Debug)]
struct Pod {
    name: String,
    revision: Revision,
    image: Image,
    host: usize,
    created_at: i64,
    /// When its process starts; later after a crash.
    starts_at: i64,
    has_run: bool,
    starts: u32,
    ends_at: Option<i64>,
    gate: Gate,
    ready_since: Option<i64>,
    intent: Option<DrainIntent>,
    epoch: u64,
    order: Option<Order>,
    target: Option<Revision>,
    rooms: BTreeSet<u32>,
    is_cut_off: bool,
}

/// A cluster and what happens around it.
#[derive(Clone, Debug)]
pub(super) struct World {
    policy: Policy,
    template: Revision,
    image: Image,
    current: Option<Revision>,
    pods: Vec<Pod>,
    now: i64,
    named: u32,
    cordoned: Option<usize>,
    store_answers: bool,
    /// Rooms that no pod holds, as after a crash.
    unowned: BTreeSet<u32>,
    moves: BTreeMap<u32, u32>,
    most_pods: u32,
    most_draining: u32,
    most_moving: usize,
}

impl Pod {
    fn is_terminating(&self) -> bool {
        self.ends_at.is_some()
    }

    fn runs(&self, now: i64) -> bool {
        self.image == Image::Good && now >= self.starts_at
    }

    fn accepts(&self, now: i64) -> bool {
        self.runs(now) && !self.is_terminating() && self.order == Some(Order::Serve)
    }
}

impl World {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            template: rev("v1"),
            image: Image::Good,
            current: None,
            pods: Vec::new(),
            now: NOW_SECS,
            named: 0,
            cordoned: None,
            store_answers: true,
            unowned: BTreeSet::new(),
            moves: BTreeMap::new(),
            most_pods: 0,
            most_draining: 0,
            most_moving: 0,
        }
    }

    pub(super) fn set_template(&mut self, revision: &str, image: Image) {
        self.template = rev(revision);
        // A revision that has been good before stays good: the same template makes the same pod.
        let known = self.pods.iter().find(|pod| pod.revision == self.template).map(|pod| pod.image);
        self.image = known.unwrap_or(image);
    }

    pub(super) fn scale(&mut self, replicas: u32) {
        self.policy.replicas = replicas;
    }

    pub(super) fn set_mode(&mut self, mode: UpgradeMode) {
        self.policy.upgrade = mode;
    }

    pub(super) fn set_store(&mut self, answers: bool) {
        self.store_answers = answers;
    }

    pub(super) fn cordon(&mut self, host: usize) {
        self.cordoned = Some(host);
    }

    pub(super) fn uncordon(&mut self) {
        self.cordoned = None;
    }

    pub(super) fn crash(&mut self, nth: usize) {
        let now = self.now;
        let Some(pod) = self.pods.get_mut(nth).filter(|pod| pod.runs(now)) else { return };
        pod.starts_at = now + RESTART_SECS;
        (pod.epoch, pod.order, pod.ready_since) = (0, None, None);
        self.unowned.append(&mut pod.rooms);
    }

    /// As `kubectl delete pod`: the node drains by itself.
    pub(super) fn delete(&mut self, nth: usize) {
        let now = self.now;
        if let Some(pod) = self.pods.get_mut(nth) {
            pod.ends_at.get_or_insert(now + END_SECS);
            self.unowned.append(&mut pod.rooms);
        }
    }

    pub(super) fn cut_off(&mut self, nth: usize) {
        if let Some(pod) = self.pods.get_mut(nth) {
            pod.is_cut_off = true;
        }
    }

    /// Ends all disturbances except those of the template.
    pub(super) fn calm_down(&mut self) {
        self.cordoned = None;
        self.store_answers = true;
        self.policy.upgrade = UpgradeMode::Rolling;
        self.pods.iter_mut().for_each(|pod| pod.is_cut_off = false);
    }

    pub(super) fn open_rooms(&mut self, per_pod: u32) {
        let mut next = 0;
        for pod in &mut self.pods {
            pod.rooms.extend(next..next + per_pod);
            next += per_pod;
        }
    }

    pub(super) fn run_secs(&mut self, secs: u32) {
        for _ in 0..secs {
            self.second();
        }
    }

    pub(super) fn run_until_settled(&mut self, max_secs: u32) {
        for _ in 0..max_secs {
            self.second();
            if self.is_settled() {
                return;
            }
        }
        panic!(
            "the cluster has not come to rest: {self:#?}\n{:#?}",
            plan(&self.observe(), &self.policy, self.time())
        );
    }

    pub(super) fn max_moves(&self) -> u32 {
        self.moves.values().copied().max().unwrap_or(0)
    }

    pub(super) fn all_rooms_on(&self, revision: &str) -> bool {
        let revision = rev(revision);
        self.unowned.is_empty()
            && self.pods.iter().all(|pod| pod.revision == revision || pod.rooms.is_empty())
    }

    pub(super) fn most_pods(&self) -> u32 {
        self.most_pods
    }

    pub(super) fn most_draining(&self) -> u32 {
        self.most_draining
    }

    pub(super) fn live(&self) -> u32 {
        count(self.pods.iter().filter(|pod| !pod.is_terminating()))
    }

    pub(super) fn available(&self) -> u32 {
        let (observed, now) = (self.observe(), self.time());
        count(observed.pods.iter().filter(|pod| standing(pod, &self.policy, now) == Standing::Available))
    }

    pub(super) fn most_moving(&self) -> usize {
        self.most_moving
    }

    fn is_settled(&self) -> bool {
        let wanted = self.policy.replicas;
        let whole = count(self.pods.iter()) == wanted && self.available() == wanted;
        whole
            && self.pods.iter().all(|pod| pod.revision == self.template)
            && (wanted == 0 || self.unowned.is_empty())
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_second(self.now).unwrap()
    }

    fn second(&mut self) {
        let observed = self.observe();
        let plan = plan(&observed, &self.policy, self.time());
        assert!(plan.steps.iter().filter(|step| step.is_destructive()).count() <= 1, "{plan:?}");
        for step in plan.steps {
            self.take(step, &observed);
        }
        self.now += 1;
        self.live_on();
        if self.is_settled() {
            self.current = Some(self.template.clone());
        }
        let draining =
            self.pods.iter().filter(|pod| !pod.rooms.is_empty() && pod.order == Some(Order::Evacuate));
        self.most_moving = self.most_moving.max(draining.clone().map(|pod| pod.rooms.len()).sum());
        self.most_draining = self.most_draining.max(count(draining));
        self.most_pods = self.most_pods.max(self.live());
    }

    fn take(&mut self, step: Step, observed: &Observed) {
        let now = self.now;
        match step {
            Step::CreatePod { revision } => self.create(revision),
            Step::BeginDrain { pod, intent, .. } => {
                let before = self.available();
                let seen = observed.pods.iter().find(|seen| seen.uid == pod.uid).unwrap();
                let was_available = standing(seen, &self.policy, self.time()) == Standing::Available;
                let target = self.pod(&pod.name);
                (target.intent, target.gate, target.ready_since) = (Some(intent), Gate::Closed, None);
                let allowed = self.policy.min_available();
                assert!(!was_available || before > allowed, "{before} available, {allowed} required");
            }
            Step::AmendDrain { pod, intent } | Step::WithdrawDrain { pod, intent } => {
                self.pod(&pod.name).intent = Some(intent);
            }
            Step::SetOrder { pod, order } => {
                let target = self.pod(&pod.name);
                assert!(order.epoch.get() >= target.epoch, "an epoch fell");
                if target.runs(now) && !target.is_cut_off {
                    (target.epoch, target.order) = (order.epoch.get(), Some(order.order));
                    target.target = order.target;
                }
            }
            Step::SetGate { pod, open } => {
                self.pod(&pod.name).gate = if open { Gate::Open } else { Gate::Closed };
            }
            Step::EndPod { pod, .. } => {
                let target = self.pod(&pod.name);
                assert!(target.rooms.is_empty(), "a room was cut: {target:?}");
                target.ends_at = Some(now + END_SECS);
            }
        }
    }

    fn create(&mut self, revision: Revision) {
        self.named += 1;
        let hosts = (0..HOSTS).cycle().skip(self.named as usize).take(HOSTS);
        let host = hosts.into_iter().find(|host| Some(*host) != self.cordoned).unwrap();
        let image = match self.pods.iter().find(|pod| pod.revision == revision) {
            Some(pod) => pod.image,
            None if revision == self.template => self.image,
            None => Image::Good,
        };
        self.pods.push(Pod {
            name: format!("p{}", self.named),
            revision,
            image,
            host,
            created_at: self.now,
            starts_at: self.now + START_SECS,
            has_run: false,
            starts: 0,
            ends_at: None,
            gate: Gate::Missing,
            ready_since: None,
            intent: None,
            epoch: 0,
            order: None,
            target: None,
            rooms: BTreeSet::new(),
            is_cut_off: false,
        });
        let live = self.live();
        assert!(live <= self.policy.max_pods(), "{live} pods exist");
    }

    /// One second of everybody else's work.
    fn live_on(&mut self) {
        let now = self.now;
        self.pods.retain(|pod| pod.ends_at.is_none_or(|ends_at| now < ends_at));
        for pod in &mut self.pods {
            if pod.image == Image::Crashing && now >= pod.starts_at {
                pod.has_run = true;
                pod.starts += 1;
                pod.starts_at = now + RESTART_SECS;
            }
            if pod.runs(now) {
                pod.starts += u32::from(!pod.has_run || pod.starts_at == now);
                pod.has_run = true;
            }
            let ready = pod.accepts(now) && pod.gate == Gate::Open;
            pod.ready_since = if ready { pod.ready_since.or(Some(now)) } else { None };
        }
        self.hand_over();
    }

    /// Evacuating nodes pass rooms to the target's nodes; unowned rooms are taken up by anybody who accepts.
    /// Without a successor a room is let go.
    fn hand_over(&mut self) {
        let now = self.now;
        let mut loose: Vec<(u32, bool)> = Vec::new();
        for pod in &mut self.pods {
            if pod.runs(now) && pod.order == Some(Order::Evacuate) && !pod.is_terminating() {
                for _ in 0..ROOMS_MOVED_EACH_SEC {
                    loose.extend(pod.rooms.pop_first().map(|room| (room, true)));
                }
            }
        }
        loose.extend(std::mem::take(&mut self.unowned).into_iter().map(|room| (room, false)));
        for (room, is_moved) in loose {
            let template = &self.template;
            let accepting = self.pods.iter_mut().filter(|pod| pod.accepts(now));
            let successor = accepting.min_by_key(|pod| (pod.revision != *template, pod.rooms.len()));
            match successor {
                Some(pod) => {
                    pod.rooms.insert(room);
                    *self.moves.entry(room).or_default() += u32::from(is_moved);
                }
                None => {
                    self.unowned.insert(room);
                }
            }
        }
    }

    fn observe(&self) -> Observed {
        let pods = self.pods.iter().map(|pod| self.observe_pod(pod)).collect();
        Observed { pods, target: Some(self.template.clone()), current: self.current.clone(), pending: None }
    }

    fn observe_pod(&self, pod: &Pod) -> ObservedPod {
        let now = self.now;
        let uid = PodUid::new(format!("uid-{}", pod.name));
        let incarnation = Incarnation::new(format!("{}-{}", pod.name, pod.starts));
        let rooms = pod.rooms.len() as u64;
        let answers = pod.runs(now) && !pod.is_cut_off;
        let at = |secs| Timestamp::from_second(secs).unwrap();
        ObservedPod {
            name: PodName::new(pod.name.clone()),
            resource_version: String::new(),
            revision: pod.revision.clone(),
            created_at: at(pod.created_at),
            terminating_since: pod.ends_at.map(|ends_at| at(ends_at - END_SECS)),
            finished: false,
            container: match (pod.runs(now), pod.has_run) {
                (true, _) => RoomContainer::Running { restarted: pod.starts > 1 },
                (false, true) => RoomContainer::Down { backing_off: pod.image == Image::Crashing },
                (false, false) => RoomContainer::NeverStarted,
            },
            trouble: (pod.image != Image::Good)
                .then(|| Trouble { reason: format!("{:?}", pod.image), message: String::new() }),
            ready: Readiness { is_ready: pod.ready_since.is_some(), since: pod.ready_since.map(at) },
            gate: pod.gate,
            in_endpoints: pod.ready_since.is_some(),
            host: if self.cordoned == Some(pod.host) { Host::Cordoned } else { Host::Usable },
            intent: pod.intent.clone(),
            report: answers.then(|| NodeReport {
                uid: uid.clone(),
                incarnation: incarnation.clone(),
                epoch: DrainEpoch::new(pod.epoch),
                order: pod.order,
                accepting: pod.accepts(now),
                rooms,
                target: pod.target.clone(),
                blocked: Vec::new(),
            }),
            sample: answers.then(|| RoomSample {
                uid: uid.clone(),
                epoch: DrainEpoch::new(pod.epoch),
                incarnation,
                rooms,
            }),
            witness: self.witness(pod),
            uid,
        }
    }

    fn witness(&self, about: &Pod) -> Witness {
        let runs = |pod: &&Pod| pod.runs(self.now) && !pod.is_terminating() && !pod.is_cut_off;
        let other = self.pods.iter().filter(runs).find(|pod| pod.name != about.name);
        let itself = || Some(about).filter(runs);
        match (other.or_else(itself), self.store_answers) {
            (None, _) => Witness::Nobody,
            (Some(_), false) => Witness::Silent { message: "database is away".to_owned() },
            (Some(pod), true) => Witness::Answer(WitnessAnswer {
                by: PodName::new(pod.name.clone()),
                unreleased: about.rooms.len() as u64,
                leased: Some(about.rooms.len() as u64),
            }),
        }
    }

    fn pod(&mut self, name: &PodName) -> &mut Pod {
        self.pods
            .iter_mut()
            .find(|pod| pod.name == name.as_str())
            .expect("the plan names pods that were seen")
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap()
}
