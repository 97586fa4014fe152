//! Persistent contents in a file: a raw image, byte for byte that of the device.
//!
//! The file is read and written at offsets, never mapped, so that a disk that fills up or fails under a
//! sparse file is an error and not a signal. With a bound on its memory it is written behind, through
//! [`Paged`]: accesses to what is in memory take no system call. It is locked while open, sized only when
//! new, and never resized afterwards.

use std::cell::{Cell, RefCell};
use std::fs::{self, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::sparse::ZERO_PAGE;
use super::{Error, label};
use crate::files::paged::{Disk, Failure, OnFull, Paged};
use crate::files::{Files, Opened, in_pieces};

/// Bytes per system call when the image passes out runs: long enough that the call is a small part of the
/// time, short enough to stay in a second-level cache between the two copies.
const SCRATCH_BYTES: usize = 64 << 10;

/// Granularity in which the image tracks regions that were never written: discarding such a region costs
/// nothing, so that formatting a new 4 TiB image does not read 4 TiB of holes. 4 TiB take 65,536 bytes of
/// memory.
const REGION_BYTES: u64 = 64 << 20;

/// A file that is locked exclusively. It is unlocked when dropped, not only closed: a child process that
/// another thread has just forked holds it open until it calls exec.
pub(super) struct Locked(Opened);

impl Drop for Locked {
    fn drop(&mut self) {
        // If this fails, the file stays locked until it is closed, which comes next.
        let _ = self.0.file().unlock();
    }
}

impl Disk for Locked {
    fn read_at(&self, dst: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(dst, offset)
    }

    fn write_at(&self, src: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(src, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// An image on a disk. The owner has checked offsets against the capacity.
pub(super) struct Image<D: Disk = Locked> {
    disk: D,
    path: PathBuf,
    /// Per region: true if it may contain anything but zeros.
    may_hold_data: Vec<bool>,
    /// Error of the first failed flush; see [`Error::Flush`] for the reason to store it.
    sync_failed: Option<(ErrorKind, Option<i32>)>,
    /// Taken while in use and put back, so that the consumer of a run may read the image again.
    scratch: Cell<Vec<u8>>,
    /// Bounded memory in front of the file; none: every access is a system call.
    paged: Option<RefCell<Paged>>,
}

impl Image {
    /// Opens the image, or creates it, sparse and zeroed, if it is missing or empty.
    ///
    /// `resident_bytes`: memory in front of the file, which is then written behind.
    pub(super) fn open(
        files: &Files,
        path: &Path,
        capacity_bytes: u64,
        resident_bytes: Option<u64>,
    ) -> Result<Image, Error> {
        let prepare =
            |attempt| move |source| Error::Prepare { path: path.to_path_buf(), attempt, source };
        // The path is checked first, because opening a device or a pipe can have effects. The open file is
        // checked again, because the path may have changed by then.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(Error::NotRegular { path: path.to_path_buf() });
        }
        let file = files.open_or_create(path).map_err(prepare("open the image"))?;
        file.ask_lock().map_err(prepare("lock the image"))?;
        match file.file().try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::InUse { path: path.to_path_buf() });
            }
            Err(TryLockError::Error(source)) => return Err(prepare("lock the image")(source)),
        }
        let file = Locked(file);
        // The size is valid only under the lock: another process may have been creating the image.
        let found = file.0.file().metadata().map_err(prepare("ask for the image's size"))?;
        if !found.is_file() {
            return Err(Error::NotRegular { path: path.to_path_buf() });
        }
        let new = found.len() == 0;
        if new {
            // A file of size zero is new: if anything fails here, the next attempt starts over.
            label::forget(files, path)?;
            file.0.set_length(capacity_bytes).map_err(prepare("give the image its size"))?;
            // The size and the directory entry must be durable before any flush is.
            file.0.sync().map_err(prepare("flush the new image"))?;
            let folder = files.sync_folder_of(path);
            folder.map_err(prepare("flush the new image's directory"))?;
        } else if found.len() != capacity_bytes {
            return Err(Error::WrongSize {
                path: path.to_path_buf(),
                found_bytes: found.len(),
                expected_bytes: capacity_bytes,
            });
        }
        let mut image = Image::over(file, path.to_path_buf(), capacity_bytes, !new);
        image.paged = resident_bytes.map(|bytes| RefCell::new(Paged::new(bytes, OnFull::Refuse)));
        Ok(image)
    }
}

