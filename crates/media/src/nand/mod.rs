//! NAND flash without any time: what it holds, what it refuses, what it forgets.
//!
//! ```text
//! drive > channels > packages > dies > planes > blocks > word lines > pages > units
//!         one set of            one at          erased   share their  programmed
//!         wires                 a time          whole    cells        whole   read and corrected
//! ```
//!
//! Pages are programmed in order, once after an erase; anything else is an error. Cells wear, charge
//! leaks, reads disturb, programs and erases fail, some blocks are bad from the start, and an operation
//! that loses its power half-way leaves what it leaves: see [`Errors`] and [`Nand::tear_program`]. Every
//! chance is drawn from the seed and the place, never from what happened elsewhere before.
//!
//! Not here: how long it all takes ([`Timing`] says it, whoever drives the chips keeps it), and which page
//! holds which block of the host.

pub mod check;
mod error;
mod geometry;
mod journal;
mod kept;
mod lock;
mod noise;
mod operate;
mod power;
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
pub use profile::{Profile, Suspend, Timing};
use rows::{Packed, Rows};

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// How it is laid out.
    pub geometry: Geometry,
    /// How much of each block of the host is remembered: all, or the first 8 bytes.
    pub keep: Keep,
    /// Bytes of such a block: a power of two from 512 to a unit.
    pub block_bytes: u32,
    /// How it errs.
    pub errors: Errors,
    /// Where its chances come from.
    pub seed: u64,
}

/// The data of a page to be programmed.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// All its bytes. With [`Keep::Stamps`] the first 8 of each block are remembered.
    Bytes(&'a [u8]),
    /// What [`Keep`] remembers of it, one behind the other.
    Kept(&'a [u8]),
    /// Zeros.
    Zeros,
}

/// The spare bytes of a block full of zeros, by a rule: so that a drive that is full from the beginning takes
/// less memory than one that was filled.
pub trait Laid: Send + Sync {
    /// The first spare bytes of a page, as many as `out` has; zeros follow those that it has.
    fn spare(&self, page: u32, out: &mut [u8]);
    /// Bytes of memory that it takes.
    fn allocated_bytes(&self) -> u64;
}

/// What a read of some units found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    /// Nothing has been programmed there since the last erase.
    Erased,
    /// The data, after so many bit errors in the worst codeword were corrected.
    Good {
        /// Bit errors in it.
        errors: u32,
    },
    /// More bit errors in a codeword than can be corrected.
    Uncorrectable,
}

/// What a block holds.
#[derive(Clone, Default)]
enum Held {
    #[default]
    Nothing,
    Rows(Arc<Rows>),
    Packed(Arc<Packed>),
    /// Zeros, and spare bytes that follow a rule.
    Laid(Arc<dyn Laid>),
    /// In the file that the state was loaded from, and not yet asked for.
    Stored,
}

#[derive(Clone, Default)]
struct Block {
    held: Held,
    erases: u32,
    reads: u32,
    /// When its first page was programmed, in seconds of the drive's life.
    born_s: u32,
    /// The next page to be programmed.
    next: u16,
    flags: u8,
}

/// Bad since the factory, or marked so.
const BAD: u8 = 1;
/// A program or an erase has failed: the next ones will too.
const FAILED: u8 = 2;
/// An erase was cut short: nothing may be programmed before another.
const HALF_ERASED: u8 = 4;
/// Some page of it was harmed by a power cut or a failed program.
const HARMED: u8 = 8;
/// Some unit of it is kept whole.
const WHOLE: u8 = 16;

const FLAGS: u8 = BAD | FAILED | HALF_ERASED | HARMED | WHOLE;

/// Flash. Its state is a value: it can be saved, loaded and forked.
pub struct Nand {
    spec: Spec,
    tables: Arc<Tables>,
    blocks: Vec<Block>,
    /// Raw bit errors in 10^12 that come on top, for good.
    harm: BTreeMap<PageAt, u64>,
    /// Units of which every byte is kept where otherwise only stamps are.
    whole: BTreeMap<(PageAt, u32), Arc<[u8]>>,
    /// Room of erased blocks, for the next.
    pool: Vec<Arc<Rows>>,
    room: rows::Room,
    source: Option<Arc<state::Source>>,
    journal: Option<Box<journal::Journal>>,
    lock: Option<Lock>,
    files: Files,
    lineage: state::Lineage,
    /// The version of the state that it was loaded from; 0: from none.
    version: u64,
    age_s: u32,
    cuts: u32,
}

