//! Holds one server process.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context;
use tempfile::TempDir;

/// Reads orders from its input, one a line, and answers each with a line. At the end of its input, which comes
/// at the latest when the test's process ends, it kills the server and removes the directory. Signals that end
/// a test from its terminal or its time-out reach the guardian too, and must not end it before that.
const SCRIPT: &str = r#"
trap '' HUP INT TERM PIPE
dir=$1
shift
run() { "$@" </dev/null >>"$dir/log" 2>&1 & pid=$!; }
run "$@"
echo up
while read -r order; do
  case $order in
    START) run "$@" ;;
    KILL) kill -KILL "$pid" 2>/dev/null; wait "$pid" 2>/dev/null ;;
    *) kill -"$order" "$pid" ;;
  esac
  echo done
done
kill -KILL "$pid" 2>/dev/null
wait "$pid" 2>/dev/null
rm -rf "$dir"
"#;

/// A server process in its directory.
pub(super) struct Guardian {
    shell: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    dir: PathBuf,
}

impl Guardian {
    /// Starts `command` and holds it; the directory is the guardian's from now on.
    pub(super) fn start(dir: TempDir, command: &[String]) -> anyhow::Result<Self> {
        let dir = dir.keep();
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(&dir)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a shell")?;
        let orders = shell.stdin.take();
        let answers = BufReader::new(shell.stdout.take().context("the shell has no output")?);
        let mut guardian = Self { shell, orders, answers, dir };
        guardian.answer()?;
        Ok(guardian)
    }

    /// `START`, `KILL`, or the name of a signal.
    pub(super) fn order(&mut self, order: &str) -> anyhow::Result<()> {
        let orders = self.orders.as_mut().context("the guardian has ended")?;
        writeln!(orders, "{order}")?;
        self.answer()
    }

    /// The server's directory.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn answer(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        anyhow::ensure!(self.answers.read_line(&mut line)? > 0, "the guardian has ended");
        Ok(())
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.orders = None;
        if let Err(error) = self.shell.wait() {
            eprintln!("a server's guardian was lost: {error}");
        }
    }
}