impl Image {
    /// First offset from `at` on that may hold data: holes of the file and regions that were never written
    /// are skipped.
    pub(super) fn data_from(&self, at: u64, capacity: u64) -> u64 {
        let region = (at / REGION_BYTES) as usize;
        let used = self.may_hold_data[region..].iter().position(|used| *used);
        let used = used.map_or(capacity, |skipped| match skipped {
            0 => at,
            skipped => (region + skipped) as u64 * REGION_BYTES,
        });
        // With memory in front of the file, a hole may have data there.
        if used >= capacity || self.paged.is_some() {
            return used;
        }
        match rustix::fs::seek(self.disk.0.file(), rustix::fs::SeekFrom::Data(used)) {
            Ok(data) => data.min(capacity),
            Err(rustix::io::Errno::NXIO) => capacity,
            // A file system that does not know holes.
            Err(_) => used,
        }
    }
}

impl<D: Disk> Image<D> {
    /// An image on a disk that already has the capacity.
    fn over(disk: D, path: PathBuf, capacity_bytes: u64, may_hold_data: bool) -> Image<D> {
        let regions = capacity_bytes.div_ceil(REGION_BYTES) as usize;
        Image {
            disk,
            path,
            may_hold_data: vec![may_hold_data; regions],
            sync_failed: None,
            scratch: Cell::default(),
            paged: None,
        }
    }

    fn failed(&self, failure: Failure) -> Error {
        let Failure { writes, offset_bytes, bytes, source } = failure;
        let path = self.path.clone();
        match writes {
            true => Error::Write { path, offset_bytes, bytes, source },
            false => Error::Read { path, offset_bytes, bytes, source },
        }
    }

    /// Bytes of memory held, without the blocks of the file.
    pub(super) fn allocated_bytes(&self) -> u64 {
        let scratch = self.scratch.take();
        let bytes = scratch.capacity() + self.may_hold_data.capacity();
        self.scratch.set(scratch);
        bytes as u64 + self.paged.as_ref().map_or(0, |paged| paged.borrow().allocated_bytes())
    }

    /// Fills `dst` from offset `at`.
    pub(super) fn read_into(&self, at: u64, dst: &mut [u8]) -> Result<(), Error> {
        let bytes = dst.len();
        if let Some(paged) = &self.paged {
            let mut put = |done: u64, run: &[u8]| {
                dst[done as usize..][..run.len()].copy_from_slice(run);
            };
            let done = paged.borrow_mut().runs(&self.disk, at, bytes as u64, &mut put);
            return done.map_err(|failure| self.failed(failure));
        }
        let some = |done| self.disk.read_at(&mut dst[done..], at + done as u64);
        // End of file: the file was truncated despite the lock.
        in_pieces(bytes, ErrorKind::UnexpectedEof, some).map_err(|(done, source)| Error::Read {
            path: self.path.clone(),
            offset_bytes: at + done as u64,
            bytes: (bytes - done) as u64,
            source,
        })
    }

    /// Writes `src` at offset `at`.
    pub(super) fn write(&mut self, at: u64, src: &[u8]) -> Result<(), Error> {
        self.will_write(at, src.len() as u64);
        if let Some(paged) = &self.paged {
            let mut put = |done: u64, run: &mut [u8]| {
                run.copy_from_slice(&src[done as usize..][..run.len()]);
            };
            let done = paged.borrow_mut().write_runs(&self.disk, at, src.len() as u64, &mut put);
            return done.map_err(|failure| self.failed(failure));
        }
        let some = |done| self.disk.write_at(&src[done..], at + done as u64);
        in_pieces(src.len(), ErrorKind::WriteZero, some).map_err(|(done, source)| Error::Write {
            path: self.path.clone(),
            offset_bytes: at + done as u64,
            bytes: (src.len() - done) as u64,
            source,
        })
    }

    /// Marks the regions of a write. Before it: a write that fails may still have changed bytes.
    fn will_write(&mut self, at: u64, bytes: u64) {
        let Some(last) = bytes.checked_sub(1) else { return };
        let regions = (at / REGION_BYTES) as usize..=((at + last) / REGION_BYTES) as usize;
        self.may_hold_data[regions].fill(true);
    }

