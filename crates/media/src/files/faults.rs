//! A file system that fails on purpose: at a call, from a call on, or by losing what was not synced.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::{fs, io};

use super::Call;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// With this error number, and nothing has happened.
    Error(i32),
    /// A write moves half of its bytes, and the next call fails with this error number. Other calls fail
    /// at once.
    Short(i32),
}

/// Which calls fail, and what has been asked so far. Calls are counted from zero.
#[derive(Debug, Default)]
pub struct Faults(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    calls: u64,
    /// From this call on, to before that one.
    fails: Option<(u64, u64, Fault)>,
    fired: u64,
    shorten: bool,
    fails_next: Option<i32>,
    written: u64,
    syncs: u64,
    /// Whether it is known what a power cut would leave.
    follows: bool,
    /// What a power cut would leave of files that were changed since they were synced.
    unsynced: BTreeMap<PathBuf, Option<Vec<u8>>>,
    /// Of files of which a sync has failed: no later one brings back what the kernel has dropped.
    dropped: BTreeMap<PathBuf, Option<Vec<u8>>>,
    /// Names that were changed since their folder was synced: which, and what it named.
    names: Vec<Name>,
}

#[derive(Debug)]
struct Name {
    path: PathBuf,
    before: Option<Vec<u8>>,
    /// The other name that the file had, of a rename.
    from: Option<PathBuf>,
}

impl Faults {
    /// One that does not fail yet.
    pub fn new() -> Faults {
        Faults::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// From now on `count` calls fail so, after `after` that do not.
    pub fn fail(&self, after: u64, count: u64, fault: Fault) {
        let mut inner = self.inner();
        let begin = inner.calls.saturating_add(after);
        inner.fails = Some((begin, begin.saturating_add(count), fault));
        inner.fired = 0;
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        let mut inner = self.inner();
        (inner.fails, inner.fails_next, inner.shorten) = (None, None, false);
    }

    /// How many calls have failed since the last [`fail`](Faults::fail).
    pub fn fired(&self) -> u64 {
        self.inner().fired
    }

    /// Bytes written so far, of all files.
    pub fn written(&self) -> u64 {
        self.inner().written
    }

    /// How often a file was synced so far.
    pub fn syncs(&self) -> u64 {
        self.inner().syncs
    }

    /// From now on keeps what [`power_cut`](Faults::power_cut) needs.
    pub fn follow(&self) {
        self.inner().follows = true;
    }

    /// Leaves the files as the machine's power cut would at worst: what was not synced is gone, of bytes and
    /// of names. Whoever has files open must have closed them.
    ///
    /// # Errors
    /// What the file system says.
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
                (Fault::Short(code), Call::Write(_)) => {
                    inner.fired += 1;
                    (inner.shorten, inner.fails_next) = (true, Some(code));
                }
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

    /// How much of a write is done.
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

    /// What is on the disk of a file that loses its name, if that is not what can be read of it.
    fn gone(&mut self, path: &Path) -> Option<Option<Vec<u8>>> {
        let unsynced = self.unsynced.remove(path);
        self.dropped.remove(path).or(unsynced)
    }

    /// Keeps what a power cut would leave.
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
                // What is on the disk of the file that loses its name.
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
