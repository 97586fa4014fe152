//! A file through a bounded number of frames of memory, written behind.
//!
//! ```text
//!   offset ─► frame number ─► set (by a hash) ─► 16 frames of 16 KiB: sectors present, dirty
//! ```
//!
//! An access whose sectors are all in memory takes no system call and no allocation. Others read the missing
//! sectors, for which the frame of the set that was used least recently is given up: its dirty sectors are
//! written first. A frame whose sectors cannot be written keeps them, and another one is given up. Memory is
//! bounded by construction: the directory is the tags of the frames, whatever the length of the file.
//!
//! A written sector is in the file after [`Paged::write_back`], and on the disk after a sync that follows it.

use std::io::{self, ErrorKind};

use super::{Opened, in_pieces};

/// Bytes of a frame.
pub(crate) const FRAME_BYTES: usize = 16 << 10;
/// Unit of presence: accesses are whole sectors.
pub(crate) const SECTOR_BYTES: usize = 512;
const WAYS: usize = 16;
/// Tag of a frame that holds nothing.
const NONE: u64 = u64::MAX;

const _: () = assert!(FRAME_BYTES / SECTOR_BYTES == u32::BITS as usize);

/// System calls on a file; one implementation is real, others inject faults.
pub(crate) trait Disk {
    /// Reads some bytes from `offset`; returns 0 at the end of the file.
    fn read_at(&self, dst: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes some bytes to `offset`.
    fn write_at(&self, src: &[u8], offset: u64) -> io::Result<usize>;
    /// Returns when all data written so far survive a power cut.
    fn sync_data(&self) -> io::Result<()>;
}

impl Disk for Opened {
    fn read_at(&self, dst: &mut [u8], offset: u64) -> io::Result<usize> {
        Opened::read_at(self, dst, offset)
    }

    fn write_at(&self, src: &[u8], offset: u64) -> io::Result<usize> {
        Opened::write_at(self, src, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }
}

/// A system call that failed, and the bytes that it left undone.
#[derive(Debug)]
pub(crate) struct Failure {
    pub writes: bool,
    pub offset_bytes: u64,
    pub bytes: u64,
    pub source: io::Error,
}

/// Behaviour of a write when no frame of its set can be given up, because the file takes no data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFull {
    /// The write fails, and its data are not taken.
    Refuse,
    /// It takes memory beyond the bound until the file takes data again: its owner has accepted the data and
    /// accepts no more.
    Exceed,
}

#[derive(Clone, Copy, Default)]
struct Frame {
    /// Turn of the last use.
    used: u32,
    present: u32,
    dirty: u32,
    /// It is in `listed`.
    listed: bool,
}

pub(crate) struct Paged {
    on_full: OnFull,
    sets: u64,
    tags: Vec<u64>,
    frames: Vec<Frame>,
    bytes: Vec<u8>,
    /// Frames that have become dirty since the last [`Paged::write_back`].
    listed: Vec<u32>,
    turn: u32,
    scratch: Vec<u8>,
}

/// Bitmap of the sectors with any of these bytes of a frame.
#[inline]
fn sectors(from: usize, length: usize) -> u32 {
    let (first, end) = (from / SECTOR_BYTES, (from + length).div_ceil(SECTOR_BYTES));
    u32::MAX >> (32 - (end - first)) << first
}

impl Paged {
    /// No more than `bytes` of memory for frames, and at least one set.
    pub(crate) fn new(bytes: u64, on_full: OnFull) -> Paged {
        let frame = (FRAME_BYTES + size_of::<Frame>() + size_of::<u64>() + size_of::<u32>()) as u64;
        let sets = (bytes.saturating_sub(FRAME_BYTES as u64) / frame / WAYS as u64).max(1);
        let frames = sets as usize * WAYS;
        Paged {
            on_full,
            sets,
            tags: vec![NONE; frames],
            frames: vec![Frame::default(); frames],
            // Zeroed by the system: a frame takes memory once it is used.
            bytes: vec![0; frames * FRAME_BYTES],
            listed: Vec::with_capacity(frames),
            turn: 0,
            scratch: vec![0; FRAME_BYTES],
        }
    }

    /// Bytes of memory of the frames in use, and of the directory.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        let used = self.tags.iter().filter(|tag| **tag != NONE).count();
        let each = size_of::<Frame>() + size_of::<u64>();
        (used * FRAME_BYTES + self.tags.len() * each + self.listed.capacity() * 4 + FRAME_BYTES)
            as u64
    }

    /// Frames of a set begin here.
    #[inline]
    fn set_of(&self, number: u64) -> usize {
        // Neighbouring frames go to distant sets, so that no stride fills one set alone.
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((hash * self.sets) >> 32) as usize * WAYS
    }

