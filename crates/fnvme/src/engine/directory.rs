//! Directory of named areas, on the drive before all areas.
//!
//! ```text
//!   from ─► copy 0 │ copy 1 │ areas ...      a copy: header of 64 bytes, 63 entries of 64 bytes
//! ```
//!
//! A change goes to the older copy, then to the other, each with the next sequence number and a checksum:
//! after a power cut one of both is valid, and damage to one copy loses nothing. No client can forge a copy,
//! as the directory lies outside all areas.
//!
//! The first write of all has no valid copy beside it. It has one entry at most, which lies in the 512 bytes
//! that no drive tears: so it is read whatever lies behind them. Any other invalid copy is damage.

use wire::Lba;

/// Longest name of an area, bytes of UTF-8.
pub const NAME_BYTES: usize = 40;
/// Most named areas of a drive.
pub const NAMES_MAX: usize = COPY_BYTES / ENTRY_BYTES - 1;

pub(super) const COPY_BYTES: usize = 4096;
pub(super) const COPIES: u64 = 2;

const ENTRY_BYTES: usize = 64;
/// A drive writes as many bytes as its smallest block whole, or not at all.
const ATOMIC_BYTES: usize = 512;
const MAGIC: &[u8; 8] = b"fnvmedir";
const VERSION: u32 = 1;

/// Offsets in the header. The checksum is over the copy with zeros in its place.
mod header {
    pub const VERSION: usize = 8;
    pub const CHECKSUM: usize = 12;
    pub const SEQUENCE: usize = 16;
    pub const BLOCK_BYTES: usize = 24;
    pub const ENTRIES: usize = 28;
}

/// Offsets in an entry, behind the name.
mod entry {
    pub const FIRST: usize = 40;
    pub const BLOCKS: usize = 48;
}

/// An entry: the name of an area and its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub name: String,
    pub first: Lba,
    pub blocks: u64,
    /// It has a client.
    pub in_use: bool,
}

/// All named areas of a drive.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Directory {
    pub entries: Vec<Entry>,
    /// Number of the last copy that was written, 0: none.
    sequence: u64,
}

/// Why the directory on a drive cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DirectoryError {
    #[error("no copy is whole: found magic without a valid checksum, expected one valid copy")]
    Damaged,
    #[error("found version {0}, expected {VERSION}")]
    Version(u32),
    #[error("found blocks of {found} bytes, expected {expected}, the drive's")]
    BlockBytes { found: u32, expected: u32 },
    #[error("found {0} entries, expected at most {NAMES_MAX}")]
    Entries(u32),
    #[error(
        "entry {0}: found no name, expected 1 to {NAME_BYTES} bytes of UTF-8, padded with zeros"
    )]
    Name(usize),
    #[error(
        "entry {entry}, {name:?}: found {blocks} blocks at LBA {first}, expected free ones of this drive"
    )]
    Blocks { entry: usize, name: String, first: u64, blocks: u64 },
    #[error("entry {0}: found the name of another entry")]
    Twice(usize),
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn checksum(copy: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&copy[..header::CHECKSUM]);
    let sum = crc32c::crc32c_append(sum, &[0; 4]);
    crc32c::crc32c_append(sum, &copy[header::CHECKSUM + 4..COPY_BYTES])
}

/// Returns true if an area may have this name.
pub(super) fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES).contains(&name.len()) && !name.contains('\0')
}

impl Directory {
    /// Reads the newer valid copy. Copies without the magic are a drive without named areas.
    pub fn parse(copies: [&[u8]; 2], block_bytes: u32) -> Result<Directory, DirectoryError> {
        let ours = |copy: &&[u8]| copy.starts_with(MAGIC);
        let valid = |copy: &&[u8]| ours(copy) && checksum(copy) == u32_at(copy, header::CHECKSUM);
        let newest = copies.into_iter().filter(valid);
        let mut first = [0; COPY_BYTES];
        let copy = match newest.max_by_key(|copy| u64_at(copy, header::SEQUENCE)) {
            Some(copy) => copy,
            None if !copies.iter().any(ours) => return Ok(Directory::empty()),
            None => {
                let begun = copies.into_iter().filter(ours).any(|copy| {
                    first[..ATOMIC_BYTES].copy_from_slice(&copy[..ATOMIC_BYTES]);
                    u64_at(copy, header::SEQUENCE) == 1 && valid(&&first[..])
                });
                if !begun {
                    return Err(DirectoryError::Damaged);
                }
                &first
            }
        };
        let version = u32_at(copy, header::VERSION);
        if version != VERSION {
            return Err(DirectoryError::Version(version));
        }
        let found = u32_at(copy, header::BLOCK_BYTES);
        if found != block_bytes {
            return Err(DirectoryError::BlockBytes { found, expected: block_bytes });
        }
        let count = u32_at(copy, header::ENTRIES);
        if count as usize > NAMES_MAX {
            return Err(DirectoryError::Entries(count));
        }
        let mut entries: Vec<Entry> = Vec::new();
        let slots = copy[ENTRY_BYTES..].chunks_exact(ENTRY_BYTES).take(count as usize);
        for (number, bytes) in slots.enumerate() {
            let entry = parse_entry(bytes).ok_or(DirectoryError::Name(number))?;
            if entries.iter().any(|other| other.name == entry.name) {
                return Err(DirectoryError::Twice(number));
            }
            entries.push(entry);
        }
        Ok(Directory { entries, sequence: u64_at(copy, header::SEQUENCE) })
    }

