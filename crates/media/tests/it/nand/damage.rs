//! Damaged state files: damage is detected everywhere, never mistaken for the end of a journal, and never
//! overwritten; and the repair tool.

use std::fs;
use std::path::Path;

use media::contents::Keep;
use media::nand::{Data, Error, Nand, Sense, check};

use super::{at, nand, program};
use crate::common::Scratch;

/// A state, and a journal of several batches, each synced.
fn synced(scratch: &Scratch) -> (std::path::PathBuf, std::path::PathBuf) {
    let path = scratch.join("drive.nand");
    let mut flash = nand(Keep::Stamps);
    for page in 0..12 {
        program(&mut flash, at(0, page), 1).unwrap();
    }
    flash.keep_journal(&path, b"beside", u64::MAX).unwrap();
    for page in 0..5 {
        flash.program(at(2, page), Data::Kept(&[page as u8; 16]), &[]).unwrap();
        flash.programs_ended(2);
        flash.sync().unwrap();
    }
    (path, scratch.join("drive.nand.journal"))
}

fn replayed(path: &Path) -> Result<Nand, Error> {
    let (mut flash, _) = Nand::load_from(path)?;
    flash.replay(path, false)?;
    Ok(flash)
}

#[test]
fn synced_journal_bit_flips_detected_and_file_kept() {
    let scratch = Scratch::new("nand-flipped");
    let (path, journal) = synced(&scratch);
    let good = fs::read(&journal).unwrap();
    // The last frame only confirms that those before it are synced.
    for place in 0..good.len() - 48 {
        let mut bytes = good.clone();
        bytes[place] ^= 1 << (place % 8);
        fs::write(&journal, &bytes).unwrap();
        let said = replayed(&path).err().unwrap_or_else(|| panic!("byte {place} is believed"));
        let said = said.to_string();
        assert!(said.contains("drive.nand.journal: journal"), "{said}");
        assert!(said.contains("doorbell state repair"), "{said}");
        let (mut flash, _) = Nand::load_from(&path).unwrap();
        assert!(flash.replay(&path, true).is_err());
        assert!(flash.keep_journal(&path, b"", u64::MAX).is_err(), "byte {place}");
        assert!(flash.save(&path, b"").is_err(), "byte {place}");
        assert_eq!(fs::read(&journal).unwrap(), bytes, "byte {place}");
        assert!(!check::check(&path).unwrap().damage.is_empty(), "byte {place}");
    }
    fs::write(&journal, &good).unwrap();
    assert_eq!(replayed(&path).unwrap().next_page(2), Some(5));
    assert_eq!(check::check(&path).unwrap().damage, [""; 0]);
}

#[test]
fn repaired_journal_keeps_frames_before_damage() {
    let scratch = Scratch::new("nand-repaired");
    let (path, journal) = synced(&scratch);
    let mut bytes = fs::read(&journal).unwrap();
    // Each page is a frame of 48 bytes with its records, and one that confirms the sync: damage the third
    // page.
    let frames = (bytes.len() - 64) / 5;
    bytes[64 + 2 * frames + 50] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    let state = fs::read(&path).unwrap();
    let report = check::repair(&path).unwrap();
    assert_eq!(report.damage.len(), 1, "{report:?}");
    assert_eq!(replayed(&path).unwrap().next_page(2), Some(2));
    assert_eq!(fs::read(scratch.join("drive.nand.journal.damaged")).unwrap(), bytes);
    assert_eq!(fs::read(&path).unwrap(), state, "the state is as it was");
    assert_eq!(check::check(&path).unwrap().damage, [""; 0]);
}

