//! Locks of flash states: one process that writes, or several that only read.
//!
//! A state is replaced by rename, so a lock on the file itself would apply to the replaced file. The lock is
//! on a separate file, `STATE.lock`, which is never removed: otherwise two processes could each hold the lock
//! of a file with that name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use super::file::{beside_name, own_name};
use super::{Error, Nand};

/// A locked state. Unlocked when the last clone is dropped, and at any end of the process.
#[derive(Clone, Debug)]
pub struct Lock {
    /// Dropped with the last clone; `None` in a read-only folder.
    _locked: Option<Arc<Locked>>,
}

/// Unlocked when dropped, not only closed: a child process that another thread has just forked holds the file
/// open until it calls exec.
#[derive(Debug)]
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // If this fails, the file stays locked until it is closed, which comes next.
        let _ = self.0.unlock();
    }
}

impl Lock {
    /// Locks a state, which need not exist, for writing.
    ///
    /// # Errors
    /// [`Error::InUse`] if it is locked already, in this process or elsewhere. [`Error::Io`].
    pub fn exclusive(state: &Path) -> Result<Lock, Error> {
        Lock::take(state, File::try_lock)
    }

    /// Locks a state for reading, which several may do. In a read-only folder no lock file can be created,
    /// but no process can write the state either, so it is not locked.
    ///
    /// # Errors
    /// [`Error::InUse`] if it is locked for writing, in this process or elsewhere. [`Error::Io`].
    pub fn shared(state: &Path) -> Result<Lock, Error> {
        match Lock::take(state, File::try_lock_shared) {
            Err(Error::Io { source, .. }) if is_read_only(&source) => Ok(Lock { _locked: None }),
            tried => tried,
        }
    }

    fn take(state: &Path, lock: fn(&File) -> Result<(), TryLockError>) -> Result<Lock, Error> {
        let path = &beside_name(&own_name(state)?, ".lock");
        let failed = |attempt| move |source| Error::Io { path: path.into(), attempt, source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // An existing lock file can be locked even if it is read-only.
        let opened = options.open(path).or_else(|error| match File::open(path) {
            Ok(file) => Ok(file),
            Err(_) => Err(error),
        });
        let file = opened.map_err(failed("open the lock of the state"))?;
        match lock(&file) {
            Ok(()) => Ok(Lock { _locked: Some(Arc::new(Locked(file))) }),
            Err(TryLockError::WouldBlock) => Err(Error::InUse { path: state.into() }),
            Err(TryLockError::Error(source)) => Err(failed("lock the state")(source)),
        }
    }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied)
}

impl Nand {
    /// Keeps the lock of its state for its lifetime. Forks do not hold it, because they are never saved
    /// there.
    pub fn hold(&mut self, lock: Lock) {
        self.lock = Some(lock);
    }
}
