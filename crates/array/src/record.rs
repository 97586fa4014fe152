//! On-disk format of the journal region at the end of each member.
//!
//! ```text
//!   blocks of the array │ 2 superblocks │ record 0 │ record 1 │ … │ chunk 0 │ chunk 1 │ …
//! ```
//!
//! A record is a member's part of a group of entries: what each entry changes there, and the place of its
//! data, a chunk. Superblocks and records are [`RECORD_BYTES`] long, and chunks begin at a multiple of the
//! chunk, so that a member whose mapping unit divides them writes whole units and reads nothing to do so.
//!
//! All fields are 64-bit little-endian words. The last word of a record is a checksum of those before.

use alloc::vec::Vec;

use super::layout::Layout;

/// Number of superblock slots, which are written in turn.
pub const SUPERBLOCKS: u64 = 2;
/// Length of superblocks and records, unless a block is longer: the mapping unit of most drives.
pub const RECORD_BYTES: u32 = 4096;
/// Most groups of entries whose places are not free.
const GROUPS_MAX: u32 = 31;
/// Entries of a group on one member.
pub const ITEMS_MAX: usize = (RECORD_BYTES as usize / 8 - HEADER - 1) / ITEM;
/// Words before the first item, and of an item.
const HEADER: usize = 7;
const ITEM: usize = 4;
/// Magic numbers: first word of each record.
const SUPERBLOCK: u64 = u64::from_le_bytes(*b"dbarray3");
const GROUP: u64 = u64::from_le_bytes(*b"dbgroup3");
/// Of arrays whose entries each had a block for a head: before its chunk, and next to one another.
const OLD_SUPERBLOCKS: [u64; 2] =
    [u64::from_le_bytes(*b"dbarray1"), u64::from_le_bytes(*b"dbarray2")];
/// Words of a superblock with its checksum; a block has at least this many.
const WORDS: usize = 16;
/// Words between the magic number and zeros.
const FIELDS: usize = 9;
/// Bits of a sequence number below the life.
pub const LIFE_SHIFT: u32 = 40;
/// Encoding of `None`.
const NONE: u64 = u64::MAX;

/// Location of the journal region on a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    begin: u64,
    chunk: u64,
    entries: u32,
    /// Blocks of a record.
    record: u64,
}

impl Region {
    /// Length in blocks with `entries` entries.
    pub fn blocks(entries: u32, chunk: u64, block_bytes: u32) -> u64 {
        let region = Region { begin: 0, chunk, entries, record: record_blocks(block_bytes) };
        region.before_chunks() + u64::from(entries) * chunk
    }

    /// Region of `entries` entries after the stripes of this layout.
    pub fn behind(layout: &Layout, entries: u32, block_bytes: u32) -> Region {
        let chunk = layout.chunk();
        let record = record_blocks(block_bytes);
        Region { begin: layout.stripes() * chunk, chunk, entries, record }
    }

    /// First block behind it.
    pub fn end(&self) -> u64 {
        self.data(self.entries)
    }

    fn before_chunks(&self) -> u64 {
        ((SUPERBLOCKS + u64::from(self.records())) * self.record).next_multiple_of(self.chunk)
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Number of records: one more than the groups with entries, for a record that frees places.
    pub fn records(&self) -> u32 {
        self.entries.min(GROUPS_MAX) + 1
    }

    /// Blocks of a record.
    pub fn record_blocks(&self) -> u32 {
        self.record as u32
    }

    /// Blocks where the two layouts before this one had their superblocks, with members of this length.
    pub fn old_superblocks(&self, member_blocks: u64) -> impl Iterator<Item = u64> {
        let (chunk, entries) = (self.chunk, u64::from(self.entries));
        let first = 2 + entries * (1 + chunk);
        let second = (3 + entries).next_multiple_of(chunk) + entries * chunk;
        [(first, 2), (second, 3)].into_iter().flat_map(move |(kept, count)| {
            let begin = member_blocks.saturating_sub(kept) / chunk * chunk;
            begin..begin + count
        })
    }

    /// Block of the superblock of this version.
    pub fn superblock(&self, turn: u64) -> u64 {
        self.begin + turn % SUPERBLOCKS * self.record
    }

    /// First block of a record.
    pub fn record(&self, number: u32) -> u64 {
        self.begin + (SUPERBLOCKS + u64::from(number)) * self.record
    }

    /// First block of an entry's data.
    pub fn data(&self, slot: u32) -> u64 {
        self.begin + self.before_chunks() + u64::from(slot) * self.chunk
    }
}

fn record_blocks(block_bytes: u32) -> u64 {
    u64::from(RECORD_BYTES.div_ceil(block_bytes))
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
    /// Sequence number below which all entries are in place, when it was written.
    pub tail: u64,
    /// Identity of the array; 0 in superblocks written before there was one.
    pub array: u64,
}

impl Superblock {
    /// Superblock of an array that was never started.
    pub fn new(members: u32, chunk: u64) -> Superblock {
        let (life, turn, formed, out) = (0, 0, false, None);
        Superblock { life, turn, formed, member: 0, members, chunk, out, tail: 0, array: 0 }
    }

