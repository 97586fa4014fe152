//! Recorded workloads: I/O traces with their times.
//!
//! [`Reader`] streams fio's iolog (versions 2 and 3), recorded live runs ([`Recording`]), blkparse's text,
//! the CSV of Microsoft Research Cambridge and of vSCSI, and MQSim's and DiskSim's ASCII traces, a line at a
//! time, and detects the format from the first line. [`Extents`] is the first pass, which determines the
//! extents that a trace touches and its longest operation; [`Map`] then maps them onto one device; [`Replay`]
//! is the second pass, which gives the operations. [`Writer`] records an iolog of version 3.
//!
//! Requests that cannot be replayed are counted by kind: [`Extents::left_out`].
//!
//! Times count from the first read, write, flush or trim of the trace. A time that runs backwards
//! is taken as no time passed, as in fio, and counted.

mod blkparse;
mod csv;
mod iolog;
mod map;
mod mqsim;
mod recording;
mod replay;
mod write;

use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use runtime::Span;

use crate::pattern::Durability;
pub use map::{Extent, Extents, Longest, Map, Mapping};
pub use recording::{Arrival, Recorded, Recording, RegisterWrite, StageMean};
pub use replay::Replay;
pub use write::Writer;

use crate::limits::{IOLOG_NAME_BYTES_MAX, TRACE_DEVICES_MAX, TRACE_LINE_BYTES_MAX};

/// Kind of a recorded operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TraceKind {
    Read,
    Write,
    Flush,
    Trim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOp {
    /// Time since the first operation of the trace.
    pub at: Span,
    pub kind: TraceKind,
    /// First byte on its own device.
    pub offset_bytes: u64,
    /// Length in bytes; 0 for a flush.
    pub bytes: u32,
    /// Only writes have any.
    pub durability: Durability,
    /// MQSim's device number; in other formats, files, disks and devices by order of appearance.
    pub device: u32,
}

/// One mistake in a trace, with its place. Prints as `file:line: mistake, and the expected form`.
#[derive(Debug, thiserror::Error)]
#[error("{file}:{line}: {wrong}")]
pub struct TraceError {
    /// The file's name, as given.
    pub file: String,
    /// The line, from 1; 0 if the error concerns the whole trace.
    pub line: u64,
    pub wrong: TraceWrong,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum TraceWrong {
    /// The file could not be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A line that is too long or not text.
    #[error("the line is longer than {TRACE_LINE_BYTES_MAX} bytes or not text")]
    Line,
    #[error("the trace is empty: expected at least one operation")]
    Empty,
    /// A first line of no known format.
    #[error(
        "{text:?} begins no known trace: expected \"fio version 2 iolog\", \"fio version 3 iolog\", \
         \"doorbell recording 1\", \
         blkparse's text, MSR Cambridge CSV, \"version,time,op,size,lbn\" (vSCSI CSV), or five numbers \
         (arrival, device, first sector, sectors, type)"
    )]
    Format { text: String },
    /// A line that does not have the form of its format.
    #[error("{text:?}: expected {expected}")]
    Fields { text: String, expected: &'static str },
    /// A number that does not parse or is out of range.
    #[error("{field} {text:?}: expected {expected}")]
    Number { field: &'static str, text: String, expected: &'static str },
    /// A file that was not added.
    #[error("{name:?} was not added: expected a line with \"add\" for it before")]
    NotAdded { name: String },
    #[error("more than {TRACE_DEVICES_MAX} devices or files")]
    TooManyDevices,
    /// A name that an iolog cannot represent.
    #[error("{name:?}: expected a name without blanks, at most {IOLOG_NAME_BYTES_MAX} bytes")]
    Name { name: String },
    /// A trace longer than the range of the clock.
    #[error("this is more than 213 days after the first operation: expected less")]
    TooLate,
    #[error(
        "the extents of {devices} devices take {bytes} bytes: expected at most the capacity of \
         {capacity} bytes; map them modulo the capacity, or take a larger device"
    )]
    BeyondCapacity { devices: usize, bytes: u64, capacity: u64 },
    /// A second pass that differs from the first.
    #[error("device {device} at {offset} was not there in the first pass: expected the same trace")]
    Changed { device: u32, offset: u64 },
    /// An operation longer than the limit.
    #[error("{bytes} bytes at {offset} are more than one operation may have here")]
    TooLarge { offset: u64, bytes: u64 },
}

