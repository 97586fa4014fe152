//! Journal of a flash state: after a process is killed, the files hold what a power cut would have left.
//!
//! Each change of the flash is recorded at its start and at its end: one append per programmed row, and
//! another on completion. Data that the kernel has accepted survive the end of the process; data for which
//! [`Nand::sync`] has returned also survive a power loss of the machine. The byte format is in `frame`.
//!
//! A long journal is folded into the state: the state is rewritten and a new journal begun, each under
//! another name first. A state records its position in its journal, so that any of the old and new files
//! match, wherever folding was interrupted. On any failure the old journal continues: no record is dropped
//! before the file system has it.
//!
//! The journal is an ordinary file, appended to, not mapped: the kernel keeps appended data when the process
//! ends. A batch is all of a row or nothing. An operation without a record of its end is torn at replay.

pub(super) mod frame;
pub(super) mod replay;

use std::path::{Path, PathBuf};

use super::file::{beside_name, own_name};
use super::lineage::Lineage;
use super::{Error, Held, Nand, PageAt, pages};
use crate::files::{Files, Opened};
use frame::{FRAME_BYTES, Position};
pub use replay::Replayed;

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// A page was programmed: its row.
    Program = 1,
    /// A unit is stored in full: its number, its bytes.
    Whole,
    /// A block was erased.
    Erase,
    /// A block was marked bad.
    Bad,
    /// An erase of the block has begun.
    BeginErase,
    /// The operations in progress on the block have ended.
    End,
    /// Programs in progress when the journal was begun: first page, and number of pages.
    Open,
    /// A power cut has torn a program, undone one, or torn an erase.
    TearProgram,
    Undo,
    TearErase,
    /// Age of the flash in seconds.
    Age,
    /// Read count of a block.
    Reads,
    /// Additional wear of a block, in erases.
    Wear,
    /// Additional bit errors in 10^12 in a page: low half, high half.
    Harm,
    /// Programs and erases of a block fail from now on.
    Broken,
    /// Bytes that the owner stores with the flash.
    Beside,
    /// A page was programmed, and its row is in the file of pages: its area, and its checksum.
    Filed,
}

const KINDS: [Kind; 17] = [
    Kind::Program,
    Kind::Whole,
    Kind::Erase,
    Kind::Bad,
    Kind::BeginErase,
    Kind::End,
    Kind::Open,
    Kind::TearProgram,
    Kind::Undo,
    Kind::TearErase,
    Kind::Age,
    Kind::Reads,
    Kind::Wear,
    Kind::Harm,
    Kind::Broken,
    Kind::Beside,
    Kind::Filed,
];

/// Operation in progress on a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Programs { from: u32, count: u32 },
    Erase,
}

pub(super) struct Journal {
    file: Opened,
    path: PathBuf,
    state: PathBuf,
    beside: Vec<u8>,
    /// Data not yet in the file: frames, and behind `sealed` the open batch.
    pending: Vec<u8>,
    sealed: usize,
    /// File offset of the next frame: all before it is complete.
    end: u64,
    /// Position behind the last frame, written or not.
    position: Position,
    /// Distinguishes frames of this journal from any other bytes.
    seed: u64,
    /// Last batch known to be synced.
    synced: u64,
    /// The journal is folded when it is longer than `fold_at`, and `most` bytes later if that fails.
    most: u64,
    fold_at: u64,
    open: UnderWay,
    age_s: u32,
    /// Recorded read count of each block.
    reads: Vec<u32>,
    trouble: Trouble,
}

/// Failure state of a journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Nothing,
    /// The file does not accept the pending data.
    Stuck,
    /// A sync has failed. The contents on disk are now unknown, and no later sync can tell ("Can Applications
    /// Recover from fsync Failures?", Rebello et al., USENIX ATC 2020).
    Distrusted,
}

#[derive(Clone, Default)]
struct UnderWay(Vec<(u32, Open)>);

