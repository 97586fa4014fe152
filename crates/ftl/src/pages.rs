//! Interface to flash, as the translation layer uses it.
//!
//! Dies work in parallel; within a die, a call works on the planes that it names. A *superpage* is written by
//! one program operation: in each of these planes the pages of one group (the three of a TLC word line, one
//! of an SLC one), in a block of the same number. A *mapping unit* is the granularity of the map, usually 4
//! KiB: several are in a page, and each has its own spare bytes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;

use runtime::{Permutation, Span};
pub use wire::pages::Shape;

/// Flag in [`Unit::logical`]: metadata of the translation layer. Its bytes are always stored in full, even
/// where a medium stores only stamps of data.
pub const META: u32 = 1 << 31;

/// Flag in [`Unit::logical`]: the data have been lost. A read returns an error, never older data.
pub const LOST: u32 = 1 << 30;

/// Address of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Page {
    /// Die number.
    pub die: u32,
    /// Plane in the die.
    pub plane: u32,
    /// Block in the plane.
    pub block: u32,
    /// Page in the block.
    pub page: u32,
}

/// Location of a mapping unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The page.
    pub page: Page,
    /// Index of the unit in the page.
    pub unit: u32,
}

/// Blocks with one number in several planes of a die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Die number.
    pub die: u32,
    /// Block number in each plane.
    pub block: u32,
    /// Bit mask of planes, at least one.
    pub planes: u32,
}

/// A superpage: the target of one program operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Blocks that it is in.
    pub blocks: Blocks,
    /// First page of the group, a multiple of [`Shape::group`].
    pub page: u32,
}

/// Fields about the superpage in the spare bytes of each of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Sequence number, assigned when the superpage was formed. Never reused.
    pub sequence: u64,
    /// Erase count of its blocks. The top bit is a flag: the superpage is uncommitted (see
    /// [`space`](crate::space)).
    pub erases: u32,
}

/// Source of the bytes of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A slot of the write buffer.
    Slot(u32),
    /// Flash, where they have just been read: a copy.
    Flash(Place),
    /// None: the unit is never read.
    Nothing,
}

/// A mapping unit to be programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Tag of the content, stored in the spare bytes. [`META`] and [`LOST`] are bits of it.
    pub logical: u32,
    /// Source of its bytes.
    pub from: Source,
}

/// A read of some units of a page, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The page.
    pub page: Page,
    /// Bit mask of its units. 0: spare bytes only.
    pub units: u32,
    /// Result; set by [`Pages::read`].
    pub seen: PageRead,
}

/// Result of a page read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRead {
    /// No program has reached this page since its block was erased. Never returned for a page whose program,
    /// or whose block's erase, was interrupted.
    Erased,
    /// Read successfully.
    Good {
        /// Bits corrected in the worst code word.
        corrected: u32,
        /// Read retries with other thresholds.
        retries: u32,
    },
    /// Uncorrectable, or its program or its block's erase was interrupted.
    Unreadable,
}

/// Blocks to be erased, and the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erase {
    /// The blocks.
    pub blocks: Blocks,
    /// Bit mask of planes in which the erase failed; set by [`Pages::erase`].
    pub failed: u32,
}

/// Upper bounds of the time of a mount's work on one block number in all planes of all dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountTimes {
    /// Read the spare bytes of every page, without retries.
    pub read: Span,
    /// The same if no page is readable: with all retries.
    pub reread: Span,
    /// Program every superpage.
    pub fill: Span,
}

/// A program operation has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Bit mask of the failed planes. The other planes were written.
    pub planes: u32,
}

/// A walk over all units, which visits each once.
#[derive(Clone, Debug)]
pub struct Steps {
    /// Distance from one place of the walk to the next.
    pub step: u32,
    /// Number of units, at which the walk wraps; greater than `step`.
    pub of: u32,
    /// The unit at each place. `None`: the one of that number.
    pub order: Option<Order>,
}

/// The unit at each place of a walk.
#[derive(Clone, Debug)]
pub enum Order {
    /// Units in random order.
    Scattered(Arc<Permutation>),
    /// Runs of units in each lane in turn. Units beyond the last whole row of lanes keep their places.
    Striped {
        /// Units of a run, of which a whole number fits into a lane.
        run: u32,
        /// Places of a lane.
        lane: u32,
        /// Lanes of a row.
        lanes: u32,
    },
}

