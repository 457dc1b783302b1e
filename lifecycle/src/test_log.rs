//! What a test logged, as JSON lines. Only events of the test's own thread are seen.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::format::JsonFields;

use crate::state::Identity;
use crate::telemetry::JsonLines;

/// The lines logged since [`capture`].
#[derive(Clone, Default)]
pub(crate) struct Log {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The lines with this message.
    pub(crate) fn lines(&self, message: &str) -> Vec<Value> {
        let bytes = self.bytes.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["message"] == message).collect()
    }
}

/// Logs of this thread go to the log until the guard is dropped.
pub(crate) fn capture() -> (DefaultGuard, Log) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .fmt_fields(JsonFields::new())
        .event_format(JsonLines::new(Identity::new("room-service", "node-1")))
        .with_writer(move || writer.clone())
        .finish();
    (tracing::subscriber::set_default(subscriber), log)
}
