//! Rows of programmed pages in a file beside the state, so that flash may be larger than memory.
//!
//! ```text
//!   STATE           specification, blocks, and of each block in areas: its area, a checksum of each row
//!   STATE.journal   of each program since: block, page, area, checksum of the row
//!   STATE.pages     area 0 │ area 1 │ …        sparse; an area has the rows of one block
//! ```
//!
//! Rows go through [`Paged`], whose memory is bounded. A record of the journal follows its row into the file
//! system: [`Nand::commit`](super::Nand::commit) writes rows first, [`Nand::sync`](super::Nand::sync) syncs
//! them first. So a killed process leaves every row that the journal names, and after a power loss of the
//! machine every row of a synced record is there. Unsynced records whose rows are not are the journal's end.
//!
//! *Areas are not written in place.* A block that is erased gives up its area, which is not used again before
//! the erase is durable: until then a start may find the block as it was. Pages that were moved elsewhere
//! before an erase are durable no later than the erase, since the journal is in order.
//!
//! After a failed sync the kernel may have dropped rows that are no longer in memory, so that no later flush
//! can be trusted: every one fails until the state is opened again.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::file::{beside_name, checksum, refuse};
use super::{Error, Nand};
use crate::files::paged::{FRAME_BYTES, Failure, OnFull, Paged, SECTOR_BYTES};
use crate::files::{Files, Opened};

/// Memory for rows of a copy that only reads.
const READER_BYTES: u64 = 4 << 20;

pub(super) struct Pages {
    file: Arc<Opened>,
    path: PathBuf,
    /// The owner of the state, which may write; others keep new rows in memory.
    pub writable: bool,
    layout: Layout,
    /// Areas that the file had when it was opened, the last one perhaps in part.
    areas_there: u32,
    /// Never waited for: a state has one user at a time, and copies of it are read-only.
    inner: Mutex<Inner>,
    /// Checksums of the rows, by area. As many as it has rows.
    sums: Vec<Vec<u64>>,
    free: Vec<u32>,
    /// Given up, and possibly still part of a durable state.
    given_up: Vec<u32>,
    /// By area: the durable state may have it. Shorter than `sums`: the rest are newer.
    in_state: Vec<bool>,
    /// A row was taken back that a durable journal may have: the next one may not take its place before a
    /// sync.
    taken_back: bool,
    unsynced: bool,
    sync_failed: Option<(ErrorKind, Option<i32>)>,
}

#[derive(Clone, Copy)]
struct Layout {
    width: usize,
    stride: u64,
    area: u64,
}

struct Inner {
    paged: Paged,
    row: Vec<u8>,
    /// Why the last row that was not there could not be read.
    error: Option<String>,
}

/// Path of a state's pages.
pub(super) fn path_of(state: &Path) -> PathBuf {
    beside_name(state, ".pages")
}

fn io(path: &Path, attempt: &'static str) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { path, attempt, source }
}

impl Nand {
    /// Byte of a row in the file of pages, and its length.
    pub(super) fn place_of_row(&self, area: u32, row: u32) -> (u64, usize) {
        let (width, rows) = (self.tables.width, self.spec.geometry.pages());
        let layout = Layout::new(width, rows);
        (u64::from(area) * layout.area + u64::from(row) * layout.stride, width)
    }
}

impl Layout {
    /// That of rows of `width` bytes, `rows` to an area.
    fn new(width: usize, rows: u32) -> Layout {
        let stride = width.next_multiple_of(SECTOR_BYTES) as u64;
        let area = (stride * u64::from(rows)).next_multiple_of(FRAME_BYTES as u64);
        Layout { width, stride, area }
    }
}

impl Pages {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the pages of a state: rows of `width` bytes, `rows` to a block.
    pub fn open(files: &Files, state: &Path, width: usize, rows: u32) -> Result<Pages, Error> {
        let path = path_of(state);
        let file = files.open(&path).map_err(io(&path, "open the pages"))?;
        let bytes = file.length().map_err(io(&path, "ask for the length of the pages"))?;
        let mut pages = Pages::over(Arc::new(file), path, width, rows);
        pages.areas_there = u32::try_from(bytes.div_ceil(pages.layout.area)).unwrap_or(u32::MAX);
        Ok(pages)
    }

    /// Begins the pages of a new state.
    pub fn create(files: &Files, state: &Path, width: usize, rows: u32) -> Result<Pages, Error> {
        let path = path_of(state);
        let file = files.create(&path).map_err(io(&path, "begin the pages"))?;
        files.sync_folder_of(&path).map_err(io(&path, "flush the folder of the pages"))?;
        Ok(Pages::over(Arc::new(file), path, width, rows))
    }

