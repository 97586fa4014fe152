//! Journal of a flash state: committed operations survive the end of the process at any moment.

use std::fs;
use std::path::Path;

use media::contents::Keep;
use media::nand::{Data, Nand, PageAt, Sense};
use proptest::prelude::*;

use super::{GOOD, at, nand, page_bytes, program, read, remembered};
use crate::common::Scratch;

#[derive(Clone, Debug)]
enum Op {
    /// Programs the next page of a block.
    Program(u32),
    Erase(u32),
    Bad(u32),
    /// Stores a unit of the last page of a block in full.
    Whole(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0..6_u32).prop_map(Op::Program),
        2 => (0..6_u32).prop_map(Op::Erase),
        1 => (4..6_u32).prop_map(Op::Bad),
        2 => (0..6_u32).prop_map(Op::Whole),
    ]
}

/// Executes a complete operation, and commits.
fn play(nand: &mut Nand, op: &Op, version: u8) {
    match *op {
        Op::Program(block) => {
            if let Some(page) = nand.next_page(block) {
                program(nand, at(block, page), version).unwrap();
                nand.programs_ended(block);
            }
        }
        Op::Erase(block) if !nand.is_bad(block) => {
            nand.erase_begins(block);
            nand.erase(block).unwrap();
        }
        Op::Erase(_) => {}
        Op::Bad(block) => nand.mark_bad(block),
        Op::Whole(block) => {
            let next = (0..12).find(|page| !is_programmed(nand, at(block, *page))).unwrap_or(12);
            if next > 0 {
                let bytes = [version; 4096];
                nand.keep_whole(at(block, next - 1), 1, &bytes).unwrap();
            }
        }
    }
    nand.commit().unwrap();
}

fn is_programmed(nand: &Nand, at: PageAt) -> bool {
    nand.validate(at, 0, 0) != Sense::Erased
}

/// Compares blocks, pages, wear and bad marks.
fn assert_same(one: &mut Nand, other: &mut Nand) {
    for block in 0..6 {
        assert_eq!(one.is_bad(block), other.is_bad(block), "block {block}");
        assert_eq!(one.wear(block).cycles, other.wear(block).cycles, "block {block}");
        for page in 0..12 {
            assert_eq!(read(one, at(block, page)), read(other, at(block, page)), "{block} {page}");
        }
    }
}

/// State that another process loads.
fn found(path: &Path) -> Nand {
    let (mut nand, _) = Nand::load_from(path).unwrap();
    nand.replay(path, false).unwrap();
    nand
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn journal_replay_restores_committed_operations(
        ops in proptest::collection::vec(op(), 1..60),
        everything: bool,
        most in prop_oneof![Just(4_000_u64), Just(40_000), Just(u64::MAX)],
    ) {
        let keep = if everything { Keep::Everything } else { Keep::Stamps };
        let scratch = Scratch::new("nand-journal");
        let path = scratch.join("drive.nand");
        let mut flash = nand(keep);
        flash.keep_journal(&path, b"beside", most).unwrap();
        for (version, op) in (1..).zip(&ops) {
            play(&mut flash, op, version);
            if version % 7 == 0 {
                assert_same(&mut found(&path), &mut flash);
            }
        }
        assert_same(&mut found(&path), &mut flash);
        assert_eq!(Nand::load_from(&path).unwrap().1, b"beside");
    }
}

#[test]
fn journal_replay_tears_only_programs_in_progress() {
    let scratch = Scratch::new("nand-torn-journal");
    let path = scratch.join("drive.nand");
    let mut flash = nand(Keep::Everything);
    flash.keep_journal(&path, b"", u64::MAX).unwrap();
    program(&mut flash, at(1, 0), 1).unwrap();
    flash.programs_ended(1);
    program(&mut flash, at(1, 1), 2).unwrap();
    flash.commit().unwrap();
    let bytes = page_bytes(at(1, 0), 1);
    let mut after = found(&path);
    assert_eq!(read(&mut after, at(1, 0)).1, remembered(Keep::Everything, bytes));
    assert!(after.next_page(1) == Some(2) && is_programmed(&after, at(1, 1)));
    // Capacitors would have let it complete.
    let (mut after, _) = Nand::load_from(&path).unwrap();
    after.replay(&path, true).unwrap();
    assert_eq!(after.sense(at(1, 1), 1, 0).unwrap(), Sense::Good { errors: 0 });
    // The progress of an interrupted erase is unknown: the block must be erased before it is programmed.
    flash.erase_begins(1);
    flash.commit().unwrap();
    let mut after = found(&path);
    assert_eq!(after.next_page(1), None);
    after.erase(1).unwrap();
    assert_eq!(after.next_page(1), Some(0));
}

