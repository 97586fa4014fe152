//! The 32 bytes of a descriptor.

use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::BusAddr;

/// Bytes of a descriptor.
pub const BYTES: usize = size_of::<Descriptor>();

/// Bytes that every descriptor moves: a page of Linux, and one bio. What counts of them may be less; the
/// rest is padding.
pub const PAGE_BYTES: u32 = 4096;

/// Where the word lies that says whose a descriptor is.
pub const CONTROL_AT: usize = BYTES - 4;

/// Whose a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The host's: empty, or a response.
    Host,
    /// The device's: a command.
    Device,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// To host memory.
    Read,
    /// From host memory.
    Write {
        /// On the medium itself when it is answered. Ours.
        fua: bool,
    },
    /// Makes durable what was answered before it was announced. Ours: it moves nothing.
    Flush,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Status(u8);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Status = Status($value);)*

            /// In words.
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
    /// As it should.
    DONE = 0, "done";
    /// A field makes no sense.
    INVALID_FIELD = 1, "invalid field";
    /// Bytes that the device does not have.
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
    /// The number.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The status of this number.
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

/// The last word of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The host's, and empty.
    Empty,
    /// The device's: a command, with the low half of its place's count.
    Command {
        /// What is asked for, as a number.
        operation: u8,
        /// The low half of the count.
        count: u16,
    },
    /// The host's: a response to the command of that count.
    Response {
        /// What was asked for, as a number.
        operation: u8,
        /// How it ended.
        status: Status,
        /// The low half of the count.
        count: u16,
    },
    /// Nothing that either side would store.
    Nonsense,
}

impl Control {
    /// What the word says.
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

    /// The word.
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

    /// Whose the descriptor is.
    pub const fn owner(self) -> Option<Owner> {
        match self {
            Control::Empty | Control::Response { .. } => Some(Owner::Host),
            Control::Command { .. } => Some(Owner::Device),
            Control::Nonsense => None,
        }
    }
}

/// A descriptor, as it lies in memory.
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

/// A command that makes sense by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What is asked for.
    pub operation: Operation,
    /// Where [`PAGE_BYTES`] bytes lie in host memory: a multiple of four.
    pub at: BusAddr,
    /// Where they lie in the device, in bytes.
    pub offset: u64,
    /// How many of them count; those behind are padding.
    pub bytes: u32,
}

impl Operation {
    /// Its number.
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
    /// The command of this count: the device's.
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

    /// The same, answered: the host's.
    pub fn answered(self, status: Status) -> Descriptor {
        let control = match self.control() {
            Control::Command { operation, count } => Control::Response { operation, status, count },
            other => other,
        };
        Descriptor { control: control.word().into(), ..self }
    }

    /// Its last word.
    pub fn control(&self) -> Control {
        Control::parse(self.control.get())
    }

    /// Whether this is what that command becomes when it is answered, and how it ended.
    pub fn answers(&self, count: u32, command: &Command) -> Option<Status> {
        let asked = Descriptor::command(count, command);
        match self.control() {
            Control::Response { status, .. } if *self == asked.answered(status) => Some(status),
            _ => None,
        }
    }

    /// What it asks for, or how it is to be refused.
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
    fn what_is_built_is_parsed_and_answered() {
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
    fn what_makes_no_sense_is_refused() {
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