impl UnderWay {
    fn end(&mut self, block: u32) {
        self.0.retain(|(other, _)| *other != block);
    }

    fn program(&mut self, at: PageAt) {
        for (block, open) in &mut self.0 {
            if *block == at.block
                && let Open::Programs { from, count } = open
                && *from + *count == at.page
            {
                *count += 1;
                return;
            }
        }
        self.set(at.block, Open::Programs { from: at.page, count: 1 });
    }

    fn set(&mut self, block: u32, open: Open) {
        self.end(block);
        self.0.push((block, open));
    }
}

/// Path of a state's journal.
pub(super) fn path_of(state: &Path) -> PathBuf {
    beside_name(state, ".journal")
}

fn failed(path: &Path, attempt: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { path, attempt, source }
}

/// State that a new journal continues.
struct From<'a> {
    state: &'a Path,
    lineage: &'a Lineage,
    beside: &'a [u8],
    age_s: u32,
    reads: Vec<u32>,
    open: UnderWay,
}

impl Journal {
    /// Begins a journal, which replaces any older one once it is on disk.
    fn begin(files: &Files, from: From<'_>, most: u64) -> Result<Journal, Error> {
        let path = path_of(from.state);
        let new = beside_name(&path, ".new");
        let begun = Journal::begin_as(files, from, most, &path, &new);
        if begun.is_err() {
            // Clean up; the first error is the one to report.
            let _ = files.remove(&new);
        }
        begun
    }

    fn begin_as(
        files: &Files,
        from: From<'_>,
        most: u64,
        path: &Path,
        new: &Path,
    ) -> Result<Journal, Error> {
        let header = frame::header(from.lineage.id, from.lineage.generation, frame::boot());
        let first = frame::first(&header);
        let file = files.create(new).map_err(failed(new, "begin the journal"))?;
        file.write_all_at(&header, 0).map_err(failed(new, "begin the journal"))?;
        let mut journal = Journal {
            file,
            path: path.into(),
            state: from.state.into(),
            beside: from.beside.into(),
            pending: Vec::new(),
            sealed: 0,
            end: header.len() as u64,
            position: first,
            seed: first.head,
            synced: 0,
            most,
            fold_at: most,
            open: from.open.clone(),
            age_s: from.age_s,
            reads: from.reads,
            trouble: Trouble::Nothing,
        };
        for (block, open) in from.open.0 {
            match open {
                Open::Erase => journal.note(Kind::BeginErase, &[block], &[]),
                Open::Programs { from, count } => {
                    journal.note(Kind::Open, &[block, from, count], &[]);
                }
            }
        }
        journal.write()?;
        journal.file.sync().map_err(failed(new, "flush the journal"))?;
        files.rename(new, path).map_err(failed(path, "replace the journal"))?;
        journal.file.renamed(path);
        journal.synced = journal.position.sequence;
        if files.sync_folder_of(path).is_err() {
            // After a power cut the older journal may be present, without the records to come.
            journal.trouble = Trouble::Distrusted;
        }
        Ok(journal)
    }

    fn note(&mut self, kind: Kind, words: &[u32], bytes: &[u8]) {
        if self.pending.len() == self.sealed {
            self.pending.extend([0; FRAME_BYTES]);
        }
        let length = (1 + 4 * words.len() + bytes.len()) as u32;
        self.pending.extend(length.to_le_bytes());
        self.pending.push(kind as u8);
        self.pending.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.pending.extend(bytes);
    }

    /// Completes the open batch as a frame, which is not changed afterwards.
    fn seal(&mut self) {
        if self.pending.len() > self.sealed {
            let open = &mut self.pending[self.sealed..];
            self.position = frame::seal(open, self.seed, self.position, self.synced);
            self.sealed = self.pending.len();
        }
    }

