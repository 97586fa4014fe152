//! Tags: marker bits in a receive buffer, and their positions.
//!
//! A tag is in the last bits of each packet's part of a receive buffer. While it is there, that packet has
//! not landed. The data of a packet must therefore end with other bits.

use crate::BusAddr;
use crate::pcie::Pieces;

/// Maximum length of a tag, bits: a doubleword, so that it is loaded and stored atomically.
pub const BITS_MAX: u32 = 64;

/// Maximum length of a tag that is one word, bits. A longer one takes a doubleword, at a multiple of eight.
pub const WORD_BITS: u32 = 32;

/// A tag of 1 to [`BITS_MAX`] bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The doubleword as stored: the tag is in its high bits, which are last in memory.
    word: u64,
    bits: u32,
}

impl Tag {
    /// The tag of `bits` bits whose value is the low bits of `value`.
    ///
    /// # Panics
    /// If `bits` is not 1 to [`BITS_MAX`].
    pub const fn new(value: u64, bits: u32) -> Tag {
        assert!(bits >= 1 && bits <= BITS_MAX, "a tag has 1 to 64 bits");
        Tag { word: value << (BITS_MAX - bits), bits }
    }

    /// Returns true if the tag takes more than a packet's last word.
    #[inline]
    pub const fn is_wide(self) -> bool {
        self.bits > WORD_BITS
    }

    /// The word to store as a mark, of a tag that is not wide.
    pub const fn word(self) -> u32 {
        (self.word >> 32) as u32
    }

    /// The doubleword to store as a mark, of a wide tag.
    pub const fn doubleword(self) -> u64 {
        self.word
    }

    /// Its last 32 bits as a tag of one word, for a buffer that has no place for a wide one.
    pub const fn narrow(self) -> Tag {
        if self.is_wide() { Tag { word: self.word >> 32 << 32, bits: WORD_BITS } } else { self }
    }

    /// Returns true if the last word of a packet ends with the tag, which is not wide: the packet would
    /// appear not to have landed.
    #[inline]
    pub const fn is_in(self, word: u32) -> bool {
        self.is_in_end((word as u64) << 32)
    }

    /// Returns true if the last doubleword of a packet ends with the tag.
    #[inline]
    pub const fn is_in_end(self, end: u64) -> bool {
        (end ^ self.word) >> (BITS_MAX - self.bits) == 0
    }
}

/// Positions of the tags in a buffer: the offsets of the last words of its packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    at: BusAddr,
    bytes: u32,
    packet_bytes: Option<u32>,
    done: u32,
}

impl Places {
    /// Positions in a buffer of `bytes` bytes. `packet_bytes` is the link's maximum payload size; `None` if
    /// the transfer lands in order, so that one tag at its end suffices.
    ///
    /// # Panics
    /// If the buffer does not begin and end at a multiple of four.
    pub const fn new(at: BusAddr, bytes: u32, packet_bytes: Option<u32>) -> Places {
        assert!(at.0.is_multiple_of(4) && bytes.is_multiple_of(4), "tags are whole words");
        Places { at, bytes, packet_bytes, done: 0 }
    }
}

impl Iterator for Places {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        let left = self.bytes - self.done;
        if left == 0 {
            return None;
        }
        self.done += match self.packet_bytes {
            None => left,
            Some(payload) => {
                let here = self.at.0.wrapping_add(u64::from(self.done));
                Pieces::new(here, u64::from(left), payload).next()?.bytes
            }
        };
        Some(self.done - 4)
    }
}

/// Returns true if every packet of such a transfer ends at the end of one of the device's granules, so that
/// the device's guarantee holds for it.
pub fn is_aligned(at: BusAddr, bytes: u32, packet_bytes: Option<u32>, grain: u32) -> bool {
    grain > 0 && Places::new(at, bytes, packet_bytes).all(|place| (place + 4).is_multiple_of(grain))
}

/// Returns true if a buffer has places for wide tags: each packet ends at a multiple of eight.
pub const fn has_wide_places(at: BusAddr, bytes: u32) -> bool {
    at.0.is_multiple_of(8) && bytes.is_multiple_of(8)
}

/// Probability that a random tag of `bits` bits occurs at the end of some packet of a device that holds
/// `packets` of them, in the worst case: every packet ends differently (Vučinić et al., section 3.1: 2^30
/// packets and 32 bits give 25 %).
pub fn collision_chance(packets: u64, bits: u32) -> f64 {
    (packets as f64 / (1u128 << bits) as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn of(at: u64, bytes: u32, packet: Option<u32>) -> Vec<u32> {
        Places::new(BusAddr(at), bytes, packet).collect()
    }

    #[test]
    fn tag_at_end_of_each_packet() {
        assert_eq!(of(0x1000, 512, Some(128)), [124, 252, 380, 508]);
        assert_eq!(of(0x1000, 512, None), [508]);
        assert_eq!(of(0x1000, 64, Some(128)), [60]);
        // 100 bytes to the page's end, then packets from there.
        assert_eq!(of(0x2000 - 100, 512, Some(128)), [96, 224, 352, 480, 508]);
        assert_eq!(of(0x1ffc, 128, Some(128)), [0, 124]);
    }

    #[test]
    fn unaligned_page_crossing_is_not_covered_by_device_tag() {
        assert!(is_aligned(BusAddr(0x1000), 4096, Some(128), 64));
        assert!(is_aligned(BusAddr(0x1f80), 4096, Some(128), 64));
        assert!(!is_aligned(BusAddr(0x1f84), 4096, Some(128), 64));
        assert!(is_aligned(BusAddr(0x1f84), 4096, None, 64));
        assert!(!is_aligned(BusAddr(0x1000), 4096, Some(128), 0));
    }

    #[test]
    fn tag_compares_only_its_own_bits() {
        let tag = Tag::new(0xfab, 8);
        assert_eq!(tag.word(), 0xab00_0000);
        assert!(tag.is_in(0xab12_3456) && !tag.is_in(0xac00_0000));
        let whole = Tag::new(0x1234_5678, 32);
        assert!(whole.is_in(0x1234_5678) && !whole.is_in(0x1234_5679));
    }

    #[test]
    fn wide_tag_compares_more_than_last_word() {
        let tag = Tag::new(0xabcd_1234_5678, 48);
        assert_eq!(tag.doubleword(), 0xabcd_1234_5678_0000);
        assert!(tag.is_wide() && !Tag::new(1, 32).is_wide());
        assert!(tag.is_in_end(0xabcd_1234_5678_ffff) && !tag.is_in_end(0xabcd_1234_5679_0000));
        assert!(tag.narrow().is_in(0xabcd_1234) && !tag.narrow().is_wide());
        assert_eq!(Tag::new(7, 8).narrow(), Tag::new(7, 8));
        let all = Tag::new(u64::MAX, 64);
        assert!(all.is_in_end(u64::MAX) && !all.is_in_end(u64::MAX - 1));
        assert!(has_wide_places(BusAddr(0x1008), 64) && !has_wide_places(BusAddr(0x1004), 64));
        assert_eq!(collision_chance(1 << 30, 64), 1.0 / (1u64 << 34) as f64);
    }

    #[test]
    fn tag_collision_chance_matches_paper() {
        assert_eq!(collision_chance(1 << 30, 32), 0.25);
        assert_eq!(collision_chance(1 << 30, 30), 1.0);
        assert_eq!(collision_chance(1 << 40, 30), 1.0);
    }
}
