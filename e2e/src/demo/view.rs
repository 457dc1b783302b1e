//! The roll as a table, a function of what is seen; and a screen that shows it.
//!
//! On a terminal the table is redrawn in place. Anywhere else a line appears when something has changed.

use std::io::{IsTerminal, Write};

use roomcluster_crds::{PodStatus, RoomClusterStatus};

use crate::traffic::Progress;

/// Columns where the terminal does not tell.
const DEFAULT_WIDTH: usize = 110;

/// What is seen at one moment.
pub(super) struct Snapshot {
    /// Seconds since the roll began.
    pub(super) elapsed_s: f64,
    /// What the operator reports.
    pub(super) status: RoomClusterStatus,
    /// The pods, with what the operator does not report.
    pub(super) pods: Vec<PodRow>,
    /// What the clients see.
    pub(super) clients: Progress,
}

/// One pod.
pub(super) struct PodRow {
    /// Its name.
    pub(super) name: String,
    /// Tag of its image.
    pub(super) tag: String,
    /// Its node.
    pub(super) node: String,
    /// What the operator reports of it.
    pub(super) reported: Option<PodStatus>,
}

impl PodRow {
    fn phase(&self) -> String {
        self.reported.as_ref().map_or_else(|| "-".to_owned(), |pod| format!("{:?}", pod.phase))
    }

    fn rooms(&self) -> String {
        let rooms = self.reported.as_ref().and_then(|pod| pod.rooms);
        rooms.map_or_else(|| "-".to_owned(), |rooms| rooms.to_string())
    }

    fn revision(&self) -> &str {
        self.reported.as_ref().map_or("-", |pod| pod.revision.as_str())
    }

    fn awaited(&self) -> &str {
        let drain = self.reported.as_ref().and_then(|pod| pod.drain.as_ref());
        drain.and_then(|drain| drain.blocked_by.as_deref()).unwrap_or_default()
    }
}

impl Snapshot {
    fn headline(&self) -> String {
        let phase = self.status.phase.map_or_else(|| "-".to_owned(), |phase| format!("{phase:?}"));
        let message = self.status.message.as_deref().unwrap_or_default();
        format!("{:6.1} s  {phase}  {message}", self.elapsed_s)
    }

    fn clients_line(&self) -> String {
        let Progress { commands_per_s, commands_acked, client_errors, wrong_answers, .. } = self.clients;
        format!(
            "clients  {commands_per_s:.0} commands/s  {commands_acked} acknowledged  {} errors  {} retries  \
             {} rooms moved  longest pause {:.0} ms",
            client_errors + wrong_answers,
            self.clients.retries,
            self.clients.rooms_moved,
            self.clients.pause_max_ms,
        )
    }

    /// The table.
    #[must_use]
    pub(super) fn table(&self) -> Vec<String> {
        let mut lines = vec![
            self.headline(),
            format!(
                "{:<18} {:<5} {:<4} {:<12} {:<12} {:>6}  AWAITED",
                "POD", "IMAGE", "NODE", "REVISION", "PHASE", "ROOMS"
            ),
        ];
        lines.extend(self.pods.iter().map(|pod| {
            let (phase, rooms) = (pod.phase(), pod.rooms());
            format!(
                "{:<18} {:<5} {:<4} {:<12} {phase:<12} {rooms:>6}  {}",
                pod.name,
                pod.tag,
                pod.node,
                pod.revision(),
                pod.awaited()
            )
        }));
        lines.push(self.clients_line());
        lines
    }

    /// What makes a new line worth printing where nothing can be redrawn: no number that always changes.
    #[must_use]
    pub(super) fn gist(&self) -> String {
        let pods: Vec<String> =
            self.pods.iter().map(|pod| format!("{} {} {}", pod.name, pod.tag, pod.phase())).collect();
        let phase = self.status.phase.map_or_else(|| "-".to_owned(), |phase| format!("{phase:?}"));
        format!("{phase}: {}", pods.join(", "))
    }

    /// One line.
    #[must_use]
    pub(super) fn line(&self) -> String {
        let pods: Vec<String> = self
            .pods
            .iter()
            .map(|pod| format!("{} {} {} {}", pod.name, pod.tag, pod.phase(), pod.rooms()))
            .collect();
        format!("{} | {} | {}", self.headline(), pods.join(", "), self.clients_line())
    }
}

