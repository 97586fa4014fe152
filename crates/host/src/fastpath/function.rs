//! Functions in the way of data: what the blocks of a handle pass between its memory and the drive.
//!
//! ```text
//!   write   the handle's memory ── copy ──► outward ──► staging ── the drive's DMA ──► drive
//!   read    drive ── the drive's DMA ──► staging ──► inward ── copy ──► the handle's memory
//! ```
//!
//! The paper's outlook (Stratikopoulos et al., section VI: functions that users define, such as encryption,
//! in the path of data). The drive reads and writes memory of the engine's own, so a caller sees nothing of
//! what is on the drive but what the function gives it, and the drive nothing but what the function lets
//! out: also if the caller is another process, and hostile.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use bus::{Arena, Buffer, Memory, OutOfMemory};
use wire::BusAddr;

/// The longest block, bytes.
const BLOCK_MAX: usize = 8192;

/// A function refuses a block: its request fails with
/// [`Refusal::Function`](wire::fastpath::Refusal::Function).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// What is done to blocks on their way. `place` says where a block lies on the drive, in bytes; blocks are
/// of 512 B to 8 KiB, and begin at multiples of their size. Commands of one request come in any order.
pub trait Function {
    /// A block on its way to the drive.
    ///
    /// # Errors
    /// It is not to be written.
    fn outward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused>;

    /// A block on its way from the drive.
    ///
    /// # Errors
    /// It is not to be had.
    fn inward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused>;

    /// A block that went outward is written, or it is not known what the drive has there.
    fn written(&mut self, place: u64, bytes: usize, good: bool) {
        let _ = (place, bytes, good);
    }
}

impl<F: Function + ?Sized> Function for Box<F> {
    fn outward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused> {
        (**self).outward(place, block)
    }

    fn inward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused> {
        (**self).inward(place, block)
    }

    fn written(&mut self, place: u64, bytes: usize, good: bool) {
        (**self).written(place, bytes, good);
    }
}

/// A function that handles share.
pub type Shared = Rc<RefCell<dyn Function>>;

/// What the blocks of a handle pass.
#[derive(Clone)]
pub(super) struct Through {
    pub function: Shared,
    /// Where the handle's memory lies.
    pub memory: Memory,
}

/// Memory of the engine's own for one block on its way.
pub(super) struct Staging {
    /// What the drive reaches.
    pub buffer: Buffer,
    /// What the function works on: nobody else writes to it meanwhile.
    scratch: Box<[u8]>,
}

impl Staging {
    /// So many of them.
    pub fn new(arena: &Arena, count: usize) -> Result<Vec<Staging>, OutOfMemory> {
        let one = |_| {
            let buffer = arena.buffer(BLOCK_MAX)?;
            Ok(Staging { buffer, scratch: vec![0; BLOCK_MAX].into() })
        };
        (0..count).map(one).collect()
    }

    /// From the handle's memory at `at` outward.
    pub fn fill(
        &mut self,
        through: &Through,
        at: BusAddr,
        place: u64,
        bytes: usize,
    ) -> Result<(), Refused> {
        let block = &mut self.scratch[..bytes];
        through.memory.read(at, block).map_err(|_| Refused)?;
        through.function.borrow_mut().outward(place, block)?;
        self.buffer.copy_in(0, block);
        Ok(())
    }

    /// Inward, and to the handle's memory at `at`; if the function refuses, nothing gets there.
    pub fn empty(
        &mut self,
        through: &Through,
        at: BusAddr,
        place: u64,
        bytes: usize,
    ) -> Result<(), Refused> {
        let block = &mut self.scratch[..bytes];
        self.buffer.copy_out(0, block);
        through.function.borrow_mut().inward(place, block)?;
        through.memory.write(at, block).map_err(|_| Refused)
    }
}
