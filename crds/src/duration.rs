//! A span of time as people write it in YAML: `30m`, `1h30m`, `45s`.
//!
//! Whole seconds only; hours, minutes and seconds in that order. Written back in the same form, so that
//! what a person reads in the resource is what somebody wrote.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// What the API server accepts; [`DurationText::from_str`] accepts exactly the same, save the empty text.
const PATTERN: &str = "^([0-9]{1,4}h)?([0-9]{1,5}m)?([0-9]{1,7}s)?$";

/// A duration in whole seconds that reads and writes as `1h30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DurationText(Duration);

/// The text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a duration: write hours, minutes and seconds as in \"1h30m\", \"30m\" or \"45s\"")]
pub struct ParseDurationError {
    text: String,
}

impl DurationText {
    /// A duration of whole minutes.
    #[must_use]
    pub const fn from_mins(mins: u64) -> Self {
        Self(Duration::from_secs(mins * 60))
    }

    /// A duration of whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// The span itself.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl FromStr for DurationText {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseDurationError { text: text.to_owned() };
        let mut rest = text;
        let mut total_secs = 0_u64;
        for (unit, unit_secs, max_digits) in [('h', 3600, 4), ('m', 60, 5), ('s', 1, 7)] {
            let Some((digits, tail)) = rest.split_once(unit) else { continue };
            if digits.is_empty() || digits.len() > max_digits || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(error());
            }
            let count: u64 = digits.parse().map_err(|_| error())?;
            total_secs += count * unit_secs;
            rest = tail;
        }
        if text.is_empty() || !rest.is_empty() {
            return Err(error());
        }
        Ok(Self::from_secs(total_secs))
    }
}

impl TryFrom<String> for DurationText {
    type Error = ParseDurationError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<DurationText> for String {
    fn from(duration: DurationText) -> Self {
        duration.to_string()
    }
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.0.as_secs();
        let (hours, minutes, seconds) = (secs / 3600, secs / 60 % 60, secs % 60);
        for (count, unit) in [(hours, 'h'), (minutes, 'm')] {
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        if seconds > 0 || secs == 0 { write!(f, "{seconds}s") } else { Ok(()) }
    }
}

impl JsonSchema for DurationText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DurationText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 2, "maxLength": 20, "pattern": PATTERN })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_reads_as_people_write_it_and_is_written_back_the_same() {
        for (text, secs) in
            [("30m", 1800), ("1h30m", 5400), ("45s", 45), ("2h", 7200), ("0s", 0), ("1h5s", 3605)]
        {
            let parsed: DurationText = text.parse().unwrap();
            assert_eq!(parsed.get(), Duration::from_secs(secs), "{text}");
            assert_eq!(parsed.to_string(), text);
        }
        assert_eq!("90s".parse::<DurationText>().unwrap().to_string(), "1m30s");
    }

    #[test]
    fn what_is_no_duration_is_refused_with_an_example() {
        for text in ["", "30", "m", "5 m", "-5m", "1.5h", "5m1h", "10ms", "12345h"] {
            let error = text.parse::<DurationText>().unwrap_err().to_string();
            assert!(error.contains("1h30m"), "{text}: {error}");
        }
    }
}
