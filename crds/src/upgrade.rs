//! How pods of an old revision are replaced: the budgets. Who drains first is the operator's plan.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::rules;

/// How pods of an old revision are replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Upgrade {
    /// RollingUpdate replaces pods by itself; OnDelete replaces a pod only after somebody has deleted it.
    #[serde(rename = "type")]
    pub kind: UpgradeType,
    /// Budgets of RollingUpdate.
    pub rolling_update: RollingUpdate,
    /// Seconds for which a new pod must be ready before it counts as available.
    #[schemars(range(min = 0, max = 3600))]
    pub min_ready_seconds: u32,
    /// Seconds without progress after which a roll is reported as stuck. Time in which rooms are rightly
    /// waited for does not count.
    #[schemars(range(min = 30, max = 86400))]
    pub progress_deadline_seconds: u32,
}

impl Default for Upgrade {
    fn default() -> Self {
        Self {
            kind: UpgradeType::default(),
            rolling_update: RollingUpdate::default(),
            min_ready_seconds: 5,
            progress_deadline_seconds: 600,
        }
    }
}

/// Who begins the replacement of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum UpgradeType {
    /// The operator.
    #[default]
    RollingUpdate,
    /// Whoever deletes the pod.
    OnDelete,
}

/// Budgets of a rolling update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::rolling_update()))]
pub struct RollingUpdate {
    /// Pods beyond replicas that may exist during a roll; a percentage of replicas is rounded up.
    pub max_surge: PodCount,
    /// Pods below replicas that may be unavailable during a roll; a percentage of replicas is rounded down.
    pub max_unavailable: PodCount,
    /// Pods that stay at the current revision: 0 rolls all.
    #[schemars(range(min = 0, max = 1000))]
    pub partition: u32,
    /// Rooms that may be leaving pods at the same time. One pod may always drain, whatever it holds.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub max_draining_rooms: u64,
}

impl Default for RollingUpdate {
    fn default() -> Self {
        Self {
            max_surge: PodCount::Number(1),
            max_unavailable: PodCount::Number(0),
            partition: 0,
            max_draining_rooms: 20_000,
        }
    }
}

/// The pod budgets of a roll, in pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodBudget {
    /// Pods beyond replicas that may exist.
    pub surge_pods: u32,
    /// Pods below replicas that may be unavailable.
    pub unavailable_pods: u32,
}

impl RollingUpdate {
    /// The budgets for so many replicas.
    ///
    /// Percentages that both round to zero would stop every roll; one pod may then be unavailable, as in a
    /// Deployment.
    #[must_use]
    pub fn pod_budget(&self, replicas: u32) -> PodBudget {
        let surge_pods = self.max_surge.of_rounded_up(replicas);
        let unavailable_pods = self.max_unavailable.of_rounded_down(replicas);
        let stuck = surge_pods == 0 && unavailable_pods == 0;
        PodBudget { surge_pods, unavailable_pods: if stuck { 1 } else { unavailable_pods } }
    }
}

/// A number of pods, or a percentage of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "IntOrString", into = "IntOrString")]
pub enum PodCount {
    /// So many pods.
    Number(u32),
    /// So many hundredths of replicas, 0 to 100.
    Percent(u8),
}

/// Neither a number of pods nor a percentage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no number of pods: write a number, as in 1, or a percentage in quotes, as in \"25%\"")]
pub struct ParsePodCountError {
    text: String,
}

impl PodCount {
    fn of_rounded_up(self, replicas: u32) -> u32 {
        match self {
            Self::Number(pods) => pods,
            Self::Percent(percent) => hundredths(replicas, percent, 99),
        }
    }

    fn of_rounded_down(self, replicas: u32) -> u32 {
        match self {
            Self::Number(pods) => pods,
            Self::Percent(percent) => hundredths(replicas, percent, 0),
        }
    }
}

/// `replicas * percent / 100`, with `addend` hundredths added before the division.
fn hundredths(replicas: u32, percent: u8, addend: u64) -> u32 {
    let pods = (u64::from(replicas) * u64::from(percent) + addend) / 100;
    u32::try_from(pods).expect("a percentage up to 100 of a u32 fits a u32")
}

impl TryFrom<IntOrString> for PodCount {
    type Error = ParsePodCountError;

    fn try_from(value: IntOrString) -> Result<Self, Self::Error> {
        match value {
            IntOrString::Int(number) => u32::try_from(number)
                .map(Self::Number)
                .map_err(|_| ParsePodCountError { text: number.to_string() }),
            IntOrString::String(text) => {
                let percent =
                    text.strip_suffix('%').and_then(|digits| digits.parse().ok()).filter(|p| *p <= 100);
                percent.map(Self::Percent).ok_or(ParsePodCountError { text })
            }
        }
    }
}

impl From<PodCount> for IntOrString {
    fn from(count: PodCount) -> Self {
        match count {
            PodCount::Number(pods) => Self::Int(i32::try_from(pods).unwrap_or(i32::MAX)),
            PodCount::Percent(percent) => Self::String(format!("{percent}%")),
        }
    }
}

impl fmt::Display for PodCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(pods) => write!(f, "{pods}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl JsonSchema for PodCount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PodCount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true, "maxLength": 16 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(max_surge: PodCount, max_unavailable: PodCount, replicas: u32) -> (u32, u32) {
        let rolling = RollingUpdate { max_surge, max_unavailable, ..RollingUpdate::default() };
        let budget = rolling.pod_budget(replicas);
        (budget.surge_pods, budget.unavailable_pods)
    }

    #[test]
    fn a_percentage_rounds_up_for_surge_and_down_for_unavailable() {
        use PodCount::{Number, Percent};
        for (surge, unavailable, replicas, expected) in [
            (Number(1), Number(0), 3, (1, 0)),
            (Percent(25), Percent(25), 10, (3, 2)),
            (Percent(25), Number(0), 0, (0, 1)),
            (Percent(100), Percent(100), 7, (7, 7)),
            (Percent(1), Number(0), 1, (1, 0)),
        ] {
            assert_eq!(budget(surge, unavailable, replicas), expected, "{surge} {unavailable} of {replicas}");
        }
    }

    #[test]
    fn budgets_that_both_round_to_zero_still_let_one_pod_be_replaced() {
        assert_eq!(budget(PodCount::Number(0), PodCount::Percent(10), 3), (0, 1));
    }

    #[test]
    fn what_is_no_pod_count_is_refused_with_an_example() {
        for text in ["\"5\"", "\"101%\"", "\"-1%\"", "-1", "\"%\"", "\"a%\""] {
            let error = serde_json::from_str::<PodCount>(text).unwrap_err().to_string();
            assert!(error.contains("25%"), "{text}: {error}");
        }
        for text in ["0", "3", "\"0%\"", "\"100%\""] {
            let count: PodCount = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&count).unwrap(), text);
        }
    }
}
