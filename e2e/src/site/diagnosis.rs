//! What a person wants to read when a test has failed.

use std::fmt::Write;

use super::Site;
use crate::lounge;
use crate::operator::SELECTOR;

/// Lines of each log that are printed; the file has all that Kubernetes still has.
const SHOWN_LINES: usize = 40;

impl Site {
    /// Collects state, events and logs into a file of the site's folder, and returns the part worth printing.
    ///
    /// Never fails: what cannot be had is named in the text.
    pub async fn diagnose(&self) -> String {
        let mut shown = String::new();
        let mut all = String::new();
        let kept = self.folder().join("diagnosis.txt");
        for (title, args) in [
            ("RoomCluster", vec!["get", "roomcluster", lounge::NAME, "-o", "yaml"]),
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
        let lines: Vec<&str> = text.lines().collect();
        let skipped = lines.len().saturating_sub(SHOWN_LINES);
        let tail = if title == "RoomCluster" { text.clone() } else { lines[skipped..].join("\n") };
        let _ = write!(shown, "\n---- {title}\n{tail}\n");
        let _ = write!(all, "\n---- {title}\n{text}\n");
    }
}
