//! Memory that another party may write at any moment, and the only functions that access it.
//!
//! A module of the bus with `unsafe`. Shared bytes are never a `&[u8]`: they are copied into and out of
//! private memory through [`Memory::read`] and [`Memory::write`]; single words are loaded with acquire and
//! stored with release. A party that breaks the protocol by writing during a copy causes a mixture of old and
//! new bytes and nothing worse: every access is atomic, word by word or byte by byte. On x86-64, copies of
//! more than 128 bytes are `rep movsb`, which the compiler must take for such a loop. `tools/test miri`
//! checks the loop, its bounds and its ordering; it checks neither `rep movsb` nor the prefetch for writing,
//! for which Rust has no safe function.
#![allow(unsafe_code)]

use alloc::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use alloc::sync::Arc;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::OutOfRange;
use wire::BusAddr;

/// Alignment of the begin and end of regions, in bytes.
pub const REGION_ALIGN: usize = 4096;

/// Owner of the bytes: frees or unmaps them.
enum Owner {
    Heap {
        block: NonNull<u8>,
        layout: Layout,
    },
    #[cfg(feature = "std")]
    Mapping(crate::mapped::Mapped),
    /// Mapping of a peer's file, whose pages may disappear.
    #[cfg(feature = "std")]
    Guarded(crate::mapped::Mapped, &'static crate::guard::Slot),
    Lent,
}

struct Region {
    start: NonNull<u8>,
    bytes: usize,
    /// False for a read-only mapping.
    writable: bool,
    owner: Owner,
}

// SAFETY: a region is plain bytes at a fixed address. It is only reached through atomic accesses (or, on
// x86-64, string moves that have the effect of byte-sized relaxed atomic accesses), so any number of
// threads may access it at once; the owner frees it once, when the last handle is dropped.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// A region of memory on the bus. Cheap to clone; every clone is the same bytes.
#[derive(Clone)]
pub struct Memory {
    region: Arc<Region>,
    base: BusAddr,
}

impl Memory {
    /// Allocates zeroed memory of this process at bus address `base`. `bytes` is rounded up to a page.
    pub fn private(bytes: usize, base: BusAddr) -> Memory {
        let bytes = bytes.next_multiple_of(REGION_ALIGN).max(REGION_ALIGN);
        // Aligned here, because an allocator that aligns clears the memory explicitly, and so touches all
        // of it.
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

    /// Wraps memory with another owner, as given to a driver without an operating system.
    ///
    /// # Safety
    /// `start` is aligned to [`REGION_ALIGN`] and points to `bytes` readable and writable bytes, which stay
    /// valid while any clone lives and are not reached by a Rust reference meanwhile.
    pub unsafe fn lent(start: NonNull<u8>, bytes: usize, base: BusAddr) -> Memory {
        assert!(start.as_ptr().addr().is_multiple_of(REGION_ALIGN));
        let owner = Owner::Lent;
        Memory { region: Arc::new(Region { start, bytes, writable: true, owner }), base }
    }

    /// Maps zeros at bus addresses from 0, on huge pages if there are any: only written bytes take memory.
    ///
    /// # Errors
    /// The system has no room for it.
    #[cfg(feature = "std")]
    pub fn anonymous(bytes: usize) -> std::io::Result<Memory> {
        let (bytes, base) = (bytes.next_multiple_of(REGION_ALIGN).max(REGION_ALIGN), BusAddr(0));
        let mapped = crate::mapped::Mapped::anonymous(bytes)?;
        let (start, owner) = (mapped.start(), Owner::Mapping(mapped));
        Ok(Memory { region: Arc::new(Region { start, bytes, writable: true, owner }), base })
    }

    /// Maps `fd`; unmapped with the last clone.
    #[cfg(feature = "std")]
    pub(crate) fn map(
        fd: std::os::fd::BorrowedFd<'_>,
        bytes: usize,
        base: BusAddr,
    ) -> std::io::Result<Memory> {
        let mapped = crate::mapped::Mapped::new(fd, 0, bytes, true)?;
        let (start, owner) = (mapped.start(), Owner::Mapping(mapped));
        Ok(Memory { region: Arc::new(Region { start, bytes, writable: true, owner }), base })
    }

    /// Maps a part of a peer's file, which may be truncated at any time: see [`is_lost`](Self::is_lost).
    #[cfg(feature = "std")]
    pub(crate) fn map_guarded(
        fd: std::os::fd::BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        base: BusAddr,
        writable: bool,
    ) -> std::io::Result<Memory> {
        let mapped = crate::mapped::Mapped::new(fd, offset, bytes, writable)?;
        let (at, length) = mapped.whole();
        let slot = match crate::guard::guard(at, length) {
            Ok(slot) => slot,
            Err(error) => {
                // SAFETY: the mapping was just made, and has no other user.
                unsafe { mapped.unmap() };
                return Err(error);
            }
        };
        let (start, owner) = (mapped.start(), Owner::Guarded(mapped, slot));
        Ok(Memory { region: Arc::new(Region { start, bytes, writable, owner }), base })
    }

    /// Populates a writable mapping: what its file lacks (disk space, length) is an error here, not a lost
    /// store later.
    #[cfg(feature = "std")]
    pub(crate) fn populate(&self) -> std::io::Result<()> {
        crate::mapped::populate(self.region.start, self.region.bytes)
    }

    /// Returns true if the file behind this memory has failed since it was mapped: reads since then may
    /// have returned zeros, and writes are lost.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        match &self.region.owner {
            Owner::Guarded(_, slot) => slot.is_lost(),
            _ => false,
        }
    }

