//! What a person wants to read when a test has failed.

use std::fmt::Write;

use super::Site;
use crate::lounge;
use crate::operator::SELECTOR;

/// Lines of each log that are printed; the file has all that Kubernetes still has.
const SHOWN_LINES: usize = 25;
/// Characters of each line that are printed.
const SHOWN_WIDTH: usize = 240;

impl Site {
    /// Collects state, events and logs into a file of the site's folder, and returns the part worth printing.
    ///
    /// Never fails: what cannot be had is named in the text.
    pub async fn diagnose(&self) -> String {
        let mut shown = String::new();
        let mut all = String::new();
        let kept = self.folder().join("diagnosis.txt");
        for (title, args) in [
            ("RoomCluster", vec!["get", "roomcluster", lounge::NAME, "-o", "jsonpath={.status}"]),
            ("Objects", vec!["get", "pods,jobs,services,poddisruptionbudgets,endpointslices", "-o", "wide"]),
            ("Events", vec!["get", "events", "--sort-by=.lastTimestamp"]),
            ("Operator", vec!["logs", "-l", SELECTOR, "--tail=-1"]),
        ] {
            self.note(title, &args, &mut shown, &mut all).await;
        }
        let pods = self.kubectl.run(&["get", "pods", "-o", "name"]).await.unwrap_or_default();
        for pod in pods.lines().filter(|pod| pod.contains(lounge::NAME)) {
            let title = format!("Logs of {pod}");
            let args = ["logs", pod, "--all-containers", "--prefix", "--tail=-1"];
            self.note(&title, &args, &mut shown, &mut all).await;
        }
        self.note("Pods in detail", &["describe", "pods"], &mut String::new(), &mut all).await;
        let written = tokio::fs::create_dir_all(self.folder()).await;
        if written.is_ok() && tokio::fs::write(&kept, &all).await.is_ok() {
            // Writing to a String cannot fail.
            let _ = writeln!(shown, "\nmore is in {}", kept.display());
        }
        shown
    }

    async fn note(&self, title: &str, args: &[&str], shown: &mut String, all: &mut String) {
        let text = match self.kubectl.attempt(args, "").await {
            Ok(outcome) => outcome.stdout + &outcome.stderr,
            Err(error) => format!("{error:#}"),
        };
        let _ = write!(shown, "\n---- {title}\n{}\n", tail_of(&text));
        let _ = write!(all, "\n---- {title}\n{text}\n");
    }
}

/// The end of a text, in lines that can be read.
fn tail_of(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| line.chars().take(SHOWN_WIDTH).collect()).collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_is_cut_to_its_end_and_its_width() {
        let text: String = (0..100).map(|line| format!("{line} {}\n", "x".repeat(1_000))).collect();
        let tail = tail_of(&text);
        assert_eq!(tail.lines().count(), SHOWN_LINES);
        assert!(tail.lines().last().unwrap().starts_with("99 "));
        assert!(tail.lines().all(|line| line.len() == SHOWN_WIDTH));
    }
}