    #[inline]
    fn find(&mut self, number: u64) -> Option<usize> {
        let first = self.set_of(number);
        let way = self.tags[first..first + WAYS].iter().position(|tag| *tag == number);
        let beyond = self.sets as usize * WAYS;
        let at = match way {
            Some(way) => first + way,
            None if self.tags.len() == beyond => return None,
            None => beyond + self.tags[beyond..].iter().position(|tag| *tag == number)?,
        };
        self.turn = self.turn.wrapping_add(1);
        self.frames[at].used = self.turn;
        Some(at)
    }

    /// True if all of these bytes are in memory.
    pub(crate) fn is_resident(&mut self, at: u64, bytes: u64) -> bool {
        pieces(at, bytes).all(|piece| {
            let mask = sectors(piece.from, piece.length);
            self.find(piece.number).is_some_and(|frame| self.frames[frame].present & mask == mask)
        })
    }

    /// Passes `bytes` bytes from `at` to `f` in order, each run with its distance from `at`.
    pub(crate) fn runs(
        &mut self,
        disk: &impl Disk,
        at: u64,
        bytes: u64,
        f: &mut impl FnMut(u64, &[u8]),
    ) -> Result<(), Failure> {
        for Piece { number, from, length, done } in pieces(at, bytes) {
            let mask = sectors(from, length);
            let found = self.find(number);
            let frame = match found {
                Some(frame) if self.frames[frame].present & mask == mask => frame,
                _ => {
                    self.read(disk, number, from, length)?;
                    match found.map_or_else(|| self.take(disk, number), Ok) {
                        Ok(frame) => {
                            self.merge(frame, mask);
                            frame
                        }
                        // The whole set waits for a file that takes no data: the read goes past it.
                        Err(_) => {
                            f(done, &self.scratch[from..from + length]);
                            continue;
                        }
                    }
                }
            };
            f(done, &self.bytes[frame * FRAME_BYTES + from..][..length]);
        }
        Ok(())
    }

    /// Reads the sectors with these bytes of a frame from the file into their places in the scratch memory.
    fn read(
        &mut self,
        disk: &impl Disk,
        number: u64,
        from: usize,
        length: usize,
    ) -> Result<(), Failure> {
        let base = number * FRAME_BYTES as u64;
        let dst = &mut self.scratch[from..from + length];
        let some = |done: usize| disk.read_at(&mut dst[done..], base + (from + done) as u64);
        // End of file: it was truncated, or never had these bytes.
        in_pieces(length, ErrorKind::UnexpectedEof, some).map_err(|(done, source)| Failure {
            writes: false,
            offset_bytes: base + (from + done) as u64,
            bytes: (length - done) as u64,
            source,
        })
    }

    /// Takes those of these sectors from the scratch memory that the frame lacks.
    fn merge(&mut self, frame: usize, mask: u32) {
        let lacks = mask & !self.frames[frame].present;
        for sector in (0..32).filter(|sector| lacks >> sector & 1 != 0) {
            let from = sector * SECTOR_BYTES;
            let to = frame * FRAME_BYTES + from;
            self.bytes[to..to + SECTOR_BYTES]
                .copy_from_slice(&self.scratch[from..][..SECTOR_BYTES]);
        }
        self.frames[frame].present |= mask;
    }

    /// Passes the place of `bytes` bytes from `at` to `f` to be overwritten as a whole, in the runs of
    /// [`Paged::runs`]. Whole sectors.
    pub(crate) fn write_runs(
        &mut self,
        disk: &impl Disk,
        at: u64,
        bytes: u64,
        f: &mut impl FnMut(u64, &mut [u8]),
    ) -> Result<(), Failure> {
        debug_assert!(
            (at | bytes).is_multiple_of(SECTOR_BYTES as u64),
            "{at}, {bytes}: whole sectors"
        );
        for Piece { number, from, length, done } in pieces(at, bytes) {
            let frame = match self.find(number) {
                Some(frame) => frame,
                None => match (self.take(disk, number), self.on_full) {
                    (Ok(frame), _) => frame,
                    (Err(failure), OnFull::Refuse) => return Err(failure),
                    (Err(_), OnFull::Exceed) => self.exceed(number),
                },
            };
            let mask = sectors(from, length);
            let state = &mut self.frames[frame];
            state.present |= mask;
            state.dirty |= mask;
            if !std::mem::replace(&mut state.listed, true) {
                self.listed.push(frame as u32);
            }
            f(done, &mut self.bytes[frame * FRAME_BYTES + from..][..length]);
        }
        Ok(())
    }

