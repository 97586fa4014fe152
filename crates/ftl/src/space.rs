//! Proof that the flash translation layer never runs out of space, wherever the power is cut.
//!
//! # The invariant
//!
//! **One superblock holds no live data: the *reserve superblock*.** It is erased, or may be erased without
//! writing anything first. Only the collector writes to it, and then *uncommitted*: the copies count only
//! when all of a victim has arrived. So the reserve superblock is never given up before another superblock
//! takes its place.
//!
//! # The rules
//!
//! 1. Host and collector open an erased superblock only if another remains ([`may_open`]).
//! 2. When the collector can write only to the reserve superblock, it opens that one *uncommitted*. The spare
//!    bytes of its superpages carry that flag, the map keeps pointing to the victim, checkpoints treat these
//!    superpages as not begun, and nothing that was collected meanwhile is erased.
//! 3. When the victim's last valid unit has arrived, and after it the trim records that the erase of the
//!    victim requires, the next superpage does not carry the flag. Its arrival commits the superblock: the
//!    map takes over the copies, and the victim, which now holds no live data, is the reserve superblock.
//! 4. A mount ignores superblocks in which every readable superpage carries the flag. A superblock without
//!    valid units after a mount may be erased at once: its data were superseded, or trimmed by a record on
//!    flash.
//! 5. The victim of an uncommitted collection leaves room in the reserve superblock for a superpage of trim
//!    records and the superpage that commits ([`fits`]).
//! 6. At most [`NOTES_MAX`] trim records are on flash; further trims wait for a checkpoint.
//!
//! # Why it holds
//!
//! *While power is on.* By rule 1 only an uncommitted collection takes the reserve superblock, and by rule 3
//! its commit provides another.
//!
//! *After a power cut.* Before the collection, the reserve superblock is untouched. During it, every readable
//! superpage there carries the flag, so by rule 4 it is the reserve superblock again, and the victim is
//! unchanged: nothing has been erased. If the superpage without the flag is readable, all before it has
//! arrived, whether or not that superpage is whole: the victim holds no live data and is the reserve
//! superblock by rule 4. A mount writes padding into superblocks that were open, never into the reserve
//! superblock. So power cuts may follow each other in any way, and each mount finds the reserve superblock.
//! Padding behind the superpage without the flag ensures that no later mount takes the collection for
//! uncommitted.
//!
//! # Why progress is always possible
//!
//! Let there be `n` superblocks of `t` superpages. If neither host nor collector has a superpage to write,
//! all superblocks are filled except the reserve superblock. If the host has superpages to write and is
//! refused, and the collector finds no victim, the host may proceed superpage by superpage, so its superblock
//! fills eventually. Then at most one superblock of the collector is open, and `n - 2` remain. If none of
//! them *fits*, each holds more than `t - 2` superpages of valid units. So progress is possible as long as
//! the valid data take at most `(n - 2) (t - 2)` superpages: the host's data, the map parts and the trim
//! records ([`most_units`]). An uncommitted collection moves at most `t - 2` superpages and gains at least
//! one: the one that commits takes new data.
//!
//! If the pages of a word line are programmed one by one ([`Shape::reach`]), a superpage counts only when
//! the pages whose programming could destroy it have been programmed, and `t - 2` is reduced by the
//! superpages that close the word lines ([`uncommitted_rows`]). Their space exists: word lines that are not
//! closed are in an open superblock, and in a full superblock all are closed.
//!
//! Placement by hints adds streams of the host, and no rule. The host's superpages of a class go to any open
//! superblock of the host if none may be opened for the class, so they fill all of these before it is
//! refused, and the count above holds. The collector writes a class's copies to the class's superblock only
//! if that is open or rule 1 lets it open one; otherwise, and during an uncommitted collection, it does not
//! tell classes apart. A larger reserve ([`reserve_min`]) makes that rare; the proof does not need it.
//!
//! So the reserve must be two superblocks, and the over-provisioning about two superpages per remaining
//! superblock. [`is_safe`] is the condition; a plan that violates it is rejected.
//!
//! # Assumptions
//!
//! - Superblocks have equal size. If bad blocks make them unequal, a victim may be too large for the
//!   reserve superblock while smaller ones are full. The collector then copies without the flag, and a power
//!   cut at that moment may cost the reserve superblock.
//! - Programs succeed. During an uncommitted collection each failed program takes a superpage from those that
//!   it needs. A drive on which neither host nor collector can proceed is worn out and reports that.
//! - A page that a mount has read can still be read when its block is next examined.

use crate::layout::{ENTRY_BYTES, Layout};
use crate::pages::Shape;
use crate::policy::{Heat, Stream};

/// Superpages of the reserve superblock that a collection needs in addition to its copies: trim records, and
/// the commit.
pub const UNCOMMITTED_ROWS: u32 = 2;

/// [`UNCOMMITTED_ROWS`], plus the superpages that close word lines on flash of this shape: after the trim
/// records, and after the commit.
pub fn uncommitted_rows(shape: &Shape) -> u32 {
    UNCOMMITTED_ROWS + 2 * shape.reach * shape.dies
}

/// Maximum number of trim records on flash or in flight.
pub const NOTES_MAX: u32 = 8;

/// Minimum reserve in superblocks: the reserve superblock, and one that is open and empty.
pub const RESERVE_MIN: u32 = 2;

