//! A copy of the contents while they are written: they are copied in the background, and what is about to
//! change is copied first. The copy has the contents of the moment at which it began.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use super::label::Label;
use super::{Contents, Error, Keep, Store};
use crate::files::Files;

/// Bytes copied at a time: those of a leaf in memory.
const CHUNK_BYTES: u64 = 64 << 10;
/// Bytes of chunks that the receiver has not taken, above which the background copy waits. A chunk copied
/// because it is about to change is not counted against it: a write never waits.
const WAITING_BYTES_MAX: u64 = 64 << 20;
/// Bytes of such chunks at which the copy ends with an error: a drive may be larger than memory, and written
/// faster than the receiver takes.
const BEHIND_BYTES_MAX: u64 = 1 << 30;

/// A part of a copy.
pub enum Chunk {
    /// These bytes, from this offset; what is in no chunk is zero.
    Bytes(u64, Vec<u8>),
    /// Nothing is left.
    End,
    /// The contents cannot be read: there is no copy.
    Failed(Error),
}

/// A copy that has begun.
pub struct Copied {
    /// Length of the contents.
    pub capacity_bytes: u64,
    /// Their label.
    pub label: Vec<u8>,
    /// Bytes of chunks that were sent and not taken; the receiver counts them down.
    pub waiting: Arc<AtomicU64>,
}

pub(super) struct Copying {
    to: Sender<Chunk>,
    /// A bit for each chunk that needs no copy any more.
    copied: Vec<u64>,
    /// No chunk before this offset is left.
    next: u64,
    waiting: Arc<AtomicU64>,
}

impl Copying {
    fn is_copied(&self, chunk: u64) -> bool {
        self.copied[(chunk / 64) as usize] >> (chunk % 64) & 1 != 0
    }

    /// Marks these chunks as copied.
    fn mark(&mut self, first: u64, end: u64) {
        let mut chunk = first;
        while chunk < end {
            let word = &mut self.copied[(chunk / 64) as usize];
            if chunk.is_multiple_of(64) && end - chunk >= 64 {
                *word = u64::MAX;
                chunk += 64;
            } else {
                *word |= 1 << (chunk % 64);
                chunk += 1;
            }
        }
    }

    fn is_behind(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= BEHIND_BYTES_MAX
    }

    fn send(&self, at: u64, bytes: Vec<u8>) -> bool {
        self.waiting.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.to.send(Chunk::Bytes(at, bytes)).is_ok()
    }
}

impl Contents {
    /// Begins a copy, which replaces one in progress. [`copy_some`](Contents::copy_some) continues it. It
    /// ends without [`Chunk::End`] if the contents are closed first.
    ///
    /// # Errors
    /// [`Error::NoCopy`]: an image cannot hold them.
    pub fn begin_copy(&mut self, to: Sender<Chunk>) -> Result<Copied, Error> {
        if self.keep() == Keep::Stamps {
            return Err(Error::NoCopy {
                found: "stamps alone",
                expected: "medium.keep = everything",
            });
        }
        if self.metadata.is_some() {
            return Err(Error::NoCopy { found: "metadata", expected: "blocks without metadata" });
        }
        let chunks = self.capacity_bytes.div_ceil(CHUNK_BYTES);
        let waiting = Arc::new(AtomicU64::new(0));
        self.copy = Some(Box::new(Copying {
            to,
            copied: vec![0; chunks.div_ceil(64) as usize],
            next: 0,
            waiting: waiting.clone(),
        }));
        let label = self.label().to_vec();
        Ok(Copied { capacity_bytes: self.capacity_bytes, label, waiting })
    }

    /// Ends a copy that is in progress, without its end.
    pub fn abandon_copy(&mut self) {
        self.copy = None;
    }

    /// Copies the next chunk, unless the receiver is behind. Returns false when there is no copy in progress.
    pub fn copy_some(&mut self) -> bool {
        let Some(copy) = &self.copy else { return false };
        if copy.waiting.load(Ordering::Relaxed) > WAITING_BYTES_MAX {
            return true;
        }
        let next = self.data_from(copy.next);
        if next >= self.capacity_bytes {
            let copy = self.copy.take().expect("just seen");
            // Without a receiver there is no copy to end.
            let _ = copy.to.send(Chunk::End);
            return false;
        }
        self.copy_chunk(next / CHUNK_BYTES);
        if let Some(copy) = &mut self.copy {
            copy.next = (next / CHUNK_BYTES + 1) * CHUNK_BYTES;
        }
        self.copy.is_some()
    }

