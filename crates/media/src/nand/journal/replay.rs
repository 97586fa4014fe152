//! Replay of a journal.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use runtime::Rng;

use super::frame::{self, Ending, Position, Scan};
use super::{KINDS, Kind, Open, UnderWay, path_of};
use crate::nand::file::{own_name, refuse};
use crate::nand::lineage::Lineage;
use crate::nand::power::WHOLE;
use crate::nand::{Data, Error, Nand, PageAt, mix};

/// Result of replaying a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Batches applied to the flash.
    pub batches: u64,
    /// Bytes that the owner last stored with the flash; `None` if unchanged since the state.
    pub beside: Option<Vec<u8>>,
}

/// Relation between a journal and a state.
pub(in crate::nand) enum Fits {
    /// The journal continues the state or an earlier one: this many of its batches are already in the state.
    After(u64),
    /// The journal continues another state of version 1, of which no more is known.
    Aside,
    /// The journal continues a state that is not an ancestor of this one.
    No,
}

/// Determines the relation between a journal and a state.
pub(in crate::nand) fn fits(scan: &Scan<'_>, lineage: &Lineage) -> Fits {
    let there = scan.batches.len() as u64;
    let Position { base, sequence, .. } = lineage.saved;
    if scan.first.base == lineage.id {
        return Fits::After(0);
    }
    if scan.first.base == base && sequence > there {
        // The state was synced, and the journal's end was not.
        return Fits::After(there);
    }
    if scan.first.base == base && scan.position(sequence) == lineage.saved {
        return Fits::After(sequence);
    }
    if scan.version == 1 { Fits::Aside } else { Fits::No }
}

/// Reason for which a record cannot be replayed; `None` if it is malformed.
type Refused = Option<Error>;

const REPAIR: &str = "nothing was changed; see doorbell state check, then doorbell state repair";

impl Nand {
    /// Replays the journal of this newly loaded state, if there is one. Operations in progress at its end are
    /// torn at random, or completed if capacitors hold the chips up.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::State`] if the journal is damaged or belongs to another state. The files are
    /// unchanged.
    pub fn replay(&mut self, state: &Path, held_up: bool) -> Result<Replayed, Error> {
        let path = path_of(&own_name(state)?);
        let failed = |source| Error::Io { path: path.clone(), attempt: "read the journal", source };
        let Some(bytes) = self.files.read(&path).map_err(failed)? else {
            self.lineage.replayed = Some(path);
            return Ok(Replayed::default());
        };
        let journal = |found: &dyn Display| refuse(&path, "journal", format!("{found}; {REPAIR}"));
        let scan = frame::scan(&bytes, frame::boot()).map_err(|error| journal(&error))?;
        if let Ending::Damaged { at } = scan.ending {
            let batch = scan.batches.len() + 1;
            return Err(journal(&format_args!("damaged at byte {at}, in batch {batch}")));
        }
        self.replay_scanned(&path, &scan, held_up)
    }

    /// As [`replay`](Nand::replay), for the batches of this scan.
    pub(in crate::nand) fn replay_scanned(
        &mut self,
        path: &Path,
        scan: &Scan<'_>,
        held_up: bool,
    ) -> Result<Replayed, Error> {
        let skipped = match fits(scan, &self.lineage) {
            Fits::After(batches) => batches,
            Fits::Aside => {
                self.lineage.replayed = Some(path.into());
                self.lineage.aside = true;
                return Ok(Replayed::default());
            }
            Fits::No => {
                let found = format!("it goes on from another state than this; {REPAIR}");
                return Err(refuse(path, "journal", found));
            }
        };
        let (mut open, mut replayed) = (UnderWay::default(), Replayed::default());
        let mut last = scan.batches.len() as u64;
        for (number, batch) in (1..).zip(&scan.batches) {
            if number > skipped.max(scan.synced) && !self.has_rows(batch.records)? {
                // The machine lost power: the file system had this batch, and not all rows that it names.
                last = number - 1;
                break;
            }
            let done = if number <= skipped {
                follow_all(batch.records, &mut open)
            } else {
                replayed.batches += 1;
                self.apply_all(batch.records, &mut open, &mut replayed.beside)
            };
            if let Err(refused) = done {
                let nonsense =
                    || refuse(path, "journal", format!("batch {number} makes no sense; {REPAIR}"));
                return Err(refused.unwrap_or_else(nonsense));
            }
        }
        self.lineage.position = scan.position(last);
        self.lineage.replayed = Some(path.into());
        // If the journal is fully in the state, nothing is in progress any more: operations were ended or
        // torn before the state was written, and their blocks may have been reused since.
        if skipped < last {
            self.end_open(&open, held_up);
        }
        Ok(replayed)
    }