/// A parsed line, with its time on the clock of the format.
struct Line {
    /// Picoseconds on the trace's own clock, which has an arbitrary epoch.
    time_ps: u128,
    kind: TraceKind,
    offset_bytes: u64,
    bytes: u32,
    durability: Durability,
    device: u32,
}

impl Line {
    fn flush(time_ps: u128, device: u32) -> Line {
        let (kind, durability) = (TraceKind::Flush, Durability::NONE);
        Line { time_ps, kind, offset_bytes: 0, bytes: 0, durability, device }
    }
}

enum Parsed {
    Op(Line),
    /// No request, or a later step of one.
    Nothing,
    /// Requests of a kind that is not replayed.
    LeftOut(u64, String),
    /// An operation without a part of its meaning: the part.
    Without(Line, String),
}

#[derive(Debug)]
enum Format {
    Iolog(iolog::Iolog),
    Recording,
    Blkparse(blkparse::Blkparse),
    Msr(csv::Msr),
    Vscsi,
    Ascii(mqsim::Dialect),
}

/// Devices by their names, in order of appearance.
#[derive(Debug, Default)]
struct Devices(BTreeMap<String, u32>);

impl Devices {
    /// Returns the number of a device, assigning the next one to a new name.
    fn number(&mut self, name: &str) -> Result<u32, TraceWrong> {
        if let Some(known) = self.known(name) {
            return Ok(known);
        }
        let next = self.0.len();
        if next == TRACE_DEVICES_MAX {
            return Err(TraceWrong::TooManyDevices);
        }
        self.0.insert(name.to_owned(), next as u32);
        Ok(next as u32)
    }

    fn known(&self, name: &str) -> Option<u32> {
        self.0.get(name).copied()
    }
}

/// Streams the operations of a trace. An [`Iterator`]; it ends after the first error.
#[derive(Debug)]
pub struct Reader<R> {
    file: String,
    lines: Lines<R>,
    format: Format,
    /// The first line, if it is an operation already.
    pushed_back: Option<String>,
    first_ps: Option<u128>,
    last: Span,
    backwards: u64,
    left_out: BTreeMap<String, u64>,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads the first line and detects the format. `file` is the name that errors show.
    ///
    /// # Errors
    /// If the input cannot be read or is of no known format.
    pub fn new(file: &str, input: R) -> Result<Reader<R>, TraceError> {
        let mut lines = Lines { input, line: 0 };
        let first = loop {
            match lines.next() {
                Ok(Some(text)) if text.is_empty() => {}
                Ok(Some(text)) => break Ok(text),
                Ok(None) => break Err(TraceWrong::Empty),
                Err(wrong) => break Err(wrong),
            }
        };
        let wrap = |line, wrong| TraceError { file: file.to_owned(), line, wrong };
        let text = first.map_err(|wrong| wrap(lines.line.max(1), wrong))?;
        let (format, pushed_back) = if let Some(iolog) = iolog::Iolog::from_header(&text) {
            (Format::Iolog(iolog), None)
        } else if text == recording::HEADER {
            (Format::Recording, None)
        } else if let Some(dialect) = mqsim::looks_like(&text) {
            (Format::Ascii(dialect), Some(text))
        } else if blkparse::Blkparse::looks_like(&text) {
            (Format::Blkparse(blkparse::Blkparse::default()), Some(text))
        } else if let Some(header) = csv::Msr::looks_like(&text) {
            (Format::Msr(csv::Msr::default()), (!header).then_some(text))
        } else if csv::is_vscsi(&text) {
            (Format::Vscsi, None)
        } else {
            let text = text.chars().take(80).collect();
            return Err(wrap(lines.line, TraceWrong::Format { text }));
        };
        Ok(Reader {
            file: file.to_owned(),
            lines,
            format,
            pushed_back,
            first_ps: None,
            last: Span::ZERO,
            backwards: 0,
            left_out: BTreeMap::new(),
            ended: false,
        })
    }

