//! MQSim's ASCII traces: `arrival device start_sector sectors type`, one request a line.
//!
//! Arrival in nanoseconds, sectors of 512 bytes, type 0 for a write and 1 for a read. The device
//! number is a disk of the recorded machine: where one SSD is to take them all, [`super::Map`] lays
//! the disks end to end in order of first appearance. Arrivals are absolute in the file and count
//! from the first one here.

use super::{Line, TraceKind, TraceWrong, length, number};

const SECTOR_BYTES: u64 = 512;
const NANOSECOND_PS: u128 = 1_000;
const EXPECTED: &str = "five integers: arrival in ns, device, first sector, sectors, type";

/// Whether a first line could be one of these.
pub fn looks_like(text: &str) -> bool {
    let mut fields = text.split_ascii_whitespace();
    fields.clone().count() == 5 && fields.all(|field| field.bytes().all(|b| b.is_ascii_digit()))
}

/// One request.
pub fn line(text: &str) -> Result<Line, TraceWrong> {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let [arrival, device, sector, sectors, kind] = fields[..] else {
        return Err(TraceWrong::Fields { text: text.to_owned(), expected: EXPECTED });
    };
    let whole = "a whole number";
    let kind = match kind {
        "0" => TraceKind::Write,
        "1" => TraceKind::Read,
        _ => {
            let (field, expected) = ("type", "0 for a write or 1 for a read");
            return Err(TraceWrong::Number { field, text: kind.to_owned(), expected });
        }
    };
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
        time_ps: u128::from(number("arrival", arrival, whole)?) * NANOSECOND_PS,
        kind,
        offset_bytes,
        bytes,
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
    fn times_count_from_the_first_arrival_and_sectors_are_512_bytes() {
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
    fn arrivals_on_a_clock_of_any_epoch_are_taken() {
        // 100 ns ticks since 1601 would not fit 64 bits of picoseconds.
        let text = "18446744073709551614 0 0 1 1\n18446744073709551615 0 0 1 1\n";
        let all: Vec<_> = Reader::new("t", text.as_bytes()).unwrap().collect();
        assert_eq!(all[1].as_ref().unwrap().at, Span::ns(1));
    }

    #[test]
    fn a_line_that_is_not_a_request_says_why() {
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
