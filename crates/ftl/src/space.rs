//! Why flash software never runs out of space, wherever its power is cut.
//!
//! # The invariant
//!
//! **There is a superblock that holds nothing which counts: the *keep*.** It is erased, or may be erased
//! without a word written before. Nobody writes into it but the collector, and that on trial: what it
//! copies there counts only when all of a victim has arrived. So the keep is never given up before another
//! superblock takes its place.
//!
//! # The rules
//!
//! 1. Host and collector open an erased superblock only if another stays ([`may_open`]).
//! 2. When no row is left to the collector but the keep's, it opens the keep *on trial*. Its rows are marked
//!    so in their spare bytes, the map goes on pointing to the victim, checkpoints take these rows for not
//!    yet begun, and nothing that was collected meanwhile is erased.
//! 3. When the victim's last valid unit has arrived, and behind it the notes of trims that the victim's
//!    erase has to wait for, the next row is not marked. When that has arrived the trial is over: the map
//!    takes over what was copied, the victim holds nothing that counts, and is the keep.
//! 4. A mount leaves out superblocks of which every readable row is marked. Whatever holds no valid unit
//!    after a mount may be erased at once: what it held was superseded, or trimmed by a note that is on
//!    flash.
//! 5. The victim of a trial leaves room in the keep for a row of notes and the row that ends the trial
//!    ([`fits`]).
//! 6. Notes of trims on flash are at most [`NOTES_MAX`]: who trims more waits for a checkpoint.
//!
//! # Why it holds
//!
//! *While power is there.* By rule 1 nobody takes the keep but a trial, and by rule 3 a trial ends with
//! another.
//!
//! *After a cut.* Before a trial the keep is untouched. In one, every readable row of it is marked, so by
//! rule 4 it is the keep again, and the victim is as it was: nothing has been erased. If the unmarked row can
//! be read, then all before it has arrived, whether or not the row itself is whole: the victim holds nothing
//! that counts, and is the keep by rule 4. A mount writes padding into superblocks that were open, never into
//! the keep: cuts may follow each other as they like, and each finds it again. What the padding behind an
//! unmarked row adds is that no later mount can take the trial for not ended.
//!
//! # Why somebody can always go on
//!
//! Let `n` superblocks of `t` rows be there. If nobody has a row to write, all are filled but the keep. If
//! the host has rows and is refused, and the collector finds no victim, the host is let go on row by row: so
//! its superblock is filled in the end. At most one superblock of the collector's is then open, and `n - 2`
//! are left. If none of them *fits*, each holds more than `t - 2` rows of valid units; so somebody goes on
//! as long as what is valid is no more than `(n - 2) (t - 2)` rows: what the host sees, the parts of the
//! map, and the notes of trims ([`most_units`]). A trial moves at most `t - 2` rows and gains one at least:
//! the one that ends it takes new data.
//!
//! Where pages of a word line are programmed one by one ([`Shape::reach`]) a row counts only when those have
//! been programmed that could take it with them, and `t - 2` is less by the rows that see to it
//! ([`uncommitted_rows`]). They are there: what is not closed lies in a superblock that is open, and when that is
//! full all of it is closed.
//!
//! So the reserve has to be two superblocks, and the over-provisioning about two rows in each
//! superblock beside that. [`is_safe`] is the condition; a plan that does not keep it is refused.
//!
//! # What it assumes
//!
//! That superblocks are of one size. Where bad blocks make them unequal, a victim may be too large for the
//! keep while smaller ones are full; the collector then does without a trial, and a cut in that moment may
//! cost the keep. That programs succeed: on trial, each that fails takes a row from what the trial needs. A
//! drive on which neither host nor collector can go on is worn out, and says so. And that a page which a
//! mount has read can still be read when its block is next looked at.

use crate::layout::Layout;
use crate::pages::Shape;
use crate::policy::Stream;

/// Rows of the keep that a trial needs beside what it copies: notes of trims, and the end.
pub const UNCOMMITTED_ROWS: u32 = 2;

/// As [`UNCOMMITTED_ROWS`], with those that close word lines on flash of this shape: behind the notes, and behind
/// the end.
pub fn uncommitted_rows(shape: &Shape) -> u32 {
    UNCOMMITTED_ROWS + 2 * shape.reach * shape.dies
}

