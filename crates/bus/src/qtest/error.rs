//! Errors of a machine.

use std::io;
use std::path::PathBuf;
use std::string::String;
use std::sync::Arc;

use super::ANSWER;

/// Error of a machine: its socket, its memory file, or an answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QtestError {
    /// The memory file cannot be opened.
    #[error("{file}: opening: {error}")]
    Open {
        /// Path of the file.
        file: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The memory file cannot be mapped.
    #[error("{file}: {error}")]
    Map {
        /// Path of the file.
        file: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The memory file has no part for drivers.
    #[error("{file}: {bytes} bytes, expected more than {reserved}")]
    TooShort {
        /// Path of the file.
        file: PathBuf,
        /// Length of the file.
        bytes: u64,
        /// Length of the part that is not for drivers.
        reserved: u64,
    },
    /// No machine listens at the socket.
    #[error("{socket}: connecting: {error}")]
    Connect {
        /// Path of the socket.
        socket: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// QEMU has answered with an error. The text is its line.
    #[error("{0}")]
    Refused(String),
    /// QEMU has answered OK with a value that is not a number of 64 bits. The text is its line.
    #[error("{0:?}: expected OK, alone or with a number of 64 bits")]
    Malformed(String),
    /// The machine does not answer any more.
    #[error(transparent)]
    Gone(#[from] Arc<Gone>),
}

/// Reason why a machine does not answer any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Gone {
    /// The file of its memory was truncated.
    #[error("the file of its memory was cut short")]
    MemoryLost,
    /// QEMU has closed the connection or died.
    #[error("the machine has ended")]
    Ended,
    /// The driver has closed the connection.
    #[error("it was closed")]
    Closed,
    /// A command cannot be sent.
    #[error("sending {command:?}: {error}")]
    Send {
        /// The command.
        command: String,
        /// Error of the system.
        error: io::Error,
    },
    /// No line can be received.
    #[error("its socket: {0}")]
    Receive(io::Error),
    /// A line is not qtest's.
    #[error("{0:?}: expected OK, FAIL, ERR or IRQ")]
    Line(String),
    /// A command was not answered in time.
    #[error("no answer to {command:?} within {}", ANSWER)]
    NoAnswer {
        /// The command.
        command: String,
    },
}
