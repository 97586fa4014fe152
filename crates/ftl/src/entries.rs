//! Entries of the whole map, in chunks that copies share until they change.

use alloc::sync::Arc;
use alloc::vec::Vec;

/// Entries of a chunk. A multiple of those of any map part, so that a part lies in one chunk.
const CHUNK: usize = 1 << 16;

/// A vector of words whose copy takes memory only for the chunks that one of the two changes. A chunk that is
/// not shared is changed in place, without an allocation.
#[derive(Clone)]
pub(crate) struct Entries {
    chunks: Vec<Arc<Vec<u32>>>,
    len: usize,
}

impl Entries {
    /// All zero. Each chunk is an allocation of fresh memory, which is zero already.
    pub fn new(len: usize) -> Entries {
        let chunk = |first: usize| Arc::new(alloc::vec![0; (len - first).min(CHUNK)]);
        Entries { chunks: (0..len).step_by(CHUNK).map(chunk).collect(), len }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn get(&self, at: u32) -> u32 {
        self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }

    #[inline]
    pub fn get_mut(&mut self, at: u32) -> &mut u32 {
        &mut Arc::make_mut(&mut self.chunks[at as usize / CHUNK])[at as usize % CHUNK]
    }

    /// A part of `len` entries, or what the end leaves of it.
    ///
    /// # Panics
    /// If it crosses a chunk.
    pub fn part(&self, first: usize, len: usize) -> &[u32] {
        let end = self.len.min(first + len) - first / CHUNK * CHUNK;
        &self.chunks[first / CHUNK][first % CHUNK..end]
    }

    /// As [`part`](Entries::part), to be changed.
    ///
    /// # Panics
    /// If it crosses a chunk.
    pub fn part_mut(&mut self, first: usize, len: usize) -> &mut [u32] {
        let chunk = Arc::make_mut(&mut self.chunks[first / CHUNK]);
        let end = self.len.min(first + len) - first / CHUNK * CHUNK;
        &mut chunk[first % CHUNK..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_shares_chunks_until_one_changes() {
        let len = 2 * CHUNK + 10;
        let mut first = Entries::new(len);
        for at in [0, CHUNK as u32, len as u32 - 1] {
            *first.get_mut(at) = at + 1;
        }
        let place = &raw const first.chunks[0][0];
        let mut copy = first.clone();
        assert!(first.chunks.iter().zip(&copy.chunks).all(|(one, other)| Arc::ptr_eq(one, other)));
        *copy.get_mut(CHUNK as u32) = 7;
        copy.part_mut(2 * CHUNK, 1024)[0] = 8;
        assert_eq!((first.get(CHUNK as u32), copy.get(CHUNK as u32)), (CHUNK as u32 + 1, 7));
        assert_eq!((first.get(2 * CHUNK as u32), copy.get(2 * CHUNK as u32)), (0, 8));
        assert_eq!(copy.get(len as u32 - 1), len as u32);
        let shared = |one: &Entries, other: &Entries| -> Vec<bool> {
            one.chunks
                .iter()
                .zip(&other.chunks)
                .map(|(one, other)| Arc::ptr_eq(one, other))
                .collect()
        };
        assert_eq!(shared(&first, &copy), [true, false, false]);
        drop(copy);
        *first.get_mut(1) = 2;
        assert_eq!(&raw const first.chunks[0][0], place, "changed in place");
    }

    #[test]
    fn part_at_the_end_is_cut() {
        let mut entries = Entries::new(CHUNK + 5);
        assert_eq!(entries.part_mut(CHUNK, 128).len(), 5);
        assert_eq!(entries.part_mut(CHUNK - 128, 128).len(), 128);
        entries.part_mut(CHUNK, 128)[4] = 7;
        assert_eq!(entries.part(CHUNK, 128), [0, 0, 0, 0, 7]);
        assert_eq!(entries.len(), CHUNK + 5);
    }
}