    fn over(file: Arc<Opened>, path: PathBuf, width: usize, rows: u32) -> Pages {
        let layout = Layout::new(width, rows);
        let paged = Paged::new(READER_BYTES, OnFull::Exceed);
        Pages {
            file,
            path,
            writable: false,
            layout,
            areas_there: 0,
            inner: Mutex::new(Inner { paged, row: vec![0; layout.stride as usize], error: None }),
            sums: Vec::new(),
            free: Vec::new(),
            given_up: Vec::new(),
            in_state: Vec::new(),
            taken_back: false,
            unsynced: false,
            sync_failed: None,
        }
    }

    /// Makes them writable, with a bound on the memory for rows in bytes.
    pub fn own(&mut self, files: &Files, resident_bytes: u64) -> Result<(), Error> {
        let file = files.open_or_create(&self.path).map_err(io(&self.path, "open the pages"))?;
        let bytes = file.length().map_err(io(&self.path, "ask for the length of the pages"))?;
        let there = bytes.div_ceil(self.layout.area) as usize;
        self.file = Arc::new(file);
        self.sums.resize(self.sums.len().max(there), Vec::new());
        self.in_state = vec![true; self.sums.len()];
        // Areas that a replay gave up are part of the durable state until the next one is.
        (self.free, self.given_up) = (Vec::new(), Vec::new());
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        inner.paged = Paged::new(resident_bytes, OnFull::Exceed);
        self.writable = true;
        Ok(())
    }

    /// A copy that only reads. Rows that are not in the file yet are written first.
    pub fn fork(&self) -> Result<Pages, Error> {
        self.write_back()?;
        let (file, path) = (self.file.clone(), self.path.clone());
        let rows = (self.layout.area / self.layout.stride) as u32;
        let fork = Pages::over(file, path, self.layout.width, rows);
        Ok(Pages { layout: self.layout, sums: self.sums.clone(), ..fork })
    }

    /// Bytes of memory held.
    pub fn allocated_bytes(&self) -> u64 {
        let sums = self.sums.iter().map(|sums| sums.capacity() * 8 + 24).sum::<usize>();
        self.inner().paged.allocated_bytes() + sums as u64
    }

    /// True if areas wait for a sync in a number that is worth one.
    pub fn wants_sync(&self, blocks: usize) -> bool {
        self.free.is_empty() && self.given_up.len() > blocks / 8 + 16
    }

    /// True if the next durable state or journal makes room: areas that were given up, or rows taken back.
    pub fn frees_areas(&self) -> bool {
        self.taken_back || !self.given_up.is_empty()
    }

    pub fn is_taken_back(&self) -> bool {
        self.taken_back
    }

