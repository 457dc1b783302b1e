//! The connection to Redis: one, shared, replaced when it fails.
//!
//! A call never waits longer than its time-outs. While Redis cannot be reached, calls fail at once between two
//! attempts to connect. It remembers when an answer last failed to come.

use std::sync::Mutex;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, Pipeline, RedisError, ScriptInvocation};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::Instant;

use super::super::lease::LeaseError;
use super::RedisOptions;

/// After a failed attempt to connect, calls fail at once for this long.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// The connection to Redis.
pub(super) struct Link {
    client: Client,
    options: RedisOptions,
    /// Held while connecting, so that one attempt is under way at a time.
    state: tokio::sync::Mutex<State>,
    last_failure: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct State {
    connection: Option<MultiplexedConnection>,
    /// Counts connections, so that a late failure does not close a newer one.
    generation: u64,
    failed_at: Option<Instant>,
}

impl Link {
    pub(super) fn new(url: &SecretString, options: RedisOptions) -> Result<Self, LeaseError> {
        let client = Client::open(url.expose_secret())
            .map_err(|_| LeaseError { problem: "the Redis URL is not valid".to_owned() })?;
        Ok(Self { client, options, state: tokio::sync::Mutex::default(), last_failure: Mutex::default() })
    }

    /// Whether no answer has failed to come for this long.
    pub(super) fn answered_for(&self, period: Duration) -> bool {
        self.last_failure().is_none_or(|at| at.elapsed() >= period)
    }

    pub(super) async fn invoke<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, LeaseError> {
        let (mut connection, generation) = self.connection().await?;
        self.answer(generation, script.invoke_async(&mut connection)).await
    }

    pub(super) async fn query<T: FromRedisValue>(&self, pipe: &Pipeline) -> Result<T, LeaseError> {
        let (mut connection, generation) = self.connection().await?;
        self.answer(generation, pipe.query_async(&mut connection)).await
    }

    async fn answer<T>(
        &self,
        generation: u64,
        call: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, LeaseError> {
        // The connection has this limit for each command; a script may need two, and to be loaded.
        let problem = match tokio::time::timeout(self.options.response_timeout * 2, call).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        self.note_failure();
        // Whatever went wrong, a new connection is cheap and may reach another server.
        let mut state = self.state.lock().await;
        if state.generation == generation {
            state.connection = None;
        }
        Err(LeaseError { problem })
    }

    async fn connection(&self) -> Result<(MultiplexedConnection, u64), LeaseError> {
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection {
            return Ok((connection.clone(), state.generation));
        }
        if state.failed_at.is_some_and(|at| at.elapsed() < RECONNECT_PAUSE) {
            self.note_failure();
            return Err(LeaseError { problem: "not connected".to_owned() });
        }
        match self.connect().await {
            Ok(connection) => {
                state.generation += 1;
                state.failed_at = None;
                state.connection = Some(connection.clone());
                Ok((connection, state.generation))
            }
            Err(error) => {
                state.failed_at = Some(Instant::now());
                self.note_failure();
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, LeaseError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(Some(self.options.response_timeout));
        let connect = self.client.get_multiplexed_async_connection_with_config(&config);
        match tokio::time::timeout(self.options.connect_timeout, connect).await {
            Ok(done) => done.map_err(|e| LeaseError { problem: e.to_string() }),
            Err(_) => Err(LeaseError { problem: "no connection in time".to_owned() }),
        }
    }

    fn note_failure(&self) {
        *self.failure_slot() = Some(Instant::now());
    }

    fn last_failure(&self) -> Option<Instant> {
        *self.failure_slot()
    }

    fn failure_slot(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.last_failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