    /// Passes `bytes` bytes from `at` in order, each run with its distance from `at`.
    pub(super) fn runs(
        &self,
        at: u64,
        bytes: u64,
        f: &mut impl FnMut(u64, &[u8]),
    ) -> Result<(), Error> {
        let mut scratch = self.take_scratch();
        let mut done = 0;
        let mut result = Ok(());
        while done < bytes && result.is_ok() {
            let length = (bytes - done).min(SCRATCH_BYTES as u64) as usize;
            result = self.read_into(at + done, &mut scratch[..length]);
            if result.is_ok() {
                f(done, &scratch[..length]);
            }
            done += length as u64;
        }
        self.scratch.set(scratch);
        result
    }

    /// Passes zeroed buffers to be filled, and writes them; stops at the first failure.
    pub(super) fn runs_mut(
        &mut self,
        at: u64,
        bytes: u64,
        f: &mut impl FnMut(u64, &mut [u8]),
    ) -> Result<(), Error> {
        if let Some(paged) = &self.paged {
            let mut put = |done: u64, run: &mut [u8]| {
                run.fill(0);
                f(done, run);
            };
            let done = paged.borrow_mut().write_runs(&self.disk, at, bytes, &mut put);
            self.will_write(at, bytes);
            return done.map_err(|failure| self.failed(failure));
        }
        let mut scratch = self.take_scratch();
        let mut done = 0;
        let mut result = Ok(());
        while done < bytes && result.is_ok() {
            let length = (bytes - done).min(SCRATCH_BYTES as u64) as usize;
            let run = &mut scratch[..length];
            // Bytes that the callback leaves alone must not be those of another block.
            run.fill(0);
            f(done, run);
            result = self.write(at + done, run);
            done += length as u64;
        }
        self.scratch.set(scratch);
        result
    }

    /// Makes `bytes` bytes from `at` read as zeros. Holes stay holes: only pages with data are written, so
    /// this works on a full disk. Blocks are not returned to the file system: the standard library has no
    /// call that punches a hole.
    pub(super) fn discard(&mut self, at: u64, bytes: u64, capacity: u64) -> Result<(), Error> {
        let end = at + bytes;
        let mut at = at;
        while at < end {
            let region = (at / REGION_BYTES) as usize;
            let region_end = capacity.min((region as u64 + 1) * REGION_BYTES);
            let until = end.min(region_end);
            if self.may_hold_data[region] {
                self.zero(at, until)?;
                let whole = at == region as u64 * REGION_BYTES && until == region_end;
                self.may_hold_data[region] = !whole;
            }
            at = until;
        }
        Ok(())
    }

    /// Writes zeros over nonzero pages in `at..end`.
    fn zero(&mut self, at: u64, end: u64) -> Result<(), Error> {
        let mut scratch = self.take_scratch();
        let mut at = at;
        let mut result = Ok(());
        while at < end && result.is_ok() {
            let length = (end - at).min(SCRATCH_BYTES as u64) as usize;
            result = self
                .read_into(at, &mut scratch[..length])
                .and_then(|()| self.zero_pages(at, &scratch[..length]));
            at += length as u64;
        }
        self.scratch.set(scratch);
        result
    }

    /// Writes zeros over the pages at `at` that are nonzero in `seen`, which was just read from there.
    fn zero_pages(&mut self, at: u64, seen: &[u8]) -> Result<(), Error> {
        let page_bytes = ZERO_PAGE.len();
        let mut done = 0;
        while done < seen.len() {
            // Aligned to the file's pages, so that no write reaches into a neighbouring hole.
            let offset = at + done as u64;
            let length = (page_bytes - offset as usize % page_bytes).min(seen.len() - done);
            let zeros = &ZERO_PAGE[..length];
            if &seen[done..done + length] != zeros {
                self.write(offset, zeros)?;
            }
            done += length;
        }
        Ok(())
    }

    /// Returns when all data written so far survive a power cut.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        if let Some((kind, code)) = self.sync_failed {
            let source = code.map_or_else(|| kind.into(), io::Error::from_raw_os_error);
            return Err(Error::Flush { path: self.path.clone(), earlier: true, source });
        }
        self.write_back()?;
        self.disk.sync_data().map_err(|source| {
            self.sync_failed = Some((source.kind(), source.raw_os_error()));
            Error::Flush { path: self.path.clone(), earlier: false, source }
        })
    }

    /// Writes sectors that are in memory alone to the file. On failure the rest stays for the next call.
    fn write_back(&self) -> Result<(), Error> {
        let Some(paged) = &self.paged else { return Ok(()) };
        let done = paged.borrow_mut().write_back(&self.disk);
        done.map_err(|failure| self.failed(failure))
    }

    fn take_scratch(&self) -> Vec<u8> {
        let mut scratch = self.scratch.take();
        scratch.resize(SCRATCH_BYTES, 0);
        scratch
    }
}

