//! Each file call on a state fails in turn, once, several times and until space returns. Synced data survive,
//! whether the process is killed or the machine loses power; and when the failures end, the drive recovers.

use std::path::Path;
use std::sync::Arc;

use media::contents::Keep;
use media::files::{Fault, Faults, Files};
use media::nand::{Error, Nand};

use super::{at, nand, page_bytes, program, read};
use crate::common::Scratch;

const ENOSPC: i32 = 28;
const EIO: i32 = 5;
const ENOMEM: i32 = 12;

/// Enough state to distinguish all changes: per page the spare bytes, which hold the number of the change,
/// and the first bytes of its data.
fn digest(flash: &Nand, beside: &[u8]) -> Vec<u8> {
    let mut flash = flash.fork();
    let mut all = beside.to_vec();
    for block in 0..6 {
        all.extend(flash.wear(block).cycles.to_le_bytes());
        all.push(flash.is_bad(block).into());
        for page in 0..12 {
            let (mut data, mut spare) = ([0; 8], [0; 20]);
            flash.sense(at(block, page), 0b11, 0).unwrap();
            flash.runs(at(block, page), 1, &mut |from, run| {
                if from == 0 {
                    data.copy_from_slice(&run[..8]);
                }
            });
            flash.spare(at(block, page), 0, &mut spare);
            all.extend(data);
            all.extend(&spare[..2]);
        }
    }
    all
}

/// State that another process loads.
fn found(path: &Path, case: &str) -> Vec<u8> {
    let (mut flash, beside) = Nand::load_from(path).unwrap_or_else(|e| panic!("{case}: {e}"));
    let replayed = flash.replay(path, false).unwrap_or_else(|e| panic!("{case}: {e}"));
    digest(&flash, &replayed.beside.unwrap_or(beside))
}

/// One complete change of the flash.
fn change(flash: &mut Nand, number: u32) -> Result<(), Error> {
    let block = number % 5;
    if number % 11 == 7 {
        flash.erase_begins(block);
        return flash.erase(block);
    }
    let Some(page) = flash.next_page(block) else { return Ok(()) };
    let done = program(flash, at(block, page), number as u8);
    flash.programs_ended(block);
    done
}

/// Flash under test, a reference in memory, and the reference's state after each change.
struct Bench {
    faults: Arc<Faults>,
    flash: Option<Nand>,
    model: Nand,
    beside: Vec<u8>,
    history: Vec<Vec<u8>>,
    /// Number of changes covered by a successful sync.
    synced: usize,
    number: u32,
}

impl Bench {
    /// Starts from a state with some blocks not loaded yet.
    fn new(path: &Path, most: u64) -> Bench {
        let mut model = nand(Keep::Stamps);
        for number in 0..20 {
            change(&mut model, number).unwrap();
        }
        model.fork().save(path, b"first").unwrap();
        let faults = Arc::new(Faults::new());
        faults.follow();
        let (mut flash, beside) = Nand::load_with(Files::failing(faults.clone()), path).unwrap();
        flash.replay(path, false).unwrap();
        flash.keep_journal(path, &beside, most).unwrap();
        let history = vec![digest(&model, &beside)];
        Bench { faults, flash: Some(flash), model, beside, history, synced: 0, number: 20 }
    }

    fn work(&mut self, changes: u32) {
        let flash = self.flash.as_mut().unwrap();
        for _ in 0..changes {
            self.number += 1;
            match change(flash, self.number) {
                // The block could not be loaded: nothing has changed.
                Err(Error::Io { .. } | Error::State { .. }) => {}
                Err(error) => panic!("{error}"),
                Ok(()) => change(&mut self.model, self.number).unwrap(),
            }
            if self.number.is_multiple_of(7) {
                self.beside = self.number.to_string().into_bytes();
                flash.keep_beside(&self.beside);
            }
            let _ = flash.commit();
            self.history.push(digest(&self.model, &self.beside));
            if self.number.is_multiple_of(3) && flash.sync().is_ok() {
                self.synced = self.history.len() - 1;
            }
        }
    }

    fn check(&self, path: &Path, case: &str) {
        let found = found(path, case);
        let known = self.history[self.synced..].contains(&found);
        let place = self.history.iter().position(|known| *known == found);
        assert!(known, "{case}: found {place:?}, synced {} of {}", self.synced, self.history.len());
    }
}

