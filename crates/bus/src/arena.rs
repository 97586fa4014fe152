//! Allocator of host memory that a device can access.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;

use crate::OutOfRange;
use crate::shared::Memory;
use wire::BusAddr;

/// Size granularity and alignment of buffers, in bytes.
pub const BUFFER_ALIGN: usize = 4096;

/// Allocates buffers of one region. Cheap to clone; bound to its thread, like its queues.
#[derive(Clone)]
pub struct Arena {
    memory: Memory,
    state: Rc<RefCell<State>>,
}

struct State {
    /// Begin of the part that was never allocated, in bytes from the region's start.
    fresh: usize,
    /// Begin and end of this arena's part of the region.
    begin: usize,
    end: usize,
    /// Freed buffers, by log2 of their size.
    free: [Vec<u64>; CLASSES],
    /// Bytes currently allocated.
    used: usize,
}

const CLASS_MIN_LOG2: u32 = BUFFER_ALIGN.ilog2();
const CLASSES: usize = 24;

/// Error: no free range of this length is left in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Requested size, in bytes.
    pub wanted: usize,
    /// Total size of the arena, in bytes.
    pub total: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no {} bytes left of the {} bytes of host memory shared with the device",
            self.wanted, self.total
        )
    }
}

impl core::error::Error for OutOfMemory {}

impl Arena {
    /// Allocates from all of `memory`.
    pub fn new(memory: Memory) -> Arena {
        let bytes = memory.bytes();
        Arena::within(memory, 0, bytes)
    }

    /// Allocates from part `part`, counted from 0, of `parts` equal parts of `memory`. Arenas of other
    /// threads allocate from the other parts.
    ///
    /// # Panics
    /// If `part >= parts`.
    pub fn part(memory: Memory, part: usize, parts: usize) -> Arena {
        assert!(part < parts, "part {part} of {parts}");
        let bytes = memory.bytes() / parts / BUFFER_ALIGN * BUFFER_ALIGN;
        Arena::within(memory, part * bytes, bytes)
    }

    /// Allocates from the `bytes` bytes of `memory` at offset `from`. Arenas of other threads allocate from
    /// the rest.
    ///
    /// # Panics
    /// If the range does not lie inside `memory`, or does not begin at a multiple of [`BUFFER_ALIGN`].
    pub fn within(memory: Memory, from: usize, bytes: usize) -> Arena {
        let is_inside = from <= memory.bytes() && bytes <= memory.bytes() - from;
        assert!(from.is_multiple_of(BUFFER_ALIGN) && is_inside, "{bytes} bytes from {from} on");
        let free = core::array::from_fn(|_| Vec::new());
        let state = State { fresh: from, begin: from, end: from + bytes, free, used: 0 };
        Arena { memory, state: Rc::new(RefCell::new(state)) }
    }

    /// The underlying region.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Total size in bytes.
    pub fn bytes(&self) -> usize {
        let state = self.state.borrow();
        state.end - state.begin
    }

    /// Bytes allocated for a buffer of `bytes` bytes: rounded up to a power of two.
    pub fn taken_by(&self, bytes: usize) -> usize {
        bytes.max(1).next_power_of_two().max(BUFFER_ALIGN)
    }

    /// Bytes currently allocated, with rounding.
    pub fn used_bytes(&self) -> usize {
        self.state.borrow().used
    }

    /// Allocates a buffer of `bytes` bytes, contiguous on the bus and aligned to [`BUFFER_ALIGN`]. Its
    /// contents are undefined.
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        let mut state = self.state.borrow_mut();
        let full = OutOfMemory { wanted: bytes, total: state.end - state.begin };
        let class = bytes.max(1).next_power_of_two().ilog2().max(CLASS_MIN_LOG2) - CLASS_MIN_LOG2;
        if class as usize >= CLASSES {
            return Err(full);
        }
        let size = BUFFER_ALIGN << class;
        let at = match state.free[class as usize].pop() {
            Some(at) => at,
            None if size <= state.end - state.fresh => {
                state.fresh += size;
                self.memory.base().0 + (state.fresh - size) as u64
            }
            None => return Err(full),
        };
        state.used += size;
        drop(state);
        let home = Home { arena: self.clone(), at, class: class as usize };
        Ok(Buffer { at: BusAddr(at), bytes, home: Rc::new(home) })
    }
}

struct Home {
    arena: Arena,
    at: u64,
    class: usize,
}

impl Drop for Home {
    fn drop(&mut self) {
        let mut state = self.arena.state.borrow_mut();
        state.free[self.class].push(self.at);
        state.used -= BUFFER_ALIGN << self.class;
    }
}

/// A buffer in shared memory, contiguous on the bus. A queue owns it for the time of a command and returns
/// it with the completion; it is freed when dropped.
pub struct Buffer {
    at: BusAddr,
    bytes: usize,
    home: Rc<Home>,
}

impl Buffer {
    /// Bus address of the first byte.
    #[inline]
    pub fn at(&self) -> BusAddr {
        self.at
    }

    /// Length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory that holds the buffer.
    #[inline]
    pub fn memory(&self) -> &Memory {
        &self.home.arena.memory
    }

    /// A sub-buffer of `bytes` bytes at `offset`. It shares the allocation, which is freed when both are
    /// dropped.
    ///
    /// # Panics
    /// If the range does not lie inside the buffer.
    #[inline]
    pub fn part(&self, offset: usize, bytes: usize) -> Buffer {
        self.assert_inside(offset, bytes);
        Buffer { at: BusAddr(self.at.0 + offset as u64), bytes, home: self.home.clone() }
    }

