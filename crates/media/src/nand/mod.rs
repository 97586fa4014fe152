//! NAND flash without timing: contents, rules, errors.
//!
//! ```text
//! drive > channels > packages > dies > planes > blocks > word lines > pages > units
//!         one set of            one at          erased   share their  programmed
//!         wires                 a time          whole    cells        whole   read and corrected
//! ```
//!
//! Pages are programmed in order, once after an erase; anything else is an error. Cells wear, charge leaks,
//! reads disturb, programs and erases fail, some blocks are bad from the start, and an operation that loses
//! power half-way leaves a torn page or block: see [`Errors`] and [`Nand::tear_program`]. Every random number
//! is drawn from the seed and the place, never from earlier events elsewhere.
//!
//! # Exact
//!
//! - Pages are programmed once, in order, after an erase. `flash::chips::Chips` panics on what a chip would
//!   reject, since the translation layer keeps these rules.
//! - A random event depends on the seed, the place and its erase count, and on nothing else: activity of one
//!   die changes no other's errors, and an immediate second read gives the same result. The number of bit
//!   errors of a codeword is one Poisson draw of which only the mean moves. If too many errors would occur
//!   less than once in 2^64 draws, none is drawn.
//! - At a power cut an operation that had not begun has no effect; one in progress is torn by the share that
//!   was done, suspensions included; one that had ended is there. A page torn at the very end may still be
//!   readable, with many errors.
//!
//! # Simplified
//!
//! - The rate of bit errors is a sum: wear squared; the square root of time, and reads, both scaled by wear;
//!   a factor for the page type. A block is as old as its first page, and its reads count for all its pages
//!   alike. Temperature, layers, data patterns and programs of neighbouring pages have no effect. A further
//!   read attempt recovers a fixed share.
//! - One program operation writes a page, or a whole word line; two passes over a word line are one, as long
//!   as both. A torn page damages the lower pages of its own word line if they were programmed before it, and
//!   nothing else.
//! - All blocks of a kind wear alike; after one failure a block fails for good; a failed program disturbs no
//!   other page.
//! - The mark of a bad block is a bit beside it, and survives everything.
//!
//! Chips, numbers and their sources are in `profile.rs`; an error rate without a source is marked as assumed.
//!
//! # Memory
//!
//! A unit's stored contents are all of it, or eight bytes of each host block; tables and journals of the
//! translation layer are stored whole in either case. 540 GiB of TLC take 0.9 MiB before the first write, and
//! 12.4 bytes per unit of 4 KiB when every page holds stamps and random numbers: 3.0 GB per TB
//! (`tests/it/nand_speed.rs`).
//!
//! Not here: durations ([`Timing`] holds them; the owner of the chips applies them), and the mapping from
//! host blocks to pages.

pub mod check;
mod error;
mod file;
#[cfg(test)]
mod garbled;
mod geometry;
mod held;
mod journal;
mod kept;
mod lineage;
mod load;
mod lock;
mod noise;
mod operate;
mod pages;
mod power;
mod power_loss;
mod profile;
mod rows;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use runtime::Rng;

use crate::contents::{Keep, STAMP_BYTES};
use crate::files::Files;
pub use error::Error;
pub use geometry::{Cell, Cells, Geometry, Order, PageAt};
pub use journal::Replayed;
pub use lock::Lock;
pub use noise::{Errors, Wear, YEAR_S};
pub use power::WHOLE as TORN_OF;
pub use power_loss::power_loss;
pub use profile::{Profile, Suspend, Timing};
use rows::{Packed, Rows};

/// Specification of flash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Layout.
    pub geometry: Geometry,
    /// Amount of each host block that is stored: all, or the first 8 bytes.
    pub keep: Keep,
    /// Bytes of a host block: a power of two from 512 to the unit size.
    pub block_bytes: u32,
    /// Error model.
    pub errors: Errors,
    /// Seed of the RNG.
    pub seed: u64,
}

/// Data of a page to be programmed.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// All bytes. With [`Keep::Stamps`] the first 8 of each block are stored.
    Bytes(&'a [u8]),
    /// The bytes that [`Keep`] stores, concatenated.
    Kept(&'a [u8]),
    /// All zeros.
    Zeros,
}

/// Spare bytes of a zero-filled block, given by a rule, so that a preconditioned drive takes less memory than
/// one that was filled by writes.
pub trait Laid: Send + Sync {
    /// Fills `out` with the first spare bytes of a page, zero-padded.
    fn spare(&self, page: u32, out: &mut [u8]);
    /// Bytes of memory held.
    fn allocated_bytes(&self) -> u64;
}

/// Result of reading some units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    /// Not programmed since the last erase.
    Erased,
    /// Data, after correction of bit errors.
    Good {
        /// Bit errors in the worst codeword.
        errors: u32,
    },
    /// A codeword has more bit errors than can be corrected.
    Uncorrectable,
}