    /// Writes pending data to the file. On failure they stay pending, and the next attempt uses the same
    /// offset: nothing is ever written behind an incomplete frame.
    fn write(&mut self) -> Result<(), Error> {
        self.seal();
        if self.pending.is_empty() {
            return Ok(());
        }
        if let Err(source) = self.file.write_all_at(&self.pending, self.end) {
            // Try to release the space; the frames are pending either way.
            let _ = self.file.set_length(self.end);
            if self.trouble == Trouble::Nothing {
                self.trouble = Trouble::Stuck;
            }
            return Err(failed(&self.path, "write the journal")(source));
        }
        self.end += self.pending.len() as u64;
        self.pending.clear();
        self.sealed = 0;
        if self.trouble == Trouble::Stuck {
            self.trouble = Trouble::Nothing;
        }
        Ok(())
    }

    /// Syncs the file, and appends a frame that records it. False if that frame is not in the file.
    fn sync(&mut self) -> Result<bool, Error> {
        self.write()?;
        if self.synced == self.position.sequence {
            return Ok(true);
        }
        if let Err(source) = self.file.sync() {
            self.trouble = Trouble::Distrusted;
            return Err(failed(&self.path, "flush the journal")(source));
        }
        self.synced = self.position.sequence;
        self.pending.extend([0; FRAME_BYTES]);
        self.seal();
        // It need not be synced itself: it only confirms that all before it is.
        self.synced = self.position.sequence;
        let confirmed = self.write().is_ok();
        if !confirmed {
            // The confirmation is optional.
            self.trouble = Trouble::Nothing;
        }
        Ok(confirmed)
    }
}

// Records of events.
impl Nand {
    #[inline]
    pub(super) fn note_program(&mut self, at: PageAt) {
        if let Some(journal) = &mut self.journal
            && let held @ (Held::Rows(_) | Held::Filed(_)) = &self.held[at.block]
        {
            if journal.age_s != self.age_s {
                journal.age_s = self.age_s;
                journal.note(Kind::Age, &[self.age_s], &[]);
            }
            journal.open.program(at);
            if let Held::Rows(rows) = held {
                journal.note(Kind::Program, &[at.block, at.page], rows.row(at.page as usize));
            }
            if let (Held::Filed(area), Some(pages)) = (held, &self.pages) {
                let sum = pages.sums(*area)[at.page as usize];
                journal.note(Kind::Filed, &[at.block, at.page, *area], &sum.to_le_bytes());
            }
        }
    }

    pub(super) fn note_whole(&mut self, at: PageAt, unit: u32) {
        if let (Some(journal), Some(bytes)) = (&mut self.journal, self.whole.get(&(at, unit))) {
            journal.note(Kind::Whole, &[at.block, at.page, unit], bytes);
        }
    }

    fn note_on(&mut self, kind: Kind, block: u32, more: &[u32]) {
        if let Some(journal) = &mut self.journal {
            journal.open.end(block);
            let mut words = [block, 0, 0];
            words[1..=more.len()].copy_from_slice(more);
            journal.note(kind, &words[..=more.len()], &[]);
        }
    }

    pub(super) fn note_erase(&mut self, block: u32) {
        self.note_on(Kind::Erase, block, &[]);
    }

    pub(super) fn note_bad(&mut self, block: u32) {
        self.note_on(Kind::Bad, block, &[]);
    }

    pub(super) fn note_torn_program(&mut self, at: PageAt, done: u32) {
        self.note_on(Kind::TearProgram, at.block, &[at.page, done]);
    }

    pub(super) fn note_undone(&mut self, at: PageAt) {
        self.note_on(Kind::Undo, at.block, &[at.page]);
    }

    pub(super) fn note_torn_erase(&mut self, block: u32, done: u32) {
        self.note_on(Kind::TearErase, block, &[done]);
    }

    /// Records a change that does not affect operations in progress.
    fn note_beside_work(&mut self, kind: Kind, words: &[u32]) {
        if let Some(journal) = &mut self.journal {
            journal.note(kind, words, &[]);
        }
    }

    pub(super) fn note_wear(&mut self, block: u32, erases: u32) {
        self.note_beside_work(Kind::Wear, &[block, erases]);
    }

