//! The client's ledger: one JSON line for each command that was acknowledged, refused or given up.
//!
//! Written by `load`, read by `audit`. Lines are buffered and flushed every second; the file is synced at the
//! end. A torn last line, as a killed process leaves it, is tolerated; any other line must be readable.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// Entries on their way to the writer. Enough for a stalled disk of a tenth of a second at 50 k commands a second;
/// beyond it the lanes wait.
const QUEUE: usize = 5_000;
/// How much of the ledger a killed process may lose.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// What the client knows about one command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LedgerEntry {
    /// Acknowledged: it must be in the log for ever.
    Ack(Acked),
    /// Given up after the documented retries: it may be in the log, once.
    Unknown(Unsettled),
    /// A considered no: it must not be in the log.
    Refused(Unsettled),
}

/// An acknowledged command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Acked {
    /// The app.
    pub app: String,
    /// The room.
    pub room: String,
    /// The command id.
    pub id: String,
    /// The kind of command.
    pub op: String,
    /// Its place in the room's log.
    pub seq: u64,
    /// The epoch under which it committed.
    pub epoch: u64,
    /// The node that answered.
    pub owner: String,
    /// The epoch of that node's ownership.
    pub owner_epoch: u64,
    /// blake3 of the encoded `CommandResult`, in hex.
    pub hash: String,
    /// Wall time of the first send, in ms.
    pub sent_ms: i64,
    /// Wall time of the acknowledgement, in ms.
    pub acked_ms: i64,
    /// The first send, in µs of the run's monotonic clock.
    pub sent_us: u64,
    /// The acknowledgement, in µs of the run's monotonic clock.
    pub acked_us: u64,
    /// Sends in all.
    pub tries: u32,
    /// Whether the answer came from the log.
    pub replayed: bool,
}

/// A command without an acknowledgement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unsettled {
    /// The app.
    pub app: String,
    /// The room.
    pub room: String,
    /// The command id.
    pub id: String,
    /// The kind of command.
    pub op: String,
    /// Wall time of the first send, in ms.
    pub sent_ms: i64,
    /// Wall time of the end, in ms.
    pub gave_up_ms: i64,
    /// Sends in all.
    pub tries: u32,
    /// The last error.
    pub error: String,
}

/// The end of the ledger that lanes write to.
#[derive(Debug, Clone)]
pub(crate) struct LedgerSender(Option<mpsc::Sender<LedgerEntry>>);

impl LedgerSender {
    /// Hands an entry to the writer; waits while its queue is full. Nothing happens without a ledger.
    pub(crate) async fn write(&self, entry: LedgerEntry) {
        if let Some(sender) = &self.0 {
            // A writer that has ended reports its error when it is closed.
            let _ = sender.send(entry).await;
        }
    }
}

/// The thread that writes the file.
#[derive(Debug)]
pub(crate) struct LedgerWriter(Option<JoinHandle<io::Result<u64>>>);

/// Opens a ledger; without a path, one that writes nothing.
pub(crate) fn open(path: Option<&Path>) -> io::Result<(LedgerSender, LedgerWriter)> {
    let Some(path) = path else {
        return Ok((LedgerSender(None), LedgerWriter(None)));
    };
    let file = File::create(path)?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let thread =
        std::thread::Builder::new().name("ledger".to_owned()).spawn(move || write_all(file, receiver))?;
    Ok((LedgerSender(Some(sender)), LedgerWriter(Some(thread))))
}

impl LedgerWriter {
    /// Waits until everything is on disk and gives the number of lines. All senders must be dropped before.
    pub(crate) async fn close(self) -> io::Result<u64> {
        let Some(thread) = self.0 else { return Ok(0) };
        tokio::task::spawn_blocking(move || thread.join())
            .await
            .map_err(io::Error::other)?
            .map_err(|_| io::Error::other("the ledger's writer panicked"))?
    }
}

