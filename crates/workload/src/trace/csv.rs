//! CSV traces: Microsoft Research Cambridge (MSR), and vSCSI traces as collected by CloudPhysics.
//!
//! *MSR* (Narayanan, Donnelly and Rowstron, "Write Off-Loading: Practical Power Management for Enterprise
//! Storage", FAST 2008; the traces' own README):
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, the time in ticks of 100 ns since 1601,
//! offset and size in bytes. A line with these names may come first.
//! The recorded response time is ignored.
//!
//! *vSCSI*: a first line `version,time,op,size,lbn`, the time in whole seconds, the SCSI operation code in
//! hexadecimal, the size in bytes, the first block in sectors of 512. Within a second only the order is
//! known. WRITE SAME is replayed as a write of its size, WRITE AND VERIFY as a write with FUA. UNMAP can't be
//! replayed, as its ranges are in its data; it is counted, as is every other command.

use super::{Devices, Line, Parsed, TraceKind, TraceWrong, length, number};
use crate::pattern::Durability;

const TICK_PS: u128 = 100_000;
const SECOND_PS: u128 = 1_000_000_000_000;
const SECTOR_BYTES: u64 = 512;

const MSR_NAMES: &str = "timestamp,hostname,disknumber,type,offset,size,responsetime";
const MSR_EXPECTED: &str = "seven fields: time in ticks of 100 ns, host, disk, Read or Write, offset, size, \
                            response time";
const VSCSI_NAMES: &str = "version,time,op,size,lbn";
const VSCSI_EXPECTED: &str =
    "five fields: version, time in s, SCSI operation code, bytes, first sector";

fn fields<const N: usize>(text: &str) -> Option<[&str; N]> {
    let mut parts = text.split(',').map(str::trim);
    let mut fields = [""; N];
    for field in &mut fields {
        *field = parts.next()?;
    }
    parts.next().is_none().then_some(fields)
}

/// Parses an offset in multiples of `unit` bytes. The end, `bytes` later, must fit 64 bits too.
fn offset(
    field: &'static str,
    text: &str,
    unit: u64,
    bytes: u32,
    expected: &'static str,
) -> Result<u64, TraceWrong> {
    number(field, text, expected)?
        .checked_mul(unit)
        .filter(|offset| offset.checked_add(u64::from(bytes)).is_some())
        .ok_or_else(|| TraceWrong::Number { field, text: text.to_owned(), expected })
}

/// Parser state of an MSR Cambridge trace.
#[derive(Debug, Default)]
pub struct Msr {
    disks: Devices,
}

impl Msr {
    /// `Some` if a first line has this format; `Some(true)` if it is the header with the field names.
    pub fn looks_like(text: &str) -> Option<bool> {
        if text.eq_ignore_ascii_case(MSR_NAMES) {
            return Some(true);
        }
        let [time, _, disk, kind, ..] = fields::<7>(text)?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        (digits(time) && digits(disk) && kind_of(kind).is_some()).then_some(false)
    }

    pub fn line(&mut self, text: &str) -> Result<Line, TraceWrong> {
        let Some([time, host, disk, kind, place, size, _]) = fields::<7>(text) else {
            return Err(TraceWrong::Fields { text: text.to_owned(), expected: MSR_EXPECTED });
        };
        let kind = kind_of(kind).ok_or_else(|| TraceWrong::Number {
            field: "type",
            text: kind.to_owned(),
            expected: "Read or Write",
        })?;
        number("disk", disk, "a whole number")?;
        let bytes = length("size", size, 1)?;
        let within = "a whole number of bytes, with its length within 64 bits";
        Ok(Line {
            time_ps: u128::from(number("time", time, "a whole number of ticks")?) * TICK_PS,
            kind,
            offset_bytes: offset("offset", place, 1, bytes, within)?,
            bytes,
            durability: Durability::NONE,
            device: self.disks.number(&format!("{host}.{disk}"))?,
        })
    }
}

