//! Table of a client's memory: mappings and their access rights.

use std::cell::Cell;
use std::vec::Vec;

use crate::{Memory, OutOfRange};
use wire::BusAddr;
use wire::vfio_user::errno;

/// A range of a client's memory. Every clone is the same memory.
#[derive(Clone)]
pub(super) struct Mapping {
    pub at: u64,
    pub bytes: u64,
    pub readable: bool,
    pub writable: bool,
    /// `None` if it is accessed by messages.
    pub memory: Option<Memory>,
}

/// Direction of an access, as seen by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// All mappings, in ascending order and disjoint.
pub(super) struct Table {
    mappings: Vec<Mapping>,
    most: usize,
    /// Index of the last mapping found.
    last: Cell<usize>,
}

impl Mapping {
    fn holds(&self, at: u64) -> bool {
        at.wrapping_sub(self.at) < self.bytes
    }

    fn allows(&self, access: Access) -> bool {
        match access {
            Access::Read => self.readable,
            Access::Write => self.writable,
        }
    }
}

impl Table {
    /// An empty table of at most `most` mappings.
    pub fn new(most: usize) -> Table {
        Table { mappings: Vec::new(), most, last: Cell::new(0) }
    }

    /// Adds a mapping.
    ///
    /// The error number, with the mapping, if it overlaps another or the table is full.
    pub fn insert(&mut self, mapping: Mapping) -> Result<(), (u32, Mapping)> {
        let place = self.mappings.partition_point(|known| known.at < mapping.at);
        let end = mapping.at + mapping.bytes;
        let after = self.mappings.get(place).is_some_and(|next| next.at < end);
        let before = place > 0 && self.mappings[place - 1].holds(mapping.at);
        if before || after {
            return Err((errno::EEXIST, mapping));
        }
        if self.mappings.len() >= self.most {
            return Err((errno::ENOSPC, mapping));
        }
        self.mappings.insert(place, mapping);
        Ok(())
    }

    /// Removes a mapping. The range must be that of one mapping, as the protocol has it: not a part of one,
    /// and not several.
    ///
    /// # Errors
    /// The error number if there is no such mapping: then all of them stay.
    pub fn remove(&mut self, at: BusAddr, bytes: u64) -> Result<Mapping, u32> {
        let place = self.mappings.partition_point(|known| known.at < at.0);
        let exact = |known: &&Mapping| known.at == at.0 && known.bytes == bytes;
        match self.mappings.get(place).filter(exact) {
            Some(_) => Ok(self.mappings.remove(place)),
            None => Err(errno::ENOENT),
        }
    }

    /// Removes all mappings.
    pub fn remove_all(&mut self) -> Vec<Mapping> {
        core::mem::take(&mut self.mappings)
    }

    /// The mapping that holds this address, if it allows the access.
    #[inline]
    fn find(&self, at: BusAddr, access: Access) -> Option<&Mapping> {
        let last = self.mappings.get(self.last.get()).filter(|mapping| mapping.holds(at.0));
        let found = match last {
            Some(found) => found,
            None => {
                let after = self.mappings.partition_point(|known| known.at <= at.0);
                let place = after.checked_sub(1)?;
                self.last.set(place);
                &self.mappings[place]
            }
        };
        (found.holds(at.0) && found.allows(access)).then_some(found)
    }

    /// The memory that holds all of these bytes, if one mapped region does: the fast path.
    #[inline]
    pub fn whole(&self, at: BusAddr, bytes: usize, access: Access) -> Option<&Memory> {
        let memory = self.find(at, access)?.memory.as_ref()?;
        memory.holds(at, bytes).then_some(memory)
    }

