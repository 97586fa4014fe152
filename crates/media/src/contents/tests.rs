//! Contents of every kind, from outside.

use super::*;

#[test]
fn block_metadata_reset_by_write_and_discard() {
    let mut contents = memory(1 << 20, 512, Keep::Everything);
    let ones = [0xff; METADATA_BYTES];
    assert_eq!(contents.metadata(2047).unwrap(), ones);
    contents.write(0, &[7; 2048]).unwrap();
    let last = (1 << 20) / 512 - 1;
    for (block, byte) in [(0, 1), (1, 2), (2, 3), (3, 4), (last, 5)] {
        contents.set_metadata(block, [byte; METADATA_BYTES]).unwrap();
    }
    contents.write(512, &[8; 512]).unwrap();
    contents.discard(1024, 512).unwrap();
    let found = [0, 1, 2, 3, last].map(|block| contents.metadata(block).unwrap()[0]);
    assert_eq!(found, [1, 0xff, 0xff, 4, 5]);
    contents.write_stamp(3, [9; STAMP_BYTES]).unwrap();
    assert_eq!(contents.metadata(3).unwrap(), ones);
    assert!(contents.metadata(last + 1).is_err());
    assert!(contents.set_metadata(last + 1, ones).is_err());
    assert!(!memory(1 << 20, 512, Keep::Stamps).keeps_metadata());
}

fn memory(capacity_bytes: u64, block_bytes: u32, keep: Keep) -> Contents {
    let spec = Spec { capacity_bytes, block_bytes, keep, backing: Backing::Memory };
    Contents::new(spec).unwrap()
}

#[test]
fn invalid_contents_spec_error_names_field() {
    let refused = |capacity_bytes, block_bytes| {
        let backing = Backing::Memory;
        let spec = Spec { capacity_bytes, block_bytes, keep: Keep::Everything, backing };
        Contents::new(spec).unwrap_err().to_string()
    };
    assert_eq!(refused(4096, 520), "contents: block_bytes is 520, expected 512 or 4096");
    assert_eq!(refused(4096, 0), "contents: block_bytes is 0, expected 512 or 4096");
    let expected = "expected a whole number of blocks, at least one, at most 1 PiB";
    for bytes in [0, 512, 4097, (1 << 50) + 4096, u64::MAX] {
        let said = refused(bytes, 4096);
        assert_eq!(said, format!("contents: capacity_bytes is {bytes}, {expected}"));
    }
    memory(CAPACITY_BYTES_MAX, 512, Keep::Stamps).read_stamp((1 << 41) - 1).unwrap();
}

#[test]
fn stamps_in_file_rejected_before_file_is_created() {
    let path = std::env::temp_dir().join("doorbell-no-such-image");
    let spec = Spec {
        capacity_bytes: 4096,
        block_bytes: 512,
        keep: Keep::Stamps,
        backing: Backing::File(path.clone()),
    };
    let error = Contents::new(spec).unwrap_err();
    assert!(matches!(&error, Error::StampsInFile { path: named } if *named == path));
    assert!(error.to_string().contains("stamps only is not supported in a file"), "{error}");
    assert!(!path.exists());
}

#[test]
fn contents_bounds_at_last_block() {
    for keep in [Keep::Everything, Keep::Stamps] {
        let mut contents = memory(8192, 4096, keep);
        contents.write(4096, &[1; 4096]).unwrap();
        contents.write_stamp(1, [2; 8]).unwrap();
        contents.read_into(8192, &mut []).expect("nothing, at the end, is in range");
        for (offset, bytes) in [(8192, 4096), (4096, 8192), (u64::MAX - 4095, 4096)] {
            let error = contents.read_into(offset, &mut vec![0; bytes]).unwrap_err();
            let bytes = bytes as u64;
            assert!(
                matches!(error, Error::OutOfRange { offset_bytes, bytes: b,
                    capacity_bytes: 8192 } if offset_bytes == offset && b == bytes),
                "{error}"
            );
        }
        contents.discard(4096, u64::MAX - 4095).unwrap_err();
        for block in [2, 1 << 52, u64::MAX] {
            let read = contents.read_stamp(block).unwrap_err();
            let write = contents.write_stamp(block, [3; 8]).unwrap_err();
            for error in [read, write] {
                assert!(matches!(error, Error::OutOfRange { .. }), "block {block}: {error}");
            }
        }
        assert_eq!(contents.read_stamp(1).unwrap(), [2; 8]);
    }
}

#[test]
fn contents_reject_unaligned_access() {
    let mut contents = memory(8192, 512, Keep::Everything);
    let error = contents.write(512, &[1; 513]).unwrap_err().to_string();
    let expected = "offset 512, 513 bytes: expected whole blocks of 512 bytes";
    assert_eq!(error, format!("{expected} (capacity 8192 bytes)"));
    contents.runs(1, 512, &mut |_, _| panic!("nothing may be lent")).unwrap_err();
    contents.write_runs(0, 8, &mut |_, _| panic!("nothing may be lent")).unwrap_err();
    contents.discard(0, 100).unwrap_err();
    contents.read_into(100, &mut [0; 512]).unwrap_err();
    assert_eq!(contents.allocated_bytes(), memory(8192, 512, Keep::Everything).allocated_bytes());
}

#[test]
fn stamps_store_eight_bytes_and_one_run_per_block() {
    let mut contents = memory(1 << 30, 512, Keep::Stamps);
    let data: Vec<u8> = (0..1536_u32).map(|i| (i % 253) as u8).collect();
    contents.write(512, &data).unwrap();
    let mut lent = Vec::new();
    contents.runs(0, 2560, &mut |at, run| lent.push((at, run.to_vec()))).unwrap();
    let stamp = |at: usize| data[at..at + 8].to_vec();
    let none = vec![0; 8];
    let expected =
        [(0, none.clone()), (512, stamp(0)), (1024, stamp(512)), (1536, stamp(1024)), (2048, none)];
    assert_eq!(lent, expected);
    let mut seen = [0xee; 1024];
    contents.read_into(512, &mut seen).unwrap();
    assert_eq!(seen[..8], data[..8]);
    assert_eq!(seen[8..512], [0; 504]);
    assert_eq!(seen[512..520], data[512..520]);
}

#[test]
fn write_stamp_zeroes_rest_of_block() {
    for keep in [Keep::Everything, Keep::Stamps] {
        let mut contents = memory(1 << 20, 4096, keep);
        contents.write(4096, &[9; 4096]).unwrap();
        contents.write_stamp(1, *b"stamped!").unwrap();
        let mut seen = [0xee; 4096];
        contents.read_into(4096, &mut seen).unwrap();
        assert_eq!(seen[..8], *b"stamped!");
        assert_eq!(seen[8..], [0; 4088]);
    }
}
