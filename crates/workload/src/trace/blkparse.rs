//! blkparse's text output of a Linux block trace (blktrace's manual, "Default output").
//!
//! ```text
//! 8,0    3       11     0.009507758   697  Q   W 223490 + 56 [kjournald]
//! ```
//!
//! Device, processor, sequence number, seconds, process, action, operation (RWBS), first sector and
//! sectors of 512 bytes. A request has a line for each of its steps, one of which is replayed: queued (`Q`),
//! as in fio, or, if the trace begins with it, issued to the driver (`D`), for traces that contain nothing
//! else. The summary at the end is skipped.
//!
//! RWBS is an `F` for a flush before the data, the operation (R, W, D for a discard, N for another one), then
//! flags: `F` for FUA, `B` for the barrier of kernels before 2.6.37, which is both, and A, S and M, which say
//! nothing to a device.

use super::{Devices, Line, Parsed, TraceKind, TraceWrong, length, number};
use crate::pattern::Durability;

const SECTOR_BYTES: u64 = 512;
const NANOSECOND_PS: u128 = 1_000;
const EXPECTED: &str = "DEVICE CPU SEQUENCE SECONDS.NANOSECONDS PID ACTION RWBS [SECTOR + SECTORS]";
const SECONDS: &str = "seconds with nine digits behind the point";

#[derive(Debug, Default)]
pub struct Blkparse {
    devices: Devices,
    /// The action to replay, set by the first line that has one.
    action: Option<char>,
    over: bool,
}

impl Blkparse {
    /// Whether a first line has this format.
    pub fn looks_like(text: &str) -> bool {
        let mut fields = text.split_ascii_whitespace();
        let device = fields.next().is_some_and(is_device);
        device && fields.nth(2).is_some_and(|time| time_ps(time).is_ok())
    }

    pub fn line(&mut self, text: &str) -> Result<Parsed, TraceWrong> {
        // "CPU0 (sda):" and "Total (sda):", with counts below.
        self.over |= text.starts_with("CPU") || text.starts_with("Total");
        if self.over {
            return Ok(Parsed::Nothing);
        }
        let malformed = || TraceWrong::Fields { text: text.to_owned(), expected: EXPECTED };
        let fields: Vec<&str> = text.split_ascii_whitespace().take(10).collect();
        let [device, _, _, time, _, action, rest @ ..] = &fields[..] else {
            return Err(malformed());
        };
        if !is_device(device) {
            return Err(malformed());
        }
        let time_ps = time_ps(time)?;
        let action = match *action {
            "Q" => 'Q',
            "D" => 'D',
            _ => return Ok(Parsed::Nothing),
        };
        if *self.action.get_or_insert(action) != action {
            return Ok(Parsed::Nothing);
        }
        let [rwbs, rest @ ..] = rest else { return Err(malformed()) };
        if rest.get(1).is_some_and(|bytes| bytes.starts_with('(')) {
            return Ok(Parsed::LeftOut(1, "command of a program (passthrough)".to_owned()));
        }
        let Some(Request { kind, durability, without }) = Request::of(rwbs) else {
            return Ok(Parsed::LeftOut(1, format!("request {rwbs}")));
        };
        match rest {
            [sector, "+", sectors, ..] if kind != TraceKind::Flush => {
                let bytes = length("sectors", sectors, SECTOR_BYTES)?;
                let (field, expected) = ("sector", "a whole number of at most 2^55 sectors");
                let offset_bytes = number(field, sector, expected)?
                    .checked_mul(SECTOR_BYTES)
                    .filter(|offset| offset.checked_add(u64::from(bytes)).is_some())
                    .ok_or_else(|| TraceWrong::Number {
                        field,
                        text: (*sector).to_owned(),
                        expected,
                    })?;
                let device = self.devices.number(device)?;
                let line = Line { time_ps, kind, offset_bytes, bytes, durability, device };
                Ok(match without {
                    Some(part) => Parsed::Without(line, part.to_owned()),
                    None => Parsed::Op(line),
                })
            }
            // A flush has neither offset nor length: it is a write of nothing with a flush before it.
            _ if kind == TraceKind::Flush || durability.preflush => {
                Ok(Parsed::Op(Line::flush(time_ps, self.devices.number(device)?)))
            }
            _ => Err(malformed()),
        }
    }
}