    /// Returns true if this sequence number is one of its life.
    pub fn is_in_life(&self, sequence: u64) -> bool {
        sequence >> LIFE_SHIFT == self.life
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
        let Superblock { life, turn, chunk, tail, array, .. } = *self;
        let words = [life, turn, formed, member, members, chunk, out, tail, array];
        write(SUPERBLOCK, &words, block);
    }

    /// Version of the layout whose superblock this block is, if it is one of the two before this one.
    pub fn old_version(block: &[u8]) -> Option<u64> {
        let of_version = OLD_SUPERBLOCKS.iter().position(|magic| read(*magic, block).is_some())?;
        Some(1 + of_version as u64)
    }

    /// Decodes a block. `None` if it is no valid superblock.
    pub fn read(block: &[u8]) -> Option<Superblock> {
        let [life, turn, formed, member, members, chunk, out, tail, array] =
            read(SUPERBLOCK, block)?;
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
            array,
        })
    }
}

/// Change of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The first blocks of the entry's chunk are written to this range.
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

/// Part of an entry: its change of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Sequence number: order of the entries of a stripe.
    pub sequence: u64,
    /// Place of the entry.
    pub slot: u32,
    /// Bitmap of the members with a part.
    pub parts: u32,
    /// Change of this member.
    pub change: Change,
    /// [`sum`] of the blocks of the entry's chunk.
    pub sum: u64,
}

/// A member's record of a group of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Sequence number below which all entries were durable in place when it was written.
    pub tail: u64,
    /// Sequence number of the first entry of the group.
    pub begin: u64,
    /// Its entries with a part on this member: [`ITEMS_MAX`] at most.
    pub items: Vec<Item>,
}

