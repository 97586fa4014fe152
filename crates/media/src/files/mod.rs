//! Operating system calls on state files, one by one, so that a test can make any of them fail.
//!
//! [`Files`] is the real file system, or with [`Faults`] one that fails on purpose. Every call on a state, a
//! journal, an image or a label goes through here. Files are readable by their owner only, because they hold
//! the data of hosts.

mod faults;
pub(crate) mod paged;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use faults::{Fault, Faults};

/// The file system, or one with fault injection.
#[derive(Clone, Debug, Default)]
pub struct Files(Option<Arc<Faults>>);

/// A call, for [`Faults`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call<'a> {
    Create(&'a Path),
    Open,
    Read,
    Write(&'a Path),
    Length(&'a Path),
    Lock,
    Sync(&'a Path),
    Rename(&'a Path, &'a Path),
    Remove(&'a Path),
    SyncFolder(&'a Path),
}

/// A name that no file has: that of `path` with this ending, and a number if files have the names before it.
pub fn unused_name(path: &Path, ending: &str) -> PathBuf {
    let name = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        if number > 1 {
            name.push(format!(".{number}"));
        }
        PathBuf::from(name)
    };
    (1..).map(name).find(|name| !name.exists()).expect("no folder has 2^32 files")
}

impl Files {
    /// A file system with these faults.
    pub fn failing(faults: Arc<Faults>) -> Files {
        Files(Some(faults))
    }

    fn ask(&self, call: Call<'_>) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |faults| faults.ask(call))
    }

    fn opened(&self, file: File, path: &Path) -> Opened {
        Opened { file, path: path.into(), files: self.clone() }
    }

    /// Creates a new file, replacing any of the same name.
    pub(crate) fn create(&self, path: &Path) -> io::Result<Opened> {
        self.ask(Call::Create(path))?;
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Ok(self.opened(file, path))
    }

    /// Opens a file for reading.
    pub(crate) fn open(&self, path: &Path) -> io::Result<Opened> {
        self.ask(Call::Open)?;
        Ok(self.opened(File::open(path)?, path))
    }

    /// Opens a file for reading and writing; creates an empty one if it does not exist.
    pub(crate) fn open_or_create(&self, path: &Path) -> io::Result<Opened> {
        self.ask(Call::Open)?;
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        Ok(self.opened(file, path))
    }

    /// Reads a whole file; `None` if it does not exist.
    ///
    /// # Errors
    /// It can't be read.
    pub fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let file = match self.open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = vec![0; file.length()? as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(Some(bytes))
    }

    /// Returns true if a file of this name exists; fails if that cannot be determined.
    pub(crate) fn exists(&self, path: &Path) -> io::Result<bool> {
        self.ask(Call::Open)?;
        path.try_exists()
    }

    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        self.ask(Call::Remove(path))?;
        fs::remove_file(path)
    }

    /// Replaces a file atomically, by rename. It survives a power cut when this returns.
    ///
    /// # Errors
    /// It can't be written: the file holds what it held, or the new bytes.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(".new");
        let fresh = PathBuf::from(fresh);
        let written = self.create(&fresh).and_then(|file| {
            file.write_all_at(bytes, 0)?;
            file.sync()?;
            self.rename(&fresh, path)
        });
        if let Err(error) = written {
            // Clean up; the first error is the one to report.
            let _ = self.remove(&fresh);
            return Err(error);
        }
        self.sync_folder_of(path)
    }

    /// Renames a file, replacing any of the new name. Not durable until the folder is synced.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.ask(Call::Rename(from, to))?;
        fs::rename(from, to)
    }

    /// Returns when the names in this file's folder survive a power cut.
    pub(crate) fn sync_folder_of(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        self.ask(Call::SyncFolder(folder))?;
        // If faults define the result of a power cut, there is no need to wait for the disk.
        if self.0.is_some() { Ok(()) } else { File::open(folder)?.sync_all() }
    }
}

#[derive(Debug)]
pub(crate) struct Opened {
    file: File,
    path: PathBuf,
    files: Files,
}

impl Opened {
    /// The underlying file, for locking and metadata.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Records the file's new name.
    pub(crate) fn renamed(&mut self, path: &Path) {
        self.path = path.into();
    }

    pub(crate) fn ask_lock(&self) -> io::Result<()> {
        self.files.ask(Call::Lock)
    }

    pub(crate) fn length(&self) -> io::Result<u64> {
        self.files.ask(Call::Read)?;
        Ok(self.file.metadata()?.len())
    }

    pub(crate) fn set_length(&self, bytes: u64) -> io::Result<()> {
        self.files.ask(Call::Length(&self.path))?;
        self.file.set_len(bytes)
    }

    /// Reads some bytes from `offset`; returns 0 at the end of the file.
    pub(crate) fn read_at(&self, to: &mut [u8], offset: u64) -> io::Result<usize> {
        self.files.ask(Call::Read)?;
        self.file.read_at(to, offset)
    }

    /// Writes some bytes to `offset`.
    pub(crate) fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        self.files.ask(Call::Write(&self.path))?;
        let some = match &self.files.0 {
            Some(faults) => faults.shortened(from.len()),
            None => from.len(),
        };
        self.file.write_at(&from[..some], offset)
    }

    pub(crate) fn read_exact_at(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = to.len();
        let some = |done| self.read_at(&mut to[done..], offset + done as u64);
        in_pieces(bytes, ErrorKind::UnexpectedEof, some).map_err(|(_, error)| error)
    }

    pub(crate) fn write_all_at(&self, from: &[u8], offset: u64) -> io::Result<()> {
        let some = |done| self.write_at(&from[done..], offset + done as u64);
        in_pieces(from.len(), ErrorKind::WriteZero, some).map_err(|(_, error)| error)
    }

    /// Returns when the data and the length of the file survive a power cut.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.files.ask(Call::Sync(&self.path))?;
        if self.files.0.is_some() { Ok(()) } else { self.file.sync_data() }
    }
}

