//! A connection that commits batches, and what it does when a batch does not commit at once.
//!
//! A batch runs as one transaction. What cannot commit with the others leaves it: fenced, known and refused rooms
//! at once, locked ones after a few short tries. A row that cannot be stored is found by halving the batch. The
//! connection is held by the running call alone: a call that is dropped drops it, and the server rolls back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::super::{CommitOutcome, CommitSession, RoomCommit, StoreError};
use super::failure::Failure;
use super::line::{Connector, Line, is_timeout};
use super::transact::{Settled, transact};

/// Pauses before locked rooms are tried again. All callers of the batch wait meanwhile, so they are short.
const LOCKED_PAUSES: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(3), Duration::from_millis(6)];
/// How often a batch runs again after a deadlock or a lock wait.
const CONTENDED_TRIES: u32 = 3;
/// Pause before such a batch runs again, times its number.
const CONTENDED_PAUSE: Duration = Duration::from_millis(2);

/// How long a session is careful after it met a lock: a look more for each batch, instead of a wait for all.
const CAREFUL_PERIOD: Duration = Duration::from_secs(5);

/// Commits batches.
pub(super) struct MySqlSession {
    connector: Arc<Connector>,
    line: Option<Line>,
    /// Until then, rooms whose outbox row is locked leave the batch instead of making it wait.
    careful_until: Option<Instant>,
}

impl MySqlSession {
    pub(super) async fn open(connector: Arc<Connector>) -> Result<Self, StoreError> {
        let line = connector.line().await.map_err(Failure::into_store_error)?;
        connector.options.counters.count_opened_session();
        Ok(Self { connector, line: Some(line), careful_until: None })
    }

    /// Runs one group as one transaction. The line is kept only if nothing about it is in doubt.
    async fn run(&mut self, batch: &[RoomCommit], group: &[usize]) -> Result<Settled, Failure> {
        if let Some(line) = self.line.take() {
            match self.run_on(line, batch, group).await {
                // A connection that died while it was idle says nothing about the server; silence does.
                Err(Failure::Lost(error)) if !is_timeout(&error) => {}
                other => return other,
            }
        }
        let line = self.connector.line().await?;
        self.connector.options.counters.count_opened_session();
        self.run_on(line, batch, group).await
    }

    async fn run_on(
        &mut self,
        mut line: Line,
        batch: &[RoomCommit],
        group: &[usize],
    ) -> Result<Settled, Failure> {
        let careful = self.careful_until.is_some_and(|until| Instant::now() < until);
        let done = transact(&mut line, &self.connector.statements, batch, group, careful).await;
        match done {
            Ok(settled) => {
                self.line = Some(line);
                Ok(settled)
            }
            Err(failure @ (Failure::Rows(_) | Failure::Contended)) => {
                if line.rollback().await.is_ok() {
                    self.line = Some(line);
                }
                Err(failure)
            }
            Err(failure) => Err(failure),
        }
    }
}

#[async_trait]
impl CommitSession for MySqlSession {
    async fn commit(&mut self, batch: &[RoomCommit]) -> Result<Vec<CommitOutcome>, StoreError> {
        let mut progress = Progress::new(batch);
        while let Some(group) = progress.next_group().await {
            let counters = Arc::clone(&self.connector.options.counters);
            match self.run(batch, &group.rooms).await {
                Ok(settled) => progress.settle(settled),
                Err(Failure::Rows(problem)) => {
                    counters.count_split_batch();
                    progress.split(group, problem);
                }
                Err(Failure::Contended) => {
                    self.careful_until = Some(Instant::now() + CAREFUL_PERIOD);
                    counters.count_retried_batch();
                    progress.again(group).await;
                }
                Err(Failure::Unknown(error)) => return Err(StoreError::Unknown(error)),
                Err(Failure::Lost(_) | Failure::Fault(_)) if progress.committed => progress.give_up(&group),
                Err(failure) => return Err(failure.into_store_error()),
            }
        }
        Ok(progress.into_outcomes())
    }
}

/// Rooms of the batch that run in one transaction, by their index.
struct Group {
    rooms: Vec<usize>,
    tries: u32,
}

/// What has become of a batch so far.
struct Progress {
    outcomes: Vec<Option<CommitOutcome>>,
    waiting: VecDeque<Group>,
    locked: Vec<usize>,
    pauses: std::slice::Iter<'static, Duration>,
    committed: bool,
}

impl Progress {
    fn new(batch: &[RoomCommit]) -> Self {
        let mut rooms: Vec<usize> = (0..batch.len()).collect();
        // All transactions lock in this order, so that they do not wait for each other in a circle.
        rooms.sort_by(|a, b| batch[*a].room.cmp(&batch[*b].room));
        let waiting = if rooms.is_empty() { VecDeque::new() } else { [Group { rooms, tries: 0 }].into() };
        Self {
            outcomes: vec![None; batch.len()],
            waiting,
            locked: Vec::new(),
            pauses: LOCKED_PAUSES.iter(),
            committed: false,
        }
    }

    /// The next group to run; the locked rooms come last, after a pause, and all together.
    async fn next_group(&mut self) -> Option<Group> {
        if let Some(group) = self.waiting.pop_front() {
            return Some(group);
        }
        if self.locked.is_empty() {
            return None;
        }
        let pause = self.pauses.next()?;
        tokio::time::sleep(*pause).await;
        Some(Group { rooms: std::mem::take(&mut self.locked), tries: 0 })
    }

    fn settle(&mut self, settled: Settled) {
        self.locked.extend(settled.locked);
        for (room, outcome) in settled.outcomes {
            self.committed |= outcome == CommitOutcome::Committed;
            self.outcomes[room] = Some(outcome);
        }
    }

    fn split(&mut self, mut group: Group, problem: String) {
        if let &[room] = group.rooms.as_slice() {
            self.outcomes[room] = Some(CommitOutcome::Refused(problem));
            return;
        }
        let rest = group.rooms.split_off(group.rooms.len() / 2);
        self.waiting.push_front(Group { rooms: rest, tries: 0 });
        self.waiting.push_front(Group { rooms: group.rooms, tries: 0 });
    }

    async fn again(&mut self, group: Group) {
        let tries = group.tries + 1;
        if tries >= CONTENDED_TRIES {
            self.give_up(&group);
            return;
        }
        tokio::time::sleep(CONTENDED_PAUSE * tries).await;
        self.waiting.push_front(Group { tries, ..group });
    }

    /// Nothing of these rooms was written, and a later try may do.
    fn give_up(&mut self, group: &Group) {
        for room in &group.rooms {
            self.outcomes[*room] = Some(CommitOutcome::Locked);
        }
    }

    /// Rooms without an outcome are those that stayed locked.
    fn into_outcomes(self) -> Vec<CommitOutcome> {
        self.outcomes.into_iter().map(|outcome| outcome.unwrap_or(CommitOutcome::Locked)).collect()
    }
}
