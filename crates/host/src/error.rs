//! What a caller can act on: why an operation failed, and why a device could not be started.

use core::fmt;

use bus::OutOfMemory;
use runtime::Span;
use wire::Lba;
use wire::block::descriptor;
use wire::dcx::report::Code;
use wire::nvme::pi::Mismatch;
use wire::nvme::status::{CodeType, Status};
use wire::scsi::sense::Sense;

/// What went wrong, as far as it makes a difference to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The request makes no sense, to the driver or to the device: it would fail again.
    Refused,
    /// There is no such command, on the device or on the way to it.
    Unsupported,
    /// Blocks beyond the device's capacity.
    OutOfRange,
    /// The device has no space left for what was to be written.
    Full,
    /// No completion in time, however often it was tried.
    TimedOut,
    /// The medium could not store the data, or give it back.
    MediaFailed,
    /// What was read or was to be written is not what its protection information says, or not of that place.
    Corrupted,
    /// The device has failed for a reason that lies neither in the request nor in the medium.
    DeviceFailed,
    /// The controller was reset under the command more often than it is tried again.
    Reset,
    /// The device does not answer any more. Nothing will succeed on it.
    Gone,
    /// The driver was shut down.
    Closed,
    /// No memory is left that the device could reach.
    OutOfMemory,
}

/// Why a read, a write or a flush failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoError {
    /// What the caller can act on.
    pub kind: Kind,
    /// The first block of the operation, or the one whose protection information differs; none for a flush.
    pub lba: Option<Lba>,
    /// What the device said, if it was the device that said it.
    pub status: Option<Status>,
    /// What of a block's protection information the host has found to differ.
    pub mismatch: Option<Mismatch>,
    /// What a device of DC Express said.
    pub report: Option<Code>,
    /// What a device of descriptor blocks said.
    pub answer: Option<descriptor::Status>,
    /// What a SCSI unit said.
    pub sense: Option<Sense>,
    /// What was expected, if it was the driver that refused.
    pub why: Option<&'static str>,
}

impl IoError {
    /// An error that a driver itself has found.
    pub const fn of(kind: Kind, lba: Option<Lba>) -> IoError {
        let (status, mismatch, report, answer, sense) = (None, None, None, None, None);
        IoError { kind, lba, status, mismatch, report, answer, sense, why: None }
    }

    /// A request that a driver doesn't send, and what it expected.
    pub const fn refused(kind: Kind, lba: Lba, why: &'static str) -> IoError {
        IoError { why: Some(why), ..IoError::of(kind, Some(lba)) }
    }

    /// The same, of the block with this number.
    #[must_use]
    pub const fn at(self, lba: Lba) -> IoError {
        IoError { lba: Some(lba), ..self }
    }

    /// The same, with the sense data that a SCSI target gave.
    #[must_use]
    pub const fn with_sense(self, sense: Sense) -> IoError {
        IoError { sense: Some(sense), ..self }
    }

    /// What the device answered.
    pub fn answered(status: Status, lba: Option<Lba>) -> IoError {
        IoError { status: Some(status), ..IoError::of(kind_of(status), lba) }
    }

    /// A block that the host has found to be another than its protection information says.
    pub(crate) fn mismatched(mismatch: Mismatch, lba: Lba) -> IoError {
        IoError { mismatch: Some(mismatch), ..IoError::of(Kind::Corrupted, Some(lba)) }
    }

    /// What a DC Express device reported.
    pub(crate) fn reported(code: Code, lba: Option<Lba>) -> IoError {
        let kind = match code {
            Code::OUT_OF_RANGE => Kind::OutOfRange,
            Code::FULL => Kind::Full,
            Code::UNREADABLE | Code::WRITE_FAULT => Kind::MediaFailed,
            Code::INVALID_OPCODE | Code::INVALID_FIELD | Code::TOO_LONG | Code::BAD_ADDRESS => {
                Kind::Refused
            }
            _ => Kind::DeviceFailed,
        };
        IoError { report: Some(code), ..IoError::of(kind, lba) }
    }

