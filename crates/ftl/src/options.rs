//! Configuration and errors of the flash translation layer.

use runtime::Span;

use crate::layout::{ENTRY_BYTES, Layout};
use crate::pages::{LOST, Shape, Unkept};
use crate::policy::{Choice, Limits};
use crate::space;

/// Behaviour of the write cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// A write returns when it is on flash; superpages that it does not fill are padded.
    Through,
    /// A write returns when it is in the buffer; a power cut loses writes that no flush has covered.
    Volatile,
    /// As `Volatile`, but a power cut loses nothing: slots and their tags are preserved, all of them or
    /// [`Options::nv_slots`]; a write returns when it is in one that is, or on flash.
    Protected,
}

/// Times of the processor that runs the flash software. Requests of the host, and pages of the collector,
/// take it in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processing {
    /// Each unit of a read.
    pub lookup: Span,
    /// Each unit of a write.
    pub update: Span,
    /// Each unit of a read of several units, in place of `lookup`.
    pub split_lookup: Span,
    /// Each unit that the collector reads.
    pub collect: Span,
}

/// Options of the flash translation layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of a logical block; a mapping unit is a multiple of it.
    pub block_bytes: u32,
    /// Mapping units visible to the host. See [`Options::units_for`]. More than [`space::most_units`] can be
    /// mounted, but then a power cut at a bad moment may leave the drive without space.
    pub units: u32,
    /// Write cache mode.
    pub cache: Cache,
    /// Capacity of the write buffer in mapping units.
    pub slots: u32,
    /// NV-SRAM in mapping units: slots of the host that a power cut preserves at most. From 1 to `slots`, and
    /// with [`Cache::Protected`] only. `None`: all of them.
    pub nv_slots: Option<u32>,
    /// If true, the collector writes to its own superblocks; otherwise to those of the host.
    pub separate_streams: bool,
    /// If true, data are placed by the hints of the host ([`Ftl::hint`](crate::Ftl::hint)). Needs separate
    /// streams, and [`space::reserve_min`].
    pub hints: bool,
    /// Victim selection policy.
    pub choice: Choice,
    /// Memory for a cached map in bytes, half of it for parts as they are on flash and half for changes; at
    /// least [`space::least_map_cache`]. `None`: the map is fully resident in memory.
    pub map_cache: Option<u64>,
    /// Space, in superblocks, below which the host waits for the collector; at least [`space::reserve_min`].
    pub reserve: u32,
    /// GC parallelism: maximum number of the collector's superpages in flight.
    pub gc_parallelism: u32,
    /// Superpages whose units the collector reads at the same time, at least 1. With few, the latency of
    /// reads limits the rate of collection.
    pub gc_reads: u32,
    /// Mapping units that the collector frees in one run, during which it takes no turns with the host: the
    /// host's superpages wait. 0: no runs.
    pub gc_run: u32,
    /// Difference in erase counts above which static wear levelling moves a superblock.
    pub wear_spread: u32,
    /// Thresholds for refreshing data.
    pub limits: Limits,
    /// Superpages between two checkpoints. `None`: a checkpoint is written only to release trim records.
    pub checkpoint_rows: Option<u64>,
    /// Time that the software itself takes.
    pub processing: Processing,
    /// Seed of the RNG.
    pub seed: u64,
    /// Deliberate bugs, to test the tests.
    pub mistakes: Mistakes,
}

/// Deliberate bugs that a power-loss campaign must find. Used only by tests that check the tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mistakes {
    /// A flush returns without waiting.
    pub flush_returns_at_once: bool,
    /// Writes complete during the flush of an orderly power-off, which does not cover them.
    pub stays_open_at_power_off: bool,
    /// Trim records are never written.
    pub trims_are_not_logged: bool,
    /// After a power cut, superpages are replayed in order of location instead of sequence number.
    pub replay_out_of_order: bool,
    /// A checkpoint counts superpages as done that are still being programmed.
    pub checkpoint_forgets_flying_rows: bool,
    /// Superblocks of older map parts are erased before the root that names the newer ones is written.
    pub parts_are_released_early: bool,
    /// A superpage counts as soon as it has been programmed, although a torn program may still destroy it
    /// ([`Shape::reach`]).
    pub word_lines_stay_open: bool,
    /// A write returns although the NV-SRAM has no room for it.
    pub nv_sram_has_no_bound: bool,
    /// The place that a reader names is believed if anything valid is there.
    pub places_are_trusted: bool,
}