    /// True if the file of pages has all rows that a batch names.
    fn has_rows(&self, batch: &[u8]) -> Result<bool, Error> {
        let (mut all, mut failed) = (true, Ok(()));
        // A malformed record is found when the batch is applied.
        let _ = each(batch, |record| {
            let ([_, page, area, _], Some(sum)) = (record.words, record.bytes.first_chunk()) else {
                return Ok(());
            };
            if record.kind == Kind::Filed {
                let Some(pages) = &self.pages else { return Err(None) };
                match pages.has(area, page, u64::from_le_bytes(*sum)) {
                    Ok(has) => all &= has,
                    Err(error) => failed = Err(error),
                }
            }
            Ok(())
        });
        failed.map(|()| all)
    }

    /// Ends the operations that were in progress when the process ended.
    fn end_open(&mut self, open: &UnderWay, held_up: bool) {
        if !held_up {
            open.0.iter().for_each(|(block, open)| self.tear_open(*block, *open));
        } else {
            let erases = open.0.iter().filter(|(_, open)| *open == Open::Erase);
            // No result of this erase was ever reported.
            erases.for_each(|(block, _)| drop(self.erase(*block)));
        }
    }

    fn apply_all(
        &mut self,
        batch: &[u8],
        open: &mut UnderWay,
        beside: &mut Option<Vec<u8>>,
    ) -> Result<(), Refused> {
        each(batch, |record| {
            if record.kind == Kind::Beside {
                *beside = Some(record.bytes.to_vec());
            }
            let exists = self.check(PageAt { block: record.words[0], page: 0 }).is_ok();
            if !exists && !matches!(record.kind, Kind::Age | Kind::Beside) {
                return Err(None);
            }
            record.follow(open);
            self.apply(&record)
        })
    }

    fn apply(&mut self, record: &Record<'_>) -> Result<(), Refused> {
        let [block, second, third, fourth] = record.words;
        let at = PageAt { block, page: second };
        let done = match record.kind {
            Kind::Program => {
                let (data, spare) = record.bytes.split_at_checked(self.tables.data).ok_or(None)?;
                self.program(at, Data::Kept(data), spare)
            }
            Kind::Filed => {
                let sum = record.bytes.first_chunk().ok_or(None)?;
                self.program_filed(at, third, u64::from_le_bytes(*sum))
            }
            Kind::Whole => self.keep_whole(at, third, record.bytes),
            Kind::Erase => self.erase(block),
            Kind::TearProgram => self.tear_program(at, third),
            Kind::Undo => self.undo_program(at),
            Kind::TearErase => self.tear_erase(block, second),
            Kind::Harm => self.spoil(at, u64::from(fourth) << 32 | u64::from(third)),
            Kind::Broken => self.break_block(block),
            Kind::BeginErase | Kind::End | Kind::Open | Kind::Beside => Ok(()),
            Kind::Bad => {
                self.mark_bad(block);
                Ok(())
            }
            Kind::Wear => {
                self.wear_out(block, second);
                Ok(())
            }
            Kind::Age => {
                self.age_to(block);
                Ok(())
            }
            Kind::Reads => {
                self.blocks[block as usize].reads = second;
                Ok(())
            }
        };
        match done {
            Ok(()) | Err(Error::ProgramFailed { .. } | Error::EraseFailed { .. }) => Ok(()),
            Err(error @ (Error::Io { .. } | Error::State { .. })) => Err(Some(error)),
            Err(_) => Err(None),
        }
    }

    /// Ends the operations that are still in progress by the journal, as the power is off: each was completed
    /// and not reported, or had not begun. Otherwise a replay would tear what a later life has built on them.
    /// On return the result of the power cut is durable, unless the file system fails.
    pub fn power_is_off(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        for (block, _) in std::mem::take(&mut journal.open.0) {
            journal.note(Kind::End, &[block], &[]);
        }
        // On a failure the records are pending, as others are, and the next flush says why.
        let _ = self.sync();
    }

