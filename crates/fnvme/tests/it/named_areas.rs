//! Named areas: found by the next engine on the same drive, out of reach of all others.

use fnvme::Error;
use fnvme::engine::{NAMES_MAX, Service};

use crate::{BLOCK, Folder, holds, start, write};

const COPY: usize = 4096;
const COPY_BLOCKS: u64 = COPY as u64 / BLOCK;
/// Bytes of the drive behind the directory.
const FREE: u64 = (4 << 20) - 2 * COPY as u64;

fn error<T>(result: Result<T, Error>) -> Option<Error> {
    result.err()
}

#[test]
fn named_areas_are_found_after_restart() {
    let folder = Folder::new("restart");
    let service = start(&folder.drive(), &[]).expect("it starts");
    let (one, two) = (service.open_named("one", 64 << 10, None), service.open(64 << 10));
    let (one, two) = (one.expect("a new area"), two.expect("an area"));
    let three = service.open_named("three", 1 << 18, None).expect("a new area");
    for (client, seed) in [(&one, 1), (&two, 2), (&three, 3)] {
        write(client, seed);
    }
    drop((one, two, three, service));
    for turn in 0..2 {
        let service = start(&folder.drive(), &[]).expect("it starts again");
        // All but the directory and the named areas is free; the gap between these comes first.
        let gap = service.open(64 << 10).expect("the area without a name is free");
        write(&gap, 10 + turn);
        let rest = service.open(FREE - (128 << 10) - (1 << 18)).expect("the rest");
        write(&rest, 20 + turn);
        assert!(error(service.open(1)).is_some(), "no block is left");
        let one = service.open_named("one", 0, None).expect("it is there");
        let three = service.open_named("three", 1 << 18, None).expect("it is there");
        assert_eq!((one.area_bytes(), three.area_bytes()), (64 << 10, 1 << 18));
        holds(&one, 1);
        holds(&three, 3);
    }
}

#[test]
fn open_named_rejects_other_owner_length_and_name() {
    let folder = Folder::new("rejected");
    let service = start(&folder.drive(), &[]).expect("it starts");
    let open = |name: &str, bytes| service.open_named(name, bytes, None);
    assert_eq!(error(open("mine", 0)), Some(Error::NotFound));
    assert_eq!(error(open("", 4096)), Some(Error::Name));
    assert_eq!(error(open(&"x".repeat(41), 4096)), Some(Error::Name));
    let mine = open("mine", 4096).expect("a new area");
    write(&mine, 1);
    assert_eq!(error(open("mine", 4096)), Some(Error::InUse));
    assert_eq!(service.remove_named("mine"), Err(Error::InUse));
    drop(mine);
    assert_eq!(error(open("mine", 8192)), Some(Error::OtherLength { blocks: 8 }));
    holds(&open("mine", 4096).expect("free again"), 1);
    assert_eq!(service.remove_named("yours"), Err(Error::NotFound));
    assert_eq!(service.remove_named("mine"), Ok(()));
    assert_eq!(error(open("mine", 0)), Some(Error::NotFound));
    // A length that does not fit leaves no name behind.
    assert!(matches!(error(open("large", 1 << 40)), Some(Error::Open(_))));
    assert_eq!(error(open("large", 0)), Some(Error::NotFound));
    // All blocks are free again.
    drop(service.open(FREE).expect("all of it"));
    drop(service);
    let service = start(&folder.drive(), &[]).expect("it starts again");
    assert_eq!(error(service.open_named("mine", 0, None)), Some(Error::NotFound));
}

#[test]
fn directory_has_63_areas() {
    let folder = Folder::new("full");
    let service = start(&folder.drive(), &[]).expect("it starts");
    for number in 0..NAMES_MAX {
        drop(service.open_named(&format!("{number:040}"), 512, None).expect("a new area"));
    }
    assert_eq!(error(service.open_named("one more", 512, None)), Some(Error::Names));
    assert_eq!(service.remove_named(&format!("{:040}", 7)), Ok(()));
    drop(service);
    let service = start(&folder.drive(), &[]).expect("it starts again");
    drop(service.open_named("one more", 512, None).expect("there is room"));
    drop(service.open_named(&format!("{:040}", 62), 0, None).expect("it is there"));
}

