//! Recording of a live run by `doorbell run --record`: arrivals, register writes and measurements. Read as a
//! trace it gives the arrivals; [`Recorded`] holds the measurements.
//!
//! ```text
//! doorbell recording 1
//! run live, two threads, plan live, nvme
//! depth 32
//! lost 0
//! io 1042000 read 4096 4096 1180250      arrival, kind, offset, bytes, latency
//! io 1042000 write+fua 0 4096 1180250    a write, with +preflush, +fua or both
//! register 1100000 1008 5                time, offset and value in hexadecimal
//! stage read 512 52125 submit            kind, operations traced, their mean, name
//! ```
//!
//! Times are picoseconds; those of `io` and `register` count from the same beginning.

use std::collections::BTreeMap;
use std::io::{self, Write};

use runtime::Span;

use super::{Line, Parsed, TraceError, TraceKind, TraceWrong, number};
use crate::pattern::{Durability, OpKind};
use crate::stats::Latencies;

pub(super) const HEADER: &str = "doorbell recording 1";

const EXPECTED: &str = "io AT KIND OFFSET BYTES TOOK, register AT OFFSET VALUE, stage KIND COUNT MEAN NAME, \
                        run WORDS, depth NUMBER or lost NUMBER";
/// Behind the kind of a write.
const PREFLUSH: &str = "+preflush";
const FUA: &str = "+fua";
const PICOSECONDS: &str = "a whole number of picoseconds";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Time of arrival, from the recording's beginning.
    pub at: Span,
    pub kind: OpKind,
    /// First byte, from the device's beginning.
    pub offset_bytes: u64,
    pub bytes: u32,
    /// Only writes have any.
    pub durability: Durability,
    /// Time from its arrival to its completion.
    pub took: Span,
}

/// A register write by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterWrite {
    /// Time since the recording's beginning.
    pub at: Span,
    pub register: u32,
    pub value: u32,
}

/// Mean of one stage over the traced operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageMean {
    pub kind: OpKind,
    pub name: String,
    pub count: u64,
    /// Mean time in the stage, in picoseconds.
    pub mean_ps: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Recording {
    pub run: String,
    /// Maximum number of operations in flight.
    pub depth: u32,
    /// Operations and register writes that the recorder dropped for lack of space.
    pub lost: u64,
    pub arrivals: Vec<Arrival>,
    pub register_writes: Vec<RegisterWrite>,
    pub stages: Vec<StageMean>,
}

impl Recording {
    /// Writes the recording as text.
    ///
    /// # Errors
    /// If the output fails.
    pub fn write(&self, mut output: impl Write) -> io::Result<()> {
        let Recording { run, depth, lost, .. } = self;
        writeln!(output, "{HEADER}\nrun {run}\ndepth {depth}\nlost {lost}")?;
        for Arrival { at, kind, offset_bytes, bytes, durability, took } in &self.arrivals {
            let preflush = if durability.preflush { PREFLUSH } else { "" };
            let fua = if durability.fua { FUA } else { "" };
            let kind = kind.name();
            writeln!(
                output,
                "io {} {kind}{preflush}{fua} {offset_bytes} {bytes} {}",
                at.0, took.0
            )?;
        }
        for RegisterWrite { at, register, value } in &self.register_writes {
            writeln!(output, "register {} {register:x} {value:x}", at.0)?;
        }
        for StageMean { kind, name, count, mean_ps } in &self.stages {
            writeln!(output, "stage {} {count} {mean_ps} {name}", kind.name())?;
        }
        output.flush()
    }
}

/// Measurements of a recorded run.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    pub run: String,
    /// Maximum number of operations in flight.
    pub depth: u32,
    /// Operations and register writes that the recorder dropped for lack of space.
    pub lost: u64,
    /// Latencies from arrival to completion.
    pub latencies: BTreeMap<OpKind, Latencies>,
    pub register_writes: u64,
    pub stages: Vec<StageMean>,
}

enum Entry<'a> {
    Arrival(Arrival),
    RegisterWrite,
    Stage(StageMean),
    Run(&'a str),
    Depth(u32),
    Lost(u64),
}

impl Recorded {
    /// Whether the text begins with the header of a recording.
    pub fn begins(text: &str) -> bool {
        text.lines().map(str::trim).find(|line| !line.is_empty()) == Some(HEADER)
    }

