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

use super::{Devices, Line, TraceKind, TraceWrong, length, number};

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

    /// Parses a line; `None` if it is not replayed.
    pub fn line(&mut self, text: &str) -> Result<Option<Line>, TraceWrong> {
        // "CPU0 (sda):" and "Total (sda):", with counts below.
        self.over |= text.starts_with("CPU") || text.starts_with("Total");
        if self.over {
            return Ok(None);
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
            _ => return Ok(None),
        };
        if *self.action.get_or_insert(action) != action {
            return Ok(None);
        }
        let (kind, rest) = match rest {
            [] => return Err(malformed()),
            [rwbs, rest @ ..] => (kind_of(rwbs), rest),
        };
        let Some(kind) = kind else { return Ok(None) };
        match (kind, rest) {
            (kind, [sector, "+", sectors, ..]) => {
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
                let kind = if kind == TraceKind::Flush { TraceKind::Write } else { kind };
                let device = self.devices.number(device)?;
                Ok(Some(Line { time_ps, kind, offset_bytes, bytes, device }))
            }
            // A flush has neither offset nor length.
            (TraceKind::Flush, _) => {
                let device = self.devices.number(device)?;
                let (kind, offset_bytes, bytes) = (TraceKind::Flush, 0, 0);
                Ok(Some(Line { time_ps, kind, offset_bytes, bytes, device }))
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

/// Decodes RWBS: R, W or D (discard) for the operation, F for a flush before or after it, N for none.
fn kind_of(rwbs: &str) -> Option<TraceKind> {
    // A leading F is a preflush; alone, or with N, it is a flush without data.
    match rwbs {
        _ if rwbs.contains('D') => Some(TraceKind::Trim),
        _ if rwbs.contains('R') => Some(TraceKind::Read),
        _ if rwbs.contains('W') && !rwbs.starts_with('F') => Some(TraceKind::Write),
        _ if rwbs.contains('F') => Some(TraceKind::Flush),
        _ => None,
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