    /// The directory of a drive without named areas.
    pub fn empty() -> Directory {
        Directory { entries: Vec::new(), sequence: 0 }
    }

    /// A copy of it is on the drive.
    pub fn is_on_drive(&self) -> bool {
        self.sequence != 0
    }

    /// Reserves the blocks of all entries by `reserve`, which returns false if they are not free.
    pub fn reserve_all(
        self,
        mut reserve: impl FnMut(&Entry) -> bool,
    ) -> Result<Directory, DirectoryError> {
        match self.entries.iter().enumerate().find(|(_, entry)| !reserve(entry)) {
            None => Ok(self),
            Some((number, entry)) => Err(DirectoryError::Blocks {
                entry: number,
                name: entry.name.clone(),
                first: entry.first.0,
                blocks: entry.blocks,
            }),
        }
    }

    /// The next copy: its number, 0 or 1, and its bytes.
    pub fn next_copy(&self, block_bytes: u32) -> (u64, Vec<u8>) {
        let sequence = self.sequence + 1;
        let mut copy = vec![0; COPY_BYTES];
        copy[..MAGIC.len()].copy_from_slice(MAGIC);
        let mut put = |at: usize, bytes: &[u8]| copy[at..at + bytes.len()].copy_from_slice(bytes);
        put(header::VERSION, &VERSION.to_le_bytes());
        put(header::SEQUENCE, &sequence.to_le_bytes());
        put(header::BLOCK_BYTES, &block_bytes.to_le_bytes());
        put(header::ENTRIES, &(self.entries.len() as u32).to_le_bytes());
        for (number, entry) in self.entries.iter().enumerate() {
            let at = (number + 1) * ENTRY_BYTES;
            put(at, entry.name.as_bytes());
            put(at + entry::FIRST, &entry.first.0.to_le_bytes());
            put(at + entry::BLOCKS, &entry.blocks.to_le_bytes());
        }
        let sum = checksum(&copy);
        copy[header::CHECKSUM..header::CHECKSUM + 4].copy_from_slice(&sum.to_le_bytes());
        (sequence % COPIES, copy)
    }

    /// Records that the next copy is on the drive. After a failed write it is not: the same copy is
    /// written again, as the other may be the only valid one.
    pub fn written(&mut self) {
        self.sequence += 1;
    }

    pub fn find(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.name == name)
    }
}