#[test]
fn repair_restores_damaged_journal_header() {
    let scratch = Scratch::new("nand-mended");
    let (path, journal) = synced(&scratch);
    let good = fs::read(&journal).unwrap();
    for place in 0..64 {
        let mut bytes = good.clone();
        bytes[place] ^= 1 << (place % 8);
        fs::write(&journal, &bytes).unwrap();
        check::repair(&path).unwrap();
        assert_eq!(fs::read(&journal).unwrap(), good, "byte {place}");
        assert_eq!(fs::read(scratch.join("drive.nand.journal.damaged")).unwrap(), bytes);
        fs::remove_file(scratch.join("drive.nand.journal.damaged")).unwrap();
    }
    // A file that is not a journal is ignored, and kept.
    fs::write(&journal, [7; 300]).unwrap();
    check::repair(&path).unwrap();
    assert_eq!(replayed(&path).unwrap().next_page(2), Some(0));
    assert_eq!(fs::read(scratch.join("drive.nand.journal.damaged")).unwrap(), [7; 300]);
}

#[test]
fn repair_drops_only_damaged_rows() {
    let scratch = Scratch::new("nand-lost-rows");
    let (path, _) = synced(&scratch);
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).unwrap();
    // Before the repair nothing can be folded into a new state.
    let mut flash = replayed(&path).unwrap();
    let said = flash.keep_journal(&path, b"", u64::MAX).unwrap_err().to_string();
    assert!(said.contains("rows: those of block 0"), "{said}");
    let report = check::check(&path).unwrap();
    assert!(report.damage.len() == 1 && report.damage[0].contains("block 0"), "{report:?}");
    check::repair(&path).unwrap();
    let mut flash = replayed(&path).unwrap();
    assert_eq!(flash.next_page(2), Some(5), "the journal goes on from the repaired state");
    assert_eq!(flash.sense(at(0, 3), 1, 0).unwrap(), Sense::Uncorrectable);
    assert_eq!(flash.sense(at(2, 3), 1, 0).unwrap(), Sense::Good { errors: 0 });
    flash.keep_journal(&path, b"", u64::MAX).unwrap();
    assert_eq!(check::check(&path).unwrap().damage, [""; 0]);
}

#[test]
fn foreign_journal_is_rejected_and_kept() {
    let (scratch, other) = (Scratch::new("nand-other"), Scratch::new("nand-another"));
    let ((path, journal), (_, of_other)) = (synced(&scratch), synced(&other));
    let mut flash = replayed(&other.join("drive.nand")).unwrap();
    flash.age_to(5);
    flash.keep_journal(&other.join("drive.nand"), b"", u64::MAX).unwrap();
    let bytes = fs::read(&of_other).unwrap();
    fs::write(&journal, &bytes).unwrap();
    let said = replayed(&path).unwrap_err().to_string();
    assert!(said.contains("another state"), "{said}");
    // A journal is not overwritten if its state is missing.
    fs::remove_file(&path).unwrap();
    assert!(nand(Keep::Stamps).keep_journal(&path, b"", u64::MAX).is_err());
    assert_eq!(fs::read(&journal).unwrap(), bytes);
}

#[test]
fn state_opens_with_previous_and_next_journal() {
    let scratch = Scratch::new("nand-generations");
    let (path, journal) = synced(&scratch);
    let (old_state, old_journal) = (fs::read(&path).unwrap(), fs::read(&journal).unwrap());
    let mut flash = replayed(&path).unwrap();
    flash.keep_journal(&path, b"", u64::MAX).unwrap();
    flash.program(at(2, 5), Data::Kept(&[5; 16]), &[]).unwrap();
    flash.programs_ended(2);
    flash.sync().unwrap();
    assert_eq!(replayed(&path).unwrap().next_page(2), Some(6));
    let new_journal = fs::read(&journal).unwrap();
    // The process ended after the rename of the new state, and before that of the new journal.
    fs::write(&journal, &old_journal).unwrap();
    assert_eq!(replayed(&path).unwrap().next_page(2), Some(5));
    // The same, after a power cut that took the end of the old journal.
    fs::write(&journal, &old_journal[..old_journal.len() - 200]).unwrap();
    assert_eq!(replayed(&path).unwrap().next_page(2), Some(5));
    // An older state was restored: its journal no longer exists.
    fs::write(&path, &old_state).unwrap();
    fs::write(&journal, &new_journal).unwrap();
    assert!(replayed(&path).unwrap_err().to_string().contains("another state"));
}
