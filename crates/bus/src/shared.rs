//! Memory that another party may write at any moment, and the only ways to touch it.
//!
//! A module of the bus with `unsafe`. Shared bytes are never a `&[u8]`: they cross
//! into private memory, and back, through [`Memory::read`] and [`Memory::write`]; single words are
//! loaded with acquire and stored with release. A party that breaks the protocol by writing while we
//! copy gives us some mixture of old and new bytes and nothing worse: every access is atomic, word by
//! word or byte by byte.
#![allow(unsafe_code)]

use alloc::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use alloc::sync::Arc;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use wire::BusAddr;

/// Regions begin and end on this boundary.
pub const REGION_ALIGN: usize = 4096;

/// Who returns the bytes, and how.
enum Owner {
    Heap {
        block: NonNull<u8>,
        layout: Layout,
    },
    #[cfg(feature = "std")]
    Mapping(crate::fd::Mapped),
    /// A mapping of a peer's file, which may fail under us.
    #[cfg(feature = "std")]
    Guarded(crate::fd::Mapped, &'static crate::guard::Slot),
    Lent,
}

struct Region {
    start: NonNull<u8>,
    bytes: usize,
    /// False for a mapping that may only be read.
    writable: bool,
    owner: Owner,
}

// SAFETY: a region is plain bytes at a fixed place. It is only ever reached through atomic accesses
// (or, on x86-64, string moves that have the effect of byte-sized relaxed atomic accesses), so any
// number of threads may do so at once; the owner frees it once, when the last handle goes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// A region of memory on the bus. Cheap to clone; every clone is the same bytes.
#[derive(Clone)]
pub struct Memory {
    region: Arc<Region>,
    base: BusAddr,
}

/// An access that does not lie wholly inside the memory it was meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// Its first byte.
    pub at: BusAddr,
    /// Its length in bytes.
    pub bytes: usize,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} are not in memory that the bus reaches", self.bytes, self.at.0)
    }
}

impl core::error::Error for OutOfRange {}

impl Memory {
    /// Zeroed memory of this process, seen on the bus at `base`. `bytes` is rounded up to a page.
    pub fn private(bytes: usize, base: BusAddr) -> Memory {
        let bytes = bytes.next_multiple_of(REGION_ALIGN).max(REGION_ALIGN);
        // Aligned here and not by the allocator: one that aligns has to clear the memory by hand, and
        // so touches all of it.
        let layout = Layout::from_size_align(bytes + REGION_ALIGN, 16).expect("it fits the heap");
        // SAFETY: the layout's size is not zero.
        let block = unsafe { alloc_zeroed(layout) };
        let Some(block) = NonNull::new(block) else { handle_alloc_error(layout) };
        let skip = block.as_ptr().addr().next_multiple_of(REGION_ALIGN) - block.as_ptr().addr();
        // SAFETY: the block is longer than the region by more than `skip`.
        let start = unsafe { block.add(skip) };
        let owner = Owner::Heap { block, layout };
        Memory { region: Arc::new(Region { start, bytes, writable: true, owner }), base }
    }

    /// Memory that somebody else keeps: what a driver without an operating system is given.
    ///
    /// # Safety
    /// `start` is aligned to [`REGION_ALIGN`] and points to `bytes` readable and writable bytes, which
    /// stay so as long as any clone lives and which no Rust reference reaches meanwhile.
    pub unsafe fn lent(start: NonNull<u8>, bytes: usize, base: BusAddr) -> Memory {
        assert!(start.as_ptr().addr().is_multiple_of(REGION_ALIGN));
        let owner = Owner::Lent;
        Memory { region: Arc::new(Region { start, bytes, writable: true, owner }), base }
    }

    /// A mapping of `fd`, unmapped with the last clone.
    #[cfg(feature = "std")]
    pub(crate) fn map(
        fd: std::os::fd::BorrowedFd<'_>,
        bytes: usize,
        base: BusAddr,
    ) -> std::io::Result<Memory> {
        let mapped = crate::fd::Mapped::new(fd, 0, bytes, true)?;
        let (start, owner) = (mapped.start(), Owner::Mapping(mapped));
        Ok(Memory { region: Arc::new(Region { start, bytes, writable: true, owner }), base })
    }

