//! SCSI status (SAM-5, 5.3), and translation from NVMe status.

use super::sense::{Additional, Key, Sense};
use crate::nvme::status::{CodeType, Status as Nvme};

/// The status byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Good = 0x00,
    /// Failure, described by sense data.
    CheckCondition = 0x02,
    /// The unit cannot accept commands now.
    Busy = 0x08,
    /// The unit is reserved for another initiator.
    ReservationConflict = 0x18,
    /// The task set is full.
    TaskSetFull = 0x28,
    /// The command was aborted by another initiator.
    TaskAborted = 0x40,
}

impl Status {
    /// The status with this value, if it is defined.
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

/// Status and sense data for an NVMe status (translation, "Sense Data" and "Error Codes"). Later NVMe
/// statuses, absent from that reference, are translated like the most similar one there.
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
    fn nvme_errors_never_translate_to_good() {
        for (nvme, name) in Nvme::NAMED {
            let (status, sense) = of_nvme(nvme.with_dnr());
            let good = *nvme == Nvme::SUCCESS;
            assert_eq!(status == Status::Good, good, "{name}");
            let has_sense = sense.key != Key::NoSense;
            assert!(good || has_sense || status == Status::ReservationConflict, "{name}");
        }
        for bits in 1..0x800 {
            assert_ne!(of_nvme(Nvme::from_bits(bits)).0, Status::Good, "{bits:#x}");
        }
    }

    #[test]
    fn scsi_status_round_trip() {
        let all = [0x00, 0x02, 0x08, 0x18, 0x28, 0x40];
        for byte in 0..=u8::MAX {
            assert_eq!(Status::of(byte).map(|s| s as u8), all.contains(&byte).then_some(byte));
        }
    }
}
