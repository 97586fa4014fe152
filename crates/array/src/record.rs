//! On-disk format of the journal region at the end of each member.
//!
//! ```text
//!   blocks of the array │ 3 superblocks │ head 0 │ head 1 │ … │ chunk 0 │ chunk 1 │ …
//! ```
//!
//! Entry `n` is head `n` and chunk `n`. Chunks begin at a multiple of the chunk, so that a member whose
//! mapping unit divides it writes whole units; heads are next to one another, so that those of a group share
//! units.
//!
//! All fields are 64-bit little-endian words; the last word is a checksum of those before.

use super::Layout;

/// Number of superblock slots, which are written in turn. A superblock may be written before the previous one
/// is durable: then the one before that is not overwritten.
pub const SUPERBLOCKS: u64 = 3;
/// Magic numbers: first word of each record.
const SUPERBLOCK: u64 = u64::from_le_bytes(*b"dbarray2");
const HEAD: u64 = u64::from_le_bytes(*b"dbentry2");
/// Of arrays whose heads were each before their chunk.
const OLD_SUPERBLOCK: u64 = u64::from_le_bytes(*b"dbarray1");
/// Words of a record with its checksum; a block has at least this many.
const WORDS: usize = 16;
/// Encoding of `None`.
const NONE: u64 = u64::MAX;

/// Location of the journal region on a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    begin: u64,
    chunk: u64,
    entries: u32,
}

impl Region {
    /// Length in blocks with `entries` entries.
    pub fn blocks(entries: u32, chunk: u64) -> u64 {
        Region::before_chunks(entries, chunk) + u64::from(entries) * chunk
    }

    /// Region of `entries` entries after the stripes of this layout.
    pub fn behind(layout: &Layout, entries: u32) -> Region {
        let chunk = layout.chunk();
        Region { begin: layout.stripes() * chunk, chunk, entries }
    }

    fn before_chunks(entries: u32, chunk: u64) -> u64 {
        (SUPERBLOCKS + u64::from(entries)).next_multiple_of(chunk)
    }

    /// Block of the superblock of this version.
    pub fn superblock(&self, turn: u64) -> u64 {
        self.begin + turn % SUPERBLOCKS
    }

    /// Block of an entry's head.
    pub fn head(&self, slot: u32) -> u64 {
        self.begin + SUPERBLOCKS + u64::from(slot)
    }

    /// First block of an entry's data.
    pub fn data(&self, slot: u32) -> u64 {
        let before = Region::before_chunks(self.entries, self.chunk);
        self.begin + before + u64::from(slot) * self.chunk
    }
}

/// Superblock: a member's record of its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Number of starts of the array, which separates the records of different lives.
    pub life: u64,
    /// Version within this life.
    pub turn: u64,
    /// True if all members have had a superblock: then a member without one is a foreign device.
    pub formed: bool,
    /// Index of this member.
    pub member: u32,
    /// Number of members.
    pub members: u32,
    /// Blocks of a chunk.
    pub chunk: u64,
    /// Failed member.
    pub out: Option<u32>,
    /// Sequence number below which all entries are in place.
    pub tail: u64,
}

impl Superblock {
    /// Superblock of an array that was never started.
    pub fn new(members: u32, chunk: u64) -> Superblock {
        let (life, turn, formed, out) = (0, 0, false, None);
        Superblock { life, turn, formed, member: 0, members, chunk, out, tail: 0 }
    }

    /// Sort key: the greater one is newer.
    pub fn version(&self) -> (u64, u64) {
        (self.life, self.turn)
    }

    /// Encodes it into a block.
    pub fn write(&self, block: &mut [u8]) {
        let out = self.out.map_or(NONE, u64::from);
        let (member, members) = (self.member.into(), self.members.into());
        let formed = u64::from(self.formed);
        let words = [self.life, self.turn, formed, member, members, self.chunk, out, self.tail];
        write(SUPERBLOCK, &words, block);
    }

    /// Returns true if the block is the superblock of an array with a journal of the layout before this one.
    pub fn is_of_old_layout(block: &[u8]) -> bool {
        read(OLD_SUPERBLOCK, block).is_some()
    }

    /// Decodes a block. `None` if it is no valid superblock.
    pub fn read(block: &[u8]) -> Option<Superblock> {
        let [life, turn, formed, member, members, chunk, out, tail, ..] = read(SUPERBLOCK, block)?;
        let out = if out == NONE { None } else { Some(u32::try_from(out).ok()?) };
        Some(Superblock {
            life,
            turn,
            formed: formed != 0,
            member: u32::try_from(member).ok()?,
            members: u32::try_from(members).ok()?,
            chunk,
            out,
            tail,
        })
    }
}

