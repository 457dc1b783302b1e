//! The lanes at work: one task each, which sends what its script says when its pace says.
//!
//! A lane has one command under way at most. In an open loop it sends a command up to a millisecond before the
//! intended time rather than after it, as timers have no finer step; latency counts from the send then.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use prost::Message;
use roomcluster_proto::rooms::v1 as pb;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::client::{Address, Client, Course, Outcome, Sent, describe};
use super::clock::RunClock;
use super::ledger::{Acked, LedgerEntry, LedgerSender, Unsettled};
use super::schedule::{self, Schedule};
use super::script::{LaneScript, Op};
use super::stats::{AckSeen, Stats};
use crate::types::hex;

/// Creates under way at once: more would only queue in the service.
const CREATES_AT_ONCE: usize = 64;
/// How often the stop file is looked for.
const STOP_FILE_EVERY: Duration = Duration::from_millis(100);
/// The step of the timers.
const TIMER_STEP: Duration = Duration::from_millis(1);

/// What all lanes share.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) client: Client,
    pub(crate) stats: Arc<Stats>,
    pub(crate) ledger: LedgerSender,
    pub(crate) clock: RunClock,
    pub(crate) stop: CancellationToken,
    pub(crate) app: String,
    pub(crate) run_id: String,
    pub(crate) prefix: String,
    pub(crate) check_interval: Duration,
}

/// When a lane sends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// On a schedule that waits for no answer.
    Open(Schedule),
    /// As soon as the last command is answered.
    Closed,
}

/// One client of a room.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) room: usize,
    pub(crate) script: LaneScript,
    pub(crate) pace: Pace,
}

/// Creates all rooms; of each tells whether nobody can be in it.
pub(crate) async fn create_rooms(run: &Arc<Run>, rooms: usize, seats: u32) -> Vec<bool> {
    let mut fresh = vec![false; rooms];
    let mut next = 0;
    let mut under_way = JoinSet::new();
    loop {
        while next < rooms && under_way.len() < CREATES_AT_ONCE && !run.stop.is_cancelled() {
            let (run, room) = (run.clone(), next);
            under_way.spawn(async move { (room, run.create(room, seats).await) });
            next += 1;
        }
        match under_way.join_next().await {
            Some(Ok((room, created))) => fresh[room] = created,
            Some(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
            None => return fresh,
        }
    }
}

/// Starts the lanes of a run that begins at `began`.
pub(crate) fn start_lanes(run: &Arc<Run>, lanes: Vec<Lane>, began: Instant) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for lane in lanes {
        let run = run.clone();
        tasks.spawn(async move { run.drive(lane, began).await });
    }
    tasks
}

/// Waits until all lanes have ended; a panic in one is one here.
pub(crate) async fn all_ended(lanes: &mut JoinSet<()>) {
    while let Some(ended) = lanes.join_next().await {
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic.into_panic());
        }
    }
}

/// One command of a lane.
#[derive(Debug, Clone, Copy)]
struct Command<'a> {
    room: usize,
    at: Address<'a>,
    id: &'a str,
    op: Op,
    /// `None` for a create, which no schedule asks for.
    intended: Option<Instant>,
}

impl Run {
    fn room_id(&self, room: usize) -> String {
        format!("{}{room}", self.prefix)
    }

    async fn create(&self, room: usize, seats: u32) -> bool {
        let room_id = self.room_id(room);
        let at = Address { app: &self.app, room: &room_id };
        let mut script = LaneScript::new(0, true);
        let id = format!("{}-create", self.run_id);
        let command = Command { room, at, id: &id, op: Op::Create { seats }, intended: None };
        let sent = self.client.command(at, &id, command.op, &script).await;
        if matches!(&sent.outcome, Outcome::Refused(status) if status.code() == Code::AlreadyExists) {
            return false;
        }
        self.settle(command, &mut script, sent).await
    }

