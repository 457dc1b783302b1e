//! Ids and numbers with a meaning.
//!
//! Each validates when it is made, so that the code inside needs no checks. Ids are compared as bytes: `Room1`
//! and `room1` are two rooms, and so are `a` and `a` followed by a space.

use std::fmt;
use std::sync::Arc;

use rand::RngExt;
use serde::{Deserialize, Serialize};

/// Longest `app_code` in bytes.
pub const MAX_APP_CODE_BYTES: usize = 64;
/// Longest room, command, user and node id in bytes.
pub const MAX_ID_BYTES: usize = 128;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// Nothing was given.
    #[error("{field} is missing; send 1 to {max} bytes")]
    Missing {
        /// Name of the field.
        field: &'static str,
        /// Longest allowed.
        max: usize,
    },
    /// Over the bound.
    #[error("{field} has {bytes} bytes; send at most {max}")]
    TooLong {
        /// Name of the field.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// Longest allowed.
        max: usize,
    },
    /// NUL, a line feed, a DEL and the like.
    #[error("{field} has a control character at byte {at}; send printable text")]
    ControlCharacter {
        /// Name of the field.
        field: &'static str,
        /// Where it stands.
        at: usize,
    },
}

/// Checks an id's text: 1 to `max` bytes without control characters.
pub fn check_id(field: &'static str, text: &str, max: usize) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Missing { field, max });
    }
    if text.len() > max {
        return Err(InvalidId::TooLong { field, bytes: text.len(), max });
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(InvalidId::ControlCharacter { field, at }),
        None => Ok(()),
    }
}

/// The name of a room: an app and an id within it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoomKey {
    app_code: Arc<str>,
    room_id: Arc<str>,
}

impl RoomKey {
    /// Checks both parts.
    pub fn new(app_code: &str, room_id: &str) -> Result<Self, InvalidId> {
        check_id("app_code", app_code, MAX_APP_CODE_BYTES)?;
        check_id("room_id", room_id, MAX_ID_BYTES)?;
        Ok(Self { app_code: app_code.into(), room_id: room_id.into() })
    }

    /// The app (tenant).
    pub fn app_code(&self) -> &str {
        &self.app_code
    }

    /// The room within the app.
    pub fn room_id(&self) -> &str {
        &self.room_id
    }
}

impl fmt::Debug for RoomKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.app_code, self.room_id)
    }
}

impl fmt::Display for RoomKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $field:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text.
            pub fn new(text: &str) -> Result<Self, InvalidId> {
                check_id($field, text, MAX_ID_BYTES)?;
                Ok(Self(text.into()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.as_ref().to_owned()
            }
        }
    };
}

text_id!(
    /// The client's name for one command, unique within its room.
    CommandId,
    "command_id"
);
text_id!(
    /// The unique name of a room-service instance; on Kubernetes the pod's name.
    NodeId,
    "node_id"
);

/// How often a room has changed hands: the fence. Never falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch of the next owner.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A command's place in the log of its room, from 1 without gap; 0 is before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// The place after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Proof of one ownership: one to one with its epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseToken(pub [u8; 16]);

impl LeaseToken {
    /// A fresh random token.
    pub fn random(rng: &mut impl RngExt) -> Self {
        Self(rng.random())
    }

    /// Lower-case hex, as logs and Redis show it.
    pub fn to_hex(self) -> String {
        hex(&self.0)
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// One run of a node's process: fresh at each start.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Incarnation(pub [u8; 16]);

impl Incarnation {
    /// A fresh random incarnation.
    pub fn random(rng: &mut impl RngExt) -> Self {
        Self(rng.random())
    }

    /// Lower-case hex, as metrics and messages show it.
    pub fn to_hex(self) -> String {
        hex(&self.0)
    }

    /// Reads what [`Self::to_hex`] wrote.
    pub fn from_hex(text: &str) -> Option<Self> {
        unhex(text).map(Self)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// A hash of 32 bytes (blake3).
pub type Hash32 = [u8; 32];

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]])
        .map(char::from)
        .collect()
}

/// Reads 16 bytes of hex.
pub fn unhex(text: &str) -> Option<[u8; 16]> {
    let mut out = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

/// One run of one node, with the address that peers reach it at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRef {
    /// The node.
    pub node_id: NodeId,
    /// Its process.
    pub incarnation: Incarnation,
    /// `host:port` of the instance itself, never of a load balancer.
    pub address: String,
}

/// What an owner holds: shown at every commit, renewal and release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Which ownership.
    pub epoch: Epoch,
    /// Its proof.
    pub token: LeaseToken,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_bounded_and_printable() {
        assert!(RoomKey::new("app", "room 1 ").is_ok());
        assert_eq!(check_id("x", "", 3), Err(InvalidId::Missing { field: "x", max: 3 }));
        assert_eq!(check_id("x", "abcd", 3), Err(InvalidId::TooLong { field: "x", bytes: 4, max: 3 }));
        for bad in ["a\0", "a\n", "a\u{7f}", "a\u{85}"] {
            assert_eq!(
                check_id("x", bad, 9),
                Err(InvalidId::ControlCharacter { field: "x", at: 1 }),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn ids_differ_by_case_and_by_trailing_space() {
        let key = |room| RoomKey::new("app", room).unwrap();
        assert_ne!(key("Room"), key("room"));
        assert_ne!(key("room"), key("room "));
    }

    #[test]
    fn hex_reads_back_what_it_wrote() {
        let incarnation = Incarnation([7; 16]);
        assert_eq!(Incarnation::from_hex(&incarnation.to_hex()), Some(incarnation));
        assert_eq!(Incarnation::from_hex("zz"), None);
    }
}