    /// Reads the measurements; `None` if the text is not a recording. `file` is the name that errors show.
    ///
    /// # Errors
    /// The first malformed line.
    pub fn of(file: &str, text: &str) -> Result<Option<Recorded>, TraceError> {
        let mut lines = (1..).zip(text.lines().map(str::trim));
        if lines.by_ref().find(|(_, text)| !text.is_empty()).is_none_or(|(_, text)| text != HEADER)
        {
            return Ok(None);
        }
        let mut seen = Recorded { depth: 1, ..Recorded::default() };
        for (line, text) in lines.filter(|(_, text)| !text.is_empty()) {
            match entry(text) {
                Ok(entry) => seen.take(entry),
                Err(wrong) => return Err(TraceError { file: file.to_owned(), line, wrong }),
            }
        }
        Ok(Some(seen))
    }

    fn take(&mut self, entry: Entry<'_>) {
        match entry {
            Entry::Arrival(io) => self.latencies.entry(io.kind).or_default().record(io.took),
            Entry::RegisterWrite => self.register_writes += 1,
            Entry::Stage(stage) => self.stages.push(stage),
            Entry::Run(run) => self.run = run.to_owned(),
            Entry::Depth(depth) => self.depth = depth,
            Entry::Lost(lost) => self.lost = lost,
        }
    }
}

/// Parses a line for replay.
pub(super) fn line(text: &str) -> Result<Parsed, TraceWrong> {
    let io = match entry(text)? {
        Entry::Arrival(io) => io,
        Entry::Lost(count) if count > 0 => {
            let kind = "operation or register write that the recorder had no room for";
            return Ok(Parsed::LeftOut(count, kind.to_owned()));
        }
        _ => return Ok(Parsed::Nothing),
    };
    let kind = match io.kind {
        OpKind::Read => TraceKind::Read,
        OpKind::Write => TraceKind::Write,
        OpKind::Flush => TraceKind::Flush,
        OpKind::Trim => TraceKind::Trim,
    };
    let Arrival { at, offset_bytes, bytes, durability, .. } = io;
    let time_ps = u128::from(at.0);
    Ok(Parsed::Op(Line { time_ps, kind, offset_bytes, bytes, durability, device: 0 }))
}

fn entry(text: &str) -> Result<Entry<'_>, TraceWrong> {
    let malformed = || TraceWrong::Fields { text: text.to_owned(), expected: EXPECTED };
    let (word, rest) = text.split_once(' ').ok_or_else(malformed)?;
    if word == "run" {
        return Ok(Entry::Run(rest));
    }
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let kind =
        |name: &str| OpKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(malformed);
    match (word, &fields[..]) {
        ("io", &[at, what, offset, bytes, took]) => {
            let (what, fua) = match what.strip_suffix(FUA) {
                Some(what) => (what, true),
                None => (what, false),
            };
            let (what, preflush) = match what.strip_suffix(PREFLUSH) {
                Some(what) => (what, true),
                None => (what, false),
            };
            let (kind, durability) = (kind(what)?, Durability { preflush, fua });
            if kind != OpKind::Write && durability != Durability::NONE {
                return Err(malformed());
            }
            let (offset_bytes, bytes) = match kind {
                OpKind::Flush => (0, 0),
                _ => super::iolog::extent(offset, bytes)?,
            };
            let at = Span(number("arrival", at, PICOSECONDS)?);
            let took = Span(number("time taken", took, PICOSECONDS)?);
            Ok(Entry::Arrival(Arrival { at, kind, offset_bytes, bytes, durability, took }))
        }
        ("register", &[at, register, value]) => {
            number("moment", at, PICOSECONDS)?;
            for (field, text) in [("register", register), ("value", value)] {
                hexadecimal(field, text)?;
            }
            Ok(Entry::RegisterWrite)
        }
        ("stage", &[of, count, mean, _, ..]) => {
            let (kind, count) = (kind(of)?, number("count", count, "a whole number")?);
            let mean_ps = number("mean", mean, PICOSECONDS)?;
            let name = fields[3..].join(" ");
            Ok(Entry::Stage(StageMean { kind, name, count, mean_ps }))
        }
        ("depth", &[depth]) => {
            const EXPECTED: &str = "a whole number from 1 to 65536";
            let most = number("depth", depth, EXPECTED)?;
            match u32::try_from(most) {
                Ok(most @ 1..=65_536) => Ok(Entry::Depth(most)),
                _ => Err(wrong("depth", depth, EXPECTED)),
            }
        }
        ("lost", &[lost]) => Ok(Entry::Lost(number("lost", lost, "a whole number")?)),
        _ => Err(malformed()),
    }
}

