//! Runs one room while there is work: take, load, decide, commit, answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, info};

use super::batch::{self, Base, Batch, Verdict};
use super::committer::CommitReply;
use super::mailbox::{Control, Envelope, Work};
use super::resident::{LoadError, Resident, load, phase_change};
use super::{Answer, Cell, CellError, Cells, Request, Shared};
use crate::faults;
use crate::logic::RoomLogic;
use crate::ownership::Lease;
use crate::store::{CommitOutcome, LogRow, RoomCommit, StoreError, Take, TakeExpectation, TakeOutcome};
use crate::types::{Claim, CommandId, Epoch, Hash32, LeaseToken, Seq};

/// How long a room waits for a row that another transaction has locked before it gives up.
const LOCKED_BOUND: Duration = Duration::from_secs(2);
/// Pause between two tries for a locked row.
const LOCKED_PAUSE: Duration = Duration::from_millis(10);

/// Whether the cell stays after a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Stay,
    Leave,
}

pub(super) struct Driver<L: RoomLogic> {
    cells: Cells<L>,
    cell: Arc<Cell<L>>,
    resident: Option<Box<Resident<L>>>,
    rested: bool,
}

impl<L: RoomLogic> Driver<L> {
    pub(super) fn new(cells: Cells<L>, cell: Arc<Cell<L>>) -> Self {
        Self { cells, cell, resident: None, rested: false }
    }

    pub(super) async fn run(mut self) {
        self.resident = self.cell.lock().resident();
        loop {
            let limit = self.shared().config.batch_limit;
            let work = self.cell.lock().next(limit, &mut self.resident);
            match work {
                Work::Rest => break,
                Work::Control(control) => self.control(control),
                Work::Requests(requests) => {
                    if self.process(requests).await == Next::Leave {
                        // Dropping the driver takes the cell away.
                        return;
                    }
                }
            }
        }
        self.rested = true;
    }

    fn shared(&self) -> &Shared<L> {
        self.cells.shared()
    }

    fn control(&mut self, control: Control<L>) {
        match control {
            Control::Snapshot(reply) => {
                let pending = self.resident.as_ref().and_then(|r| r.pending_snapshot(&self.shared().logic));
                let _gone = reply.send(pending);
            }
            Control::Retire(reply) => {
                // If who asked has gone, the state goes back to the mailbox when the driver rests.
                if let Err(resident) = reply.send(self.resident.take()) {
                    self.resident = resident;
                }
            }
        }
    }

    async fn process(&mut self, requests: Vec<Envelope>) -> Next {
        let now = Instant::now();
        let (requests, late): (Vec<_>, Vec<_>) = requests.into_iter().partition(|r| r.deadline > now);
        answer_all(late, &CellError::TooLate);
        if requests.is_empty() {
            return if self.resident.is_some() { Next::Stay } else { Next::Leave };
        }
        if let Err(error) = self.become_owner(&requests).await {
            answer_all(requests, &error);
            return Next::Leave;
        }
        self.execute(requests).await
    }

    /// Makes sure that the room is loaded and its lease stands.
    async fn become_owner(&mut self, requests: &[Envelope]) -> Result<(), CellError> {
        match &self.resident {
            Some(resident) if resident.lease.is_valid() => Ok(()),
            Some(resident) => {
                let claim = resident.lease.claim;
                self.take_again(claim).await
            }
            None => {
                self.refuse_unknown_room(requests).await?;
                let expect = self.cell.lock().expect();
                let lease = self.take(expect).await?;
                self.load(lease).await
            }
        }
    }

