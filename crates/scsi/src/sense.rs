//! Conversion of driver errors to status and sense, and back.

use wire::Lba;
use wire::scsi::sense::{Additional, Key, Sense};
use wire::scsi::status::{self, Status};

use host::{IoError, Kind};

/// Status and sense of an error. `blocks` is the length of the command: for one block the failed LBA is
/// known.
pub(super) fn of_error(error: &IoError, blocks: u32, write: bool) -> (Status, Sense) {
    let (status, sense) = match error.status {
        Some(nvme) => status::of_nvme(nvme),
        None => (Status::CheckCondition, of_kind(error.kind, write)),
    };
    let known = sense.key == Key::MediumError && blocks == 1;
    let information = error.lba.filter(|_| known).map(|lba| lba.0);
    (status, Sense { information, ..sense })
}

fn of_kind(kind: Kind, write: bool) -> Sense {
    use Additional as A;
    let (key, additional) = match kind {
        Kind::Refused => (Key::IllegalRequest, A::NONE),
        Kind::Unsupported => (Key::IllegalRequest, A::INVALID_OPCODE),
        Kind::OutOfRange => (Key::IllegalRequest, A::LBA_OUT_OF_RANGE),
        Kind::Full => (Key::DataProtect, A::SPACE_ALLOCATION_FAILED),
        Kind::MediaFailed if write => (Key::MediumError, A::WRITE_FAULT),
        Kind::MediaFailed => (Key::MediumError, A::UNRECOVERED_READ_ERROR),
        Kind::Corrupted => (Key::MediumError, A::GUARD_CHECK_FAILED),
        Kind::TimedOut => (Key::AbortedCommand, A::TIME_OUT),
        Kind::Reset => (Key::UnitAttention, A::INTERNAL_RESET),
        Kind::Gone | Kind::Closed => (Key::NotReady, A::NO_RESPONSE),
        Kind::OutOfMemory => (Key::AbortedCommand, A::INSUFFICIENT_RESOURCES),
        _ => (Key::HardwareError, A::INTERNAL_TARGET_FAILURE),
    };
    Sense::new(key, additional)
}

/// Error from status and sense.
pub(super) fn to_error(status: Status, sense: Sense, lba: Option<Lba>) -> IoError {
    use Additional as A;
    let kind = match (status, sense.key, sense.additional) {
        (Status::Busy | Status::TaskSetFull, ..) => Kind::DeviceFailed,
        (Status::ReservationConflict, ..) => Kind::Refused,
        (_, _, A::LBA_OUT_OF_RANGE) => Kind::OutOfRange,
        (_, _, A::INVALID_OPCODE) => Kind::Unsupported,
        (_, _, A::SPACE_ALLOCATION_FAILED) => Kind::Full,
        (_, _, A::TIME_OUT) => Kind::TimedOut,
        (
            _,
            _,
            A::GUARD_CHECK_FAILED | A::APPLICATION_TAG_CHECK_FAILED | A::REFERENCE_TAG_CHECK_FAILED,
        ) => Kind::Corrupted,
        (_, _, A::NO_RESPONSE) => Kind::Gone,
        (_, _, A::INTERNAL_RESET) => Kind::Reset,
        (_, _, A::INSUFFICIENT_RESOURCES) => Kind::OutOfMemory,
        (_, Key::MediumError | Key::Miscompare, _) => Kind::MediaFailed,
        (_, Key::IllegalRequest | Key::DataProtect, _) => Kind::Refused,
        _ => Kind::DeviceFailed,
    };
    IoError::of(kind, lba).with_sense(sense)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error kinds survive the conversion to SCSI and back, except those that SCSI does not distinguish.
    #[test]
    fn error_kinds_survive_sense_roundtrip() {
        let kinds = [
            Kind::Refused,
            Kind::Unsupported,
            Kind::OutOfRange,
            Kind::Full,
            Kind::TimedOut,
            Kind::MediaFailed,
            Kind::Corrupted,
            Kind::DeviceFailed,
            Kind::Reset,
            Kind::Gone,
            Kind::OutOfMemory,
        ];
        for kind in kinds {
            let (status, sense) = of_error(&IoError::of(kind, Some(Lba(7))), 1, false);
            assert_eq!(to_error(status, sense, Some(Lba(7))).kind, kind);
        }
    }
}