/// Content of a slot of the write buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// As in [`Unit::logical`].
    pub logical: u32,
    /// Write order: later writes have greater numbers.
    pub order: u64,
}

/// The flash contents cannot be made persistent: the file behind them cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unkept {
    /// No space is left on the file system.
    Full,
    /// Any other reason.
    Failed,
}

/// Flash with a write buffer.
///
/// Reads, programs and erases take time, and a power cut may interrupt any of them: operations in progress
/// may be torn, and the next call is a new mount. All other calls complete between two events and take no
/// time. In the steady state no call allocates.
///
/// The caller obeys the rules of flash: the pages of a block are programmed in ascending order without gaps,
/// and never twice without an erase in between. Operations on a busy die are queued there.
pub trait Pages: 'static {
    /// Dimensions of the flash; constant.
    fn shape(&self) -> Shape;

    /// Returns true if this block is marked bad, at the factory or by [`mark_bad`](Pages::mark_bad).
    /// `page.page` is ignored.
    fn is_bad(&self, block: Page) -> bool;

    /// Marks a block bad permanently. Takes no time, and survives a power cut: the mark is a few programmed
    /// cells, which no torn write undoes.
    fn mark_bad(&self, block: Page);

    /// Reads all parts, in parallel where dies and channels allow, and sets the result of each. Returns when
    /// the last is complete. If the bytes are copies of the flash's, a part whose page was erased in the
    /// meantime has no units any more.
    fn read(&self, parts: &mut [Part]) -> impl Future<Output = ()>;

    /// As [`read`](Pages::read), for the collector, so that the wait can be attributed to it.
    fn read_for_collector(&self, parts: &mut [Part]) -> impl Future<Output = ()> {
        self.read(parts)
    }

    /// Total time for which reads, copies and erases of the collector have occupied this die.
    fn collected(&self, die: u32) -> Span {
        let _ = die;
        Span::ZERO
    }

    /// Programs a superpage. `units` has one entry for each of its units: plane by plane (ascending), then
    /// page by page, then unit by unit. The bytes are those that the sources hold when the call begins.
    fn program(
        &self,
        row: Row,
        header: Header,
        units: &[Unit],
    ) -> impl Future<Output = Result<(), Failed>>;

    /// Erases all blocks, in parallel on different dies, and sets the planes that failed. Blocks that are
    /// marked bad are erased as far as possible, and stay bad.
    fn erase(&self, blocks: &mut [Erase]) -> impl Future<Output = ()>;

    /// Time to erase one block in each plane of a die, if known.
    fn erase_time(&self) -> Option<Span> {
        None
    }

    /// Times of a mount's work on blocks, if known.
    fn mount_times(&self) -> Option<MountTimes> {
        None
    }

    /// True if a page could not be read because of the file behind the flash, and not because of its cells:
    /// then the pages that were read are not all that there are.
    fn has_unread(&self) -> bool {
        false
    }

    /// Superpage header in the spare bytes of a page that was read before. `None` if the page is erased or
    /// unreadable.
    fn header(&self, page: Page) -> Option<Header>;

    /// Tag in the spare bytes of a unit that was read before, as programmed.
    fn logical(&self, at: Place) -> u32;

    /// Passes the bytes of a unit that was read before to `put`, run by run, each with its offset in the
    /// unit. Bytes that no run covers are zero. Returns false if they are unreadable.
    fn lend(&self, at: Place, put: &mut dyn FnMut(u32, &[u8])) -> bool;

    /// Allocates `count` slots of one unit each. Called once per mount, before any other call on slots. If
    /// the buffer survives power cuts, the slots still hold their previous contents.
    fn slots(&self, count: u32);

    /// Writes bytes into a slot at this offset, and sets its tag. The rest of the slot is unchanged. Data
    /// come in whole blocks; [`META`] in any length.
    fn stage(&self, slot: u32, tag: Tag, offset: u32, data: &[u8]);

    /// Fills a slot from a unit that was read before, or with zeros.
    fn stage_copy(&self, slot: u32, tag: Tag, from: Option<Place>);

    /// Fills a slot from another slot.
    fn stage_slot(&self, slot: u32, tag: Tag, from: u32);

    /// Empties the slot.
    fn release(&self, slot: u32);

    /// From now on, until it is released, a power cut preserves this slot or loses it, in a buffer that
    /// survives power cuts. A filled slot is preserved without.
    fn preserve(&self, slot: u32, preserved: bool) {
        let _ = (slot, preserved);
    }

    /// Tag that a slot held when the power failed; `None` if it was empty or lost.
    fn kept(&self, slot: u32) -> Option<Tag>;

    /// Passes the bytes of a slot to `put`, as [`lend`](Pages::lend) does.
    fn lend_slot(&self, slot: u32, put: &mut dyn FnMut(u32, &[u8]));

    /// Checks whether writes are admitted. After earlier writes could not be made persistent, none are until
    /// they can. Called before each write and trim; costs next to nothing.
    ///
    /// # Errors
    /// The reason for which writes are not admitted.
    fn admits(&self) -> Result<(), Unkept> {
        Ok(())
    }

    /// Returns when all earlier programs and erases are persistent to the degree that the flash is: where
    /// flash is a file, across a power cut of the machine. Called at the end of every flush.
    ///
    /// # Errors
    /// The reason for which they may not be persistent. They are not lost: the next call may succeed.
    fn persist(&self) -> Result<(), Unkept> {
        Ok(())
    }

    /// Stores a few bytes next to the flash, replacing those stored before, and returns as
    /// [`persist`](Pages::persist) does.
    ///
    /// # Errors
    /// As [`persist`](Pages::persist).
    fn keep_beside(&self, bytes: &[u8]) -> Result<(), Unkept> {
        let _ = bytes;
        Ok(())
    }

    /// Mean wear in percent of the rated program/erase cycles, up to 255; 0 if it does not wear.
    fn percent_used(&self) -> u8 {
        0
    }

    /// Makes a superpage programmed, without time and without bytes of its own: its units read as zeros. Used
    /// for preconditioning. `logicals` corresponds to `units` of [`program`](Pages::program).
    fn lay(&self, row: Row, header: Header, logicals: &[u32]);

    /// As [`lay`](Pages::lay): the units whose bits are set in `chosen` (64 per word) hold data, with tags
    /// that follow from the place `first` by `steps`. The other units hold nothing.
    fn lay_steps(&self, row: Row, header: Header, chosen: &[u64], first: u32, steps: Steps) {
        let units = self.shape().row_units(row.blocks.planes);
        let mut next = first;
        let logicals: Vec<u32> = (0..units as usize)
            .map(|at| {
                if chosen[at / 64] >> (at % 64) & 1 == 0 {
                    return u32::MAX;
                }
                let after = steps.after(next, 1);
                steps.unit(core::mem::replace(&mut next, after))
            })
            .collect();
        self.lay(row, header, &logicals);
    }
}

impl Order {
    /// The unit at this place, of `of` places.
    #[inline]
    fn unit(&self, at: u32, of: u32) -> u32 {
        match self {
            Order::Scattered(order) => order.at(at.into()) as u32,
            Order::Striped { run, lane, lanes } => {
                let row = lane * lanes;
                let (first, in_row) = (at - at % row, at % row);
                if of - first < row {
                    return at;
                }
                let (in_lane, lane) = (in_row % lane, in_row / lane);
                first + (in_lane / run * lanes + lane) * run + in_lane % run
            }
        }
    }
}

impl Steps {
    /// The unit at a place of the walk.
    #[inline]
    pub fn unit(&self, at: u32) -> u32 {
        self.order.as_ref().map_or(at, |order| order.unit(at, self.of))
    }

    /// The place `steps` steps after `at`.
    #[inline]
    pub fn after(&self, at: u32, steps: u32) -> u32 {
        let (mut sum, of) =
            (u64::from(at) + u64::from(self.step) * u64::from(steps), u64::from(self.of));
        // A single step needs no division, which would take longer than the rest of a walk.
        if sum >= of {
            sum -= of;
        }
        if sum >= of {
            sum %= of;
        }
        sum as u32
    }
}