    /// Drives one lane until the run stops.
    async fn drive(&self, mut lane: Lane, began: Instant) {
        let room_id = self.room_id(lane.room);
        let at = Address { app: &self.app, room: &room_id };
        let mut checks = Checks::new(self.check_interval, began);
        for number in 0.. {
            let intended = match lane.pace {
                Pace::Open(schedule) => began + schedule.intended(number),
                Pace::Closed => Instant::now(),
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = wait_until(intended) => {}
            }
            let op = lane.script.next();
            let id = format!("{}-{}-{number}", self.run_id, lane.script.lane());
            let command = Command { room: lane.room, at, id: &id, op, intended: Some(intended) };
            self.stats.in_flight.fetch_add(1, Relaxed);
            let sent = self.client.command(at, &id, op, &lane.script).await;
            self.stats.in_flight.fetch_sub(1, Relaxed);
            self.settle(command, &mut lane.script, sent).await;
            if let Some(check) = checks.due(Instant::now()) {
                self.check(check, at, &lane.script).await;
            }
        }
    }

    /// Takes in the end of a command: script, figures and ledger. True when it was acknowledged in order.
    async fn settle(
        &self,
        command: Command<'_>,
        script: &mut LaneScript,
        sent: Sent<pb::CommandResponse>,
    ) -> bool {
        let Command { at: Address { room, .. }, id, op, .. } = command;
        let Sent { outcome, course } = sent;
        self.stats.tried(course.tries);
        let (entry, in_order) = match outcome {
            Outcome::Answered(answer) => {
                self.count_ack(command, &answer, course);
                let verdict = script.acked(op, &answer);
                if let Err(wrong) = &verdict {
                    self.stats.wrong(format!("{room}, command {id}: {wrong}"));
                }
                (LedgerEntry::Ack(self.acked(command, &answer, course)), verdict.is_ok())
            }
            Outcome::Refused(status) => {
                let error = describe(&status);
                if !script.refused(op, self.clock.wall_ms(course.ended)) {
                    self.stats.wrong(format!("{room}, command {id}: {} was refused: {error}", op.name()));
                }
                (LedgerEntry::Refused(self.unsettled(command, course, error)), false)
            }
            Outcome::GaveUp(error) => {
                script.unsure();
                self.stats.client_errors.fetch_add(1, Relaxed);
                let tries = course.tries;
                self.stats
                    .name_problem(format!("{room}, command {id}: given up after {tries} tries: {error}"));
                (LedgerEntry::Unknown(self.unsettled(command, course, error)), false)
            }
        };
        self.ledger.write(entry).await;
        in_order
    }

    fn count_ack(&self, command: Command<'_>, answer: &pb::CommandResponse, course: Course) {
        let sent = self.clock.offset(course.first_sent);
        let at = self.clock.offset(course.ended);
        let intended = command.intended.map_or(sent, |intended| self.clock.offset(intended));
        let owner = answer.owner.as_ref();
        let ack = AckSeen {
            room: command.room,
            node: owner.map_or("", |owner| owner.node_id.as_str()),
            owner_epoch: owner.map_or(0, |owner| owner.epoch),
            at,
            latency: schedule::latency(intended, sent, at),
        };
        if answer.replayed {
            self.stats.replayed.fetch_add(1, Relaxed);
        }
        match command.intended {
            Some(_) => self.stats.command_acked(ack),
            None => self.stats.room_created(ack),
        }
    }

    fn acked(&self, command: Command<'_>, answer: &pb::CommandResponse, course: Course) -> Acked {
        let owner = answer.owner.clone().unwrap_or_default();
        let result = answer.result.as_ref().map(Message::encode_to_vec).unwrap_or_default();
        Acked {
            app: command.at.app.to_owned(),
            room: command.at.room.to_owned(),
            id: command.id.to_owned(),
            op: command.op.name().to_owned(),
            seq: answer.seq,
            epoch: answer.epoch,
            owner: owner.node_id,
            owner_epoch: owner.epoch,
            hash: hex(blake3::hash(&result).as_bytes()),
            sent_ms: self.clock.wall_ms(course.first_sent),
            acked_ms: self.clock.wall_ms(course.ended),
            sent_us: self.clock.offset_us(course.first_sent),
            acked_us: self.clock.offset_us(course.ended),
            tries: course.tries,
            replayed: answer.replayed,
        }
    }

