//! Flash through its public interface: rules, contents, power cuts, and its state file.

mod damage;
mod faults;
mod journal;
mod lock;
mod old;
mod pages;
mod state;
mod torn;

use media::contents::Keep;
use media::nand::{Data, Error, Errors, Geometry, Nand, PageAt, Profile, Sense, Spec, YEAR_S};

/// The test profile, with stamps.
fn spec(keep: Keep) -> Spec {
    let Profile { geometry, errors, .. } = Profile::test();
    Spec { geometry, keep, block_bytes: 4096, errors, seed: 7 }
}

fn nand(keep: Keep) -> Nand {
    Nand::new(spec(keep)).unwrap()
}

fn at(block: u32, page: u32) -> PageAt {
    PageAt { block, page }
}

/// Page data that are unique to page and version.
fn page_bytes(at: PageAt, version: u8) -> Vec<u8> {
    let word = u64::from(at.block) << 32 | u64::from(at.page) << 8 | u64::from(version);
    (0..1024_u64).flat_map(|place| (word << 16 | place).to_le_bytes()).collect()
}

fn program(nand: &mut Nand, at: PageAt, version: u8) -> Result<(), Error> {
    nand.program(at, Data::Bytes(&page_bytes(at, version)), &[version; 20])
}

/// Result of sensing a page, its bytes as returned by `runs`, and its spare bytes.
fn read(nand: &mut Nand, at: PageAt) -> (Sense, Vec<u8>, [u8; 20]) {
    let sense = nand.sense(at, 0b11, 0).unwrap();
    let (mut bytes, mut spare) = (vec![0; 8192], [0; 20]);
    for unit in 0..2 {
        nand.runs(at, unit, &mut |from, run| {
            bytes[unit as usize * 4096 + from as usize..][..run.len()].copy_from_slice(run);
        });
    }
    nand.spare(at, 0, &mut spare);
    (sense, bytes, spare)
}

/// The part of a page's bytes that is stored.
fn remembered(keep: Keep, mut bytes: Vec<u8>) -> Vec<u8> {
    if keep == Keep::Stamps {
        bytes.chunks_mut(4096).for_each(|unit| unit[8..].fill(0));
    }
    bytes
}

const GOOD: Sense = Sense::Good { errors: 0 };

#[test]
fn nand_rejects_out_of_order_and_repeated_programs() {
    for keep in [Keep::Everything, Keep::Stamps] {
        let mut nand = nand(keep);
        assert_eq!(read(&mut nand, at(3, 0)).0, Sense::Erased);
        let said = program(&mut nand, at(3, 1), 1).unwrap_err().to_string();
        assert_eq!(said, "block 3: page 1 programmed, expected page 0");
        for page in 0..12 {
            assert_eq!(nand.next_page(3), Some(page));
            program(&mut nand, at(3, page), 1).unwrap();
            assert!(matches!(program(&mut nand, at(3, page), 2), Err(Error::Order { .. })));
        }
        let said = program(&mut nand, at(3, 0), 2).unwrap_err().to_string();
        assert_eq!(said, "block 3: page 0 programmed, expected an erase");
        for page in 0..12 {
            let (sense, bytes, spare) = read(&mut nand, at(3, page));
            assert_eq!((sense, spare), (GOOD, [1; 20]));
            assert_eq!(bytes, remembered(keep, page_bytes(at(3, page), 1)), "page {page}");
        }
        assert_eq!(nand.wear(3).reads, 13);
        nand.erase(3).unwrap();
        assert_eq!(nand.wear(3).cycles, 1);
        assert_eq!(nand.wear(3).reads, 0);
        assert_eq!(read(&mut nand, at(3, 5)).0, Sense::Erased);
        program(&mut nand, at(3, 0), 2).unwrap();
        assert_eq!(read(&mut nand, at(3, 0)).2, [2; 20]);
        assert_eq!(read(&mut nand, at(3, 1)).0, Sense::Erased);
    }
}

#[test]
fn nand_rejects_out_of_range_addresses_and_lengths() {
    let mut nand = nand(Keep::Stamps);
    assert!(matches!(program(&mut nand, at(32, 0), 1), Err(Error::Range { .. })));
    assert!(matches!(nand.sense(at(0, 12), 1, 0), Err(Error::Range { .. })));
    assert!(matches!(nand.sense(at(0, 0), 0b100, 0), Err(Error::Range { .. })));
    assert!(matches!(nand.erase(32), Err(Error::Range { .. })));
    let short = nand.program(at(0, 0), Data::Bytes(&[0; 4096]), &[]).unwrap_err();
    assert_eq!(short.to_string(), "4096 bytes for a page, expected 8192");
    let long = nand.program(at(0, 0), Data::Zeros, &[0; 65]).unwrap_err();
    assert_eq!(long.to_string(), "65 bytes for a page, expected 64");
    assert_eq!(nand.next_page(0), Some(0), "nothing has changed");
}

