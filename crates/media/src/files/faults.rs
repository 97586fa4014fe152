//! A file system with fault injection: at a call, from a call on, or by losing unsynced data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::{fs, io};

use super::Call;

/// Kind of failure of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this error number and has no effect.
    Error(i32),
    /// A write transfers half of its bytes, and the next call fails with this error number. Other calls fail
    /// at once.
    Short(i32),
    /// As `Short` for writes; other calls succeed. A full disk fails in this way.
    Full(i32),
    /// Syncs of files fail; other calls succeed.
    Sync(i32),
}

/// Fault injection, and statistics of calls. Calls are counted from zero.
#[derive(Debug, Default)]
pub struct Faults(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    calls: u64,
    /// First failing call, end (exclusive), and kind of failure.
    fails: Option<(u64, u64, Fault)>,
    fired: u64,
    shorten: bool,
    fails_next: Option<i32>,
    written: u64,
    syncs: u64,
    /// True if the state after a power cut is tracked.
    follows: bool,
    /// Files changed since their last sync, with their contents after a power cut.
    unsynced: BTreeMap<PathBuf, Option<Vec<u8>>>,
    /// Files with a failed sync: no later sync restores the data that the kernel has dropped.
    dropped: BTreeMap<PathBuf, Option<Vec<u8>>>,
    /// Names changed since their folder was synced, with the files that they referred to.
    names: Vec<Name>,
}

#[derive(Debug)]
struct Name {
    path: PathBuf,
    before: Option<Vec<u8>>,
    /// Previous name of the file, after a rename.
    from: Option<PathBuf>,
}

impl Faults {
    /// Creates an instance without failures.
    pub fn new() -> Faults {
        Faults::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Makes `count` calls fail in this way, after `after` calls that succeed.
    pub fn fail(&self, after: u64, count: u64, fault: Fault) {
        let mut inner = self.inner();
        let begin = inner.calls.saturating_add(after);
        inner.fails = Some((begin, begin.saturating_add(count), fault));
        inner.fired = 0;
    }

    /// Ends all failures.
    pub fn heal(&self) {
        let mut inner = self.inner();
        (inner.fails, inner.fails_next, inner.shorten) = (None, None, false);
    }

    /// Number of calls that have failed since the last [`fail`](Faults::fail).
    pub fn fired(&self) -> u64 {
        self.inner().fired
    }

    /// Bytes written so far, of all files.
    pub fn written(&self) -> u64 {
        self.inner().written
    }

    /// Number of file syncs so far.
    pub fn syncs(&self) -> u64 {
        self.inner().syncs
    }

    /// Starts to track the state that [`power_cut`](Faults::power_cut) needs.
    pub fn follow(&self) {
        self.inner().follows = true;
    }

    /// Leaves the files as a power cut of the machine would in the worst case: without unsynced data and
    /// names. All of them must have been closed.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn power_cut(&self) -> io::Result<()> {
        let mut inner = self.inner();
        let names = std::mem::take(&mut inner.names);
        for Name { path, before, from } in names.into_iter().rev() {
            if let Some(from) = from {
                fs::rename(&path, &from)?;
                if let Some(bytes) = inner.unsynced.remove(&path) {
                    inner.unsynced.insert(from, bytes);
                }
            }
            if let Some(bytes) = before {
                fs::write(&path, bytes)?;
            }
        }
        let mut left = std::mem::take(&mut inner.unsynced);
        left.append(&mut inner.dropped);
        for (path, bytes) in left {
            match bytes {
                Some(bytes) => fs::write(&path, bytes)?,
                None => drop(fs::remove_file(&path)),
            }
        }
        Ok(())
    }

    pub(super) fn ask(&self, call: Call<'_>) -> io::Result<()> {
        let mut inner = self.inner();
        let number = inner.calls;
        inner.calls += 1;
        if let Some(code) = inner.fails_next.take() {
            return inner.refuse(code, call);
        }
        if let Some((begin, end, fault)) = inner.fails
            && (begin..end).contains(&number)
        {
            match (fault, call) {
                (Fault::Short(code) | Fault::Full(code), Call::Write(_)) => {
                    inner.fired += 1;
                    (inner.shorten, inner.fails_next) = (true, Some(code));
                }
                (Fault::Sync(code), Call::Sync(_)) => return inner.refuse(code, call),
                (Fault::Full(_) | Fault::Sync(_), _) => {}
                (Fault::Error(code) | Fault::Short(code), _) => return inner.refuse(code, call),
            }
        }
        if matches!(call, Call::Sync(_)) {
            inner.syncs += 1;
        }
        if inner.follows {
            inner.note(call);
        }
        Ok(())
    }

    /// Number of bytes of a write that take effect.
    pub(super) fn shortened(&self, bytes: usize) -> usize {
        let mut inner = self.inner();
        let some = if std::mem::take(&mut inner.shorten) { bytes / 2 } else { bytes };
        inner.written += some as u64;
        some.max(bytes.min(1))
    }
}

impl Inner {
    fn refuse(&mut self, code: i32, call: Call<'_>) -> io::Result<()> {
        self.fired += 1;
        if let Call::Sync(path) = call
            && let Some(bytes) = self.unsynced.remove(path)
        {
            self.dropped.entry(path.into()).or_insert(bytes);
        }
        Err(io::Error::from_raw_os_error(code))
    }

    /// Contents on disk of a file that loses its name, if they differ from those that a read returns.
    fn gone(&mut self, path: &Path) -> Option<Option<Vec<u8>>> {
        let unsynced = self.unsynced.remove(path);
        self.dropped.remove(path).or(unsynced)
    }

    /// Tracks the effect of a call on the state after a power cut.
    fn note(&mut self, call: Call<'_>) {
        let now = |path: &Path| fs::read(path).ok();
        match call {
            Call::Create(path) | Call::Write(path) | Call::Length(path) => {
                if !self.unsynced.contains_key(path) {
                    self.unsynced.insert(path.into(), now(path));
                }
            }
            Call::Sync(path) => drop(self.unsynced.remove(path)),
            Call::Rename(from, to) => {
                // Contents on disk of the file that loses its name.
                let before = self.gone(to).unwrap_or_else(|| now(to));
                if let Some(bytes) = self.unsynced.remove(from) {
                    self.unsynced.insert(to.into(), bytes);
                }
                self.names.push(Name { path: to.into(), before, from: Some(from.into()) });
            }
            Call::Remove(path) => {
                let before = self.gone(path).unwrap_or_else(|| now(path));
                self.names.push(Name { path: path.into(), before, from: None });
            }
            Call::SyncFolder(folder) => {
                self.names.retain(|name| {
                    let of = name.path.parent().filter(|of| !of.as_os_str().is_empty());
                    of.unwrap_or(Path::new(".")) != folder
                });
            }
            Call::Open | Call::Read | Call::Lock => {}
        }
    }
}
