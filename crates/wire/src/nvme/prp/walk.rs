//! Device side: from PRP1, PRP2 and a length to the segments of host memory.

use super::{ENTRY_BYTES, Segment, assert_page, slots};
use crate::BusAddr;
use crate::nvme::status::Status;

/// Walks a command's PRPs, without memory of its own and without I/O.
///
/// ```
/// use wire::BusAddr;
/// use wire::nvme::prp::{PrpWalk, Segment, Step};
/// # fn read_host_memory(_: BusAddr, list: &mut [u64]) { list.copy_from_slice(&[0x7000, 0x9000]) }
/// # let mut moved = 0;
/// # let mut transfer = |segment: Segment| moved += segment.bytes;
///
/// let mut walk = PrpWalk::new(BusAddr(0x1e00), BusAddr(0x5008), 8192, 4096)?;
/// let mut buffer = [0; 64];
/// while let Some(step) = walk.step() {
///     match step {
///         Step::Segment(segment) => transfer(segment),
///         Step::NeedList { addr, entries } => {
///             let list = &mut buffer[..64.min(entries as usize)];
///             read_host_memory(addr, list);
///             walk.supply(list)?.for_each(&mut transfer);
///         }
///     }
/// }
/// # assert_eq!(moved, 8192);
/// # Ok::<(), wire::nvme::status::Status>(())
/// ```
///
/// A list that chains to itself, or that names a page twice, is walked like any other: every list page has
/// at least one data page, so the length bounds the walk.
#[derive(Clone, Copy, Debug)]
pub struct PrpWalk {
    page_bytes: u64,
    /// Segment of PRP1, until it is returned.
    first: Option<Segment>,
    rest: Rest,
    /// Bytes in `rest`.
    left: u64,
}

/// Remainder after PRP1.
#[derive(Clone, Copy, Debug)]
enum Rest {
    Nothing,
    /// One page, in PRP2.
    Page(BusAddr),
    /// Address of the next list entry.
    List(BusAddr),
}

/// Next step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Transfer this segment.
    Segment(Segment),
    /// Read list entries and [`supply`](PrpWalk::supply) them; until then, every step is this one.
    NeedList {
        /// Address of the entries in host memory, each 8 bytes, little endian.
        addr: BusAddr,
        /// Number of entries needed; at least one.
        entries: u32,
    },
}

impl PrpWalk {
    /// Begins the walk of a command that moves `bytes` bytes.
    ///
    /// # Errors
    /// Invalid PRP Offset if PRP1 is not dword aligned, if PRP2 is a page and has an offset, or if PRP2 is
    /// a list and is not qword aligned. The length determines whether it is a page or a list.
    ///
    /// # Panics
    /// If `page_bytes` isn't a power of two of at least 4096.
    #[inline]
    pub fn new(
        prp1: BusAddr,
        prp2: BusAddr,
        bytes: u64,
        page_bytes: u64,
    ) -> Result<PrpWalk, Status> {
        assert_page(page_bytes);
        if !prp1.0.is_multiple_of(4) {
            return Err(Status::INVALID_PRP_OFFSET);
        }
        let in_first = bytes.min(page_bytes - prp1.page_offset(page_bytes));
        let left = bytes - in_first;
        let (rest, aligned) = if left == 0 {
            (Rest::Nothing, true)
        } else if left <= page_bytes {
            (Rest::Page(prp2), prp2.page_offset(page_bytes) == 0)
        } else {
            (Rest::List(prp2), prp2.0.is_multiple_of(ENTRY_BYTES))
        };
        if !aligned {
            return Err(Status::INVALID_PRP_OFFSET);
        }
        let first = (bytes > 0).then_some(Segment { addr: prp1, bytes: in_first });
        Ok(PrpWalk { page_bytes, first, rest, left })
    }

