//! qtest socket: sends commands, one per line; a thread receives answers and changes of interrupt lines.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::error::{Gone, QtestError};

/// Number of lines of an interrupt controller that are reported.
pub const LINES: usize = 32;
/// Maximum length of a line of text in bytes; a longer one is not qtest.
const LINE_BYTES_MAX: u64 = 4096;
/// Maximum number of answers without a reader: those of dropped futures.
const ANSWERS_MAX: usize = 1024;
/// Time limit of a write to the socket; then the peer does not read any more.
const SENDING: Duration = Duration::from_secs(20);

/// State shared with the reader thread.
struct SocketState {
    answered: AtomicU64,
    /// Answers that are not a bare OK, by command number.
    answers: Mutex<BTreeMap<u64, Result<u64, QtestError>>>,
    raised: [AtomicU32; LINES],
    held: [AtomicBool; LINES],
    /// The first reason is kept.
    gone: OnceLock<Arc<Gone>>,
}

impl SocketState {
    fn close(&self, why: Gone) {
        let _ = self.gone.set(Arc::new(why));
    }

    /// Handles one line. Returns false if it is not qtest's.
    fn take(&self, line: &str) -> bool {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("OK") => {
                let value = words.next().map(|word| match (number(word), words.next()) {
                    (Some(value), None) => Ok(value),
                    _ => Err(QtestError::Malformed(line.into())),
                });
                self.answer(value);
            }
            Some("FAIL" | "ERR") => self.answer(Some(Err(QtestError::Refused(line.into())))),
            Some("IRQ") => {
                let raise = words.next() == Some("raise");
                let line = words.next().and_then(|word| word.parse::<usize>().ok());
                if let Some(line) = line.filter(|line| *line < LINES) {
                    if raise && !self.held[line].load(Ordering::Relaxed) {
                        self.raised[line].fetch_add(1, Ordering::Release);
                    }
                    self.held[line].store(raise, Ordering::Release);
                }
            }
            _ => return false,
        }
        true
    }

    fn answer(&self, what: Option<Result<u64, QtestError>>) {
        let number = self.answered.load(Ordering::Relaxed);
        if let Some(what) = what {
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            answers.insert(number, what);
            if answers.len() > ANSWERS_MAX {
                answers.pop_first();
            }
        }
        self.answered.store(number + 1, Ordering::Release);
    }
}

fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// One end of the connection, and the thread that reads it.
pub(super) struct Socket {
    stream: UnixStream,
    seen: Arc<SocketState>,
    sent: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

impl Socket {
    pub fn connect(path: &Path) -> std::io::Result<Socket> {
        Socket::over(UnixStream::connect(path)?)
    }

    fn over(stream: UnixStream) -> std::io::Result<Socket> {
        stream.set_write_timeout(Some(SENDING))?;
        let seen = Arc::new(SocketState {
            answered: AtomicU64::new(0),
            answers: Mutex::default(),
            raised: core::array::from_fn(|_| AtomicU32::new(0)),
            held: core::array::from_fn(|_| AtomicBool::new(false)),
            gone: OnceLock::new(),
        });
        let (told, from) = (seen.clone(), stream.try_clone()?);
        let thread =
            std::thread::Builder::new().name("qtest".into()).spawn(move || listen(from, &told))?;
        Ok(Socket { stream, seen, sent: AtomicU64::new(0), thread: Some(thread) })
    }

    /// Sends a command; returns its number.
    pub fn send(&self, command: &str) -> u64 {
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        let line = std::format!("{command}\n");
        if !self.is_gone()
            && let Err(error) = (&self.stream).write_all(line.as_bytes())
        {
            self.close(Gone::Send { command: command.into(), error });
        }
        number
    }

    /// The answer to the command of this number, if it has arrived.
    pub fn answer(&self, number: u64) -> Option<Result<u64, QtestError>> {
        if self.seen.answered.load(Ordering::Acquire) <= number {
            return None;
        }
        let mut answers = self.seen.answers.lock().unwrap_or_else(PoisonError::into_inner);
        Some(answers.remove(&number).unwrap_or(Ok(0)))
    }

    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub fn raised(&self, line: usize) -> u32 {
        self.seen.raised.get(line).map_or(0, |count| count.load(Ordering::Acquire))
    }