fn write_all(file: File, mut entries: mpsc::Receiver<LedgerEntry>) -> io::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut lines = 0;
    let mut flushed_at = Instant::now();
    while let Some(entry) = entries.blocking_recv() {
        serde_json::to_writer(&mut out, &entry)?;
        out.write_all(b"\n")?;
        lines += 1;
        if flushed_at.elapsed() >= FLUSH_EVERY {
            out.flush()?;
            flushed_at = Instant::now();
        }
    }
    out.flush()?;
    out.get_ref().sync_all()?;
    Ok(lines)
}

/// Why a ledger cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadLedgerError {
    /// The file.
    #[error("cannot read the ledger")]
    Io(#[from] io::Error),
    /// One line, not the last.
    #[error("line {line} of the ledger cannot be read")]
    Line {
        /// From 1.
        line: u64,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

/// Reads a ledger line by line, in bounded memory.
#[derive(Debug)]
pub struct LedgerReader<R> {
    input: R,
    line: u64,
    buffer: Vec<u8>,
}

impl LedgerReader<BufReader<File>> {
    /// Opens a file.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::new(BufReader::with_capacity(1 << 20, File::open(path)?)))
    }
}

impl<R: BufRead> LedgerReader<R> {
    /// Reads from `input`.
    pub fn new(input: R) -> Self {
        Self { input, line: 0, buffer: Vec::new() }
    }

    fn next_entry(&mut self) -> Result<Option<LedgerEntry>, ReadLedgerError> {
        loop {
            self.buffer.clear();
            if self.input.read_until(b'\n', &mut self.buffer)? == 0 {
                return Ok(None);
            }
            self.line += 1;
            let torn = self.buffer.last() != Some(&b'\n');
            if self.buffer.trim_ascii().is_empty() {
                continue;
            }
            return match serde_json::from_slice(&self.buffer) {
                Ok(entry) => Ok(Some(entry)),
                // The process was killed while it wrote: the command counts as never acknowledged to anyone.
                Err(_) if torn => Ok(None),
                Err(source) => Err(ReadLedgerError::Line { line: self.line, source }),
            };
        }
    }
}

impl<R: BufRead> Iterator for LedgerReader<R> {
    type Item = Result<LedgerEntry, ReadLedgerError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_entry().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(seq: u64) -> LedgerEntry {
        LedgerEntry::Ack(Acked {
            app: "app".into(),
            room: "r".into(),
            id: format!("c{seq}"),
            op: "join".into(),
            seq,
            epoch: 1,
            owner: "a".into(),
            owner_epoch: 1,
            hash: "00".into(),
            sent_ms: 1,
            acked_ms: 2,
            sent_us: 3,
            acked_us: 4,
            tries: 1,
            replayed: false,
        })
    }

    fn read(text: &str) -> Vec<Result<LedgerEntry, ReadLedgerError>> {
        LedgerReader::new(text.as_bytes()).collect()
    }

    #[tokio::test]
    async fn what_was_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.jsonl");
        let (sender, writer) = open(Some(&path)).unwrap();
        for seq in 1..=QUEUE as u64 + 5 {
            sender.write(ack(seq)).await;
        }
        drop(sender);
        assert_eq!(writer.close().await.unwrap(), QUEUE as u64 + 5);
        let entries: Vec<_> = LedgerReader::open(&path).unwrap().map(Result::unwrap).collect();
        assert_eq!(entries.len(), QUEUE + 5);
        assert_eq!(entries[2], ack(3));
    }

    #[test]
    fn a_torn_last_line_is_tolerated() {
        let line = serde_json::to_string(&ack(1)).unwrap();
        let entries = read(&format!("{line}\n{}", &line[..line.len() / 2]));
        assert_eq!(entries.len(), 1);
        assert!(entries[0].is_ok());
    }

    #[test]
    fn a_whole_last_line_without_its_line_feed_counts() {
        let line = serde_json::to_string(&ack(1)).unwrap();
        assert_eq!(read(&format!("{line}\n{line}")).len(), 2);
    }

    #[test]
    fn a_broken_line_in_the_middle_is_an_error_that_names_it() {
        let line = serde_json::to_string(&ack(1)).unwrap();
        let entries = read(&format!("{line}\n{{\"kind\":\n{line}\n"));
        assert!(matches!(entries[1], Err(ReadLedgerError::Line { line: 2, .. })), "{:?}", entries[1]);
    }
}