    /// A room that was never created is not taken, whoever asks for it.
    async fn refuse_unknown_room(&self, requests: &[Envelope]) -> Result<(), CellError> {
        let logic = &self.shared().logic;
        let creates = requests.iter().any(|envelope| match &envelope.request {
            Request::Command { payload, .. } => {
                logic.decode_command(payload).is_ok_and(|command| logic.creates_room(&command))
            }
            Request::Query { .. } | Request::Touch { .. } => false,
        });
        if creates || self.shared().store.exists(&self.cell.room).await.map_err(|e| unavailable(&e))? {
            return Ok(());
        }
        let empty = logic.initial();
        let room = &self.cell.room;
        let refused = logic.query(&empty, &[], Seq(0), room).err();
        Err(refused
            .map_or_else(|| CellError::Broken("an absent room answers".to_owned()), CellError::Rejected))
    }

    async fn take(&self, expect: TakeExpectation) -> Result<Arc<Lease>, CellError> {
        let shared = self.shared();
        let token = LeaseToken::random(&mut rand::rng());
        let take = Take {
            room: self.cell.room.clone(),
            expect,
            node: shared.leases.node().clone(),
            token,
            now_ms: shared.clock.now_ms(),
        };
        let taken_at = Instant::now();
        match shared.store.take(&take).await.map_err(|error| unavailable(&error))? {
            TakeOutcome::Taken(claim) => {
                shared.metrics.taken();
                faults::point("take.before-route").await;
                Ok(shared.leases.hold(&self.cell.room, claim, taken_at).await)
            }
            TakeOutcome::Lost(_row) => Err(CellError::Left),
        }
    }

    /// A new lease for a room that is loaded: nobody else can have committed in between.
    async fn take_again(&mut self, claim: Claim) -> Result<(), CellError> {
        let lease = self.take(TakeExpectation::Exactly(claim)).await?;
        if let Some(resident) = &mut self.resident {
            resident.lease = lease;
        }
        Ok(())
    }

    async fn load(&mut self, lease: Arc<Lease>) -> Result<(), CellError> {
        match load(self.shared(), &self.cell.room, Arc::clone(&lease)).await {
            Ok(resident) => {
                self.resident = Some(Box::new(resident));
                Ok(())
            }
            Err(problem) => {
                self.shared().leases.forget(&lease);
                match problem {
                    LoadError::Store(error) if error.is_retryable() => Err(unavailable(&error)),
                    other => {
                        error!(room = %self.cell.room, problem = %other, "A room cannot be loaded");
                        Err(CellError::Broken(other.to_string()))
                    }
                }
            }
        }
    }

    /// Decides and commits until the batch has an outcome, and answers its callers.
    async fn execute(&mut self, mut requests: Vec<Envelope>) -> Next {
        let mut stored: HashMap<CommandId, LogRow> = HashMap::new();
        let give_up_at = Instant::now() + LOCKED_BOUND;
        loop {
            let Some(resident) = self.resident.as_mut() else { return Next::Leave };
            resident.used_at = Instant::now();
            let batch = decide(self.cells.shared(), &self.cell, resident, &requests);
            if batch.rows.is_empty() {
                self.answer(requests, batch, &stored).await;
                return Next::Stay;
            }
            let commit = room_commit(self.cells.shared(), &self.cell, resident, &batch);
            let lease = Arc::clone(&resident.lease);
            let claim = lease.claim;
            match self.shared().committer.commit(commit, lease).await {
                CommitReply::Outcome(CommitOutcome::Committed) => {
                    self.answer(requests, batch, &stored).await;
                    self.snapshot_if_due();
                    return Next::Stay;
                }
                CommitReply::Outcome(CommitOutcome::Known(rows)) => {
                    self.remember(&rows);
                    stored.extend(rows.into_iter().map(|row| (row.command_id.clone(), row)));
                }
                CommitReply::Outcome(CommitOutcome::Locked) if Instant::now() < give_up_at => {
                    tokio::time::sleep(LOCKED_PAUSE).await;
                }
                CommitReply::Outcome(CommitOutcome::Locked) | CommitReply::Unavailable => {
                    answer_all(requests, &CellError::DatabaseUnavailable);
                    return Next::Stay;
                }
                CommitReply::Outcome(CommitOutcome::Fenced(row)) => {
                    info!(room = %self.cell.room, epoch = %claim.epoch, owner = ?row.map(|row| row.node.node_id), "A room was fenced out");
                    self.shared().metrics.fenced_out();
                    answer_all(requests, &CellError::FencedOut);
                    return Next::Leave;
                }
                CommitReply::LeaseExpired => {
                    if let Err(error) = self.take_again(claim).await {
                        answer_all(requests, &fenced(error));
                        return Next::Leave;
                    }
                }
                CommitReply::Unknown => {
                    if let Err(error) = self.settle(claim).await {
                        answer_all(requests, &fenced(error));
                        return Next::Leave;
                    }
                }
                CommitReply::Outcome(CommitOutcome::Refused(problem)) | CommitReply::Failed(problem) => {
                    // One of the commands is at fault: the others must not fall with it.
                    if requests.len() == 1 {
                        error!(room = %self.cell.room, problem, "A command cannot be stored");
                        answer_all(requests, &CellError::Broken(problem));
                        return Next::Stay;
                    }
                    let rest = requests.split_off(1);
                    if Box::pin(self.execute(requests)).await == Next::Leave {
                        answer_all(rest, &CellError::Left);
                        return Next::Leave;
                    }
                    requests = rest;
                }
            }
        }
    }

