//! Reports of 16 bytes, for results that a vanishing tag cannot express.

use core::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a report.
pub const BYTES: usize = size_of::<Report>();

/// Result of a command.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct Code(U16);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Code = Code(U16::new($value));)*

            /// Text of the code, if it is defined.
            pub const fn name(self) -> Option<&'static str> {
                match self.0.get() {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// A write is done, or a fence has been passed.
    DONE = 0, "done";
    /// Invalid opcode.
    INVALID_OPCODE = 1, "invalid opcode";
    /// Invalid field.
    INVALID_FIELD = 2, "invalid field";
    /// Range past the end of the device.
    OUT_OF_RANGE = 3, "blocks past the end of the device";
    /// Transfer longer than the limit of a command.
    TOO_LONG = 4, "more bytes than one command may move";
    /// An address outside the host's memory.
    BAD_ADDRESS = 5, "an address outside host memory";
    /// The medium could not be read there.
    UNREADABLE = 6, "the medium cannot be read there";
    /// The medium could not be written there.
    WRITE_FAULT = 7, "the medium cannot be written there";
    /// No space is left behind the medium.
    FULL = 8, "no space is left behind the medium";
    /// The buffer is marked with a tag that the device has replaced: no data were read.
    STALE_TAG = 9, "a tag that the device has replaced";
}

impl Code {
    /// The code as a number.
    pub const fn bits(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "unknown code {:#x}", self.bits()),
        }
    }
}

/// A report ring entry.
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
pub struct Report {
    command: U32,
    slot: U16,
    code: Code,
    reserved: U32,
    number: U32,
}

crate::nvme::layout!(Report, 16, {
    command @ 0, slot @ 4, code @ 6, reserved @ 8, number @ 12,
});

impl Report {
    /// Offset of its last word, the number.
    pub const NUMBER_AT: usize = BYTES - 4;

    /// A report with the given number, on the given command.
    pub fn new(number: u32, command: u32, slot: u16, code: Code) -> Report {
        Report {
            command: command.into(),
            slot: slot.into(),
            code,
            number: number.into(),
            ..Report::default()
        }
    }

    /// Number of the command reported.
    pub fn command(&self) -> u32 {
        self.command.get()
    }

    /// Slot of the command.
    pub fn slot(&self) -> u16 {
        self.slot.get()
    }

    /// Result of the command.
    pub fn code(&self) -> Code {
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dcx_report_round_trip() {
        let report = Report::new(9, 0xffff_fff0, 31, Code::STALE_TAG);
        assert_eq!((report.command(), report.slot()), (0xffff_fff0, 31));
        assert_eq!(report.code().name(), Some("a tag that the device has replaced"));
        assert_eq!(report.as_bytes()[Report::NUMBER_AT..], 9u32.to_le_bytes());
        let unknown = Report { code: Code(77.into()), ..report };
        assert_eq!(unknown.code().name(), None);
    }
}
