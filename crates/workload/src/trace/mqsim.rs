//! MQSim's and DiskSim's ASCII traces: `arrival device start_sector sectors type`, one request a line.
//!
//! Sectors of 512 bytes, type 0 for a write and 1 for a read. MQSim's arrival is in whole nanoseconds,
//! DiskSim's in milliseconds with a point ("The DiskSim Simulation Environment", version 4.0, "Input
//! traces"), and its type is a set of flags in hexadecimal; bit 0 set is a read. The device number
//! is a disk of the recorded machine; [`super::Map`] maps the disks onto one SSD, end to end in order
//! of first appearance. Arrivals are absolute in the file and count from the first one here.

use super::{Line, TraceKind, TraceWrong, length, number};
use crate::pattern::Durability;

const SECTOR_BYTES: u64 = 512;
const NANOSECOND_PS: u128 = 1_000;
const MILLISECOND_PS: u128 = 1_000_000_000;
const EXPECTED: &str = "five integers: arrival in ns, device, first sector, sectors, type";
const EXPECTED_DISKSIM: &str = "five numbers: arrival in ms, device, first sector, sectors, flags";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Arrivals in whole nanoseconds.
    Mqsim,
    /// Arrivals in milliseconds, with a point.
    Disksim,
}

/// Detects the dialect from a first line; `None` if it has neither form.
pub fn looks_like(text: &str) -> Option<Dialect> {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let digits = |text: &&str| text.bytes().all(|b| b.is_ascii_digit());
    match fields[..] {
        [arrival, ref rest @ ..] if rest.len() == 4 => match arrival.split_once('.') {
            None if fields.iter().all(digits) => Some(Dialect::Mqsim),
            Some((ms, part)) if [&ms, &part].into_iter().chain(&rest[..3]).all(digits) => {
                Some(Dialect::Disksim)
            }
            _ => None,
        },
        _ => None,
    }
}

impl Dialect {
    /// Parses an arrival time; returns picoseconds.
    fn time_ps(self, text: &str) -> Result<u128, TraceWrong> {
        if self == Dialect::Mqsim {
            let ns = number("arrival", text, "a whole number")?;
            return Ok(u128::from(ns) * NANOSECOND_PS);
        }
        const MS: &str = "milliseconds, with at most nine digits behind a point";
        let (ms, part) = text.split_once('.').unwrap_or((text, "0"));
        let wrong = || TraceWrong::Number { field: "arrival", text: text.to_owned(), expected: MS };
        if part.len() > 9 {
            return Err(wrong());
        }
        let part = number("arrival", &format!("{part:0<9}"), MS).map_err(|_| wrong())?;
        let ms = number("arrival", ms, MS).map_err(|_| wrong())?;
        Ok(u128::from(ms) * MILLISECOND_PS + u128::from(part))
    }

    fn kind(self, text: &str) -> Result<TraceKind, TraceWrong> {
        let flags = u32::from_str_radix(text, 16).ok();
        match (self, text, flags) {
            (Dialect::Mqsim, "0", _) => Ok(TraceKind::Write),
            (Dialect::Mqsim, "1", _) => Ok(TraceKind::Read),
            (Dialect::Disksim, _, Some(flags)) if flags & 1 == 0 => Ok(TraceKind::Write),
            (Dialect::Disksim, _, Some(_)) => Ok(TraceKind::Read),
            (Dialect::Mqsim, ..) => {
                let (field, expected) = ("type", "0 for a write or 1 for a read");
                Err(TraceWrong::Number { field, text: text.to_owned(), expected })
            }
            (Dialect::Disksim, ..) => {
                let (field, expected) = ("flags", "a hexadecimal number, odd for a read");
                Err(TraceWrong::Number { field, text: text.to_owned(), expected })
            }
        }
    }
}