/// Transfers `bytes` bytes in as many calls as needed, each with the number of bytes already done. A call
/// that transfers none is the error `none`. On an error, returns the number of bytes before it.
pub(crate) fn in_pieces(
    bytes: usize,
    none: ErrorKind,
    mut some: impl FnMut(usize) -> io::Result<usize>,
) -> Result<(), (usize, io::Error)> {
    let mut done = 0;
    while done < bytes {
        match some(done) {
            Ok(0) => return Err((done, none.into())),
            Ok(moved) => done += moved,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err((done, error)),
        }
    }
    Ok(())
}

/// Returns true if the file system had no space left, or the file may not grow.
pub(crate) fn is_full(error: &io::Error) -> bool {
    [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge]
        .contains(&error.kind())
}

/// Bytes that a [`Writer`] buffers before a write.
const GATHERED_BYTES: usize = 1 << 20;

/// Writes a new file sequentially, in large pieces.
pub(crate) struct Writer {
    file: Opened,
    at: u64,
    gathered: Vec<u8>,
}

impl Writer {
    pub(crate) fn new(file: Opened) -> Writer {
        Writer { file, at: 0, gathered: Vec::with_capacity(GATHERED_BYTES) }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.gathered.len() + bytes.len() > GATHERED_BYTES {
            self.give()?;
        }
        if bytes.len() >= GATHERED_BYTES {
            self.file.write_all_at(bytes, self.at)?;
            self.at += bytes.len() as u64;
            return Ok(());
        }
        self.gathered.extend_from_slice(bytes);
        Ok(())
    }

    fn give(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.gathered, self.at)?;
        self.at += self.gathered.len() as u64;
        self.gathered.clear();
        Ok(())
    }

    /// Flushes the buffer and returns the file.
    pub(crate) fn end(mut self) -> io::Result<Opened> {
        self.give()?;
        Ok(self.file)
    }
}