/// The first write of the directory fails: the area is not there, then or later, and its blocks are free.
#[test]
fn failed_write_of_directory_makes_no_area() {
    let folder = Folder::new("failed");
    let fault =
        r#"[{ name = "x", what = "status", status = "Write Fault", command = "write", nth = 1 }]"#;
    let service = start(&folder.drive(), &[("faults", fault)]).expect("it starts");
    assert!(matches!(error(service.open_named("mine", 4096, None)), Some(Error::Driver(_))));
    assert_eq!(error(service.open_named("mine", 0, None)), Some(Error::NotFound));
    drop(service.open(FREE).expect("all of it"));
    write(&service.open_named("mine", 4096, None).expect("the next write is good"), 5);
    drop(service);
    let service = start(&folder.drive(), &[]).expect("it starts again");
    holds(&service.open_named("mine", 0, None).expect("it is there"), 5);
}

/// After a failed write the same copy is written again: the other may be the only valid one.
#[test]
fn failed_write_of_directory_is_repeated_at_the_same_copy() {
    let folder = Folder::new("repeated");
    let fault = |nth: u32| {
        format!(
            r#"{{ name = "x{nth}", what = "status", status = "Write Fault", command = "write", nth = {nth} }}"#
        )
    };
    let faults = format!("[{}, {}, {}]", fault(3), fault(4), fault(6));
    let service = start(&folder.drive(), &[("faults", &faults)]).expect("it starts");
    let sequences = || {
        [0, COPY_BLOCKS].map(|at| {
            let copy = service.ordinary(at, vec![0; COPY], false).expect("a read");
            u64::from_le_bytes(copy[16..24].try_into().expect("eight bytes"))
        })
    };
    drop(service.open_named("one", 512, None).expect("writes 1 and 2"));
    assert_eq!(sequences(), [2, 1]);
    assert!(service.open_named("two", 512, None).is_err(), "writes 3, and 4 to take it back");
    assert_eq!(sequences(), [2, 1]);
    drop(service.open_named("three", 512, None).expect("write 5; write 6 is the second copy"));
    assert_eq!(sequences(), [2, 3]);
    drop(service.open_named("four", 512, None).expect("writes 7 and 8"));
    assert_eq!(sequences(), [4, 5]);
}

/// The drive may have done a write of the directory that failed, as one that it answers too late: its copy is
/// written over at once with what the caller was told.
#[test]
fn failed_write_of_directory_is_taken_back() {
    let folder = Folder::new("taken-back");
    let fault =
        r#"[{ name = "x", what = "status", status = "Write Fault", command = "write", nth = 3 }]"#;
    let service = start(&folder.drive(), &[("faults", fault)]).expect("it starts");
    drop(service.open_named("one", 512, None).expect("writes 1 and 2"));
    assert!(matches!(service.remove_named("one"), Err(Error::Driver(_))), "write 3");
    let copies = [0, COPY_BLOCKS].map(|at| {
        let copy = service.ordinary(at, vec![0; COPY], false).expect("a read");
        let name = copy[64..67].to_vec();
        (u64::from_le_bytes(copy[16..24].try_into().expect("eight bytes")), name)
    });
    assert_eq!(copies, [(2, b"one".to_vec()), (3, b"one".to_vec())], "write 4");
}

/// Flips a byte of a copy of the directory.
fn damage(service: &Service, copy: u64) {
    let mut bytes = service.ordinary(copy * COPY_BLOCKS, vec![0; COPY], false).expect("a read");
    bytes[100] ^= 1;
    service.ordinary(copy * COPY_BLOCKS, bytes, true).expect("a write");
}

#[test]
fn damage_to_one_copy_loses_nothing_and_to_both_is_reported() {
    let folder = Folder::new("damaged");
    let service = start(&folder.drive(), &[]).expect("it starts");
    write(&service.open_named("mine", 4096, None).expect("a new area"), 5);
    damage(&service, 0);
    drop(service);
    let service = start(&folder.drive(), &[]).expect("one copy is whole");
    holds(&service.open_named("mine", 0, None).expect("it is there"), 5);
    // A change restores both copies.
    drop(service.open_named("other", 4096, None).expect("a new area"));
    damage(&service, 1);
    drop(service);
    let service = start(&folder.drive(), &[]).expect("one copy is whole");
    holds(&service.open_named("mine", 0, None).expect("it is there"), 5);
    damage(&service, 0);
    drop(service);
    let refused = start(&folder.drive(), &[]).err().expect("both are damaged").to_string();
    let expected = "LBA 0: the directory of areas: no copy is whole";
    assert!(refused.starts_with(expected), "{refused}");
}

