//! Host side: from a buffer to PRP1, PRP2 and the contents of list pages.

use super::{ENTRY_BYTES, assert_page, slots};
use crate::BusAddr;
use crate::nvme::entry::DataPointer;

/// Why a buffer can't be described by PRPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The buffer begins within a dword.
    #[error("buffer begins at {0}, expected a multiple of 4")]
    UnalignedStart(BusAddr),
    /// A page of the buffer after its first doesn't begin at a page boundary.
    #[error("buffer continues at {0}, expected the start of a page")]
    UnalignedPage(BusAddr),
    /// The first list isn't qword aligned, or a further one not page aligned.
    #[error("PRP list at {0}, expected a multiple of 8, then starts of pages")]
    UnalignedList(BusAddr),
    /// The buffer's pages ended before the length.
    #[error("buffer has fewer pages than its length needs")]
    TooFewPages,
    /// The list pages ended before the list.
    #[error("PRP list has fewer pages than it needs")]
    TooFewLists,
}

/// Describes a buffer of `bytes` bytes by PRPs.
///
/// `pages` gives the address of each of its pages; the first may have an offset, as PRP1 may
/// ([`contiguous`] gives those of a contiguous buffer). If the buffer needs a list, `lists` gives memory
/// for it: first an address from which to the end of the page entries may be stored, then, if needed, whole
/// pages. `put` is called with each entry and the address to store it at as 8 bytes, little endian. Entries
/// put before an error may be discarded.
///
/// # Errors
/// See [`BuildError`].
///
/// # Panics
/// If `page_bytes` isn't a power of two of at least 4096.
pub fn build(
    pages: impl IntoIterator<Item = BusAddr>,
    bytes: u64,
    page_bytes: u64,
    lists: impl IntoIterator<Item = BusAddr>,
    put: impl FnMut(BusAddr, u64),
) -> Result<DataPointer, BuildError> {
    assert_page(page_bytes);
    if bytes == 0 {
        return Ok(DataPointer::NONE);
    }
    let mut pages = pages.into_iter();
    let prp1 = pages.next().ok_or(BuildError::TooFewPages)?;
    if !prp1.0.is_multiple_of(4) {
        return Err(BuildError::UnalignedStart(prp1));
    }
    let mut pages = pages.map(|page| match page.page_offset(page_bytes) {
        0 => Ok(page),
        _ => Err(BuildError::UnalignedPage(page)),
    });
    let prp2 = match further_pages(prp1.page_offset(page_bytes), bytes, page_bytes) {
        0 => BusAddr(0),
        1 => pages.next().ok_or(BuildError::TooFewPages)??,
        entries => fill_list(entries, pages, page_bytes, lists.into_iter(), put)?,
    };
    Ok(DataPointer::Prp { prp1, prp2 })
}

/// Describes a contiguous buffer that touches at most two pages, with the same result as [`build`], which
/// needs no list for it. `None` for any other buffer.
///
/// # Panics
/// As [`build`].
#[inline]
pub const fn without_list(start: BusAddr, bytes: u64, page_bytes: u64) -> Option<DataPointer> {
    assert_page(page_bytes);
    let first = page_bytes - start.page_offset(page_bytes);
    if bytes == 0 || !start.0.is_multiple_of(4) || bytes > first + page_bytes {
        return None;
    }
    if bytes <= first {
        return Some(DataPointer::Prp { prp1: start, prp2: BusAddr(0) });
    }
    match start.0.checked_add(first) {
        Some(second) => Some(DataPointer::Prp { prp1: start, prp2: BusAddr(second) }),
        None => None,
    }
}

