//! Errors: why an operation failed, and why a device could not be started.

use core::fmt;

use bus::OutOfMemory;
use runtime::Span;
use wire::Lba;
use wire::block::descriptor;
use wire::dcx::report::Code;
use wire::nvme::pi::Mismatch;
use wire::nvme::status::{CodeType, Status};
use wire::scsi::sense::Sense;

/// Class of an I/O error, by what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The request is invalid for the driver or the device. A retry would fail again.
    Refused,
    /// The device, or the path to it, does not support the command.
    Unsupported,
    /// Blocks beyond the device's capacity.
    OutOfRange,
    /// The device has no space left for the data.
    Full,
    /// No completion in time, after all retries.
    TimedOut,
    /// The medium could not store or return the data.
    MediaFailed,
    /// The data does not match its protection information, or belongs to another block.
    Corrupted,
    /// The device failed for a reason other than the request or the medium.
    DeviceFailed,
    /// The controller was reset under the command more often than retries are allowed.
    Reset,
    /// The device does not respond. All further requests will fail.
    Gone,
    /// The driver was shut down.
    Closed,
    /// No device-accessible memory is left.
    OutOfMemory,
}

/// Error of a read, a write or a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoError {
    /// Class of the error.
    pub kind: Kind,
    /// First block of the operation, or the block whose protection information differs; `None` for an
    /// operation without blocks, such as a flush.
    pub lba: Option<Lba>,
    /// NVMe status, if the device reported the error.
    pub status: Option<Status>,
    /// Protection information field that the host found to differ.
    pub mismatch: Option<Mismatch>,
    /// Error code of a DC Express device.
    pub report: Option<Code>,
    /// Status of a descriptor-block device.
    pub answer: Option<descriptor::Status>,
    /// Sense data of a SCSI unit.
    pub sense: Option<Sense>,
    /// Expectation that the request violated, if the driver rejected it.
    pub why: Option<&'static str>,
}

impl IoError {
    /// Error detected by a driver.
    pub const fn of(kind: Kind, lba: Option<Lba>) -> IoError {
        let (status, mismatch, report, answer, sense) = (None, None, None, None, None);
        IoError { kind, lba, status, mismatch, report, answer, sense, why: None }
    }

    /// Request rejected by a driver; `why` is what it expected.
    pub const fn refused(kind: Kind, lba: Lba, why: &'static str) -> IoError {
        IoError { why: Some(why), ..IoError::of(kind, Some(lba)) }
    }

    /// The same error with this LBA.
    #[must_use]
    pub const fn at(self, lba: Lba) -> IoError {
        IoError { lba: Some(lba), ..self }
    }

    /// The same error with the sense data of a SCSI target.
    #[must_use]
    pub const fn with_sense(self, sense: Sense) -> IoError {
        IoError { sense: Some(sense), ..self }
    }

    /// Error from a device's NVMe status.
    pub fn answered(status: Status, lba: Option<Lba>) -> IoError {
        IoError { status: Some(status), ..IoError::of(kind_of(status), lba) }
    }

    /// Error for a block that the host found to differ from its protection information.
    pub(crate) fn mismatched(mismatch: Mismatch, lba: Lba) -> IoError {
        IoError { mismatch: Some(mismatch), ..IoError::of(Kind::Corrupted, Some(lba)) }
    }

    /// Error from a DC Express report.
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

    /// Error from the status of a returned descriptor.
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

/// Classifies the specification's status values.
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
        // Without an LBA the operation is not known: a flush, or a record of a driver's own.
        if let Some(lba) = self.lba {
            write!(f, "LBA {lba}: ")?;
        }
        self.kind.fmt(f)?;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// Nothing answers: a register reads all ones, or the bus knows that the device has left.
    #[error("{register} reads all ones: the device is gone")]
    Gone {
        /// Register that was read.
        register: &'static str,
    },
    /// A register did not come to its value in time.
    #[error("{register} is not {expected} after {waited}: the register reads {found:#x}")]
    NotReady {
        /// Register and field.
        register: &'static str,
        /// Last value of the register.
        found: u32,
        /// Expected value of the field.
        expected: u32,
        /// Time waited.
        waited: Span,
    },
    /// CSTS.CFS: the controller has met an error that only a reset may mend.
    #[error("CSTS reads {found:#x}: controller fatal status (CFS) is set")]
    Fatal {
        /// Value of CSTS.
        found: u32,
    },
    /// The device is, or was asked to do, something that this driver cannot serve.
    #[error("{what} is {found}, expected {expected}")]
    Unsupported {
        /// Property or register.
        what: &'static str,
        /// Value found.
        found: u64,
        /// Supported values.
        expected: &'static str,
    },
    /// A device is a member of another group of devices than those beside it.
    #[error(
        "member {member}: found {what} {found:016x}, expected {expected:016x}, as the others have"
    )]
    ForeignMember {
        /// Its place, from 0.
        member: u32,
        /// Kind of group, for example an array.
        what: &'static str,
        /// Identity of the group that it belongs to.
        found: u64,
        /// Identity of the group of the others.
        expected: u64,
    },
    /// More I/O queues were asked for than the controller grants.
    #[error("I/O queue {asked} was asked for, the controller grants {granted}")]
    TooFewQueues {
        /// Number of the requested queue, counted from 1.
        asked: u32,
        /// Number of queues granted.
        granted: u32,
    },
    /// The controller refused a command.
    #[error("{step}: the controller answers {status}")]
    Refused {
        /// Operation that failed.
        step: &'static str,
        /// Status of the command.
        status: Status,
    },
    /// The controller did not answer a command in time.
    #[error("{step}: no answer from the controller within {waited}")]
    TimedOut {
        /// Operation that failed.
        step: &'static str,
        /// Time waited.
        waited: Span,
    },
    /// The controller was reset while it worked on a command.
    #[error("{step}: the controller was reset meanwhile")]
    Reset {
        /// Operation that failed.
        step: &'static str,
    },
    /// The driver was shut down before.
    #[error("the driver is shut down")]
    Closed,
    /// No memory is left that the device could reach.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use wire::nvme::pi::Tag;

    #[test]
    fn io_error_display_has_lba_and_status() {
        let error = IoError::answered(Status::UNRECOVERED_READ_ERROR, Some(Lba(7)));
        assert_eq!(error.kind, Kind::MediaFailed);
        assert_eq!(
            error.to_string(),
            "LBA 7: the medium failed: Unrecovered Read Error (status 0x0281)"
        );
        let refused = IoError::refused(Kind::OutOfRange, Lba(9), "blocks below the capacity");
        assert_eq!(refused.to_string(), "LBA 9: out of range: expected blocks below the capacity");
        assert_eq!(IoError::of(Kind::Gone, None).to_string(), "the device is gone");
        let full = IoError::answered(Status::CAPACITY_EXCEEDED, None).to_string();
        assert!(full.starts_with("no space left: "), "{full}");
        let mismatch = Mismatch { tag: Tag::Guard, expected: 0xd0db, found: 7 };
        assert_eq!(
            IoError::mismatched(mismatch, Lba(9)).to_string(),
            "LBA 9: corrupted: guard 0x0007, expected 0xd0db"
        );
    }

    /// A status without a class of its own is a device failure, never a success and never a panic.
    #[test]
    fn every_nvme_status_maps_to_kind() {
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
    fn init_error_display_has_expected_value() {
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