    /// After a connection was lost at COMMIT: the take waits for the lost transaction and so is the barrier;
    /// what it did is then in the log.
    async fn settle(&mut self, claim: Claim) -> Result<(), CellError> {
        self.shared().metrics.unknown_commit();
        let lease = self.take(TakeExpectation::Exactly(claim)).await?;
        self.load(lease).await
    }

    fn remember(&mut self, rows: &[LogRow]) {
        if let Some(resident) = &mut self.resident {
            for row in rows {
                resident.recents.remember(row.command_id.clone(), row.command_hash, row.seq);
            }
        }
    }

    /// The batch is durable, or has nothing to write: keep its state and tell everyone.
    async fn answer(
        &mut self,
        requests: Vec<Envelope>,
        batch: Batch<L::State>,
        stored: &HashMap<CommandId, LogRow>,
    ) {
        let cells = self.cells.clone();
        let shared = cells.shared();
        let Some(resident) = self.resident.as_mut() else { return };
        resident.state = batch.after;
        let epoch = resident.lease.claim.epoch;
        for row in &batch.rows {
            resident.seq = row.seq;
            resident.recents.remember(row.command_id.clone(), row.command_hash, row.seq);
        }
        shared.metrics.committed(batch.rows.len());
        for (envelope, verdict) in requests.into_iter().zip(batch.verdicts) {
            let answer = match verdict {
                Verdict::Row(index) => {
                    let row = &batch.rows[index];
                    Ok(Answer {
                        seq: row.seq,
                        epoch,
                        committed_at_ms: row.committed_at_ms,
                        replayed: false,
                        result: row.result.clone(),
                        owner_epoch: epoch,
                    })
                }
                Verdict::Replay(id) => match stored.get(&id) {
                    Some(row) => Ok(replayed(row, epoch)),
                    None => fetch(shared, &self.cell, &id, None, epoch).await,
                },
                Verdict::RefusedUnlessLogged { command_id, command_hash, rejection } => {
                    match fetch(shared, &self.cell, &command_id, Some(command_hash), epoch).await {
                        Err(CellError::Left) => Err(rejection.into()),
                        other => other,
                    }
                }
                Verdict::Refused(error) => Err(error),
                Verdict::Read => read(shared, &self.cell, resident, &envelope.request),
            };
            envelope.answer(answer);
        }
    }

    fn snapshot_if_due(&mut self) {
        let Some(resident) = self.resident.as_mut() else { return };
        let shared = self.cells.shared();
        if resident.seq.0 - resident.snapshot_asked_seq.0 < shared.config.snapshot_every {
            return;
        }
        resident.snapshot_asked_seq = resident.seq;
        if let Some(pending) = resident.pending_snapshot(&shared.logic) {
            let (cells, cell) = (self.cells.clone(), Arc::clone(&self.cell));
            shared.tasks.spawn_once("snapshot", async move {
                let _counted = cells.flush(&cell, &pending).await;
            });
        }
    }
}