    /// A mapping of a part of a peer's file, which may be cut short under us: see
    /// [`is_lost`](Self::is_lost).
    #[cfg(feature = "std")]
    pub(crate) fn map_guarded(
        fd: std::os::fd::BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        base: BusAddr,
        writable: bool,
    ) -> std::io::Result<Memory> {
        let mapped = crate::fd::Mapped::new(fd, offset, bytes, writable)?;
        let (at, length) = mapped.whole();
        let slot = match crate::guard::guard(at, length) {
            Ok(slot) => slot,
            Err(error) => {
                // SAFETY: the mapping was just made, and nobody has seen it.
                unsafe { mapped.unmap() };
                return Err(error);
            }
        };
        let (start, owner) = (mapped.start(), Owner::Guarded(mapped, slot));
        Ok(Memory { region: Arc::new(Region { start, bytes, writable, owner }), base })
    }

    /// Faults all of a writable mapping in: what its file lacks (room on a disk, length) is an error here,
    /// and no lost store later.
    #[cfg(feature = "std")]
    pub(crate) fn populate(&self) -> std::io::Result<()> {
        crate::fd::populate(self.region.start, self.region.bytes)
    }

    /// Whether the file behind this memory has failed since it was mapped: what was read since then may
    /// be zeros, what was written is nowhere.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        match &self.region.owner {
            Owner::Guarded(_, slot) => slot.is_lost(),
            _ => false,
        }
    }

    /// Where it begins in this process: for handing to the kernel, never to be followed.
    #[cfg(feature = "std")]
    pub(crate) fn start(&self) -> *mut u8 {
        self.region.start.as_ptr()
    }

    /// The same bytes, seen on the bus somewhere else.
    pub fn at_base(&self, base: BusAddr) -> Memory {
        Memory { region: self.region.clone(), base }
    }

    /// Where bytes of it lie in this process: for who has to hand an address to a program that is not ours.
    /// It is good as long as any clone lives, and everything else that reaches it does so word by word.
    ///
    /// # Errors
    /// They do not lie inside, or may not be changed.
    pub fn address(&self, at: BusAddr, bytes: usize) -> Result<*mut u8, OutOfRange> {
        self.place_to_change(at, bytes)
    }

    /// Where it begins on the bus.
    pub fn base(&self) -> BusAddr {
        self.base
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.region.bytes
    }

    /// Whether `bytes` bytes at `at` lie inside.
    #[inline]
    pub fn holds(&self, at: BusAddr, bytes: usize) -> bool {
        let Some(offset) = at.0.checked_sub(self.base.0) else { return false };
        offset <= self.region.bytes as u64 && bytes as u64 <= self.region.bytes as u64 - offset
    }

    #[inline]
    fn place(&self, at: BusAddr, bytes: usize) -> Result<*mut u8, OutOfRange> {
        if !self.holds(at, bytes) {
            return Err(OutOfRange { at, bytes });
        }
        let offset = (at.0 - self.base.0) as usize;
        // SAFETY: `holds` has shown that offset + bytes lies in the region, which is one object.
        Ok(unsafe { self.region.start.as_ptr().add(offset) })
    }

    /// The place of bytes that are to be changed. Memory that may only be read has none.
    #[inline]
    fn place_to_change(&self, at: BusAddr, bytes: usize) -> Result<*mut u8, OutOfRange> {
        if !self.region.writable {
            return Err(OutOfRange { at, bytes });
        }
        self.place(at, bytes)
    }

    /// Copies bytes out. What was published by a word loaded before with acquire is seen.
    #[inline]
    pub fn read(&self, at: BusAddr, to: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.place(at, to.len())?;
        // SAFETY: `from` is valid for `to.len()` bytes and `to` is ours alone.
        unsafe { copy_out(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies bytes in. They are published by a word stored after with release.
    #[inline]
    pub fn write(&self, at: BusAddr, from: &[u8]) -> Result<(), OutOfRange> {
        let to = self.place_to_change(at, from.len())?;
        // SAFETY: `to` is valid for `from.len()` bytes, which no reference reaches.
        unsafe { copy_in(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Copies words of eight bytes out, each as it lies in memory, if the last of them, in which a flag lies,
    /// `is_new`. It is loaded first and with acquire: what its writer wrote before it is seen, here and from
    /// here on.
    ///
    /// # Panics
    /// If `at` is not 8-byte aligned.
    #[inline]
    pub fn read_words_if<const N: usize>(
        &self,
        at: BusAddr,
        is_new: impl FnOnce(u64) -> bool,
    ) -> Result<Option<[u64; N]>, OutOfRange> {
        let from = self.place(at, 8 * N)?;
        if !from.addr().is_multiple_of(8) {
            not_aligned(at);
        }
        // SAFETY: in range and aligned, and nobody reaches the region but by atomic accesses.
        let word = |n| unsafe { AtomicU64::from_ptr(from.add(8 * n).cast()) };
        let last = word(N - 1).load(Ordering::Acquire);
        if !is_new(last) {
            return Ok(None);
        }
        let words = core::array::from_fn(|n| match n {
            n if n == N - 1 => last,
            n => word(n).load(Ordering::Relaxed),
        });
        Ok(Some(words))
    }

    /// Copies such words in, as [`write`](Self::write).
    ///
    /// # Panics
    /// If `at` is not 8-byte aligned.
    #[inline]
    pub fn write_words<const N: usize>(
        &self,
        at: BusAddr,
        words: [u64; N],
    ) -> Result<(), OutOfRange> {
        let to = self.place_to_change(at, 8 * N)?;
        if !to.addr().is_multiple_of(8) {
            not_aligned(at);
        }
        for (n, word) in words.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { AtomicU64::from_ptr(to.add(8 * n).cast()) }.store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies bytes in; if they end with a flag, the last word after the rest and with release.
    ///
    /// # Panics
    /// If there is a flag, and the bytes are no whole word or do not end where a word does.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn put(&self, at: BusAddr, from: &[u8], flag: bool) -> Result<(), OutOfRange> {
        if !flag {
            return self.write(at, from);
        }
        let (body, word) = from.split_at(from.len() - 4);
        let word = u32::from_le_bytes(word.try_into().expect("four bytes"));
        self.place_to_change(at, from.len())?;
        self.write(at, body)?;
        self.store_u32(BusAddr(at.0 + body.len() as u64), word)
    }

    /// Sets bytes to zero.
    pub fn zero(&self, at: BusAddr, bytes: usize) -> Result<(), OutOfRange> {
        const ZEROS: [u8; 4096] = [0; 4096];
        self.place_to_change(at, bytes)?;
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(ZEROS.len());
            self.write(BusAddr(at.0 + done as u64), &ZEROS[..part])?;
            done += part;
        }
        Ok(())
    }

    /// Brings the lines of these bytes near, to be read or written soon. Does nothing where there is no such
    /// instruction, and nothing for bytes outside.
    #[inline]
    pub fn prefetch(&self, at: BusAddr, bytes: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Ok(start) = self.place(at, bytes) {
            let skew = start.addr() % LINE;
            for line in (0..bytes + skew).step_by(LINE) {
                prefetch_place(start.wrapping_sub(skew).wrapping_add(line));
            }
        }
    }

    /// As [`prefetch`](Self::prefetch), of the one line that this byte lies in.
    #[inline]
    pub fn prefetch_line(&self, at: BusAddr) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Ok(place) = self.place(at, 1) {
            prefetch_place(place);
        }
    }

    /// Loads a word with acquire: what its writer wrote before is seen after.
    ///
    /// # Panics
    /// If `at` is not 4-byte aligned.
    #[inline]
    pub fn load_u32(&self, at: BusAddr) -> Result<u32, OutOfRange> {
        Ok(u32::from_le(self.word(at)?.load(Ordering::Acquire)))
    }

    /// Stores a word with release: what we wrote before is seen by whoever loads it.
    ///
    /// # Panics
    /// If `at` is not 4-byte aligned.
    #[inline]
    pub fn store_u32(&self, at: BusAddr, value: u32) -> Result<(), OutOfRange> {
        self.place_to_change(at, 4)?;
        self.word(at)?.store(value.to_le(), Ordering::Release);
        Ok(())
    }

    /// Adds to a word, with release, and returns what it held before.
    ///
    /// # Panics
    /// If `at` is not 4-byte aligned.
    pub fn add_u32(&self, at: BusAddr, value: u32) -> Result<u32, OutOfRange> {
        const { assert!(cfg!(target_endian = "little"), "shared counters are little-endian") };
        self.place_to_change(at, 4)?;
        Ok(self.word(at)?.fetch_add(value, Ordering::AcqRel))
    }

    #[inline]
    fn word(&self, at: BusAddr) -> Result<&AtomicU32, OutOfRange> {
        let place = self.place(at, 4)?;
        if !place.addr().is_multiple_of(4) {
            not_aligned(at);
        }
        // SAFETY: in range and aligned; the region lives as long as `self`, and nobody reaches it but
        // by atomic accesses.
        Ok(unsafe { AtomicU32::from_ptr(place.cast()) })
    }
}

/// Brings the line of this place near, to be written soon.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn prefetch_place(place: *mut u8) {
    // The compiler's own prefetch becomes one for reading where it does not know the processor, and the line
    // would still be shared. Processors that lack this one take it for nothing.
    // SAFETY: a prefetch accesses nothing that the program can see and faults nowhere.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags));
    }
}

/// Out of line, so that what checks is small enough to be put where it is used.
#[cold]
#[inline(never)]
fn not_aligned(at: BusAddr) -> ! {
    panic!("a word at {:#x} is not aligned", at.0)
}

impl Drop for Region {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: allocated with this layout, and this is the last handle.
            Owner::Heap { block, layout } => unsafe { dealloc(block.as_ptr(), *layout) },
            // SAFETY: this is the last handle.
            #[cfg(feature = "std")]
            Owner::Mapping(mapped) => unsafe { mapped.unmap() },
            #[cfg(feature = "std")]
            Owner::Guarded(mapped, slot) => {
                slot.release();
                // SAFETY: as above.
                unsafe { mapped.unmap() };
            }
            Owner::Lent => {}
        }
    }
}