    /// Tears an operation that was in progress when the process ended, at a random point.
    fn tear_open(&mut self, block: u32, open: Open) {
        let place = mix(self.tables.seeds.tears, PageAt { block, page: 0 }, self.cuts);
        let done = Rng::new(!place).below(WHOLE.into()) as u32;
        match open {
            Open::Erase => drop(self.tear_erase(block, done)),
            Open::Programs { from, count } => {
                for page in from..from + count {
                    // It is the last operation on its block.
                    drop(self.tear_program(PageAt { block, page }, done));
                }
            }
        }
    }
}

struct Record<'a> {
    kind: Kind,
    /// As many words as the kind has, zero-padded.
    words: [u32; 4],
    bytes: &'a [u8],
}

impl Record<'_> {
    fn read(record: &[u8]) -> Option<Record<'_>> {
        let (kind, said) = record.split_first()?;
        let kind = *KINDS.iter().find(|known| **known as u8 == *kind)?;
        let count = match kind {
            Kind::Beside => 0,
            Kind::Erase | Kind::Bad | Kind::BeginErase | Kind::End | Kind::Age | Kind::Broken => 1,
            Kind::Program | Kind::Undo | Kind::TearErase | Kind::Reads | Kind::Wear => 2,
            Kind::Whole | Kind::Open | Kind::TearProgram | Kind::Filed => 3,
            Kind::Harm => 4,
        };
        let (given, bytes) = said.split_at_checked(4 * count)?;
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(given.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        let fits = bytes.is_empty()
            || matches!(kind, Kind::Program | Kind::Filed | Kind::Whole | Kind::Beside);
        fits.then_some(Record { kind, words, bytes })
    }

    /// Updates the operations in progress by this record.
    fn follow(&self, open: &mut UnderWay) {
        let [block, page, count, _] = self.words;
        match self.kind {
            Kind::Whole | Kind::Age | Kind::Beside | Kind::Reads | Kind::Wear | Kind::Harm => {}
            Kind::Broken => {}
            Kind::Program | Kind::Filed => open.program(PageAt { block, page }),
            Kind::BeginErase => open.set(block, Open::Erase),
            Kind::Open => open.set(block, Open::Programs { from: page, count }),
            _ => open.end(block),
        }
    }
}

fn each(
    mut batch: &[u8],
    mut take: impl FnMut(Record<'_>) -> Result<(), Refused>,
) -> Result<(), Refused> {
    while !batch.is_empty() {
        let length = u32::from_le_bytes(*batch.first_chunk().ok_or(None)?) as usize;
        let (record, rest) = batch[4..].split_at_checked(length).ok_or(None)?;
        take(Record::read(record).ok_or(None)?)?;
        batch = rest;
    }
    Ok(())
}

/// Area and row of each record of a row in the file of pages.
pub(in crate::nand) fn filed_rows(batch: &[u8]) -> Vec<(u32, u32)> {
    let mut rows = Vec::new();
    let _ = each(batch, |record| {
        if record.kind == Kind::Filed {
            rows.push((record.words[2], record.words[1]));
        }
        Ok(())
    });
    rows
}

/// Updates the operations in progress by a batch that is already in the state.
fn follow_all(batch: &[u8], open: &mut UnderWay) -> Result<(), Refused> {
    each(batch, |record| {
        record.follow(open);
        Ok(())
    })
}

/// Fails if the journal of this state has records that this flash does not have.
pub(in crate::nand) fn stands_in_the_way(nand: &Nand, state: &Path) -> Result<(), Error> {
    let path: PathBuf = path_of(state);
    if nand.lineage.replayed.as_ref() == Some(&path)
        || nand.journal.as_ref().is_some_and(|journal| journal.path == path)
    {
        return Ok(());
    }
    let failed = |source| Error::Io { path: path.clone(), attempt: "look for a journal", source };
    match nand.files.exists(&path).map_err(failed)? {
        false => Ok(()),
        true => {
            let found = format!("it goes on from a state that was not loaded; {REPAIR}");
            Err(refuse(&path, "journal", found))
        }
    }
}
