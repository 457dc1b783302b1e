//! Group commit across rooms.
//!
//! Each session (one SQL connection) takes whatever cells have ready, without a timer, checks the leases of the
//! whole batch in one round trip, and commits it in one transaction that fences every room. Under load batches
//! grow by themselves; without load a commit waits for nothing.

use std::sync::Arc;

use roomcluster_lifecycle::Tasks;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::CellMetrics;
use crate::faults;
use crate::ownership::{Lease, Leases, Verdict};
use crate::store::{CommitOutcome, CommitSession, RoomCommit, RoomStore, StoreError};

/// Bounds of the committer.
#[derive(Debug, Clone, Copy)]
pub struct CommitterConfig {
    /// SQL connections that commit side by side.
    pub sessions: usize,
    /// Most rooms in one transaction.
    pub batch_rooms: usize,
}

impl Default for CommitterConfig {
    fn default() -> Self {
        // Measured on two cores: four connections of 64 rooms give the database more than it can take, and more
        // rooms a transaction only add latency.
        Self { sessions: 4, batch_rooms: 64 }
    }
}

/// What became of a room's commit.
#[derive(Debug)]
pub enum CommitReply {
    /// The store's word.
    Outcome(CommitOutcome),
    /// The lease has ended; nothing was written. Take a new one and commit again.
    LeaseExpired,
    /// The store could not be asked; nothing was written.
    Unavailable,
    /// The connection was lost at COMMIT.
    Unknown,
    /// A statement failed for good; nothing was written.
    Failed(String),
}

struct Job {
    commit: RoomCommit,
    lease: Arc<Lease>,
    reply: oneshot::Sender<CommitReply>,
}

/// Handle to the sessions.
#[derive(Clone)]
pub struct Committer {
    jobs: mpsc::Sender<Job>,
}

/// Commits that wait for a session: each room has at most one, so this bounds the rooms that are committing.
const QUEUE: usize = 16_384;

impl Committer {
    /// Starts the sessions.
    pub fn start(
        tasks: &Tasks,
        store: &Arc<dyn RoomStore>,
        leases: &Arc<Leases>,
        metrics: &CellMetrics,
        config: CommitterConfig,
    ) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..config.sessions {
            let worker = Worker {
                queue: Arc::clone(&queue),
                store: Arc::clone(store),
                leases: Arc::clone(leases),
                metrics: metrics.clone(),
                batch_rooms: config.batch_rooms,
                session: None,
            };
            tasks.spawn_essential("committer", |stop| worker.run(stop));
        }
        Self { jobs }
    }

    /// Commits one room's rows and tells what became of them.
    pub async fn commit(&self, commit: RoomCommit, lease: Arc<Lease>) -> CommitReply {
        let (reply, outcome) = oneshot::channel();
        if self.jobs.send(Job { commit, lease, reply }).await.is_err() {
            return CommitReply::Unavailable;
        }
        // A session that ends in the middle may have committed.
        outcome.await.unwrap_or(CommitReply::Unknown)
    }
}

struct Worker {
    queue: Arc<Mutex<mpsc::Receiver<Job>>>,
    store: Arc<dyn RoomStore>,
    leases: Arc<Leases>,
    metrics: CellMetrics,
    batch_rooms: usize,
    session: Option<Box<dyn CommitSession>>,
}

impl Worker {
    /// Ends between batches, never inside one.
    async fn run(mut self, stop: CancellationToken) {
        let mut jobs = Vec::with_capacity(self.batch_rooms);
        loop {
            let next = async { self.queue.lock().await.recv_many(&mut jobs, self.batch_rooms).await };
            let taken = tokio::select! {
                biased;
                () = stop.cancelled() => 0,
                taken = next => taken,
            };
            if taken == 0 {
                return;
            }
            self.commit(std::mem::take(&mut jobs)).await;
        }
    }

    async fn commit(&mut self, jobs: Vec<Job>) {
        let jobs = drop_expired(&self.leases, jobs).await;
        if jobs.is_empty() {
            return;
        }
        let (commits, replies): (Vec<_>, Vec<_>) =
            jobs.into_iter().map(|job| (job.commit, job.reply)).unzip();
        faults::point("commit.before-begin").await;
        let result = self.commit_in_session(&commits).await;
        faults::point("commit.after-commit").await;
        match result {
            Ok(outcomes) => {
                self.metrics.batch_committed(commits.len());
                for (reply, outcome) in replies.into_iter().zip(outcomes) {
                    answer(reply, CommitReply::Outcome(outcome));
                }
            }
            Err(error) => {
                warn!(%error, source = ?std::error::Error::source(&error), rooms = commits.len(), "A batch did not commit");
                for reply in replies {
                    answer(reply, failed(&error));
                }
            }
        }
    }

    async fn commit_in_session(&mut self, commits: &[RoomCommit]) -> Result<Vec<CommitOutcome>, StoreError> {
        let session = match &mut self.session {
            Some(session) => session,
            none => none.insert(self.store.open_session().await?),
        };
        session.commit(commits).await
    }
}

/// Answers the jobs whose lease has ended and keeps the others.
async fn drop_expired(leases: &Leases, jobs: Vec<Job>) -> Vec<Job> {
    let held: Vec<_> = jobs.iter().map(|job| Arc::clone(&job.lease)).collect();
    faults::point("commit.before-verify").await;
    let verdicts = leases.verify(&held).await;
    let mut standing = Vec::with_capacity(jobs.len());
    for (job, verdict) in jobs.into_iter().zip(verdicts) {
        match verdict {
            Verdict::GoOn => standing.push(job),
            Verdict::Expired => answer(job.reply, CommitReply::LeaseExpired),
        }
    }
    standing
}

fn failed(error: &StoreError) -> CommitReply {
    match error {
        StoreError::Unknown(_) => CommitReply::Unknown,
        StoreError::Unavailable(_) | StoreError::Locked | StoreError::Schema { .. } => {
            CommitReply::Unavailable
        }
        StoreError::Statement(_) | StoreError::Corrupt { .. } => CommitReply::Failed(error.to_string()),
    }
}

/// A cell that has gone does not matter: what it would have been told stands in the log.
fn answer(reply: oneshot::Sender<CommitReply>, outcome: CommitReply) {
    let _gone = reply.send(outcome);
}