/// Where the roll is shown.
pub(super) struct Screen {
    width: Option<usize>,
    drawn: usize,
    gist: String,
    last_line_s: f64,
}

/// Where nothing can be redrawn, something is said at least so often.
const LINE_EVERY_S: f64 = 5.0;

impl Screen {
    /// Standard output.
    #[must_use]
    pub(super) fn new() -> Self {
        let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
        let width = std::io::stdout().is_terminal().then(|| columns.unwrap_or(DEFAULT_WIDTH));
        Self { width, drawn: 0, gist: String::new(), last_line_s: f64::NEG_INFINITY }
    }

    /// Shows a snapshot.
    pub(super) fn show(&mut self, snapshot: &Snapshot) {
        let text = match self.width {
            Some(width) => self.redraw(snapshot, width),
            None => self.next_line(snapshot),
        };
        let mut out = std::io::stdout().lock();
        // Whoever has closed the output does not want to see it.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    fn redraw(&mut self, snapshot: &Snapshot, width: usize) -> String {
        let lines = snapshot.table();
        let mut text = if self.drawn > 0 { format!("\x1b[{}A\x1b[J", self.drawn) } else { String::new() };
        for line in &lines {
            text.extend(line.chars().take(width.saturating_sub(1)));
            text.push('\n');
        }
        self.drawn = lines.len();
        text
    }

    fn next_line(&mut self, snapshot: &Snapshot) -> String {
        let gist = snapshot.gist();
        if gist == self.gist && snapshot.elapsed_s - self.last_line_s < LINE_EVERY_S {
            return String::new();
        }
        self.gist = gist;
        self.last_line_s = snapshot.elapsed_s;
        snapshot.line() + "\n"
    }
}

impl Default for Screen {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    fn snapshot(elapsed_s: f64, phase: &str) -> Snapshot {
        let pod = json!({ "name": "lounge-a", "uid": "u", "revision": "7f3c", "phase": phase, "rooms": 53,
            "drain": { "epoch": 2, "reasons": ["Upgrade"], "blockedBy": "HoldsRooms" } });
        let status = json!({ "phase": "Rolling", "message": "1 of 3 pods updated" });
        let clients = json!({ "state": "running", "commands_acked": 12, "commands_per_s": 870.4, "client_errors": 1,
            "wrong_answers": 2, "retries": 3, "rooms_moved": 4, "pause_max_ms": 38.2, "owners": {} });
        let row = |name: &str, reported| PodRow {
            name: name.to_owned(),
            tag: "v1".to_owned(),
            node: "n1".to_owned(),
            reported,
        };
        Snapshot {
            elapsed_s,
            status: from_value(status).unwrap(),
            pods: vec![row("lounge-a", Some(from_value(pod).unwrap())), row("lounge-b", None)],
            clients: from_value(clients).unwrap(),
        }
    }

    #[test]
    fn the_table_has_each_pod_with_its_rooms_and_what_is_awaited() {
        let table = snapshot(1.0, "Draining").table().join("\n");
        for word in
            ["1 of 3 pods updated", "Draining", "53", "HoldsRooms", "lounge-b", "870 commands/s", "3 errors"]
        {
            assert!(table.contains(word), "{word} is missing:\n{table}");
        }
    }

    #[test]
    fn a_table_is_redrawn_over_the_last_one_and_cut_to_the_terminal() {
        let mut screen = Screen { width: Some(40), drawn: 0, gist: String::new(), last_line_s: 0.0 };
        let first = screen.redraw(&snapshot(1.0, "Draining"), 40);
        assert!(!first.contains('\x1b') && first.lines().all(|line| line.chars().count() < 40));
        assert!(screen.redraw(&snapshot(1.2, "Draining"), 40).starts_with("\x1b[5A\x1b[J"));
    }

    #[test]
    fn without_a_terminal_a_line_comes_with_a_change_and_now_and_then() {
        let mut screen =
            Screen { width: None, drawn: 0, gist: String::new(), last_line_s: f64::NEG_INFINITY };
        let mut shown = |elapsed_s, phase| !screen.next_line(&snapshot(elapsed_s, phase)).is_empty();
        assert!(shown(0.0, "Ready"));
        assert!(!shown(1.0, "Ready"));
        assert!(shown(1.2, "Draining"));
        assert!(shown(1.2 + LINE_EVERY_S, "Draining"));
    }
}
