//! Errors of the contents.

use std::path::PathBuf;
use std::{error, fmt, io};

use crate::files::is_full;

/// Error of the contents, with its location and the expected value.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A value of the [`Spec`](super::Spec) is invalid.
    BadSpec {
        /// Field of the specification.
        key: &'static str,
        /// Its value.
        found: u64,
        /// Allowed values.
        expected: &'static str,
    },
    /// [`Keep::Stamps`](super::Keep::Stamps) on a file, which is a raw image of every byte.
    StampsInFile {
        /// The requested file.
        path: PathBuf,
    },
    /// The request reaches past the end of the medium.
    OutOfRange {
        /// First byte of the request.
        offset_bytes: u64,
        /// Length of the request in bytes.
        bytes: u64,
        /// Length of the medium in bytes.
        capacity_bytes: u64,
    },
    /// The request does not consist of whole blocks.
    Unaligned {
        /// First byte of the request.
        offset_bytes: u64,
        /// Length of the request in bytes.
        bytes: u64,
        /// Required alignment of offset and length, in bytes.
        block_bytes: u32,
        /// Length of the medium in bytes.
        capacity_bytes: u64,
    },
    /// The path is not a regular file; it has not been touched.
    NotRegular {
        /// The path.
        path: PathBuf,
    },
    /// The file exists with another size; it has not been touched.
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        found_bytes: u64,
        /// Capacity in the specification, in bytes.
        expected_bytes: u64,
    },
    /// Another [`Contents`](super::Contents), here or in another process, has the file open.
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The operating system failed to prepare the file.
    Prepare {
        /// The file.
        path: PathBuf,
        /// The attempted operation, as a verb phrase.
        attempt: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A read failed. Nothing has changed.
    Read {
        /// The file.
        path: PathBuf,
        /// First byte that could not be read.
        offset_bytes: u64,
        /// Number of bytes from there that were not read.
        bytes: u64,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A write failed, for example because the disk is full. Bytes of the request before `offset_bytes` may
    /// be new; all others are unchanged.
    Write {
        /// The file.
        path: PathBuf,
        /// First byte that could not be written.
        offset_bytes: u64,
        /// Number of bytes from there that were not written.
        bytes: u64,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A flush failed, now or earlier. Data written since the last successful flush may be lost even if they
    /// still read back, and later flushes cannot detect that: the kernel reports a failed write-back once and
    /// may then count the page as clean ("Can Applications Recover from fsync Failures?", Rebello et al.,
    /// USENIX ATC 2020). So every flush fails until the file is opened again.
    Flush {
        /// The file.
        path: PathBuf,
        /// True if an earlier flush failed, so that this one was not attempted.
        earlier: bool,
        /// Error of the operating system at the failed flush.
        source: io::Error,
    },
}

impl Error {
    /// Returns true if the file system had no space left, or the file may not grow.
    pub fn is_full(&self) -> bool {
        match self {
            Error::Prepare { source, .. }
            | Error::Read { source, .. }
            | Error::Write { source, .. }
            | Error::Flush { source, .. } => is_full(source),
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::BadSpec { key, found, expected } => {
                write!(f, "contents: {key} is {found}, expected {expected}")
            }
            Error::StampsInFile { path } => write!(
                f,
                "{}: keeping stamps only is not supported in a file, which is a raw image; \
                 expected keep = everything, or memory",
                path.display()
            ),
            Error::OutOfRange { offset_bytes, bytes, capacity_bytes } => write!(
                f,
                "offset {offset_bytes}, {bytes} bytes: outside the capacity of \
                 {capacity_bytes} bytes"
            ),
            Error::Unaligned { offset_bytes, bytes, block_bytes, capacity_bytes } => write!(
                f,
                "offset {offset_bytes}, {bytes} bytes: expected whole blocks of {block_bytes} \
                 bytes (capacity {capacity_bytes} bytes)"
            ),
            _ => self.fmt_file(f),
        }
    }
}

impl Error {
    /// Formats the errors that name a file.
    fn fmt_file(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotRegular { path } => {
                write!(f, "{}: expected a regular file or nothing", path.display())
            }
            Error::WrongSize { path, found_bytes, expected_bytes } => write!(
                f,
                "{}: the file has {found_bytes} bytes, expected {expected_bytes} (an existing \
                 image is never resized)",
                path.display()
            ),
            Error::InUse { path } => {
                write!(f, "{}: the image is in use, expected to be its only user", path.display())
            }
            Error::Prepare { path, attempt, source } => {
                write!(f, "{}: could not {attempt}: {source}", path.display())
            }
            Error::Read { path, offset_bytes, bytes, source } => write!(
                f,
                "{}: reading {bytes} bytes at offset {offset_bytes}: {source}",
                path.display()
            ),
            Error::Write { path, offset_bytes, bytes, source } => write!(
                f,
                "{}: writing {bytes} bytes at offset {offset_bytes}: {source}",
                path.display()
            ),
            Error::Flush { path, earlier, source } => write!(
                f,
                "{}: {}: {source}; writes since the last good flush may be lost, open the image \
                 again",
                path.display(),
                if *earlier { "an earlier flush failed" } else { "flush failed" }
            ),
            _ => unreachable!("the caller formats the errors that name no file"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Error::Prepare { source, .. }
            | Error::Read { source, .. }
            | Error::Write { source, .. }
            | Error::Flush { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_error_messages_name_place_and_expectation() {
        let full = Error::Write {
            path: "disk.img".into(),
            offset_bytes: 1_048_576,
            bytes: 4096,
            source: io::Error::from(io::ErrorKind::StorageFull),
        };
        assert_eq!(
            full.to_string(),
            "disk.img: writing 4096 bytes at offset 1048576: no storage space"
        );
        let beyond = Error::OutOfRange { offset_bytes: 512, bytes: 1024, capacity_bytes: 1024 };
        assert_eq!(
            beyond.to_string(),
            "offset 512, 1024 bytes: outside the capacity of 1024 bytes"
        );
        let odd = Error::Unaligned {
            offset_bytes: 1,
            bytes: 512,
            block_bytes: 512,
            capacity_bytes: 1024,
        };
        assert_eq!(
            odd.to_string(),
            "offset 1, 512 bytes: expected whole blocks of 512 bytes (capacity 1024 bytes)"
        );
    }
}
