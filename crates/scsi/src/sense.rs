//! Errors of drivers as status and sense, and the other way.

use wire::Lba;
use wire::scsi::sense::{Additional, Key, Sense};
use wire::scsi::status::{self, Status};

use host::{IoError, Kind};

/// What an error becomes. `blocks` is the number of blocks that the command was about: of one block it is
/// known which one failed.
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

/// What status and sense mean to a caller.
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

    /// What a caller can act on is the same behind SCSI as before it, but for what SCSI has one word for.
    #[test]
    fn kinds_survive_the_way_there_and_back() {
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