impl<L: RoomLogic> Drop for Driver<L> {
    /// A driver that did not rest (it left the room, was cut off, or panicked) takes its cell with it: nothing may
    /// go on from a state that is not known. Its lease lapses, or is taken again here.
    fn drop(&mut self) {
        if self.rested {
            return;
        }
        if let Some(resident) = self.resident.take() {
            self.cells.shared().leases.forget(&resident.lease);
        }
        self.cells.remove(&self.cell);
    }
}

fn decide<L: RoomLogic>(
    shared: &Shared<L>,
    cell: &Cell<L>,
    resident: &Resident<L>,
    requests: &[Envelope],
) -> Batch<L::State> {
    let base = Base {
        logic: &shared.logic,
        room: &cell.room,
        state: &resident.state,
        seq: resident.seq,
        recents: &resident.recents,
        now_ms: shared.clock.now_ms(),
    };
    batch::decide(&base, requests.iter().map(|envelope| &envelope.request))
}

fn room_commit<L: RoomLogic>(
    shared: &Shared<L>,
    cell: &Cell<L>,
    resident: &Resident<L>,
    batch: &Batch<L::State>,
) -> RoomCommit {
    RoomCommit {
        room: cell.room.clone(),
        claim: resident.lease.claim,
        rows: batch.rows.clone(),
        state_hash: shared.logic.state_hash(&batch.after),
        phase: phase_change(&shared.logic, &resident.state, &batch.after),
        unseen: batch.unseen.clone(),
    }
}

/// The stored result of a command. [`CellError::Left`] if the log does not hold it.
async fn fetch<L: RoomLogic>(
    shared: &Shared<L>,
    cell: &Cell<L>,
    id: &CommandId,
    hash: Option<Hash32>,
    owner_epoch: Epoch,
) -> Result<Answer, CellError> {
    let row = shared.store.command(&cell.room, id).await.map_err(|error| unavailable(&error))?;
    let row = row.ok_or(CellError::Left)?;
    if hash.is_some_and(|hash| hash != row.command_hash) {
        return Err(CellError::CommandIdReused);
    }
    Ok(replayed(&row, owner_epoch))
}

fn replayed(row: &LogRow, owner_epoch: Epoch) -> Answer {
    Answer {
        seq: row.seq,
        epoch: row.epoch,
        committed_at_ms: row.committed_at_ms,
        replayed: true,
        result: row.result.clone(),
        owner_epoch,
    }
}

fn read<L: RoomLogic>(
    shared: &Shared<L>,
    cell: &Cell<L>,
    resident: &mut Resident<L>,
    request: &Request,
) -> Result<Answer, CellError> {
    let result = match request {
        Request::Query { payload } => {
            shared.logic.query(&resident.state, payload, resident.seq, &cell.room)?
        }
        Request::Touch { payload } => {
            shared.logic.touch(&mut resident.state, payload, shared.clock.now_ms())?
        }
        Request::Command { .. } => {
            return Err(CellError::Broken("a command was taken for a read".to_owned()));
        }
    };
    let epoch = resident.lease.claim.epoch;
    Ok(Answer { seq: resident.seq, epoch, committed_at_ms: 0, replayed: false, result, owner_epoch: epoch })
}

fn answer_all(requests: Vec<Envelope>, error: &CellError) {
    for envelope in requests {
        envelope.answer(Err(error.clone()));
    }
}

/// Once a commit was under way, a take that another node won means that this one is fenced out.
fn fenced(error: CellError) -> CellError {
    if error == CellError::Left { CellError::FencedOut } else { error }
}

fn unavailable(error: &StoreError) -> CellError {
    if error.is_retryable() { CellError::DatabaseUnavailable } else { CellError::Broken(error.to_string()) }
}