    /// Takes an empty area.
    pub fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.sums.push(Vec::new());
            self.sums.len() as u32 - 1
        })
    }

    /// Gives up an area. Without a journal the durable state alone counts: areas that it lacks are free.
    pub fn give_up(&mut self, area: u32, has_journal: bool) {
        self.sums[area as usize] = Vec::new();
        let in_state = self.in_state.get(area as usize).is_some_and(|is_in| *is_in);
        let list = if has_journal || in_state { &mut self.given_up } else { &mut self.free };
        list.push(area);
    }

    /// Accepts rows of a file that is too short for them, in this number of areas. Their reads fail.
    pub fn accept_missing(&mut self, areas: u32) {
        self.areas_there = self.areas_there.max(areas);
    }

    /// Records rows that are in the file: those of a state, or of a journal. False if the file has no such
    /// area.
    #[must_use]
    pub fn found(&mut self, area: u32, sums: &[u64]) -> bool {
        if area >= self.areas_there {
            return false;
        }
        let area = area as usize;
        self.sums.resize(self.sums.len().max(area + 1), Vec::new());
        self.sums[area].extend(sums);
        true
    }

    /// Takes the last row of an area back.
    pub fn pop(&mut self, area: u32) {
        self.sums[area as usize].pop();
        self.taken_back = true;
    }

    pub fn sums(&self, area: u32) -> &[u64] {
        &self.sums[area as usize]
    }

    fn at(&self, area: u32, row: u32) -> u64 {
        u64::from(area) * self.layout.area + u64::from(row) * self.layout.stride
    }

    /// Appends a row to an area, and returns its checksum.
    pub fn push(&mut self, area: u32, row: &[u8]) -> Result<u64, Error> {
        let number = self.sums[area as usize].len() as u32;
        let (at, stride) = (self.at(area, number), self.layout.stride);
        let mut put = |done: u64, run: &mut [u8]| {
            let rest = &row[row.len().min(done as usize)..];
            let some = rest.len().min(run.len());
            run[..some].copy_from_slice(&rest[..some]);
            run[some..].fill(0);
        };
        self.unsynced = true;
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        let done = inner.paged.write_runs(&*self.file, at, stride, &mut put);
        done.map_err(|failure| self.failed(failure))?;
        let sum = checksum(row);
        self.sums[area as usize].push(sum);
        Ok(sum)
    }

    /// Brings a row into memory. Its checksum is validated when it comes from the file.
    pub fn load(&self, area: u32, row: u32) -> Result<(), Error> {
        self.with(area, row, 0, self.layout.width, |_| ())
    }

    /// Passes bytes of a row from `from` on.
    pub fn with<T>(
        &self,
        area: u32,
        row: u32,
        from: usize,
        bytes: usize,
        f: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Error> {
        let mut inner = self.inner();
        let done = self.with_inner(&mut inner, (area, row), from, bytes, f);
        if let Err(error) = &done {
            inner.error = Some(error.to_string());
        }
        done
    }

    /// Why the last row that could not be read could not.
    pub fn error(&self) -> Option<String> {
        self.inner().error.clone()
    }

    fn with_inner<T>(
        &self,
        inner: &mut Inner,
        (area, row): (u32, u32),
        from: usize,
        bytes: usize,
        f: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Error> {
        let Inner { paged, row: room, .. } = inner;
        let at = self.at(area, row);
        let is_there = paged.is_resident(at + from as u64, bytes as u64);
        let (begin, length) = if is_there { (from, bytes) } else { (0, self.layout.width) };
        let mut put = |done: u64, run: &[u8]| {
            room[begin + done as usize..][..run.len()].copy_from_slice(run);
        };
        let stride = self.layout.stride;
        let length = if is_there { length as u64 } else { stride };
        let done = paged.runs(&*self.file, at + begin as u64, length, &mut put);
        done.map_err(|failure| self.failed(failure))?;
        let expected = self.sums[area as usize].get(row as usize);
        if !is_there && Some(&checksum(&room[..self.layout.width])) != expected {
            // It must not be taken for a validated one.
            paged.forget(at, stride);
            let found = format!("row {row} of area {area} at byte {at} has changed");
            return Err(refuse(&self.path, "pages", found));
        }
        Ok(f(&room[from..from + bytes]))
    }

    /// True if the file has this row.
    pub fn has(&self, area: u32, row: u32, sum: u64) -> Result<bool, Error> {
        let mut bytes = vec![0; self.layout.width];
        match self.file.read_exact_at(&mut bytes, self.at(area, row)) {
            Ok(()) => Ok(checksum(&bytes) == sum),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(io(&self.path, "read the pages")(error)),
        }
    }

    fn failed(&self, failure: Failure) -> Error {
        let attempt = if failure.writes { "write the pages" } else { "read the pages" };
        io(&self.path, attempt)(failure.source)
    }

    /// Writes rows that are in memory alone.
    pub fn write_back(&self) -> Result<(), Error> {
        let done = self.inner().paged.write_back(&*self.file);
        done.map_err(|failure| self.failed(failure))
    }

    /// Returns when all rows survive a power cut.
    pub fn sync(&mut self) -> Result<(), Error> {
        if !self.writable {
            return Ok(());
        }
        if let Some((kind, code)) = self.sync_failed {
            let source = code.map_or_else(|| kind.into(), io::Error::from_raw_os_error);
            return Err(io(&self.path, "flush the pages (an earlier flush failed)")(source));
        }
        self.write_back()?;
        if std::mem::take(&mut self.unsynced)
            && let Err(source) = self.file.sync()
        {
            self.sync_failed = Some((source.kind(), source.raw_os_error()));
            return Err(io(&self.path, "flush the pages")(source));
        }
        Ok(())
    }

    /// Everything so far is durable, with the state or journal: areas that were given up are free.
    pub fn is_durable(&mut self) {
        self.taken_back = false;
        self.free.append(&mut self.given_up);
    }

    /// A new state is durable, which has these areas and no others.
    pub fn has_state(&mut self, used: impl Iterator<Item = u32>) {
        let mut in_state = vec![false; self.sums.len()];
        used.for_each(|area| in_state[area as usize] = true);
        self.is_durable();
        // The lowest areas are taken first, so that the file stays short.
        let areas = (0..in_state.len() as u32).rev();
        self.free = areas.filter(|area| !in_state[*area as usize]).collect();
        self.in_state = in_state;
        self.free.iter().for_each(|area| self.sums[*area as usize] = Vec::new());
    }
}
