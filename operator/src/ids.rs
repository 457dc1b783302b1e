//! Ids and numbers with a meaning.
//!
//! They exist so that a pod's name, its UID and a process's incarnation cannot be mixed up: the safety of a
//! drain rests on comparing exactly these three.

use std::fmt;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Takes the text as it is.
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// Name of a pod, which is also the node id of the process in it.
    PodName
}
text_id! {
    /// UID of a pod: another pod of the same name is another pod.
    PodUid
}
text_id! {
    /// Revision hash, compared for equality only.
    Revision
}
text_id! {
    /// One start of a node's process.
    Incarnation
}

/// Numbers the orders given to one pod. Never falls, also not over a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DrainEpoch(u64);

impl DrainEpoch {
    /// The epoch of the first order that a pod ever gets. Zero is what a node reports before any.
    pub const FIRST: Self = Self(1);

    /// Takes the number as a node or an annotation tells it.
    #[must_use]
    pub const fn new(epoch: u64) -> Self {
        Self(epoch)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The epoch of the next, different order.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for DrainEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
