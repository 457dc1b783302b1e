//! The outbox's tables on MySQL and MariaDB.
//!
//! Needs `FOR UPDATE SKIP LOCKED` inside a derived table: MariaDB from 10.6, MySQL from 8.0. A claim is three
//! calls: take rooms, read their events, mark these `delivering`. If one of the later two fails, the rooms wait
//! for the end of the lease.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sqlx::Row;
use sqlx::mysql::{MySqlConnectOptions, MySqlRow};

use super::{
    AppBacklog, ClaimRequest, ClaimToken, ClaimedRoom, OutboxStore, Reported, RoomReport, share_of_events,
};
use crate::outbox::event::{EventPosition, OutboxEvent};
use crate::store::StoreError;
use crate::types::{RoomKey, Seq};
use session::{Answer, Sessions};

mod session;
mod text;

/// Most tenants that are told apart; those after them share nothing and get nothing, which an ERROR says.
const MAX_APPS: usize = 10_000;

/// The store.
pub struct MySqlOutboxStore {
    sessions: Sessions,
}

impl MySqlOutboxStore {
    /// Connects when first used. `timeout` bounds each connect and each call.
    pub fn new(options: MySqlConnectOptions, timeout: Duration) -> Self {
        Self { sessions: Sessions::new(options, timeout) }
    }

    async fn take(&self, request: &ClaimRequest) -> Result<BTreeMap<RoomKey, Taken>, StoreError> {
        let answers = self.sessions.run(&text::claim(request)).await?;
        let mut rooms = BTreeMap::new();
        for row in &last(answers).rows {
            match room(row) {
                Ok(room) => {
                    rooms.insert(room, Taken::from_row(row)?);
                }
                // It stays leased, and comes again at the end of each lease: its neighbours are not held up.
                Err(error) => {
                    tracing::error!(%error, "a room of the outbox cannot be read and is passed over")
                }
            }
        }
        Ok(rooms)
    }

    async fn read(
        &self,
        request: &ClaimRequest,
        taken: &BTreeMap<RoomKey, Taken>,
    ) -> Result<BTreeMap<RoomKey, Vec<OutboxEvent>>, StoreError> {
        let limits = taken.iter().map(|(room, this)| (room, limit_of(request, taken.len(), this)));
        let answers = self.sessions.run(&text::read(limits)).await?;
        let mut events: BTreeMap<RoomKey, Vec<OutboxEvent>> = BTreeMap::new();
        for row in &last(answers).rows {
            let event = event(row)?;
            events.entry(event.room.clone()).or_default().push(event);
        }
        Ok(events)
    }

    /// Marks the events and leaves out the rooms that another worker has taken meanwhile.
    async fn mark(
        &self,
        request: &ClaimRequest,
        until_ms: i64,
        events: &mut BTreeMap<RoomKey, Vec<OutboxEvent>>,
    ) -> Result<(), StoreError> {
        if events.is_empty() {
            return Ok(());
        }
        let positions: BTreeMap<RoomKey, Vec<EventPosition>> = events
            .iter()
            .map(|(room, events)| (room.clone(), events.iter().map(|event| event.position).collect()))
            .collect();
        let named = || positions.iter().map(|(room, positions)| (room, positions.as_slice()));
        let mark = text::mark(request.token, &request.worker_id, until_ms, named());
        let matched = last(self.sessions.run(&mark).await?).matched;
        let wanted: usize = positions.values().map(Vec::len).sum();
        if matched == wanted as u64 {
            return Ok(());
        }
        let answers = self.sessions.run(&text::marked(request.token, named())).await?;
        let mut ours = BTreeSet::new();
        for row in &last(answers).rows {
            ours.insert((room(row)?, position(row)?));
        }
        events
            .retain(|room, events| events.iter().all(|event| ours.contains(&(room.clone(), event.position))));
        Ok(())
    }
}

/// What a claim says of a room.
struct Taken {
    attempts: u32,
    lost_claims: u32,
    until_ms: i64,
}

impl Taken {
    fn from_row(row: &MySqlRow) -> Result<Self, StoreError> {
        Ok(Self { attempts: column(row, 2)?, lost_claims: column(row, 3)?, until_ms: column(row, 4)? })
    }
}

#[async_trait]
impl OutboxStore for MySqlOutboxStore {
    async fn apps(&self) -> Result<Vec<Arc<str>>, StoreError> {
        let mut apps: Vec<Arc<str>> = Vec::new();
        let mut after = Vec::new();
        while apps.len() < MAX_APPS {
            let answer = last(self.sessions.run(&text::next_app(&after)).await?);
            let Some(app): Option<Vec<u8>> = first(&answer)? else { return Ok(apps) };
            match std::str::from_utf8(&app) {
                Ok(app) => apps.push(app.into()),
                Err(_) => {
                    tracing::error!("a tenant of the outbox has a code that is no text and is passed over")
                }
            }
            after = app;
        }
        tracing::error!(limit = MAX_APPS, "the outbox has more tenants than it can serve");
        Ok(apps)
    }

