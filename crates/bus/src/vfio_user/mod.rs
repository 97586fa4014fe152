//! vfio-user: a PCI function in one process, its driver in another, connected by a socket.
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
//! The device's thread owns the state on the path of a command: the table of mappings, the vectors. It
//! changes them itself, between two polls of its tasks, on an *order* from the session. So the path takes
//! no lock, and when an order to unmap is answered no access to the memory is in flight. Registers that a
//! client cannot map are words shared by session and device.
//!
//! All input from a client is treated as hostile: `wire::vfio_user` validates messages, the table validates
//! addresses, the SIGBUS guard protects mappings. Every wait for a client has a timeout.
//!
//! # Several device threads
//!
//! The queues of one controller can be divided among threads: each has a device end, with a table, vectors
//! and a mailbox of its own. An order that changes what the device can reach or signal goes to all of them,
//! and the client's request is answered after the last of their answers. A reset or the loss of the client
//! stops the first device end; the owner of the threads stops the others. On the path of a command, threads
//! write no common memory except the client's and the registers.
//!
//! # Ownership
//!
//! Every copy is done within one poll of a device task, and orders are carried out between polls, so no copy
//! is half done when a mapping changes, and none has to be drained. An access by messages can be half done:
//! the answer to an order waits for those that began before it. The session begins a command after the answer
//! to the previous one, but handles replies at once, because the device may need one to carry out the current
//! order.
//!
//! # Registers
//!
//! The session alone answers a client's register reads from the shared words. The doorbell page is a file of
//! its own, created again for each client. The function defines which registers a host may write, so the
//! controller never sees a read-only register change. CC.EN = 0 is such a word: the host learns from CSTS.RDY
//! that no write to its memory is left, as on any other bus.
//!
//! # Reset and disconnect
//!
//! A reset drops the device's tasks with their executor, and starts a new controller on the same table and
//! vectors: no task of the old one is left that could reach the client. A client's death is the same without
//! a new controller. The medium passes from controller to controller.
//!
//! # Interrupts
//!
//! An interrupt is a write to an eventfd by the device's thread, the only system call on the path of a
//! command. A write that blocks shows that the client has tampered with the counter; the session unblocks it.
//!
//! # Failing memory
//!
//! A mapping of a peer's file may fault at any moment. `guard.rs` protects all such mappings.
//!
//! The crate `vfio_user` is not used: its server has no DMA by messages, serves one connection and then
//! returns, and owns its event loop.

mod answers;
mod channel;
mod client;
mod device;
mod dma;
mod error;
mod function;
mod host;
mod mailbox;
mod server;
mod session;
mod setup;
mod state;
mod table;
mod vectors;
mod version;

pub use client::Connection;
pub use device::{DeviceEnd, VfioUserDevice, Why};
pub use error::{LimitsError, SessionError, VfioUserError, VfioUserErrorKind};
pub use function::Function;
pub use server::Server;
pub use session::{Ended, Session};
pub use setup::{Sharing, connect};

/// Limits of messages, mappings and waits.
pub mod limits {
    use runtime::Span;

    /// Maximum number of mapped regions of clients' memory in a process; each socket has an equal share.
    /// Linux allows 65,530 mappings per process (`vm.max_map_count`, default): the other half is for the
    /// process itself, and for mappings split by the kernel.
    pub const DMA_MAPS_MAX: usize = 32_000;
    /// Maximum number of descriptors accepted with one message.
    pub const MESSAGE_FDS_MAX: usize = 8;
    /// Maximum bytes of data in one message, in either direction.
    pub const TRANSFER_BYTES_MAX: usize = 1 << 20;
    /// Maximum length of a message in bytes: data or capabilities, and the structures before them.
    pub const MESSAGE_BYTES_MAX: usize = TRANSFER_BYTES_MAX + 64;
    /// Maximum number of messages queued while an order is in progress. The session stops reading from a
    /// client that exceeds it.
    pub const WAITING_MAX: usize = 1024;
    /// Maximum bytes of queued messages; see [`WAITING_MAX`].
    pub const WAITING_BYTES_MAX: usize = 4 << 20;
    /// Maximum number of descriptors in queued messages: they count against the limit of the process.
    pub const WAITING_FDS_MAX: usize = 64;
    /// Number of interrupt vectors of a function.
    pub const VECTORS: u16 = 64;
    /// Timeout of a client's first message.
    pub const GREETING: Span = crate::listen::GREETING;
    /// Timeout of the rest of a message after its first byte, and of sending to a peer that does not read.
    pub const MESSAGE: Span = Span::ms(5_000);
    /// Timeout of a client's reply to an access to its memory.
    pub const DMA: Span = Span::ms(10_000);
    /// Timeout of a server's reply. Longer than its own wait for our memory ([`DMA`]).
    pub const ANSWER: Span = Span::ms(20_000);

    const _: () = {
        assert!(MESSAGE_FDS_MAX <= crate::fd::FDS_MAX);
        // One message of maximum size fits the queue.
        assert!(MESSAGE_BYTES_MAX < WAITING_BYTES_MAX);
        assert!(DMA.0 < ANSWER.0);
        assert!(2 * DMA_MAPS_MAX < 65_530);
    };
}