fn parse_entry(bytes: &[u8]) -> Option<Entry> {
    let name = &bytes[..NAME_BYTES];
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
    let padded = name[length..].iter().all(|byte| *byte == 0);
    let name = std::str::from_utf8(&name[..length]).ok().filter(|_| padded && length > 0)?;
    let (first, blocks) = (Lba(u64_at(bytes, entry::FIRST)), u64_at(bytes, entry::BLOCKS));
    Some(Entry { name: name.into(), first, blocks, in_use: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLANK: [u8; COPY_BYTES] = [0; COPY_BYTES];

    fn entry(name: &str, first: u64) -> Entry {
        Entry { name: name.into(), first: Lba(first), blocks: 8, in_use: false }
    }

    fn of(entries: &[Entry], sequence: u64) -> Directory {
        Directory { entries: entries.to_vec(), sequence }
    }

    fn parse(copies: &[Vec<u8>; 2]) -> Result<Directory, DirectoryError> {
        Directory::parse([&copies[0], &copies[1]], 512)
    }

    /// A copy with other bytes at an offset, and the checksum of these.
    fn changed(copy: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut copy = copy.to_vec();
        copy[at..at + bytes.len()].copy_from_slice(bytes);
        let sum = checksum(&copy);
        copy[header::CHECKSUM..header::CHECKSUM + 4].copy_from_slice(&sum.to_le_bytes());
        copy
    }

    #[test]
    fn newest_valid_copy_is_read() {
        assert_eq!(Directory::parse([&BLANK, &[7; COPY_BYTES]], 512), Ok(of(&[], 0)));
        let mut copies = [BLANK.to_vec(), BLANK.to_vec()];
        let mut directory = of(&[], 0);
        for sequence in 1..=5 {
            directory.entries.push(entry(&format!("area {sequence}"), sequence * 8));
            let (place, copy) = directory.next_copy(512);
            directory.written();
            assert_eq!(place, sequence % 2);
            copies[place as usize] = copy;
            assert_eq!(parse(&copies).as_ref(), Ok(&directory));
        }
    }

    /// A power cut tears the write of a copy at any multiple of 512 bytes: the one before is found.
    #[test]
    fn torn_copy_leaves_the_one_before() {
        let all: Vec<_> =
            (0..NAMES_MAX as u64).map(|n| entry(&format!("{n:040}"), n * 8)).collect();
        let copies = [of(&all[..40], 5).next_copy(512).1, of(&all[..39], 4).next_copy(512).1];
        let (place, next) = of(&all, 6).next_copy(512);
        assert_eq!(place, 1);
        for torn in (0..=COPY_BYTES).step_by(512) {
            let mut copies = copies.clone();
            copies[1][..torn].copy_from_slice(&next[..torn]);
            let found = parse(&copies).expect("one is whole").entries.len();
            let expected = if torn == COPY_BYTES { NAMES_MAX } else { 40 };
            assert_eq!(found, expected, "torn after {torn} bytes");
        }
        // The first copy of all, over what another owner has left: the other has never been written.
        let first = of(&all[..1], 0).next_copy(512).1;
        for torn in (0..=COPY_BYTES).step_by(512) {
            let mut copies = [BLANK.to_vec(), vec![7; COPY_BYTES]];
            copies[1][..torn].copy_from_slice(&first[..torn]);
            let found = parse(&copies).expect("no damage").entries;
            assert_eq!(found, all[..usize::from(torn > 0)], "torn after {torn} bytes");
        }
    }

    #[test]
    fn damaged_copy_and_an_empty_one_are_no_empty_drive() {
        let entries = [entry("a", 8), entry("b", 16)];
        for (sequence, entries) in [(0, &entries[..1]), (1, &entries[..1]), (6, &entries[..])] {
            let (place, copy) = of(entries, sequence).next_copy(512);
            for at in [header::CHECKSUM, header::SEQUENCE, header::ENTRIES, 64, 500, 600, 4000] {
                let mut copies = [BLANK.to_vec(), BLANK.to_vec()];
                let damaged = &mut copies[place as usize];
                damaged.copy_from_slice(&copy);
                damaged[at] ^= 0x40;
                let expected = match sequence == 0 && at >= ATOMIC_BYTES {
                    true => Ok(of(entries, 1)),
                    false => Err(DirectoryError::Damaged),
                };
                assert_eq!(parse(&copies), expected, "sequence {sequence}, byte {at}");
            }
        }
    }

    #[test]
    fn directory_rejects_malformed_copies() {
        let (_, copy) = of(&[entry("a", 8), entry("b", 16)], 0).next_copy(512);
        let found = |copy: Vec<u8>| parse(&[BLANK.to_vec(), copy]).err();
        let at = |entry: usize| (entry + 1) * ENTRY_BYTES;
        assert_eq!(found(copy.clone()), None);
        let version = found(changed(&copy, header::VERSION, &[2]));
        assert_eq!(version, Some(DirectoryError::Version(2)));
        let count = found(changed(&copy, header::ENTRIES, &[64]));
        assert_eq!(count, Some(DirectoryError::Entries(64)));
        assert_eq!(found(changed(&copy, at(1), b"a")), Some(DirectoryError::Twice(1)));
        for name in [&b"\0"[..], b"\xff", b"a\0b"] {
            assert_eq!(found(changed(&copy, at(0), name)), Some(DirectoryError::Name(0)));
        }
        let size = Directory::parse([&BLANK, &copy], 4096);
        assert_eq!(size, Err(DirectoryError::BlockBytes { found: 512, expected: 4096 }));
        let mut damaged = copy.clone();
        damaged[at(0)] = b'x';
        assert_eq!(parse(&[damaged.clone(), damaged]), Err(DirectoryError::Damaged));
    }

    #[test]
    fn names_have_1_to_40_bytes() {
        let longest = "ä".repeat(NAME_BYTES / 2);
        for name in ["a", &longest] {
            assert!(is_name(name));
        }
        for name in ["", "a\0", &format!("{longest}a")] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