fn kind_of(text: &str) -> Option<TraceKind> {
    match text {
        _ if text.eq_ignore_ascii_case("read") => Some(TraceKind::Read),
        _ if text.eq_ignore_ascii_case("write") => Some(TraceKind::Write),
        _ => None,
    }
}

/// Whether a first line is the header of a vSCSI trace.
pub fn is_vscsi(text: &str) -> bool {
    text == VSCSI_NAMES
}

/// Name of a SCSI command that is not replayed (SPC-4 and SBC-4: operation codes).
fn left_out(code: u8) -> String {
    let name = match code {
        0x00 => "TEST UNIT READY",
        0x03 => "REQUEST SENSE",
        0x12 => "INQUIRY",
        0x1a | 0x5a => "MODE SENSE",
        0x1b => "START STOP UNIT",
        0x25 => "READ CAPACITY",
        0x2f | 0xaf | 0x8f => "VERIFY",
        0x42 => "UNMAP",
        0x4d => "LOG SENSE",
        0x5e => "PERSISTENT RESERVE IN",
        0x5f => "PERSISTENT RESERVE OUT",
        0x83 => "EXTENDED COPY",
        0x89 => "COMPARE AND WRITE",
        0x9e => "SERVICE ACTION IN",
        0xa0 => "REPORT LUNS",
        _ => return format!("SCSI command {code:02x}h"),
    };
    format!("{name} ({code:02x}h)")
}

/// Parses a request of a vSCSI trace.
pub fn vscsi(text: &str) -> Result<Parsed, TraceWrong> {
    let Some([_, time, op, size, lbn]) = fields::<5>(text) else {
        return Err(TraceWrong::Fields { text: text.to_owned(), expected: VSCSI_EXPECTED });
    };
    let code = u8::from_str_radix(op, 16).map_err(|_| TraceWrong::Number {
        field: "operation",
        text: op.to_owned(),
        expected: "a SCSI operation code of two hexadecimal digits",
    })?;
    let time_ps = u128::from(number("time", time, "a whole number of seconds")?) * SECOND_PS;
    // SBC-4, table 33: each in commands of 6, 10, 12 and 16 bytes.
    let (kind, fua) = match code {
        0x08 | 0x28 | 0xa8 | 0x88 => (TraceKind::Read, false),
        0x0a | 0x2a | 0xaa | 0x8a => (TraceKind::Write, false),
        // WRITE SAME of 10 and 16 bytes.
        0x41 | 0x93 => (TraceKind::Write, false),
        // WRITE AND VERIFY: the medium has the data at completion.
        0x2e | 0xae | 0x8e => (TraceKind::Write, true),
        0x35 | 0x91 => return Ok(Parsed::Op(Line::flush(time_ps, 0))),
        _ => return Ok(Parsed::LeftOut(1, left_out(code))),
    };
    let bytes = length("size", size, 1)?;
    let within = "a whole number of at most 2^55 sectors";
    let offset_bytes = offset("first sector", lbn, SECTOR_BYTES, bytes, within)?;
    let durability = Durability { preflush: false, fua };
    Ok(Parsed::Op(Line { time_ps, kind, offset_bytes, bytes, durability, device: 0 }))
}

#[cfg(test)]
mod tests {
    use super::super::Reader;
    use super::*;
    use runtime::Span;

    #[test]
    fn msr_times_in_ticks_with_and_without_header() {
        let lines = "128166372003061629,hm,1,Read,383496192,32768,413\n\
                     128166372016382155,hm,0,Write,2822144,4096,5267\n\
                     128166372026382245,hm,1,Write,2216771584,4096,1\n";
        let named = format!("Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n{lines}");
        for text in [lines, &named] {
            let reader = Reader::new("t", text.as_bytes()).unwrap();
            assert_eq!(reader.format(), "MSR Cambridge CSV (times in 100 ns)");
            let ops: Vec<_> = reader.collect::<Result<_, _>>().unwrap();
            assert_eq!(ops.len(), 3);
            assert_eq!(ops[0].at, Span::ZERO);
            assert_eq!(ops[1].at, Span::ns((128166372016382155 - 128166372003061629) * 100));
            assert_eq!((ops[0].kind, ops[0].offset_bytes), (TraceKind::Read, 383496192));
            assert_eq!((ops[1].kind, ops[1].bytes), (TraceKind::Write, 4096));
            // Disks by order of appearance.
            assert_eq!(ops.iter().map(|op| op.device).collect::<Vec<_>>(), [0, 1, 0]);
        }
    }