    pub(super) fn note_harm(&mut self, at: PageAt, rate: u64) {
        let words = [at.block, at.page, rate as u32, (rate >> 32) as u32];
        self.note_beside_work(Kind::Harm, &words);
    }

    pub(super) fn note_broken(&mut self, block: u32) {
        self.note_beside_work(Kind::Broken, &[block]);
    }

    /// Bulk change: only a new state can hold it.
    pub(super) fn note_laid(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.trouble = Trouble::Distrusted;
        }
    }
}

impl Nand {
    /// Starts a journal for the state in this file. It is folded into the state whenever it is longer than
    /// `most` bytes. The first call writes everything into the file, as [`save`](Nand::save) does; later
    /// calls write changes only. On return all records are on disk.
    ///
    /// # Errors
    /// As [`save`](Nand::save), and as [`sync`](Nand::sync).
    pub fn keep_journal(&mut self, state: &Path, beside: &[u8], most: u64) -> Result<(), Error> {
        let state = own_name(state)?;
        if self.journal.as_ref().is_none_or(|journal| journal.state != state) {
            replay::stands_in_the_way(self, &state)?;
            self.write_state(&state, beside)?;
            return self.begin_journal(&state, beside, most, UnderWay::default());
        }
        self.keep_beside(beside);
        self.settle();
        self.sync()
    }

    fn begin_journal(
        &mut self,
        state: &Path,
        beside: &[u8],
        most: u64,
        open: UnderWay,
    ) -> Result<(), Error> {
        let reads = self.blocks.iter().map(|block| block.reads).collect();
        let (lineage, age_s) = (&self.lineage, self.age_s);
        let from = From { state, lineage, beside, age_s, reads, open };
        let journal = Journal::begin(&self.files, from, most)?;
        self.lineage.replayed = Some(journal.path.clone());
        self.lineage.aside = false;
        self.lineage.position = journal.position;
        self.journal = Some(Box::new(journal));
        Ok(())
    }

