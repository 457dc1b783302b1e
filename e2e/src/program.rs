//! Programs of the machine, run to their end with a bound on the time.
//!
//! Invariant: a failure carries the command line and what the program printed, so that it can be read in the
//! output of a test without running it again.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// What a program left.
#[derive(Debug)]
pub struct Outcome {
    /// The command line, for messages.
    pub line: String,
    /// Whether it ended with 0.
    pub success: bool,
    /// Its exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it printed as diagnosis.
    pub stderr: String,
}

impl Outcome {
    /// What it printed, if it ended well.
    ///
    /// # Errors
    /// When it did not.
    pub fn ok(self) -> Result<String> {
        if !self.success {
            bail!("{} failed with {:?}:\n{}{}", self.line, self.code, self.stdout, self.stderr);
        }
        Ok(self.stdout)
    }
}

/// Runs a program with `input` on its standard input, for at most `within`.
///
/// # Errors
/// When it cannot be started or takes longer; it is killed then.
pub async fn run<S: AsRef<OsStr>>(
    program: &str,
    args: &[S],
    input: &str,
    within: Duration,
) -> Result<Outcome> {
    let mut line = program.to_owned();
    for arg in args {
        line.push(' ');
        line.push_str(&arg.as_ref().to_string_lossy());
    }
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {line}"))?;
    let mut stdin = child.stdin.take().expect("it was asked for");
    let finish = async {
        // A program that does not read its input closes it; what it prints says more than that.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(within, finish)
        .await
        .with_context(|| format!("{line} took longer than {within:?}"))?
        .with_context(|| format!("wait for {line}"))?;
    Ok(Outcome {
        line,
        success: output.status.success(),
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
