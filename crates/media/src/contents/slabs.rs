//! Memory of the leaves of sparse arrays, on huge pages.
//!
//! ```text
//! slab 0  [ leaf 0 | leaf 1 | … | leaf 511 ]     one mapping of 32 MiB, on a boundary of 2 MiB
//! slab 1  [ leaf 512 | … ]
//! ```
//!
//! A random read of a large drive misses the TLB as well as the caches: with pages of 4 KiB a 1 GiB drive
//! has 262,144 translations, with those of 2 MiB 512. Leaves are therefore taken from large mappings, in the
//! order of their first write, whatever their addresses, so that scattered writes share huge pages too.

use memmap2::MmapMut;

use crate::huge;

/// Bytes per leaf: the unit of allocation, and the longest run.
pub(super) const LEAF_BYTES: usize = 1 << LEAF_LOG2;
pub(super) const LEAF_LOG2: u32 = 16;

const LEAVES: usize = 1 << LEAVES_LOG2;
const LEAVES_LOG2: u32 = 9;

/// Number of a leaf, from 1: zero is free for "none".
pub(super) type LeafId = u32;

pub(super) type Leaf = [u8; LEAF_BYTES];

#[derive(Default)]
pub(super) struct Slabs {
    /// `None` once all of its leaves have been freed.
    slabs: Vec<Option<Slab>>,
    /// No slab before this one has a free leaf.
    first_free: usize,
    /// Most leaves that are ever in use at once: an array of a few does not need a whole slab.
    leaves_max: usize,
}

struct Slab {
    map: MmapMut,
    /// Offset of the first leaf in the mapping.
    begin: usize,
    leaves: usize,
    /// Leaves from this one on were never used, and are zero.
    untouched: usize,
    freed: Vec<u16>,
}

impl Slabs {
    /// No leaf yet, and never more than `leaves_max`.
    pub(super) fn new(leaves_max: u64) -> Slabs {
        let leaves_max = leaves_max.clamp(1, LEAVES as u64) as usize;
        Slabs { leaves_max, ..Slabs::default() }
    }

    #[inline]
    pub(super) fn leaf(&self, id: LeafId) -> &Leaf {
        let (slab, leaf) = place(id);
        let slab = self.slabs[slab].as_ref().expect("the slab of a leaf in use");
        let from = slab.begin + leaf * LEAF_BYTES;
        slab.map[from..].first_chunk().expect("a leaf ends within its slab")
    }

    #[inline]
    pub(super) fn leaf_mut(&mut self, id: LeafId) -> &mut Leaf {
        let (slab, leaf) = place(id);
        let slab = self.slabs[slab].as_mut().expect("the slab of a leaf in use");
        let from = slab.begin + leaf * LEAF_BYTES;
        slab.map[from..].first_chunk_mut().expect("a leaf ends within its slab")
    }

    /// Takes a leaf of zeros.
    ///
    /// # Panics
    /// If the system has no memory for another mapping.
    pub(super) fn take(&mut self) -> LeafId {
        let is_full = |slab: &Option<Slab>| slab.as_ref().is_some_and(Slab::is_full);
        while self.slabs.get(self.first_free).is_some_and(is_full) {
            self.first_free += 1;
        }
        let number = self.first_free;
        if number == self.slabs.len() {
            self.slabs.push(None);
        }
        let slab = self.slabs[number].get_or_insert_with(|| Slab::new(self.leaves_max));
        let leaf = match slab.freed.pop() {
            Some(leaf) => {
                let from = slab.begin + usize::from(leaf) * LEAF_BYTES;
                slab.map[from..from + LEAF_BYTES].fill(0);
                usize::from(leaf)
            }
            None => {
                slab.untouched += 1;
                slab.untouched - 1
            }
        };
        (number << LEAVES_LOG2 | leaf) as LeafId + 1
    }

    /// Frees a leaf. The memory returns to the system with the last leaf of a slab.
    pub(super) fn free(&mut self, id: LeafId) {
        let (number, leaf) = place(id);
        let slab = self.slabs[number].as_mut().expect("the slab of a leaf in use");
        slab.freed.push(leaf as u16);
        if slab.freed.len() == slab.untouched {
            self.slabs[number] = None;
        }
        self.first_free = self.first_free.min(number);
    }
}

/// Slab, and leaf in it.
#[inline]
fn place(id: LeafId) -> (usize, usize) {
    let number = id as usize - 1;
    (number >> LEAVES_LOG2, number & (LEAVES - 1))
}

impl Slab {
    fn new(leaves: usize) -> Slab {
        let (map, begin) = huge::zeros(leaves * LEAF_BYTES);
        Slab { map, begin, leaves, untouched: 0, freed: Vec::new() }
    }

    fn is_full(&self) -> bool {
        self.untouched == self.leaves && self.freed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_leaf_is_taken_again_as_zeros() {
        let mut slabs = Slabs::new(u64::MAX);
        let ids: Vec<LeafId> = (0..LEAVES + 2).map(|_| slabs.take()).collect();
        assert_eq!(slabs.slabs.len(), 2);
        for id in &ids {
            slabs.leaf_mut(*id).fill(*id as u8);
        }
        assert!(ids.iter().all(|id| slabs.leaf(*id).iter().all(|byte| *byte == *id as u8)));
        slabs.free(ids[7]);
        let again = slabs.take();
        assert_eq!(again, ids[7], "the first slab with a free leaf");
        assert_eq!(slabs.leaf(again), &[0; LEAF_BYTES]);
        assert_eq!(slabs.leaf(ids[8])[0], ids[8] as u8);
    }

    #[test]
    fn slab_is_unmapped_with_its_last_leaf() {
        let mut slabs = Slabs::new(u64::MAX);
        let ids: Vec<LeafId> = (0..2 * LEAVES).map(|_| slabs.take()).collect();
        ids[LEAVES..].iter().for_each(|id| slabs.free(*id));
        assert!(slabs.slabs[0].is_some() && slabs.slabs[1].is_none());
        assert_eq!(slabs.take(), ids[LEAVES], "mapped again");
    }

    #[test]
    fn small_array_has_a_small_slab() {
        let mut slabs = Slabs::new(3);
        let ids: Vec<LeafId> = (0..4).map(|_| slabs.take()).collect();
        assert_eq!(slabs.slabs[0].as_ref().map(|slab| slab.leaves), Some(3));
        assert_eq!(place(ids[3]), (1, 0));
    }
}