    /// Calls `piece` for each part of these bytes, split at the boundaries of mappings: address, length,
    /// memory if it is mapped.
    ///
    /// # Errors
    /// If some bytes lie in no mapping that allows the access, or an error of `piece`.
    pub fn pieces<E: From<OutOfRange>>(
        &self,
        at: BusAddr,
        bytes: usize,
        access: Access,
        mut piece: impl FnMut(BusAddr, usize, Option<&Memory>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        while done < bytes {
            let here =
                at.0.checked_add(done as u64).map(BusAddr).ok_or(OutOfRange { at, bytes })?;
            let mapping = self.find(here, access).ok_or(OutOfRange { at: here, bytes })?;
            let left = mapping.bytes - (here.0 - mapping.at);
            let part = left.min((bytes - done) as u64) as usize;
            piece(here, part, mapping.memory.as_ref())?;
            done += part;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec;

    const PAGE: u64 = 4096;

    fn mapping(page: u64, pages: u64, writable: bool, mapped: bool) -> Mapping {
        let (at, bytes) = (page * PAGE, pages * PAGE);
        let memory = mapped.then(|| Memory::private(bytes as usize, BusAddr(at)));
        Mapping { at, bytes, readable: true, writable, memory }
    }

    #[test]
    fn access_across_mappings_is_split_into_pieces() {
        let mut table = Table::new(64);
        for (page, pages) in [(4, 1), (1, 2), (3, 1)] {
            table.insert(mapping(page, pages, true, page != 3)).ok().unwrap();
        }
        let mut seen = vec![];
        let at = BusAddr(2 * PAGE + 100);
        let found: Result<(), OutOfRange> =
            table.pieces(at, 2 * PAGE as usize + 50, Access::Read, |at, bytes, memory| {
                seen.push((at.0, bytes, memory.is_some()));
                Ok(())
            });
        assert_eq!(found, Ok(()));
        assert_eq!(
            seen,
            [(2 * PAGE + 100, 3996, true), (3 * PAGE, 4096, false), (4 * PAGE, 150, true)]
        );
        let beyond: Result<(), OutOfRange> =
            table.pieces(at, 3 * PAGE as usize, Access::Read, |_, _, _| Ok(()));
        assert!(beyond.is_err());
        assert!(table.whole(at, 3996, Access::Read).is_some());
        assert!(table.whole(at, 3997, Access::Read).is_none());
    }

    #[test]
    fn insert_rejects_overlap_and_remove_takes_exact_mappings() {
        let mut table = Table::new(64);
        table.insert(mapping(10, 10, true, false)).ok().unwrap();
        for (page, pages) in [(10, 10), (5, 6), (19, 5), (12, 2), (5, 30)] {
            let refused = table.insert(mapping(page, pages, true, false)).unwrap_err();
            assert_eq!(refused.0, errno::EEXIST, "{page} {pages}");
        }
        table.insert(mapping(20, 1, true, false)).ok().unwrap();
        table.insert(mapping(9, 1, true, false)).ok().unwrap();
        for (page, pages) in [(10, 9), (11, 9), (10, 0), (10, 11), (9, 2), (9, 12), (0, 64)] {
            let refused = table.remove(BusAddr(page * PAGE), pages * PAGE).err();
            assert_eq!(refused, Some(errno::ENOENT), "{page} {pages}");
        }
        assert_eq!(table.remove(BusAddr(0), u64::MAX).err(), Some(errno::ENOENT));
        assert_eq!(table.remove(BusAddr(10 * PAGE), 10 * PAGE).ok().unwrap().at, 10 * PAGE);
        assert!(table.remove(BusAddr(10 * PAGE), 10 * PAGE).is_err());
        assert_eq!(table.remove_all().len(), 2);
    }

    #[test]
    fn read_only_mapping_rejects_write() {
        let mut table = Table::new(64);
        table.insert(mapping(1, 1, false, true)).ok().unwrap();
        assert!(table.whole(BusAddr(PAGE), 8, Access::Read).is_some());
        assert!(table.whole(BusAddr(PAGE), 8, Access::Write).is_none());
    }

    proptest! {
        /// Model: a map of pages.
        #[test]
        fn table_agrees_with_map_of_pages(
            steps in prop::collection::vec((0_u64..40, 1_u64..8, any::<bool>()), 1..60),
            probes in prop::collection::vec((0_u64..45 * PAGE, 1_usize..20_000), 1..20),
        ) {
            let (mut table, mut pages) = (Table::new(64), BTreeMap::new());
            for (page, count, insert) in steps {
                if insert {
                    let free = (page..page + count).all(|page| !pages.contains_key(&page));
                    let inserted = table.insert(mapping(page, count, true, false)).is_ok();
                    prop_assert_eq!(inserted, free);
                    if inserted {
                        pages.extend((page..page + count).map(|p| (p, (page, count))));
                    }
                } else {
                    let known = pages.get(&page) == Some(&(page, count));
                    let removed = table.remove(BusAddr(page * PAGE), count * PAGE).is_ok();
                    prop_assert_eq!(removed, known);
                    if removed {
                        pages.retain(|_, whole| *whole != (page, count));
                    }
                }
                for (at, bytes) in &probes {
                    let last = (at + *bytes as u64 - 1) / PAGE;
                    let all = (at / PAGE..=last).all(|page| pages.contains_key(&page));
                    let mut sum = 0;
                    let found: Result<(), OutOfRange> =
                        table.pieces(BusAddr(*at), *bytes, Access::Write, |_, bytes, _| {
                            sum += bytes;
                            Ok(())
                        });
                    prop_assert_eq!(found.is_ok(), all);
                    prop_assert!(!all || sum == *bytes);
                }
            }
        }
    }
}
