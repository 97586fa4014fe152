//! Files by their contents: times and lengths do not tell two states apart that were written one after
//! the other.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files whose digests are kept.
const KEPT_MAX: usize = 64;
/// A file that was changed less long ago may change again at the same time by the clock of its file system.
const GRAIN_S: u64 = 2;

/// Digests of files, each kept as long as its file has not changed.
#[derive(Default)]
pub(super) struct Digests {
    kept: BTreeMap<PathBuf, (Identity, String)>,
    reads: u64,
}

/// Device, inode, length, and the time of the last change, which no program can set.
type Identity = (u64, u64, u64, i64, i64);

fn identity(of: &Metadata) -> Identity {
    (of.dev(), of.ino(), of.len(), of.ctime(), of.ctime_nsec())
}

impl Digests {
    pub const fn new() -> Digests {
        Digests { kept: BTreeMap::new(), reads: 0 }
    }

    /// Digest of a file; `None` if there is none. `now_s`: seconds since 1970.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of(&mut self, path: &Path, now_s: u64) -> io::Result<Option<String>> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let before = identity(&file.metadata()?);
        if let Some((_, digest)) = self.kept.get(path).filter(|(known, _)| *known == before) {
            return Ok(Some(digest.clone()));
        }
        self.reads += 1;
        let (digest, _) = report::digest(&mut file)?;
        let after = identity(&file.metadata()?);
        let changed_s = u64::try_from(after.3).unwrap_or(0);
        if after == before && changed_s.saturating_add(GRAIN_S) < now_s {
            if self.kept.len() >= KEPT_MAX {
                self.kept.clear();
            }
            self.kept.insert(path.to_owned(), (before, digest.clone()));
        }
        Ok(Some(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_again_only_if_it_may_have_changed() {
        let folder = testing::Folder::new("digests");
        let path = folder.file("state", "one");
        let mut digests = Digests::new();
        assert_eq!(digests.of(&folder.path("none"), 0).expect("no error"), None);
        let mut of = |now_s| {
            let digest = digests.of(&path, now_s).expect("read").expect("there");
            (digest, digests.reads)
        };
        // Just written, by this clock: it may be written again unseen.
        let one = of(0);
        assert_eq!(of(0), (one.0.clone(), 2));
        // Long ago.
        assert_eq!(of(u64::MAX), (one.0.clone(), 3));
        assert_eq!(of(u64::MAX), (one.0.clone(), 3));
        std::fs::write(&path, "longer").expect("written");
        let other = of(u64::MAX);
        assert!(other.0 != one.0 && other.1 == 4);
    }
}