    /// Copies bytes into the buffer.
    ///
    /// # Panics
    /// If they do not fit.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        self.assert_inside(offset, from.len());
        inside(self.memory().write(BusAddr(self.at.0 + offset as u64), from));
    }

    /// Copies bytes out of the buffer.
    ///
    /// # Panics
    /// If the range does not lie inside the buffer.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.assert_inside(offset, to.len());
        inside(self.memory().read(BusAddr(self.at.0 + offset as u64), to));
    }

    /// Stores 8-byte words in native byte order.
    ///
    /// # Panics
    /// If they do not fit, or are not 8-byte aligned.
    #[inline]
    pub fn write_words<const N: usize>(&self, offset: usize, words: [u64; N]) {
        self.assert_inside(offset, 8 * N);
        inside(self.memory().write_words(BusAddr(self.at.0 + offset as u64), words));
    }

    /// Loads 8-byte words in native byte order if `is_new` accepts the last one: see
    /// [`Memory::read_words_if`].
    ///
    /// # Panics
    /// If they do not lie inside the buffer, or are not 8-byte aligned.
    #[inline]
    pub fn read_words_if<const N: usize>(
        &self,
        offset: usize,
        is_new: impl FnOnce(u64) -> bool,
    ) -> Option<[u64; N]> {
        self.assert_inside(offset, 8 * N);
        inside(self.memory().read_words_if(BusAddr(self.at.0 + offset as u64), is_new))
    }

    /// Fills the buffer with zeros.
    pub fn zero(&self) {
        inside(self.memory().zero(self.at, self.bytes));
    }

    /// Loads a word with acquire.
    ///
    /// # Panics
    /// If it does not lie inside the buffer, or is not 4-byte aligned.
    #[inline]
    pub fn load_u32(&self, offset: usize) -> u32 {
        self.assert_inside(offset, 4);
        inside(self.memory().load_u32(BusAddr(self.at.0 + offset as u64)))
    }

    /// Stores a word with release.
    ///
    /// # Panics
    /// If it does not lie inside the buffer, or is not 4-byte aligned.
    #[inline]
    pub fn store_u32(&self, offset: usize, value: u32) {
        self.assert_inside(offset, 4);
        inside(self.memory().store_u32(BusAddr(self.at.0 + offset as u64), value));
    }

    /// Loads eight bytes with acquire.
    ///
    /// # Panics
    /// If they do not lie inside the buffer, or are not 8-byte aligned.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.assert_inside(offset, 8);
        inside(self.memory().load_u64(BusAddr(self.at.0 + offset as u64)))
    }

    /// Stores eight bytes at once, with release.
    ///
    /// # Panics
    /// If they do not lie inside the buffer, or are not 8-byte aligned.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.assert_inside(offset, 8);
        inside(self.memory().store_u64(BusAddr(self.at.0 + offset as u64), value));
    }

    #[inline]
    fn assert_inside(&self, offset: usize, bytes: usize) {
        if offset > self.bytes || bytes > self.bytes - offset {
            self.is_left(offset, bytes);
        }
    }

    /// Out of line, so that the check is small enough to be inlined.
    #[cold]
    #[inline(never)]
    fn is_left(&self, offset: usize, bytes: usize) -> ! {
        panic!("{bytes} bytes at {offset} do not lie in a buffer of {} bytes", self.bytes);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:#x})", self.bytes, self.at.0)
    }
}

#[inline]
fn inside<T>(result: Result<T, OutOfRange>) -> T {
    match result {
        Ok(done) => done,
        Err(_) => not_ours(),
    }
}

#[cold]
#[inline(never)]
fn not_ours() -> ! {
    panic!("an arena hands out only its own region")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(bytes: usize) -> Arena {
        Arena::new(Memory::private(bytes, BusAddr(0x10_0000)))
    }

    #[test]
    fn buffer_freed_with_its_last_part() {
        let arena = arena(8192);
        let buffer = arena.buffer(8192).unwrap();
        let part = buffer.part(4096, 100);
        drop(buffer);
        assert_eq!(arena.buffer(8192).unwrap_err(), OutOfMemory { wanted: 8192, total: 8192 });
        drop(part);
        assert!(arena.buffer(5000).is_ok());
    }

    #[test]
    fn arenas_of_one_region_allocate_disjoint_parts() {
        let memory = Memory::private(24 * 1024, BusAddr(0x10_0000));
        let lower = Arena::within(memory.clone(), 0, 8192);
        let upper = Arena::within(memory, 8192, 16 * 1024);
        let (first, second) = (lower.buffer(8192).unwrap(), upper.buffer(16 * 1024).unwrap());
        assert_eq!((first.at(), second.at()), (BusAddr(0x10_0000), BusAddr(0x10_2000)));
        assert_eq!(lower.buffer(1).unwrap_err(), OutOfMemory { wanted: 1, total: 8192 });
        assert_eq!(upper.buffer(1).unwrap_err(), OutOfMemory { wanted: 1, total: 16 * 1024 });
    }

    #[test]
    fn buffers_do_not_overlap() {
        let arena = arena(64 * 1024);
        let buffers: Vec<Buffer> = (0..4).map(|i| arena.buffer(4096 << (i % 3)).unwrap()).collect();
        for (i, buffer) in buffers.iter().enumerate() {
            buffer.copy_in(0, &alloc::vec![i as u8 + 1; buffer.bytes()]);
        }
        for (i, buffer) in buffers.iter().enumerate() {
            let mut last = [0];
            buffer.copy_out(buffer.bytes() - 1, &mut last);
            assert_eq!(last, [i as u8 + 1]);
        }
    }

    #[test]
    #[should_panic(expected = "do not lie in a buffer of 512 bytes")]
    fn buffer_rejects_copy_beyond_its_requested_length() {
        arena(4096).buffer(512).unwrap().copy_in(510, &[1, 2, 3]);
    }
}