/// Reads of these blocks fail.
fn unreadable(first: u64, last: u64) -> String {
    format!(
        r#"[{{ name = "x", what = "status", status = "Unrecovered Read Error", dnr = true, command = "read", first_lba = {first}, last_lba = {last} }}]"#
    )
}

#[test]
fn unreadable_copy_loses_nothing_and_is_no_empty_directory() {
    let folder = Folder::new("unreadable");
    let service = start(&folder.drive(), &[]).expect("it starts");
    write(&service.open_named("mine", 4096, None).expect("a new area"), 5);
    drop(service);
    let copies = [(0, COPY_BLOCKS - 1), (COPY_BLOCKS, 2 * COPY_BLOCKS - 1)];
    for (first, last) in copies {
        let faults = unreadable(first, last);
        let service = start(&folder.drive(), &[("faults", &faults)]).expect("one copy is whole");
        holds(&service.open_named("mine", 0, None).expect("it is there"), 5);
    }
    // The other copy is gone, too: damaged, or as on a drive that never had one.
    for lost in [vec![0; COPY], vec![1; COPY]] {
        let service = start(&folder.drive(), &[]).expect("a copy is whole");
        service.ordinary(COPY_BLOCKS, lost, true).expect("a write");
        drop(service);
        let faults = unreadable(0, COPY_BLOCKS - 1);
        let refused = start(&folder.drive(), &[("faults", &faults)]).err().expect("no copy");
        assert!(refused.to_string().contains("LBA 0"), "{refused}");
    }
}

/// An area that is larger than memory leaves no name behind.
#[test]
fn area_without_memory_leaves_no_name() {
    let folder = Folder::new("memory");
    let service = start(&folder.drive(), &[("host.memory", "5 MiB")]).expect("it starts");
    let open = |bytes| service.open_named("mine", bytes, None);
    assert!(matches!(error(open(3 << 20)), Some(Error::Memory(_))));
    assert_eq!(error(open(0)), Some(Error::NotFound));
    drop(open(4096).expect("another length is free to choose"));
    assert!(error(open(3 << 20)).is_some_and(|e| e == Error::OtherLength { blocks: 8 }));
    drop(open(0).expect("an area that was there stays"));
}

/// Directories with a valid checksum and areas that are not free blocks of the drive.
#[test]
fn directory_with_areas_outside_or_overlapping_is_rejected() {
    let folder = Folder::new("forged");
    let forge = |service: &Service, entry: usize, first: u64, blocks: u64| {
        let mut copy = service.ordinary(0, vec![0; COPY], false).expect("a read");
        let at = 64 * (entry + 1) + 40;
        copy[at..at + 8].copy_from_slice(&first.to_le_bytes());
        copy[at + 8..at + 16].copy_from_slice(&blocks.to_le_bytes());
        copy[12..16].fill(0);
        let sum = crc32c::crc32c(&copy);
        copy[12..16].copy_from_slice(&sum.to_le_bytes());
        for place in [0, COPY_BLOCKS] {
            service.ordinary(place, copy.clone(), true).expect("a write");
        }
    };
    let all = (4 << 20) / BLOCK;
    for (first, blocks) in
        [(0, 8), (15, 8), (all - 7, 8), (u64::MAX, 8), (20, u64::MAX), (100, 0), (40, 8)]
    {
        std::fs::remove_file(folder.drive()).ok();
        let service = start(&folder.drive(), &[]).expect("it starts");
        for name in ["a", "b"] {
            drop(service.open_named(name, 4096, None).expect("a new area"));
        }
        forge(&service, 1, 40, 8);
        forge(&service, 0, first, blocks);
        drop(service);
        let refused = start(&folder.drive(), &[]).err();
        let refused = refused.unwrap_or_else(|| panic!("{first}, {blocks}")).to_string();
        assert!(refused.contains("expected free ones of this drive"), "{refused}");
    }
}
