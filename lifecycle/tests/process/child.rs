//! A process under test, seen from outside.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// When a test gives up waiting.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Running {
    child: Child,
    out: Receiver<String>,
    log: Receiver<String>,
    seen: Vec<String>,
    pub(crate) admin: Option<SocketAddr>,
}

/// How a process ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) log: String,
}

impl Ended {
    /// The one line with this message.
    pub(crate) fn line(&self, message: &str) -> Value {
        let lines = self.log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut lines: Vec<_> = lines.filter(|line| line["message"] == message).collect();
        assert_eq!(lines.len(), 1, "{message:?} in {}", self.log);
        lines.remove(0)
    }
}

impl Running {
    /// Starts a process and waits until it has written `until`.
    pub(crate) fn start(role: &str, args: &[&str], until: Option<&str>) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(args)
            .env(super::role::VARIABLE, role)
            .env_remove("RUST_LOG")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = lines_of(child.stdout.take().unwrap());
        let log = lines_of(child.stderr.take().unwrap());
        let mut running = Self { child, out, log, seen: Vec::new(), admin: None };
        while let Some(until) = until {
            let line = running.out.recv_timeout(PATIENCE).expect("the process says that it has started");
            if let Some(address) = line.strip_prefix("admin ") {
                running.admin = Some(address.parse().unwrap());
            }
            if line.starts_with(until) {
                break;
            }
        }
        running
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Lets the phase `wait` end.
    pub(crate) fn write_line(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Waits for a log line with these words.
    pub(crate) fn until_log(&mut self, words: &str) {
        loop {
            let line = self.log.recv_timeout(PATIENCE).expect("the process logs what is waited for");
            let is_it = line.contains(words);
            self.seen.push(line);
            if is_it {
                return;
            }
        }
    }

    /// Status and body of an answer.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin.unwrap()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// Asks until the status is this one.
    pub(crate) fn until_status(&self, path: &str, status: u16) {
        let deadline = Instant::now() + PATIENCE;
        while self.get(path).0 != status {
            assert!(Instant::now() < deadline, "{path} never became {status}");
            std::thread::yield_now();
        }
    }

    pub(crate) fn ended(mut self) -> Ended {
        let mut log = std::mem::take(&mut self.seen);
        let deadline = Instant::now() + PATIENCE;
        // The log ends when the process does.
        while let Ok(line) = self.log.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            log.push(line);
        }
        let code = self.child.try_wait().unwrap().map_or_else(
            || {
                assert!(Instant::now() < deadline, "the process does not end: {log:?}");
                self.child.wait().unwrap().code()
            },
            |status| status.code(),
        );
        Ended { code, log: log.join("\n") }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that failed half-way must not leave its process behind. One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(from: impl Read + Send + 'static) -> Receiver<String> {
    let (lines, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
