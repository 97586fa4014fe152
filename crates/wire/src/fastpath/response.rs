//! The 16 bytes of a response.

use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nvme::status;

/// A response as it lies in memory, or in the registers of an engine in hardware.
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
    /// The request's.
    pub tag: U16,
    status: U16,
    /// NVMe commands that have completed, well or badly.
    pub completed: U32,
    /// From taking the request to its last completion: nanoseconds from an engine in software, cycles
    /// from one in hardware.
    pub took: U64,
}

crate::nvme::layout!(Response, 16, { tag @ 0, status @ 2, completed @ 4, took @ 8 });

/// The bit that tells an engine's refusals and failures from a drive's status.
const ENGINE: u16 = 0x8000;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All of it is done.
    Good,
    /// A command failed on the drive: the status field of the first that did.
    Nvme(status::Status),
    /// The engine refused it, or failed.
    Engine(Refusal),
    /// Neither: an engine of another make.
    Unknown(u16),
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// Why an engine refused a request, or could not end it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Refusal {
            $($(#[$doc])* $name = $value,)*
        }

        impl Refusal {
            /// All of them, by number.
            pub const ALL: &[Refusal] = &[$(Refusal::$name),*];

            /// In words.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Refusal::$name => $text,)*
                }
            }
        }
    };
}

refusals! {
    /// No handle has this number.
    Handle = 1, "no such handle";
    /// The handle's number has another use by now.
    Stale = 2, "a handle that was freed";
    /// The area is not so long.
    Area = 3, "outside the handle's area";
    /// The buffer is not so long.
    Buffer = 4, "outside the handle's DMA buffer";
    /// A size, a block size, or an offset that is no multiple of what it must be.
    Size = 5, "a bad size, block size or alignment";
    /// No such opcode, or a reserved bit.
    Opcode = 6, "a bad opcode or a reserved bit";
    /// The drive did not complete it in time.
    TimeOut = 7, "the drive did not complete it in time";
    /// The bus did not carry it.
    Bus = 8, "a bus error";
    /// The controller failed, or completed what it had not been given.
    Controller = 9, "the controller failed";
    /// A function in the way of the data refused a block.
    Function = 10, "a function in the way of the data refused a block";
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for Refusal {}

impl Status {
    /// As a response carries it.
    pub const fn bits(self) -> u16 {
        match self {
            Status::Good => 0,
            Status::Nvme(status) => status.bits(),
            Status::Engine(refusal) => ENGINE | refusal as u16,
            Status::Unknown(bits) => bits,
        }
    }

    /// What these bits say.
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

    /// Whether all of the request is done.
    pub const fn is_good(self) -> bool {
        matches!(self, Status::Good)
    }
}

/// "LBA Out of Range (status 0x4080, do not retry)", "a handle that was freed".
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
    /// The answer to the request with this tag.
    pub fn new(tag: u16, status: Status, completed: u32, took: u64) -> Response {
        Response {
            tag: tag.into(),
            status: status.bits().into(),
            completed: completed.into(),
            took: took.into(),
        }
    }

    /// How the request ended.
    pub fn status(&self) -> Status {
        Status::from_bits(self.status.get())
    }
}