    /// Copies the chunks of these bytes, if they are not copied yet.
    #[cold]
    pub(super) fn copy_before(&mut self, offset_bytes: u64, bytes: u64) {
        let first = offset_bytes / CHUNK_BYTES;
        let end = (offset_bytes + bytes).div_ceil(CHUNK_BYTES);
        let mut chunk = first.max(self.copy.as_ref().map_or(end, |copy| copy.next / CHUNK_BYTES));
        while chunk < end {
            // A discard may be of terabytes that were never written.
            chunk = self.data_from(chunk * CHUNK_BYTES) / CHUNK_BYTES;
            if chunk < end {
                self.copy_chunk(chunk);
            }
            chunk += 1;
        }
        // Also those without data so far, which are to be zeros in the copy.
        if let Some(copy) = &mut self.copy {
            copy.mark(first, end);
        }
    }

    /// First offset from this one on that may hold data, as far as known without reading it.
    fn data_from(&self, at: u64) -> u64 {
        if at >= self.capacity_bytes {
            return self.capacity_bytes;
        }
        match &self.store {
            Store::Everything(sparse) => at + sparse.blank_from(at),
            Store::Image(image) => image.data_from(at, self.capacity_bytes),
            Store::Filled(_) | Store::Stamps(_) => at,
        }
    }