    /// Returns the next step, or `None` at the end.
    #[inline]
    pub fn step(&mut self) -> Option<Step> {
        if let Some(first) = self.first.take() {
            return Some(Step::Segment(first));
        }
        match self.rest {
            Rest::Nothing => None,
            Rest::Page(addr) => {
                self.rest = Rest::Nothing;
                Some(Step::Segment(Segment { addr, bytes: self.left }))
            }
            Rest::List(addr) => {
                let (entries, _) = self.wanted(addr);
                Some(Step::NeedList { addr, entries: entries as u32 })
            }
        }
    }

    /// Number of entries needed at `addr`, and whether the last of them is a chain.
    fn wanted(&self, addr: BusAddr) -> (u64, bool) {
        let pages = self.left.div_ceil(self.page_bytes);
        let slots = slots(addr, self.page_bytes);
        (pages.min(slots), pages > slots)
    }

    /// Takes the entries of [`Step::NeedList`], or the first few of them, and returns their segments.
    /// Entries may be `u64` or zerocopy's little-endian `U64`.
    ///
    /// # Errors
    /// Invalid PRP Offset if an entry or the chain is not page aligned. The walk has then ended, and none
    /// of these entries' segments is returned.
    ///
    /// # Panics
    /// If no list is needed, or the number of entries is zero or more than needed.
    pub fn supply<'a, E: Copy + Into<u64>>(
        &mut self,
        entries: &'a [E],
    ) -> Result<Segments<'a, E>, Status> {
        let Rest::List(addr) = self.rest else { panic!("no PRP list was asked for") };
        let (wanted, chains) = self.wanted(addr);
        let got = entries.len() as u64;
        assert!((1..=wanted).contains(&got), "{got} PRP list entries given, {wanted} asked for");

        self.rest = Rest::Nothing;
        let page_bytes = self.page_bytes;
        if entries.iter().any(|entry| BusAddr((*entry).into()).page_offset(page_bytes) != 0) {
            return Err(Status::INVALID_PRP_OFFSET);
        }
        let (pages, next) = match entries {
            [pages @ .., chain] if chains && got == wanted => (pages, BusAddr((*chain).into())),
            // Past the last slot only at the end of the walk; the address is then unused.
            pages => (pages, BusAddr(addr.0.wrapping_add(ENTRY_BYTES * got))),
        };
        let bytes = self.left.min(pages.len() as u64 * page_bytes);
        self.left -= bytes;
        if self.left > 0 {
            self.rest = Rest::List(next);
        }
        Ok(Segments { pages: pages.iter(), page_bytes, left: bytes })
    }
}

/// Segments of some list entries, each a page or, at the end, a part of one.
#[derive(Clone, Debug)]
pub struct Segments<'a, E> {
    pages: core::slice::Iter<'a, E>,
    page_bytes: u64,
    left: u64,
}

impl<E: Copy + Into<u64>> Iterator for Segments<'_, E> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let addr = BusAddr((*self.pages.next()?).into());
        let bytes = self.left.min(self.page_bytes);
        self.left -= bytes;
        Some(Segment { addr, bytes })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.pages.size_hint()
    }
}

