//! Descriptors of 32 bytes.

use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::BusAddr;

/// Bytes of a descriptor.
pub const BYTES: usize = size_of::<Descriptor>();

/// Bytes that every descriptor moves: a page of Linux, and one bio. A command may need fewer; the rest is
/// padding.
pub const PAGE_BYTES: u32 = 4096;

/// Offset of the control word, which holds the owner of a descriptor.
pub const CONTROL_AT: usize = BYTES - 4;

/// Owner of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The host: the descriptor is empty or a response.
    Host,
    /// The device: the descriptor is a command.
    Device,
}

/// Operation of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// To host memory.
    Read,
    /// From host memory.
    Write {
        /// Forced to the medium before the response. Our extension.
        fua: bool,
    },
    /// Makes durable all writes answered before it was announced. Our extension; it moves no data.
    Flush,
}

/// Status of a completed command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Status(u8);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status($value);)*

            /// Text of the status, if it is defined.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// Success.
    DONE = 0, "done";
    /// Invalid field.
    INVALID_FIELD = 1, "invalid field";
    /// Range past the end of the device.
    OUT_OF_RANGE = 2, "bytes past the end of the device";
    /// An address outside the host's memory.
    BAD_ADDRESS = 3, "an address outside host memory";
    /// The medium could not be read there.
    UNREADABLE = 4, "the medium cannot be read there";
    /// The medium could not be written there.
    WRITE_FAULT = 5, "the medium cannot be written there";
    /// No space is left behind the medium.
    FULL = 6, "no space is left behind the medium";
}

impl Status {
    /// The status as a number.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The status with the given number.
    pub const fn from_bits(bits: u8) -> Status {
        Status(bits)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "unknown status {:#x}", self.0),
        }
    }
}

const READ: u8 = 1;
const WRITE: u8 = 2;
const WRITE_THROUGH: u8 = 3;
const FLUSH: u8 = 4;

const OF_DEVICE: u8 = 1 << 0;
const RESPONSE: u8 = 1 << 1;

/// Control word: the last word of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Owned by the host, and empty.
    Empty,
    /// Owned by the device: a command, with the low half of its count.
    Command {
        /// Operation number.
        operation: u8,
        /// Low half of the count.
        count: u16,
    },
    /// Owned by the host: a response to the command with this count.
    Response {
        /// Operation number of the command.
        operation: u8,
        /// Status of the command.
        status: Status,
        /// Low half of the count.
        count: u16,
    },
    /// A value that neither side stores.
    Nonsense,
}

impl Control {
    /// Decodes the word.
    pub const fn parse(word: u32) -> Control {
        let [flags, operation, low, high] = word.to_le_bytes();
        let count = u16::from_le_bytes([low, high]);
        match flags {
            0 if word == 0 => Control::Empty,
            OF_DEVICE => Control::Command { operation, count },
            flags if flags & 0xf == RESPONSE && operation != 0 => {
                Control::Response { operation, status: Status(flags >> 4), count }
            }
            _ => Control::Nonsense,
        }
    }

    /// Encodes the word.
    pub const fn word(self) -> u32 {
        let (flags, operation, count) = match self {
            Control::Empty => return 0,
            Control::Command { operation, count } => (OF_DEVICE, operation, count),
            Control::Response { operation, status, count } => {
                (RESPONSE | status.0 << 4, operation, count)
            }
            Control::Nonsense => return u32::MAX,
        };
        let [low, high] = count.to_le_bytes();
        u32::from_le_bytes([flags, operation, low, high])
    }

    /// Owner of the descriptor; `None` if the word is invalid.
    pub const fn owner(self) -> Option<Owner> {
        match self {
            Control::Empty | Control::Response { .. } => Some(Owner::Host),
            Control::Command { .. } => Some(Owner::Device),
            Control::Nonsense => None,
        }
    }
}

/// A descriptor as it is in memory.
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
pub struct Descriptor {
    address: U64,
    offset: U64,
    bytes: U16,
    reserved: [u8; 10],
    control: U32,
}

crate::nvme::layout!(Descriptor, 32, {
    address @ 0, offset @ 8, bytes @ 16, reserved @ 18, control @ 28,
});

/// A command with valid fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Operation.
    pub operation: Operation,
    /// Address of [`PAGE_BYTES`] bytes in host memory: a multiple of four.
    pub at: BusAddr,
    /// Offset on the device, bytes.
    pub offset: u64,
    /// Number of bytes in use; those behind are padding.
    pub bytes: u32,
}

impl Operation {
    /// The operation as a number.
    pub const fn bits(self) -> u8 {
        match self {
            Operation::Read => READ,
            Operation::Write { fua: false } => WRITE,
            Operation::Write { fua: true } => WRITE_THROUGH,
            Operation::Flush => FLUSH,
        }
    }

