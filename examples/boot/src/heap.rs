//! The heap: pieces whose length is a power of two, by lists of those that came back.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;

use crate::lock::Lock;

/// The shortest piece has room for the link to the next one of its list.
const LEAST_LOG2: u32 = 4;
const CLASSES: usize = 28;

/// The room that is left, and what came back, by the power of two of its length. Every core may ask.
pub struct Heap(Lock<State>);

struct State {
    /// Where the part that was never handed out begins and ends.
    fresh: usize,
    end: usize,
    free: [usize; CLASSES],
}

#[global_allocator]
static HEAP: Heap = Heap(Lock::new(State { fresh: 0, end: 0, free: [0; CLASSES] }));

/// Memory from `at` on is the heap's.
///
/// # Safety
/// These bytes are memory, mapped as themselves, and nobody else's; it is called once.
pub unsafe fn begin(at: usize, bytes: usize) {
    let mut state = HEAP.0.lock();
    (state.fresh, state.end) = (at, at + bytes);
}

fn class(layout: Layout) -> usize {
    let bytes = layout.size().max(layout.align()).max(1 << LEAST_LOG2).next_power_of_two();
    (bytes.ilog2() - LEAST_LOG2) as usize
}

// SAFETY: a piece is as long as it was asked to be, and begins at a multiple of its length, hence of the
// alignment. It is in one place: handed out, in a list, or in the part that was never handed out.
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
            // SAFETY: a piece in a list holds the link to the next.
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
        // SAFETY: it was handed out by `alloc`, and is long enough for a link.
        unsafe { piece.cast::<usize>().write(state.free[class]) };
        state.free[class] = piece.expose_provenance();
    }
}