    /// Takes a frame of the set for this number, empty; writes what it held.
    fn take(&mut self, disk: &impl Disk, number: u64) -> Result<usize, Failure> {
        let first = self.set_of(number);
        let turn = self.turn;
        let age = move |frame: &Frame| turn.wrapping_sub(frame.used);
        let ways = first..first + WAYS;
        let oldest = match self.tags[ways.clone()].iter().position(|tag| *tag == NONE) {
            Some(way) => first + way,
            None => ways.clone().max_by_key(|at| age(&self.frames[*at])).expect("a set has frames"),
        };
        let mut victim = oldest;
        if let Err(failure) = self.write_frame(disk, oldest) {
            let clean = ways.filter(|at| self.frames[*at].dirty == 0);
            victim = clean.max_by_key(|at| age(&self.frames[*at])).ok_or(failure)?;
        }
        self.tags[victim] = number;
        self.turn = self.turn.wrapping_add(1);
        let listed = self.frames[victim].listed;
        self.frames[victim] = Frame { used: self.turn, listed, ..Frame::default() };
        Ok(victim)
    }

    /// Adds a frame beyond the bound.
    #[cold]
    fn exceed(&mut self, number: u64) -> usize {
        self.tags.push(number);
        self.frames.push(Frame { used: self.turn, ..Frame::default() });
        self.bytes.resize(self.bytes.len() + FRAME_BYTES, 0);
        self.tags.len() - 1
    }

    /// Writes the dirty sectors of a frame.
    fn write_frame(&mut self, disk: &impl Disk, frame: usize) -> Result<(), Failure> {
        let base = self.tags[frame].wrapping_mul(FRAME_BYTES as u64);
        while self.frames[frame].dirty != 0 {
            let dirty = self.frames[frame].dirty;
            let first = dirty.trailing_zeros() as usize;
            let count = (dirty >> first).trailing_ones() as usize;
            let (from, length) = (first * SECTOR_BYTES, count * SECTOR_BYTES);
            let src = &self.bytes[frame * FRAME_BYTES + from..][..length];
            let some = |done: usize| disk.write_at(&src[done..], base + (from + done) as u64);
            in_pieces(length, ErrorKind::WriteZero, some).map_err(|(done, source)| Failure {
                writes: true,
                offset_bytes: base + (from + done) as u64,
                bytes: (length - done) as u64,
                source,
            })?;
            self.frames[frame].dirty &= !sectors(from, length);
        }
        Ok(())
    }

    /// Writes all dirty sectors to the file, in order of their offsets. On failure the rest stays dirty.
    pub(crate) fn write_back(&mut self, disk: &impl Disk) -> Result<(), Failure> {
        let mut listed = std::mem::take(&mut self.listed);
        listed.sort_unstable_by_key(|frame| self.tags[*frame as usize]);
        let mut result = Ok(());
        let done = listed.iter().take_while(|frame| {
            result = self.write_frame(disk, **frame as usize);
            self.frames[**frame as usize].listed = result.is_err();
            result.is_ok()
        });
        let done = done.count();
        listed.drain(..done);
        self.listed = listed;
        if result.is_ok() {
            let bound = self.sets as usize * WAYS;
            self.tags.truncate(bound);
            self.frames.truncate(bound);
            self.bytes.truncate(bound * FRAME_BYTES);
        }
        result
    }

    /// Drops these sectors unless they are dirty: they are read again.
    pub(crate) fn forget(&mut self, at: u64, bytes: u64) {
        for Piece { number, from, length, .. } in pieces(at, bytes) {
            if let Some(frame) = self.find(number) {
                let Frame { present, dirty, .. } = &mut self.frames[frame];
                *present &= !sectors(from, length) | *dirty;
            }
        }
    }
}

/// Part of an access in one frame.
struct Piece {
    number: u64,
    from: usize,
    length: usize,
    /// Distance from the begin of the access.
    done: u64,
}