/// Contents of a block.
#[derive(Clone, Default)]
enum Held {
    #[default]
    Nothing,
    Rows(Arc<Rows>),
    Packed(Packed),
    /// Zeros, and spare bytes given by a rule.
    Laid(Arc<dyn Laid>),
    /// In the file that the state was loaded from, not read yet.
    Stored,
    /// In this area of the file of pages.
    Filed(u32),
}

#[derive(Clone, Copy, Default)]
struct Block {
    erases: u32,
    reads: u32,
    /// Age of the flash, in seconds, when its first page was programmed.
    born_s: u32,
    /// Next page to be programmed.
    next: u16,
    flags: u8,
}

/// Bad since the factory, or marked bad.
const BAD: u8 = 1;
/// A program or an erase has failed, and all later ones will.
const FAILED: u8 = 2;
/// An erase was interrupted: the block must be erased before it is programmed.
const HALF_ERASED: u8 = 4;
/// A power cut or a failed program has damaged some of its pages.
const HARMED: u8 = 8;
/// Some of its units are stored in full.
const WHOLE: u8 = 16;

const FLAGS: u8 = BAD | FAILED | HALF_ERASED | HARMED | WHOLE;

/// Units that are stored in full while others are stored as stamps.
type Whole = BTreeMap<(PageAt, u32), Arc<[u8]>>;

/// NAND flash. Its state is a value: it can be saved, loaded and forked.
pub struct Nand {
    spec: Spec,
    tables: Arc<Tables>,
    blocks: Vec<Block>,
    held: held::Contents,
    /// Additional raw bit errors in 10^12, permanent until the erase.
    harm: BTreeMap<PageAt, u64>,
    /// Forks share them until they change: the map of a large drive is a hundred thousand.
    whole: Arc<Whole>,
    /// Memory of erased blocks, for reuse.
    pool: Vec<Arc<Rows>>,
    room: rows::Room,
    /// Scratch memory for the row of a page.
    row: Vec<u8>,
    source: Option<Arc<state::Source>>,
    journal: Option<Box<journal::Journal>>,
    /// The file of pages, if there is one.
    pages: Option<Box<pages::Pages>>,
    lock: Option<Lock>,
    files: Files,
    lineage: lineage::Lineage,
    /// Version of the state file that it was loaded from; 0 if none.
    version: u64,
    age_s: u32,
    cuts: u32,
}

/// Tables derived from the specification.
struct Tables {
    /// By page, in programming order.
    cells: Vec<Cells>,
    /// Page of each type of each word line.
    pages: Vec<u16>,
    /// Bytes per row.
    width: usize,
    /// Data bytes per row.
    data: usize,
    /// Bit error rate up to which every codeword is correctable.
    quiet_rate: u64,
    /// Bit error rate from which on every codeword is uncorrectable.
    hopeless_rate: u64,
    seeds: Seeds,
}

/// One RNG stream per kind of event.
struct Seeds {
    reads: u64,
    programs: u64,
    erases: u64,
    tears: u64,
}

impl Nand {
    /// Creates new flash in factory state.
    ///
    /// # Errors
    /// [`Error::BadSpec`].
    pub fn new(spec: Spec) -> Result<Nand, Error> {
        let tables = Tables::new(&spec)?;
        let mut rng = Rng::for_part(spec.seed, "nand factory");
        let mut bad = || rng.chance(spec.errors.factory_bad.into(), 1_000_000);
        let blocks: Vec<Block> = (0..spec.geometry.all_blocks())
            .map(|_| Block { flags: if bad() { BAD } else { 0 }, ..Block::default() })
            .collect();
        let held = held::Contents::new(blocks.iter().map(|_| Held::Nothing));
        Ok(Nand {
            spec,
            tables: Arc::new(tables),
            blocks,
            held,
            harm: BTreeMap::new(),
            whole: Arc::default(),
            pool: Vec::new(),
            room: rows::Room::default(),
            row: Vec::new(),
            source: None,
            journal: None,
            pages: None,
            lock: None,
            files: Files::default(),
            lineage: lineage::Lineage::default(),
            version: 0,
            age_s: 0,
            cuts: 0,
        })
    }

    /// Copies the state, sharing memory where possible. The copy has no journal, and writes to no file.
    ///
    /// # Panics
    /// If rows that are in memory alone cannot be written to the file of pages, from which the copy reads.
    pub fn fork(&self) -> Nand {
        Nand {
            spec: self.spec.clone(),
            tables: self.tables.clone(),
            blocks: self.blocks.clone(),
            held: self.held.clone(),
            harm: self.harm.clone(),
            whole: self.whole.clone(),
            pool: Vec::new(),
            room: rows::Room::default(),
            row: Vec::new(),
            source: self.source.clone(),
            journal: None,
            pages: self.pages.as_ref().map(|pages| {
                Box::new(pages.fork().unwrap_or_else(|error| panic!("no copy of flash: {error}")))
            }),
            lock: None,
            files: self.files.clone(),
            lineage: self.lineage.clone(),
            version: self.version,
            age_s: self.age_s,
            cuts: self.cuts,
        }
    }

    /// Its specification.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Its layout.
    pub fn geometry(&self) -> &Geometry {
        &self.spec.geometry
    }

