//! Error of a client's call.

use bus::OutOfMemory;

use super::directory::{NAME_BYTES, NAMES_MAX};
use host::IoError;
use host::fastpath::OpenError;
use wire::fastpath::Status;

/// Why a client did not get what it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine, or the drive, says so. Never [`Status::Good`].
    #[error("{0}")]
    Answer(Status),
    /// There is no handle.
    #[error("{0}")]
    Open(OpenError),
    /// The length is not a whole number of blocks, in bytes.
    #[error("{0} bytes: one or more whole blocks were expected")]
    Length(u64),
    /// No memory is left that the drive reaches.
    #[error("{0}")]
    Memory(OutOfMemory),
    /// Error of the NVMe driver.
    #[error("{0}")]
    Driver(IoError),
    /// A function or a named area of an engine in another process.
    #[error("functions and named areas are for clients in the engine's own process")]
    Elsewhere,
    /// The name of an area is not valid.
    #[error(
        "found a name that is no name of an area, expected 1 to {} bytes without NUL",
        NAME_BYTES
    )]
    Name,
    /// No area has this name.
    #[error("no area of the drive has this name")]
    NotFound,
    /// The area of this name has an owner.
    #[error("the area of this name is in use: its owner frees it first")]
    InUse,
    /// The area of this name has another length, in blocks.
    #[error("the area of this name has {blocks} blocks, expected as many or a size of 0")]
    OtherLength {
        /// Its length.
        blocks: u64,
    },
    /// The directory is full.
    #[error("the drive has {} named areas, which is the most", NAMES_MAX)]
    Names,
    /// No engine answers at the socket of another process.
    #[error("no engine answers at this socket, expected one that listens")]
    Unreachable,
    /// The engine has ended.
    #[error("the engine has ended")]
    Gone,
}
