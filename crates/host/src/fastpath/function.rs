//! Functions on the data path: transformations of a handle's blocks between memory and drive.
//!
//! ```text
//!   write   the handle's memory ── copy ──► outward ──► staging ── the drive's DMA ──► drive
//!   read    drive ── the drive's DMA ──► staging ──► inward ── copy ──► the handle's memory
//! ```
//!
//! The paper's outlook (Stratikopoulos et al., section VI: user-defined functions, such as encryption, on the
//! data path). The drive accesses only the engine's staging memory. So a caller sees only the function's
//! output, and the drive gets only the function's output, even if the caller is another process and
//! malicious.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use bus::{Arena, Buffer, Memory, OutOfMemory};
use wire::BusAddr;

/// Longest block in bytes.
const BLOCK_MAX: usize = 8192;

/// Rejection of a block by a function: the request fails with
/// [`Refusal::Function`](wire::fastpath::Refusal::Function).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// A transformation of blocks. `place` is the block's byte offset on the drive; blocks have 512 B to 8 KiB
/// and are aligned to their size. Commands of one request arrive in any order.
pub trait Function {
    /// Transforms a block on its way to the drive.
    ///
    /// # Errors
    /// [`Refused`]: the block is not written.
    fn outward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused>;

    /// Transforms a block on its way from the drive.
    ///
    /// # Errors
    /// [`Refused`]: the block is not returned.
    fn inward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused>;

    /// Reports that a read of a block begins. It ends with [`inward`](Self::inward), or fails.
    fn reading(&mut self, place: u64, bytes: usize) {
        let _ = (place, bytes);
    }

    /// Reports that a read of a block has failed.
    fn unread(&mut self, place: u64, bytes: usize) {
        let _ = (place, bytes);
    }

    /// Reports the end of an outward block's write. If `good` is false, the drive's contents are unknown.
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

    fn reading(&mut self, place: u64, bytes: usize) {
        (**self).reading(place, bytes);
    }

    fn unread(&mut self, place: u64, bytes: usize) {
        (**self).unread(place, bytes);
    }
}

/// A function that several handles may share.
pub type Shared = Rc<RefCell<dyn Function>>;

#[derive(Clone)]
pub(super) struct Through {
    pub function: Shared,
    /// Memory that holds the handle's buffer.
    pub memory: Memory,
}

/// Staging memory of the engine for one block.
pub(super) struct Staging {
    /// Buffer for the drive's DMA.
    pub buffer: Buffer,
    /// Private copy for the function: no peer can write to it.
    scratch: Box<[u8]>,
}

impl Staging {
    /// Allocates `count` of them.
    pub fn new(arena: &Arena, count: usize) -> Result<Vec<Staging>, OutOfMemory> {
        let one = |_| {
            let buffer = arena.buffer(BLOCK_MAX)?;
            Ok(Staging { buffer, scratch: vec![0; BLOCK_MAX].into() })
        };
        (0..count).map(one).collect()
    }

    /// Copies a block from the handle's memory at `at` and passes it outward.
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

    /// Passes a block inward and copies it to the handle's memory at `at`; copies nothing if the function
    /// rejects it.
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
