//! Responses of 16 bytes.

use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nvme::status;

/// A response as it is in memory, or in the registers of an engine in hardware.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Response {
    /// Tag of the request.
    pub tag: U16,
    status: U16,
    /// Number of NVMe commands that have completed, with success or failure.
    pub completed: U32,
    /// Time from taking the request to its last completion: nanoseconds from an engine in software, cycles
    /// from one in hardware.
    pub took: U64,
}

crate::nvme::layout!(Response, 16, { tag @ 0, status @ 2, completed @ 4, took @ 8 });

/// Set for errors of the engine, clear for NVMe status fields.
const ENGINE: u16 = 0x8000;

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All commands succeeded.
    Good,
    /// A command failed on the drive: status field of the first failure.
    Nvme(status::Status),
    /// The engine rejected the request or failed.
    Engine(Refusal),
    /// An undefined value, from another implementation.
    Unknown(u16),
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// Reason why an engine rejected a request or could not complete it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Refusal {
            $($(#[$doc])* $name = $value,)*
        }

        impl Refusal {
            /// All reasons, in numeric order.
            pub const ALL: &[Refusal] = &[$(Refusal::$name),*];

            /// Text of the reason.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Refusal::$name => $text,)*
                }
            }
        }
    };
}

refusals! {
    /// Unknown handle.
    Handle = 1, "no such handle";
    /// The handle's number has been reused or freed.
    Stale = 2, "a handle that was freed";
    /// Range beyond the handle's area.
    Area = 3, "outside the handle's area";
    /// Range beyond the handle's buffer.
    Buffer = 4, "outside the handle's DMA buffer";
    /// Invalid size, block size or alignment.
    Size = 5, "a bad size, block size or alignment";
    /// Invalid opcode, or a reserved bit is set.
    Opcode = 6, "a bad opcode or a reserved bit";
    /// The drive did not complete it in time.
    TimeOut = 7, "the drive did not complete it in time";
    /// Bus error.
    Bus = 8, "a bus error";
    /// The controller failed, or completed a command not in flight.
    Controller = 9, "the controller failed";
    /// A function on the data path rejected a block.
    Function = 10, "a function in the way of the data refused a block";
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for Refusal {}

impl Status {
    /// Encodes the status.
    pub const fn bits(self) -> u16 {
        match self {
            Status::Good => 0,
            Status::Nvme(status) => status.bits(),
            Status::Engine(refusal) => ENGINE | refusal as u16,
            Status::Unknown(bits) => bits,
        }
    }

    /// Decodes the status.
    pub fn from_bits(bits: u16) -> Status {
        if bits & ENGINE != 0 {
            let known = Refusal::ALL.iter().find(|refusal| **refusal as u16 == bits & !ENGINE);
            return known.map_or(Status::Unknown(bits), |refusal| Status::Engine(*refusal));
        }
        match status::Status::from_bits(bits) {
            status if status.bits() == 0 => Status::Good,
            status => Status::Nvme(status),
        }
    }

    /// True if the whole request succeeded.
    pub const fn is_good(self) -> bool {
        matches!(self, Status::Good)
    }
}

/// Examples: "LBA Out of Range (status 0x4080, do not retry)", "a handle that was freed".
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Good => f.write_str("good"),
            Status::Nvme(status) => status.fmt(f),
            Status::Engine(refusal) => refusal.fmt(f),
            Status::Unknown(bits) => write!(f, "unknown status {bits:#06x}"),
        }
    }
}

impl Response {
    /// A response to the request with this tag.
    pub fn new(tag: u16, status: Status, completed: u32, took: u64) -> Response {
        Response {
            tag: tag.into(),
            status: status.bits().into(),
            completed: completed.into(),
            took: took.into(),
        }
    }

    /// Result of the request.
    pub fn status(&self) -> Status {
        Status::from_bits(self.status.get())
    }
}
