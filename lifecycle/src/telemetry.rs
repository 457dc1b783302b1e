//! Logs: one line per event, on standard error, under the filter in `RUST_LOG` (`info` unless told).
//!
//! A JSON line carries the name of the process and the fields of its event at the top level. Panics are events.
//! This module does not decide what is logged.

mod json;

use std::panic::PanicHookInfo;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::JsonFields;

pub(crate) use json::JsonLines;

use crate::args::ConfigError;
use crate::state::Identity;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line, for machines.
    #[default]
    Json,
    /// Plain text, for people.
    Text,
}

/// Starts the logs of the process and logs panics from now on. A second call changes nothing.
///
/// # Errors
/// `RUST_LOG` cannot be read.
pub fn init(identity: &Identity, format: LogFormat) -> Result<(), ConfigError> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(directives) if !directives.trim().is_empty() => EnvFilter::try_new(&directives)
            .map_err(|error| ConfigError::new("RUST_LOG", format!("{directives:?}: {error}")))?,
        _ => EnvFilter::new("info"),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Json => {
            builder.fmt_fields(JsonFields::new()).event_format(JsonLines::new(identity.clone())).try_init()
        }
        LogFormat::Text => builder.try_init(),
    };
    if started.is_ok() {
        std::panic::set_hook(Box::new(log_panic));
    }
    Ok(())
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("a panic without text");
    let location = panic.location().map(ToString::to_string);
    let thread = std::thread::current();
    let backtrace = std::backtrace::Backtrace::capture();
    let backtrace = matches!(backtrace.status(), std::backtrace::BacktraceStatus::Captured)
        .then(|| backtrace.to_string());
    tracing::error!(
        panic = message,
        location = location.as_deref(),
        thread = thread.name().unwrap_or("unnamed"),
        backtrace = backtrace.as_deref(),
        "the code panicked"
    );
}
