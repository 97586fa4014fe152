//! Status field of a completion, 15 bits (NVMe base 2.0, 3.3.3.2.1).

use core::fmt;

/// Status field of a completion, without the phase tag.
///
/// ```text
///   14    13    12 11   10 8   7      0
///   DNR  MORE   CRD     SCT    SC
/// ```
///
/// The named values have DNR clear; the code that completes the command sets it with
/// [`with_dnr`](Self::with_dnr) if a retry cannot succeed.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(u16);

/// SCT, the status code type: the table of the status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CodeType {
    /// Generic command status.
    Generic,
    /// Command-specific status.
    Specific,
    /// Media and data integrity errors.
    Media,
    /// Path-related status.
    Path,
    /// Reserved values 4 to 6.
    Reserved,
    /// Vendor specific.
    Vendor,
}

const SCT_GENERIC: u16 = 0;
const SCT_SPECIFIC: u16 = 1;
const SCT_MEDIA: u16 = 2;
const SCT_PATH: u16 = 3;
const SCT_VENDOR: u16 = 7;

const MORE: u16 = 1 << 13;
const DNR: u16 = 1 << 14;

impl Status {
    /// The low 15 bits of `bits` as a status field.
    pub const fn from_bits(bits: u16) -> Status {
        Status(bits & 0x7fff)
    }

    /// The status field in the low 15 bits.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// SC, the status code.
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// SCT, the status code type.
    pub const fn code_type(self) -> CodeType {
        match (self.0 >> 8) & 7 {
            SCT_GENERIC => CodeType::Generic,
            SCT_SPECIFIC => CodeType::Specific,
            SCT_MEDIA => CodeType::Media,
            SCT_PATH => CodeType::Path,
            SCT_VENDOR => CodeType::Vendor,
            _ => CodeType::Reserved,
        }
    }

    /// CRD: index of the retry delay in Identify Controller, 1 to 3; 0 for none.
    pub const fn crd(self) -> u8 {
        ((self.0 >> 11) & 3) as u8
    }

    /// MORE: the error log has details.
    pub const fn more(self) -> bool {
        self.0 & MORE != 0
    }

    /// DNR: a retry would fail.
    pub const fn dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// This status, with "do not retry" set.
    pub const fn with_dnr(self) -> Status {
        Status(self.0 | DNR)
    }

    /// This status, with MORE set.
    pub const fn with_more(self) -> Status {
        Status(self.0 | MORE)
    }

    /// Code and type only, for comparison with the named values.
    pub const fn kind(self) -> Status {
        Status(self.0 & 0x07ff)
    }

    /// True if the command succeeded.
    pub const fn is_ok(self) -> bool {
        self.kind().0 == Status::SUCCESS.0
    }

    /// `Ok` for success, else the status itself as the error.
    pub const fn ok(self) -> Result<(), Status> {
        if self.is_ok() { Ok(()) } else { Err(self) }
    }

    /// Name in the specification, if this is one of [`Status::NAMED`].
    pub fn name(self) -> Option<&'static str> {
        Status::NAMED.iter().find(|(status, _)| *status == self.kind()).map(|(_, name)| *name)
    }
}

/// Example: "LBA Out of Range (status 0x4080, do not retry)".
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().unwrap_or("Unknown Status");
        let retry = if self.dnr() { ", do not retry" } else { "" };
        write!(f, "{name} (status {:#06x}{retry})", self.0)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for Status {}

macro_rules! named {
    ($($sct:ident $sc:literal $name:ident $text:literal;)+) => {
        impl Status {
            $(#[doc = concat!($text, ".")]
              pub const $name: Status = Status($sct << 8 | $sc);)+

            /// All named statuses with their names in the specification, in ascending order.
            pub const NAMED: &[(Status, &str)] = &[$((Status::$name, $text)),+];
        }
    };
}