    fn unsettled(&self, command: Command<'_>, course: Course, error: String) -> Unsettled {
        Unsettled {
            app: command.at.app.to_owned(),
            room: command.at.room.to_owned(),
            id: command.id.to_owned(),
            op: command.op.name().to_owned(),
            sent_ms: self.clock.wall_ms(course.first_sent),
            gave_up_ms: self.clock.wall_ms(course.ended),
            tries: course.tries,
            error,
        }
    }

    /// Sends a heartbeat or reads the room, and checks the answer.
    async fn check(&self, check: Check, at: Address<'_>, script: &LaneScript) {
        let problem = match (check, script.present_user()) {
            (Check::Heartbeat, Some(user)) => {
                let sent = self.client.heartbeat(at, user).await;
                self.read_answer(at, "heartbeat", sent)
                    .and_then(|answer| answer.owner.is_none().then_some("no owner"))
                    .map(str::to_owned)
            }
            (Check::Read, _) | (Check::Heartbeat, None) => {
                let sent = self.client.read(at).await;
                let now_ms = self.clock.wall_ms(Instant::now());
                self.read_answer(at, "read", sent)
                    .and_then(|answer| script.check_read(answer.room.as_ref(), now_ms).err())
                    .map(|wrong| wrong.to_string())
            }
        };
        if let Some(problem) = problem {
            self.stats.wrong(format!("{}: {problem}", at.room));
        }
    }

    fn read_answer<T>(&self, at: Address<'_>, what: &str, sent: Sent<T>) -> Option<T> {
        self.stats.tried(sent.course.tries);
        match sent.outcome {
            Outcome::Answered(answer) => {
                self.stats.reads.fetch_add(1, Relaxed);
                Some(answer)
            }
            Outcome::Refused(status) => {
                self.stats.wrong(format!("{}: a {what} was refused: {}", at.room, describe(&status)));
                None
            }
            Outcome::GaveUp(error) => {
                self.stats.read_errors.fetch_add(1, Relaxed);
                self.stats.name_problem(format!("{}: a {what} was given up: {error}", at.room));
                None
            }
        }
    }
}

async fn wait_until(intended: Instant) {
    // A timer fires up to one step late, so it is set one step early.
    let wake = intended.checked_sub(TIMER_STEP).unwrap_or(intended);
    if wake > Instant::now() {
        tokio::time::sleep_until(wake).await;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    Heartbeat,
    Read,
}

/// Heartbeats and reads in turn, the first at a random time so that lanes do not come in step.
#[derive(Debug)]
struct Checks {
    every: Duration,
    next_at: Instant,
    next: Check,
}

impl Checks {
    fn new(every: Duration, began: Instant) -> Self {
        Self { every, next_at: began + every.mul_f64(rand::random()), next: Check::Read }
    }

    fn due(&mut self, now: Instant) -> Option<Check> {
        if now < self.next_at {
            return None;
        }
        self.next_at = now + self.every;
        let due = self.next;
        self.next = match due {
            Check::Heartbeat => Check::Read,
            Check::Read => Check::Heartbeat,
        };
        Some(due)
    }
}

/// Watches for what ends a run from outside.
#[derive(Debug)]
pub(crate) struct Stopper {
    task: JoinSet<()>,
}

impl Stopper {
    /// Ends the watch.
    pub(crate) async fn end(mut self) {
        self.task.shutdown().await;
    }
}

/// Stops the run at SIGINT, SIGTERM, or once the file exists.
pub(crate) fn stop_on_signal_or_file(stop: CancellationToken, file: Option<PathBuf>) -> Stopper {
    let mut task = JoinSet::new();
    task.spawn(async move {
        tokio::select! {
            biased;
            () = signalled(SignalKind::interrupt()) => {}
            () = signalled(SignalKind::terminate()) => {}
            () = appeared(file) => {}
        }
        stop.cancel();
    });
    Stopper { task }
}

async fn signalled(kind: SignalKind) {
    match signal(kind) {
        Ok(mut signals) => {
            signals.recv().await;
        }
        // Without a handler the signal ends the process by itself.
        Err(_) => std::future::pending().await,
    }
}

async fn appeared(file: Option<PathBuf>) {
    let Some(file) = file else { return std::future::pending().await };
    while !tokio::fs::try_exists(&file).await.unwrap_or(false) {
        tokio::time::sleep(STOP_FILE_EVERY).await;
    }
}
