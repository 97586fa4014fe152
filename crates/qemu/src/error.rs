//! Errors of a machine, and failures of its checks.

use bus::OutOfMemory;
use bus::qtest::QtestError;
use host::pci::{RouteError, Trouble, VectorError};
use host::{InitError, IoError};
use runtime::Span;
use wire::mp::MpError;

/// Why a machine cannot be driven, or a check has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QemuError {
    /// QEMU cannot be reached, or has refused a request.
    #[error(transparent)]
    Machine(#[from] QtestError),
    /// The board is not supported.
    #[error("its host bridge is {vendor:04x}:{device:04x}, expected QEMU's pc or q35")]
    Board {
        /// PCI vendor of the host bridge.
        vendor: u32,
        /// PCI device of the host bridge.
        device: u32,
    },
    /// The MP table is invalid.
    #[error(transparent)]
    Table(#[from] MpError),
    /// There is no NVMe device to drive.
    #[error("the machine has no NVMe device")]
    NoNvme,
    /// A function cannot be enabled.
    #[error(transparent)]
    Pci(#[from] Trouble),
    /// A function's vectors cannot be set.
    #[error(transparent)]
    Vectors(#[from] VectorError),
    /// A function's pin is not routed.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// BAR 0 of an NVMe device has no address.
    #[error("BAR 0 is not there")]
    NoRegisters,
    /// A BAR of a USB controller has no address.
    #[error("BAR {bar} has no place")]
    NoPlace { bar: u8 },
    /// Memory is beyond the address range of the controller.
    #[error("memory at {at:#x}, expected below 4 GiB")]
    MemoryTooHigh { at: u64 },
    /// The memory for drivers is exhausted.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// The NVMe driver failed to start or stop.
    #[error(transparent)]
    Init(#[from] InitError),
    #[error(transparent)]
    Io(#[from] IoError),
    /// A read returned other contents than were written.
    #[error(
        "LBA {lba}: expected what was written the {generation}th time, found {:02x?}...",
        &found[..]
    )]
    Contents {
        /// The block.
        lba: u64,
        /// Number of writes to the block.
        generation: u32,
        /// The first bytes of the block.
        found: [u8; 16],
    },
    /// Commands timed out, or completions were invalid.
    #[error("{commands} commands were late, or answered without sense")]
    Late { commands: u64 },
    /// A function's interrupt did not arrive at its line, or others were raised.
    #[error("{way}: input {predicted} predicted, {raised:?} raised{}", after(.why.as_deref()))]
    Line {
        /// Pin and bridges of the function.
        way: String,
        predicted: u8,
        raised: Vec<u8>,
        /// Error of the function's work.
        why: Option<Box<QemuError>>,
    },
    /// An operation failed before the device was removed.
    #[error("before it happened: {0}")]
    BeforeRemoval(IoError),
    /// Not all operations ended after the removal.
    #[error("{ended} of {all} reads have ended within {within}")]
    NotEnded {
        /// Number of operations that ended.
        ended: usize,
        all: u16,
        within: Span,
    },
    /// An operation ended with an error other than the removal.
    #[error("a read has ended with: {0}")]
    OtherEnd(IoError),
    /// An operation after the removal did not fail as removed.
    #[error("a later read ended with {result:?}, {after}")]
    LaterRead { result: Result<(), IoError>, after: Span },
    /// Another check has found something else than it expects; the text is what it found.
    #[error("{0}")]
    Found(String),
}

fn after(why: Option<&QemuError>) -> String {
    why.map_or_else(String::new, |why| format!(", {why}"))
}