/// Puts the next `entries` of `pages` into `lists`, chained across list pages; returns the start of the
/// list.
fn fill_list(
    entries: u64,
    mut pages: impl Iterator<Item = Result<BusAddr, BuildError>>,
    page_bytes: u64,
    mut lists: impl Iterator<Item = BusAddr>,
    mut put: impl FnMut(BusAddr, u64),
) -> Result<BusAddr, BuildError> {
    let start = lists.next().ok_or(BuildError::TooFewLists)?;
    if !start.0.is_multiple_of(ENTRY_BYTES) {
        return Err(BuildError::UnalignedList(start));
    }
    let mut slot = start;
    for left in (1..=entries).rev() {
        // The last slot of a page holds the last entry, or else a chain.
        if left > 1 && slots(slot, page_bytes) == 1 {
            let next = lists.next().ok_or(BuildError::TooFewLists)?;
            if next.page_offset(page_bytes) != 0 {
                return Err(BuildError::UnalignedList(next));
            }
            put(slot, next.0);
            slot = next;
        }
        put(slot, pages.next().ok_or(BuildError::TooFewPages)??.0);
        slot = BusAddr(slot.0.wrapping_add(ENTRY_BYTES));
    }
    Ok(start)
}

/// Pages of a contiguous buffer, as [`build`] takes them: `start`, then page boundaries. They end at the
/// end of the address space.
pub fn contiguous(start: BusAddr, page_bytes: u64) -> impl Iterator<Item = BusAddr> {
    assert_page(page_bytes);
    core::iter::successors(Some(start), move |page| {
        page.offset(page_bytes - page.page_offset(page_bytes))
    })
}

/// Number of list entries for a buffer of `bytes` bytes that begins `offset` bytes into its first page; 0
/// if it needs no list. Chains are not counted.
///
/// # Panics
/// If `page_bytes` isn't a power of two of at least 4096, or `offset` isn't less.
pub const fn list_entries(offset: u64, bytes: u64, page_bytes: u64) -> u64 {
    assert_page(page_bytes);
    match further_pages(offset, bytes, page_bytes) {
        0 | 1 => 0,
        entries => entries,
    }
}

/// Number of pages that a buffer touches after the first.
const fn further_pages(offset: u64, bytes: u64, page_bytes: u64) -> u64 {
    assert!(offset < page_bytes);
    bytes.saturating_sub(page_bytes - offset).div_ceil(page_bytes)
}

