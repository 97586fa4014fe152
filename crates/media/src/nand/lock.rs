//! Who may use a state of flash: one process that writes it, or several that only read it.
//!
//! The state is replaced by rename, so that a lock on the file itself would be on one that is no longer
//! there. The lock is on a file beside it, `STATE.lock`, which stays: were it removed, two processes could
//! each hold the lock of a file of that name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use super::state::{beside_name, own_name};
use super::{Error, Nand};

/// A state that is locked. Unlocked when the last clone is dropped, and when the process ends, however it
/// does.
#[derive(Clone, Debug)]
pub struct Lock {
    /// Dropped with the last clone; none: nobody can write there.
    _locked: Option<Arc<Locked>>,
}

/// Unlocked when dropped, and not only closed: a child that another thread has just forked holds the file
/// open until it has become another program.
#[derive(Debug)]
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // What goes wrong here leaves it locked until it is closed, which comes next.
        let _ = self.0.unlock();
    }
}

impl Lock {
    /// Locks a state, which need not exist, for one that writes it.
    ///
    /// # Errors
    /// [`Error::InUse`]: another has it, in this process or elsewhere. [`Error::Io`].
    pub fn exclusive(state: &Path) -> Result<Lock, Error> {
        Lock::take(state, File::try_lock)
    }

    /// Locks a state for one of several that only read it. In a folder that can't be written to, where no
    /// lock can be made, nobody writes the state either, and it is not locked.
    ///
    /// # Errors
    /// [`Error::InUse`]: another writes it, in this process or elsewhere. [`Error::Io`].
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
        // A lock that is there can be taken by whoever can read it.
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
    /// Holds the lock of its state as long as it lives, wherever it goes. Forks do not hold it: they are
    /// never written there.
    pub fn hold(&mut self, lock: Lock) {
        self.lock = Some(lock);
    }
}
