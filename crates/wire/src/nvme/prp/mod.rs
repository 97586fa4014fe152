//! Physical region pages (NVMe base 2.0, 4.1.1).
//!
//! ```text
//!   PRP1 ──► the rest of a page, from a dword-aligned offset on
//!   PRP2 ──► nothing              if that was all
//!        ──► one whole page       if that page is the rest
//!        ──► a list of pages      if more is left:
//!
//!   list, perhaps from the middle of its page      next list page, from its start
//!   ┌──────┬──────┬─────┬───────┬────────┐         ┌──────┬──────┬─────
//!   │ page │ page │ ... │ page  │ chain ─┼────────►│ page │ page │ ...
//!   └──────┴──────┴─────┴───────┴────────┘         └──────┴──────┴─────
//! ```
//!
//! The last slot of a list page holds a chain only if more than one page remains: a list that fills its
//! page exactly has no chain. Both sides derive this from the length, by the same code here: [`PrpWalk`]
//! for the device, [`build`] for the host.

mod build;
mod coalesce;
mod walk;

pub use build::{BuildError, build, contiguous, list_entries, list_pages, without_list};
pub use coalesce::Coalesce;
pub use walk::{PrpWalk, Segments, Step, queue_base};

use crate::BusAddr;

/// Bytes of one list entry.
pub const ENTRY_BYTES: u64 = 8;

/// Minimum memory page size (CC.MPS = 0), bytes.
pub const PAGE_BYTES_MIN: u64 = 4096;

/// A run of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Start address.
    pub addr: BusAddr,
    /// Length in bytes, never 0.
    pub bytes: u64,
}

/// Slots from `addr` to the end of its list page.
const fn slots(addr: BusAddr, page_bytes: u64) -> u64 {
    (page_bytes - addr.page_offset(page_bytes)) / ENTRY_BYTES
}

/// A page size comes from CC.MPS or the host's own configuration, never from a command.
#[inline]
const fn assert_page(page_bytes: u64) {
    assert!(
        page_bytes.is_power_of_two() && page_bytes >= PAGE_BYTES_MIN,
        "memory pages are a power of two of at least 4096 bytes"
    );
}
