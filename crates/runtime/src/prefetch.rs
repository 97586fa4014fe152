//! Prefetching memory that will be read soon.
#![allow(unsafe_code)]

/// Length of a cache line, bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;

/// Prefetches the cache lines of these bytes for reading. No-op on processors without such an instruction.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in bytes.chunks(LINE) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch accesses nothing that the program can see and faults nowhere; SSE is part of
        // x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = bytes;
}

/// As [`prefetch`], for writing: no other core keeps the lines.
#[inline]
pub fn prefetch_to_write(bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in bytes.chunks(LINE) {
        // The compiler's intrinsic becomes a prefetch for reading if the target processor is unknown.
        // Processors without `prefetchw` execute it as a no-op.
        // SAFETY: a prefetch accesses nothing that the program can see and faults nowhere.
        unsafe {
            core::arch::asm!(
                "prefetchw [{}]",
                in(reg) line.as_ptr(),
                options(nostack, preserves_flags),
            );
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = bytes;
}
