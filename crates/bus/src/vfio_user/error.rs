//! Errors of connections and servers.

use std::io;
use std::path::{Path, PathBuf};
use std::string::String;

use wire::BusAddr;
use wire::pci::WrongFunction;
use wire::vfio_user::{DeviceInfo, Header, SparseArea, VERSION_MAJOR, VERSION_MINOR, Version};

use super::limits;
use crate::fd::FDS_MAX;
use crate::listen::{AcceptError, ListenError};

/// Error of a vfio-user connection or server.
#[derive(Debug, thiserror::Error)]
#[error("{}: {kind}", socket.display())]
pub struct VfioUserError {
    /// Path of the server's socket.
    pub socket: PathBuf,
    /// The cause.
    pub kind: VfioUserErrorKind,
}

/// Cause of a [`VfioUserError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfioUserErrorKind {
    /// The path cannot be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// There is no next client; a further attempt may succeed.
    #[error(transparent)]
    Accept(#[from] AcceptError<SessionError>),
    /// No server listens at the path.
    #[error("connecting: {0}")]
    Connect(io::Error),
    /// The host memory cannot be allocated.
    #[error("memory for the host: {0}")]
    Memory(io::Error),
    /// A descriptor or a thread of the connection cannot be made.
    #[error("connecting: {0}")]
    Start(SessionError),
    /// The function cannot be set up.
    #[error("setting up the device: {0}")]
    SetUp(SessionError),
}

impl VfioUserErrorKind {
    pub(super) fn at(self, socket: &Path) -> VfioUserError {
        VfioUserError { socket: socket.into(), kind: self }
    }
}

/// Why a session with the other process does not begin, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// A system call failed.
    #[error("{doing}: {error}")]
    System {
        /// The step, or the resource that it needs.
        doing: &'static str,
        /// Error of the system.
        error: io::Error,
    },
    /// The peer has closed the connection before a message could be sent.
    #[error("the other end has closed the connection")]
    Closed,
    /// The peer has closed the connection in the middle of a message.
    #[error("the other end has gone in the middle of a message")]
    CutOff,
    /// The peer does not send or receive in time: see [`limits::MESSAGE`].
    #[error("the other end keeps us waiting for {expected}")]
    Stalled {
        /// The awaited event.
        expected: &'static str,
    },
    /// A message has more descriptors than the system passes at once.
    #[error("more than {} descriptors beside one message", FDS_MAX)]
    TooManyDescriptors,
    /// The length in a message's header is invalid.
    #[error(
        "a message of {bytes} bytes: {} to {} were expected",
        Header::BYTES,
        limits::MESSAGE_BYTES_MAX
    )]
    MessageLength {
        /// Length of the message, header included.
        bytes: usize,
    },
    /// A payload is shorter than its structure.
    #[error("{what}: {bytes} bytes, at least {expected} were expected")]
    TooShort {
        /// The structure.
        what: &'static str,
        /// Length of the payload.
        bytes: usize,
        /// Length of the structure.
        expected: usize,
    },
    /// A message is neither a command nor a reply.
    #[error("a message with flags {flags:#x}: neither command nor reply")]
    Flags {
        /// Flags of the message's header.
        flags: u32,
    },
    /// A reply has the ID of no message that waits for one.
    #[error("it replies to message {id}, which was not sent")]
    UnknownReply {
        /// ID of the reply.
        id: u16,
    },
    /// The peer's limits are invalid.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The client has closed the connection before its first message.
    #[error("the client has gone")]
    ClientGone,
    /// The client's first message does not propose a version.
    #[error("its first message is not the version's")]
    NoVersion,
    /// The client proposes another version.
    #[error("it speaks version {major}.{minor}, this is {VERSION_MAJOR}.x")]
    ClientVersion {
        /// Major version of the client.
        major: u16,
        /// Minor version of the client.
        minor: u16,
    },
    /// The client does not reply to an access to its memory: see [`limits::DMA`].
    #[error(
        "it does not answer: {bytes} bytes of its memory at {:#x} were asked for {} ago",
        at.0,
        limits::DMA
    )]
    NoReply {
        /// Bus address of the access.
        at: BusAddr,
        /// Length of the access.
        bytes: u64,
    },
    /// A file that the client has shared was truncated, or the kernel has no page for it.
    #[error("the file behind its memory at {:#x} was cut short, or has no more pages", at.0)]
    MemoryLost {
        /// Bus address of a failed access.
        at: BusAddr,
    },
    /// The server has rejected a command.
    #[error("command {command} was refused with error {errno}")]
    Refused {
        /// Number of the command.
        command: u16,
        /// Error number in the reply.
        errno: u32,
    },
    /// The server does not reply to a command: see [`limits::ANSWER`].
    #[error("no answer to command {command} within {}", limits::ANSWER)]
    NoAnswer {
        /// Number of the command.
        command: u16,
    },
    /// The server has closed the connection, or has broken the protocol.
    #[error("the server has gone before it answered command {command}")]
    ServerGone {
        /// Number of the command in progress.
        command: u16,
    },
    /// The server has agreed to a version that was not proposed.
    #[error("{0:?}: {VERSION_MAJOR}.{VERSION_MINOR} was proposed")]
    ServerVersion(Version),
    /// The server's device is no PCI function.
    #[error("{0:?}: a PCI function was expected")]
    NotPci(DeviceInfo),
    /// The server's function is not the driver's.
    #[error(transparent)]
    Kind(#[from] WrongFunction),
    /// The register window has no valid length.
    #[error("a window of {bytes} bytes: 1 to {max} were expected")]
    WindowLength {
        /// Length of the window.
        bytes: u64,
        /// Maximum length of a window.
        max: u64,
    },
    /// A mappable area leaves its window, or does not consist of whole pages.
    #[error("{area:?} of {bytes} bytes")]
    Area {
        /// The area.
        area: SparseArea,
        /// Length of the window.
        bytes: u64,
    },
    /// The list of mappable areas does not fit its message, or is too long.
    #[error("{count} areas in {bytes} bytes")]
    Areas {
        /// Number of areas that the list announces.
        count: usize,
        /// Length of the list.
        bytes: usize,
    },
    /// The chain of capabilities of a region leaves its message.
    #[error("a capability outside the answer")]
    Capability,
    /// A read of the configuration space has another length than requested.
    #[error("{bytes} bytes of configuration space")]
    ConfigLength {
        /// Length of the reply.
        bytes: usize,
    },
}

impl SessionError {
    /// Adds the failed step to an error of the system.
    pub(super) fn system(doing: &'static str) -> impl Fn(io::Error) -> SessionError {
        move |error| SessionError::System { doing, error }
    }
}

/// Error in the limits that a peer sends with its version.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// The text is not JSON.
    #[error("the capabilities are not JSON: {0}")]
    NotJson(serde_json::Error),
    /// A limit is not a number of at least 0.
    #[error("{name} is {value}: a number was expected")]
    NotANumber {
        /// Name of the limit.
        name: &'static str,
        /// Its value, as JSON.
        value: String,
    },
    /// Messages could carry no data.
    #[error("max_data_xfer_size is 0: at least 1 was expected")]
    NoTransfer,
    /// Pages of 4096 bytes are not supported.
    #[error("pgsizes is {pages:#x}: pages of 4096 bytes were expected among them")]
    Pages {
        /// Bit set of page sizes, in bytes.
        pages: u64,
    },
}