pub fn line(dialect: Dialect, text: &str) -> Result<Line, TraceWrong> {
    let expected = match dialect {
        Dialect::Mqsim => EXPECTED,
        Dialect::Disksim => EXPECTED_DISKSIM,
    };
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let [arrival, device, sector, sectors, kind] = fields[..] else {
        return Err(TraceWrong::Fields { text: text.to_owned(), expected });
    };
    let whole = "a whole number";
    let kind = dialect.kind(kind)?;
    let too_far = |text: &str| TraceWrong::Number {
        field: "first sector",
        text: text.to_owned(),
        expected: "a whole number of at most 2^55 sectors",
    };
    let bytes = length("sectors", sectors, SECTOR_BYTES)?;
    let offset_bytes = number("first sector", sector, whole)?
        .checked_mul(SECTOR_BYTES)
        .filter(|offset| offset.checked_add(u64::from(bytes)).is_some())
        .ok_or_else(|| too_far(sector))?;
    let device = number("device", device, "a whole number of at most 32 bits")?;
    Ok(Line {
        time_ps: dialect.time_ps(arrival)?,
        kind,
        offset_bytes,
        bytes,
        durability: Durability::NONE,
        device: u32::try_from(device).map_err(|_| TraceWrong::Number {
            field: "device",
            text: device.to_string(),
            expected: "a whole number of at most 32 bits",
        })?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Reader;
    use super::*;
    use runtime::Span;

    #[test]
    fn mqsim_times_from_first_arrival_and_512_byte_sectors() {
        let text = "938513000 4 264719034 16 0\n938828000 3 197570570 8 1\n";
        let mut reader = Reader::new("t", text.as_bytes()).unwrap();
        let first = reader.next().unwrap().unwrap();
        assert_eq!((first.at, first.kind, first.device), (Span::ZERO, TraceKind::Write, 4));
        assert_eq!((first.offset_bytes, first.bytes), (264_719_034 * 512, 8192));
        let second = reader.next().unwrap().unwrap();
        assert_eq!((second.at, second.kind), (Span::us(315), TraceKind::Read));
        assert!(reader.next().is_none());
    }

    #[test]
    fn disksim_times_in_ms_and_hex_flags() {
        let text = "0.5 0 1000 8 1\n0.750001 1 2000 16 0\n12.0 0 8 8 f9\n";
        let reader = Reader::new("t", text.as_bytes()).unwrap();
        assert_eq!(reader.format(), "DiskSim ASCII (times in ms)");
        let ops: Vec<_> = reader.collect::<Result<_, _>>().unwrap();
        assert_eq!(ops[1].at, Span::ns(250_001));
        assert_eq!(ops[2].at, Span::us(11_500));
        let kinds: Vec<_> = ops.iter().map(|op| op.kind).collect();
        assert_eq!(kinds, [TraceKind::Read, TraceKind::Write, TraceKind::Read]);
        for (line, want) in [
            ("1.0 0 8 8", "expected five numbers: arrival in ms"),
            ("1.0000000001 0 8 8 1", "arrival \"1.0000000001\": expected milliseconds"),
            ("1.x 0 8 8 1", "arrival \"1.x\": expected milliseconds"),
            ("1.0 0 8 8 g", "flags \"g\": expected a hexadecimal number"),
        ] {
            let input = format!("{text}{line}\n");
            let said = Reader::new("t", input.as_bytes()).unwrap().last().unwrap().unwrap_err();
            assert!(said.to_string().starts_with("t:4: "), "{said}");
            assert!(said.to_string().contains(want), "{said}");
        }
    }

    #[test]
    fn mqsim_arrivals_near_u64_max_are_accepted() {
        // 100 ns ticks since 1601 would not fit 64 bits of picoseconds.
        let text = "18446744073709551614 0 0 1 1\n18446744073709551615 0 0 1 1\n";
        let all: Vec<_> = Reader::new("t", text.as_bytes()).unwrap().collect();
        assert_eq!(all[1].as_ref().unwrap().at, Span::ns(1));
    }

    #[test]
    fn malformed_mqsim_line_error_shows_expected_form() {
        for (text, want) in [
            ("1 2 3 4", "t:2: \"1 2 3 4\": expected five integers: arrival in ns"),
            ("1 2 3 4 7", "t:2: type \"7\": expected 0 for a write or 1 for a read"),
            ("1 2 3 0 1", "t:2: sectors \"0\": expected a whole number from 1"),
            ("1 2 3 99999999999 1", "t:2: sectors \"99999999999\": expected a whole number from 1"),
            ("1 2 -3 4 1", "t:2: first sector \"-3\": expected a whole number"),
            ("1 2 36028797018963968 4 1", "at most 2^55 sectors"),
            ("1 4294967296 3 4 1", "t:2: device \"4294967296\": expected a whole number of at"),
            ("99999999999999999 2 3 4 1", "t:2: this is more than 213 days"),
        ] {
            let input = format!("0 0 0 1 1\n{text}\n0 0 0 1 1\n");
            let mut reader = Reader::new("t", input.as_bytes()).unwrap();
            assert!(reader.next().unwrap().is_ok());
            let said = reader.next().unwrap().unwrap_err().to_string();
            assert!(said.contains(want), "{said}");
            assert!(reader.next().is_none(), "nothing comes after an error");
        }
    }
}