    /// Start address in this process, for the kernel; it must not be dereferenced.
    #[cfg(feature = "std")]
    pub(crate) fn start(&self) -> *mut u8 {
        self.region.start.as_ptr()
    }

    /// The same bytes at another bus address.
    pub fn at_base(&self, base: BusAddr) -> Memory {
        Memory { region: self.region.clone(), base }
    }

    /// Address of these bytes in this process, for foreign code that takes a pointer. It is valid while any
    /// clone lives; all other accesses are atomic, word by word.
    ///
    /// # Errors
    /// If the bytes do not lie inside, or are read-only.
    pub fn address(&self, at: BusAddr, bytes: usize) -> Result<*mut u8, OutOfRange> {
        self.place_to_change(at, bytes)
    }

    /// Bus address of the first byte.
    pub fn base(&self) -> BusAddr {
        self.base
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.region.bytes
    }

    /// Returns true if the `bytes` bytes at `at` lie inside.
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

    /// Address of writable bytes. Fails on read-only memory.
    #[inline]
    fn place_to_change(&self, at: BusAddr, bytes: usize) -> Result<*mut u8, OutOfRange> {
        if !self.region.writable {
            return Err(OutOfRange { at, bytes });
        }
        self.place(at, bytes)
    }

    /// Copies bytes out. Sees everything published by a word that was loaded before with acquire.
    #[inline]
    pub fn read(&self, at: BusAddr, to: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.place(at, to.len())?;
        // SAFETY: `from` is valid for `to.len()` bytes and `to` is exclusive.
        unsafe { copy_out(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies bytes in. A word stored afterwards with release publishes them.
    #[inline]
    pub fn write(&self, at: BusAddr, from: &[u8]) -> Result<(), OutOfRange> {
        let to = self.place_to_change(at, from.len())?;
        // SAFETY: `to` is valid for `from.len()` bytes, which no reference reaches.
        unsafe { copy_in(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Loads 8-byte words in native byte order if `is_new` accepts the last one, which holds a flag. The
    /// last word is loaded first and with acquire: its writer's earlier stores are visible in the other
    /// words and afterwards.
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
        // SAFETY: in range and aligned, and the region is only reached by atomic accesses.
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

    /// Stores 8-byte words, as [`write`](Self::write).
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

    /// Copies bytes in. If they end with a flag, that word is stored after the rest and with release.
    ///
    /// # Panics
    /// If there is a flag, and the bytes are shorter than a word or do not end on a word boundary.
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

    /// Fills bytes with zeros.
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

    /// Prefetches the lines of these bytes for writing. No-op where there is no such instruction.
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

    /// As [`prefetch`](Self::prefetch), for reading.
    #[inline]
    pub fn prefetch_to_read(&self, at: BusAddr, bytes: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Ok(start) = self.place(at, bytes) {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            for line in (0..bytes).step_by(LINE) {
                // SAFETY: a prefetch accesses nothing that the program can see and faults nowhere.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
            }
        }
    }

    /// As [`prefetch`](Self::prefetch), for the cache line of this byte.
    #[inline]
    pub fn prefetch_line(&self, at: BusAddr) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Ok(place) = self.place(at, 1) {
            prefetch_place(place);
        }
    }

    /// Loads a word with acquire: stores before the writer's release are visible afterwards.
    ///
    /// # Panics
    /// If `at` is not 4-byte aligned.
    #[inline]
    pub fn load_u32(&self, at: BusAddr) -> Result<u32, OutOfRange> {
        Ok(u32::from_le(self.word(at)?.load(Ordering::Acquire)))
    }

    /// Stores a word with release: a load of it with acquire sees the stores before it.
    ///
    /// # Panics
    /// If `at` is not 4-byte aligned.
    #[inline]
    pub fn store_u32(&self, at: BusAddr, value: u32) -> Result<(), OutOfRange> {
        self.place_to_change(at, 4)?;
        self.word(at)?.store(value.to_le(), Ordering::Release);
        Ok(())
    }

    /// As [`load_u32`](Self::load_u32), of eight bytes.
    ///
    /// # Panics
    /// If `at` is not 8-byte aligned.
    #[inline]
    pub fn load_u64(&self, at: BusAddr) -> Result<u64, OutOfRange> {
        Ok(u64::from_le(self.doubleword(at)?.load(Ordering::Acquire)))
    }

    /// As [`store_u32`](Self::store_u32), of eight bytes, which become visible at once.
    ///
    /// # Panics
    /// If `at` is not 8-byte aligned.
    #[inline]
    pub fn store_u64(&self, at: BusAddr, value: u64) -> Result<(), OutOfRange> {
        self.place_to_change(at, 8)?;
        self.doubleword(at)?.store(value.to_le(), Ordering::Release);
        Ok(())
    }

    /// Adds to a word, with acquire and release; returns its previous value.
    ///
    /// # Panics
    /// If `at` is not 4-byte aligned.
    pub fn add_u32(&self, at: BusAddr, value: u32) -> Result<u32, OutOfRange> {
        const { assert!(cfg!(target_endian = "little"), "shared counters are little-endian") };
        self.place_to_change(at, 4)?;
        Ok(self.word(at)?.fetch_add(value, Ordering::AcqRel))
    }

    /// Stores `new` in an 8-byte word if it is `current`, with acquire. Returns false if it is not.
    ///
    /// # Panics
    /// If `at` is not 8-byte aligned.
    #[inline]
    pub fn exchange_u64(&self, at: BusAddr, current: u64, new: u64) -> Result<bool, OutOfRange> {
        self.place_to_change(at, 8)?;
        let (word, current, new) = (self.doubleword(at)?, current.to_le(), new.to_le());
        Ok(word.compare_exchange(current, new, Ordering::Acquire, Ordering::Relaxed).is_ok())
    }

    #[inline]
    fn word(&self, at: BusAddr) -> Result<&AtomicU32, OutOfRange> {
        let place = self.place(at, 4)?;
        if !place.addr().is_multiple_of(4) {
            not_aligned(at);
        }
        // SAFETY: in range and aligned; the region lives as long as `self`, and is only reached by atomic
        // accesses.
        Ok(unsafe { AtomicU32::from_ptr(place.cast()) })
    }

    #[inline]
    fn doubleword(&self, at: BusAddr) -> Result<&AtomicU64, OutOfRange> {
        let place = self.place(at, 8)?;
        if !place.addr().is_multiple_of(8) {
            not_aligned(at);
        }
        // SAFETY: as for a word.
        Ok(unsafe { AtomicU64::from_ptr(place.cast()) })
    }
}

/// Prefetches one cache line for writing.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn prefetch_place(place: *mut u8) {
    // The compiler's intrinsic becomes a read prefetch if the target processor is unknown, and the line
    // would still be shared. Processors without `prefetchw` execute it as a no-op.
    // SAFETY: a prefetch accesses nothing that the program can see and faults nowhere.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags));
    }
}

/// Out of line, so that the check is small enough to be inlined.
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

/// Length of a cache line, bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;

/// Copies up to this length, in bytes, are done word by word: a string move has a higher start-up cost.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT: usize = 128;

/// Copies `bytes` bytes out of shared memory.
///
/// # Safety
/// Both ranges are valid for `bytes` bytes and do not overlap; `to` is exclusive.
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
/// Both ranges are valid for `bytes` bytes and do not overlap; `from` is not written meanwhile.
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
/// Both ranges are valid for `bytes` bytes and do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn move_string(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise. To the compiler this is an opaque block that may access memory as a
    // loop of relaxed atomic byte accesses would. An x86 string move makes each byte such an access, so a
    // racing writer can mix bytes and nothing else. The direction flag is clear by the calling convention.
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

/// [`copy_out`] for short copies, for processors without a string move, and under Miri: relaxed atomic
/// words if the shared address is aligned, else bytes.
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

/// [`copy_in`] for the same cases; see [`copy_out_portably`].
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
mod tests;
#[cfg(test)]
mod copies {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const BASE: BusAddr = BusAddr(0x1_0000_0000);

    #[test]
    fn portable_and_string_copies_agree() {
        let source: Vec<u8> = (0..600).map(|i| (i * 7) as u8).collect();
        for (skip, bytes) in [(0, 512), (1, 511), (3, 64), (8, 8), (5, 0), (7, 593)] {
            let (from, to) = (&source[skip..skip + bytes], &mut vec![0; bytes]);
            let at = BusAddr(BASE.0 + skip as u64);
            // Separate memory for each copy: Miri refuses a location written by words and then by bytes.
            let memory = Memory::private(4096, BASE);
            let shared = memory.place(at, bytes).unwrap();
            // SAFETY: the ranges are private to this test, distinct and long enough.
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
}
