//! A sparse array of bytes: a two-level radix tree with leaves allocated on first write.
//!
//! ```text
//! shelves  [ · | · | · ]            one pointer for each 128 MiB, made with the array
//!            │
//! shelf    [ · | · | … | · ]        one number for each 64 KiB, made on the first write to it
//!                │
//! leaf     [ 65,536 bytes ]         taken, zeroed, from `slabs` on the first write to it
//! ```
//!
//! An access is two dependent loads, one of the slab, which is in the first-level cache, and then the bytes.
//! There is no hashing, hence no rehashing in the middle of a run, and the cost of an access does not depend
//! on earlier ones.

use super::slabs::{LEAF_BYTES, LEAF_LOG2, Leaf, LeafId, Slabs};

/// Leaves per shelf. With 2,048, a touched leaf costs at worst an eighth of itself in shelf (8 KiB), and 4
/// TiB need 32,768 shelf pointers (256 KiB). Fewer leaves per shelf would let the pointers outgrow a
/// second-level cache; more would make scattered writes pay more for shelves than for data.
const SHELF_LEAVES: usize = 1 << SHELF_LOG2;
const SHELF_LOG2: u32 = 11;

/// Source of bytes that were never written. One page, so that it stays in the first-level cache.
pub(super) static ZERO_PAGE: [u8; 4096] = [0; 4096];

struct Shelf {
    /// 0: none.
    leaves: [LeafId; SHELF_LEAVES],
    /// Number of allocated leaves, so that an empty shelf can be freed.
    used: usize,
}

/// A sparse array of bytes. The owner has checked offsets against the length.
pub(super) struct Sparse {
    shelves: Box<[Option<Box<Shelf>>]>,
    slabs: Slabs,
    bytes: u64,
    shelves_used: u64,
    leaves_used: u64,
}

impl Sparse {
    /// Creates an array of `bytes` zeros.
    pub(super) fn new(bytes: u64) -> Sparse {
        let shelves = bytes.div_ceil(1 << (LEAF_LOG2 + SHELF_LOG2));
        let shelves = (0..shelves).map(|_| None).collect();
        let slabs = Slabs::new(bytes.div_ceil(LEAF_BYTES as u64));
        Sparse { shelves, slabs, bytes, shelves_used: 0, leaves_used: 0 }
    }

    /// Bytes of memory held, all levels together.
    pub(super) fn allocated_bytes(&self) -> u64 {
        size_of_val(&*self.shelves) as u64
            + self.shelves_used * size_of::<Shelf>() as u64
            + self.leaves_used * size_of::<Leaf>() as u64
    }

    #[inline]
    fn leaf(&self, index: u64) -> Option<&Leaf> {
        let shelf = self.shelves[(index >> SHELF_LOG2) as usize].as_ref()?;
        match shelf.leaves[index as usize % SHELF_LEAVES] {
            0 => None,
            id => Some(self.slabs.leaf(id)),
        }
    }

    #[inline]
    fn leaf_mut(&mut self, index: u64) -> &mut Leaf {
        let shelf = self.shelves[(index >> SHELF_LOG2) as usize].get_or_insert_with(|| {
            self.shelves_used += 1;
            Box::new(Shelf { leaves: [0; SHELF_LEAVES], used: 0 })
        });
        let id = &mut shelf.leaves[index as usize % SHELF_LEAVES];
        if *id == 0 {
            self.leaves_used += 1;
            shelf.used += 1;
            *id = self.slabs.take();
        }
        self.slabs.leaf_mut(*id)
    }

    /// Bytes from `at` that were never written, up to the next leaf or the end of the array.
    pub(super) fn blank_from(&self, at: u64) -> u64 {
        const SHELF_SPAN: u64 = 1 << (LEAF_LOG2 + SHELF_LOG2);
        let mut end = at.min(self.bytes);
        while end < self.bytes {
            end = match &self.shelves[(end / SHELF_SPAN) as usize] {
                None => (end / SHELF_SPAN + 1) * SHELF_SPAN,
                Some(_) if self.leaf(end >> LEAF_LOG2).is_none() => {
                    ((end >> LEAF_LOG2) + 1) << LEAF_LOG2
                }
                Some(_) => break,
            };
        }
        end.min(self.bytes) - at.min(self.bytes)
    }

