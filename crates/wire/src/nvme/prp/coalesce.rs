//! Merges adjacent pages into one run of memory, and one transfer.

use super::Segment;

/// Merges adjacent segments. Feed it with [`push`](Self::push), end with [`finish`](Self::finish).
#[derive(Clone, Copy, Debug, Default)]
pub struct Coalesce {
    held: Option<Segment>,
}

impl Coalesce {
    /// Takes the next segment; returns the previous run, if this segment does not continue it.
    pub fn push(&mut self, segment: Segment) -> Option<Segment> {
        match &mut self.held {
            Some(held) if held.addr.offset(held.bytes) == Some(segment.addr) => {
                held.bytes += segment.bytes;
                None
            }
            held => held.replace(segment),
        }
    }

    /// Returns the last run, if there was any segment.
    pub fn finish(self) -> Option<Segment> {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BusAddr;

    #[test]
    fn adjacent_segments_coalesce() {
        let segment = |addr, bytes| Segment { addr: BusAddr(addr), bytes };
        let mut runs = Coalesce::default();
        assert_eq!(runs.finish(), None);
        assert_eq!(runs.push(segment(0x1e00, 512)), None);
        assert_eq!(runs.push(segment(0x2000, 4096)), None);
        assert_eq!(runs.push(segment(0x4000, 4096)), Some(segment(0x1e00, 4608)));
        assert_eq!(runs.push(segment(0x3000, 4096)), Some(segment(0x4000, 4096)));
        assert_eq!(runs.push(segment(0x3000, 4096)), Some(segment(0x3000, 4096)), "again");
        assert_eq!(runs.finish(), Some(segment(0x3000, 4096)));
    }

    #[test]
    fn segments_do_not_coalesce_across_address_wrap() {
        let last = Segment { addr: BusAddr(0u64.wrapping_sub(4096)), bytes: 4096 };
        let zero = Segment { addr: BusAddr(0), bytes: 4096 };
        let mut runs = Coalesce::default();
        assert_eq!(runs.push(last), None);
        assert_eq!(runs.push(zero), Some(last));
    }
}
