//! The event log of a simulated run, as a file and as a number.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::rc::Rc;

use report::model::EventLog;
use runtime::{Entry, Log};
use world::run_recorder::register_write;

/// The lines of an event log: counted, digested, and written to a file on request.
#[derive(Clone, Default)]
pub struct Digest(Rc<RefCell<Lines>>);

/// An event log that is not whole: its file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: the event log is not whole: {error}", path.display())]
pub struct LogError {
    pub path: PathBuf,
    pub error: std::io::Error,
}

#[derive(Default)]
struct Lines {
    path: Option<PathBuf>,
    file: Option<BufWriter<File>>,
    failed: Option<std::io::Error>,
    count: u64,
    /// Digest printed by `run` and `replay`, comparable with each other only.
    digest: u64,
    line: String,
}

impl Digest {
    /// A digest that also writes the lines to this file.
    pub fn into_file(file: File, path: PathBuf) -> Digest {
        let digest = Digest::default();
        digest.0.borrow_mut().file = Some(BufWriter::new(file));
        digest.0.borrow_mut().path = Some(path);
        digest
    }

    pub fn log(&self) -> Log {
        let lines = self.0.clone();
        Log::To(Rc::new(move |entry| lines.borrow_mut().put(entry)))
    }

    /// Lines and digest of the whole log.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn finish(&self) -> Result<EventLog, LogError> {
        let mut lines = self.0.borrow_mut();
        let flushed = lines.file.as_mut().map_or(Ok(()), |file| file.flush());
        if let Some(error) = lines.failed.take().or(flushed.err()) {
            return Err(LogError { path: lines.path.clone().unwrap_or_default(), error });
        }
        Ok(EventLog { lines: lines.count, digest: format!("{:016x}", lines.digest) })
    }
}

impl Lines {
    fn put(&mut self, entry: &Entry) {
        use std::fmt::Write as _;
        self.line.clear();
        let _ = writeln!(self.line, "{entry}");
        self.count += 1;
        // Digests the text, so that runs agree on exactly what a reader sees. The step is FNV-1a's, but the
        // offset basis is folded in before every line: the result is not FNV-1a of the file.
        self.digest =
            self.line.bytes().fold(self.digest ^ 0xcbf2_9ce4_8422_2325, |digest, byte| {
                (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        if let Some(file) = &mut self.file
            && self.failed.is_none()
        {
            self.failed = file.write_all(self.line.as_bytes()).err();
        }
    }
}

/// A log that also counts the registers that the host writes.
pub(crate) fn counting(log: Log, count: &Rc<Cell<u64>>) -> Log {
    let count = count.clone();
    Log::To(Rc::new(move |entry| {
        count.set(count.get() + u64::from(register_write(entry).is_some()));
        log.put(entry);
    }))
}
