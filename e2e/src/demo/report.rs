//! The demo's report: a function of what clients, audit and pods say.

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::site::Verdict;

/// What the demo shows, and leaves for programs.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Pods of the old revision that were replaced.
    pub(super) pods_rolled: usize,
    /// Rooms that the clients used.
    pub(super) rooms: u32,
    /// Commands whose answer arrived.
    pub(super) commands_acked: u64,
    /// Acknowledged, and not in the log.
    pub(super) commands_lost: u64,
    /// In effect more than once.
    pub(super) commands_doubled: u64,
    /// Given up after the retries that the API documents, or answered wrongly.
    pub(super) client_errors: u64,
    /// Most tries of one command.
    pub(super) tries_max: u32,
    /// Most changes of owner of one room.
    pub(super) moves_per_room_max: u32,
    /// Half of the pauses of rooms that moved are at most this.
    pub pause_ms_p50: f64,
    /// All but one in a hundred are at most this.
    pub pause_ms_p99: f64,
    /// The longest.
    pub(super) pause_ms_max: f64,
    /// `pass` or `fail`.
    pub(super) audit: String,
}

impl Report {
    /// From what was seen.
    #[must_use]
    pub(super) fn new(pods_rolled: usize, rooms: u32, verdict: &Verdict) -> Self {
        let Verdict { load, audit } = verdict;
        Self {
            pods_rolled,
            rooms,
            commands_acked: load.commands_acked,
            commands_lost: audit.commands_lost,
            commands_doubled: audit.commands_doubled,
            client_errors: load.client_errors + load.read_errors + load.wrong_answers,
            tries_max: load.tries_max,
            moves_per_room_max: load.moves_per_room_max,
            pause_ms_p50: load.pause_ms.p50,
            pause_ms_p99: load.pause_ms.p99,
            pause_ms_max: load.pause_ms.max,
            audit: audit.audit.clone(),
        }
    }

    /// Whether the roll kept its promises.
    ///
    /// # Errors
    /// With the first one that it did not keep.
    pub(super) fn promises_kept(&self, pods: usize) -> Result<()> {
        ensure!(self.pods_rolled == pods, "{} of {pods} pods were rolled", self.pods_rolled);
        ensure!(self.commands_acked > 0, "the clients got nothing done");
        ensure!(self.commands_lost == 0, "{} commands were lost", self.commands_lost);
        ensure!(self.commands_doubled == 0, "{} commands were done twice", self.commands_doubled);
        ensure!(self.client_errors == 0, "clients saw {} errors", self.client_errors);
        ensure!(self.moves_per_room_max <= 1, "a room moved {} times", self.moves_per_room_max);
        ensure!(self.audit == "pass", "the audit failed");
        Ok(())
    }

    /// For people.
    #[must_use]
    pub(super) fn lines(&self) -> Vec<String> {
        vec![
            format!("pods rolled         {}", self.pods_rolled),
            format!("rooms               {}", self.rooms),
            format!("commands            {} acknowledged", self.commands_acked),
            format!("lost, doubled       {}, {}", self.commands_lost, self.commands_doubled),
            format!(
                "client errors       {} (at most {} tries of one command)",
                self.client_errors, self.tries_max
            ),
            format!("moves per room      {} at most", self.moves_per_room_max),
            format!(
                "pause of a room     {:.1} ms median, {:.1} ms p99, {:.1} ms longest",
                self.pause_ms_p50, self.pause_ms_p99, self.pause_ms_max
            ),
            format!("audit               {}", self.audit),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn verdict(load: &Value, audit: &Value) -> Verdict {
        let mut all_well = json!({ "commands_acked": 9, "client_errors": 0, "read_errors": 0, "wrong_answers": 0,
            "tries_max": 2, "moves_total": 3, "moves_per_room_max": 1, "rooms_moved": 3,
            "pause_ms": { "count": 3, "p50": 1.0, "p99": 2.0, "max": 3.0 } });
        let mut proven = json!({ "audit": "pass", "commands_lost": 0, "commands_doubled": 0, "events_missing": 0,
            "commands": 9 });
        for (whole, part) in [(&mut all_well, load), (&mut proven, audit)] {
            whole.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        }
        Verdict { load: from_value(all_well).unwrap(), audit: from_value(proven).unwrap() }
    }

    #[test]
    fn a_roll_without_a_fault_keeps_its_promises() {
        Report::new(3, 300, &verdict(&json!({}), &json!({}))).promises_kept(3).unwrap();
    }

    #[test]
    fn every_fault_is_told() {
        let nothing = json!({});
        for (load, audit, pods, told) in [
            (json!({ "client_errors": 1 }), nothing.clone(), 3, "errors"),
            (json!({ "read_errors": 1 }), nothing.clone(), 3, "errors"),
            (json!({ "wrong_answers": 1 }), nothing.clone(), 3, "errors"),
            (json!({ "moves_per_room_max": 2 }), nothing.clone(), 3, "moved"),
            (json!({ "commands_acked": 0 }), nothing.clone(), 3, "nothing"),
            (nothing.clone(), json!({ "commands_lost": 1 }), 3, "lost"),
            (nothing.clone(), json!({ "commands_doubled": 1 }), 3, "twice"),
            (nothing.clone(), json!({ "audit": "fail" }), 3, "audit"),
            (nothing.clone(), nothing, 2, "rolled"),
        ] {
            let error = Report::new(pods, 300, &verdict(&load, &audit)).promises_kept(3).unwrap_err();
            assert!(error.to_string().contains(told), "{error} does not tell of {told}");
        }
    }

    #[test]
    fn the_report_has_the_fields_that_are_promised_and_no_others() {
        let report = serde_json::to_value(Report::new(3, 300, &verdict(&json!({}), &json!({})))).unwrap();
        let mut fields: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        let mut promised = [
            "pods_rolled",
            "rooms",
            "commands_acked",
            "commands_lost",
            "commands_doubled",
            "client_errors",
            "tries_max",
            "moves_per_room_max",
            "pause_ms_p50",
            "pause_ms_p99",
            "pause_ms_max",
            "audit",
        ];
        promised.sort_unstable();
        assert_eq!(fields, promised);
    }
}