/// Minimum reserve in superblocks if data are placed by hints or not: with hints two more may be open and
/// empty, whose space counts as left although only their class has a use for it.
pub fn reserve_min(hints: bool) -> u32 {
    RESERVE_MIN + if hints { Stream::OF_HOST.len() as u32 - 1 } else { 0 }
}

/// Minimum number of slots of the write buffer if data are placed by hints: a superpage in flight, and one of
/// each class, all but complete.
pub fn hinted_slots_min(shape: &Shape) -> u32 {
    (1 + Heat::ALL.len() as u32) * Layout::new(*shape).row_units
}

/// Minimum number of superpages in a superblock if data are placed by hints: what the collector may have read
/// of each class when space ends, less than a superpage each, fits into the reserve superblock.
pub fn hinted_rows_min(shape: &Shape) -> u32 {
    Heat::ALL.len() as u32 + uncommitted_rows(shape)
}

/// Flash space that a cached map takes: see `parts.rs`.
///
/// A checkpoint writes [`units`](Quota::units) consecutively, which touch one superblock more than they fill.
/// The last checkpoint's parts remain until those of the next are complete; as much again is for parts
/// written in between. A power cut loses only parts that no root names yet, so the same holds after it.
/// after it the same is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Superblocks reserved for the map.
    pub superblocks: u32,
    /// Mapping units that a checkpoint may write, including padding and superpages that close word lines.
    pub units: u64,
}

impl Quota {
    pub fn of(layout: &Layout, units: u32) -> Quota {
        let shape = &layout.shape;
        let parts = units.div_ceil(shape.unit_bytes / ENTRY_BYTES);
        let rows = parts.div_ceil(layout.row_units) + 2 + layout.closing_rows();
        let one = rows.div_ceil(layout.groups * shape.dies);
        Quota { superblocks: 3 * one + 1, units: u64::from(rows) * u64::from(layout.row_units) }
    }
}

/// Shape of the flash that remains for data if the map is cached: the map has its own superblocks.
pub fn without_map(shape: &Shape) -> Shape {
    let layout = Layout::new(*shape);
    let all = shape.all_units().min(u64::from(crate::pages::LOST - 1)) as u32;
    let blocks = shape.blocks.saturating_sub(Quota::of(&layout, all).superblocks);
    Shape { blocks, ..*shape }
}

/// Memory per change, in bytes, in a table that is half full.
pub(crate) const CHANGE_BYTES: u64 = 16;
/// Minimum number of parts in a cache.
pub(crate) const FRAMES_MIN: u64 = 1;

/// Minimum memory of a cached map on flash of this shape, in bytes: one part, and the changes of a superpage
/// per die.
pub fn least_map_cache(shape: &Shape) -> u64 {
    let row = shape.row_units(u32::MAX >> (32 - shape.planes));
    let changes = u64::from(row) * u64::from(shape.dies) * CHANGE_BYTES;
    2 * changes.max(FRAMES_MIN * u64::from(shape.unit_bytes))
}

/// Decision on opening a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It must not be opened.
    No,
    /// As an ordinary superblock.
    Plain,
    /// Uncommitted: it is the reserve superblock.
    ReserveCopy,
}

/// Decides whether a stream may open one of `free` erased superblocks. `wanted` further ones must remain for
/// superblocks that are about to lose data.
pub fn may_open(stream: Stream, free: u32, wanted: u32) -> Opening {
    match stream {
        Stream::Host if free > 1 + wanted => Opening::Plain,
        Stream::Collector if free > 1 => Opening::Plain,
        Stream::Collector if free == 1 => Opening::ReserveCopy,
        _ => Opening::No,
    }
}

/// Returns true if `valid` units can be moved into a reserve superblock of `keep` units, in addition to
/// `rows` superpages of the collection's own.
pub fn fits(valid: u32, keep: u32, row_units: u32, rows: u32) -> bool {
    (valid.div_ceil(row_units) + rows) * row_units <= keep
}

/// Maximum number of valid units on `superblocks` superblocks of this size with guaranteed progress; a
/// collection into the reserve superblock takes `rows` superpages in addition to its copies.
pub fn most_valid(superblocks: u32, super_units: u32, row_units: u32, rows: u32) -> u64 {
    let each = super_units.saturating_sub(rows * row_units);
    u64::from(superblocks.saturating_sub(2)) * u64::from(each)
}

/// Maximum number of mapping units for the host on flash of this shape with `bad_per_plane` bad blocks in
/// each plane.
pub fn most_units(shape: &Shape, bad_per_plane: u32) -> u64 {
    let layout = Layout::new(*shape);
    // Blocks reserved for roots are counted as whole superblocks here.
    let blocks = (0..layout.system_blocks()).map(|at| layout.system_block(at).block);
    let lost = 1 + blocks.max().unwrap_or(0) + bad_per_plane;
    let superblocks = shape.blocks.saturating_sub(lost);
    let rows = uncommitted_rows(shape);
    let most = most_valid(superblocks, layout.super_units, layout.row_units, rows);
    let left = most.saturating_sub(NOTES_MAX.into());
    let per_chunk = u64::from(shape.unit_bytes / ENTRY_BYTES);
    left * per_chunk / (per_chunk + 1)
}

/// Returns true if the layer always makes progress with `units` mapping units for the host: the condition of
/// the proof above.
pub fn is_safe(shape: &Shape, units: u64, reserve: u32, bad_per_plane: u32) -> bool {
    reserve >= RESERVE_MIN && units > 0 && units <= most_units(shape, bad_per_plane)
}
