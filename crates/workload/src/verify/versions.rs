//! Sets of versions of one block.
//!
//! A version counts the writes of a block from 1; 0 means never written. Those whose last four bits are zero
//! are deallocations: no write gets such a number, and a block with one reads as zeroes. A version wraps past
//! 32 bits (to 1), and a stamp holds only its low bits, so versions are compared by serial number
//! arithmetic (RFC 1982). A comparison is wrong only between versions of one block that are half the
//! number space apart.

use std::fmt;

use crate::limits::STAMP_LBA_BITS;

/// The part of a version that a stamp holds.
pub const STAMP_VERSION_MASK: u32 = ((1_u64 << (64 - STAMP_LBA_BITS)) - 1) as u32;

/// Every 16th version is a deallocation.
const TRIM_EVERY: u32 = 16;

/// The version of a write after this one; never 0, nor are its low bits in a stamp.
pub fn after(version: u32) -> u32 {
    let next = version.wrapping_add(1);
    if is_trim(next) { next.wrapping_add(1) } else { next }
}

/// The version of a deallocation after this one; never 0.
pub fn trim_after(version: u32) -> u32 {
    let next = (version & !(TRIM_EVERY - 1)).wrapping_add(TRIM_EVERY);
    if next == 0 { TRIM_EVERY } else { next }
}

fn is_trim(version: u32) -> bool {
    version.is_multiple_of(TRIM_EVERY)
}

/// The last deallocation in a range of versions, if any. Version 0, never written, does not count.
pub fn last_trim(from: u32, to: u32) -> Option<u32> {
    let last = to & !(TRIM_EVERY - 1);
    (last != 0 && (from == 0 || to.wrapping_sub(last) <= to.wrapping_sub(from))).then_some(last)
}

/// Whether `a` is older than `b`. Version 0 is older than every other.
pub fn before(a: u32, b: u32) -> bool {
    match (a, b) {
        (_, 0) => false,
        (0, _) => true,
        _ => (a.wrapping_sub(b) as i32) < 0,
    }
}

/// The later of two versions.
pub fn later(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

/// A set of versions, as ranges with both ends included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions(pub Vec<(u32, u32)>);

impl Versions {
    pub fn one(version: u32) -> Versions {
        Versions(vec![(version, version)])
    }

    /// Every version from `from` to `to`.
    pub fn range(from: u32, to: u32) -> Versions {
        Versions(vec![(from, to)])
    }

    /// Whether a stamp with these low bits of a version may belong to the set.
    pub fn allow(&self, stamped: u32) -> bool {
        self.0.iter().any(|&(from, to)| range_allows(from, to, stamped))
    }

    /// Whether the set contains a block that was never written.
    pub fn allow_unwritten(&self) -> bool {
        self.0.iter().any(|&(from, _)| from == 0)
    }

    /// Whether the set contains a deallocated block.
    pub fn allow_trimmed(&self) -> bool {
        self.0.iter().any(|&(from, to)| last_trim(from, to).is_some())
    }
}

/// Whether `stamped`, the low bits of a version, may belong to a range. Neither 0 nor deallocations are
/// ever stamped.
pub fn range_allows(from: u32, to: u32, stamped: u32) -> bool {
    if is_trim(stamped) || to == 0 {
        return false;
    }
    let from = from.max(1);
    let width = to.wrapping_sub(from);
    let at = stamped.wrapping_sub(from) & STAMP_VERSION_MASK;
    width >= STAMP_VERSION_MASK || at <= width
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, &(from, to)) in self.0.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { " or " })?;
            match (from, to) {
                (0, 0) => write!(f, "zeroes (never written)")?,
                (0, 1) => write!(f, "zeroes (never written) or version 1")?,
                (0, to) => write!(f, "zeroes (never written) or version 1 to {to}")?,
                (from, to) if from == to && is_trim(to) => write!(f, "zeroes (deallocated)")?,
                (from, to) if from == to => write!(f, "version {to}")?,
                (from, to) => {
                    write!(f, "version {from} to {to}")?;
                    if last_trim(from, to).is_some() {
                        write!(f, " or zeroes (deallocated)")?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_order_survives_wraparound() {
        assert!(before(0, 1) && !before(1, 0) && !before(0, 0));
        assert!(before(u32::MAX, after(u32::MAX)));
        assert_eq!(after(u32::MAX), 1);
        assert_eq!(later(u32::MAX, 1), 1);
        assert_eq!(later(0, u32::MAX), u32::MAX);
        // The low bits are never all zero: that would look unwritten.
        assert_eq!(after(STAMP_VERSION_MASK), STAMP_VERSION_MASK + 2);
    }

    #[test]
    fn version_range_includes_only_its_ends_and_between() {
        let set = Versions(vec![(3, 3), (7, 9)]);
        let held: Vec<u32> = (0..12).filter(|&version| set.allow(version)).collect();
        assert_eq!(held, [3, 7, 8, 9]);
        assert!(!set.allow_unwritten() && Versions::range(0, 4).allow_unwritten());
        assert!(!Versions::one(0).allow(0) && !Versions::one(0).allow(1));
        assert!(Versions::range(0, 4).allow(1) && !Versions::range(0, 4).allow(5));
    }

    #[test]
    fn deallocation_versions_are_never_issued_to_writes() {
        assert_eq!((after(15), trim_after(15), trim_after(16)), (17, 16, 32));
        assert_eq!(
            (trim_after(0), trim_after(u32::MAX), trim_after(u32::MAX - 20)),
            (16, 16, u32::MAX - 15)
        );
        let trimmed = |from, to| Versions::range(from, to).allow_trimmed();
        assert!(trimmed(3, 16) && trimmed(16, 16) && trimmed(16, 20) && trimmed(0, 16));
        assert!(!trimmed(3, 15) && !trimmed(17, 31) && !trimmed(0, 0) && !trimmed(0, 15));
        assert_eq!(last_trim(16, 40), Some(32));
        assert!(!Versions::range(3, 40).allow(16) && Versions::range(3, 40).allow(17));
        assert_eq!(Versions::one(16).to_string(), "zeroes (deallocated)");
        assert_eq!(Versions::range(3, 17).to_string(), "version 3 to 17 or zeroes (deallocated)");
    }

    #[test]
    fn version_range_across_stamp_wraparound() {
        let end = STAMP_VERSION_MASK;
        let set = Versions::range(end - 1, end + 2);
        assert!(set.allow(end - 1) && set.allow(end) && set.allow(1) && !set.allow(2));
    }
}