    /// Passes `bytes` bytes from `at` to `f`, in order, run by run, each with its distance from `at`. A run
    /// never crosses a leaf. Allocates nothing: bytes never written are passed as zeros.
    #[inline]
    pub(super) fn runs(&self, at: u64, bytes: u64, f: &mut impl FnMut(u64, &[u8])) {
        let mut done = 0;
        while done < bytes {
            let from = (at + done) as usize % LEAF_BYTES;
            let length = (bytes - done).min((LEAF_BYTES - from) as u64) as usize;
            let run = match self.leaf((at + done) >> LEAF_LOG2) {
                Some(leaf) => &leaf[from..from + length],
                None => &ZERO_PAGE[..length.min(ZERO_PAGE.len())],
            };
            f(done, run);
            done += run.len() as u64;
        }
    }

    /// Prefetches bytes of the leaf that holds `at`; for writing, if `to_write`.
    #[inline]
    pub(super) fn prefetch(&self, at: u64, bytes: usize, to_write: bool) {
        if let Some(leaf) = self.leaf(at >> LEAF_LOG2) {
            let from = at as usize % LEAF_BYTES;
            let lines = &leaf[from..(from + bytes).min(LEAF_BYTES)];
            if to_write { runtime::prefetch_to_write(lines) } else { runtime::prefetch(lines) }
        }
    }

    /// As [`Sparse::runs`], for writing; allocates missing leaves.
    #[inline]
    pub(super) fn runs_mut(&mut self, at: u64, bytes: u64, f: &mut impl FnMut(u64, &mut [u8])) {
        let mut done = 0;
        while done < bytes {
            let from = (at + done) as usize % LEAF_BYTES;
            let length = (bytes - done).min((LEAF_BYTES - from) as u64) as usize;
            f(done, &mut self.leaf_mut((at + done) >> LEAF_LOG2)[from..from + length]);
            done += length as u64;
        }
    }

    /// Makes `bytes` bytes from `at` read as zeros: frees leaves that are wholly inside, and the shelves that
    /// become empty, and zeroes the rest.
    pub(super) fn discard(&mut self, at: u64, bytes: u64) {
        const SHELF_SPAN: u64 = 1 << (LEAF_LOG2 + SHELF_LOG2);
        let end = at + bytes;
        let mut at = at;
        while at < end {
            let slot = &mut self.shelves[(at / SHELF_SPAN) as usize];
            let until = end.min((at / SHELF_SPAN + 1) * SHELF_SPAN);
            if let Some(shelf) = slot {
                self.leaves_used -= shelf.discard(&mut self.slabs, at, until, self.bytes) as u64;
                if shelf.used == 0 {
                    *slot = None;
                    self.shelves_used -= 1;
                }
            }
            at = until;
        }
    }
}

