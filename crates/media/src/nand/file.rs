//! Shared by the state file and its journal: file names, the checksum, and the error of a rejected file.

use std::path::{Path, PathBuf};

use super::Error;

/// Appends a suffix to a file name.
pub(super) fn beside_name(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Real path of a state that may be a symbolic link: lock and journal are next to the real file, and a rename
/// replaces the file and not the link.
pub(super) fn own_name(path: &Path) -> Result<PathBuf, Error> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => std::fs::canonicalize(path).map_err(|source| {
            Error::Io { path: path.into(), attempt: "follow the link to the state", source }
        }),
        _ => Ok(path.into()),
    }
}

/// Checksum against accidental damage, not malice: one multiplication per word.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = 0x9e37_79b9_7f4a_7c15 ^ bytes.len() as u64;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        sum = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        sum ^= sum >> 32;
    }
    for byte in rest {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        sum ^= sum >> 32;
    }
    sum
}

#[derive(Debug, thiserror::Error)]
#[error("its checksum is wrong")]
pub(super) struct BadChecksum;

pub(super) fn refuse(path: &Path, field: &'static str, found: impl Into<String>) -> Error {
    Error::State { path: path.into(), field, found: found.into() }
}
