//! States and journals whose checksums are right and whose contents are not: an error, or other flash.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use runtime::Rng;

use super::file::checksum;
use super::journal::frame::{self, FRAME_BYTES, HEADER_BYTES};
use super::{Data, Errors, Nand, PageAt, Profile, Spec};
use crate::contents::Keep;

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A state with a journal that has records of every kind of a drive's life.
fn files(path: &Path, keep: Keep, resident: bool) {
    let Profile { geometry, .. } = Profile::test();
    let errors = Errors { codeword_bytes: 1024, corrects: 40, ..Errors::none() };
    let spec = Spec { geometry, keep, block_bytes: 4096, errors, seed: 7 };
    let mut flash = Nand::new(spec).expect("flash");
    let work = |flash: &mut Nand| {
        for block in 0..6 {
            for page in 0..3 + block {
                let at = PageAt { block, page };
                flash.program(at, Data::Zeros, &[block as u8; 20]).expect("a page");
                let _ = flash.keep_whole(at, 1, &[9; 4096]);
            }
            flash.programs_ended(block);
        }
        flash.erase_begins(3);
        flash.erase(3).expect("a block");
        flash.tear_program(PageAt { block: 5, page: 7 }, 9).expect("the last page");
        flash.undo_program(PageAt { block: 4, page: 6 }).expect("the last page");
        flash.tear_erase(2, 7).expect("a block");
        flash.spoil(PageAt { block: 0, page: 0 }, 1 << 34).expect("a page");
        flash.wear_out(1, 5);
        flash.mark_bad(6);
        flash.break_block(7).expect("a block");
        flash.keep_beside(b"label");
        flash.age_to(flash.age_s() + 9);
        flash.sense(PageAt { block: 0, page: 1 }, 1, 0).expect("a page");
    };
    if resident {
        flash.keep_pages(path, 0, true).expect("a file of pages");
    }
    work(&mut flash);
    flash.keep_journal(path, b"beside", u64::MAX).expect("a state");
    (0..6).for_each(|block| flash.erase(block).expect("a block"));
    flash.sync().expect("a journal");
    work(&mut flash);
    flash.program(PageAt { block: 9, page: 0 }, Data::Zeros, &[1]).expect("under way at the end");
    flash.keep_journal(path, b"label", u64::MAX).expect("a journal");
}

/// Changes a few bytes, mostly to numbers at the edges of their range.
fn garble(bytes: &mut [u8], rng: &mut Rng) {
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(bytes.len() as u64) as usize;
        let word =
            [0, 1, 2, 7, 0xff, 0x7fff_ffff, 0xffff_ffff, rng.next_u64()][rng.below(8) as usize];
        let width = [1, 2, 4, 8][rng.below(4) as usize];
        let at = at - at % width;
        let end = bytes.len().min(at + width);
        bytes[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
    }
}

/// The journal with one batch garbled, and right checksums.
fn garbled_journal(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let scan = frame::scan(bytes, [0; 2]).expect("a journal");
    let place = rng.below(scan.batches.len() as u64) as usize;
    let mut garbled = bytes[..HEADER_BYTES].to_vec();
    let mut at = frame::first(bytes.first_chunk().expect("a header"));
    let seed = at.head;
    for (number, batch) in scan.batches.iter().enumerate() {
        let begin = garbled.len();
        garbled.extend([0; FRAME_BYTES]);
        garbled.extend(batch.records);
        if number >= place && !batch.records.is_empty() && rng.chance(1, 2) {
            garble(&mut garbled[begin + FRAME_BYTES..], rng);
        }
        at = frame::seal(&mut garbled[begin..], seed, at, scan.synced.min(at.sequence));
    }
    garbled
}

/// The state with its specification or block table garbled, and right checksums. Returns its id too.
fn garbled_state(bytes: &[u8], rng: &mut Rng) -> (Vec<u8>, u64) {
    let mut garbled = bytes.to_vec();
    let word = |bytes: &[u8], at: usize| {
        u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"))
    };
    let meta = 128..128 + word(bytes, 2) as usize;
    garble(&mut garbled[meta.clone()], rng);
    let sum = checksum(&garbled[meta]);
    garbled[40..48].copy_from_slice(&sum.to_le_bytes());
    let id = checksum(&garbled[..120]);
    garbled[120..128].copy_from_slice(&id.to_le_bytes());
    (garbled, id)
}

/// All that a start does with the files, but for the flash software.
fn start(path: &Path) -> bool {
    let Ok((mut flash, _)) = Nand::load_from(path) else { return false };
    if flash.replay(path, false).is_err() || flash.undo_partial_programs().is_err() {
        return false;
    }
    for block in 0..flash.geometry().all_blocks() {
        for page in 0..flash.geometry().pages() {
            let (mut spare, at) = ([0; 20], PageAt { block, page });
            let _ = flash.sense(at, 1, 0);
            let _ = flash.spare(at, 0, &mut spare);
            let _ = flash.runs(at, 1, &mut |_, _| ());
        }
    }
    true
}

#[test]
fn garbled_files_with_right_checksums_never_panic() {
    let rounds = std::env::var("DOORBELL_GARBLED").map_or(60, |n| n.parse().expect("a number"));
    for (number, (keep, resident)) in
        [(Keep::Everything, true), (Keep::Everything, false), (Keep::Stamps, false)]
            .into_iter()
            .enumerate()
    {
        let unique = format!("doorbell-garbled-{}-{number}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(unique));
        fs::create_dir_all(&folder.0).expect("a folder");
        let (path, journal) = (folder.0.join("drive"), folder.0.join("drive.journal"));
        files(&path, keep, resident);
        assert!(start(&path), "whole files");
        let (state, records) =
            (fs::read(&path).expect("a state"), fs::read(&journal).expect("a journal"));
        let mut started = 0;
        for seed in 0..rounds {
            let mut rng = Rng::for_part(seed, "garbled");
            let mut bytes = garbled_journal(&records, &mut rng);
            if rng.chance(1, 3) {
                bytes.truncate(rng.below(bytes.len() as u64) as usize);
            }
            let mut garbled = state.clone();
            if rng.chance(1, 2) {
                let id;
                (garbled, id) = garbled_state(&state, &mut rng);
                // The journal goes on from this state.
                if let Some(header) = bytes.first_chunk_mut::<HEADER_BYTES>() {
                    header[16..24].copy_from_slice(&id.to_le_bytes());
                }
            }
            fs::write(&path, &garbled).expect("a state");
            fs::write(&journal, &bytes).expect("a journal");
            let done = catch_unwind(AssertUnwindSafe(|| start(&path)));
            started +=
                u64::from(done.unwrap_or_else(|_| panic!("seed {seed}, {keep:?}, {resident}")));
        }
        assert!(started > rounds / 20, "{started} of {rounds} start, so that little was garbled");
    }
}