// NVMe base 2.0, 3.3.3.2.1.1 to 3.3.3.2.1.4, and NVM command set 1.0, 3.1.1 to 3.1.3.
named! {
    SCT_GENERIC 0x00 SUCCESS "Successful Completion";
    SCT_GENERIC 0x01 INVALID_OPCODE "Invalid Command Opcode";
    SCT_GENERIC 0x02 INVALID_FIELD "Invalid Field in Command";
    SCT_GENERIC 0x03 COMMAND_ID_CONFLICT "Command ID Conflict";
    SCT_GENERIC 0x04 DATA_TRANSFER_ERROR "Data Transfer Error";
    SCT_GENERIC 0x05 ABORTED_POWER_LOSS "Commands Aborted due to Power Loss Notification";
    SCT_GENERIC 0x06 INTERNAL_ERROR "Internal Error";
    SCT_GENERIC 0x07 ABORT_REQUESTED "Command Abort Requested";
    SCT_GENERIC 0x08 ABORTED_SQ_DELETION "Command Aborted due to SQ Deletion";
    SCT_GENERIC 0x09 ABORTED_FAILED_FUSED "Command Aborted due to Failed Fused Command";
    SCT_GENERIC 0x0a ABORTED_MISSING_FUSED "Command Aborted due to Missing Fused Command";
    SCT_GENERIC 0x0b INVALID_NAMESPACE_OR_FORMAT "Invalid Namespace or Format";
    SCT_GENERIC 0x0c COMMAND_SEQUENCE_ERROR "Command Sequence Error";
    SCT_GENERIC 0x0d INVALID_SGL_SEGMENT_DESCRIPTOR "Invalid SGL Segment Descriptor";
    SCT_GENERIC 0x0e INVALID_SGL_DESCRIPTOR_COUNT "Invalid Number of SGL Descriptors";
    SCT_GENERIC 0x0f DATA_SGL_LENGTH_INVALID "Data SGL Length Invalid";
    SCT_GENERIC 0x10 METADATA_SGL_LENGTH_INVALID "Metadata SGL Length Invalid";
    SCT_GENERIC 0x11 SGL_DESCRIPTOR_TYPE_INVALID "SGL Descriptor Type Invalid";
    SCT_GENERIC 0x12 INVALID_USE_OF_CMB "Invalid Use of Controller Memory Buffer";
    SCT_GENERIC 0x13 INVALID_PRP_OFFSET "PRP Offset Invalid";
    SCT_GENERIC 0x14 ATOMIC_WRITE_UNIT_EXCEEDED "Atomic Write Unit Exceeded";
    SCT_GENERIC 0x15 OPERATION_DENIED "Operation Denied";
    SCT_GENERIC 0x16 SGL_OFFSET_INVALID "SGL Offset Invalid";
    SCT_GENERIC 0x18 HOST_ID_INCONSISTENT_FORMAT "Host Identifier Inconsistent Format";
    SCT_GENERIC 0x19 KEEP_ALIVE_EXPIRED "Keep Alive Timer Expired";
    SCT_GENERIC 0x1a KEEP_ALIVE_INVALID "Keep Alive Timeout Invalid";
    SCT_GENERIC 0x1b ABORTED_PREEMPT "Command Aborted due to Preempt and Abort";
    SCT_GENERIC 0x1c SANITIZE_FAILED "Sanitize Failed";
    SCT_GENERIC 0x1d SANITIZE_IN_PROGRESS "Sanitize In Progress";
    SCT_GENERIC 0x1e SGL_GRANULARITY_INVALID "SGL Data Block Granularity Invalid";
    SCT_GENERIC 0x1f COMMAND_NOT_SUPPORTED_IN_CMB "Command Not Supported for Queue in CMB";
    SCT_GENERIC 0x20 NAMESPACE_WRITE_PROTECTED "Namespace is Write Protected";
    SCT_GENERIC 0x21 COMMAND_INTERRUPTED "Command Interrupted";
    SCT_GENERIC 0x22 TRANSIENT_TRANSPORT_ERROR "Transient Transport Error";
    SCT_GENERIC 0x23 PROHIBITED_BY_LOCKDOWN "Command Prohibited by Command and Feature Lockdown";
    SCT_GENERIC 0x24 ADMIN_MEDIA_NOT_READY "Admin Command Media Not Ready";
    SCT_GENERIC 0x80 LBA_OUT_OF_RANGE "LBA Out of Range";
    SCT_GENERIC 0x81 CAPACITY_EXCEEDED "Capacity Exceeded";
    SCT_GENERIC 0x82 NAMESPACE_NOT_READY "Namespace Not Ready";
    SCT_GENERIC 0x83 RESERVATION_CONFLICT "Reservation Conflict";
    SCT_GENERIC 0x84 FORMAT_IN_PROGRESS "Format In Progress";

    SCT_SPECIFIC 0x00 COMPLETION_QUEUE_INVALID "Completion Queue Invalid";
    SCT_SPECIFIC 0x01 INVALID_QUEUE_IDENTIFIER "Invalid Queue Identifier";
    SCT_SPECIFIC 0x02 INVALID_QUEUE_SIZE "Invalid Queue Size";
    SCT_SPECIFIC 0x03 ABORT_LIMIT_EXCEEDED "Abort Command Limit Exceeded";
    SCT_SPECIFIC 0x05 AER_LIMIT_EXCEEDED "Asynchronous Event Request Limit Exceeded";
    SCT_SPECIFIC 0x06 INVALID_FIRMWARE_SLOT "Invalid Firmware Slot";
    SCT_SPECIFIC 0x07 INVALID_FIRMWARE_IMAGE "Invalid Firmware Image";
    SCT_SPECIFIC 0x08 INVALID_INTERRUPT_VECTOR "Invalid Interrupt Vector";
    SCT_SPECIFIC 0x09 INVALID_LOG_PAGE "Invalid Log Page";
    SCT_SPECIFIC 0x0a INVALID_FORMAT "Invalid Format";
    SCT_SPECIFIC 0x0b FIRMWARE_NEEDS_RESET "Firmware Activation Requires Conventional Reset";
    SCT_SPECIFIC 0x0c INVALID_QUEUE_DELETION "Invalid Queue Deletion";
    SCT_SPECIFIC 0x0d FEATURE_NOT_SAVEABLE "Feature Identifier Not Saveable";
    SCT_SPECIFIC 0x0e FEATURE_NOT_CHANGEABLE "Feature Not Changeable";
    SCT_SPECIFIC 0x0f FEATURE_NOT_NAMESPACE_SPECIFIC "Feature Not Namespace Specific";
    SCT_SPECIFIC 0x14 OVERLAPPING_RANGE "Overlapping Range";
    SCT_SPECIFIC 0x15 NAMESPACE_INSUFFICIENT_CAPACITY "Namespace Insufficient Capacity";
    SCT_SPECIFIC 0x16 NAMESPACE_ID_UNAVAILABLE "Namespace Identifier Unavailable";
    SCT_SPECIFIC 0x18 NAMESPACE_ALREADY_ATTACHED "Namespace Already Attached";
    SCT_SPECIFIC 0x19 NAMESPACE_IS_PRIVATE "Namespace Is Private";
    SCT_SPECIFIC 0x1a NAMESPACE_NOT_ATTACHED "Namespace Not Attached";
    SCT_SPECIFIC 0x1b THIN_PROVISIONING_NOT_SUPPORTED "Thin Provisioning Not Supported";
    SCT_SPECIFIC 0x1c CONTROLLER_LIST_INVALID "Controller List Invalid";
    SCT_SPECIFIC 0x1d SELF_TEST_IN_PROGRESS "Device Self-test In Progress";
    SCT_SPECIFIC 0x1f INVALID_CONTROLLER_ID "Invalid Controller Identifier";
    SCT_SPECIFIC 0x29 COMMAND_SET_NOT_SUPPORTED "I/O Command Set Not Supported";
    SCT_SPECIFIC 0x2a COMMAND_SET_NOT_ENABLED "I/O Command Set Not Enabled";
    SCT_SPECIFIC 0x2b COMMAND_SET_COMBINATION_REJECTED "I/O Command Set Combination Rejected";
    SCT_SPECIFIC 0x2c INVALID_COMMAND_SET "Invalid I/O Command Set";
    SCT_SPECIFIC 0x80 CONFLICTING_ATTRIBUTES "Conflicting Attributes";
    SCT_SPECIFIC 0x81 INVALID_PROTECTION_INFORMATION "Invalid Protection Information";
    SCT_SPECIFIC 0x82 WRITE_TO_READ_ONLY_RANGE "Attempted Write to Read Only Range";
    SCT_SPECIFIC 0x83 COMMAND_SIZE_LIMIT_EXCEEDED "Command Size Limit Exceeded";

    SCT_MEDIA 0x80 WRITE_FAULT "Write Fault";
    SCT_MEDIA 0x81 UNRECOVERED_READ_ERROR "Unrecovered Read Error";
    SCT_MEDIA 0x82 GUARD_CHECK_ERROR "End-to-end Guard Check Error";
    SCT_MEDIA 0x83 APPLICATION_TAG_CHECK_ERROR "End-to-end Application Tag Check Error";
    SCT_MEDIA 0x84 REFERENCE_TAG_CHECK_ERROR "End-to-end Reference Tag Check Error";
    SCT_MEDIA 0x85 COMPARE_FAILURE "Compare Failure";
    SCT_MEDIA 0x86 ACCESS_DENIED "Access Denied";
    SCT_MEDIA 0x87 DEALLOCATED_OR_UNWRITTEN "Deallocated or Unwritten Logical Block";
    SCT_MEDIA 0x88 STORAGE_TAG_CHECK_ERROR "End-to-End Storage Tag Check Error";

    SCT_PATH 0x00 INTERNAL_PATH_ERROR "Internal Path Error";
    SCT_PATH 0x60 CONTROLLER_PATHING_ERROR "Controller Pathing Error";
    SCT_PATH 0x70 HOST_PATHING_ERROR "Host Pathing Error";
    SCT_PATH 0x71 ABORTED_BY_HOST "Command Aborted By Host";

    SCT_VENDOR 0xc0 STALE_PLACE "Stale Place (vendor specific)";
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn status_values_match_spec() {
        assert_eq!(Status::INVALID_FIELD.bits(), 0x002);
        assert_eq!(Status::LBA_OUT_OF_RANGE.bits(), 0x080);
        assert_eq!(Status::INVALID_QUEUE_DELETION.bits(), 0x10c);
        assert_eq!(Status::UNRECOVERED_READ_ERROR.bits(), 0x281);
        assert_eq!(Status::ABORTED_BY_HOST.bits(), 0x371);
    }

    #[test]
    fn status_names_are_sorted_and_unique() {
        for pair in Status::NAMED.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{} comes before {}", pair[0].1, pair[1].1);
        }
        for (status, name) in Status::NAMED {
            assert_eq!(status.with_dnr().with_more().name(), Some(*name));
        }
    }

    #[test]
    fn status_field_positions() {
        let status = Status::from_bits(0x4000 | 0x1000 | 0x281);
        assert_eq!((status.dnr(), status.more(), status.crd()), (true, false, 2));
        assert_eq!((status.code_type(), status.code()), (CodeType::Media, 0x81));
        assert_eq!(status.kind(), Status::UNRECOVERED_READ_ERROR);
        assert!(Status::SUCCESS.with_more().more());
        assert_eq!(Status::from_bits(0xffff).bits(), 0x7fff, "the phase tag's bit never gets in");
        assert_eq!(Status::from_bits(0x0500).code_type(), CodeType::Reserved);
        assert_eq!(Status::from_bits(0x0700).code_type(), CodeType::Vendor);
    }

    #[test]
    fn status_success_ignores_flags() {
        assert_eq!(Status::SUCCESS.with_more().ok(), Ok(()));
        let status = Status::WRITE_FAULT;
        assert_eq!(status.ok(), Err(status));
    }

    #[test]
    fn status_display_has_name_and_value() {
        let text = format!("{}", Status::LBA_OUT_OF_RANGE.with_dnr());
        assert_eq!(text, "LBA Out of Range (status 0x4080, do not retry)");
        assert_eq!(format!("{:?}", Status::from_bits(0x7c1)), "Unknown Status (status 0x07c1)");
    }
}
