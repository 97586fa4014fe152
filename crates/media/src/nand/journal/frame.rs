//! Byte format of a journal: frames, and detection of the journal's end.
//!
//! ```text
//! header   64 bytes: magic, version, id of the state that it continues, its generation, boot id of the
//!          machine on which it was begun, checksum
//! frames   48 bytes and the records of a batch: magic, length; batch number, highest number known to be
//!          synced, checksum of the previous frame, of the records, of all this
//! ```
//!
//! Frames are numbered from 1 and chained by their checksums, so that each place in a journal has a unique
//! name (a [`Position`]). A frame without records confirms that all before it was synced. A batch that an
//! ended process has not fully written is the end (*torn*); after a power loss of the machine, unsynced data
//! are the end too. Any other deviation from the written bytes is *damage*.

use crate::nand::file::checksum;

pub(in crate::nand) const HEADER_BYTES: usize = 64;
pub(in crate::nand) const FRAME_BYTES: usize = 48;
pub(in crate::nand) const VERSION: u64 = 2;

const MAGIC: [u8; 8] = *b"dbjrnl\r\n";
const FRAME_MAGIC: [u8; 4] = *b"bat\n";

/// Version 1: this magic, the header of the state, and frames of a length and a checksum.
const OLD_MAGIC: [u8; 8] = *b"dbnlog\r\n";
const OLD_HEADER_BYTES: usize = 8 + 64;
const OLD_FRAME_BYTES: usize = 4 + 8;

/// A place in a journal: the state that the journal continues, the number of batches before the place, and
/// the checksum of the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::nand) struct Position {
    pub base: u64,
    pub sequence: u64,
    pub head: u64,
}

/// Boot id of this machine; zeros if unknown.
pub(in crate::nand) fn boot() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    u128::from_str_radix(&digits, 16).map_or([0; 2], |id| [(id >> 64) as u64, id as u64])
}

pub(in crate::nand) fn header(base: u64, generation: u64, boot: [u64; 2]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    let words = [VERSION, base, generation, boot[0], boot[1], 0];
    for (place, word) in header[8..56].chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let sum = checksum(&header[..56]);
    header[56..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Position before the first batch of a journal with this header.
pub(in crate::nand) fn first(header: &[u8; HEADER_BYTES]) -> Position {
    Position { base: word(header, 2), sequence: 0, head: word(header, 7) }
}

/// Completes a frame whose first [`FRAME_BYTES`] bytes are free. `seed` is the checksum of the journal's
/// header. Returns the position behind the frame.
pub(in crate::nand) fn seal(
    bytes: &mut [u8],
    seed: u64,
    before: Position,
    synced: u64,
) -> Position {
    let (frame, records) = bytes.split_at_mut(FRAME_BYTES);
    let sequence = before.sequence + 1;
    frame[..4].copy_from_slice(&FRAME_MAGIC);
    frame[4..8].copy_from_slice(&(records.len() as u32).to_le_bytes());
    let words = [sequence, synced, before.head, checksum(records)];
    for (place, word) in frame[8..40].chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let head = checksum(&frame[..40]) ^ seed;
    frame[40..].copy_from_slice(&head.to_le_bytes());
    Position { sequence, head, ..before }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"))
}

/// Parsed header of a frame.
struct Frame {
    length: usize,
    sequence: u64,
    synced: u64,
    before: u64,
    sum: u64,
    head: u64,
}

impl Frame {
    fn read(bytes: &[u8], seed: u64) -> Option<Frame> {
        let bytes = bytes.first_chunk::<FRAME_BYTES>()?;
        let head = word(bytes, 5);
        let good = bytes[..4] == FRAME_MAGIC && checksum(&bytes[..40]) ^ seed == head;
        good.then(|| Frame {
            length: u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")) as usize,
            sequence: word(bytes, 1),
            synced: word(bytes, 2),
            before: word(bytes, 3),
            sum: word(bytes, 4),
            head,
        })
    }
}

pub(in crate::nand) struct Batch<'a> {
    pub records: &'a [u8],
    /// Its checksum, which identifies the position behind it.
    pub head: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nand) enum Ending {
    /// The last batch is complete.
    Whole,
    /// This many bytes of an incomplete write.
    Torn { bytes: u64 },
    /// Damage at this byte.
    Damaged { at: u64 },
}

pub(in crate::nand) struct Scan<'a> {
    pub version: u64,
    /// Position before the first batch.
    pub first: Position,
    pub generation: u64,
    pub batches: Vec<Batch<'a>>,
    /// Last batch known to be synced.
    pub synced: u64,
    pub ending: Ending,
}

