//! fio's iolog, versions 2 and 3 (fio's manual, "I/O Replay": "Trace File Format").
//!
//! Version 3 puts a time before each line, `TIME FILE ACTION [OFFSET LENGTH]`. The manual names no
//! unit; fio 3.31 and later write and replay microseconds. Version 2 has no times but `FILE wait
//! MICROSECONDS`; as the manual has it, a wait counts from the wait before and one below 100 is
//! nothing (fio 3.33's own replay takes it as milliseconds from its start instead). Actions on
//! files (`add`, `open`, `close`) have no effect, but a file must be added before its use.

use super::{Devices, Line, Parsed, TraceKind, TraceWrong, length, number};
use crate::pattern::Durability;

const MICROSECOND_PS: u128 = 1_000_000;
/// The manual: "Everything below 100 is discarded."
const WAIT_US_MIN: u64 = 100;

/// The header of version 3.
pub const HEADER_V3: &str = "fio version 3 iolog";
const HEADER_V2: &str = "fio version 2 iolog";

const EXPECTED_V3: &str = "TIME FILE add|open|close, or TIME FILE \
                           read|write|sync|datasync|trim OFFSET LENGTH";
const EXPECTED_V2: &str = "FILE add|open|close, FILE wait MICROSECONDS, or FILE \
                           read|write|sync|datasync|trim OFFSET LENGTH";

#[derive(Debug)]
pub struct Iolog {
    timed: bool,
    /// Version 2: sum of the waits so far.
    waited_us: u64,
    files: Devices,
}

impl Iolog {
    /// Parses the header; `None` if the first line is not an iolog header.
    pub fn from_header(text: &str) -> Option<Iolog> {
        let timed = match text {
            HEADER_V2 => false,
            HEADER_V3 => true,
            _ => return None,
        };
        Some(Iolog { timed, waited_us: 0, files: Devices::default() })
    }

    pub fn name(&self) -> &'static str {
        if self.timed { "fio iolog v3 (times in us)" } else { "fio iolog v2 (times from waits)" }
    }

    pub fn line(&mut self, text: &str) -> Result<Parsed, TraceWrong> {
        let expected = if self.timed { EXPECTED_V3 } else { EXPECTED_V2 };
        let malformed = || TraceWrong::Fields { text: text.to_owned(), expected };
        let mut fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let mut time_us = self.waited_us;
        if self.timed {
            if fields.is_empty() {
                return Err(malformed());
            }
            time_us = number("time", fields.remove(0), "a whole number of microseconds")?;
        }
        match fields[..] {
            [name, "add"] => self.files.number(name).map(|_| Parsed::Nothing),
            [name, "open" | "close"] => self.device(name).map(|_| Parsed::Nothing),
            [_, "wait", wait, ..] if !self.timed && fields.len() <= 4 => {
                let wait = number("wait", wait, "a whole number of microseconds")?;
                if wait < WAIT_US_MIN {
                    return Ok(Parsed::LeftOut(1, format!("wait of less than {WAIT_US_MIN} us")));
                }
                self.waited_us = time_us.checked_add(wait).ok_or(TraceWrong::TooLate)?;
                Ok(Parsed::Nothing)
            }
            [name, action, offset, bytes] => {
                let kind = match action {
                    "read" => TraceKind::Read,
                    "write" => TraceKind::Write,
                    "trim" => TraceKind::Trim,
                    "sync" | "datasync" => TraceKind::Flush,
                    _ => return Err(malformed()),
                };
                let device = self.device(name)?;
                let time_ps = u128::from(time_us) * MICROSECOND_PS;
                if kind == TraceKind::Flush {
                    // fio writes the offset of the last write here; a flush has neither offset nor length.
                    return Ok(Parsed::Op(Line::flush(time_ps, device)));
                }
                let ((offset_bytes, bytes), durability) =
                    (extent(offset, bytes)?, Durability::NONE);
                Ok(Parsed::Op(Line { time_ps, kind, offset_bytes, bytes, durability, device }))
            }
            _ => Err(malformed()),
        }
    }

    fn device(&self, name: &str) -> Result<u32, TraceWrong> {
        let device = self.files.known(name);
        device.ok_or_else(|| TraceWrong::NotAdded { name: name.to_owned() })
    }
}

/// Parses offset and length in bytes. The length must not be 0, and the end must fit 64 bits.
pub(super) fn extent(offset: &str, bytes: &str) -> Result<(u64, u32), TraceWrong> {
    let length = length("length", bytes, 1)?;
    let expected = "a whole number of bytes, with its length within 64 bits";
    let from = number("offset", offset, expected)?;
    if from.checked_add(u64::from(length)).is_none() {
        let (field, text) = ("offset", offset.to_owned());
        return Err(TraceWrong::Number { field, text, expected });
    }
    Ok((from, length))
}