impl Options {
    /// Defaults for this shape: a volatile cache of four superpages per die, greedy collection, two streams,
    /// a checkpoint per eighth of the flash written, over-provisioning of 7 %.
    pub fn new(shape: &Shape) -> Options {
        let layout = Layout::new(*shape);
        let rows = u64::from(shape.blocks) * u64::from(layout.groups * shape.dies);
        Options {
            block_bytes: 512.min(shape.unit_bytes),
            units: Options::units_for(shape, 70, 2, 0),
            cache: Cache::Volatile,
            slots: 4 * layout.row_units * shape.dies,
            nv_slots: None,
            separate_streams: true,
            hints: false,
            choice: Choice::Greedy,
            map_cache: None,
            reserve: 2,
            gc_parallelism: 2 * shape.dies,
            gc_reads: 1,
            gc_run: 0,
            wear_spread: 64,
            limits: Limits { corrected: u32::MAX, reads: 1_000_000, age: u64::MAX },
            checkpoint_rows: Some((rows / 8).max(64)),
            processing: Processing::default(),
            seed: 0,
            mistakes: Mistakes::default(),
        }
    }

    /// Mapping units for the host on flash of this shape with this over-provisioning in thousandths, after
    /// subtracting `reserve`, the map on flash, and `bad_per_plane` bad blocks in each plane. At most
    /// [`space::most_units`]: superblocks of few superpages need more over-provisioning.
    pub fn units_for(shape: &Shape, spare_per_mille: u32, reserve: u32, bad_per_plane: u32) -> u32 {
        let wanted = Options::wanted_units(shape, spare_per_mille, reserve, bad_per_plane);
        wanted.min(space::most_units(shape, bad_per_plane)).min(u64::from(LOST - 1)) as u32
    }

    /// Minimum over-provisioning, in thousandths, with which such flash never runs out of space wherever the
    /// power is cut: see [`space`]. `None` if no value suffices.
    pub fn least_spare(shape: &Shape, reserve: u32, bad_per_plane: u32) -> Option<u32> {
        let wanted = |spare| Options::wanted_units(shape, spare, reserve, bad_per_plane);
        (1..=1000).find(|spare| space::is_safe(shape, wanted(*spare), reserve, bad_per_plane))
    }

    /// Mapping units for the host after over-provisioning.
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

/// Units reserved for trim records.
const TRIM_UNITS: u64 = space::NOTES_MAX as u64;

/// Space that is not for data.
#[derive(Clone, Copy)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The shape makes no sense: something is zero, too large, or no multiple of what it should be.
    #[error("flash of this shape can't be used")]
    Shape,
    /// The options make no sense with this shape.
    #[error("these options don't suit this flash")]
    Options,
    /// Too few good blocks for the mapping units.
    #[error("good blocks are left for {most} units only")]
    Space {
        /// Units that the good blocks can hold.
        most: u64,
    },
    /// The map on flash can't be read.
    #[error("the map on flash can't be read")]
    Map,
    /// The file behind the flash can't be read.
    #[error("pages can't be read from the file of flash")]
    File,
}

/// Why something could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Blocks past the end.
    #[error("blocks past the end")]
    Range,
    /// The data there can't be read.
    #[error("what was written there can't be read")]
    Unreadable,
    /// It can be done with a new drive only.
    #[error("something has been written already")]
    InUse,
    /// Too many blocks have gone bad: the drive is read-only.
    #[error("too many blocks of flash have gone bad")]
    WornOut,
    /// A unit is not at the place that the reader named.
    #[error("a unit is not at the place that was named")]
    Stale,
    /// Behind the flash, the space has run out.
    #[error("no space is left behind the flash")]
    Full,
    /// The contents of flash can't be preserved.
    #[error("what flash holds can't be kept")]
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
