//! Moves of mapping units that a host with the map has not read yet: a ring of fixed length.
//!
//! Nothing depends on it: a host that misses a move sends a stale place, which is found out. So the oldest
//! move is dropped when the ring is full.

use alloc::collections::VecDeque;

#[derive(Clone, Default)]
pub(crate) struct Moves {
    ring: VecDeque<(u32, u32)>,
    /// Length at which the oldest is dropped; 0: none are kept.
    most: usize,
    dropped: u64,
}

impl Moves {
    /// Starts afresh with a ring of this length; 0: none.
    pub fn keep(&mut self, most: usize) {
        *self = Moves { ring: VecDeque::with_capacity(most), most, dropped: 0 };
    }

    /// Notes the new location of a unit, or `NONE`.
    #[inline]
    pub fn note(&mut self, logical: u32, at: u32) {
        if self.most > 0 {
            self.note_kept(logical, at);
        }
    }

    fn note_kept(&mut self, logical: u32, at: u32) {
        if self.ring.len() == self.most {
            self.ring.pop_front();
            self.dropped += 1;
        }
        self.ring.push_back((logical, at));
    }

    /// True if the host should read them.
    pub fn are_due(&self) -> bool {
        self.most > 0 && 2 * self.ring.len() >= self.most
    }

    pub fn take(&mut self) -> Option<(u32, u32)> {
        self.ring.pop_front()
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}