#[test]
fn keep_whole_stores_unit_in_full_until_erase() {
    let mut nand = nand(Keep::Stamps);
    for page in 0..12 {
        program(&mut nand, at(0, page), 1).unwrap();
        nand.keep_whole(at(0, page), 1, &[page as u8; 4096]).unwrap();
    }
    assert!(matches!(nand.keep_whole(at(1, 0), 0, &[0; 4096]), Err(Error::Range { .. })));
    let (_, bytes, _) = read(&mut nand, at(0, 7));
    assert_eq!(bytes[..4096], remembered(Keep::Stamps, page_bytes(at(0, 7), 1))[..4096]);
    assert_eq!(bytes[4096..], [7; 4096]);
    let full = nand.allocated_bytes();
    nand.erase(0).unwrap();
    assert!(nand.whole(at(0, 7), 1).is_none());
    assert!(nand.allocated_bytes() + 12 * 4096 <= full);
}

#[test]
fn factory_bad_blocks_match_rate_and_seed() {
    let geometry = Geometry { blocks: 5000, ..Profile::test().geometry };
    let errors = Errors { factory_bad: 20_000, ..Profile::test().errors };
    let made = |seed| {
        let spec =
            Spec { geometry: geometry.clone(), errors: errors.clone(), seed, ..spec(Keep::Stamps) };
        let nand = Nand::new(spec).unwrap();
        (0..20_000).filter(|block| nand.is_bad(*block)).collect::<Vec<u32>>()
    };
    let bad = made(1);
    assert!((320..480).contains(&bad.len()), "{} of 20,000, expected 400", bad.len());
    assert_eq!(bad, made(1));
    assert_ne!(bad, made(2));
    let mut nand = Nand::new(Spec { geometry, errors, seed: 1, ..spec(Keep::Stamps) }).unwrap();
    assert!(matches!(program(&mut nand, at(bad[0], 0), 1), Err(Error::Bad { .. })));
    assert!(matches!(nand.erase(bad[0]), Err(Error::Bad { .. })));
}

/// A bad block can be erased once and stays bad; then it is empty and a further erase fails.
#[test]
fn bad_block_can_be_erased_once() {
    for is_broken in [false, true] {
        let mut nand = nand(Keep::Everything);
        program(&mut nand, at(3, 0), 1).unwrap();
        if is_broken {
            nand.break_block(3).unwrap();
        }
        nand.mark_bad(3);
        assert!(matches!(nand.sense(at(3, 0), 1, 0), Ok(Sense::Good { .. })));
        assert_eq!(matches!(nand.erase(3), Err(Error::EraseFailed { .. })), is_broken);
        assert!(nand.is_bad(3) && !matches!(nand.sense(at(3, 0), 1, 0), Ok(Sense::Good { .. })));
        assert_eq!((nand.next_page(3), nand.wear(3).cycles), (None, 1));
        assert!(matches!(nand.erase(3), Err(Error::Bad { .. })));
        assert!(matches!(program(&mut nand, at(3, 0), 1), Err(Error::Bad { .. })));
    }
}

#[test]
fn program_failure_consumes_page_and_breaks_block() {
    let errors = Errors { program_fails: [50_000_000, 0], ..Profile::test().errors };
    let mut nand = Nand::new(Spec { errors, ..spec(Keep::Stamps) }).unwrap();
    let mut failed = 0;
    for block in 0..32 {
        let mut broken = false;
        for page in 0..12 {
            let done = program(&mut nand, at(block, page), 1);
            broken |= done.is_err();
            failed += u32::from(done.is_err());
            let (sense, ..) = read(&mut nand, at(block, page));
            let expected = if broken { Sense::Uncorrectable } else { GOOD };
            assert_eq!((sense, done.is_err()), (expected, broken), "a broken block stays broken");
        }
        assert_eq!(nand.erase(block).is_err(), broken);
        if broken {
            assert!(program(&mut nand, at(block, 0), 2).is_err());
            assert_eq!(nand.sense(at(block, 0), 1, 0).unwrap(), Sense::Uncorrectable);
        }
    }
    assert!(failed > 20, "{failed} failed");
}

#[test]
fn injected_bit_errors_and_broken_block() {
    let mut nand = nand(Keep::Stamps);
    program(&mut nand, at(0, 0), 1).unwrap();
    program(&mut nand, at(0, 1), 1).unwrap();
    nand.spoil(at(0, 0), 500_000_000_000).unwrap();
    assert_eq!(nand.sense(at(0, 0), 1, 0).unwrap(), Sense::Uncorrectable);
    assert_eq!(nand.sense(at(0, 1), 1, 0).unwrap(), GOOD);
    nand.erase(0).unwrap();
    program(&mut nand, at(0, 0), 2).unwrap();
    assert_eq!(nand.sense(at(0, 0), 1, 0).unwrap(), GOOD);
    nand.break_block(0).unwrap();
    assert!(matches!(program(&mut nand, at(0, 1), 2), Err(Error::ProgramFailed { .. })));
    assert!(matches!(nand.erase(0), Err(Error::EraseFailed { .. })));
    assert!(nand.spoil(at(0, 12), 1).is_err() && nand.break_block(32).is_err());
}

