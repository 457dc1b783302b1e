//! The order that stands on a pod, as its annotation.
//!
//! It is the only thing about a drain that is written down; everything else is observed anew. An annotation
//! with another pod's UID (a copied manifest) or that cannot be read says nothing.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{DrainEpoch, PodUid};

pub use roomcluster_crds::DrainReason;

/// The standing order of one pod.
///
/// No reasons: a drain was withdrawn; the epoch stays, so that the next order can be told from the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainIntent {
    /// The order's number.
    pub epoch: DrainEpoch,
    /// Why the pod is to leave.
    pub reasons: BTreeSet<DrainReason>,
    /// When it was first told to, in this epoch.
    pub since: Timestamp,
    /// Rooms that it held then, where that was known; for the ledger.
    pub rooms_at_start: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    uid: String,
    epoch: u64,
    reasons: BTreeSet<DrainReason>,
    since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rooms: Option<u64>,
}

impl DrainIntent {
    /// Whether it tells the pod to leave.
    #[must_use]
    pub fn is_drain(&self) -> bool {
        !self.reasons.is_empty()
    }

    /// Reads the annotation of the pod with this UID.
    #[must_use]
    pub fn parse(text: &str, uid: &PodUid) -> Option<Self> {
        let wire: Wire = serde_json::from_str(text).ok()?;
        (wire.uid == uid.as_str()).then_some(Self {
            epoch: DrainEpoch::new(wire.epoch),
            reasons: wire.reasons,
            since: wire.since,
            rooms_at_start: wire.rooms,
        })
    }

    /// The annotation's text for the pod with this UID.
    #[must_use]
    pub fn to_annotation(&self, uid: &PodUid) -> String {
        let wire = Wire {
            uid: uid.as_str().to_owned(),
            epoch: self.epoch.get(),
            reasons: self.reasons.clone(),
            since: self.since,
            rooms: self.rooms_at_start,
        };
        serde_json::to_string(&wire).expect("strings, numbers and a list always serialize")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_reads_back_as_it_was_written_and_only_on_its_own_pod() {
        let uid = PodUid::new("a-1");
        let intent = DrainIntent {
            epoch: DrainEpoch::new(3),
            reasons: BTreeSet::from([DrainReason::Upgrade]),
            since: "2026-01-02T03:04:05Z".parse().unwrap(),
            rooms_at_start: Some(7),
        };
        let text = intent.to_annotation(&uid);
        assert!(text.contains(r#""reasons":["Upgrade"]"#), "{text}");
        assert!(text.contains(r#""since":"2026-01-02T03:04:05Z""#), "{text}");
        assert_eq!(DrainIntent::parse(&text, &uid), Some(intent));
        assert_eq!(DrainIntent::parse(&text, &PodUid::new("a-2")), None);
        assert_eq!(DrainIntent::parse("not json", &uid), None);
    }

    #[test]
    fn an_order_without_reasons_is_a_withdrawal() {
        let text = r#"{"uid":"u","epoch":4,"reasons":[],"since":"2026-01-02T03:04:05Z"}"#;
        let intent = DrainIntent::parse(text, &PodUid::new("u")).unwrap();
        assert!(!intent.is_drain());
        assert_eq!(intent.epoch, DrainEpoch::new(4));
    }
}