impl Group {
    /// Encodes it into the blocks of a record.
    pub fn write(&self, bytes: &mut [u8]) {
        assert!(self.items.len() <= ITEMS_MAX, "{} entries", self.items.len());
        bytes.fill(0);
        let mut words = bytes.chunks_exact_mut(8);
        let mut put = |word: u64| {
            words.next().expect("a record's words").copy_from_slice(&word.to_le_bytes());
        };
        for word in [GROUP, self.tail, self.begin, self.items.len() as u64, 0, 0, 0] {
            put(word);
        }
        for item in &self.items {
            let (kind, block, blocks) = match item.change {
                Change::Write { block, blocks } => (0, block, blocks),
                Change::Deallocate { block, blocks } => (1, block, blocks),
            };
            let number = item.sequence - self.begin;
            put(number << 32 | u64::from(item.slot));
            put(u64::from(item.parts) | kind << 31 | u64::from(blocks) << 32);
            put(block);
            put(item.sum);
        }
        let end = bytes.len() - 8;
        let sum = sum(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Decodes the blocks of a record. `None` if they are no valid one.
    pub fn read(bytes: &[u8]) -> Option<Group> {
        let end = bytes.len().checked_sub(8)?;
        if word(bytes, 0) != GROUP || word(bytes, end / 8) != sum(&bytes[..end]) {
            return None;
        }
        let [tail, begin, count] = [1, 2, 3].map(|number| word(bytes, number));
        if count > ITEMS_MAX as u64 {
            return None;
        }
        let item = |number: usize| {
            let [at, what, block, sum] =
                core::array::from_fn(|field| word(bytes, HEADER + number * ITEM + field));
            let blocks = (what >> 32) as u32;
            let change = match what >> 31 & 1 {
                0 => Change::Write { block, blocks },
                _ => Change::Deallocate { block, blocks },
            };
            let sequence = begin.checked_add(at >> 32)?;
            Some(Item { sequence, slot: at as u32, parts: what as u32 & !(1 << 31), change, sum })
        };
        let items = (0..count as usize).map(item).collect::<Option<_>>()?;
        Some(Group { tail, begin, items })
    }
}

fn word(bytes: &[u8], number: usize) -> u64 {
    u64::from_le_bytes(bytes[8 * number..][..8].try_into().expect("eight bytes"))
}

fn write(what: u64, words: &[u64; FIELDS], block: &mut [u8]) {
    block.fill(0);
    for (word, to) in [what].iter().chain(words).zip(block.chunks_exact_mut(8)) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let sum = sum(&block[..8 * (WORDS - 1)]);
    block[8 * (WORDS - 1)..8 * WORDS].copy_from_slice(&sum.to_le_bytes());
}

fn read(what: u64, block: &[u8]) -> Option<[u64; FIELDS]> {
    let right = word(block, 0) == what && word(block, WORDS - 1) == sum(&block[..8 * (WORDS - 1)]);
    right.then(|| core::array::from_fn(|number| word(block, 1 + number)))
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
    use alloc::vec;

    #[test]
    fn superblock_roundtrips_and_rejects_other_bytes() {
        let superblock = Superblock {
            life: 3,
            turn: 7,
            formed: true,
            member: 2,
            members: 5,
            chunk: 16,
            out: Some(4),
            tail: 99,
            array: 0x1234_5678_9abc_def0,
        };
        let mut block = [1; 512];
        superblock.write(&mut block);
        assert_eq!(Superblock::read(&block), Some(superblock));
        for bit in 0..8 * 8 * WORDS {
            let mut torn = block;
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Superblock::read(&torn), None, "bit {bit}");
        }
        assert!(Superblock::read(&[0; 512]).is_none() && Superblock::old_version(&block).is_none());
        for (version, magic) in (1..).zip(OLD_SUPERBLOCKS) {
            write(magic, &[1; FIELDS], &mut block);
            assert_eq!(Superblock::old_version(&block), Some(version));
            assert!(Superblock::read(&block).is_none());
        }
    }

    #[test]
    fn full_group_roundtrips_and_rejects_torn_records() {
        let item = |number: u64| {
            let (block, blocks) = (number * 5, u32::MAX - number as u32);
            let change = match number % 3 {
                0 => Change::Deallocate { block, blocks },
                _ => Change::Write { block, blocks },
            };
            let sequence = 1 << 40 | (100 + 3 * number);
            Item { sequence, slot: number as u32, parts: 0xffff, change, sum: !number }
        };
        let items = (0..ITEMS_MAX as u64).map(item).collect();
        let group = Group { tail: 12, begin: 1 << 40 | 100, items };
        let mut bytes = vec![1; RECORD_BYTES as usize];
        group.write(&mut bytes);
        assert_eq!(Group::read(&bytes), Some(group));
        for block in 0..8 {
            let mut torn = bytes.clone();
            torn[512 * block..][..512].fill(0);
            assert_eq!(Group::read(&torn), None, "block {block}");
        }
        assert_eq!((Group::read(&[0; 4096]), Group::read(&[0; 4])), (None, None));
    }

    #[test]
    fn journal_region_has_disjoint_records_and_aligned_chunks() {
        for (entries, chunk, block_bytes) in
            [(1, 4, 512), (8, 16, 512), (64, 16, 4096), (5, 3, 512), (1024, 128, 8192)]
        {
            let layout = Layout::new(3, chunk, true, 10 * chunk);
            let region = Region::behind(&layout, entries, block_bytes);
            let record = region.record_blocks();
            assert!(record * block_bytes >= RECORD_BYTES);
            let mut begin = region.superblock(SUPERBLOCKS - 1) + u64::from(record);
            for number in 0..region.records() {
                assert_eq!(region.record(number), begin, "{entries} {chunk}");
                begin += u64::from(record);
            }
            for slot in 0..entries {
                assert!(region.data(slot) >= begin && region.data(slot).is_multiple_of(chunk));
                begin = region.data(slot) + chunk;
            }
            let blocks = Region::blocks(entries, chunk, block_bytes);
            assert_eq!(begin, layout.stripes() * chunk + blocks, "{entries} {chunk}");
        }
    }
}