    /// Position of a page in its block.
    ///
    /// # Panics
    /// If `page` is out of range.
    #[inline]
    pub fn cells(&self, page: u32) -> Cells {
        self.tables.cells[page as usize]
    }

    /// Returns true if the block was bad at the factory, or was marked bad.
    ///
    /// # Panics
    /// If the block is out of range.
    pub fn is_bad(&self, block: u32) -> bool {
        self.blocks[block as usize].flags & BAD != 0
    }

    /// Marks a block bad permanently. Its contents remain readable.
    ///
    /// # Panics
    /// If the block is out of range.
    pub fn mark_bad(&mut self, block: u32) {
        self.note_bad(block);
        self.blocks[block as usize].flags |= BAD;
    }

    /// Next page that may be programmed: all before it were programmed or attempted. `None` if the block is
    /// full, bad or half erased.
    ///
    /// # Panics
    /// If the block is out of range.
    pub fn next_page(&self, block: u32) -> Option<u32> {
        let block = &self.blocks[block as usize];
        let next = u32::from(block.next);
        let open = next < self.spec.geometry.pages() && block.flags & (BAD | HALF_ERASED) == 0;
        open.then_some(next)
    }

    /// Wear of a block.
    ///
    /// # Panics
    /// If the block is out of range.
    #[inline]
    pub fn wear(&self, block: u32) -> Wear {
        let block = &self.blocks[block as usize];
        let age_s = if block.next == 0 { 0 } else { self.age_s.saturating_sub(block.born_s) };
        Wear { cycles: block.erases, reads: block.reads, age_s }
    }

    /// Adds this many erases to the wear of a block.
    ///
    /// # Panics
    /// If the block is out of range.
    pub fn wear_out(&mut self, block: u32, erases: u32) {
        self.note_wear(block, erases);
        let block = &mut self.blocks[block as usize];
        block.erases = block.erases.saturating_add(erases);
    }

    /// Age in seconds, in use or on the shelf.
    #[inline]
    pub fn age_s(&self) -> u32 {
        self.age_s
    }

    /// Advances the age to this second, if that is later.
    #[inline]
    pub fn age_to(&mut self, age_s: u32) {
        self.age_s = self.age_s.max(age_s);
    }

    /// Bytes stored per unit of host data.
    pub fn kept_bytes(&self) -> u32 {
        match self.spec.keep {
            Keep::Everything => self.spec.geometry.unit_bytes,
            Keep::Stamps => {
                self.spec.geometry.unit_bytes / self.spec.block_bytes * STAMP_BYTES as u32
            }
        }
    }

    fn check(&self, at: PageAt) -> Result<(), Error> {
        let good = (at.block as usize) < self.blocks.len() && at.page < self.spec.geometry.pages();
        if good { Ok(()) } else { Err(Error::Range { at }) }
    }
}

/// Bit error rate at which no information is left: every second bit is wrong.
const HOPELESS: u64 = 500_000_000_000;

/// RNG seed of a place in one of its erase cycles.
#[inline]
fn mix(seed: u64, at: PageAt, life: u32) -> u64 {
    let place = u64::from(at.block) << 32 | u64::from(at.page) << 16;
    let folded = (seed ^ place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (folded ^ folded >> 32 ^ u64::from(life) << 8).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl Tables {
    fn new(spec: &Spec) -> Result<Tables, Error> {
        let geometry = &spec.geometry;
        geometry.check()?;
        spec.errors.check(geometry.unit_bytes)?;
        let block = spec.block_bytes;
        if !block.is_power_of_two() || !(512..=geometry.unit_bytes).contains(&block) {
            let expected = "a power of two from 512 to unit_bytes";
            return Err(Error::BadSpec { key: "block_bytes", found: block.into(), expected });
        }
        let cells = geometry.cells();
        let mut pages = vec![0; cells.len()];
        for (page, at) in cells.iter().enumerate() {
            let place = u32::from(at.word_line) * geometry.cell.bits() + u32::from(at.kind);
            pages[place as usize] = page as u16;
        }
        let data = match spec.keep {
            Keep::Everything => geometry.page_bytes as usize,
            Keep::Stamps => (geometry.page_bytes / block) as usize * STAMP_BYTES,
        };
        let seed = |part| Rng::for_part(spec.seed, part).next_u64();
        let seeds = Seeds {
            reads: seed("nand reads"),
            programs: seed("nand programs"),
            erases: seed("nand erases"),
            tears: seed("nand tears"),
        };
        let width = data + geometry.free_bytes as usize;
        let (quiet_rate, hopeless_rate) = (spec.errors.quiet_rate(), spec.errors.hopeless_rate());
        Ok(Tables { cells, pages, width, data, quiet_rate, hopeless_rate, seeds })
    }
}

impl fmt::Debug for Nand {
    /// Prints the specification, not the data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nand")
            .field("geometry", &self.spec.geometry)
            .field("keep", &self.spec.keep)
            .field("age_s", &self.age_s)
            .finish_non_exhaustive()
    }
}