    /// What a descriptor came back with.
    pub(crate) fn returned(status: descriptor::Status, lba: Option<Lba>) -> IoError {
        use descriptor::Status;
        let kind = match status {
            Status::OUT_OF_RANGE => Kind::OutOfRange,
            Status::FULL => Kind::Full,
            Status::UNREADABLE | Status::WRITE_FAULT => Kind::MediaFailed,
            Status::INVALID_FIELD | Status::BAD_ADDRESS => Kind::Refused,
            _ => Kind::DeviceFailed,
        };
        IoError { answer: Some(status), ..IoError::of(kind, lba) }
    }
}

/// Sorts the specification's status values by what a caller can do about them.
fn kind_of(status: Status) -> Kind {
    match status.kind() {
        Status::LBA_OUT_OF_RANGE => Kind::OutOfRange,
        Status::CAPACITY_EXCEEDED => Kind::Full,
        Status::INVALID_OPCODE
        | Status::INVALID_FIELD
        | Status::INVALID_NAMESPACE_OR_FORMAT
        | Status::INVALID_PRP_OFFSET
        | Status::OPERATION_DENIED
        | Status::NAMESPACE_WRITE_PROTECTED
        | Status::PROHIBITED_BY_LOCKDOWN
        | Status::RESERVATION_CONFLICT
        | Status::ACCESS_DENIED => Kind::Refused,
        Status::GUARD_CHECK_ERROR
        | Status::APPLICATION_TAG_CHECK_ERROR
        | Status::REFERENCE_TAG_CHECK_ERROR => Kind::Corrupted,
        other => match other.code_type() {
            CodeType::Media => Kind::MediaFailed,
            CodeType::Specific => Kind::Refused,
            _ => Kind::DeviceFailed,
        },
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Refused => "refused",
            Kind::Unsupported => "not supported",
            Kind::OutOfRange => "out of range",
            Kind::Full => "no space left",
            Kind::TimedOut => "timed out",
            Kind::MediaFailed => "the medium failed",
            Kind::Corrupted => "corrupted",
            Kind::DeviceFailed => "the device failed",
            Kind::Reset => "the controller was reset too often",
            Kind::Gone => "the device is gone",
            Kind::Closed => "the driver is shut down",
            Kind::OutOfMemory => "no memory left that the device can reach",
        })
    }
}

/// `LBA 7: the medium failed: Unrecovered Read Error (status 0x0281)`.
impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lba {
            Some(lba) => write!(f, "LBA {lba}: {}", self.kind)?,
            None => write!(f, "flush: {}", self.kind)?,
        }
        if let Some(status) = self.status {
            write!(f, ": {status}")?;
        }
        if let Some(Mismatch { tag, expected, found }) = self.mismatch {
            write!(f, ": {tag} {found:#06x}, expected {expected:#06x}")?;
        }
        if let Some(code) = self.report {
            write!(f, ": the device reports {code}")?;
        }
        if let Some(status) = self.answer {
            write!(f, ": the descriptor says {status}")?;
        }
        if let Some(sense) = self.sense {
            write!(f, ": {sense}")?;
        }
        if let Some(why) = self.why {
            write!(f, ": expected {why}")?;
        }
        Ok(())
    }
}

impl core::error::Error for IoError {}

/// Why a controller, or one of its queues, could not be started, reset or shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitError {
    /// Nothing answers: a register reads all ones, or the bus knows that the device has left.
    Gone {
        /// The register that was read.
        register: &'static str,
    },
    /// A register did not come to its value in time.
    NotReady {
        /// The register and field waited for.
        register: &'static str,
        /// What the register read last.
        found: u32,
        /// The field's value that was waited for.
        expected: u32,
        /// For how long.
        waited: Span,
    },
    /// CSTS.CFS: the controller has met an error that only a reset may mend.
    Fatal {
        /// What CSTS read.
        found: u32,
    },
    /// The device is, or was asked to do, something that this driver cannot serve.
    Unsupported {
        /// What was looked at.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What would have been served.
        expected: &'static str,
    },
    /// More I/O queues were asked for than the controller grants.
    TooFewQueues {
        /// The number of the queue asked for, counted from 1.
        asked: u32,
        /// How many the controller grants.
        granted: u32,
    },
    /// The controller refused a command.
    Refused {
        /// What was to be done.
        step: &'static str,
        /// What it answered.
        status: Status,
    },
    /// The controller did not answer a command in time.
    TimedOut {
        /// What was to be done.
        step: &'static str,
        /// How long was waited.
        waited: Span,
    },
    /// The controller was reset while it worked on a command.
    Reset {
        /// What was to be done.
        step: &'static str,
    },
    /// The driver was shut down before.
    Closed,
    /// No memory is left that the device could reach.
    Memory(OutOfMemory),
}