/// What follows from the specification.
struct Tables {
    /// By page, in the order of programming.
    cells: Vec<Cells>,
    /// The page of each kind of each word line.
    pages: Vec<u16>,
    /// Bytes of a row.
    width: usize,
    /// Bytes of it that are data.
    data: usize,
    /// The rate of bit errors up to which no codeword has too many.
    quiet_rate: u64,
    /// The rate of bit errors from which on every codeword has too many.
    hopeless_rate: u64,
    seeds: Seeds,
}

/// One stream for each kind of chance.
struct Seeds {
    reads: u64,
    programs: u64,
    erases: u64,
    tears: u64,
}

impl Nand {
    /// New flash, just as it left the factory.
    ///
    /// # Errors
    /// [`Error::BadSpec`].
    pub fn new(spec: Spec) -> Result<Nand, Error> {
        let tables = Tables::new(&spec)?;
        let mut rng = Rng::for_part(spec.seed, "nand factory");
        let mut bad = || rng.chance(spec.errors.factory_bad.into(), 1_000_000);
        let blocks = (0..spec.geometry.all_blocks())
            .map(|_| Block { flags: if bad() { BAD } else { 0 }, ..Block::default() })
            .collect();
        Ok(Nand {
            spec,
            tables: Arc::new(tables),
            blocks,
            harm: BTreeMap::new(),
            whole: BTreeMap::new(),
            pool: Vec::new(),
            room: rows::Room::default(),
            source: None,
            journal: None,
            lock: None,
            files: Files::default(),
            lineage: state::Lineage::default(),
            version: 0,
            age_s: 0,
            cuts: 0,
        })
    }

    /// Another one in the same state, for as little memory as what they do not share takes. It keeps no
    /// journal.
    pub fn fork(&self) -> Nand {
        Nand {
            spec: self.spec.clone(),
            tables: self.tables.clone(),
            blocks: self.blocks.clone(),
            harm: self.harm.clone(),
            whole: self.whole.clone(),
            pool: Vec::new(),
            room: rows::Room::default(),
            source: self.source.clone(),
            journal: None,
            lock: None,
            files: self.files.clone(),
            lineage: self.lineage.clone(),
            version: self.version,
            age_s: self.age_s,
            cuts: self.cuts,
        }
    }

    /// What it was made from.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// How it is laid out.
    pub fn geometry(&self) -> &Geometry {
        &self.spec.geometry
    }

    /// Where a page lies in its block.
    ///
    /// # Panics
    /// If a block has no such page.
    #[inline]
    pub fn cells(&self, page: u32) -> Cells {
        self.tables.cells[page as usize]
    }

    /// Whether the block was bad when it left the factory, or was marked so.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn is_bad(&self, block: u32) -> bool {
        self.blocks[block as usize].flags & BAD != 0
    }

    /// Marks a block bad for good. What it holds can still be read.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn mark_bad(&mut self, block: u32) {
        self.note_bad(block);
        self.blocks[block as usize].flags |= BAD;
    }

    /// The next page that may be programmed: all before it were, or were tried. None: the block is full,
    /// bad or half erased.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn next_page(&self, block: u32) -> Option<u32> {
        let block = &self.blocks[block as usize];
        let next = u32::from(block.next);
        let open = next < self.spec.geometry.pages() && block.flags & (BAD | HALF_ERASED) == 0;
        open.then_some(next)
    }

    /// What a block has been through.
    ///
    /// # Panics
    /// If there is no such block.
    #[inline]
    pub fn wear(&self, block: u32) -> Wear {
        let block = &self.blocks[block as usize];
        let age_s = if block.next == 0 { 0 } else { self.age_s.saturating_sub(block.born_s) };
        Wear { cycles: block.erases, reads: block.reads, age_s }
    }

    /// Wears a block as if it had been erased so many times more.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn wear_out(&mut self, block: u32, erases: u32) {
        self.note_wear(block, erases);
        let block = &mut self.blocks[block as usize];
        block.erases = block.erases.saturating_add(erases);
    }

    /// Seconds of its life so far: in use or on the shelf.
    #[inline]
    pub fn age_s(&self) -> u32 {
        self.age_s
    }

    /// Moves its life on to this second, if that is later.
    #[inline]
    pub fn age_to(&mut self, age_s: u32) {
        self.age_s = self.age_s.max(age_s);
    }

    /// Bytes that are remembered of a unit of the host's data.
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

/// A rate of bit errors at which nothing is left: every second bit is wrong.
const HOPELESS: u64 = 500_000_000_000;

/// The dice of a place in one of its lives.
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
    /// What it is, not what it holds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nand")
            .field("geometry", &self.spec.geometry)
            .field("keep", &self.spec.keep)
            .field("age_s", &self.age_s)
            .finish_non_exhaustive()
    }
}
