//! vfio-user: a PCI function in one process, whoever drives it in another, a socket between them.
//!
//! ```text
//!        client                              server
//!   ┌──────────────┐  socket: messages  ┌─────────────┐   orders    ┌──────────────┐
//!   │ QEMU, or our │ ◄────────────────► │ its session │ ──────────► │ the device's │
//!   │ own driver   │                    │ (a thread)  │ ◄────────── │ thread       │
//!   └──────────────┘                    └─────────────┘   answers   └──────────────┘
//!     client memory  ◄──── mapped: DMA is a copy ────────────────────► table
//!     doorbell page  ◄──── mapped: a store rings ────────────────────► registers
//!     event counters ◄──── written: an interrupt ───────────────────── vectors
//! ```
//!
//! The device's thread owns what it uses on the path of a command: the table of mappings, the vectors.
//! It changes them itself, between two polls of its tasks, when the session has given it an *order*.
//! So no lock is taken on the path, and when an order to unmap is answered nothing is under way that
//! could still touch the memory. Registers that a client does not reach by a mapping are words that
//! session and device share.
//!
//! What comes from a client is hostile until judged: messages in `wire::vfio_user`, addresses in
//! its table, mappings by the guard of SIGBUS. Every wait for a client has a bound.

mod answers;
mod channel;
mod client;
mod device;
mod dma;
mod function;
mod host;
mod mailbox;
mod server;
mod session;
mod setup;
mod table;
mod vectors;
mod version;

use std::fmt;
use std::path::PathBuf;
use std::string::String;

pub use client::{Connection, Sharing, connect};
pub use device::{DeviceEnd, VfioUserDevice, Why};
pub use function::Function;
pub use server::Server;
pub use session::{Ended, Session};

/// What our limits are, and how they relate.
pub mod limits {
    use runtime::Span;

    /// Mappings of clients' memory at once, of all sockets of a process together; each socket has an equal
    /// share. A process has 65,530 of Linux (`vm.max_map_count`, as it comes): the other half is for what it
    /// needs itself, and for what the kernel splits.
    pub const DMA_MAPS_MAX: usize = 32_000;
    /// Descriptors beside one message that we take.
    pub const MESSAGE_FDS_MAX: usize = 8;
    /// Bytes of data in one message, either way.
    pub const TRANSFER_BYTES_MAX: usize = 1 << 20;
    /// Bytes of one message, all in all: data, or capabilities, and what comes before them.
    pub const MESSAGE_BYTES_MAX: usize = TRANSFER_BYTES_MAX + 64;
    /// Messages that wait while an order is under way, and their bytes. A client that has sent more is
    /// not read from until they are done.
    pub const WAITING_MAX: usize = 1024;
    /// See [`WAITING_MAX`].
    pub const WAITING_BYTES_MAX: usize = 4 << 20;
    /// Descriptors beside such messages: the process has only so many.
    pub const WAITING_FDS_MAX: usize = 64;
    /// Interrupt vectors of a function.
    pub const VECTORS: u16 = 64;
    /// How long a client may take for its first message.
    pub const GREETING: Span = crate::listen::GREETING;
    /// How long the rest of a message may take, once it has begun, and how long a peer may leave no
    /// room for one of ours.
    pub const MESSAGE: Span = Span::ms(5_000);
    /// How long a client may take to read or write its memory for us.
    pub const DMA: Span = Span::ms(10_000);
    /// How long a server may take to answer. Longer than it may wait for our memory.
    pub const ANSWER: Span = Span::ms(20_000);

    const _: () = {
        assert!(MESSAGE_FDS_MAX <= crate::fd::FDS_MAX);
        // One message of the largest size fits among those that wait.
        assert!(MESSAGE_BYTES_MAX < WAITING_BYTES_MAX);
        assert!(DMA.0 < ANSWER.0);
        assert!(2 * DMA_MAPS_MAX < 65_530);
    };
}

/// Why two processes do not share a bus, or share it no more.
#[derive(Debug)]
pub struct VfioUserError {
    socket: PathBuf,
    what: String,
}

impl VfioUserError {
    /// What has failed, without the socket's path.
    pub fn reason(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for VfioUserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.socket.display(), self.what)
    }
}

impl core::error::Error for VfioUserError {}