#[cfg(test)]
mod tests {
    use super::super::{Reader, TraceOp};
    use super::*;
    use runtime::Span;

    fn read(text: &str) -> Result<Vec<TraceOp>, String> {
        let reader = Reader::new("a.log", text.as_bytes()).map_err(|error| error.to_string())?;
        reader.collect::<Result<_, _>>().map_err(|error| error.to_string())
    }

    #[test]
    fn iolog_v3_times_are_us_from_first_operation() {
        let all = read(
            "fio version 3 iolog\n18 /a add\n19 /b add\n91 /a open\n92 /b open\n\
             97 /a read 249856 4096\n1117 /b write 3104768 512\n1200 /b sync 3104768 0\n\
             1201 /a datasync 0 0\n1300 /a trim 0 4096\n1400 /a close\n",
        )
        .unwrap();
        let op = |at, kind, offset_bytes, bytes, device| TraceOp {
            at: Span::us(at),
            kind,
            offset_bytes,
            bytes,
            durability: Durability::NONE,
            device,
        };
        assert_eq!(
            all,
            [
                op(0, TraceKind::Read, 249_856, 4096, 0),
                op(1020, TraceKind::Write, 3_104_768, 512, 1),
                op(1103, TraceKind::Flush, 0, 0, 1),
                op(1104, TraceKind::Flush, 0, 0, 0),
                op(1203, TraceKind::Trim, 0, 4096, 0),
            ]
        );
    }

    #[test]
    fn iolog_v2_times_add_up_waits() {
        let all = read(
            "fio version 2 iolog\n/a add\n/a open\n/a read 0 4096\n/a wait 250 0\n/a wait 99 0\n\
             /a write 4096 4096\n/a wait 1000\n/a read 0 4096\n/a close\n",
        )
        .unwrap();
        let at: Vec<Span> = all.iter().map(|op| op.at).collect();
        assert_eq!(at, [Span::ZERO, Span::us(250), Span::us(1250)]);
    }

    #[test]
    fn time_running_backwards_is_clamped_and_counted() {
        let text = "fio version 3 iolog\n0 /a add\n5 /a read 0 512\n9 /a read 0 512\n\
                    7 /a read 0 512\n3 /a read 0 512\n10 /a read 0 512\n";
        let mut reader = Reader::new("a.log", text.as_bytes()).unwrap();
        let at: Vec<_> = reader.by_ref().map(|op| op.unwrap().at).collect();
        assert_eq!(at, [0, 4, 4, 4, 5].map(Span::us));
        assert_eq!(reader.backwards(), 2);
    }

    #[test]
    fn malformed_iolog_line_error_shows_expected_form() {
        let v3 = "a.log:3: ";
        for (line, want) in [
            ("x /a read 0 512", "time \"x\": expected a whole number of microseconds"),
            ("1 /a", "\"1 /a\": expected TIME FILE add|open|close, or TIME FILE read|write"),
            ("1 /a wait 100 0", "\"1 /a wait 100 0\": expected TIME FILE add"),
            ("1 /a erase 0 512", "\"1 /a erase 0 512\": expected TIME FILE add"),
            ("1 /b read 0 512", "\"/b\" was not added: expected a line with \"add\""),
            ("1 /b open", "\"/b\" was not added"),
            ("1 /a read 0 0", "length \"0\": expected a whole number from 1"),
            ("1 /a read 0 4294967296", "length \"4294967296\": expected a whole number from 1"),
            ("1 /a read +1 512", "offset \"+1\": expected a whole number of bytes"),
            ("1 /a read 18446744073709551615 512", "offset \"18446744073709551615\": expected"),
        ] {
            let said = read(&format!("fio version 3 iolog\n0 /a add\n{line}\n")).unwrap_err();
            assert!(said.starts_with(&format!("{v3}{want}")), "{line}: {said}");
        }
        let said = read("fio version 2 iolog\n/a add\n/a wait x\n").unwrap_err();
        assert_eq!(said, "a.log:3: wait \"x\": expected a whole number of microseconds");
    }

    #[test]
    fn unknown_trace_format_is_rejected() {
        for (text, want) in [
            ("", "a.log:1: the trace is empty: expected at least one operation"),
            ("fio version 4 iolog\n", "a.log:1: \"fio version 4 iolog\" begins no known trace"),
            (
                "hello\n",
                "a.log:1: \"hello\" begins no known trace: expected \"fio version 2 iolog\"",
            ),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.starts_with(want), "{said}");
        }
        let endless = format!("fio version 3 iolog\n{}", "1".repeat(10_000));
        assert!(read(&endless).unwrap_err().starts_with("a.log:2: the line is longer than 4096"));
        let garbage: &[u8] = b"fio version 3 iolog\n\xff\xfe\n";
        let mut reader = Reader::new("a.log", garbage).unwrap();
        assert!(reader.next().unwrap().is_err());
    }
}