    /// Returns true if it has a journal.
    pub fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// Returns true if the file system does not accept the records. They stay pending.
    #[inline]
    pub fn is_stuck(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.trouble != Trouble::Nothing)
    }

    /// Returns true if a sync has failed, so that only a new state helps.
    pub fn is_distrusted(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.trouble == Trouble::Distrusted)
    }

    /// Records bytes that the owner stores with the flash.
    pub fn keep_beside(&mut self, beside: &[u8]) {
        if let Some(journal) = &mut self.journal
            && journal.beside != beside
        {
            journal.beside = beside.into();
            journal.note(Kind::Beside, &[], beside);
        }
    }

    /// Records that an erase of this block is about to begin.
    pub fn erase_begins(&mut self, block: u32) {
        if let Some(journal) = &mut self.journal {
            journal.open.set(block, Open::Erase);
            journal.note(Kind::BeginErase, &[block], &[]);
        }
    }

    /// Records that the programs in progress on this block have ended.
    pub fn programs_ended(&mut self, block: u32) {
        if self.journal.is_some() {
            self.note_on(Kind::End, block, &[]);
        }
    }

    /// Records changes that are batched for efficiency: age, and read counts of blocks.
    fn settle(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        if journal.age_s != self.age_s {
            journal.age_s = self.age_s;
            journal.note(Kind::Age, &[self.age_s], &[]);
        }
        for (number, block) in (0..).zip(&self.blocks) {
            if journal.reads[number as usize] != block.reads {
                journal.reads[number as usize] = block.reads;
                journal.note(Kind::Reads, &[number, block.reads], &[]);
            }
        }
    }

    /// Writes pending records to the journal: they survive the end of this process from now on.
    ///
    /// # Errors
    /// [`Error::Io`]: they stay pending, and are written by the next [`commit`](Nand::commit) or
    /// [`sync`](Nand::sync) that succeeds.
    pub fn commit(&mut self) -> Result<(), Error> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        // Rows come before the records that name them.
        if let Some(pages) = self.pages.as_ref().filter(|pages| pages.writable)
            && let Err(error) = pages.write_back()
        {
            if journal.trouble == Trouble::Nothing {
                journal.trouble = Trouble::Stuck;
            }
            return Err(error);
        }
        journal.write()?;
        if journal.end <= journal.fold_at {
            return Ok(());
        }
        if self.fold().is_err()
            && let Some(journal) = &mut self.journal
        {
            // The current journal, usually the old one, has every record.
            journal.fold_at = journal.end.saturating_add(journal.most);
        }
        Ok(())
    }

    /// Writes pending records to the journal, and returns when they survive a power cut of the machine.
    /// Without new records it does nothing, so that several waiters share one sync.
    ///
    /// # Errors
    /// [`Error::Io`]: records since the last success may be lost in a power cut or at the end of this
    /// process. They stay pending: the next call may succeed.
    pub fn sync(&mut self) -> Result<(), Error> {
        if self.is_distrusted() {
            return self.fold();
        }
        self.commit()?;
        let synced = self.sync_pages();
        let Some(journal) = &mut self.journal else { return synced };
        synced.inspect_err(|_| journal.trouble = Trouble::Distrusted)?;
        let confirmed = match journal.sync() {
            Err(error) if journal.trouble == Trouble::Distrusted => {
                return self.fold().map_err(|_| error);
            }
            done => done?,
        };
        // A start takes records without their rows for the journal's end, unless a frame confirms their
        // sync. So areas are not used again before that frame is durable too.
        if let Some(pages) = self.pages.as_mut().filter(|pages| pages.frees_areas() && confirmed) {
            match journal.file.sync() {
                Ok(()) => pages.is_durable(),
                Err(_) => journal.trouble = Trouble::Distrusted,
            }
        }
        Ok(())
    }

    /// Syncs the file of pages, if there is one.
    pub(super) fn sync_pages(&mut self) -> Result<(), Error> {
        self.pages.as_deref_mut().map_or(Ok(()), pages::Pages::sync)
    }

    /// Writes a new state with all records, and begins a new journal. On failure the old one continues.
    fn fold(&mut self) -> Result<(), Error> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        journal.seal();
        self.lineage.position = journal.position;
        let (state, beside) = (journal.state.clone(), journal.beside.clone());
        let (most, open) = (journal.most, journal.open.clone());
        self.write_state(&state, &beside)?;
        self.begin_journal(&state, &beside, most, open)?;
        match self.is_distrusted() {
            false => Ok(()),
            true => {
                let again = self.files.sync_folder_of(&state);
                again.map_err(failed(&state, "flush its folder"))?;
                if let Some(journal) = &mut self.journal {
                    journal.trouble = Trouble::Nothing;
                }
                Ok(())
            }
        }
    }

    /// Seals the pending records, which become part of the state, and updates the state's position in its
    /// journal.
    pub(super) fn seal_journal(&mut self, state: &Path) {
        if let Some(journal) = &mut self.journal
            && journal.state == state
        {
            journal.seal();
            self.lineage.position = journal.position;
        }
    }

    /// Removes the journal of this state, which already contains all its records. A journal of another state
    /// is renamed with the suffix `.aside` instead.
    pub(super) fn remove_journal(&mut self, state: &Path) -> Result<(), Error> {
        let path = path_of(state);
        if self.journal.as_ref().is_some_and(|journal| journal.path == path) {
            self.journal = None;
        }
        let exists = self.files.exists(&path).map_err(failed(&path, "look for a journal"))?;
        if !exists {
            return Ok(());
        }
        let removed = match self.lineage.aside {
            false => self.files.remove(&path),
            true => self.files.rename(&path, &beside_name(&path, ".aside")),
        };
        removed.and_then(|()| self.files.sync_folder_of(&path)).map_err(failed(&path, "remove it"))
    }
}
