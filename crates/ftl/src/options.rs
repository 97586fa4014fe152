//! What flash software is built with.

use core::fmt;

use crate::layout::Layout;
use crate::pages::{LOST, Shape, Unkept};
use crate::policy::{Choice, Limits};
use crate::space;

/// Entries of the map that are kept on flash together: 4 bytes each, a unit full.
pub(crate) const ENTRY_BYTES: u32 = 4;

/// What becomes of a write before it is on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// A write returns when it is on flash; what it can't fill of a row is padding.
    Through,
    /// A write returns when it is in the buffer, and a power cut loses what no flush has waited for.
    Volatile,
    /// As `Volatile`, but a power cut loses nothing: capacitors carry the slots through it. They have to
    /// carry no more than `slots` of them, and the little that is known about each.
    Protected,
}

/// The choices one has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a logical block; units are a multiple of it.
    pub block_bytes: u32,
    /// Units that the host sees. See [`Options::units_for`]; more than [`space::most_units`] are mounted too,
    /// and work as long as no power cut comes at a bad moment.
    pub units: u32,
    /// What becomes of a write before it is on flash.
    pub cache: Cache,
    /// Units that the write buffer holds.
    pub slots: u32,
    /// What the collector moves goes into superblocks of its own; else among what the host writes.
    pub separate_streams: bool,
    /// How the collector chooses.
    pub choice: Choice,
    /// Bytes of memory for the map, of which then the rest lies on flash: half of them hold parts of it as
    /// flash has them, half hold changes. At least [`space::least_map_cache`]. None: it is whole in memory.
    pub map_cache: Option<u64>,
    /// Superblocks' worth of space below which the host waits for the collector, at least
    /// [`space::RESERVE_MIN`].
    pub reserve: u32,
    /// Rows of the collector that may be under way at the same time.
    pub gc_parallelism: u32,
    /// Erases by which one superblock may lag behind another.
    pub wear_spread: u32,
    /// Where data are written anew.
    pub limits: Limits,
    /// Rows between two checkpoints. None: only when there is no other way to forget trims.
    pub checkpoint_rows: Option<u64>,
    /// The seed of its chance.
    pub seed: u64,
    /// Mistakes to be made on purpose: a test of the tests.
    pub mistakes: Mistakes,
}

/// Mistakes that a campaign of power cuts must find. Every test of a test makes one; nobody else does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mistakes {
    /// A flush returns without waiting.
    pub flush_returns_at_once: bool,
    /// Trims are never written down.
    pub trims_are_not_logged: bool,
    /// After a power cut, rows are replayed in the order of their places, not in that of their numbers.
    pub replay_out_of_order: bool,
    /// A checkpoint counts rows as done that are still being programmed.
    pub checkpoint_forgets_flying_rows: bool,
    /// What held older parts of a cached map is erased before the root that names the newer ones is written.
    pub parts_are_released_early: bool,
    /// A row counts as soon as it has been programmed, whatever may take it along ([`Shape::reach`]).
    pub word_lines_stay_open: bool,
}

impl Options {
    /// Sensible choices for this shape: a volatile cache of four rows for each die, greedy collection,
    /// two streams, a checkpoint for each eighth of the flash written; over-provisioning 7 %.
    pub fn new(shape: &Shape) -> Options {
        let layout = Layout::new(*shape);
        let rows = u64::from(shape.blocks) * u64::from(layout.groups * shape.dies);
        Options {
            block_bytes: 512.min(shape.unit_bytes),
            units: Options::units_for(shape, 70, 2, 0),
            cache: Cache::Volatile,
            slots: 4 * layout.row_units * shape.dies,
            separate_streams: true,
            choice: Choice::Greedy,
            map_cache: None,
            reserve: 2,
            gc_parallelism: 2 * shape.dies,
            wear_spread: 64,
            limits: Limits { corrected: u32::MAX, reads: 1_000_000, age: u64::MAX },
            checkpoint_rows: Some((rows / 8).max(64)),
            seed: 0,
            mistakes: Mistakes::default(),
        }
    }

