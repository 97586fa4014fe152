//! How a command ended (SAM-5, 5.3), and what NVMe's status becomes.

use super::sense::{Additional, Key, Sense};
use crate::nvme::status::{CodeType, Status as Nvme};

/// The status byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It succeeded.
    Good = 0x00,
    /// It did not, and sense data say why.
    CheckCondition = 0x02,
    /// The unit has no room for commands now.
    Busy = 0x08,
    /// Somebody else has reserved the unit.
    ReservationConflict = 0x18,
    /// Too many commands are under way.
    TaskSetFull = 0x28,
    /// Somebody else has ended it.
    TaskAborted = 0x40,
}

impl Status {
    /// The status of this byte, if there is one.
    pub const fn of(byte: u8) -> Option<Status> {
        Some(match byte {
            0x00 => Status::Good,
            0x02 => Status::CheckCondition,
            0x08 => Status::Busy,
            0x18 => Status::ReservationConflict,
            0x28 => Status::TaskSetFull,
            0x40 => Status::TaskAborted,
            _ => return None,
        })
    }
}

/// Status and sense data of an NVMe command's status (translation, "Sense Data" and "Error Codes"). What
/// that reference does not list, and later specifications have named, is sorted by its nearest kin there.
pub fn of_nvme(status: Nvme) -> (Status, Sense) {
    use Additional as A;
    let check = |key, additional| (Status::CheckCondition, Sense::new(key, additional));
    match status.kind() {
        Nvme::SUCCESS => (Status::Good, Sense::NONE),
        Nvme::INVALID_OPCODE => check(Key::IllegalRequest, A::INVALID_OPCODE),
        Nvme::INVALID_FIELD | Nvme::CONFLICTING_ATTRIBUTES => {
            check(Key::IllegalRequest, A::INVALID_FIELD_IN_CDB)
        }
        Nvme::DATA_TRANSFER_ERROR | Nvme::CAPACITY_EXCEEDED => check(Key::MediumError, A::NONE),
        Nvme::ABORTED_POWER_LOSS => aborted(A::POWER_LOSS_EXPECTED),
        Nvme::ABORT_REQUESTED
        | Nvme::ABORTED_SQ_DELETION
        | Nvme::ABORTED_FAILED_FUSED
        | Nvme::ABORTED_MISSING_FUSED => aborted(A::NONE),
        Nvme::INTERNAL_ERROR => check(Key::HardwareError, A::INTERNAL_TARGET_FAILURE),
        Nvme::INVALID_NAMESPACE_OR_FORMAT => check(Key::IllegalRequest, A::INVALID_UNIT_IDENTIFIER),
        Nvme::LBA_OUT_OF_RANGE => check(Key::IllegalRequest, A::LBA_OUT_OF_RANGE),
        Nvme::NAMESPACE_NOT_READY => check(Key::NotReady, A::NOT_READY),
        Nvme::FORMAT_IN_PROGRESS => check(Key::NotReady, A::FORMAT_IN_PROGRESS),
        Nvme::RESERVATION_CONFLICT => (Status::ReservationConflict, Sense::NONE),
        Nvme::NAMESPACE_WRITE_PROTECTED | Nvme::WRITE_TO_READ_ONLY_RANGE => {
            check(Key::DataProtect, A::WRITE_PROTECTED)
        }
        Nvme::INVALID_FORMAT => check(Key::IllegalRequest, A::FORMAT_FAILED),
        Nvme::WRITE_FAULT => check(Key::MediumError, A::WRITE_FAULT),
        Nvme::UNRECOVERED_READ_ERROR => check(Key::MediumError, A::UNRECOVERED_READ_ERROR),
        Nvme::GUARD_CHECK_ERROR => check(Key::MediumError, A::GUARD_CHECK_FAILED),
        Nvme::APPLICATION_TAG_CHECK_ERROR => {
            check(Key::MediumError, A::APPLICATION_TAG_CHECK_FAILED)
        }
        Nvme::REFERENCE_TAG_CHECK_ERROR => check(Key::MediumError, A::REFERENCE_TAG_CHECK_FAILED),
        Nvme::COMPARE_FAILURE => check(Key::Miscompare, A::MISCOMPARE),
        Nvme::ACCESS_DENIED => check(Key::DataProtect, A::NO_ACCESS_RIGHTS),
        other => match other.code_type() {
            CodeType::Media => check(Key::MediumError, A::NONE),
            CodeType::Path => aborted(A::NONE),
            _ => check(Key::IllegalRequest, A::NONE),
        },
    }
}

fn aborted(additional: Additional) -> (Status, Sense) {
    (Status::TaskAborted, Sense::new(Key::AbortedCommand, additional))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_of_nvme_is_told_apart_from_success() {
        for (nvme, name) in Nvme::NAMED {
            let (status, sense) = of_nvme(nvme.with_dnr());
            let good = *nvme == Nvme::SUCCESS;
            assert_eq!(status == Status::Good, good, "{name}");
            let says = sense.key != Key::NoSense;
            assert!(good || says || status == Status::ReservationConflict, "{name}");
        }
        for bits in 1..0x800 {
            assert_ne!(of_nvme(Nvme::from_bits(bits)).0, Status::Good, "{bits:#x}");
        }
    }

    #[test]
    fn bytes_name_their_status() {
        let all = [0x00, 0x02, 0x08, 0x18, 0x28, 0x40];
        for byte in 0..=u8::MAX {
            assert_eq!(Status::of(byte).map(|s| s as u8), all.contains(&byte).then_some(byte));
        }
    }
}
