//! Flash, as the translation layer sees it.
//!
//! Dies work at the same time; of one die, so many planes as a call names do. A *row* is what one program
//! operation writes: in each of these planes the pages of one group (the three of a TLC word line, one of
//! an SLC one), in a block of the same number. A *unit* is what the map places, 4 KiB as a rule: several
//! lie in a page, and each has spare bytes of its own.

use alloc::vec::Vec;
use core::future::Future;

use runtime::Span;
pub use wire::pages::Shape;

/// Set in [`Unit::logical`] of what the translation layer writes for itself. Its bytes are always kept
/// whole, also where a medium keeps only stamps of data.
pub const META: u32 = 1 << 31;

/// Set in [`Unit::logical`] where data have been lost: to be read as an error, never as what was there
/// before.
pub const LOST: u32 = 1 << 30;

/// A page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Page {
    /// Its die.
    pub die: u32,
    /// Its plane in that.
    pub plane: u32,
    /// Its block in that.
    pub block: u32,
    /// Its number in that.
    pub page: u32,
}

/// Where a unit lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// In which page.
    pub page: Page,
    /// Which of the page's units.
    pub unit: u32,
}

/// Blocks of one number in several planes of a die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The die.
    pub die: u32,
    /// The number in each plane.
    pub block: u32,
    /// The planes, a bit for each, at least one.
    pub planes: u32,
}

/// What one program operation writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// In which blocks.
    pub blocks: Blocks,
    /// The first page of the group, a multiple of [`Shape::group`].
    pub page: u32,
}

/// What the spare bytes of every page say of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of the row in the order in which rows were made up. Never used twice.
    pub sequence: u64,
    /// How often the row's blocks have been erased. The topmost bit is not a number: such a row is on trial
    /// (see [`space`](crate::space)).
    pub erases: u32,
}

/// Where the bytes of a unit come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From a slot of the write buffer.
    Slot(u32),
    /// From flash, where they have been read just now: a copy.
    Flash(Place),
    /// From nowhere: nobody will ask for them.
    Nothing,
}

/// A unit to be programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Kept in the unit's spare bytes: what it holds. [`META`] and [`LOST`] are bits of it.
    pub logical: u32,
    /// Its bytes.
    pub from: Source,
}

/// Some units of a page to be read, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The page.
    pub page: Page,
    /// Which of its units, a bit for each. None: the spare bytes alone.
    pub units: u32,
    /// What came of it; set by [`Pages::read`].
    pub seen: PageRead,
}

/// What a read has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRead {
    /// No program has reached this page since its block was erased. Never said of a page whose program or
    /// whose block's erase was cut short.
    Erased,
    /// It has been read.
    Good {
        /// Bits corrected in the worst code word.
        corrected: u32,
        /// Read again with other thresholds so many times.
        retries: u32,
    },
    /// It can't be corrected, or its program or its block's erase was cut short.
    Unreadable,
}

/// Blocks to be erased, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erase {
    /// Which.
    pub blocks: Blocks,
    /// The planes in which it failed; set by [`Pages::erase`].
    pub failed: u32,
}

/// The times of a mount's work on the blocks of one number in all planes of all dies, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountTimes {
    /// The spare bytes of every page are read, each at the first try.
    pub read: Span,
    /// The same where no page can be read: with all further tries.
    pub reread: Span,
    /// Every row is programmed.
    pub fill: Span,
}

/// A program operation has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// In which planes, a bit for each. What the others wrote is there.
    pub planes: u32,
}

/// A walk round all units, which visits each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// From one to the next.
    pub step: u32,
    /// The number of units, after which it begins anew; more than `step`.
    pub of: u32,
}

/// What a slot of the write buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// As in [`Unit::logical`].
    pub logical: u32,
    /// Later writes have greater numbers.
    pub order: u64,
}

/// What flash holds can't be kept where it has to be: behind it, a file can't be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unkept {
    /// No space is left there.
    Full,
    /// For another reason.
    Failed,
}