/// Bytes of a cache line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;

/// Copies of at most so many bytes are done word by word: a string move takes longer to begin.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT: usize = 128;

/// Copies `bytes` bytes out of shared memory.
///
/// # Safety
/// Both places are valid for `bytes` bytes and do not overlap; `to` is ours alone.
#[inline]
unsafe fn copy_out(shared: *mut u8, to: *mut u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes > SHORT {
        // SAFETY: the caller's promise.
        return unsafe { move_string(shared, to, bytes) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_out_portably(shared, to, bytes) }
}

/// Copies `bytes` bytes into shared memory.
///
/// # Safety
/// Both places are valid for `bytes` bytes and do not overlap; nobody writes to `from` meanwhile.
#[inline]
unsafe fn copy_in(from: *const u8, shared: *mut u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes > SHORT {
        // SAFETY: the caller's promise.
        return unsafe { move_string(from, shared, bytes) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_in_portably(from, shared, bytes) }
}

/// # Safety
/// Both places are valid for `bytes` bytes and do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn move_string(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise. The compiler sees an opaque block that may read and write memory
    // as a loop of relaxed atomic byte accesses would. An x86 string move makes each byte such an
    // access, so a racing writer can mix bytes and nothing else. The direction flag is clear by the
    // calling convention.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// [`copy_out`] for short copies, where there is no string move, and under Miri: relaxed atomic words
/// where the shared place is aligned, and bytes elsewhere.
///
/// # Safety
/// As [`copy_out`].
unsafe fn copy_out_portably(shared: *mut u8, to: *mut u8, bytes: usize) {
    let words = if shared.addr().is_multiple_of(8) { bytes / 8 } else { 0 };
    // SAFETY: every access lies in the caller's ranges, and the atomic words are aligned.
    unsafe {
        for word in 0..words {
            let value = AtomicU64::from_ptr(shared.add(8 * word).cast()).load(Ordering::Relaxed);
            to.add(8 * word).cast::<u64>().write_unaligned(value);
        }
        let mut done = 8 * words;
        if bytes - done >= 4 && shared.addr().is_multiple_of(4) {
            let value = AtomicU32::from_ptr(shared.add(done).cast()).load(Ordering::Relaxed);
            to.add(done).cast::<u32>().write_unaligned(value);
            done += 4;
        }
        for byte in done..bytes {
            to.add(byte).write(AtomicU8::from_ptr(shared.add(byte)).load(Ordering::Relaxed));
        }
    }
}

/// The other way; see [`copy_out_portably`].
///
/// # Safety
/// As [`copy_in`].
unsafe fn copy_in_portably(from: *const u8, shared: *mut u8, bytes: usize) {
    let words = if shared.addr().is_multiple_of(8) { bytes / 8 } else { 0 };
    // SAFETY: every access lies in the caller's ranges, and the atomic words are aligned.
    unsafe {
        for word in 0..words {
            let value = from.add(8 * word).cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(shared.add(8 * word).cast()).store(value, Ordering::Relaxed);
        }
        let mut done = 8 * words;
        if bytes - done >= 4 && shared.addr().is_multiple_of(4) {
            let value = from.add(done).cast::<u32>().read_unaligned();
            AtomicU32::from_ptr(shared.add(done).cast()).store(value, Ordering::Relaxed);
            done += 4;
        }
        for byte in done..bytes {
            let value = from.add(byte).read();
            AtomicU8::from_ptr(shared.add(byte)).store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const BASE: BusAddr = BusAddr(0x1_0000_0000);

    #[test]
    fn nothing_outside_is_reached() {
        let memory = Memory::private(4096, BASE);
        let mut byte = [0];
        assert!(memory.read(BusAddr(BASE.0 + 4095), &mut byte).is_ok());
        for at in [BASE.0 + 4096, BASE.0 - 1, 0, u64::MAX] {
            assert_eq!(
                memory.read(BusAddr(at), &mut byte),
                Err(OutOfRange { at: BusAddr(at), bytes: 1 })
            );
        }
        assert!(memory.write(BusAddr(BASE.0 + 4090), &[0; 7]).is_err());
        assert!(memory.zero(BASE, usize::MAX).is_err());
        assert!(memory.load_u32(BusAddr(BASE.0 + 4096)).is_err());
    }

    #[test]
    fn the_portable_copy_and_the_fast_one_agree() {
        let source: Vec<u8> = (0..600).map(|i| (i * 7) as u8).collect();
        for (skip, bytes) in [(0, 512), (1, 511), (3, 64), (8, 8), (5, 0), (7, 593)] {
            let (from, to) = (&source[skip..skip + bytes], &mut vec![0; bytes]);
            let at = BusAddr(BASE.0 + skip as u64);
            // Memory of its own each time: Miri does not follow a place that is written by words and
            // then by bytes.
            let memory = Memory::private(4096, BASE);
            let shared = memory.place(at, bytes).unwrap();
            // SAFETY: the places are private to this test, distinct and long enough.
            unsafe { copy_in_portably(from.as_ptr(), shared, bytes) };
            memory.read(at, to).unwrap();
            assert_eq!(to, from);
            to.fill(0);
            let memory = Memory::private(4096, BASE);
            let shared = memory.place(at, bytes).unwrap();
            memory.write(at, from).unwrap();
            // SAFETY: as above.
            unsafe { copy_out_portably(shared, to.as_mut_ptr(), bytes) };
            assert_eq!(to, from);
        }
    }

    /// The one ordering that every protocol here leans on, for Miri and for hardware.
    #[test]
    fn what_was_written_before_a_release_is_seen_after_the_acquire() {
        let memory = Memory::private(4096, BASE);
        let writer = memory.clone();
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 1..=rounds {
                    writer.write(BusAddr(BASE.0 + 64), &[round as u8; 64]).unwrap();
                    writer.store_u32(BASE, round).unwrap();
                    while writer.load_u32(BusAddr(BASE.0 + 4)).unwrap() != round {
                        std::thread::yield_now();
                    }
                }
            });
            for round in 1..=rounds {
                while memory.load_u32(BASE).unwrap() != round {
                    std::thread::yield_now();
                }
                let mut data = [0; 64];
                memory.read(BusAddr(BASE.0 + 64), &mut data).unwrap();
                assert_eq!(data, [round as u8; 64]);
                memory.store_u32(BusAddr(BASE.0 + 4), round).unwrap();
            }
        });
    }
}