/// Notes of trims that may be on flash, or on their way.
pub const NOTES_MAX: u32 = 8;

/// The least reserve: the keep, and one superblock that is open and empty.
pub const RESERVE_MIN: u32 = 2;

/// What a map that is cached takes of flash: see `parts.rs`.
///
/// A checkpoint writes [`units`](Quota::units) one behind the other, which touch one superblock more than
/// they fill. The last checkpoint's are there until the next one's are whole; beside both there is as much
/// again for parts that are written in between. A cut loses nothing but what no root names yet, so that
/// after it the same is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Superblocks that are kept for it.
    pub superblocks: u32,
    /// What a checkpoint may write, with rows that are not full, and those that close word lines.
    pub units: u64,
}

impl Quota {
    pub fn of(layout: &Layout, units: u32) -> Quota {
        let shape = &layout.shape;
        let parts = units.div_ceil(shape.unit_bytes / crate::options::ENTRY_BYTES);
        let rows = parts.div_ceil(layout.row_units) + 2 + layout.closing_rows();
        let one = rows.div_ceil(layout.groups * shape.dies);
        Quota { superblocks: 3 * one + 1, units: u64::from(rows) * u64::from(layout.row_units) }
    }
}

/// What is left for data of flash of this shape where the map is cached: it has superblocks of its own.
pub fn without_map(shape: &Shape) -> Shape {
    let layout = Layout::new(*shape);
    let all = shape.all_units().min(u64::from(crate::pages::LOST - 1)) as u32;
    let blocks = shape.blocks.saturating_sub(Quota::of(&layout, all).superblocks);
    Shape { blocks, ..*shape }
}

/// The least bytes that a map which is cached may have of memory, on flash of this shape.
pub fn least_map_cache(shape: &Shape) -> u64 {
    crate::map::least_cache(shape)
}

/// How a superblock may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Not at all.
    No,
    /// As any.
    Plain,
    /// On trial: it is the keep.
    ReserveCopy,
}

/// Whether a stream may open an erased superblock, of which there are `free`. `wanted` more are to be left
/// for what is about to lose its data.
pub fn may_open(stream: Stream, free: u32, wanted: u32) -> Opening {
    match stream {
        Stream::Host if free > 1 + wanted => Opening::Plain,
        Stream::Collector if free > 1 => Opening::Plain,
        Stream::Collector if free == 1 => Opening::ReserveCopy,
        _ => Opening::No,
    }
}

/// Whether so many units can be moved into a keep of `keep` units on trial, beside `rows` rows of the
/// trial's own.
pub fn fits(valid: u32, keep: u32, row_units: u32, rows: u32) -> bool {
    (valid.div_ceil(row_units) + rows) * row_units <= keep
}

/// Units that may be valid on so many superblocks of this size, so that somebody can always go on; a trial
/// takes `rows` rows beside what it copies.
pub fn most_valid(superblocks: u32, super_units: u32, row_units: u32, rows: u32) -> u64 {
    let each = super_units.saturating_sub(rows * row_units);
    u64::from(superblocks.saturating_sub(2)) * u64::from(each)
}

/// Units that a host may see on flash of this shape with so many bad blocks in each plane.
pub fn most_units(shape: &Shape, bad_per_plane: u32) -> u64 {
    let layout = Layout::new(*shape);
    // Blocks that are kept for roots take all of their superblocks here.
    let blocks = (0..layout.system_blocks()).map(|at| layout.system_block(at).block);
    let lost = 1 + blocks.max().unwrap_or(0) + bad_per_plane;
    let superblocks = shape.blocks.saturating_sub(lost);
    let rows = uncommitted_rows(shape);
    let most = most_valid(superblocks, layout.super_units, layout.row_units, rows);
    let left = most.saturating_sub(NOTES_MAX.into());
    let per_chunk = u64::from(shape.unit_bytes / crate::options::ENTRY_BYTES);
    left * per_chunk / (per_chunk + 1)
}

/// Whether flash software can always go on with so many units for the host: what the proof above asks.
pub fn is_safe(shape: &Shape, units: u64, reserve: u32, bad_per_plane: u32) -> bool {
    reserve >= RESERVE_MIN && units > 0 && units <= most_units(shape, bad_per_plane)
}
