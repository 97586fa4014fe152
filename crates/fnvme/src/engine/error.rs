//! Error of a client's call.

use bus::OutOfMemory;
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
    /// A function was to be passed by an engine in another process.
    #[error("functions pass in the engine's own process alone")]
    Elsewhere,
    /// No engine answers at the socket of another process.
    #[error("no engine answers at this socket, expected one that listens")]
    Unreachable,
    /// The engine has ended.
    #[error("the engine has ended")]
    Gone,
}