impl Shelf {
    /// Discards `at..end` on this shelf of an array of `bytes` bytes. Returns the number of leaves freed.
    fn discard(&mut self, slabs: &mut Slabs, at: u64, end: u64, bytes: u64) -> usize {
        let used = self.used;
        let mut at = at;
        while at < end {
            let index = at >> LEAF_LOG2;
            // The array's last leaf may be partial; it is whole if the array ends in it.
            let leaf_end = bytes.min((index + 1) << LEAF_LOG2);
            let until = end.min(leaf_end);
            let id = &mut self.leaves[index as usize % SHELF_LEAVES];
            if *id != 0 {
                let from = at as usize % LEAF_BYTES;
                if from == 0 && until == leaf_end {
                    slabs.free(std::mem::take(id));
                    self.used -= 1;
                } else {
                    slabs.leaf_mut(*id)[from..from + (until - at) as usize].fill(0);
                }
            }
            at = until;
        }
        used - self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: u64 = LEAF_BYTES as u64;
    const SHELF: u64 = LEAF * SHELF_LEAVES as u64;

    fn fill(sparse: &mut Sparse, at: u64, bytes: u64, value: u8) {
        sparse.runs_mut(at, bytes, &mut |_, run| run.fill(value));
    }

    fn read(sparse: &Sparse, at: u64, bytes: u64) -> Vec<u8> {
        let mut seen = Vec::new();
        sparse.runs(at, bytes, &mut |done, run| {
            assert_eq!(done, seen.len() as u64, "runs come in order, without gaps");
            seen.extend_from_slice(run);
        });
        seen
    }

    #[test]
    fn sparse_runs_end_at_leaf_boundaries() {
        let mut sparse = Sparse::new(2 * SHELF);
        fill(&mut sparse, SHELF - 512, 1024, 3);
        let mut runs = Vec::new();
        sparse.runs(SHELF - 1024, 2048, &mut |done, run| runs.push((done, run.len(), run[0])));
        assert_eq!(runs, [(0, 1024, 0), (1024, 1024, 3)]);
        assert_eq!(read(&sparse, SHELF - 512, 1536), [vec![3; 1024], vec![0; 512]].concat());
    }

    #[test]
    fn sparse_read_of_unwritten_bytes_allocates_nothing() {
        let sparse = Sparse::new(SHELF + LEAF);
        let before = sparse.allocated_bytes();
        assert_eq!(before, 16, "two shelf pointers");
        assert_eq!(read(&sparse, LEAF - 512, LEAF), vec![0; LEAF_BYTES]);
        assert_eq!(sparse.allocated_bytes(), before);
    }

    #[test]
    fn sparse_blank_from_finds_next_written_leaf() {
        let mut sparse = Sparse::new(4 * SHELF + 512);
        assert_eq!(sparse.blank_from(0), 4 * SHELF + 512);
        fill(&mut sparse, 3 * SHELF + 2 * LEAF + 100, 1, 9);
        assert_eq!(sparse.blank_from(512), 3 * SHELF + 2 * LEAF - 512);
        assert_eq!(sparse.blank_from(3 * SHELF + LEAF), LEAF);
        assert_eq!(sparse.blank_from(3 * SHELF + 2 * LEAF), 0);
        assert_eq!(sparse.blank_from(3 * SHELF + 3 * LEAF), SHELF - 3 * LEAF + 512);
        assert_eq!(sparse.blank_from(4 * SHELF + 512), 0);
    }

    #[test]
    fn sparse_discard_frees_whole_leaves_and_zeroes_ends() {
        let mut sparse = Sparse::new(SHELF);
        let empty = sparse.allocated_bytes();
        fill(&mut sparse, 0, 4 * LEAF, 9);
        let full = sparse.allocated_bytes();
        sparse.discard(512, 3 * LEAF);
        assert_eq!(sparse.allocated_bytes(), full - 2 * LEAF);
        let seen = read(&sparse, 0, 4 * LEAF);
        let nines: Vec<usize> = (0..seen.len()).filter(|i| seen[*i] == 9).collect();
        let kept: Vec<usize> = (0..512).chain(3 * LEAF_BYTES + 512..4 * LEAF_BYTES).collect();
        assert_eq!(nines, kept);
        sparse.discard(0, SHELF);
        assert_eq!(sparse.allocated_bytes(), empty, "the shelf goes with its last leaf");
    }

    #[test]
    fn sparse_discard_frees_partial_last_leaf() {
        let mut sparse = Sparse::new(LEAF + 512);
        let empty = sparse.allocated_bytes();
        fill(&mut sparse, LEAF, 512, 1);
        sparse.discard(LEAF, 512);
        assert_eq!(sparse.allocated_bytes(), empty);
    }
}