/// Flash with a write buffer beside it.
///
/// Reads, programs and erases take time, and power may fail in any of them: what had begun by then may be
/// torn, and the next that comes is a fresh mount. All else is done between two events and takes none. No
/// call allocates once everything has been used once.
///
/// The caller keeps the rules of flash: pages of a block in ascending order and none left out; none
/// programmed twice without an erase in between. What is asked of a die that is busy takes its turn there.
pub trait Pages: 'static {
    /// How many there are of everything. Never changes.
    fn shape(&self) -> Shape;

    /// Whether this block is marked bad, by the factory or by [`mark_bad`](Pages::mark_bad). `page.page`
    /// plays no part.
    fn is_bad(&self, block: Page) -> bool;

    /// Marks a block bad for ever. Done at once, and survives a power cut: the mark is a few programmed
    /// cells, which no torn write undoes.
    fn mark_bad(&self, block: Page);

    /// Reads all of these, at the same time where dies and channels allow, and says of each what was
    /// seen. Returns when the last is there.
    fn read(&self, parts: &mut [Part]) -> impl Future<Output = ()>;

    /// As [`read`](Pages::read), for the collector: who has to wait for it can tell.
    fn read_for_collector(&self, parts: &mut [Part]) -> impl Future<Output = ()> {
        self.read(parts)
    }

    /// For how long the collector's reads and copies, and erases, have had this die so far.
    fn collected(&self, die: u32) -> Span {
        let _ = die;
        Span::ZERO
    }

    /// Programs a row. `units` go plane by plane (those of the row, ascending), in each page by page, in
    /// each unit by unit, and there are as many as the row has. The bytes are those that the sources hold
    /// when the call begins.
    fn program(
        &self,
        row: Row,
        header: Header,
        units: &[Unit],
    ) -> impl Future<Output = Result<(), Failed>>;

    /// Erases all of these, at the same time where they are on several dies, and says of each where it
    /// failed. Blocks that are marked bad are erased as far as they can be, and stay bad.
    fn erase(&self, blocks: &mut [Erase]) -> impl Future<Output = ()>;

    /// How long the erase of a block in each plane of a die takes, if that is known.
    fn erase_time(&self) -> Option<Span> {
        None
    }

    /// How long a mount's work on blocks takes, if that is known.
    fn mount_times(&self) -> Option<MountTimes> {
        None
    }

    /// The spare bytes of a page that was read before: what they say of its row. None: of an erased or
    /// unreadable page.
    fn header(&self, page: Page) -> Option<Header>;

    /// The spare bytes of a unit that was read before, as they were programmed.
    fn logical(&self, at: Place) -> u32;

    /// Lends the bytes of a unit that was read before, run by run, each with its distance from the unit's
    /// beginning. What no run covers is zeros. False: they can't be read.
    fn lend(&self, at: Place, put: &mut dyn FnMut(u32, &[u8])) -> bool;

    /// Makes room for so many slots of a unit each. Called once at each mount, before any other call
    /// about slots. What the slots held, if the buffer survives a power cut, is still there.
    fn slots(&self, count: u32);

    /// Puts bytes into a slot, at this distance from its beginning, and says what it then holds. The rest
    /// of it stays as it was. Whole blocks of data; anything of [`META`].
    fn stage(&self, slot: u32, tag: Tag, offset: u32, data: &[u8]);

    /// Fills a slot with what a unit holds that was read before, or with zeros.
    fn stage_copy(&self, slot: u32, tag: Tag, from: Option<Place>);

    /// Fills a slot with what another holds.
    fn stage_slot(&self, slot: u32, tag: Tag, from: u32);

    /// The slot holds nothing any more.
    fn release(&self, slot: u32);

    /// What a slot held when the power failed. None: nothing, or it was lost.
    fn kept(&self, slot: u32) -> Option<Tag>;

    /// Lends the bytes of a slot, as [`lend`](Pages::lend) does.
    fn lend_slot(&self, slot: u32, put: &mut dyn FnMut(u32, &[u8]));

    /// Whether more may be written. Where what was written before could not be kept, nothing more is taken
    /// until it can: asked before each write and trim, and costs next to nothing.
    ///
    /// # Errors
    /// Why nothing may be written.
    fn admits(&self) -> Result<(), Unkept> {
        Ok(())
    }

    /// Returns when all that was programmed and erased before survives whatever the flash itself survives:
    /// where flash is a file, a power cut of the machine. The end of every flush.
    ///
    /// # Errors
    /// Why it may not survive. It is not lost: the next call may succeed.
    fn persist(&self) -> Result<(), Unkept> {
        Ok(())
    }

    /// Keeps a few bytes beside the flash, in the place of those before, and returns as
    /// [`persist`](Pages::persist) does.
    ///
    /// # Errors
    /// As [`persist`](Pages::persist).
    fn keep_beside(&self, bytes: &[u8]) -> Result<(), Unkept> {
        let _ = bytes;
        Ok(())
    }

    /// Makes a row be programmed, without time and without bytes of its own: its units read as zeros. For
    /// preconditioning. `logicals` as `units` of [`program`](Pages::program).
    fn lay(&self, row: Row, header: Header, logicals: &[u32]);

    /// As [`lay`](Pages::lay): of the row's units those hold data that `chosen` has bits for, 64 to a word,
    /// and what they hold follows from the first of them by steps. The others hold nothing.
    fn lay_steps(&self, row: Row, header: Header, chosen: &[u64], first: u32, steps: Steps) {
        let units = self.shape().row_units(row.blocks.planes);
        let mut next = first;
        let logicals: Vec<u32> = (0..units as usize)
            .map(|at| {
                if chosen[at / 64] >> (at % 64) & 1 == 0 {
                    return u32::MAX;
                }
                let after = steps.after(next, 1);
                core::mem::replace(&mut next, after)
            })
            .collect();
        self.lay(row, header, &logicals);
    }
}

impl Steps {
    /// What comes so many steps behind this.
    #[inline]
    pub fn after(self, at: u32, steps: u32) -> u32 {
        let sum = u64::from(at) + u64::from(self.step) * u64::from(steps);
        (sum % u64::from(self.of)) as u32
    }
}
