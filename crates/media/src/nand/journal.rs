//! A journal beside the state of flash: a process that is killed leaves what a power cut would have left.
//!
//! ```text
//! header   magic, and the header of the state that it goes on from
//! batches  length, checksum, records: what is committed together, all of it or nothing
//!          a record: length, kind, what it says
//! ```
//!
//! Whatever changes the flash is noted as it begins, and that it has ended when it has: one append for each
//! row programmed, and another when it is done. What the kernel has taken of a file outlives the process that
//! gave it. When the journal is long, the state is written anew and a new journal begun, each under another
//! name first. A journal that goes on from another state is left aside: what it says is in the newer one
//! already. The power of the whole machine is another matter: nothing here waits for a disk.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use runtime::Dice;

use super::power::WHOLE;
use super::state::{HEADER_BYTES, checksum, refuse};
use super::{Data, Error, Held, Nand, PageAt, mix};

const MAGIC: [u8; 8] = *b"dbnlog\r\n";

/// Bytes of a batch beside its records: their length and their checksum.
const FRAME_BYTES: usize = 4 + 8;

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// A page was programmed: its row.
    Program = 1,
    /// A unit of one is kept whole: which, its bytes.
    Whole,
    /// A block was erased.
    Erase,
    /// A block is marked bad.
    Bad,
    /// An erase of the block has begun.
    BeginErase,
    /// What had begun on the block has ended.
    End,
    /// Programs have begun before the journal did: from a page on, so many.
    Open,
    /// A power cut has torn a program, taken one back, torn an erase.
    TearProgram,
    Undo,
    TearErase,
}

const KINDS: [Kind; 10] = [
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
];

/// What is under way on a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Programs { from: u32, count: u32 },
    Erase,
}

/// A journal that is being written.
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    state: PathBuf,
    beside: Vec<u8>,
    /// What is not in the file yet.
    pending: Vec<u8>,
    bytes: u64,
    most: u64,
    open: UnderWay,
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

/// The journal of a state.
fn path_of(state: &Path) -> PathBuf {
    let mut name = state.as_os_str().to_owned();
    name.push(".journal");
    PathBuf::from(name)
}

fn failed(path: &Path, attempt: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { path, attempt, source }
}

/// The first bytes of a journal that goes on from this state.
fn header(state: &Path) -> Result<Vec<u8>, Error> {
    let mut header = MAGIC.to_vec();
    header.resize(MAGIC.len() + HEADER_BYTES, 0);
    let mut file = File::open(state).map_err(failed(state, "open the state"))?;
    file.read_exact(&mut header[MAGIC.len()..]).map_err(failed(state, "read the header"))?;
    Ok(header)
}

impl Journal {
    fn begin(state: &Path, beside: &[u8], most: u64, open: UnderWay) -> Result<Journal, Error> {
        let (path, first) = (path_of(state), header(state)?);
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        let mut file = File::create(&new).map_err(failed(&new, "begin the journal"))?;
        file.write_all(&first).map_err(failed(&new, "begin the journal"))?;
        let (state, beside) = (state.to_owned(), beside.to_owned());
        let mut journal = Journal {
            file,
            path,
            state,
            beside,
            pending: Vec::new(),
            bytes: 0,
            most,
            open: open.clone(),
        };
        for (block, open) in open.0 {
            match open {
                Open::Erase => journal.note(Kind::BeginErase, &[block], &[]),
                Open::Programs { from, count } => {
                    journal.note(Kind::Open, &[block, from, count], &[]);
                }
            }
        }
        journal.write()?;
        fs::rename(&new, &journal.path).map_err(failed(&journal.path, "replace the journal"))?;
        Ok(journal)
    }

    fn note(&mut self, kind: Kind, words: &[u32], bytes: &[u8]) {
        if self.pending.is_empty() {
            self.pending.extend([0; FRAME_BYTES]);
        }
        let length = (1 + 4 * words.len() + bytes.len()) as u32;
        self.pending.extend(length.to_le_bytes());
        self.pending.push(kind as u8);
        self.pending.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.pending.extend(bytes);
    }

    fn write(&mut self) -> Result<(), Error> {
        if !self.pending.is_empty() {
            let (frame, records) = self.pending.split_at_mut(FRAME_BYTES);
            frame[..4].copy_from_slice(&(records.len() as u32).to_le_bytes());
            frame[4..].copy_from_slice(&checksum(records).to_le_bytes());
            let written = self.file.write_all(&self.pending);
            written.map_err(failed(&self.path, "write the journal"))?;
            self.bytes += self.pending.len() as u64;
            self.pending.clear();
        }
        Ok(())
    }
}

