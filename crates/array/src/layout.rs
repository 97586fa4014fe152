//! Layout of an array's blocks over its members.
//!
//! ```text
//!   parity, four members       member 0   member 1   member 2   member 3
//!                  stripe 0        0          1          2       parity
//!                  stripe 1        4          5       parity        3
//!                  stripe 2        8       parity        6          7
//! ```
//!
//! A stripe is one chunk of each member, at the same offset on all. The parity moves one member to the left
//! from stripe to stripe, and the data begins after it: so a sequential read uses all members.

/// Most members of an array.
pub const MEMBERS_MAX: usize = 16;

/// Mapping of blocks to members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    members: u32,
    /// Consecutive blocks of a member.
    chunk: u64,
    parity: bool,
    stripes: u64,
}

/// Consecutive blocks of an array on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the member.
    pub member: u32,
    /// First block on the member.
    pub block: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// Stripe.
    pub stripe: u64,
    /// Offset in the request, in blocks.
    pub from: u32,
}

/// Blocks of a stripe with the same offsets on several members: the unit of a parity update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Stripe.
    pub stripe: u64,
    /// Offset in a chunk, in blocks.
    pub offset: u64,
    /// Number of blocks on each member.
    pub blocks: u32,
    /// First and last data chunk that are written.
    pub data: (u32, u32),
}

impl Layout {
    /// Creates a layout of `members` members of at least `member_blocks` blocks, with `chunk` blocks per
    /// chunk.
    ///
    /// # Panics
    /// If the number of members is out of range, or `chunk` is 0.
    pub fn new(members: u32, chunk: u64, parity: bool, member_blocks: u64) -> Layout {
        let least = if parity { 3 } else { 1 };
        assert!((least..=MEMBERS_MAX as u32).contains(&members), "{members} members");
        assert!(chunk > 0, "a chunk has blocks");
        Layout { members, chunk, parity, stripes: member_blocks / chunk }
    }

    /// Capacity in blocks.
    pub fn blocks(&self) -> u64 {
        self.stripes * self.stripe_blocks()
    }

    /// Number of stripes.
    pub fn stripes(&self) -> u64 {
        self.stripes
    }

    /// Number of members.
    pub fn members(&self) -> u32 {
        self.members
    }

    /// Blocks of a chunk.
    pub fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Data chunks of a stripe.
    pub fn data(&self) -> u32 {
        self.members - u32::from(self.parity)
    }

    /// Data blocks of a stripe.
    pub fn stripe_blocks(&self) -> u64 {
        u64::from(self.data()) * self.chunk
    }

    /// Member with the parity of a stripe; `None` without parity.
    pub fn parity_of(&self, stripe: u64) -> Option<u32> {
        let turn = (stripe % u64::from(self.members)) as u32;
        self.parity.then(|| self.members - 1 - turn)
    }

    /// Member with this data chunk of a stripe.
    pub fn member_of(&self, stripe: u64, data: u32) -> u32 {
        match self.parity_of(stripe) {
            Some(parity) => (parity + 1 + data) % self.members,
            None => data,
        }
    }

    /// Range of stripes that contain these blocks: first, and one past the last.
    pub fn stripes_of(&self, lba: u64, blocks: u64) -> (u64, u64) {
        let stripe = self.stripe_blocks();
        (lba / stripe, (lba + blocks).div_ceil(stripe))
    }

    /// Without parity: range of a member's blocks that these blocks map to, first and one past the last.
    /// `None` if there are none.
    pub fn share_of(&self, member: u32, lba: u64, blocks: u64) -> Option<(u64, u64)> {
        let before = |lba: u64| {
            let rest = lba % self.stripe_blocks();
            let own = rest.saturating_sub(u64::from(member) * self.chunk).min(self.chunk);
            lba / self.stripe_blocks() * self.chunk + own
        };
        let (from, to) = (before(lba), before(lba + blocks));
        (from < to).then_some((from, to))
    }

    /// Pieces of these blocks, in order.
    pub fn pieces(self, lba: u64, blocks: u32) -> impl Iterator<Item = Piece> + Clone {
        let (mut at, end) = (lba, lba + u64::from(blocks));
        core::iter::from_fn(move || {
            let (chunk, stripe) = (at / self.chunk, at / self.stripe_blocks());
            let next = ((chunk + 1) * self.chunk).min(end);
            let piece = Piece {
                member: self.member_of(stripe, (chunk % u64::from(self.data())) as u32),
                block: stripe * self.chunk + at % self.chunk,
                blocks: (next - at) as u32,
                stripe,
                from: (at - lba) as u32,
            };
            let more = at < end;
            at = next;
            more.then_some(piece)
        })
    }