    pub fn is_held(&self, line: usize) -> bool {
        self.seen.held.get(line).is_some_and(|held| held.load(Ordering::Acquire))
    }

    pub fn is_gone(&self) -> bool {
        self.seen.gone.get().is_some()
    }

    /// The reason, if the connection is closed.
    pub fn gone(&self) -> Option<Arc<Gone>> {
        self.seen.gone.get().cloned()
    }

    /// Closes the connection and records the reason.
    pub fn close(&self, why: Gone) {
        self.seen.close(why);
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.close(Gone::Closed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(from: UnixStream, seen: &SocketState) {
    let mut reader = BufReader::new(from);
    let mut line = String::new();
    loop {
        line.clear();
        match (&mut reader).take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) => return seen.close(Gone::Ended),
            Ok(_) if line.ends_with('\n') && seen.take(&line) => {}
            Ok(_) => return seen.close(Gone::Line(line)),
            Err(error) => return seen.close(Gone::Receive(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    fn pair() -> (Socket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Socket::over(ours).unwrap(), theirs)
    }

    fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(found) = found() {
                return found;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn answers_match_commands_in_order_between_irq_lines() {
        let (socket, mut qemu) = pair();
        let first = socket.send("writel 0x10 0x1");
        let second = socket.send("readl 0x10");
        let third = socket.send("irq_intercept_in none");
        assert!(socket.answer(first).is_none());
        qemu.write_all(
            b"OK\nIRQ raise 10\nOK 0x00000000feedc0de\nIRQ lower 10\nFAIL Unknown device\n",
        )
        .unwrap();
        let refused = until(|| socket.answer(third));
        assert!(
            matches!(refused, Err(QtestError::Refused(line)) if line == "FAIL Unknown device\n")
        );
        assert!(matches!(socket.answer(second), Some(Ok(0xfeed_c0de))));
        assert!(matches!(socket.answer(first), Some(Ok(0))));
        assert_eq!((socket.raised(10), socket.is_held(10), socket.sent()), (1, false, 3));
        let mut sent = String::new();
        BufReader::new(qemu).read_line(&mut sent).unwrap();
        assert_eq!(sent, "writel 0x10 0x1\n");
    }

    #[test]
    fn socket_rejects_lines_that_are_not_qtest() {
        for (said, why) in [
            ("HTTP/1.1 200 OK\n", "\"HTTP/1.1 200 OK\\n\": expected OK, FAIL, ERR or IRQ"),
            ("", "the machine has ended"),
        ] {
            let (socket, mut qemu) = pair();
            qemu.write_all(said.as_bytes()).unwrap();
            drop(qemu);
            assert_eq!(until(|| socket.gone()).to_string(), why);
            socket.send("inl 0xcfc");
        }
        let (socket, mut qemu) = pair();
        qemu.write_all(&[b'x'; 5000]).unwrap();
        assert!(until(|| socket.gone()).to_string().len() < 4200);
    }

    #[test]
    fn ok_with_malformed_number_is_not_a_rejection() {
        for value in ["0x", "0xwhat", "0x1ffffffffffffffff", "-1", "0x10 0x20"] {
            let (socket, mut qemu) = pair();
            let (first, second) = (socket.send("readl 0x10"), socket.send("readl 0x14"));
            qemu.write_all(std::format!("OK {value}\nOK 0x14\n").as_bytes()).unwrap();
            assert!(matches!(until(|| socket.answer(second)), Ok(0x14)));
            let error = socket.answer(first).unwrap().expect_err(value);
            assert!(matches!(error, QtestError::Malformed(_)), "{value}: {error:?}");
            let expected = "expected OK, alone or with a number of 64 bits";
            assert_eq!(error.to_string(), std::format!("\"OK {value}\\n\": {expected}"));
        }
    }

    #[test]
    fn irq_lines_out_of_range_are_ignored() {
        let (socket, mut qemu) = pair();
        qemu.write_all(b"IRQ raise 99\nIRQ raise\nIRQ lower -1\nIRQ raise 31\nOK\n").unwrap();
        let number = socket.send("outl 0 0");
        until(|| socket.answer(number)).unwrap();
        assert_eq!((socket.raised(31), socket.raised(99)), (1, 0));
    }
}