#[test]
fn truncated_journal_replays_and_damaged_journal_fails() {
    let scratch = Scratch::new("nand-cut-journal");
    let (path, journal) = (scratch.join("drive.nand"), scratch.join("drive.nand.journal"));
    let mut flash = nand(Keep::Stamps);
    flash.keep_journal(&path, b"", u64::MAX).unwrap();
    let mut ends = vec![fs::metadata(&journal).unwrap().len()];
    for page in 0..6 {
        let kept = [page as u8; 16];
        flash.program(at(2, page), Data::Kept(&kept), &[page as u8]).unwrap();
        flash.programs_ended(2);
        flash.commit().unwrap();
        ends.push(fs::metadata(&journal).unwrap().len());
    }
    let whole = fs::read(&journal).unwrap();
    for end in (ends[0]..=ends[6]).step_by(3) {
        fs::write(&journal, &whole[..end as usize]).unwrap();
        let after = found(&path);
        let pages = (0..6).filter(|page| is_programmed(&after, at(2, *page))).count();
        let ended = ends.iter().filter(|other| **other <= end).count() - 1;
        assert_eq!(pages, ended, "at {end}");
    }
    let mut damaged = whole.clone();
    damaged[ends[2] as usize + 20] ^= 1;
    fs::write(&journal, &damaged).unwrap();
    let (mut after, _) = Nand::load_from(&path).unwrap();
    let said = after.replay(&path, false).unwrap_err().to_string();
    assert!(said.contains("drive.nand.journal") && said.contains("batch 3"), "{said}");
    // A journal of another state is rejected.
    flash.save(&path, b"").unwrap();
    assert_eq!(found(&path).next_page(2), Some(6));
}

/// The process may end between the rename of the new state and the removal of the folded journal.
#[test]
fn replay_of_folded_journal_tears_nothing() {
    let scratch = Scratch::new("nand-old-journal");
    let (path, journal) = (scratch.join("drive.nand"), scratch.join("drive.nand.journal"));
    for held_up in [false, true] {
        let mut flash = nand(Keep::Everything);
        flash.keep_journal(&path, b"", u64::MAX).unwrap();
        program(&mut flash, at(1, 0), 1).unwrap();
        flash.programs_ended(1);
        program(&mut flash, at(2, 0), 2).unwrap();
        flash.erase_begins(1);
        flash.commit().unwrap();
        drop(flash);

        // Another process ends the operations in progress, reuses the blocks, and writes the state.
        let (mut next, _) = Nand::load_from(&path).unwrap();
        next.replay(&path, held_up).unwrap();
        for block in [1, 2] {
            next.erase(block).unwrap();
            program(&mut next, at(block, 0), 7).unwrap();
        }
        let old = fs::read(&journal).unwrap();
        next.save(&path, b"").unwrap();
        fs::write(&journal, &old).unwrap();

        let (mut last, _) = Nand::load_from(&path).unwrap();
        last.replay(&path, held_up).unwrap();
        for block in [1, 2] {
            let found = read(&mut last, at(block, 0));
            assert_eq!(found.0, Sense::Good { errors: 0 }, "block {block}, {held_up}");
            assert_eq!(found.1, page_bytes(at(block, 0), 7), "block {block}, {held_up}");
        }
        fs::remove_file(&path).unwrap();
        fs::remove_file(&journal).unwrap();
    }
}

/// An operation that a power cut finds complete, or not begun, is over: a replay does not tear it.
#[test]
fn replay_tears_nothing_that_an_earlier_power_cut_has_ended() {
    let scratch = Scratch::new("nand-lives");
    let path = scratch.join("drive.nand");
    let mut flash = nand(Keep::Everything);
    flash.keep_journal(&path, b"", u64::MAX).unwrap();
    for block in 0..5 {
        for page in 0..12 {
            program(&mut flash, at(block, page), 1).unwrap();
        }
    }
    // Complete and not reported; this erase had not begun.
    flash.erase_begins(4);
    flash.power_is_off();
    // The second life.
    program(&mut flash, at(5, 0), 1).unwrap();
    flash.programs_ended(5);
    flash.sync().unwrap();
    std::mem::forget(flash);
    let mut after = found(&path);
    for (block, page) in (0..5).flat_map(|block| (0..12).map(move |page| (block, page))) {
        let (sense, bytes, _) = read(&mut after, at(block, page));
        assert_eq!(sense, GOOD, "block {block}, page {page}");
        assert_eq!(bytes, page_bytes(at(block, page), 1));
    }
    assert_eq!(after.next_page(5), Some(1));
}
