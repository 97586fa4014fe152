//! Requests and responses of FastPath, byte for byte: `golden/fastpath.txt`, which the RTL test benches
//! read too.

use wire::fastpath::{Direction, Refusal, Request, Response, SIZE_MAX, Status, Transfer, Work};
use wire::nvme::status;
use zerocopy::{FromBytes, IntoBytes};

const GOLDEN: &str = include_str!("../golden/fastpath.txt");

/// Lines of one kind: a name, the bytes, and the words after the colon.
fn lines(kind: &str) -> Vec<(&str, Vec<u8>, Vec<&str>)> {
    let mut found = Vec::new();
    for line in GOLDEN.lines().filter(|line| line.starts_with(kind)) {
        let (head, fields) = line.split_once(": ").expect("bytes, then fields");
        let (name, bytes) = head[kind.len() + 1..].split_once(" = ").expect("a name, then bytes");
        let digits: String = bytes.split(' ').collect();
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
        let bytes = (0..digits.len()).step_by(2).map(byte).collect();
        found.push((name, bytes, fields.split(' ').collect()));
    }
    found
}

fn hex(word: &str) -> u64 {
    u64::from_str_radix(word, 16).expect("hexadecimal")
}

#[test]
fn fastpath_requests_match_golden_bytes() {
    let requests = lines("request");
    assert!(requests.len() >= 16);
    for (name, bytes, fields) in requests {
        let built = Request {
            opcode: hex(fields[0]) as u8,
            reserved: hex(fields[1]) as u8,
            tag: (hex(fields[2]) as u16).into(),
            fp_id: (hex(fields[3]) as u16).into(),
            generation: (hex(fields[4]) as u16).into(),
            offset: hex(fields[5]).into(),
            size: (hex(fields[6]) as u32).into(),
            block_size: (hex(fields[7]) as u32).into(),
            buffer_offset: hex(fields[8]).into(),
        };
        assert_eq!(built.as_bytes(), bytes, "{name}");
        let said = match built.parse(512) {
            Ok(_) => "ok".to_string(),
            Err(refusal) => format!("{:x}", refusal as u16),
        };
        assert_eq!((fields[9], fields[10]), ("->", &*said), "{name}");
    }
}

#[test]
fn fastpath_responses_match_golden_bytes() {
    let responses = lines("response");
    let mut refusals = 0;
    for (name, bytes, fields) in responses {
        let status = Status::from_bits(hex(fields[1]) as u16);
        let (tag, completed) = (hex(fields[0]) as u16, hex(fields[2]) as u32);
        let built = Response::new(tag, status, completed, hex(fields[3]));
        assert_eq!(built.as_bytes(), bytes, "{name}");
        assert_eq!(Response::read_from_bytes(&bytes).unwrap().status(), status, "{name}");
        refusals += u32::from(matches!(status, Status::Engine(_)));
    }
    assert_eq!(refusals as usize, Refusal::ALL.len(), "every refusal is among them");
}

#[test]
fn fastpath_request_round_trip() {
    for (direction, block_size) in [(Direction::Read, 8192), (Direction::Write, 512)] {
        let transfer = Transfer {
            direction,
            offset: 1 << 40,
            size: SIZE_MAX,
            block_size,
            buffer_offset: u64::from(block_size) * 3,
        };
        let request = Request::transfer(7, 1, 2, &transfer);
        assert_eq!(request.parse(512), Ok(Work::Transfer(transfer)));
        assert_eq!(transfer.commands(), SIZE_MAX / block_size);
    }
    assert_eq!(Request::flush(7, 1, 2).parse(512), Ok(Work::Flush));
}

#[test]
fn fastpath_block_size_must_be_whole_lbas() {
    let transfer = Transfer {
        direction: Direction::Read,
        offset: 4096,
        size: 4096,
        block_size: 512,
        buffer_offset: 0,
    };
    assert!(Request::transfer(0, 0, 0, &transfer).parse(512).is_ok());
    assert_eq!(Request::transfer(0, 0, 0, &transfer).parse(4096), Err(Refusal::Size));
    let transfer = Transfer { offset: 512, block_size: 4096, ..transfer };
    assert_eq!(Request::transfer(0, 0, 0, &transfer).parse(4096), Err(Refusal::Size));
}

#[test]
fn fastpath_status_decoding_and_display() {
    let said = |bits| Status::from_bits(bits).to_string();
    assert_eq!(said(0), "good");
    assert_eq!(said(0x8002), "a handle that was freed");
    assert_eq!(said(0x4080), "LBA Out of Range (status 0x4080, do not retry)");
    assert_eq!(said(0x80ff), "unknown status 0x80ff");
    assert_eq!(Status::from_bits(0x80ff).bits(), 0x80ff);
    assert_eq!(
        Status::from_bits(0x4080),
        Status::Nvme(status::Status::LBA_OUT_OF_RANGE.with_dnr())
    );
    assert!(Status::Good.is_good() && !Status::from_bits(1).is_good());
}
