//! The ring's size, from what the device reports (Bougioukou et al., section III: fixed at start, "based on
//! parameters retrieved by the storage device": capacity, technology, channels, read and write times). The
//! paper has no formula: this one is ours.

use wire::block::descriptor::PAGE_BYTES;
use wire::block::registers::{Limits, Medium};

/// Parameters that a device reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reported {
    pub limits: Limits,
    pub medium: Medium,
    /// Capacity in blocks of the medium.
    pub blocks: u64,
    /// Time to the first byte of a page, and to write one, ns; 0: not reported.
    pub read_ns: u32,
    pub write_ns: u32,
}

/// Time of a page on a link of 2 GB/s, ns: a medium that is faster is never what a block waits for.
const PAGE_ON_LINK_NS: u64 = 2000;

/// Blocks of a ring over a fast medium: one is with the device while the next one fills.
const BLOCKS_FAST: u32 = 2;
/// Over a slow one callers fill more than the next one meanwhile.
const BLOCKS_SLOW: u32 = 4;

const UNSPECIFIED: u8 = 0;

impl Reported {
    /// Pages that the device has: more commands than these would wait for each other.
    fn pages(&self) -> u64 {
        self.blocks / u64::from(PAGE_BYTES >> self.medium.block_log2())
    }

    /// Time for which a largest block is with the medium, if each channel takes its share one after the
    /// other, ns.
    fn block_ns(&self) -> u64 {
        let share = u32::from(self.limits.block_max()).div_ceil(self.channels());
        u64::from(self.read_ns.max(self.write_ns)) * u64::from(share)
    }

    fn channels(&self) -> u32 {
        u32::from(self.medium.channels()).max(1)
    }

    /// Returns true if a block is longer with the medium than on the link.
    fn is_slow(&self) -> bool {
        let on_link = u64::from(self.limits.block_max()) * PAGE_ON_LINK_NS;
        self.medium.technology() != UNSPECIFIED && self.block_ns() > on_link
    }

    /// Entries of the ring, a power of two: at least `depth`, and blocks enough for the medium, as far as
    /// the device and its capacity allow.
    pub fn entries(&self, depth: u32) -> u32 {
        let blocks = if self.is_slow() { BLOCKS_SLOW } else { BLOCKS_FAST };
        let largest = u32::from(self.limits.block_max());
        let pages = u32::try_from(self.pages()).unwrap_or(u32::MAX).max(largest);
        let wanted = depth.max(blocks * largest).min(pages).next_power_of_two();
        wanted.min(1 << self.limits.entries_log2())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DDR3 behind one channel, as in the paper's prototype.
    fn prototype() -> Reported {
        Reported {
            limits: Limits::new().with_entries_log2(12).with_block_max(32).with_group(32),
            medium: Medium::new().with_block_log2(9).with_channels(1).with_technology(1),
            blocks: (1 << 30) / 512,
            read_ns: 27,
            write_ns: 27,
        }
    }

    fn flash(channels: u8) -> Reported {
        let medium = prototype().medium.with_technology(3).with_channels(channels);
        Reported { medium, read_ns: 50_000, write_ns: 600_000, ..prototype() }
    }

    #[test]
    fn memory_has_two_blocks_and_a_slow_medium_four() {
        assert_eq!(prototype().entries(1), 64);
        assert_eq!(flash(8).entries(1), 128);
        let slow_reads = Reported { write_ns: 0, ..flash(8) };
        assert_eq!(slow_reads.entries(1), 128, "50 us by 4 of each channel are more than 64 us");
    }

    #[test]
    fn channels_shorten_the_time_of_a_block() {
        let quick = Reported { read_ns: 10_000, write_ns: 10_000, ..flash(1) };
        assert_eq!(quick.entries(1), 128);
        let wide = Reported { medium: quick.medium.with_channels(32), ..quick };
        assert_eq!(wide.entries(1), 64, "10 us in all, less than 64 us on the link");
    }

    #[test]
    fn unspecified_technology_has_no_times() {
        let medium = flash(1).medium.with_technology(0);
        assert_eq!(Reported { medium, ..flash(1) }.entries(1), 64);
    }

    #[test]
    fn capacity_and_limits_bound_the_ring() {
        let of_pages = |pages: u64| Reported { blocks: pages * 8, ..flash(8) };
        assert_eq!(of_pages(100).entries(256), 128);
        assert_eq!(of_pages(1).entries(256), 32, "a largest block fits in any case");
        let small = prototype().limits.with_entries_log2(6);
        assert_eq!(Reported { limits: small, ..flash(8) }.entries(256), 64);
        assert_eq!(prototype().entries(100), 128);
        let most = Reported { blocks: u64::MAX, ..flash(8) };
        assert_eq!(most.entries(1), 128);
    }
}