#[test]
fn retention_errors_recovered_by_read_retry() {
    let errors = Errors {
        rated_cycles: 1000,
        fresh: 10_000_000,
        aged: 9_000_000_000,
        corrects: 40,
        retries: 5,
        retry_keeps: 50,
        ..Errors::none()
    };
    let errors = Errors { codeword_bytes: 1024, ..errors };
    let mut nand = Nand::new(Spec { errors, ..spec(Keep::Stamps) }).unwrap();
    nand.wear_out(0, 1000);
    for page in 0..12 {
        program(&mut nand, at(0, page), 1).unwrap();
        program(&mut nand, at(1, page), 1).unwrap();
    }
    let readable = |nand: &mut Nand, block, step| {
        let good = |page: &u32| {
            !matches!(nand.sense(at(block, *page), 0b11, step), Ok(Sense::Uncorrectable))
        };
        (0..12).filter(good).count()
    };
    assert_eq!(readable(&mut nand, 0, 0), 12);
    nand.age_to(YEAR_S);
    // 74 errors in 8,192 bits, 40 of them correctable.
    assert_eq!(readable(&mut nand, 0, 0), 0);
    assert_eq!(
        readable(&mut nand, 0, 1),
        readable(&mut nand, 0, 1),
        "the same place, the same errors"
    );
    assert_eq!(readable(&mut nand, 0, 2), 12);
    assert_eq!(readable(&mut nand, 1, 0), 12, "new cells hold");
    nand.erase(0).unwrap();
    program(&mut nand, at(0, 0), 1).unwrap();
    assert!(matches!(nand.sense(at(0, 0), 0b11, 0), Ok(Sense::Good { .. })), "written anew");
}

#[test]
fn read_disturb_affects_whole_block() {
    let errors = Errors {
        rated_cycles: 1000,
        disturbed: 600_000_000_000,
        codeword_bytes: 1024,
        corrects: 40,
        ..Errors::none()
    };
    let mut nand = Nand::new(Spec { errors, ..spec(Keep::Stamps) }).unwrap();
    nand.wear_out(0, 1000);
    program(&mut nand, at(0, 0), 1).unwrap();
    program(&mut nand, at(0, 1), 1).unwrap();
    let mut reads = 0;
    while matches!(nand.sense(at(0, 0), 0b11, 0), Ok(Sense::Good { .. })) {
        reads += 1;
        assert!(reads < 20_000, "it never wears off");
    }
    // 40 errors in 8,192 bits are a rate of 4.9e-3, which takes 8,140 reads; the worst of eight codewords has
    // them sooner.
    assert!((4_000..8_140).contains(&reads), "{reads} reads");
    let other = nand.wear(0).reads;
    assert!(other >= reads, "they count for page 1 too");
}

#[test]
fn nand_memory_grows_with_writes_and_full_block_is_packed() {
    let Profile { geometry, errors, .. } = Profile::tlc();
    // 512 GiB and more: 8 channels of 2 dies of 4 planes of 480 blocks of 1,152 pages.
    let spec = Spec { geometry, keep: Keep::Stamps, block_bytes: 4096, errors, seed: 3 };
    let mut nand = Nand::new(spec).unwrap();
    let bytes = nand.geometry().bytes();
    assert!(bytes >= 512 << 30);
    let empty = nand.allocated_bytes();
    assert!(empty < 4 << 20, "{empty} bytes before the first write");
    let block = (0..).find(|block| !nand.is_bad(*block)).unwrap();
    let mut stamp = 0_u64;
    for page in 0..1152 {
        let mut stamps = [0; 32];
        let mut spare = [0; 28];
        spare[..8].copy_from_slice(&u64::from(page / 3).to_le_bytes());
        for unit in 0..4 {
            stamp = stamp.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            stamps[unit * 8..][..8].copy_from_slice(&stamp.to_le_bytes());
            let logical = (stamp >> 37) as u32;
            spare[12 + unit * 4..][..4].copy_from_slice(&logical.to_le_bytes());
        }
        nand.program(at(block, page), Data::Kept(&stamps), &spare).unwrap();
    }
    // A random stamp and a 27-bit number that is a part of it are at most nine bytes, and the sequence is two
    // for each page of four units; the memory of the open block stays for the next.
    let room = 1152 * (32 + 64);
    let packed = nand.allocated_bytes() - empty - room;
    assert!(packed < 1152 * 4 * 14, "{packed} bytes for 4,608 units");
    let other = nand.fork();
    nand.erase(block).unwrap();
    assert!(nand.allocated_bytes() <= empty + room);
    let mut stamps = [0; 8];
    assert!(other.kept(at(block, 1151), 3, &mut stamps));
    assert_eq!(stamps, stamp.to_le_bytes(), "a fork keeps what the other erases");
}
