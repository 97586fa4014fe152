//! Rows in a file of pages: the same flash as in memory, whatever leaves memory, is killed or fails.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use media::contents::Keep;
use media::files::{Fault, Faults, Files};
use media::nand::{Error, Nand, Sense, check};
use proptest::prelude::*;

use super::{GOOD, at, nand, page_bytes, program, read};
use crate::common::Scratch;

const BLOCKS: u32 = 8;
const PAGES: u32 = 12;
/// The least memory that there can be: one set of frames. All pages take three times as much.
const LEAST: u64 = 0;

/// Wear and the contents of all pages.
fn digest(flash: &mut Nand, beside: &[u8]) -> Vec<u8> {
    let mut all = beside.to_vec();
    for block in 0..BLOCKS {
        all.extend(flash.wear(block).cycles.to_le_bytes());
        for page in 0..PAGES {
            let (_, bytes, spare) = read(flash, at(block, page));
            all.extend([bytes[0], bytes[8191], spare[0]]);
            all.extend(&bytes[4090..4104]);
        }
    }
    all
}

/// State that another process loads.
fn found(path: &Path, case: &str) -> Nand {
    let (mut flash, _) = Nand::load_from(path).unwrap_or_else(|error| panic!("{case}: {error}"));
    flash.replay(path, false).unwrap_or_else(|error| panic!("{case}: {error}"));
    flash
}

fn begin(path: &Path, files: Files, most: u64) -> Nand {
    let mut flash = nand(Keep::Everything);
    flash.use_files(files);
    flash.keep_pages(path, LEAST, true).unwrap();
    flash.keep_journal(path, b"first", most).unwrap();
    flash
}