impl<D: Disk> Drop for Image<D> {
    fn drop(&mut self) {
        // As the end of a process that writes to its file at once. No flush has covered a sector that fails.
        let _ = self.write_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    const CAPACITY: usize = 256 << 10;
    const ENOSPC: i32 = 28;
    const EIO: i32 = 5;

    /// A sparse file on a small disk, with short and interrupted system calls.
    #[derive(Default)]
    struct SmallDisk {
        bytes: RefCell<Vec<u8>>,
        /// Pages backed by disk blocks, at most `pages_max`.
        pages: RefCell<BTreeSet<u64>>,
        pages_max: usize,
        /// Reading this page fails with EIO.
        bad_page: Option<u64>,
        /// Every other call is interrupted; the rest transfer at most 1,000 bytes.
        calls: Cell<u32>,
        /// Results of the next flushes, last first; success when empty.
        syncs: RefCell<Vec<i32>>,
        syncs_asked: Cell<u32>,
    }

    impl SmallDisk {
        fn some(&self, length: usize, offset: u64) -> io::Result<usize> {
            self.calls.set(self.calls.get() + 1);
            if self.calls.get() % 2 == 1 {
                return Err(ErrorKind::Interrupted.into());
            }
            let page_rest = 4096 - offset as usize % 4096;
            Ok(length.min(1000).min(page_rest))
        }
    }

    impl Disk for SmallDisk {
        fn read_at(&self, dst: &mut [u8], offset: u64) -> io::Result<usize> {
            let length = self.some(dst.len(), offset)?;
            if self.bad_page == Some(offset / 4096) {
                return Err(io::Error::from_raw_os_error(EIO));
            }
            let bytes = self.bytes.borrow();
            let rest = &bytes[bytes.len().min(offset as usize)..];
            let length = length.min(rest.len());
            dst[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        }

        fn write_at(&self, src: &[u8], offset: u64) -> io::Result<usize> {
            let length = self.some(src.len(), offset)?;
            let mut pages = self.pages.borrow_mut();
            if !pages.contains(&(offset / 4096)) && pages.len() == self.pages_max {
                return Err(io::Error::from_raw_os_error(ENOSPC));
            }
            pages.insert(offset / 4096);
            let at = offset as usize;
            self.bytes.borrow_mut()[at..at + length].copy_from_slice(&src[..length]);
            Ok(length)
        }

        fn sync_data(&self) -> io::Result<()> {
            self.syncs_asked.set(self.syncs_asked.get() + 1);
            match self.syncs.borrow_mut().pop() {
                Some(code) => Err(io::Error::from_raw_os_error(code)),
                None => Ok(()),
            }
        }
    }

    fn image(disk: SmallDisk) -> Image<SmallDisk> {
        disk.bytes.borrow_mut().resize(CAPACITY, 0);
        Image::over(disk, "small.img".into(), CAPACITY as u64, false)
    }

    fn read(image: &Image<SmallDisk>, at: u64, bytes: usize) -> Vec<u8> {
        let mut seen = vec![0xee; bytes];
        image.read_into(at, &mut seen).unwrap();
        seen
    }

    #[test]
    fn image_resumes_short_and_interrupted_system_calls() {
        let mut image = image(SmallDisk { pages_max: 64, ..Default::default() });
        let data: Vec<u8> = (0..100_352_u32).map(|i| (i % 251) as u8).collect();
        image.write(512, &data).unwrap();
        assert_eq!(read(&image, 512, data.len()), data);
        let mut lent = Vec::new();
        image
            .runs(512, data.len() as u64, &mut |at, run| {
                assert_eq!(at, lent.len() as u64);
                lent.extend_from_slice(run);
            })
            .unwrap();
        assert_eq!(lent, data);
    }

    #[test]
    fn image_write_on_full_disk_names_offset_and_keeps_data() {
        let mut image = image(SmallDisk { pages_max: 3, ..Default::default() });
        image.write(0, &[1; 8192]).unwrap();
        image.flush().unwrap();
        let error = image.write(8192, &[2; 16384]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "small.img: writing 12288 bytes at offset 12288: No space left on device (os error 28)"
        );
        assert_eq!(read(&image, 0, 8192), [1; 8192], "what was flushed is still there");
        assert_eq!(read(&image, 8192, 4096), [2; 4096], "the request's part before the offset");
        assert_eq!(read(&image, 12288, 12288), [0; 12288], "from the offset on, nothing changed");
        image.write(4096, &[3; 4096]).unwrap();
        image.flush().expect("a full disk is not a failed flush");
    }

    #[test]
    fn image_discard_works_on_full_disk() {
        let mut image = image(SmallDisk { pages_max: 2, ..Default::default() });
        image.write(4096, &[1; 4096]).unwrap();
        image.write(200_704, &[2; 4096]).unwrap();
        image.discard(4608, CAPACITY as u64 - 4608, CAPACITY as u64).unwrap();
        assert_eq!(read(&image, 4096, 512), [1; 512]);
        assert_eq!(read(&image, 4608, CAPACITY - 4608), vec![0; CAPACITY - 4608]);
        assert_eq!(image.disk.pages.borrow().len(), 2, "holes stayed holes");
    }

    #[test]
    fn image_discard_skips_zero_regions() {
        let mut image = image(SmallDisk { pages_max: 64, ..Default::default() });
        let whole = CAPACITY as u64;
        image.discard(0, whole, whole).unwrap();
        assert_eq!(image.disk.calls.get(), 0);
        image.write(0, &[1; 512]).unwrap();
        image.discard(0, whole, whole).unwrap();
        image.disk.bad_page = Some(0);
        image.discard(0, whole, whole).expect("known to be zeros");
        image.write(4096, &[1; 512]).unwrap();
        image.discard(0, whole, whole).expect_err("written again, so read again");
    }

    #[test]
    fn image_read_error_affects_only_bad_page() {
        let mut image = image(SmallDisk { pages_max: 64, ..Default::default() });
        image.write(0, &[5; 16384]).unwrap();
        image.disk.bad_page = Some(2);
        let mut lent = 0;
        let error = image.runs(4096, 12288, &mut |_, run| lent += run.len()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "small.img: reading 8192 bytes at offset 8192: Input/output error (os error 5)"
        );
        assert_eq!(lent, 0, "nothing of a run that failed is lent");
        assert_eq!(read(&image, 4096, 4096), [5; 4096]);
    }

    #[test]
    fn image_truncated_file_is_read_error() {
        let image = image(SmallDisk::default());
        image.disk.bytes.borrow_mut().truncate(4096);
        let error = image.read_into(0, &mut [0; 8192]).unwrap_err();
        assert!(
            matches!(&error, Error::Read { offset_bytes: 4096, bytes: 4096, source, .. }
                if source.kind() == ErrorKind::UnexpectedEof),
            "{error}"
        );
    }

    #[test]
    fn image_flush_failure_is_permanent() {
        let mut image = image(SmallDisk { pages_max: 64, ..Default::default() });
        image.flush().unwrap();
        image.write(0, &[1; 512]).unwrap();
        image.disk.syncs.borrow_mut().push(EIO);
        let first = image.flush().unwrap_err();
        assert!(matches!(first, Error::Flush { earlier: false, .. }), "{first}");
        // The disk would now report success, as kernels do; the image must not.
        let second = image.flush().unwrap_err();
        assert_eq!(
            second.to_string(),
            "small.img: an earlier flush failed: Input/output error (os error 5); writes since \
             the last good flush may be lost, open the image again"
        );
        assert_eq!(image.disk.syncs_asked.get(), 2, "the disk was not asked a third time");
        assert_eq!(read(&image, 0, 512), [1; 512], "reads go on");
    }

    #[test]
    fn image_write_runs_zero_untouched_bytes() {
        let mut image = image(SmallDisk { pages_max: 64, ..Default::default() });
        image.write(0, &[7; 4096]).unwrap();
        image.runs(0, 4096, &mut |_, run| assert_eq!(run[0], 7)).unwrap();
        image.runs_mut(4096, 4096, &mut |_, run| run[..8].fill(1)).unwrap();
        assert_eq!(read(&image, 4096, 4096), [vec![1; 8], vec![0; 4088]].concat());
    }

    #[test]
    fn image_can_be_read_within_runs_callback() {
        let mut image = image(SmallDisk { pages_max: 64, ..Default::default() });
        image.write(0, &[1; 4096]).unwrap();
        image.write(4096, &[2; 4096]).unwrap();
        image
            .runs(0, 4096, &mut |_, outer| {
                image.runs(4096, 4096, &mut |_, inner| assert_eq!(inner, [2; 4096])).unwrap();
                assert_eq!(outer, [1; 4096]);
            })
            .unwrap();
    }
}