    async fn now_ms(&self) -> Result<i64, StoreError> {
        let answer = last(self.sessions.run(text::NOW).await?);
        first(&answer)?.ok_or_else(|| corrupt("clock", &"no time"))
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedRoom>, StoreError> {
        if request.quotas.is_empty() {
            return Ok(Vec::new());
        }
        let mut taken = self.take(request).await?;
        let Some(until_ms) = taken.values().next().map(|taken| taken.until_ms) else { return Ok(Vec::new()) };
        let mut events = self.read(request, &taken).await?;
        let empty: Vec<RoomKey> = taken.keys().filter(|room| !events.contains_key(room)).cloned().collect();
        self.mark(request, until_ms, &mut events).await?;
        events.extend(empty.into_iter().map(|room| (room, Vec::new())));
        let rooms = taken.len();
        let claimed = events.into_iter().filter_map(|(room, events)| {
            let this = taken.remove(&room)?;
            let more = events.len() >= limit_of(request, rooms, &this) as usize;
            Some(ClaimedRoom { room, attempts: this.attempts, lost_claims: this.lost_claims, events, more })
        });
        Ok(claimed.collect())
    }

    async fn report(&self, token: ClaimToken, rooms: &[RoomReport]) -> Result<Reported, StoreError> {
        if rooms.is_empty() {
            return Ok(Reported::default());
        }
        let report = text::report(token, rooms);
        let answers = self.sessions.run(&report.text).await?;
        let named: u64 = rooms.iter().map(|room| room.settled() + room.retryable.len() as u64).sum();
        let matched: u64 =
            report.event_statements.iter().filter_map(|at| answers.get(*at)).map(|a| a.matched).sum();
        let busy = last(answers).rows.iter().map(room).collect::<Result<_, _>>()?;
        Ok(Reported { fenced_events: named.saturating_sub(matched), busy })
    }

    async fn settle(&self, token: ClaimToken, room: &RoomReport) -> Result<(), StoreError> {
        self.sessions.run(&text::settle(token, room)).await.map(drop)
    }

    async fn backlog(&self, apps: &[Arc<str>]) -> Result<Vec<AppBacklog>, StoreError> {
        let mut backlogs = Vec::with_capacity(apps.len());
        for app_code in apps {
            let mut answers = self.sessions.run(&text::backlog(app_code)).await?;
            let age: Option<i64> = first(&answers.pop().unwrap_or_default())?;
            let pending: Option<i64> = first(&answers.pop().unwrap_or_default())?;
            backlogs.push(AppBacklog {
                app_code: app_code.clone(),
                pending: u64::try_from(pending.unwrap_or(0)).unwrap_or(0),
                oldest_age_ms: u64::try_from(age.unwrap_or(0)).unwrap_or(0),
            });
        }
        Ok(backlogs)
    }

    async fn rescue(
        &self,
        after: Option<&RoomKey>,
        limit: u32,
    ) -> Result<(u64, Option<RoomKey>), StoreError> {
        let (mut mended, mut after) = (0, after.cloned());
        for _ in 0..limit {
            let answer = last(self.sessions.run(&text::next_room(after.as_ref())).await?);
            let Some(row) = answer.rows.first() else { return Ok((mended, None)) };
            let room = room(row)?;
            if column::<Option<i64>>(row, 2)?.is_none() {
                let mut answers = self.sessions.run(&text::mend(&room)).await?;
                answers.pop();
                mended += last(answers).matched;
            }
            after = Some(room);
        }
        Ok((mended, after))
    }

    async fn failed(&self, limit: u32) -> Result<Vec<(OutboxEvent, String)>, StoreError> {
        let answer = last(self.sessions.run(&text::failed(limit)).await?);
        let with_error = |row| {
            let error: Option<Vec<u8>> = column(row, 7)?;
            Ok((event(row)?, String::from_utf8_lossy(&error.unwrap_or_default()).into_owned()))
        };
        answer.rows.iter().map(with_error).collect()
    }

    async fn revive(&self, room: &RoomKey) -> Result<u64, StoreError> {
        const REVIVED_STATEMENT: usize = 3;
        let answers = self.sessions.run(&text::revive(room)).await?;
        Ok(answers.get(REVIVED_STATEMENT).map_or(0, |answer| answer.matched))
    }

    async fn close(&self) {
        self.sessions.clear();
    }
}

/// How many events to read of a room.
fn limit_of(request: &ClaimRequest, rooms: usize, taken: &Taken) -> u32 {
    if taken.lost_claims >= request.solo_after { 1 } else { share_of_events(request.events, rooms) }
}

fn last(mut answers: Vec<Answer>) -> Answer {
    answers.pop().unwrap_or_default()
}

fn corrupt(what: &'static str, problem: &dyn std::fmt::Display) -> StoreError {
    StoreError::Corrupt { what, problem: problem.to_string() }
}

fn column<'r, T>(row: &'r MySqlRow, index: usize) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::MySql> + sqlx::Type<sqlx::MySql>,
{
    row.try_get(index).map_err(|error| corrupt("column of the outbox", &error))
}

fn first<T>(answer: &Answer) -> Result<Option<T>, StoreError>
where
    T: for<'r> sqlx::Decode<'r, sqlx::MySql> + sqlx::Type<sqlx::MySql>,
{
    match answer.rows.first() {
        Some(row) => column(row, 0),
        None => Ok(None),
    }
}

fn text_column(row: &MySqlRow, index: usize) -> Result<String, StoreError> {
    String::from_utf8(column(row, index)?).map_err(|error| corrupt("text of the outbox", &error))
}

fn room(row: &MySqlRow) -> Result<RoomKey, StoreError> {
    RoomKey::new(&text_column(row, 0)?, &text_column(row, 1)?)
        .map_err(|error| corrupt("room of the outbox", &error))
}

fn position(row: &MySqlRow) -> Result<EventPosition, StoreError> {
    Ok(EventPosition { seq: Seq(column(row, 2)?), index: column(row, 3)? })
}

fn event(row: &MySqlRow) -> Result<OutboxEvent, StoreError> {
    let event_type: Vec<u8> = column(row, 4)?;
    let envelope: Vec<u8> = column(row, 5)?;
    Ok(OutboxEvent {
        room: room(row)?,
        position: position(row)?,
        event_type: String::from_utf8_lossy(&event_type).into_owned(),
        envelope: Bytes::from(envelope),
        attempts: column::<u32>(row, 6)?.saturating_add(1),
    })
}