/// Number of failing calls, kind of failure, and maximum journal length.
type Case = (u64, Fault, u64);

fn fail_at(call: u64, (count, fault, most): Case, power_fails: bool) -> bool {
    let case = &format!("call {call}, {count} calls, {fault:?}, power fails: {power_fails}");
    let scratch = Scratch::new("nand-faults");
    let path = scratch.join("drive.nand");
    let mut bench = Bench::new(&path, most);
    bench.faults.fail(call, count, fault);
    bench.work(12);
    let fired = bench.faults.fired() > 0;
    bench.faults.heal();
    if power_fails {
        bench.flash = None;
        bench.faults.power_cut().unwrap();
        bench.check(&path, case);
        return fired;
    }
    bench.check(&path, case);
    // Space has returned.
    bench.work(5);
    bench.flash.as_mut().unwrap().sync().unwrap_or_else(|error| panic!("{case}: {error}"));
    bench.synced = bench.history.len() - 1;
    bench.check(&path, case);
    bench.flash = None;
    bench.faults.power_cut().unwrap();
    bench.check(&path, case);
    fired
}

#[test]
fn synced_data_survives_every_failing_file_call() {
    let cases = [
        (1, Fault::Error(ENOSPC), 600),
        (u64::MAX, Fault::Short(ENOSPC), 600),
        (1, Fault::Error(EIO), u64::MAX),
        (2, Fault::Short(EIO), 600),
        (1, Fault::Error(ENOMEM), 600),
    ];
    for case in cases {
        for power_fails in [false, true] {
            let calls = (0..).take_while(|call| fail_at(*call, case, power_fails)).count();
            assert!(calls > 20, "{case:?}: {calls} calls");
        }
    }
}

#[test]
fn journal_sync_fails_on_full_disk_until_space_returns() {
    let scratch = Scratch::new("nand-full");
    let path = scratch.join("drive.nand");
    let mut bench = Bench::new(&path, 600);
    bench.faults.fail(0, u64::MAX, Fault::Short(ENOSPC));
    let flash = bench.flash.as_mut().unwrap();
    let page = flash.next_page(5).unwrap();
    program(flash, at(5, page), 9).unwrap();
    flash.programs_ended(5);
    for _ in 0..3 {
        let error = flash.sync().unwrap_err();
        assert!(error.is_full() && error.to_string().contains("drive.nand.journal"), "{error}");
        assert!(flash.is_stuck());
    }
    bench.faults.heal();
    flash.sync().unwrap();
    assert!(!flash.is_stuck());
    let (mut after, _) = Nand::load_from(&path).unwrap();
    after.replay(&path, false).unwrap();
    let bytes = super::remembered(Keep::Stamps, page_bytes(at(5, page), 9));
    assert_eq!(read(&mut after, at(5, page)).1, bytes);
}

#[test]
fn saved_nand_state_survives_power_cut() {
    let scratch = Scratch::new("nand-saved");
    let path = scratch.join("drive.nand");
    nand(Keep::Stamps).save(&path, b"old").unwrap();
    let faults = Arc::new(Faults::new());
    faults.follow();
    let (mut flash, _) = Nand::load_with(Files::failing(faults.clone()), &path).unwrap();
    program(&mut flash, at(0, 0), 1).unwrap();
    flash.save(&path, b"new").unwrap();
    drop(flash);
    faults.power_cut().unwrap();
    let (flash, beside) = Nand::load_from(&path).unwrap();
    assert_eq!((flash.next_page(0), &beside[..]), (Some(1), &b"new"[..]));
}

#[test]
fn journal_sync_without_changes_is_skipped() {
    let scratch = Scratch::new("nand-group");
    let path = scratch.join("drive.nand");
    let mut bench = Bench::new(&path, 600);
    bench.work(1);
    let flash = bench.flash.as_mut().unwrap();
    flash.sync().unwrap();
    let page = flash.next_page(5).unwrap();
    program(flash, at(5, page), 9).unwrap();
    let before = bench.faults.syncs();
    for _ in 0..5 {
        flash.sync().unwrap();
    }
    assert_eq!(bench.faults.syncs(), before + 1, "five that wait share one");
    let written = bench.faults.written();
    flash.keep_journal(&path, b"first", 600).unwrap();
    flash.keep_journal(&path, b"first", 600).unwrap();
    assert!(bench.faults.written() - written < 400, "a state that has not changed is not written");
}