#[inline]
fn pieces(at: u64, bytes: u64) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let from = (at + done) as usize % FRAME_BYTES;
        let length = (bytes - done).min((FRAME_BYTES - from) as u64) as usize;
        let piece = Piece { number: (at + done) / FRAME_BYTES as u64, from, length, done };
        done += length as u64;
        (length > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use proptest::prelude::*;

    use super::*;

    /// A file in memory that counts calls, and takes data only while it has room.
    #[derive(Default)]
    struct Memory {
        bytes: RefCell<Vec<u8>>,
        is_full: Cell<bool>,
        calls: Cell<u32>,
    }

    impl Disk for Memory {
        fn read_at(&self, dst: &mut [u8], offset: u64) -> io::Result<usize> {
            self.calls.set(self.calls.get() + 1);
            let bytes = self.bytes.borrow();
            let rest = &bytes[bytes.len().min(offset as usize)..];
            let some = rest.len().min(dst.len()).min(1000);
            dst[..some].copy_from_slice(&rest[..some]);
            Ok(some)
        }

        fn write_at(&self, src: &[u8], offset: u64) -> io::Result<usize> {
            self.calls.set(self.calls.get() + 1);
            if self.is_full.get() {
                return Err(ErrorKind::StorageFull.into());
            }
            self.bytes.borrow_mut()[offset as usize..][..src.len()].copy_from_slice(src);
            Ok(src.len())
        }

        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }
    }

    const SPAN: usize = 64 * FRAME_BYTES;

    fn memory() -> Memory {
        Memory { bytes: RefCell::new(vec![0; SPAN]), ..Memory::default() }
    }

    fn write(paged: &mut Paged, disk: &Memory, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        paged.write_runs(disk, at as u64, bytes.len() as u64, &mut |done, run| {
            run.copy_from_slice(&bytes[done as usize..][..run.len()]);
        })
    }

    fn read(paged: &mut Paged, disk: &Memory, at: usize, bytes: usize) -> Vec<u8> {
        let mut seen = Vec::new();
        paged.runs(disk, at as u64, bytes as u64, &mut |_, run| seen.extend(run)).expect("a read");
        seen
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
        #[test]
        fn sectors_read_back_as_written_under_eviction(
            ops in proptest::collection::vec((0..3_u8, 0..SPAN / 512, 1..80_usize), 1..300),
        ) {
            let (disk, mut paged) = (memory(), Paged::new(0, OnFull::Refuse));
            let mut model = vec![0; SPAN];
            for (number, (op, sector, count)) in (0..).zip(ops) {
                let at = sector * 512;
                let bytes = (count * 512).min(SPAN - at);
                match op {
                    0 => prop_assert_eq!(&read(&mut paged, &disk, at, bytes), &model[at..at + bytes]),
                    1 => {
                        let data: Vec<u8> = (0..bytes).map(|byte| (byte / 512 + number) as u8).collect();
                        write(&mut paged, &disk, at, &data).unwrap();
                        model[at..at + bytes].copy_from_slice(&data);
                    }
                    _ => {
                        paged.write_back(&disk).unwrap();
                        prop_assert_eq!(&disk.bytes.borrow()[..], &model[..]);
                    }
                }
            }
            paged.write_back(&disk).unwrap();
            prop_assert_eq!(&disk.bytes.borrow()[..], &model[..]);
            prop_assert!(paged.allocated_bytes() < 300 << 10);
        }
    }

    #[test]
    fn resident_sectors_take_no_system_call() {
        let (disk, mut paged) = (memory(), Paged::new(0, OnFull::Refuse));
        write(&mut paged, &disk, 4096, &[7; 8192]).expect("a write");
        assert_eq!(read(&mut paged, &disk, 0, 512), [0; 512]);
        let calls = disk.calls.get();
        for _ in 0..100 {
            write(&mut paged, &disk, 4096, &[8; 8192]).expect("a write");
            assert_eq!(read(&mut paged, &disk, 4096, 8192), [8; 8192]);
            assert_eq!(read(&mut paged, &disk, 0, 512), [0; 512]);
        }
        assert_eq!(disk.calls.get(), calls);
    }

    #[test]
    fn full_disk_refuses_or_exceeds_and_loses_nothing() {
        for on_full in [OnFull::Refuse, OnFull::Exceed] {
            let (disk, mut paged) = (memory(), Paged::new(0, on_full));
            disk.bytes.borrow_mut().fill(9);
            disk.is_full.set(true);
            let taken = (0..40).take_while(|frame| {
                write(&mut paged, &disk, frame * FRAME_BYTES, &[*frame as u8; FRAME_BYTES]).is_ok()
            });
            let taken = taken.count();
            assert_eq!(taken, if on_full == OnFull::Exceed { 40 } else { WAYS });
            assert_eq!(read(&mut paged, &disk, 50 * FRAME_BYTES, 512), [9; 512], "reads go past");
            assert!(paged.write_back(&disk).is_err());
            disk.is_full.set(false);
            paged.write_back(&disk).expect("room has returned");
            assert_eq!(paged.tags.len(), WAYS, "within the bound again");
            for frame in 0..taken {
                assert_eq!(disk.bytes.borrow()[frame * FRAME_BYTES + 5], frame as u8);
            }
        }
    }

    #[test]
    fn read_behind_the_end_is_an_error() {
        let (disk, mut paged) = (memory(), Paged::new(0, OnFull::Refuse));
        let failure =
            paged.runs(&disk, SPAN as u64 - 512, 1024, &mut |_, _| ()).expect_err("too long");
        assert_eq!((failure.writes, failure.offset_bytes), (false, SPAN as u64));
    }
}