    #[test]
    fn vscsi_times_in_seconds_and_scsi_opcodes() {
        let text = "version,time,op,size,lbn\n1,5633898,2a,512,42932745\n1,5633898,0,0,0\n\
                    1,5633899,28,6656,40409911\n1,5633899,35,0,0\n";
        let reader = Reader::new("t", text.as_bytes()).unwrap();
        assert_eq!(reader.format(), "vSCSI CSV (times in s)");
        let ops: Vec<_> = reader.collect::<Result<_, _>>().unwrap();
        let seen: Vec<_> = ops.iter().map(|op| (op.at, op.kind, op.bytes)).collect();
        assert_eq!(
            seen,
            [
                (Span::ZERO, TraceKind::Write, 512),
                (Span::s(1), TraceKind::Read, 6656),
                (Span::s(1), TraceKind::Flush, 0),
            ]
        );
        assert_eq!(ops[0].offset_bytes, 42932745 * 512);
    }

    #[test]
    fn vscsi_write_same_is_a_write_and_other_commands_are_counted() {
        let text = "version,time,op,size,lbn\n1,1,42,24,0\n1,1,93,65536,8\n1,1,41,4096,8\n1,1,8e,512,0\n\
                    1,1,42,24,0\n1,1,89,512,0\n1,1,d1,0,0\n1,1,28,512,0\n";
        let mut reader = Reader::new("t", text.as_bytes()).unwrap();
        let ops: Vec<_> = reader.by_ref().map(|op| op.unwrap()).collect();
        let seen: Vec<_> = ops.iter().map(|op| (op.kind, op.bytes, op.durability.fua)).collect();
        let write = TraceKind::Write;
        let want = [
            (write, 65536, false),
            (write, 4096, false),
            (write, 512, true),
            (TraceKind::Read, 512, false),
        ];
        assert_eq!(seen, want);
        let left: Vec<_> =
            reader.left_out().iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        assert_eq!(left, ["1 COMPARE AND WRITE (89h)", "1 SCSI command d1h", "2 UNMAP (42h)"]);
    }

    #[test]
    fn malformed_csv_line_error_shows_expected_form() {
        let msr = "128166372003061629,hm,1,Read,0,512,4\n";
        let vscsi = "version,time,op,size,lbn\n1,1,28,512,0\n";
        for (begin, at, text, want) in [
            (msr, 2, "1,hm,1,Read,0,512", "\"1,hm,1,Read,0,512\": expected seven fields"),
            (msr, 2, "1,hm,1,Trim,0,512,4", "type \"Trim\": expected Read or Write"),
            (msr, 2, "1,hm,x,Read,0,512,4", "disk \"x\": expected a whole number"),
            (msr, 2, "-1,hm,1,Read,0,512,4", "time \"-1\": expected a whole number of ticks"),
            (msr, 2, "1,hm,1,Read,0,0,4", "size \"0\": expected a whole number from 1"),
            (msr, 2, "1,hm,1,Read,18446744073709551615,512,4", "with its length within 64 bits"),
            (vscsi, 3, "1,1,28,512", "\"1,1,28,512\": expected five fields"),
            (vscsi, 3, "1,1,zz,512,0", "operation \"zz\": expected a SCSI operation code"),
            (vscsi, 3, "1,1,28,512,36028797018963968", "at most 2^55 sectors"),
        ] {
            let input = format!("{begin}{text}\n");
            let mut reader = Reader::new("t", input.as_bytes()).unwrap();
            assert!(reader.next().unwrap().is_ok());
            let said = reader.next().unwrap().unwrap_err().to_string();
            assert!(said.starts_with(&format!("t:{at}: ")) && said.contains(want), "{said}");
        }
    }
}