impl Scan<'_> {
    /// Position behind this many batches.
    pub fn position(&self, batches: u64) -> Position {
        match batches.checked_sub(1).and_then(|last| self.batches.get(last as usize)) {
            Some(batch) => Position { sequence: batches, head: batch.head, ..self.first },
            None => self.first,
        }
    }
}

/// Why the bytes are not a journal.
#[derive(Debug, thiserror::Error)]
pub(in crate::nand) enum HeaderError {
    #[error("{found} bytes, expected at least {expected}")]
    TooShort { found: usize, expected: usize },
    #[error("not a journal of flash, or its first bytes are damaged")]
    Magic,
    #[error("the checksum of its header is wrong")]
    Checksum,
    #[error("version {found}, expected 1 to {VERSION}")]
    Version { found: u64 },
}

/// Parses a journal, on a machine with this boot id.
pub(in crate::nand) fn scan(bytes: &[u8], boot: [u64; 2]) -> Result<Scan<'_>, HeaderError> {
    if bytes.starts_with(&OLD_MAGIC) {
        return scan_old(bytes);
    }
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Err(HeaderError::TooShort { found: bytes.len(), expected: HEADER_BYTES });
    };
    if header[..8] != MAGIC {
        return Err(HeaderError::Magic);
    }
    if word(header, 7) != checksum(&header[..56]) {
        return Err(HeaderError::Checksum);
    }
    if word(header, 1) != VERSION {
        return Err(HeaderError::Version { found: word(header, 1) });
    }
    let seed = word(header, 7);
    let (first, generation) = (first(header), word(header, 3));
    let (mut batches, mut at, mut before) = (Vec::new(), HEADER_BYTES, first);
    let mut synced = 0;
    while let Some((frame, records)) = whole(&bytes[at..], seed, before) {
        batches.push(Batch { records, head: frame.head });
        at += FRAME_BYTES + frame.length;
        before = Position { sequence: frame.sequence, head: frame.head, ..before };
        synced = synced.max(frame.synced);
    }
    let same_boot = boot != [0; 2] && [word(header, 4), word(header, 5)] == boot;
    let ending = ending(&bytes[at..], at as u64, seed, before.sequence + 1, same_boot);
    Ok(Scan { version: VERSION, first, generation, batches, synced, ending })
}

/// Restores a journal's damaged header, if the journal continues this state: all fields are known except the
/// boot id, and the header's checksum is in every frame. `None` if this is not the damage.
pub(in crate::nand) fn mend(
    bytes: &[u8],
    base: u64,
    generation: u64,
    now: [u64; 2],
) -> Option<Vec<u8>> {
    let rest = bytes.get(HEADER_BYTES..)?;
    let stored = [word(bytes, 4), word(bytes, 5)];
    let flipped = (0..128).map(|bit| {
        let mut boot = stored;
        boot[bit / 64] ^= 1 << (bit % 64);
        boot
    });
    let headers = [stored, now].into_iter().chain(flipped);
    let mut headers = headers.map(|boot| header(base, generation, boot));
    let good = headers.find(|header| whole(rest, word(header, 7), first(header)).is_some());
    Some([&good?[..], rest].concat())
}

/// The next frame, if it is intact.
fn whole(bytes: &[u8], seed: u64, before: Position) -> Option<(Frame, &[u8])> {
    let frame = Frame::read(bytes, seed)?;
    let records = bytes[FRAME_BYTES..].get(..frame.length)?;
    let next = frame.sequence == before.sequence + 1 && frame.before == before.head;
    (next && checksum(records) == frame.sum).then_some((frame, records))
}