/// Change of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The blocks of the entry's chunk are written to this range.
    Write {
        /// First block.
        block: u64,
        /// Number of blocks.
        blocks: u32,
    },
    /// This range is deallocated.
    Deallocate {
        /// First block.
        block: u64,
        /// Number of blocks.
        blocks: u32,
    },
}

/// Head of a member's part of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Sequence number: order of the entries of a stripe.
    pub sequence: u64,
    /// Bitmap of the members with a part.
    pub parts: u32,
    /// Change of this member.
    pub change: Change,
    /// [`sum`] of the blocks of the entry's chunk.
    pub sum: u64,
}

impl Head {
    /// Encodes it into a block.
    pub fn write(&self, bytes: &mut [u8]) {
        let (kind, block, blocks) = match self.change {
            Change::Write { block, blocks } => (0, block, blocks),
            Change::Deallocate { block, blocks } => (1, block, blocks),
        };
        let words = [self.sequence, self.parts.into(), kind, block, blocks.into(), self.sum, 0, 0];
        write(HEAD, &words, bytes);
    }

    /// Decodes a block. `None` if it is no valid head.
    pub fn read(bytes: &[u8]) -> Option<Head> {
        let [sequence, parts, kind, block, blocks, sum, ..] = read(HEAD, bytes)?;
        let blocks = u32::try_from(blocks).ok()?;
        let change = match kind {
            0 => Change::Write { block, blocks },
            1 => Change::Deallocate { block, blocks },
            _ => return None,
        };
        Some(Head { sequence, parts: u32::try_from(parts).ok()?, change, sum })
    }
}

fn write(what: u64, words: &[u64; 8], block: &mut [u8]) {
    block.fill(0);
    for (word, to) in [what].iter().chain(words).zip(block.chunks_exact_mut(8)) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let sum = sum(&block[..8 * (WORDS - 1)]);
    block[8 * (WORDS - 1)..8 * WORDS].copy_from_slice(&sum.to_le_bytes());
}

fn read(what: u64, block: &[u8]) -> Option<[u64; 8]> {
    let word = |number: usize| {
        let bytes = block[8 * number..][..8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    };
    let right = word(0) == what && word(WORDS - 1) == sum(&block[..8 * (WORDS - 1)]);
    right.then(|| core::array::from_fn(|number| word(1 + number)))
}

/// Checksum that detects torn writes; not secure against deliberate changes.
pub fn sum(bytes: &[u8]) -> u64 {
    let mut sum = bytes.len() as u64;
    for word in bytes.chunks(8) {
        let mut whole = [0; 8];
        whole[..word.len()].copy_from_slice(word);
        // An odd multiplier (that of splitmix64) and a rotation, so that every word and their order count.
        sum = (sum ^ u64::from_le_bytes(whole)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superblock_and_head_roundtrip_and_reject_other_bytes() {
        let superblock = Superblock {
            life: 3,
            turn: 7,
            formed: true,
            member: 2,
            members: 5,
            chunk: 16,
            out: Some(4),
            tail: 99,
        };
        let change = Change::Write { block: 8, blocks: 3 };
        let head = Head { sequence: 12, parts: 0b1011, change, sum: 77 };
        let (mut one, mut two) = ([1; 512], [1; 512]);
        superblock.write(&mut one);
        head.write(&mut two);
        assert_eq!((Superblock::read(&one), Superblock::read(&two)), (Some(superblock), None));
        assert_eq!((Head::read(&two), Head::read(&one)), (Some(head), None));
        for bit in 0..8 * 8 * WORDS {
            let mut torn = one;
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Superblock::read(&torn), None, "bit {bit}");
        }
        assert_eq!((Superblock::read(&[0; 512]), Head::read(&[0; 512])), (None, None));
    }

    #[test]
    fn journal_region_has_disjoint_heads_and_aligned_chunks() {
        for (entries, chunk) in [(1, 4), (8, 16), (64, 16), (5, 3), (1024, 128)] {
            let layout = Layout::new(3, chunk, true, 10 * chunk);
            let region = Region::behind(&layout, entries);
            let mut begin = region.superblock(SUPERBLOCKS - 1) + 1;
            for slot in 0..entries {
                assert_eq!(region.head(slot), begin, "{entries} {chunk}");
                begin += 1;
            }
            for slot in 0..entries {
                assert!(region.data(slot) >= begin && region.data(slot).is_multiple_of(chunk));
                begin = region.data(slot) + chunk;
            }
            let end = layout.stripes() * chunk + Region::blocks(entries, chunk);
            assert_eq!(begin, end, "{entries} {chunk}");
        }
    }
}
