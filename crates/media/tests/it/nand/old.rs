//! State files of older versions: they open, remain usable, and are converted to the current version.

use std::fs;
use std::path::{Path, PathBuf};

use media::contents::Keep;
use media::nand::{Nand, Sense, check};

use super::{GOOD, at, page_bytes, program, read, remembered};
use crate::common::Scratch;

/// A copy of the files of version 1: a state and its journal, which ends in a truncated batch.
fn version_1(scratch: &Scratch, name: &str) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for ending in ["nand", "nand.journal"] {
        let from = golden.join(format!("version-1-{name}.{ending}"));
        fs::copy(from, scratch.join(&format!("drive.{ending}"))).unwrap();
    }
    scratch.join("drive.nand")
}

/// Checks the contents of those files after their journal has been replayed.
fn check_contents(flash: &mut Nand, keep: Keep) {
    for block in [0, 3] {
        assert_eq!(read(flash, at(block, 0)).0, Sense::Erased, "block {block}");
    }
    assert_eq!(flash.wear(0).cycles, 1);
    let bytes = remembered(keep, page_bytes(at(2, 0), 2));
    assert_eq!(read(flash, at(2, 0)), (GOOD, bytes, [2; 20]));
    assert!(flash.is_bad(5) && flash.wear(4).cycles == 7 && flash.age_s() == 1000);
    if keep == Keep::Stamps {
        let (sense, bytes, _) = read(flash, at(1, 0));
        assert_eq!((sense, &bytes[4096..]), (GOOD, &[3; 4096][..]));
    }
}

const KINDS: [(Keep, &str); 2] = [(Keep::Everything, "everything"), (Keep::Stamps, "stamps")];

#[test]
fn version_1_state_opens_and_is_rewritten_as_current() {
    for (keep, name) in KINDS {
        let scratch = Scratch::new("nand-old");
        let path = version_1(&scratch, name);
        let (mut flash, beside) = Nand::load_from(&path).unwrap();
        assert_eq!(beside, b"beside");
        let replayed = flash.replay(&path, false).unwrap();
        assert_eq!((replayed.batches, replayed.beside), (4, None));
        check_contents(&mut flash, keep);
        flash.keep_journal(&path, &beside, u64::MAX).unwrap();
        program(&mut flash, at(0, 0), 4).unwrap();
        flash.programs_ended(0);
        flash.erase(0).unwrap();
        flash.sync().unwrap();
        assert_eq!(fs::read(&path).unwrap()[8], 2, "the version of today");
        let (mut again, _) = Nand::load_from(&path).unwrap();
        again.replay(&path, false).unwrap();
        assert_eq!(again.wear(0).cycles, 2);
        assert_eq!(read(&mut again, at(0, 0)).0, Sense::Erased);
    }
}

#[test]
fn damaged_version_1_journal_is_rejected_and_kept() {
    let scratch = Scratch::new("nand-old-damage");
    let path = version_1(&scratch, "stamps");
    let journal = scratch.join("drive.nand.journal");
    let good = fs::read(&journal).unwrap();
    // The last 30 bytes are the truncated batch.
    for place in 0..good.len() - 30 {
        let mut bytes = good.clone();
        bytes[place] ^= 4;
        fs::write(&journal, &bytes).unwrap();
        let (mut flash, _) = Nand::load_from(&path).unwrap();
        let said = match flash.replay(&path, false) {
            // The length of the last complete batch: later bytes cannot reveal this damage.
            Ok(replayed) => {
                assert!(replayed.batches >= 3, "byte {place}: {replayed:?}");
                continue;
            }
            Err(error) => error.to_string(),
        };
        assert!(said.contains("drive.nand.journal") && said.contains("doorbell state"), "{said}");
        let kept = flash.keep_journal(&path, b"", u64::MAX);
        assert!(kept.is_err() && flash.save(&path, b"").is_err(), "byte {place}");
        assert_eq!(fs::read(&journal).unwrap(), bytes, "byte {place}: the evidence");
    }
}

#[test]
fn foreign_version_1_journal_is_renamed_aside() {
    let scratch = Scratch::new("nand-old-aside");
    let path = version_1(&scratch, "everything");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let of_other = golden.join("version-1-stamps.nand.journal");
    fs::copy(&of_other, scratch.join("drive.nand.journal")).unwrap();
    let (mut flash, beside) = Nand::load_from(&path).unwrap();
    assert_eq!(flash.replay(&path, false).unwrap().batches, 0);
    flash.save(&path, &beside).unwrap();
    let aside = fs::read(scratch.join("drive.nand.journal.aside")).unwrap();
    assert_eq!(aside, fs::read(&of_other).unwrap());
    assert!(!scratch.join("drive.nand.journal").exists());
}

#[test]
fn upgrade_converts_version_1_files_and_keeps_old_ones() {
    for (keep, name) in KINDS {
        let scratch = Scratch::new("nand-upgrade");
        let path = version_1(&scratch, name);
        let old = fs::read(&path).unwrap();
        check::upgrade(&path).unwrap();
        assert_eq!(fs::read(scratch.join("drive.nand.old")).unwrap(), old);
        assert!(scratch.join("drive.nand.journal.old").exists());
        let [state, journal] = ["drive.nand", "drive.nand.journal"].map(|name| scratch.join(name));
        assert_eq!([fs::read(state).unwrap()[8], fs::read(journal).unwrap()[8]], [2, 2]);
        let (mut flash, beside) = Nand::load_from(&path).unwrap();
        assert_eq!(flash.replay(&path, false).unwrap().batches, 4);
        assert_eq!(beside, b"beside");
        check_contents(&mut flash, keep);
        let report = check::upgrade(&path).unwrap();
        assert!(report.lines.last().unwrap().contains("nothing was changed"), "{report:?}");
    }
}