    /// Segments of these blocks, stripe by stripe: at most three per stripe.
    pub fn segments(self, lba: u64, blocks: u32) -> impl Iterator<Item = Segment> + Clone {
        let (first, end) = self.stripes_of(lba, blocks.into());
        let of_stripe = move |stripe: u64| {
            let begin = stripe * self.stripe_blocks();
            let from = lba.max(begin) - begin;
            let to = (lba + u64::from(blocks)).min(begin + self.stripe_blocks()) - begin;
            self.segments_of(stripe, from, to)
        };
        (first..end).flat_map(of_stripe)
    }

    /// Segments of the blocks `from..to` of a stripe's data.
    fn segments_of(self, stripe: u64, from: u64, to: u64) -> impl Iterator<Item = Segment> + Clone {
        let (first, last) = ((from / self.chunk) as u32, ((to - 1) / self.chunk) as u32);
        let (begin, end) = (from % self.chunk, (to - 1) % self.chunk + 1);
        let cuts = match first == last {
            true => [begin, end, end, end],
            false => [0, begin.min(end), begin.max(end), self.chunk],
        };
        (0..3).filter_map(move |number| {
            let (offset, next) = (cuts[number], cuts[number + 1]);
            let data = match first == last {
                true => (first, last),
                // The first chunk is written from `begin`, the last up to `end`.
                false => (first + u32::from(offset < begin), last - u32::from(next > end)),
            };
            let written = offset < next && data.0 <= data.1;
            let blocks = (next - offset) as u32;
            written.then_some(Segment { stripe, offset, blocks, data })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    #[test]
    fn parity_rotates_left_per_stripe() {
        let layout = Layout::new(4, 1, true, 100);
        let member = |lba| layout.pieces(lba, 1).next().map(|piece| (piece.member, piece.block));
        let all: alloc::vec::Vec<_> = (0..9).map(|lba| member(lba).unwrap()).collect();
        assert_eq!(all, [(0, 0), (1, 0), (2, 0), (3, 1), (0, 1), (1, 1), (2, 2), (3, 2), (0, 2)]);
        assert_eq!([0, 1, 2].map(|s| layout.parity_of(s)), [Some(3), Some(2), Some(1)]);
        assert_eq!(layout.blocks(), 300);
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        (3_u32..7, 1_u64..6, any::<bool>()).prop_map(|(m, c, p)| Layout::new(m, c, p, 40))
    }

    proptest! {
        /// No two blocks map to the same place, and none to a parity.
        #[test]
        fn blocks_map_to_distinct_places(layout in layouts()) {
            let mut places = BTreeSet::new();
            for piece in layout.pieces(0, layout.blocks() as u32) {
                prop_assert_ne!(Some(piece.member), layout.parity_of(piece.stripe));
                prop_assert!(piece.member < layout.members());
                for block in piece.block..piece.block + u64::from(piece.blocks) {
                    prop_assert_eq!(block / layout.chunk(), piece.stripe);
                    prop_assert!(places.insert((piece.member, block)));
                }
            }
            prop_assert_eq!(places.len() as u64, layout.blocks());
        }

        /// A member's share is the union of its pieces.
        #[test]
        fn member_share_equals_its_pieces(
            members in 1_u32..6, chunk in 1_u64..6, lba in 0_u64..60, blocks in 1_u32..60,
        ) {
            let layout = Layout::new(members, chunk, false, 200);
            for member in 0..members {
                let mut own = layout.pieces(lba, blocks).filter(|piece| piece.member == member);
                let share = own.next().map(|first| {
                    let end = |piece: Piece| piece.block + u64::from(piece.blocks);
                    (first.block, own.fold(end(first), |at, next| {
                        assert_eq!(at, next.block);
                        end(next)
                    }))
                });
                prop_assert_eq!(layout.share_of(member, lba, blocks.into()), share);
            }
        }

        /// Pieces and segments cover the same blocks, each once.
        #[test]
        fn segments_cover_same_blocks_as_pieces(
            layout in layouts(), lba in 0_u64..60, blocks in 1_u32..60,
        ) {
            let mut pieces = BTreeSet::new();
            let mut from = 0;
            for piece in layout.pieces(lba, blocks) {
                prop_assert_eq!(piece.from, from);
                from += piece.blocks;
                pieces.extend((piece.block..).take(piece.blocks as usize).map(|b| (piece.member, b)));
            }
            prop_assert_eq!(from, blocks);
            let mut segments = BTreeSet::new();
            for one in layout.segments(lba, blocks) {
                for data in one.data.0..=one.data.1 {
                    let member = layout.member_of(one.stripe, data);
                    let begin = one.stripe * layout.chunk() + one.offset;
                    for block in begin..begin + u64::from(one.blocks) {
                        prop_assert!(segments.insert((member, block)));
                    }
                }
            }
            prop_assert_eq!(pieces, segments);
        }
    }
}