fn is_device(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.split_once(',').is_some_and(|(major, minor)| digits(major) && digits(minor))
}

fn time_ps(text: &str) -> Result<u128, TraceWrong> {
    let wrong = || TraceWrong::Number { field: "time", text: text.to_owned(), expected: SECONDS };
    let (seconds, nanoseconds) = text.split_once('.').ok_or_else(wrong)?;
    if nanoseconds.len() != 9 {
        return Err(wrong());
    }
    let (seconds, nanoseconds) =
        (number("time", seconds, SECONDS)?, number("time", nanoseconds, SECONDS)?);
    Ok((u128::from(seconds) * 1_000_000_000 + u128::from(nanoseconds)) * NANOSECOND_PS)
}

struct Request {
    kind: TraceKind,
    durability: Durability,
    /// A part that is not replayed.
    without: Option<&'static str>,
}

impl Request {
    /// `None` if the request is none that is replayed.
    fn of(rwbs: &str) -> Option<Request> {
        let (preflush, rest) = match rwbs.strip_prefix('F') {
            Some(rest) => (true, rest),
            None => (false, rwbs),
        };
        // "DS" and the like of a few versions have blanks before them, never letters.
        let (kind, flags) = match rest.strip_prefix(['R', 'W', 'D']) {
            Some(flags) => (rest.as_bytes()[0], flags),
            None => (b'F', rest),
        };
        let barrier = flags.contains('B');
        let (preflush, fua) = (preflush || barrier, flags.contains('F') || barrier);
        let durability = Durability { preflush, fua };
        let (kind, durability, without) = match kind {
            b'W' => (TraceKind::Write, durability, None),
            b'F' if preflush => (TraceKind::Flush, Durability::NONE, None),
            b'F' => return None,
            _ => {
                let kind = if kind == b'R' { TraceKind::Read } else { TraceKind::Trim };
                let asks = durability != Durability::NONE;
                let without = asks.then_some("flush or FUA of a read or discard");
                (kind, Durability::NONE, without)
            }
        };
        Some(Request { kind, durability, without })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reader;
    use super::*;
    use runtime::Span;

    const QUEUED: &str = "\
  8,0    3        1     0.000000000   697  A   W 223490 + 8 <- (8,1) 223427
  8,0    3        2     0.000000200   697  Q   W 223490 + 8 [kjournald]
  8,0    3        3     0.000001700   697  G   W 223490 + 8 [kjournald]
  8,0    3        4     0.000002000   697  D   W 223490 + 8 [kjournald]
  8,16   1        1     0.000500200   700  Q   R 0 + 1 [dd]
  8,0    0        9     0.000600000     0  C   W 223490 + 8 [0]
  8,0    3        5     0.000700200   697  Q FWS [kworker/3:1]
  8,0    3        6     0.000800200   697  Q  DS 4096 + 2048 [fstrim]
  8,0    3        7     0.000900200   697  Q FWFS 99 + 8 [jbd2]
  8,0    3        8     0.000900300   697  m   N cfq697 dispatched
CPU3 (sda):
 Reads Queued:           0,        0KiB\t Writes Queued:           1,        4KiB
Total (sda):
";

    #[test]
    fn blkparse_keeps_preflush_fua_and_barrier_of_writes() {
        let of = |rwbs: &str, extent: &str| {
            let before = "8,0 0 1 0.000000100 1 Q R 0 + 8 [a]\n8,0 0 1 0.000000100 1 m N x\n";
            let text = format!("{before}8,0 0 2 0.000000200 1 Q {rwbs} {extent} [jbd2/sda-8]\n");
            let mut reader = Reader::new("t", text.as_bytes()).unwrap();
            let ops: Vec<_> = reader.by_ref().skip(1).map(Result::unwrap).collect();
            let left: Vec<_> = reader.left_out().keys().cloned().collect();
            let op = ops.first().map(|op| (op.kind, op.durability.preflush, op.durability.fua));
            (op, left.join(" "))
        };
        let (write, flush, none) = (TraceKind::Write, TraceKind::Flush, String::new);
        for (rwbs, extent, kind, preflush, fua) in [
            ("W", "8 + 8", write, false, false),
            ("WS", "8 + 8", write, false, false),
            ("WSM", "8 + 8", write, false, false),
            ("WFS", "8 + 8", write, false, true),
            ("FWS", "8 + 8", write, true, false),
            ("FWFS", "8 + 8", write, true, true),
            ("FWFSM", "8 + 8", write, true, true),
            ("WBS", "8 + 8", write, true, true),
            ("FWS", "", flush, false, false),
            ("FWFS", "", flush, false, false),
            ("WB", "", flush, false, false),
            ("FN", "", flush, false, false),
            ("FF", "0 + 0", flush, false, false),
            ("F", "", flush, false, false),
            ("DS", "8 + 8", TraceKind::Trim, false, false),
            ("DE", "8 + 8", TraceKind::Trim, false, false),
            ("RA", "8 + 8", TraceKind::Read, false, false),
        ] {
            assert_eq!(of(rwbs, extent), (Some((kind, preflush, fua)), none()), "{rwbs} {extent}");
        }
        let read = Some((TraceKind::Read, false, false));
        assert_eq!(of("RF", "8 + 8"), (read, "flush or FUA of a read or discard".to_owned()));
        assert_eq!(of("N", ""), (None, "request N".to_owned()));
        assert_eq!(of("ZR", "8 + 8"), (None, "request ZR".to_owned()));
        let passthrough = (None, "command of a program (passthrough)".to_owned());
        assert_eq!(of("R", "36 (5a 00 08 00 00 00 00 00 24 00)"), passthrough);
    }

    fn read(text: &str) -> Vec<(Span, TraceKind, u64, u32, u32)> {
        let reader = Reader::new("t", text.as_bytes()).unwrap();
        assert_eq!(reader.format(), "blkparse text (times in s)");
        let op = |op: super::super::TraceOp| (op.at, op.kind, op.offset_bytes, op.bytes, op.device);
        reader.map(|found| op(found.unwrap())).collect()
    }

    #[test]
    fn blkparse_replays_queued_requests_once() {
        assert_eq!(
            read(QUEUED),
            [
                (Span::ZERO, TraceKind::Write, 223490 * 512, 4096, 0),
                (Span::us(500), TraceKind::Read, 0, 512, 1),
                (Span::us(700), TraceKind::Flush, 0, 0, 0),
                (Span::us(800), TraceKind::Trim, 4096 * 512, 1 << 20, 0),
                (Span::us(900), TraceKind::Write, 99 * 512, 4096, 0),
            ]
        );
    }

    #[test]
    fn blkparse_replays_issues_if_trace_has_no_queue_events() {
        let text = "8,0 0 1 10.000000100 1 D R 8 + 8 [fio]\n8,0 0 2 10.000100100 0 C R 8 + 8 [0]\n";
        assert_eq!(read(text), [(Span::ZERO, TraceKind::Read, 4096, 4096, 0)]);
    }

    #[test]
    fn malformed_blkparse_line_error_shows_expected_form() {
        for (text, want) in [
            ("8,0 0 1", "\"8,0 0 1\": expected DEVICE CPU SEQUENCE"),
            ("sda 0 1 0.000000000 1 Q R 8 + 8 [x]", "expected DEVICE CPU SEQUENCE"),
            ("8,0 0 1 0.5 1 Q R 8 + 8 [x]", "time \"0.5\": expected seconds with nine digits"),
            ("8,0 0 1 0.000000000 1 Q R 8 8 [x]", "expected DEVICE CPU SEQUENCE"),
            ("8,0 0 1 0.000000000 1 Q R x + 8 [x]", "sector \"x\": expected a whole number"),
            (
                "8,0 0 1 0.000000000 1 Q R 8 + 0 [x]",
                "sectors \"0\": expected a whole number from 1",
            ),
            ("8,0 0 1 0.000000000 1 Q R 36028797018963968 + 8 [x]", "at most 2^55 sectors"),
        ] {
            let input = format!("8,0 0 1 0.000000000 1 Q R 8 + 8 [x]\n{text}\n");
            let mut reader = Reader::new("t", input.as_bytes()).unwrap();
            assert!(reader.next().unwrap().is_ok());
            let said = reader.next().unwrap().unwrap_err().to_string();
            assert!(said.starts_with("t:2: ") && said.contains(want), "{said}");
        }
    }
}