impl From<OutOfMemory> for InitError {
    fn from(error: OutOfMemory) -> InitError {
        InitError::Memory(error)
    }
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitError::Gone { register } => {
                write!(f, "{register} reads all ones: the device is gone")
            }
            InitError::NotReady { register, found, expected, waited } => write!(
                f,
                "{register} is not {expected} after {waited}: the register reads {found:#x}"
            ),
            InitError::Fatal { found } => {
                write!(f, "CSTS reads {found:#x}: controller fatal status (CFS) is set")
            }
            InitError::Unsupported { what, found, expected } => {
                write!(f, "{what} is {found}, expected {expected}")
            }
            InitError::TooFewQueues { asked, granted } => {
                write!(f, "I/O queue {asked} was asked for, the controller grants {granted}")
            }
            InitError::Refused { step, status } => {
                write!(f, "{step}: the controller answers {status}")
            }
            InitError::TimedOut { step, waited } => {
                write!(f, "{step}: no answer from the controller within {waited}")
            }
            InitError::Reset { step } => {
                write!(f, "{step}: the controller was reset meanwhile")
            }
            InitError::Closed => f.write_str("the driver is shut down"),
            InitError::Memory(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for InitError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use wire::nvme::pi::Tag;

    #[test]
    fn an_error_names_the_block_and_the_status() {
        let error = IoError::answered(Status::UNRECOVERED_READ_ERROR, Some(Lba(7)));
        assert_eq!(error.kind, Kind::MediaFailed);
        assert_eq!(
            error.to_string(),
            "LBA 7: the medium failed: Unrecovered Read Error (status 0x0281)"
        );
        let refused = IoError::refused(Kind::OutOfRange, Lba(9), "blocks below the capacity");
        assert_eq!(refused.to_string(), "LBA 9: out of range: expected blocks below the capacity");
        assert_eq!(IoError::of(Kind::Gone, None).to_string(), "flush: the device is gone");
        let mismatch = Mismatch { tag: Tag::Guard, expected: 0xd0db, found: 7 };
        assert_eq!(
            IoError::mismatched(mismatch, Lba(9)).to_string(),
            "LBA 9: corrupted: guard 0x0007, expected 0xd0db"
        );
    }

    /// A status that nobody sorted is the device's failure, never a success and never a panic.
    #[test]
    fn every_status_has_a_kind() {
        for bits in 1..0x800 {
            let status = Status::from_bits(bits);
            let kind = kind_of(status);
            assert_eq!(kind, kind_of(status.with_dnr().with_more()));
            let known = [
                Kind::Refused,
                Kind::OutOfRange,
                Kind::Full,
                Kind::MediaFailed,
                Kind::Corrupted,
                Kind::DeviceFailed,
            ];
            assert!(known.contains(&kind), "{status}");
        }
        assert_eq!(kind_of(Status::WRITE_FAULT), Kind::MediaFailed);
        assert_eq!(kind_of(Status::GUARD_CHECK_ERROR.with_dnr()), Kind::Corrupted);
        assert_eq!(kind_of(Status::INTERNAL_ERROR), Kind::DeviceFailed);
        assert_eq!(kind_of(Status::LBA_OUT_OF_RANGE.with_dnr()), Kind::OutOfRange);
    }

    #[test]
    fn a_failed_start_says_what_was_expected() {
        let error = InitError::NotReady {
            register: "CSTS.RDY",
            found: 0,
            expected: 1,
            waited: Span::ms(500),
        };
        let text = "CSTS.RDY is not 1 after 500.000ms: the register reads 0x0";
        assert_eq!(error.to_string(), text);
        let error = InitError::TooFewQueues { asked: 5, granted: 4 };
        assert_eq!(error.to_string(), "I/O queue 5 was asked for, the controller grants 4");
    }
}