/// Base address of a queue to be created, from PRP1 (NVMe base 2.0, 5.4 and 5.5).
///
/// # Errors
/// Invalid PRP Offset if it is not page aligned.
pub fn queue_base(prp1: BusAddr, page_bytes: u64) -> Result<BusAddr, Status> {
    assert_page(page_bytes);
    if prp1.page_offset(page_bytes) != 0 {
        return Err(Status::INVALID_PRP_OFFSET);
    }
    Ok(prp1)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    const PAGE: u64 = 4096;

    fn segment(addr: u64, bytes: u64) -> Segment {
        Segment { addr: BusAddr(addr), bytes }
    }

    fn walk(prp1: u64, prp2: u64, bytes: u64) -> Result<PrpWalk, Status> {
        PrpWalk::new(BusAddr(prp1), BusAddr(prp2), bytes, PAGE)
    }

    #[test]
    fn prp_one_page_needs_only_prp1() {
        let mut one = walk(0x1004, 0xbad, 4092).unwrap();
        assert_eq!(one.step(), Some(Step::Segment(segment(0x1004, 4092))));
        assert_eq!(one.step(), None);
        assert_eq!(walk(0x1000, 0, 0).unwrap().step(), None);
    }

    #[test]
    fn prp_two_pages_use_prp2_as_page() {
        let mut two = walk(0x1e00, 0x8000, 4096).unwrap();
        assert_eq!(two.step(), Some(Step::Segment(segment(0x1e00, 512))));
        assert_eq!(two.step(), Some(Step::Segment(segment(0x8000, 3584))));
        assert_eq!(two.step(), None);
    }

    #[test]
    fn prp_offset_checks_depend_on_prp_use() {
        let bad = Status::INVALID_PRP_OFFSET;
        assert_eq!(walk(0x1002, 0, 512).unwrap_err(), bad, "PRP1 within a dword");
        assert_eq!(walk(0x1000, 0x2008, 8192).unwrap_err(), bad, "PRP2 is a page");
        assert_eq!(walk(0x1000, 0x2004, 8193).unwrap_err(), bad, "PRP2 is a list");
        assert!(walk(0x1000, 0x2008, 8193).is_ok());
        for entry in [0x3004, 0x3008, 0x3800] {
            let mut listed = walk(0x1000, 0x2008, 12288).unwrap();
            listed.step();
            assert_eq!(listed.supply(&[0x5000u64, entry]).unwrap_err(), bad);
            assert_eq!(listed.step(), None, "an error ends the walk");
        }
        assert_eq!(queue_base(BusAddr(0x1008), PAGE), Err(bad));
        assert_eq!(queue_base(BusAddr(0x1000), PAGE), Ok(BusAddr(0x1000)));
    }

    #[test]
    fn prp_list_with_offset_read_in_pieces() {
        let mut listed = walk(0x1000, 0x2ff0, 4 * PAGE + 1).unwrap();
        listed.step();
        // Two slots are left in the list's page for four data pages: the second slot is a chain.
        let need = Step::NeedList { addr: BusAddr(0x2ff0), entries: 2 };
        assert_eq!((listed.step(), listed.step()), (Some(need), Some(need)));
        let got: Vec<_> = listed.supply(&[0x5000u64]).unwrap().collect();
        assert_eq!(got, [segment(0x5000, PAGE)]);
        assert_eq!(listed.step(), Some(Step::NeedList { addr: BusAddr(0x2ff8), entries: 1 }));
        assert_eq!(listed.supply(&[0x9000u64]).unwrap().count(), 0, "a chain is no segment");
        assert_eq!(listed.step(), Some(Step::NeedList { addr: BusAddr(0x9000), entries: 3 }));
        let list = [0x7000u64, 0x8000, 0x6000].map(zerocopy::little_endian::U64::new);
        let got: Vec<_> = listed.supply(&list).unwrap().collect();
        assert_eq!(got, [segment(0x7000, PAGE), segment(0x8000, PAGE), segment(0x6000, 1)]);
        assert_eq!(listed.step(), None);
    }

    #[test]
    fn prp_list_chained_to_itself_ends() {
        let bytes = 3 << 20;
        let mut walk = walk(0x1000, 0x2000, bytes).unwrap();
        let (mut moved, mut lists) = (0, 0);
        while let Some(step) = walk.step() {
            match step {
                Step::Segment(segment) => moved += segment.bytes,
                Step::NeedList { addr, entries } => {
                    assert_eq!(addr, BusAddr(0x2000));
                    let list = [0x2000u64; 512];
                    let segments = walk.supply(&list[..entries as usize]).unwrap();
                    moved += segments.map(|segment| segment.bytes).sum::<u64>();
                    lists += 1;
                }
            }
        }
        assert_eq!((moved, lists), (bytes, 2));
    }

    #[test]
    #[should_panic(expected = "3 PRP list entries given, 2 asked for")]
    fn prp_supply_with_excess_entries_panics() {
        let mut listed = walk(0x1000, 0x2000, 3 * PAGE).unwrap();
        let _ = listed.supply(&[0u64; 3]);
    }
}