fn hexadecimal(field: &'static str, text: &str) -> Result<u32, TraceWrong> {
    let expected = "a hexadecimal number of 32 bits";
    u32::from_str_radix(text, 16).map_err(|_| wrong(field, text, expected))
}

fn wrong(field: &'static str, text: &str, expected: &'static str) -> TraceWrong {
    TraceWrong::Number { field, text: text.to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use super::super::{Reader, TraceOp};
    use super::*;

    fn recording() -> Recording {
        let io = |us, kind, offset_bytes, bytes, took| Arrival {
            at: Span::us(us),
            kind,
            offset_bytes,
            bytes,
            durability: Durability::NONE,
            took: Span::ns(took),
        };
        let (preflush, fua) = (true, true);
        Recording {
            run: "live, two threads".into(),
            depth: 4,
            lost: 7,
            arrivals: vec![
                io(3, OpKind::Read, 8192, 4096, 1_100),
                Arrival {
                    durability: Durability { preflush, fua },
                    ..io(5, OpKind::Write, 0, 512, 1_300)
                },
                io(6, OpKind::Flush, 0, 0, 200),
                io(6, OpKind::Trim, 4096, 4096, 300),
            ],
            register_writes: vec![RegisterWrite { at: Span::us(4), register: 0x1008, value: 12 }],
            stages: vec![StageMean {
                kind: OpKind::Read,
                name: "post completion".into(),
                count: 1,
                mean_ps: 20_500,
            }],
        }
    }

    fn text() -> String {
        let mut bytes = Vec::new();
        recording().write(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn recording_round_trips_arrivals_and_measurements() {
        let (text, recording) = (text(), recording());
        let mut reader = Reader::new("r", text.as_bytes()).unwrap();
        let ops: Result<Vec<TraceOp>, _> = reader.by_ref().collect();
        let ops = ops.unwrap();
        assert_eq!(reader.left_out().values().copied().collect::<Vec<_>>(), [7]);
        assert!(text.contains(" write+preflush+fua 0 512 ") && text.contains(" read 8192 4096 "));
        assert_eq!(ops[0].durability, Durability::NONE);
        assert_eq!(ops[1].durability, Durability { preflush: true, fua: true });
        let at: Vec<_> = ops.iter().map(|op| op.at.as_ns()).collect();
        assert_eq!(at, [0, 2_000, 3_000, 3_000]);
        assert_eq!(
            (ops[0].offset_bytes, ops[0].bytes, ops[1].kind),
            (8192, 4096, TraceKind::Write)
        );
        let seen = Recorded::of("r", &text).unwrap().expect("a recording");
        assert_eq!((seen.run, seen.depth, seen.lost), (recording.run, 4, 7));
        assert_eq!((seen.register_writes, seen.stages), (1, recording.stages));
        assert_eq!(seen.latencies[&OpKind::Write].max_ns(), 1_300);
    }

    #[test]
    fn malformed_recording_error_names_its_line() {
        assert!(Recorded::of("r", "fio version 3 iolog\n").unwrap().is_none());
        for (bad, expected) in [
            ("io 1 read 0 4096", "expected io AT KIND"),
            ("io 1 erase 0 4096 1", "expected io AT KIND"),
            ("io 1 read 0 0 1", "length \"0\""),
            ("io 1 read+fua 0 4096 1", "expected io AT KIND"),
            ("io 1 write+fua+preflush 0 4096 1", "expected io AT KIND"),
            ("io x read 0 4096 1", "arrival \"x\": expected a whole number of picoseconds"),
            ("register 1 1008 zz", "value \"zz\": expected a hexadecimal number"),
            ("depth 0", "depth \"0\": expected a whole number from 1"),
            ("wait", "expected io AT KIND"),
        ] {
            let text = format!("{HEADER}\nrun x\n{bad}\n");
            let error = Recorded::of("r.rec", &text).unwrap_err().to_string();
            assert!(error.starts_with("r.rec:3: ") && error.contains(expected), "{bad}: {error}");
        }
    }
}
