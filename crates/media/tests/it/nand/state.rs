//! Saved, loaded and forked states, and damaged files.

use std::fs;
use std::path::Path;

use media::contents::Keep;
use media::nand::{Data, Error, Errors, Nand, Sense, Spec};
use proptest::prelude::*;

use super::{at, page_bytes, program, read, remembered, spec};
use crate::common::Scratch;

#[derive(Clone, Debug)]
enum Op {
    Program(u32, u8),
    KeepWhole(u32, u8),
    Erase(u32),
    TearErase(u32, u32),
    TearProgram(u32, u32),
    Wear(u32),
    Age(u32),
    MarkBad(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let block = 0..6_u32;
    prop_oneof![
        12 => (block.clone(), any::<u8>()).prop_map(|(block, version)| Op::Program(block, version)),
        2 => (block.clone(), any::<u8>()).prop_map(|(block, value)| Op::KeepWhole(block, value)),
        2 => block.clone().prop_map(Op::Erase),
        1 => (block.clone(), 0..70_000_u32).prop_map(|(block, done)| Op::TearErase(block, done)),
        1 => (block.clone(), 0..70_000_u32).prop_map(|(block, done)| Op::TearProgram(block, done)),
        1 => block.clone().prop_map(Op::Wear),
        1 => (0..100_000_u32).prop_map(Op::Age),
        1 => block.prop_map(Op::MarkBad),
    ]
}

/// Executes the operation; returns its error.
fn act(nand: &mut Nand, op: &Op) -> Option<String> {
    let last = |nand: &Nand, block| nand.next_page(block).unwrap_or(12).checked_sub(1);
    let done = match *op {
        Op::Program(block, version) => {
            let page = nand.next_page(block).unwrap_or(0);
            program(nand, at(block, page), version)
        }
        Op::KeepWhole(block, value) => match last(nand, block) {
            Some(page) => nand.keep_whole(at(block, page), 1, &[value; 4096]),
            None => Ok(()),
        },
        Op::Erase(block) => nand.erase(block),
        Op::TearErase(block, done) => nand.tear_erase(block, done),
        Op::TearProgram(block, done) => match last(nand, block) {
            Some(page) => nand.tear_program(at(block, page), done),
            None => Ok(()),
        },
        Op::Wear(block) => {
            nand.wear_out(block, 100);
            Ok(())
        }
        Op::Age(seconds) => {
            nand.age_to(nand.age_s() + seconds);
            Ok(())
        }
        Op::MarkBad(block) => {
            nand.mark_bad(block);
            Ok(())
        }
    };
    done.err().map(|error| error.to_string())
}

fn seen(nand: &mut Nand) -> Vec<(Sense, Vec<u8>, [u8; 20], String)> {
    let mut all = Vec::new();
    for block in 0..8 {
        let wear =
            format!("{:?} {:?} {}", nand.wear(block), nand.next_page(block), nand.is_bad(block));
        for page in 0..12 {
            let (sense, bytes, spare) = read(nand, at(block, page));
            all.push((sense, bytes, spare, wear.clone()));
        }
    }
    all
}

fn noisy(keep: Keep) -> Spec {
    let errors = Errors {
        rated_cycles: 300,
        fresh: 100_000_000,
        worn: 1_000_000_000,
        aged: 2_000_000_000,
        codeword_bytes: 1024,
        corrects: 40,
        program_fails: [5_000_000, 20_000_000],
        erase_fails: [5_000_000, 20_000_000],
        ..Errors::none()
    };
    Spec { errors, ..spec(keep) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn saved_loaded_and_forked_nand_behave_identically(
        before in proptest::collection::vec(op(), 0..120),
        after in proptest::collection::vec(op(), 0..60),
        stamps in any::<bool>(),
    ) {
        let keep = if stamps { Keep::Stamps } else { Keep::Everything };
        let scratch = Scratch::new("nand-state");
        let path = scratch.join("drive.nand");
        let mut nand = Nand::new(noisy(keep)).unwrap();
        for op in &before {
            act(&mut nand, op);
        }
        nand.save(&path, b"beside it").unwrap();
        let mut fork = nand.fork();
        let (mut loaded, beside) = Nand::load_from(&path).unwrap();
        prop_assert_eq!(&beside[..], b"beside it");
        prop_assert_eq!(loaded.spec(), nand.spec());
        // Saved over its own file before any block has been loaded from it.
        loaded.save(&path, b"").unwrap();
        let (mut again, _) = Nand::load_from(&path).unwrap();
        let (mut at_once, _) = Nand::load_from(&path).unwrap();
        at_once.load_rows();
        for op in &after {
            let said = act(&mut nand, op);
            prop_assert_eq!(&said, &act(&mut loaded, op), "{:?}", op);
            prop_assert_eq!(&said, &act(&mut again, op), "{:?}", op);
            prop_assert_eq!(&said, &act(&mut at_once, op), "{:?}", op);
        }
        let expected = seen(&mut nand);
        prop_assert_eq!(seen(&mut loaded), expected.clone());
        prop_assert_eq!(seen(&mut again), expected.clone());
        prop_assert_eq!(seen(&mut at_once), expected);
        let (mut first, _) = Nand::load_from(&path).unwrap();
        prop_assert_eq!(seen(&mut fork), seen(&mut first), "neither has seen what came after");
    }
}

fn filled(path: &Path) -> u64 {
    let mut nand = Nand::new(spec(Keep::Stamps)).unwrap();
    for page in 0..12 {
        program(&mut nand, at(0, page), 1).unwrap();
    }
    program(&mut nand, at(1, 0), 1).unwrap();
    nand.keep_whole(at(1, 0), 0, &[3; 4096]).unwrap();
    nand.save(path, b"beside").unwrap();
    fs::metadata(path).unwrap().len()
}

/// Error of loading the file and reading all of it, which is the same if blocks are loaded before.
fn said(path: &Path) -> Option<Error> {
    let by = |load: fn(&mut Nand)| {
        let mut nand = Nand::load_from(path)?.0;
        load(&mut nand);
        (0..2).try_for_each(|block| nand.sense(at(block, 0), 1, 0).map(drop))
    };
    let (one_by_one, at_once) = (by(|_| ()).err(), by(Nand::load_rows).err());
    let text = |error: &Option<Error>| error.as_ref().map(ToString::to_string);
    assert_eq!(text(&one_by_one), text(&at_once));
    one_by_one
}

#[test]
fn nand_state_byte_flips_detected_and_part_named() {
    let scratch = Scratch::new("nand-damage");
    let path = scratch.join("drive.nand");
    let length = filled(&path);
    assert!(said(&path).is_none());
    let good = fs::read(&path).unwrap();
    let mut fields = Vec::new();
    // Every byte of the header, and every 37th byte of the rest.
    for place in (0..128).chain((128..length).step_by(37)) {
        let mut bytes = good.clone();
        bytes[place as usize] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        match said(&path) {
            Some(Error::State { field, path: named, .. }) if named == path => fields.push(field),
            other => panic!("byte {place}: {other:?}"),
        }
    }
    fields.dedup();
    for field in ["magic", "version", "header", "meta", "rows"] {
        assert!(fields.contains(&field), "{fields:?}");
    }
}

#[test]
fn truncated_nand_state_is_rejected() {
    let scratch = Scratch::new("nand-short");
    let path = scratch.join("drive.nand");
    let length = filled(&path);
    let good = fs::read(&path).unwrap();
    for short in (0..length).step_by(61).chain([length - 1]) {
        fs::write(&path, &good[..short as usize]).unwrap();
        let error = Nand::load_from(&path).unwrap_err();
        assert!(matches!(error, Error::State { .. }), "{short} bytes: {error}");
    }
    fs::write(&path, &good[..63]).unwrap();
    let error = Nand::load_from(&path).unwrap_err().to_string();
    assert_eq!(error, format!("{}: header: 63 bytes, expected at least 64", path.display()));
    let mut later = good;
    later[8] = 3;
    fs::write(&path, &later).unwrap();
    let error = Nand::load_from(&path).unwrap_err().to_string();
    assert_eq!(error, format!("{}: version: 3, expected 1 to 2", path.display()));
}

#[test]
fn failed_nand_save_keeps_old_file() {
    let scratch = Scratch::new("nand-keep");
    let path = scratch.join("no/such/folder.nand");
    let mut nand = Nand::new(spec(Keep::Stamps)).unwrap();
    assert!(matches!(nand.save(&path, b""), Err(Error::Io { .. })));
    assert!(matches!(Nand::load_from(&path), Err(Error::Io { .. })));
    let path = scratch.join("drive.nand");
    filled(&path);
    let before = fs::read(&path).unwrap();
    fs::create_dir(scratch.join("drive.nand.new")).unwrap();
    assert!(matches!(nand.save(&path, b""), Err(Error::Io { .. })));
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn nand_state_rows_load_lazily() {
    let scratch = Scratch::new("nand-lazy");
    let path = scratch.join("drive.nand");
    filled(&path);
    let (mut nand, _) = Nand::load_from(&path).unwrap();
    let empty = nand.allocated_bytes();
    assert_eq!(read(&mut nand, at(0, 5)).1, remembered(Keep::Stamps, page_bytes(at(0, 5), 1)));
    assert!(nand.allocated_bytes() > empty);
    // The file may be removed: a process that has it open can still read it.
    fs::remove_file(&path).unwrap();
    assert_eq!(read(&mut nand, at(1, 0)).0, Sense::Good { errors: 0 });
}

#[test]
fn nand_rows_loaded_at_once_need_no_file() {
    let scratch = Scratch::new("nand-at-once");
    let path = scratch.join("drive.nand");
    filled(&path);
    let (mut nand, _) = Nand::load_from(&path).unwrap();
    let empty = nand.allocated_bytes();
    nand.load_rows();
    let loaded = nand.allocated_bytes();
    assert!(loaded > empty);
    let mut fork = nand.fork();
    drop(nand);
    assert_eq!(read(&mut fork, at(0, 5)).1, remembered(Keep::Stamps, page_bytes(at(0, 5), 1)));
    assert_eq!(fork.allocated_bytes(), loaded, "nothing more was loaded");
}

/// Stamps of zeros, units kept whole, full and half-filled blocks, as flash that keeps every byte: the same to
/// a reader, also from a file; and its blocks go on.
#[test]
fn flash_of_zeros_keeps_every_byte_from_now_on() {
    let scratch = Scratch::new("every-byte");
    let path = scratch.join("drive.nand");
    let mut stamps = Nand::new(spec(Keep::Stamps)).unwrap();
    let mut fill = |block: u32, pages: u32| {
        for page in 0..pages {
            let spare = [(block * 16 + page) as u8; 20];
            stamps.program(at(block, page), Data::Zeros, &spare).unwrap();
        }
    };
    fill(0, 12);
    fill(1, 12);
    fill(2, 5);
    stamps.keep_whole(at(1, 3), 1, &[9; 4096]).unwrap();
    let before = |nand: &mut Nand| -> Vec<_> {
        let all = (0..3).flat_map(|block| (0..12).map(move |page| at(block, page)));
        all.map(|page| read(nand, page)).collect()
    };
    let expected = before(&mut stamps);
    assert_eq!(expected[15].1[4096..], [9; 4096]);
    let memory = stamps.allocated_bytes();
    let mut every = stamps.keep_every_byte().unwrap();
    assert_eq!(every.spec().keep, Keep::Everything);
    assert!(before(&mut every) == expected);
    // Only the block with a unit kept whole has all its bytes.
    let rows = 12 * (8192 + u64::from(every.geometry().free_bytes));
    assert!(every.allocated_bytes() < memory + 2 * rows, "{} bytes", every.allocated_bytes());
    every.save(&path, b"").unwrap();
    let (mut loaded, _) = Nand::load_from(&path).unwrap();
    assert!(before(&mut loaded) == expected);
    for mut nand in [every, loaded] {
        for page in 5..12 {
            program(&mut nand, at(2, page), 3).unwrap();
            assert_eq!(read(&mut nand, at(2, page)).1, page_bytes(at(2, page), 3));
        }
        assert!(before(&mut nand)[..29] == expected[..29]);
    }
}
