//! Heap: pieces of power-of-two length, with a free list per length.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;

use crate::lock::Lock;

/// Log2 of the shortest piece, which has space for a free list's link.
const LEAST_LOG2: u32 = 4;
const CLASSES: usize = 28;

/// Unused memory, and free lists by log2 of the length. Shared by all cores.
pub struct Heap(Lock<State>);

struct State {
    /// Start and end of the part that was never allocated.
    fresh: usize,
    end: usize,
    free: [usize; CLASSES],
}

#[global_allocator]
static HEAP: Heap = Heap(Lock::new(State { fresh: 0, end: 0, free: [0; CLASSES] }));

/// Gives the heap `bytes` bytes of memory at `at`.
///
/// # Safety
/// The range must be identity-mapped memory without any other user. To be called once.
pub unsafe fn begin(at: usize, bytes: usize) {
    let mut state = HEAP.0.lock();
    (state.fresh, state.end) = (at, at + bytes);
}

fn class(layout: Layout) -> usize {
    let bytes = layout.size().max(layout.align()).max(1 << LEAST_LOG2).next_power_of_two();
    (bytes.ilog2() - LEAST_LOG2) as usize
}

// SAFETY: a piece is at least as long as requested, and starts at a multiple of its length, hence of the
// alignment. It is in one state only: allocated, in a free list, or in the part that was never allocated.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let class = class(layout);
        if class >= CLASSES {
            return null_mut();
        }
        let (mut state, bytes) = (self.0.lock(), 1 << (class as u32 + LEAST_LOG2));
        let piece = state.free[class];
        if piece != 0 {
            let piece = core::ptr::with_exposed_provenance_mut::<usize>(piece);
            // SAFETY: a piece in a free list holds the link to the next piece.
            state.free[class] = unsafe { piece.read() };
            return piece.cast();
        }
        let at = state.fresh.next_multiple_of(bytes);
        match at.checked_add(bytes) {
            Some(end) if at != 0 && end <= state.end => {
                state.fresh = end;
                core::ptr::with_exposed_provenance_mut(at)
            }
            _ => null_mut(),
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        let class = class(layout);
        let mut state = self.0.lock();
        // SAFETY: the piece is from `alloc`, and is long enough for a link.
        unsafe { piece.cast::<usize>().write(state.free[class]) };
        state.free[class] = piece.expose_provenance();
    }
}