fn change(flash: &mut Nand, number: u32) -> Result<(), Error> {
    let block = number * 7 % BLOCKS;
    match flash.next_page(block) {
        Some(page) if !number.is_multiple_of(9) => {
            program(flash, at(block, page), number as u8)?;
            flash.programs_ended(block);
        }
        _ => {
            flash.erase_begins(block);
            flash.erase(block)?;
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn killed_process_leaves_rows_of_every_committed_change(
        seed in 0..1000_u32, kills in proptest::collection::vec(1..150_u32, 1..5),
    ) {
        let scratch = Scratch::new("pages-killed");
        let path = scratch.join("drive.nand");
        let mut flash = begin(&path, Files::default(), 20_000);
        let mut model = nand(Keep::Everything);
        let mut number = seed;
        for changes in kills {
            for _ in 0..changes {
                number += 1;
                change(&mut flash, number).unwrap();
                change(&mut model, number).unwrap();
                flash.commit().unwrap();
                if number.is_multiple_of(5) {
                    flash.sync().unwrap();
                }
            }
            // A killed process runs no destructors.
            std::mem::forget(flash);
            flash = found(&path, "killed");
            prop_assert_eq!(digest(&mut flash, b""), digest(&mut model, b""));
            flash.keep_pages(&path, LEAST, true).unwrap();
            flash.keep_journal(&path, b"again", 20_000).unwrap();
        }
        prop_assert!(flash.allocated_bytes() < 800 << 10, "{} bytes", flash.allocated_bytes());
        prop_assert!(flash.has_pages());
    }
}

#[test]
fn pages_without_journal_are_those_of_the_last_save() {
    let scratch = Scratch::new("pages-saved");
    let path = scratch.join("drive.nand");
    let mut model = nand(Keep::Everything);
    let mut flash = nand(Keep::Everything);
    // Rows in memory and in a state are taken over, and a fork reads what the original writes.
    (0..200).for_each(|number| change(&mut flash, number).unwrap());
    (0..200).for_each(|number| change(&mut model, number).unwrap());
    flash.save(&path, b"").unwrap();
    let (mut flash, _) = Nand::load_from(&path).unwrap();
    assert!(!flash.has_pages());
    flash.keep_pages(&path, LEAST, true).unwrap();
    for life in 0..3 {
        let saved = digest(&mut model.fork(), b"");
        for number in 0..300 {
            change(&mut flash, 200 + life * 300 + number).unwrap();
            change(&mut model, 200 + life * 300 + number).unwrap();
        }
        if life > 0 {
            let mut before = found(&path, "not saved");
            assert_eq!(digest(&mut before, b""), saved, "areas of the saved state are not reused");
        }
        assert_eq!(digest(&mut flash.fork(), b""), digest(&mut model.fork(), b""));
        flash.save(&path, b"").unwrap();
        assert!(flash.has_pages());
        let mut after = found(&path, "saved");
        assert_eq!(digest(&mut after, b""), digest(&mut model.fork(), b""));
        change(&mut after, 7).unwrap();
        drop(after);
        flash = found(&path, "saved");
        flash.keep_pages(&path, LEAST, true).unwrap();
    }
    let length = fs::metadata(scratch.join("drive.nand.pages")).unwrap().len();
    assert!(length < 3 * u64::from(BLOCKS * PAGES) * 8704, "{length} bytes: areas are used again");
}

#[test]
fn changed_row_is_an_error_that_names_file_and_row() {
    let scratch = Scratch::new("pages-damaged");
    let path = scratch.join("drive.nand");
    let mut flash = begin(&path, Files::default(), u64::MAX);
    for page in 0..4 {
        program(&mut flash, at(3, page), 5).unwrap();
        flash.programs_ended(3);
    }
    flash.sync().unwrap();
    drop(flash);
    let file = fs::File::options().write(true).open(scratch.join("drive.nand.pages")).unwrap();
    file.write_all_at(&[0xee], 2 * 8704 + 100).unwrap();
    let mut flash = found(&path, "damaged");
    for page in [0, 1, 3] {
        assert_eq!(read(&mut flash, at(3, page)), (GOOD, page_bytes(at(3, page), 5), [5; 20]));
    }
    for _ in 0..2 {
        let error = flash.sense(at(3, 2), 1, 0).unwrap_err().to_string();
        assert!(error.contains("drive.nand.pages: pages: row 2 of area 0"), "{error}");
    }
}

/// Rows that changed, and a file that lost its end: all records in the journal, in the state, or in both.
#[test]
fn repair_gives_up_rows_that_changed_or_are_missing() {
    for (case, saved_after) in [("journal", 0), ("state", 8), ("both", 5)] {
        let scratch = Scratch::new("pages-repaired");
        let path = scratch.join("drive.nand");
        let mut flash = begin(&path, Files::default(), u64::MAX);
        for number in 0..8 {
            let block = number / 4;
            program(&mut flash, at(block, number % 4), 5).unwrap();
            flash.programs_ended(block);
            if number + 1 == saved_after {
                flash.save(&path, b"label").unwrap();
                flash.keep_journal(&path, b"label", u64::MAX).unwrap();
            }
        }
        flash.sync().unwrap();
        drop(flash);
        assert_eq!(check::check(&path).unwrap().damage, [""; 0], "{case}");
        // Row 2 of the first area, and the last two of the second one.
        let pages = scratch.join("drive.nand.pages");
        let file = fs::File::options().read(true).write(true).open(&pages).unwrap();
        file.write_all_at(&[0xee], 2 * 8704 + 100).unwrap();
        let area = (u64::from(PAGES) * 8704).next_multiple_of(16 << 10);
        file.set_len(area + 2 * 8704).unwrap();
        let bytes = fs::read(&pages).unwrap();
        let report = check::check(&path).unwrap();
        let want = [
            "row 2 of area 0, page 2 of block 0, is missing or has changed",
            "row 2 of area 1, page 2 of block 1, is missing or has changed, and 1 more of it",
        ];
        assert_eq!(report.damage.len(), 2, "{case}: {report:?}");
        for (damage, want) in report.damage.iter().zip(want) {
            assert!(
                damage.contains("drive.nand.pages") && damage.ends_with(want),
                "{case}: {damage}"
            );
        }
        assert_eq!(check::repair(&path).unwrap().damage, report.damage, "{case}");
        assert_eq!(fs::read(&pages).unwrap(), bytes, "the pages are as they were");
        assert_eq!(check::check(&path).unwrap().damage, [""; 0], "{case}");
        let mut flash = found(&path, case);
        flash.keep_pages(&path, LEAST, true).unwrap();
        flash.keep_journal(&path, b"label", u64::MAX).unwrap();
        for (block, page) in (0..2).flat_map(|block| (0..4).map(move |page| (block, page))) {
            let is_lost = [(0, 2), (1, 2), (1, 3)].contains(&(block, page));
            let sense = if is_lost { Sense::Uncorrectable } else { GOOD };
            let place = at(block, page);
            match is_lost {
                true => assert_eq!(flash.sense(place, 1, 0).unwrap(), sense, "{case}: {place:?}"),
                false => {
                    assert_eq!(read(&mut flash, place), (sense, page_bytes(place, 5), [5; 20]))
                }
            }
        }
    }
}

/// A whole area is gone: a drive refuses the state, a repair gives the block up.
#[test]
fn pages_without_an_area_are_refused_and_repaired() {
    let scratch = Scratch::new("pages-short");
    let path = scratch.join("drive.nand");
    let mut flash = begin(&path, Files::default(), u64::MAX);
    for block in 0..2 {
        program(&mut flash, at(block, 0), 5).unwrap();
        flash.programs_ended(block);
    }
    flash.save(&path, b"").unwrap();
    drop(flash);
    let file = fs::File::options().write(true).open(scratch.join("drive.nand.pages")).unwrap();
    file.set_len(8704).unwrap();
    let error = Nand::load_from(&path).map(drop).unwrap_err().to_string();
    assert!(error.contains("block 1") && error.contains("see doorbell state check"), "{error}");
    assert_eq!(check::check(&path).unwrap().damage.len(), 1);
    check::repair(&path).unwrap();
    let mut flash = found(&path, "repaired");
    assert_eq!(read(&mut flash, at(0, 0)), (GOOD, page_bytes(at(0, 0), 5), [5; 20]));
    assert_eq!(flash.sense(at(1, 0), 1, 0).unwrap(), Sense::Uncorrectable);
    assert_eq!(check::check(&path).unwrap().damage, [""; 0]);
}

#[test]
fn unsynced_record_without_its_row_ends_the_journal() {
    let scratch = Scratch::new("pages-torn");
    let path = scratch.join("drive.nand");
    let mut flash = begin(&path, Files::default(), u64::MAX);
    for page in 0..6 {
        program(&mut flash, at(3, page), 5).unwrap();
        flash.programs_ended(3);
        flash.commit().unwrap();
        if page == 2 {
            flash.sync().unwrap();
        }
    }
    std::mem::forget(flash);
    // The machine lost power: the file system has all of the journal, and one row is not there.
    let file = fs::File::options().write(true).open(scratch.join("drive.nand.pages")).unwrap();
    file.write_all_at(&[0; 8704], 4 * 8704).unwrap();
    let mut flash = found(&path, "torn");
    assert_eq!(flash.next_page(3), Some(4));
    for page in 0..4 {
        assert_eq!(read(&mut flash, at(3, page)), (GOOD, page_bytes(at(3, page), 5), [5; 20]));
    }
}

#[test]
fn area_of_erased_block_is_not_reused_before_sync() {
    let scratch = Scratch::new("pages-reuse");
    let (path, journal) = (scratch.join("drive.nand"), scratch.join("drive.nand.journal"));
    let mut flash = begin(&path, Files::default(), u64::MAX);
    for page in 0..4 {
        program(&mut flash, at(3, page), 5).unwrap();
        flash.programs_ended(3);
    }
    flash.sync().unwrap();
    let synced = fs::read(&journal).unwrap();
    flash.erase_begins(3);
    flash.erase(3).unwrap();
    for page in 0..4 {
        program(&mut flash, at(4, page), 6).unwrap();
        flash.programs_ended(4);
    }
    flash.commit().unwrap();
    // The machine lost power: the kernel had written the pages on its own, and not the journal.
    fs::write(&journal, synced).unwrap();
    std::mem::forget(flash);
    let mut flash = found(&path, "cut");
    for page in 0..4 {
        assert_eq!(read(&mut flash, at(3, page)), (GOOD, page_bytes(at(3, page), 5), [5; 20]));
    }
    // After a sync it is.
    flash.keep_pages(&path, LEAST, true).unwrap();
    flash.keep_journal(&path, b"", u64::MAX).unwrap();
    for round in 0..50 {
        flash.erase_begins(3);
        flash.erase(3).unwrap();
        program(&mut flash, at(3, 0), round).unwrap();
        flash.programs_ended(3);
        flash.sync().unwrap();
    }
    let length = fs::metadata(scratch.join("drive.nand.pages")).unwrap().len();
    assert!(length < 4 * 114_688, "{length} bytes");
}

/// A start that finds no frame that confirms a sync checks the rows of its records: those of a block that was
/// erased since are needed until that frame is durable.
#[test]
fn area_is_not_reused_before_the_confirmation_of_its_sync_is_durable() {
    for call in 0..8 {
        let scratch = Scratch::new("pages-confirmed");
        let (path, journal) = (scratch.join("drive.nand"), scratch.join("drive.nand.journal"));
        let faults = Arc::new(Faults::new());
        let mut flash = begin(&path, Files::failing(faults.clone()), u64::MAX);
        let fill = |flash: &mut Nand, block, pages| {
            for page in 0..pages {
                program(flash, at(block, page), 5).unwrap();
                flash.programs_ended(block);
            }
            flash.commit().unwrap();
        };
        fill(&mut flash, 3, 4);
        flash.erase_begins(3);
        flash.erase(3).unwrap();
        fill(&mut flash, 5, 1);
        let before = faults.syncs();
        faults.fail(call, 1, Fault::Error(28));
        let synced = flash.sync().is_ok();
        faults.heal();
        if call == 7 {
            assert_eq!(faults.syncs() - before, 3, "pages, records, and the frame that confirms");
        }
        let of_sync = fs::read(&journal).unwrap();
        fill(&mut flash, 4, 4);
        // The machine lost power: the kernel had written the pages on its own, and not the journal.
        fs::write(&journal, of_sync).unwrap();
        std::mem::forget(flash);
        if synced {
            let mut flash = found(&path, "cut");
            assert_eq!((flash.next_page(3), flash.next_page(5)), (Some(0), Some(1)), "call {call}");
            assert_eq!(read(&mut flash, at(5, 0)), (GOOD, page_bytes(at(5, 0), 5), [5; 20]));
        }
    }
}

/// Ends of the frames: behind the header of 64 bytes each has 48, with the length of its records.
fn ends_of_frames(journal: &[u8]) -> Vec<usize> {
    let mut ends = vec![64];
    while let Some(length) =
        journal.get(ends[ends.len() - 1] + 4..).and_then(|rest| rest.first_chunk())
    {
        ends.push(ends[ends.len() - 1] + 48 + u32::from_le_bytes(*length) as usize);
    }
    ends
}

/// A sync that makes room for rows does not divide the program of a group of pages.
#[test]
fn journal_cut_at_any_frame_has_whole_programs() {
    let scratch = Scratch::new("pages-groups");
    let (path, journal) = (scratch.join("drive.nand"), scratch.join("drive.nand.journal"));
    let faults = Arc::new(Faults::new());
    let mut flash = begin(&path, Files::failing(faults.clone()), u64::MAX);
    let group = flash.geometry().group;
    let fill = |flash: &mut Nand, block| {
        for page in 0..group {
            program(flash, at(block, page), 7).unwrap();
        }
        flash.programs_ended(block);
        flash.commit().unwrap();
    };
    let erase = |flash: &mut Nand, block| {
        flash.erase_begins(block);
        flash.erase(block).unwrap();
        flash.commit().unwrap();
    };
    fill(&mut flash, 6);
    fill(&mut flash, 7);
    for number in 0..120 {
        fill(&mut flash, number % 5);
        erase(&mut flash, number % 5);
        if number == 30 {
            // Areas wait in such a number that the next one is worth it when the last free one is taken.
            erase(&mut flash, 6);
            erase(&mut flash, 7);
        }
    }
    assert!(faults.syncs() > 12, "{} syncs, none of which was asked for", faults.syncs());
    std::mem::forget(flash);
    let bytes = fs::read(&journal).unwrap();
    let ends = ends_of_frames(&bytes);
    assert_eq!(ends.last(), Some(&bytes.len()));
    for end in ends {
        fs::write(&journal, &bytes[..end]).unwrap();
        let flash = found(&path, &format!("cut at byte {end}"));
        let next = (0..5).filter_map(|block| flash.next_page(block)).find(|next| next % group != 0);
        assert_eq!(next, None, "cut at byte {end}: a part of a program");
    }
}

/// Rows that a power cut took back may still count as long as no sync says otherwise, and on a full disk none
/// does. A program that failed for it would retire its block.
#[test]
fn programs_succeed_on_full_disk_after_power_cut() {
    let mut folds = 0;
    for call in 0..40 {
        let case = &format!("call {call}");
        let scratch = Scratch::new("pages-taken-back");
        let path = scratch.join("drive.nand");
        let faults = Arc::new(Faults::new());
        let mut flash = begin(&path, Files::failing(faults.clone()), 20_000);
        let fill = |flash: &mut Nand, pages: std::ops::Range<u32>, value| {
            for page in pages {
                program(flash, at(3, page), value)
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
            }
            flash.programs_ended(3);
        };
        fill(&mut flash, 0..6, 5);
        flash.sync().unwrap();
        faults.fail(0, u64::MAX, Fault::Full(28));
        for page in (3..6).rev() {
            flash.undo_program(at(3, page)).unwrap();
        }
        flash.power_is_off();
        assert!(flash.is_stuck());
        fill(&mut flash, 3..6, 6);
        faults.heal();
        // The journal is long enough for a new state, of which this call fails.
        faults.fail(call, 1, Fault::Error(28));
        let _ = flash.commit();
        folds += faults.fired();
        faults.heal();
        fill(&mut flash, 6..9, 7);
        flash.sync().unwrap_or_else(|error| panic!("{case}: {error}"));
        std::mem::forget(flash);
        let mut flash = found(&path, case);
        for page in 0..9 {
            let value = [5, 6, 7][page as usize / 3];
            let expected = (GOOD, page_bytes(at(3, page), value), [value; 20]);
            assert_eq!(read(&mut flash, at(3, page)), expected, "{case}, page {page}");
        }
    }
    assert!((10..40).contains(&folds), "{folds} calls of a fold");
}

/// Returns true while there was a call to fail.
fn fail_at(call: u64, (count, fault, most): (u64, Fault, u64), power_fails: bool) -> bool {
    let case = &format!("call {call}, {count} calls, {fault:?}, power fails: {power_fails}");
    let scratch = Scratch::new("pages-faults");
    let path = scratch.join("drive.nand");
    let faults = Arc::new(Faults::new());
    faults.follow();
    let mut flash = begin(&path, Files::failing(faults.clone()), most);
    let mut model = nand(Keep::Everything);
    let mut history = vec![digest(&mut model, b"")];
    let mut synced = 0;
    let mut work = |flash: &mut Nand, numbers: std::ops::Range<u32>, synced: &mut usize| {
        for number in numbers {
            match change(flash, number) {
                // Nothing has changed.
                Err(Error::Io { .. } | Error::State { .. }) => {}
                Err(error) => panic!("{case}: {error}"),
                Ok(()) => change(&mut model, number).unwrap(),
            }
            let _ = flash.commit();
            history.push(digest(&mut model, b""));
            if number.is_multiple_of(4) && flash.sync().is_ok() {
                *synced = history.len() - 1;
            }
        }
        history.clone()
    };
    work(&mut flash, 1..12, &mut synced);
    faults.fail(call, count, fault);
    let known = work(&mut flash, 12..28, &mut synced);
    let fired = faults.fired() > 0;
    faults.heal();
    let check = |known: &[Vec<u8>], synced: usize| {
        let seen = digest(&mut found(&path, case), b"");
        let place = known.iter().position(|one| *one == seen);
        assert!(known[synced..].contains(&seen), "{case}: found {place:?}, synced {synced}");
    };
    if !power_fails {
        check(&known, synced);
        // Room has returned: a flush succeeds, unless one of the file of pages has failed.
        let known = work(&mut flash, 28..33, &mut synced);
        match flash.sync() {
            Ok(()) => synced = known.len() - 1,
            Err(error) => {
                assert!(error.to_string().contains("an earlier flush"), "{case}: {error}");
                // Otherwise a host could write on and on what no flush makes durable.
                assert!(flash.is_stuck(), "{case}: writes are accepted");
            }
        }
        check(&known, synced);
        drop(flash);
        faults.power_cut().unwrap();
        check(&known, synced);
    } else {
        drop(flash);
        faults.power_cut().unwrap();
        check(&known, synced);
    }
    fired
}

#[test]
fn synced_rows_survive_every_failing_file_call() {
    let cases = [
        (1, Fault::Error(28), 3000),
        (u64::MAX, Fault::Short(28), 3000),
        (1, Fault::Error(5), u64::MAX),
        (2, Fault::Short(5), 3000),
    ];
    for case in cases {
        for power_fails in [false, true] {
            let calls = (0..).take_while(|call| fail_at(*call, case, power_fails)).count();
            assert!(calls > 20, "{case:?}: {calls} calls");
        }
    }
}

#[test]
fn full_disk_keeps_rows_until_room_returns() {
    let scratch = Scratch::new("pages-full");
    let path = scratch.join("drive.nand");
    let faults = Arc::new(Faults::new());
    let mut flash = begin(&path, Files::failing(faults.clone()), u64::MAX);
    faults.fail(0, u64::MAX, Fault::Error(28));
    // More than the frames have: what was accepted is not dropped.
    for block in 0..BLOCKS {
        for page in 0..PAGES {
            program(&mut flash, at(block, page), 3).unwrap();
            flash.programs_ended(block);
        }
        let error = flash.commit().unwrap_err();
        assert!(error.is_full() && error.to_string().contains("drive.nand.pages"), "{error}");
        assert!(flash.is_stuck());
    }
    faults.heal();
    flash.sync().unwrap();
    assert!(!flash.is_stuck());
    assert!(flash.allocated_bytes() < 800 << 10, "{} bytes", flash.allocated_bytes());
    let mut after = found(&path, "room has returned");
    for block in 0..BLOCKS {
        for page in 0..PAGES {
            let expected = (GOOD, page_bytes(at(block, page), 3), [3; 20]);
            assert_eq!(read(&mut after, at(block, page)), expected);
        }
    }
}