    /// How many units a host may see on flash of this shape, if so many thousandths of them are kept as
    /// spare space (the over-provisioning), beside what `reserve` needs, what the map takes on flash, and
    /// this many bad blocks in each plane. Never more than [`space::most_units`]: few rows in a superblock
    /// need more spare space.
    pub fn units_for(shape: &Shape, spare_per_mille: u32, reserve: u32, bad_per_plane: u32) -> u32 {
        let wanted = Options::wanted_units(shape, spare_per_mille, reserve, bad_per_plane);
        wanted.min(space::most_units(shape, bad_per_plane)).min(u64::from(LOST - 1)) as u32
    }

    /// The least over-provisioning, in thousandths, with which such flash never runs out of space, wherever
    /// its power is cut: see [`space`]. None: there is none.
    pub fn least_spare(shape: &Shape, reserve: u32, bad_per_plane: u32) -> Option<u32> {
        let wanted = |spare| Options::wanted_units(shape, spare, reserve, bad_per_plane);
        (1..=1000).find(|spare| space::is_safe(shape, wanted(*spare), reserve, bad_per_plane))
    }

    /// What is left for the host beside the spare space.
    fn wanted_units(shape: &Shape, spare_per_mille: u32, reserve: u32, bad_per_plane: u32) -> u64 {
        let layout = Layout::new(*shape);
        let good = shape.blocks.saturating_sub(bad_per_plane);
        let all = u64::from(good) * u64::from(layout.super_units);
        let kept = Space::of(&layout, reserve).start + layout.system_units();
        let left = all.saturating_sub(kept);
        let units = left * 1000 / u64::from(1000 + spare_per_mille);
        let map = 2 * units.div_ceil(u64::from(shape.unit_bytes / ENTRY_BYTES)) + TRIM_UNITS;
        left.saturating_sub(map) * 1000 / u64::from(1000 + spare_per_mille)
    }
}

/// Room for notes of trims.
const TRIM_UNITS: u64 = space::NOTES_MAX as u64;

/// Space that is not for data.
pub(crate) struct Space {
    pub hold: u64,
    pub start: u64,
}

impl Space {
    pub fn of(layout: &Layout, reserve: u32) -> Space {
        let one = u64::from(layout.super_units);
        let hold = u64::from(reserve.max(2)) * one;
        Space { hold, start: hold + one / 2 + u64::from(2 * layout.row_units) }
    }
}

/// Why flash can't be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountError {
    /// The shape makes no sense: something is zero, too large, or no multiple of what it should be.
    Shape,
    /// The options make no sense with this shape.
    Options,
    /// There are not so many good blocks that the units could be kept on them.
    Space {
        /// Units that could be.
        most: u64,
    },
    /// The map on flash can't be read.
    Map,
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::Shape => f.write_str("flash of this shape can't be used"),
            MountError::Options => f.write_str("these options don't suit this flash"),
            MountError::Space { most } => write!(f, "good blocks are left for {most} units only"),
            MountError::Map => f.write_str("the map on flash can't be read"),
        }
    }
}

impl core::error::Error for MountError {}

/// Why something could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Blocks past the end.
    Range,
    /// What was written there can't be read.
    Unreadable,
    /// It can be done with a new drive only.
    InUse,
    /// So many blocks have gone bad that nothing can be written any more.
    WornOut,
    /// Behind the flash, the space has run out.
    Full,
    /// What flash holds can't be kept.
    Unkept,
}

impl From<Unkept> for Error {
    fn from(why: Unkept) -> Error {
        match why {
            Unkept::Full => Error::Full,
            Unkept::Failed => Error::Unkept,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Range => "blocks past the end",
            Error::Unreadable => "what was written there can't be read",
            Error::InUse => "something has been written already",
            Error::WornOut => "too many blocks of flash have gone bad",
            Error::Full => "no space is left behind the flash",
            Error::Unkept => "what flash holds can't be kept",
        })
    }
}

impl core::error::Error for Error {}