/// Classifies the bytes at which a batch of this number should begin. While the machine runs, files keep the
/// order of writes: only the last write can be incomplete. After a power loss, unsynced data may be anything.
fn ending(rest: &[u8], at: u64, seed: u64, wanted: u64, same_boot: bool) -> Ending {
    let torn = Ending::Torn { bytes: rest.len() as u64 };
    let damaged = Ending::Damaged { at };
    if rest.is_empty() {
        return Ending::Whole;
    }
    let cut_short = match Frame::read(rest, seed) {
        Some(frame) => rest.len() < FRAME_BYTES + frame.length,
        None => rest.len() < FRAME_BYTES,
    };
    let later = (0..rest.len()).filter(|from| rest[*from..].starts_with(&FRAME_MAGIC));
    let later = later.filter_map(|from| Frame::read(&rest[from..], seed));
    let known = later.filter(|frame| frame.synced >= wanted).count() > 0;
    if known || (same_boot && !cut_short) { damaged } else { torn }
}

/// Parses a journal of version 1, which has no batch numbers and no record of syncs.
fn scan_old(bytes: &[u8]) -> Result<Scan<'_>, HeaderError> {
    let Some(header) = bytes.first_chunk::<OLD_HEADER_BYTES>() else {
        return Err(HeaderError::TooShort { found: bytes.len(), expected: OLD_HEADER_BYTES });
    };
    if word(header, 8) != checksum(&header[8..64]) {
        return Err(HeaderError::Checksum);
    }
    let first = Position { base: word(header, 8), sequence: 0, head: 0 };
    let (mut batches, mut rest) = (Vec::new(), &bytes[OLD_HEADER_BYTES..]);
    let mut ending = Ending::Whole;
    while !rest.is_empty() {
        let at = (bytes.len() - rest.len()) as u64;
        match old_frame(rest) {
            Some((records, sum)) if checksum(records) == sum => {
                batches.push(Batch { records, head: sum });
                rest = &rest[OLD_FRAME_BYTES + records.len()..];
                continue;
            }
            Some(_) => ending = Ending::Damaged { at },
            // Torn, unless an intact frame follows: then its length is damaged.
            None if (1..rest.len()).any(|from| is_old_batch(&rest[from..])) => {
                ending = Ending::Damaged { at };
            }
            None => ending = Ending::Torn { bytes: rest.len() as u64 },
        }
        break;
    }
    Ok(Scan { version: 1, first, generation: 0, batches, synced: 0, ending })
}

fn old_frame(bytes: &[u8]) -> Option<(&[u8], u64)> {
    let (frame, rest) = bytes.split_first_chunk::<OLD_FRAME_BYTES>()?;
    let length = u32::from_le_bytes(*frame.first_chunk()?) as usize;
    let sum = u64::from_le_bytes(frame[4..].try_into().expect("eight bytes"));
    Some((rest.get(..length)?, sum))
}

/// Returns true if a batch of version 1 begins here. The expected first record rules out most bytes.
fn is_old_batch(bytes: &[u8]) -> bool {
    let Some((records, sum)) = old_frame(bytes) else { return false };
    let Some((length, record)) = records.split_first_chunk::<4>() else { return false };
    let length = u32::from_le_bytes(*length) as usize;
    let kind = record.first().copied().unwrap_or(0);
    (5..=record.len()).contains(&length) && (1..=10).contains(&kind) && checksum(records) == sum
}

#[cfg(test)]
mod tests {
    use super::{FRAME_BYTES, first, header, mend, seal};

    /// The machine may have been rebooted since.
    #[test]
    fn journal_header_bit_flips_are_mended_after_reboot() {
        let begun = header(7, 3, [0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321]);
        let before = first(&begun);
        let mut frame = [vec![0; FRAME_BYTES], vec![9; 40]].concat();
        seal(&mut frame, before.head, before, 0);
        let journal = [&begun[..], &frame].concat();
        for bit in 0..8 * begun.len() {
            let mut damaged = journal.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(mend(&damaged, 7, 3, [5, 6]).as_ref(), Some(&journal), "bit {bit}");
        }
    }
}
