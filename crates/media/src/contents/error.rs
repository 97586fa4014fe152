//! Errors of the contents.

use std::io;
use std::path::PathBuf;

use crate::files::is_full;

/// Why the contents refused or failed. Each names the place and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value of the [`Spec`](super::Spec) makes no sense.
    #[error("contents: {key} is {found}, expected {expected}")]
    BadSpec {
        /// Field of the specification.
        key: &'static str,
        /// Its value.
        found: u64,
        /// Allowed values.
        expected: &'static str,
    },
    /// [`Keep::Stamps`](super::Keep::Stamps) on a file, which is a raw image of every byte.
    #[error(
        "{path}: keeping stamps only is not supported in a file, which is a raw image; \
         expected keep = everything, or memory"
    )]
    StampsInFile {
        /// The requested file.
        path: PathBuf,
    },
    /// Random contents are stored whole.
    #[error("keeping stamps only is not supported of random contents; expected keep = everything")]
    StampsOfRandom,
    /// The request reaches past the end of the medium.
    #[error("offset {offset_bytes}, {bytes} bytes: outside the capacity of {capacity_bytes} bytes")]
    OutOfRange {
        /// First byte of the request.
        offset_bytes: u64,
        /// Length of the request in bytes.
        bytes: u64,
        /// Length of the medium in bytes.
        capacity_bytes: u64,
    },
    /// The request is not a whole number of whole blocks.
    #[error(
        "offset {offset_bytes}, {bytes} bytes: expected whole blocks of {block_bytes} bytes \
         (capacity {capacity_bytes} bytes)"
    )]
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
    /// The path leads to something other than a regular file; it has not been touched.
    #[error("{path}: expected a regular file or nothing")]
    NotRegular {
        /// The path.
        path: PathBuf,
    },
    /// The file exists with another size; it has not been touched.
    #[error(
        "{path}: the file has {found_bytes} bytes, expected {expected_bytes} (an existing image \
         is never resized)"
    )]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        found_bytes: u64,
        /// Capacity in the specification, in bytes.
        expected_bytes: u64,
    },
    /// A copy would replace this file.
    #[error("{path}: the file exists, expected a new name")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// An image cannot hold a copy of these contents.
    #[error("the drive keeps {found}, of which an image has no copy; expected {expected}")]
    NoCopy {
        /// Kept data that an image has no place for.
        found: &'static str,
        /// Contents that can be copied.
        expected: &'static str,
    },
    /// The contents were closed before all of them were copied.
    #[error("{path}: the drive has ended before its copy, of which nothing is left")]
    CopyEnded {
        /// The image that was to be.
        path: PathBuf,
    },
    /// The contents were written faster than their copy was taken.
    #[error("the copy is {bytes} bytes behind the writes to the drive, expected fewer")]
    CopyBehind {
        /// Bytes in memory that were copied and not taken.
        bytes: u64,
    },
    /// Another [`Contents`](super::Contents), here or in another process, has the file open.
    #[error("{path}: the image is in use, expected to be its only user")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused to prepare the file.
    #[error("{path}: could not {attempt}: {source}")]
    Prepare {
        /// The file.
        path: PathBuf,
        /// The attempted operation, as a verb phrase.
        attempt: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A read failed. Nothing has changed.
    #[error("{path}: reading {bytes} bytes at offset {offset_bytes}: {source}")]
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
    /// A write failed, for example because the disk is full. Bytes of the request before
    /// `offset_bytes` may be new; from there on, and outside the request, nothing has changed.
    #[error("{path}: writing {bytes} bytes at offset {offset_bytes}: {source}")]
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
    /// A flush failed, now or earlier. What was written since the last good flush may be lost even
    /// if it still reads back, and no later flush can tell: the kernel reports a failed write-back
    /// once and may then count the page as clean ("Can Applications Recover from fsync Failures?",
    /// Rebello et al., USENIX ATC 2020). So every flush fails until the file is opened again.
    #[error(
        "{path}: {}: {source}; writes since the last good flush may be lost, open the image again",
        if *earlier { "an earlier flush failed" } else { "flush failed" }
    )]
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