/// Number of list pages for a list of `entries` entries that begins `list_offset` bytes, a multiple of 8,
/// into its first page.
///
/// # Panics
/// If `page_bytes` isn't a power of two of at least 4096, or `list_offset` isn't less.
pub const fn list_pages(entries: u64, list_offset: u64, page_bytes: u64) -> u64 {
    assert_page(page_bytes);
    assert!(list_offset < page_bytes);
    if entries == 0 {
        return 0;
    }
    let first = (page_bytes - list_offset) / ENTRY_BYTES;
    if entries <= first {
        return 1;
    }
    // The first page spends a slot on its chain. Each further page has all its slots for entries if it is
    // the last, and one less otherwise.
    let beyond = entries - (first - 1);
    let per_page = page_bytes / ENTRY_BYTES;
    if beyond <= per_page { 2 } else { 2 + (beyond - per_page).div_ceil(per_page - 1) }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    const PAGE: u64 = 4096;

    fn built(
        start: u64,
        bytes: u64,
        lists: &[u64],
    ) -> (Result<DataPointer, BuildError>, Vec<(u64, u64)>) {
        let mut put = Vec::new();
        let pages = contiguous(BusAddr(start), PAGE);
        let lists = lists.iter().map(|list| BusAddr(*list));
        let pointer = build(pages, bytes, PAGE, lists, |at, entry| put.push((at.0, entry)));
        (pointer, put)
    }

    fn prp(prp1: u64, prp2: u64) -> Result<DataPointer, BuildError> {
        Ok(DataPointer::Prp { prp1: BusAddr(prp1), prp2: BusAddr(prp2) })
    }

    #[test]
    fn prp_two_pages_need_no_list() {
        assert_eq!(built(0x1000, 4096, &[]), (prp(0x1000, 0), std::vec![]));
        assert_eq!(built(0x1004, 4096, &[]), (prp(0x1004, 0x2000), std::vec![]));
        assert_eq!(built(0x1000, 8192, &[]), (prp(0x1000, 0x2000), std::vec![]));
        assert_eq!(built(0x1000, 0, &[]), (prp(0, 0), std::vec![]));
    }

    #[test]
    fn prp_three_pages_need_list_of_two() {
        let entries = std::vec![(0x80f8, 0x2000), (0x8100, 0x3000)];
        assert_eq!(built(0x1ffc, 4101, &[0x80f8]), (prp(0x1ffc, 0x80f8), entries));
    }

    #[test]
    fn prp_list_that_fills_page_has_no_chain() {
        let (pointer, put) = built(0x10_0000, 513 * PAGE, &[0x8000, 0x9000]);
        assert_eq!((pointer, put.len()), (prp(0x10_0000, 0x8000), 512));
        assert_eq!(put[511], (0x8ff8, 0x10_0000 + 512 * PAGE));

        let (pointer, put) = built(0x10_0000, 513 * PAGE + 1, &[0x8000, 0x9000]);
        assert_eq!((pointer, put.len()), (prp(0x10_0000, 0x8000), 514));
        assert_eq!(put[510], (0x8ff0, 0x10_0000 + 511 * PAGE));
        assert_eq!(put[511], (0x8ff8, 0x9000), "the chain");
        assert_eq!(put[512], (0x9000, 0x10_0000 + 512 * PAGE));
        assert_eq!(put[513], (0x9008, 0x10_0000 + 513 * PAGE));
    }

    #[test]
    fn prp_build_reports_each_error() {
        assert_eq!(built(0x1002, 512, &[]).0, Err(BuildError::UnalignedStart(BusAddr(0x1002))));
        assert_eq!(built(0x1000, 3 * PAGE, &[]).0, Err(BuildError::TooFewLists));
        let unaligned = |addr| Err(BuildError::UnalignedList(BusAddr(addr)));
        assert_eq!(built(0x1000, 3 * PAGE, &[0x8004]).0, unaligned(0x8004));
        assert_eq!(built(0x1000, 4 * PAGE, &[0x8ff0, 0x9008]).0, unaligned(0x9008));
        assert_eq!(built(0x1000, 4 * PAGE, &[0x8ff0]).0, Err(BuildError::TooFewLists));
        let last_page = 0u64.wrapping_sub(PAGE);
        assert_eq!(built(last_page, PAGE, &[]).0, prp(last_page, 0));
        assert_eq!(built(last_page, PAGE + 1, &[]).0, Err(BuildError::TooFewPages));
        let pages = [0x1000, 0x2008].map(BusAddr);
        let unaligned = build(pages, 2 * PAGE, PAGE, [], |_, _| ());
        assert_eq!(unaligned, Err(BuildError::UnalignedPage(BusAddr(0x2008))));
    }

    #[test]
    fn prp_without_list_matches_build() {
        let last_page = 0u64.wrapping_sub(PAGE);
        for start in [0, 4, 0x1000, 0x1ffc, 0x10_0e00, 0x1002, last_page, last_page + 512] {
            for bytes in [0, 4, 512, 513, PAGE, PAGE + 4, 2 * PAGE - 4, 2 * PAGE, 2 * PAGE + 1] {
                let offset = start % PAGE;
                let needs_none = bytes > 0 && list_entries(offset, bytes, PAGE) == 0;
                let expected = built(start, bytes, &[]).0.ok().filter(|_| needs_none);
                let found = without_list(BusAddr(start), bytes, PAGE);
                assert_eq!(found, expected, "{bytes} bytes at {start:#x}");
            }
        }
    }

    #[test]
    fn prp_list_pages_at_boundaries() {
        for (entries, pages) in
            [(0, 0), (2, 1), (512, 1), (513, 2), (1023, 2), (1024, 3), (1534, 3), (1535, 4)]
        {
            assert_eq!(list_pages(entries, 0, PAGE), pages, "{entries} entries");
        }
        // From the last slot on, the first page of a list holds only a chain.
        assert_eq!((list_pages(2, 4088, PAGE), list_pages(512, 4088, PAGE)), (2, 2));
        assert_eq!(list_pages(513, 4088, PAGE), 3);
        assert_eq!((list_pages(8192, 0, 65536), list_pages(8193, 0, 65536)), (1, 2));
        assert_eq!((list_entries(0, 8192, PAGE), list_entries(4, 8192, PAGE)), (0, 2));
    }
}