    /// Description of the format, with its unit of time.
    pub fn format(&self) -> &'static str {
        match &self.format {
            Format::Iolog(iolog) => iolog.name(),
            Format::Recording => "recorded live run (times in ps)",
            Format::Blkparse(_) => "blkparse text (times in s)",
            Format::Msr(_) => "MSR Cambridge CSV (times in 100 ns)",
            Format::Vscsi => "vSCSI CSV (times in s)",
            Format::Ascii(mqsim::Dialect::Mqsim) => "MQSim ASCII (times in ns)",
            Format::Ascii(mqsim::Dialect::Disksim) => "DiskSim ASCII (times in ms)",
        }
    }

    /// Number of times that time ran backwards so far.
    pub fn backwards(&self) -> u64 {
        self.backwards
    }

    /// Requests so far that are not replayed, by kind.
    pub fn left_out(&self) -> &BTreeMap<String, u64> {
        &self.left_out
    }

    /// The name that errors show.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line that was read last, from 1.
    pub fn line(&self) -> u64 {
        self.lines.line
    }

    fn next_op(&mut self) -> Result<Option<TraceOp>, TraceWrong> {
        loop {
            let text = match self.pushed_back.take() {
                Some(text) => text,
                None => match self.lines.next()? {
                    Some(text) => text,
                    None => return Ok(None),
                },
            };
            if text.is_empty() {
                continue;
            }
            let parsed = match &mut self.format {
                Format::Iolog(iolog) => iolog.line(&text)?,
                Format::Recording => recording::line(&text)?,
                Format::Blkparse(blkparse) => blkparse.line(&text)?,
                Format::Msr(msr) => Parsed::Op(msr.line(&text)?),
                Format::Vscsi => csv::vscsi(&text)?,
                Format::Ascii(dialect) => Parsed::Op(mqsim::line(*dialect, &text)?),
            };
            match parsed {
                Parsed::Op(line) => return self.timed(line).map(Some),
                Parsed::LeftOut(count, kind) => *self.left_out.entry(kind).or_default() += count,
                Parsed::Without(line, part) => {
                    *self.left_out.entry(part).or_default() += 1;
                    return self.timed(line).map(Some);
                }
                Parsed::Nothing => {}
            }
        }
    }

    fn timed(&mut self, line: Line) -> Result<TraceOp, TraceWrong> {
        let first = *self.first_ps.get_or_insert(line.time_ps);
        let since = line.time_ps.saturating_sub(first);
        let at = Span(u64::try_from(since).map_err(|_| TraceWrong::TooLate)?);
        if at < self.last || line.time_ps < first {
            self.backwards += 1;
        }
        self.last = self.last.max(at);
        let Line { kind, offset_bytes, bytes, durability, device, .. } = line;
        Ok(TraceOp { at: self.last, kind, offset_bytes, bytes, durability, device })
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<TraceOp, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let result = self.next_op().map_err(|wrong| TraceError {
            file: self.file.clone(),
            line: self.lines.line,
            wrong,
        });
        self.ended = !matches!(result, Ok(Some(_)));
        result.transpose()
    }
}

/// Lines of bounded length, counted from 1.
#[derive(Debug)]
struct Lines<R> {
    input: R,
    line: u64,
}

impl<R: BufRead> Lines<R> {
    /// The next line without its end and surrounding blanks, or `None` at the end.
    fn next(&mut self) -> Result<Option<String>, TraceWrong> {
        let mut bytes = Vec::new();
        let limit = TRACE_LINE_BYTES_MAX + 1;
        let read = self.input.by_ref().take(limit).read_until(b'\n', &mut bytes)?;
        if read == 0 {
            return Ok(None);
        }
        self.line += 1;
        if read as u64 == limit && bytes.last() != Some(&b'\n') {
            return Err(TraceWrong::Line);
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| TraceWrong::Line)?;
        Ok(Some(text.trim().to_owned()))
    }
}

/// Parses a whole decimal number; `expected` describes the valid values in the error.
fn number(field: &'static str, text: &str, expected: &'static str) -> Result<u64, TraceWrong> {
    // `parse` would also take a leading '+'.
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = if digits { text.parse().ok() } else { None };
    value.ok_or_else(|| TraceWrong::Number { field, text: text.to_owned(), expected })
}

/// Parses the length of an operation in multiples of `unit` bytes; returns bytes.
fn length(field: &'static str, text: &str, unit: u64) -> Result<u32, TraceWrong> {
    const EXPECTED: &str = "a whole number from 1, less than 4 GiB in all";
    let units = number(field, text, EXPECTED)?;
    let bytes = units.checked_mul(unit).and_then(|bytes| u32::try_from(bytes).ok());
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| TraceWrong::Number {
        field,
        text: text.to_owned(),
        expected: EXPECTED,
    })
}