    fn copy_chunk(&mut self, chunk: u64) {
        if self.copy.as_ref().is_none_or(|copy| copy.is_copied(chunk)) {
            return;
        }
        if self.copy.as_ref().is_some_and(|copy| copy.is_behind()) {
            let failed = Chunk::Failed(Error::CopyBehind { bytes: BEHIND_BYTES_MAX });
            let _ = self.copy.take().expect("just seen").to.send(failed);
            return;
        }
        let at = chunk * CHUNK_BYTES;
        let mut bytes = vec![0; CHUNK_BYTES.min(self.capacity_bytes - at) as usize];
        let read = self.read_into(at, &mut bytes);
        let copy = self.copy.as_mut().expect("just seen");
        copy.mark(chunk, chunk + 1);
        let goes_on = match read {
            Ok(()) if is_zero(&bytes) => true,
            Ok(()) => copy.send(at, bytes),
            Err(error) => {
                let _ = copy.to.send(Chunk::Failed(error));
                false
            }
        };
        if !goes_on {
            self.copy = None;
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Writes a copy to a new image, with its label beside it, and returns the bytes written. The image has its
/// name when all of it is durable.
///
/// # Errors
/// [`Error::Exists`]; [`Error::Prepare`] and [`Error::Write`]; [`Error::CopyEnded`] if the contents were
/// closed before the end; what a read of them has failed with.
pub fn write_image(path: &Path, copied: &Copied, chunks: &Receiver<Chunk>) -> Result<u64, Error> {
    if path.symlink_metadata().is_ok() {
        return Err(Error::Exists { path: path.to_owned() });
    }
    let fresh = Fresh::create(path)?;
    let failed = |attempt| fresh.failed(attempt);
    fresh.file.set_len(copied.capacity_bytes).map_err(failed("give the image its size"))?;
    let mut written = 0;
    loop {
        match chunks.recv() {
            Ok(Chunk::Bytes(at, bytes)) => {
                copied.waiting.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
                fresh.file.write_all_at(&bytes, at).map_err(|source| Error::Write {
                    path: fresh.path.clone(),
                    offset_bytes: at,
                    bytes: bytes.len() as u64,
                    source,
                })?;
                written += bytes.len() as u64;
            }
            Ok(Chunk::End) => break,
            Ok(Chunk::Failed(error)) => return Err(error),
            Err(_) => return Err(Error::CopyEnded { path: path.to_owned() }),
        }
    }
    fresh.file.sync_all().map_err(failed("flush the image"))?;
    if !copied.label.is_empty() {
        Label::of_image(&Files::default(), path)?.set(&copied.label)?;
    }
    // Unlike a rename, a link replaces no file that has come meanwhile.
    fs::hard_link(&fresh.path, path).map_err(failed("give the image its name"))?;
    Files::default().sync_folder_of(path).map_err(failed("flush the image's directory"))?;
    Ok(written)
}

/// A file that is removed when it is dropped: another name of it stays.
struct Fresh {
    path: PathBuf,
    file: File,
}

impl Fresh {
    fn create(of: &Path) -> Result<Fresh, Error> {
        let mut name = of.as_os_str().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let path = PathBuf::from(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        match options.open(&path) {
            Ok(file) => Ok(Fresh { path, file }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Error::Exists { path }),
            Err(source) => Err(Error::Prepare { path, attempt: "create the image", source }),
        }
    }

    fn failed(&self, attempt: &'static str) -> impl Fn(io::Error) -> Error {
        let path = self.path.clone();
        move |source| Error::Prepare { path: path.clone(), attempt, source }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::{Backing, Spec};
    use std::sync::mpsc::channel;

    const CAPACITY: u64 = (8 << 20) + 512;

    fn contents(backing: Backing) -> Contents {
        let keep = Keep::Everything;
        let spec = Spec { capacity_bytes: CAPACITY, block_bytes: 512, keep, backing };
        Contents::new(spec).expect("contents")
    }

    fn all(contents: &Contents) -> Vec<u8> {
        let mut bytes = vec![0; CAPACITY as usize];
        contents.read_into(0, &mut bytes).expect("readable");
        bytes
    }

    /// A folder of its own, removed when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("doorbell-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a folder");
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn copy_has_the_contents_of_its_begin_under_writes_and_discards() {
        let folder = Folder::new("copy-writes");
        let image = |bound: bool| {
            let path = folder.0.join(format!("source-{bound}"));
            match bound {
                true => Backing::Bounded { path, resident_bytes: 1 << 20 },
                false => Backing::File(path),
            }
        };
        for (number, backing) in
            [Backing::Memory, Backing::Random(7), image(false), image(true)].into_iter().enumerate()
        {
            let mut contents = contents(backing);
            let mut rng = runtime::Rng::for_part(number as u64, "copy");
            let mut change = |contents: &mut Contents| {
                let blocks = rng.below(300) + 1;
                let at = 512 * rng.below(CAPACITY / 512 - blocks);
                match rng.below(4) {
                    0 => contents.discard(at, blocks * 512).expect("within"),
                    _ => {
                        let byte = rng.below(255) as u8 + 1;
                        contents.write(at, &vec![byte; blocks as usize * 512]).expect("within");
                    }
                }
            };
            (0..40).for_each(|_| change(&mut contents));
            contents.set_label(b"the label").expect("short");
            let before = all(&contents);
            let (to, chunks) = channel();
            let copied = contents.begin_copy(to).expect("a copy");
            let mut steps = 0;
            while contents.copy_some() {
                change(&mut contents);
                steps += 1;
            }
            assert!(steps > 20, "{steps} steps");
            assert_ne!(all(&contents), before, "it changed meanwhile");
            let path = folder.0.join(format!("copy-{number}"));
            write_image(&path, &copied, &chunks).expect("an image");
            let copy = self::contents(Backing::File(path));
            assert!(all(&copy) == before, "store {number}");
            assert_eq!(copy.label(), b"the label");
        }
    }

    #[test]
    fn copy_of_a_huge_sparse_medium_takes_few_steps() {
        let keep = Keep::Everything;
        let backing = Backing::Memory;
        let spec = Spec { capacity_bytes: 1 << 40, block_bytes: 4096, keep, backing };
        let mut contents = Contents::new(spec).expect("contents");
        for place in 0..10 {
            contents.write(place << 36, &[1; 4096]).expect("within");
        }
        let (to, chunks) = channel();
        contents.begin_copy(to).expect("a copy");
        contents.discard(1 << 39, 1 << 39).expect("within");
        let steps = std::iter::from_fn(|| contents.copy_some().then_some(())).count();
        assert!(steps <= 10, "{steps} steps");
        let bytes = chunks.iter().filter(|chunk| matches!(chunk, Chunk::Bytes(..))).count();
        assert_eq!(bytes, 10);
    }

    #[test]
    fn copy_that_ends_early_leaves_no_file() {
        let folder = Folder::new("copy-ends");
        let path = folder.0.join("copy");
        let mut contents = contents(Backing::Random(1));
        let (to, chunks) = channel();
        let copied = contents.begin_copy(to).expect("a copy");
        contents.copy_some();
        drop(contents);
        let error = write_image(&path, &copied, &chunks).expect_err("it has ended");
        assert!(matches!(error, Error::CopyEnded { .. }), "{error}");
        fs::write(&path, "mine").expect("a file");
        let error = write_image(&path, &copied, &chunks).expect_err("there is one");
        assert!(matches!(error, Error::Exists { .. }), "{error}");
        let names = fs::read_dir(&folder.0).expect("the folder").count();
        assert_eq!((names, fs::read(&path).expect("mine")), (1, b"mine".to_vec()));
    }

    #[test]
    fn copy_waits_for_its_receiver() {
        let mut contents = contents(Backing::Random(1));
        let (to, chunks) = channel();
        let copied = contents.begin_copy(to).expect("a copy");
        copied.waiting.store(WAITING_BYTES_MAX + 1, Ordering::Relaxed);
        assert!((0..9).all(|_| contents.copy_some()));
        assert!(chunks.try_recv().is_err(), "nothing is copied");
        contents.write(0, &[3; 512]).expect("within");
        assert!(chunks.try_recv().is_ok(), "a write does not wait");
        copied.waiting.store(BEHIND_BYTES_MAX, Ordering::Relaxed);
        contents.write(1 << 20, &[4; 512]).expect("within");
        contents.write(2 << 20, &[4; 512]).expect("within");
        assert!(!contents.copy_some(), "there is no copy any more");
        let folder = Folder::new("copy-behind");
        let error = write_image(&folder.0.join("copy"), &copied, &chunks).expect_err("no copy");
        assert!(matches!(error, Error::CopyBehind { .. }), "{error}");
    }
}