    const fn parse(bits: u8) -> Option<Operation> {
        match bits {
            READ => Some(Operation::Read),
            WRITE => Some(Operation::Write { fua: false }),
            WRITE_THROUGH => Some(Operation::Write { fua: true }),
            FLUSH => Some(Operation::Flush),
            _ => None,
        }
    }
}

impl Descriptor {
    /// A descriptor for the command with this count, owned by the device.
    pub fn command(count: u32, command: &Command) -> Descriptor {
        let operation = command.operation.bits();
        Descriptor {
            address: command.at.0.into(),
            offset: command.offset.into(),
            bytes: (command.bytes as u16).into(),
            reserved: [0; 10],
            control: Control::Command { operation, count: count as u16 }.word().into(),
        }
    }

    /// The same descriptor as a response, owned by the host.
    pub fn answered(self, status: Status) -> Descriptor {
        let control = match self.control() {
            Control::Command { operation, count } => Control::Response { operation, status, count },
            other => other,
        };
        Descriptor { control: control.word().into(), ..self }
    }

    /// Its control word, decoded.
    pub fn control(&self) -> Control {
        Control::parse(self.control.get())
    }

    /// Returns the status if this is the response to the given command.
    pub fn answers(&self, count: u32, command: &Command) -> Option<Status> {
        let asked = Descriptor::command(count, command);
        match self.control() {
            Control::Response { status, .. } if *self == asked.answered(status) => Some(status),
            _ => None,
        }
    }

    /// Decodes the command, or returns the status with which to reject it.
    pub fn parse(&self) -> Result<Command, Status> {
        let Control::Command { operation, .. } = self.control() else {
            return Err(Status::INVALID_FIELD);
        };
        let operation = Operation::parse(operation).ok_or(Status::INVALID_FIELD)?;
        let command = Command {
            operation,
            at: BusAddr(self.address.get()),
            offset: self.offset.get(),
            bytes: u32::from(self.bytes.get()),
        };
        let moves = operation != Operation::Flush;
        let whole = (1..=PAGE_BYTES).contains(&command.bytes) && command.at.0.is_multiple_of(4);
        let sense = if moves { whole } else { command.bytes == 0 };
        if sense && self.reserved == [0; 10] { Ok(command) } else { Err(Status::INVALID_FIELD) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_OF: Command = Command {
        operation: Operation::Read,
        at: BusAddr(0x1_0000_0200),
        offset: 0x12_3456_7800,
        bytes: 512,
    };

    #[test]
    fn descriptor_round_trip_and_response() {
        let whole = Command { bytes: PAGE_BYTES, ..READ_OF };
        let write = |fua| Command { operation: Operation::Write { fua }, ..READ_OF };
        let flush = Command { operation: Operation::Flush, bytes: 0, ..READ_OF };
        for command in [READ_OF, whole, write(true), write(false), flush] {
            let built = Descriptor::command(0x1_ffff, &command);
            assert_eq!(built.parse(), Ok(command));
            assert_eq!(built.control().owner(), Some(Owner::Device));
            assert_eq!(built.answers(0x1_ffff, &command), None, "a command is no answer");
            for status in [Status::DONE, Status::FULL] {
                let back = built.answered(status);
                assert_eq!(back.control().owner(), Some(Owner::Host));
                assert_eq!(back.answers(0x1_ffff, &command), Some(status));
                assert_eq!(back.answers(0x1_fffe, &command), None, "another use of the place");
                assert_eq!(back.answers(0x1_ffff, &Command { offset: 0, ..command }), None);
                assert_eq!(Control::parse(back.control().word()), back.control());
            }
        }
    }

    #[test]
    fn parse_rejects_invalid_descriptors() {
        let good = Descriptor::command(0, &READ_OF);
        let word = |operation| Control::Command { operation, count: 0 }.word();
        let refused = [
            Descriptor { bytes: 0.into(), ..good },
            Descriptor { bytes: 4097.into(), ..good },
            Descriptor { address: 2.into(), ..good },
            Descriptor { reserved: [1; 10], ..good },
            Descriptor { control: word(0).into(), ..good },
            Descriptor { control: word(5).into(), ..good },
            Descriptor { control: word(FLUSH).into(), ..good },
            good.answered(Status::DONE),
            Descriptor::default(),
        ];
        for descriptor in refused {
            assert_eq!(descriptor.parse(), Err(Status::INVALID_FIELD), "{descriptor:?}");
        }
        assert_eq!(Control::parse(0), Control::Empty);
        assert_eq!(Control::parse(4).owner(), None);
        assert_eq!(Control::parse(u32::MAX), Control::Nonsense);
        assert_eq!(Status::from_bits(9).name(), None);
    }
}
