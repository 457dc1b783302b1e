//! Configuration that is wrong is refused before anything starts: exit 64, with the name of the flag.
//!
//! Clap parses; this module adds parsers for what clap does not know, and an error that never shows a secret.
//! A flag is a secret if its argument says `hide_env_values = true`.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Parser};

/// What `main` and its parts return for errors that nobody handles.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All work was ended in order.
    Clean,
    /// It could not start, or a part without which it is of no use ended.
    Failed,
    /// Its configuration is wrong.
    BadConfig,
    /// Something was cut off while it ended.
    CutShort,
}

impl Exit {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Failed => 1,
            Self::BadConfig => 64,
            Self::CutShort => 70,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// A flag or environment variable with a value that the process cannot work with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The flag, for example `--admin-listen`.
    pub flag: String,
    /// What is wrong with it. Never the value of a secret.
    pub problem: String,
}

impl ConfigError {
    /// What is wrong with a flag.
    pub fn new(flag: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { flag: flag.into(), problem: problem.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.flag, self.problem)
    }
}

impl Error for ConfigError {}

/// The exit that an error of `main` leads to: bad configuration if that is what it is, or what caused it.
pub fn exit_of(error: &(dyn Error + 'static)) -> Exit {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<ConfigError>() {
            return Exit::BadConfig;
        }
        cause = error.source();
    }
    Exit::Failed
}

/// Reads the command line and the environment. Help and version are printed and end the process with 0; a
/// configuration error is printed and ends it with 64.
pub fn parse_or_exit<T: Parser>() -> T {
    let error = match T::try_parse() {
        Ok(args) => return args,
        Err(error) => error,
    };
    if !error.use_stderr() {
        error.exit();
    }
    let problem = describe(&error, &T::command());
    eprintln!("error: {problem}");
    std::process::exit(i32::from(Exit::BadConfig.code()));
}

/// Reads the command line as [`parse_or_exit`] does, from the given words (the first is the program).
///
/// # Errors
/// The flag and what is wrong with it. Help and version count as errors here.
pub fn parse_from<T: Parser>(words: impl IntoIterator<Item = String>) -> Result<T, ConfigError> {
    T::try_parse_from(words).map_err(|error| describe(&error, &T::command()))
}

fn describe(error: &clap::Error, command: &Command) -> ConfigError {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    // Clap names an argument as it stands in the usage: `--shutdown-timeout <DURATION>`.
    let usage = text(ContextKind::InvalidArg).or_else(|| text(ContextKind::InvalidSubcommand));
    let usage = usage.unwrap_or_else(|| "command line".to_owned());
    let argument = find_argument(command, &usage);
    let flag = argument.map_or(usage, flag_of);
    let is_secret = argument.is_some_and(Arg::is_hide_env_values_set);
    let value = text(ContextKind::InvalidValue).filter(|value| !is_secret && !value.is_empty());
    let value = value.map_or(String::new(), |value| format!("{value:?}: "));
    let problem = match error.kind() {
        ErrorKind::ValueValidation if is_secret => {
            "the value is not valid (it is a secret and not shown)".to_owned()
        }
        ErrorKind::ValueValidation => {
            error.source().map_or_else(|| "the value is not valid".to_owned(), |source| source.to_string())
        }
        ErrorKind::InvalidValue => match text(ContextKind::ValidValue) {
            Some(valid) => format!("write one of {valid}"),
            None => "a value is missing".to_owned(),
        },
        ErrorKind::MissingRequiredArgument => "a value is required".to_owned(),
        kind => kind.as_str().map_or_else(|| "cannot be read".to_owned(), str::to_owned),
    };
    let suggested = match error.get(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => tips.iter().map(StyledStr::to_string).collect(),
        _ => text(ContextKind::SuggestedArg).into_iter().collect::<Vec<_>>(),
    };
    let tip = if suggested.is_empty() { String::new() } else { format!(" ({})", suggested.join("; ")) };
    ConfigError::new(flag, format!("{value}{problem}{tip}"))
}

fn find_argument<'a>(command: &'a Command, usage: &str) -> Option<&'a Arg> {
    let here = command.get_arguments().find(|argument| {
        let long = argument.get_long().map(|long| format!("--{long}"));
        long.is_some_and(|long| usage.split([' ', '=', ',']).any(|word| word == long))
    });
    here.or_else(|| command.get_subcommands().find_map(|inner| find_argument(inner, usage)))
}

fn flag_of(argument: &Arg) -> String {
    let long = argument.get_long().unwrap_or_default();
    match argument.get_env() {
        Some(variable) => format!("--{long} (or {})", variable.display()),
        None => format!("--{long}"),
    }
}

/// A duration such as `500ms`, `10s`, `1m` or `1m30s`, for clap's `value_parser`.
///
/// # Errors
/// What to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    let how = || "write numbers with units, such as 500ms, 10s, 1m or 1m30s".to_owned();
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(how());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(how)?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let number: u64 = number.parse().map_err(|_| how())?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(how()),
        };
        let part_ms = number.checked_mul(unit_ms).ok_or("the duration is too long")?;
        total = total.checked_add(Duration::from_millis(part_ms)).ok_or("the duration is too long")?;
        rest = after;
    }
    Ok(total)
}

/// A duration as [`duration`] reads it, but not zero: for periods and time-outs.
///
/// # Errors
/// What to write instead.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be longer than 0".to_owned()),
        positive => Ok(positive),
    }
}

#[cfg(test)]
mod tests;