/// What is noted as it happens.
impl Nand {
    #[inline]
    pub(super) fn note_program(&mut self, at: PageAt) {
        if let Some(journal) = &mut self.journal
            && let Held::Rows(rows) = &self.blocks[at.block as usize].held
        {
            journal.open.program(at);
            journal.note(Kind::Program, &[at.block, at.page], rows.row(at.page as usize));
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
}

impl Nand {
    /// Writes all of it into a file, as [`save`](Nand::save) does, and keeps a journal beside it from now on,
    /// which goes into the state whenever it is longer than `most` bytes.
    ///
    /// # Errors
    /// As [`save`](Nand::save).
    pub fn keep_journal(&mut self, state: &Path, beside: &[u8], most: u64) -> Result<(), Error> {
        self.journal = None;
        self.save(state, beside)?;
        let journal = Journal::begin(state, beside, most, UnderWay::default())?;
        self.journal = Some(Box::new(journal));
        Ok(())
    }

    /// Whether it keeps a journal.
    pub fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// For the journal: an erase of this block is about to begin.
    pub fn erase_begins(&mut self, block: u32) {
        if let Some(journal) = &mut self.journal {
            journal.open.set(block, Open::Erase);
            journal.note(Kind::BeginErase, &[block], &[]);
        }
    }

    /// For the journal: the programs of this block that had begun have ended.
    pub fn programs_ended(&mut self, block: u32) {
        if self.journal.is_some() {
            self.note_on(Kind::End, block, &[]);
        }
    }

    /// Puts into the journal what has been noted: it outlives this process from now on.
    ///
    /// # Errors
    /// [`Error::Io`]: it may be missing there, or part of it, as if it had been torn.
    pub fn commit(&mut self) -> Result<(), Error> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        journal.write()?;
        if journal.bytes <= journal.most {
            return Ok(());
        }
        let old = self.journal.take().expect("looked at above");
        self.save(&old.state, &old.beside)?;
        let new = Journal::begin(&old.state, &old.beside, old.most, old.open)?;
        self.journal = Some(Box::new(new));
        Ok(())
    }

    /// Goes on from this state, which was just loaded, as its journal says, if there is one. What was under
    /// way at its end is torn by chance, or brought to its end where capacitors hold the chips up. How many
    /// batches there were.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::State`]: the journal is damaged.
    pub fn replay(&mut self, state: &Path, held_up: bool) -> Result<u64, Error> {
        let path = path_of(state);
        if !path.exists() {
            return Ok(0);
        }
        let bytes = fs::read(&path).map_err(failed(&path, "read the journal"))?;
        let Some(mut rest) = bytes.strip_prefix(&header(state)?[..]) else { return Ok(0) };
        let (mut open, mut count) = (UnderWay::default(), 0);
        while let Some(batch) = next_batch(&mut rest) {
            let good = batch.and_then(|batch| self.apply_all(batch, &mut open));
            if good.is_none() {
                let found = format!("batch {count} makes no sense");
                return Err(refuse(&path, "journal", found));
            }
            count += 1;
        }
        if !held_up {
            open.0.iter().for_each(|(block, open)| self.tear_open(*block, *open));
        } else {
            let erases = open.0.iter().filter(|(_, open)| *open == Open::Erase);
            // Whether it failed nobody has been told.
            erases.for_each(|(block, _)| drop(self.erase(*block)));
        }
        Ok(count)
    }

    fn apply_all(&mut self, mut batch: &[u8], open: &mut UnderWay) -> Option<()> {
        while !batch.is_empty() {
            let length = u32::from_le_bytes(*batch.first_chunk()?) as usize;
            let (record, rest) = batch[4..].split_at_checked(length)?;
            self.apply(record, open)?;
            batch = rest;
        }
        Some(())
    }

    fn apply(&mut self, record: &[u8], open: &mut UnderWay) -> Option<()> {
        let (kind, said) = record.split_first()?;
        let kind = *KINDS.iter().find(|known| **known as u8 == *kind)?;
        let words = match kind {
            Kind::Erase | Kind::Bad | Kind::BeginErase | Kind::End => 1,
            Kind::Program | Kind::Undo | Kind::TearErase => 2,
            Kind::Whole | Kind::Open | Kind::TearProgram => 3,
        };
        let (words, bytes) = said.split_at_checked(4 * words)?;
        let mut words = words.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let mut word = || words.next().expect("as many as the kind has");
        let block = word();
        let exists = self.check(PageAt { block, page: 0 }).is_ok();
        let fits = bytes.is_empty() || matches!(kind, Kind::Program | Kind::Whole);
        if !exists || !fits {
            return None;
        }
        if kind != Kind::Whole && kind != Kind::Program {
            open.end(block);
        }
        match kind {
            Kind::Program => {
                let at = PageAt { block, page: word() };
                let (data, spare) = bytes.split_at_checked(self.tables.data)?;
                open.program(at);
                match self.program(at, Data::Kept(data), spare) {
                    Ok(()) | Err(Error::ProgramFailed { .. }) => {}
                    Err(_) => return None,
                }
            }
            Kind::Whole => self.keep_whole(PageAt { block, page: word() }, word(), bytes).ok()?,
            Kind::Erase => match self.erase(block) {
                Ok(()) | Err(Error::EraseFailed { .. }) => {}
                Err(_) => return None,
            },
            Kind::Bad => self.mark_bad(block),
            Kind::BeginErase => open.set(block, Open::Erase),
            Kind::End => {}
            Kind::Open => open.set(block, Open::Programs { from: word(), count: word() }),
            Kind::TearProgram => {
                self.tear_program(PageAt { block, page: word() }, word()).ok()?;
            }
            Kind::Undo => self.undo_program(PageAt { block, page: word() }).ok()?,
            Kind::TearErase => self.tear_erase(block, word()).ok()?,
        }
        Some(())
    }

    /// The process ended while this was under way, nobody knows when.
    fn tear_open(&mut self, block: u32, open: Open) {
        let place = mix(self.tables.seeds.tears, PageAt { block, page: 0 }, self.cuts);
        let done = Dice::new(!place).below(WHOLE.into()) as u32;
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

/// The next whole batch: none inside if it is damaged. One that was cut short is the end.
fn next_batch<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let (frame, behind) = rest.split_first_chunk::<FRAME_BYTES>()?;
    let length = u32::from_le_bytes(*frame.first_chunk()?) as usize;
    let (records, behind) = behind.split_at_checked(length)?;
    *rest = behind;
    Some((checksum(records).to_le_bytes() == frame[4..]).then_some(records))
}
