//! Log pages (NVMe base 2.0, 5.16.1).

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;

/// Log page identifiers.
pub mod lid {
    /// Supported log pages.
    pub const SUPPORTED: u8 = 0x00;
    /// [`super::ErrorInformation`], newest first.
    pub const ERROR: u8 = 0x01;
    /// [`super::SmartHealth`].
    pub const SMART_HEALTH: u8 = 0x02;
    /// [`super::FirmwareSlots`].
    pub const FIRMWARE_SLOTS: u8 = 0x03;
    /// Namespaces whose attributes changed since this page was last read.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands supported and their effects.
    pub const COMMANDS_SUPPORTED: u8 = 0x05;
    /// [`super::SelfTestLog`].
    pub const SELF_TEST: u8 = 0x06;
    /// [`super::super::reservation::Notification`].
    pub const RESERVATION: u8 = 0x80;
    /// [`super::SanitizeStatus`].
    pub const SANITIZE: u8 = 0x81;
    /// Vendor-specific: [`crate::nvme::collect::Survey`], followed by the superblocks.
    pub const SUPERBLOCKS: u8 = 0xc0;
    /// Vendor-specific: [`crate::nvme::host_map::Moves`], followed by the moves.
    pub const MOVES: u8 = 0xc1;
}

/// Entry of the error log (5.16.1.2).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ErrorInformation {
    /// Number of the error over the controller's life, from 1; 0 for an empty entry.
    pub error_count: U64,
    /// Queue of the command, or [`ErrorInformation::NO_COMMAND`].
    pub sqid: U16,
    /// Command identifier, or [`ErrorInformation::NO_COMMAND`].
    pub cid: U16,
    /// Status field and phase tag, as in the completion.
    pub status_and_phase: U16,
    /// Byte (bits 7:0) and bit (bits 10:8) of the invalid field in the command; ffffh for none.
    pub parameter_error_location: U16,
    /// First block with the error.
    pub lba: U64,
    /// Namespace of the block.
    pub nsid: U32,
    /// Vendor-specific log page with details; 0 for none.
    pub vendor_log: u8,
    /// Transport type; 0 if not given.
    pub trtype: u8,
    /// Command set of the command.
    pub csi: u8,
    /// Opcode of the command.
    pub opcode: u8,
    /// Command-specific; depends on the status.
    pub command_specific: U64,
    /// Transport-specific.
    pub transport_specific: U16,
    /// Reserved.
    pub reserved42: [u8; 21],
    /// 1 if `csi` and `opcode` are given.
    pub version: u8,
}

impl ErrorInformation {
    /// In `sqid` and `cid`: the error is no command's.
    pub const NO_COMMAND: u16 = 0xffff;
}

layout!(ErrorInformation, 64, {
    error_count @ 0, sqid @ 8, cid @ 10, status_and_phase @ 12, parameter_error_location @ 14,
    lba @ 16, nsid @ 24, vendor_log @ 28, trtype @ 29, csi @ 30, opcode @ 31,
    command_specific @ 32, transport_specific @ 40, version @ 63,
});

/// SMART and health information (5.16.1.3).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SmartHealth {
    /// Bits of [`critical_warning`].
    pub critical_warning: u8,
    /// Composite temperature, in kelvins.
    pub temperature: U16,
    /// Spare capacity left, in percent.
    pub available_spare: u8,
    /// Threshold of `available_spare` for a warning, in percent.
    pub available_spare_threshold: u8,
    /// Share of its life used, in percent; may pass 100, up to 255.
    pub percentage_used: u8,
    /// Warnings of endurance groups.
    pub endurance_group_warning: u8,
    /// Reserved.
    pub reserved7: [u8; 25],
    /// Data that hosts read, in units of 1000 blocks of 512 bytes, rounded up.
    pub data_units_read: U128,
    /// Data that hosts wrote, in the same units.
    pub data_units_written: U128,
    /// Read commands completed.
    pub host_reads: U128,
    /// Write commands completed.
    pub host_writes: U128,
    /// Minutes with a command outstanding.
    pub busy_minutes: U128,
    /// Number of power cycles.
    pub power_cycles: U128,
    /// Hours with power on.
    pub power_on_hours: U128,
    /// Number of power losses without a shutdown notification.
    pub unsafe_shutdowns: U128,
    /// Number of unrecovered data integrity errors.
    pub media_errors: U128,
    /// Errors over the controller's life: count of the newest [`ErrorInformation`].
    pub error_log_entries: U128,
    /// Minutes at or above WCTEMP.
    pub warning_minutes: U32,
    /// Minutes at or above CCTEMP.
    pub critical_minutes: U32,
    /// Temperatures of sensors 1 to 8, in kelvins; 0 for no sensor.
    pub sensors: [U16; 8],
    /// Number of transitions to the lighter thermal management.
    pub thermal_transitions_1: U32,
    /// Number of transitions to the heavier thermal management.
    pub thermal_transitions_2: U32,
    /// Seconds in the lighter thermal management.
    pub thermal_seconds_1: U32,
    /// Seconds in the heavier thermal management.
    pub thermal_seconds_2: U32,
    /// Reserved.
    pub reserved232: [u8; 280],
}

layout!(SmartHealth, 512, {
    critical_warning @ 0, temperature @ 1, available_spare @ 3, available_spare_threshold @ 4,
    percentage_used @ 5, endurance_group_warning @ 6, data_units_read @ 32,
    data_units_written @ 48, host_reads @ 64, host_writes @ 80, busy_minutes @ 96,
    power_cycles @ 112, power_on_hours @ 128, unsafe_shutdowns @ 144, media_errors @ 160,
    error_log_entries @ 176, warning_minutes @ 192, critical_minutes @ 196, sensors @ 200,
    thermal_transitions_1 @ 216, thermal_transitions_2 @ 220, thermal_seconds_1 @ 224,
    thermal_seconds_2 @ 228,
});

/// Bits of [`SmartHealth::critical_warning`].
pub mod critical_warning {
    /// Spare capacity is below its threshold.
    pub const SPARE: u8 = 1 << 0;
    /// A temperature is past its threshold.
    pub const TEMPERATURE: u8 = 1 << 1;
    /// Media or internal errors have made the device unreliable.
    pub const RELIABILITY: u8 = 1 << 2;
    /// All of the medium is read only.
    pub const READ_ONLY: u8 = 1 << 3;
    /// The backup power of the volatile cache has failed.
    pub const BACKUP_FAILED: u8 = 1 << 4;
}

/// Firmware slots (5.16.1.4).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct FirmwareSlots {
    /// AFI: slot in use in bits 2:0, slot of the next reset in bits 6:4.
    pub afi: u8,
    /// Reserved.
    pub reserved1: [u8; 7],
    /// Revisions in slots 1 to 7, in ASCII; zeros for an empty slot.
    pub revisions: [[u8; 8]; 7],
    /// Reserved.
    pub reserved64: [u8; 448],
}

layout!(FirmwareSlots, 512, { afi @ 0, revisions @ 8, reserved64 @ 64 });

/// Commands supported and their effects (5.16.1.6): [`effect`] bits, by opcode.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CommandEffects {
    /// Admin commands.
    pub admin: [U32; 256],
    /// I/O commands.
    pub io: [U32; 256],
    /// Reserved.
    pub reserved2048: [[u8; 64]; 32],
}

layout!(CommandEffects, 4096, { admin @ 0, io @ 1024, reserved2048 @ 2048 });

/// Bits of an entry of [`CommandEffects`].
pub mod effect {
    /// CSUPP: the command is supported.
    pub const SUPPORTED: u32 = 1 << 0;
    /// LBCC: may change the contents of a namespace.
    pub const CONTENT: u32 = 1 << 1;
    /// NIC: may change the set of namespaces.
    pub const INVENTORY: u32 = 1 << 3;
    /// CSE, 1 in bits 18:16: no other command of the namespace may be outstanding while it runs.
    pub const NAMESPACE_ALONE: u32 = 1 << 16;
    /// CSE, 2 in bits 18:16: no other command may be outstanding while it runs.
    pub const ALONE: u32 = 2 << 16;
    /// NCC: may change the capabilities of a namespace.
    pub const NAMESPACE: u32 = 1 << 2;
}

/// Result of a self-test (5.16.1.7).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SelfTestResult {
    /// DSTS: result in bits 3:0, 15 for an unused entry; test type in bits 7:4.
    pub status: u8,
    /// First failed segment, if any.
    pub segment: u8,
    /// Valid fields: bit 0 namespace, 1 block, 2 and 3 status.
    pub valid: u8,
    /// Reserved.
    pub reserved3: u8,
    /// Power-on hours at its end.
    pub power_on_hours: U64,
    /// Namespace of the failure.
    pub nsid: U32,
    /// Block of the failure.
    pub failing_lba: U64,
    /// Status code type of the failure.
    pub code_type: u8,
    /// Status code of the failure.
    pub code: u8,
    /// Vendor specific.
    pub vendor: U16,
}

layout!(SelfTestResult, 28, {
    status @ 0, segment @ 1, valid @ 2, power_on_hours @ 4, nsid @ 12, failing_lba @ 16,
    code_type @ 24, code @ 25, vendor @ 26,
});

/// The running self-test, and the results of the last twenty (5.16.1.7).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SelfTestLog {
    /// Running test in bits 3:0; 0 for none.
    pub now: u8,
    /// Progress in percent.
    pub percent: u8,
    /// Reserved.
    pub reserved2: [u8; 2],
    /// Results, newest first.
    pub results: [SelfTestResult; SelfTestLog::RESULTS],
}

impl SelfTestLog {
    /// Number of results.
    pub const RESULTS: usize = 20;
}

layout!(SelfTestLog, 564, { now @ 0, percent @ 1, results @ 4 });

/// Sanitize status (5.16.1.25).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SanitizeStatus {
    /// SPROG: progress in 65,536ths; ffffh if no sanitize is in progress.
    pub progress: U16,
    /// SSTAT: state of the most recent sanitize in bits 2:0, completed passes in bits 7:3, and
    /// [`GLOBAL_DATA_ERASED`](Self::GLOBAL_DATA_ERASED).
    pub status: U16,
    /// SCDW10: dword 10 of the most recent Sanitize command.
    pub dword10: U32,
    /// Estimated durations in seconds, ffffffffh if not reported: overwrite, block erase, crypto erase;
    /// then the same without deallocation.
    pub times: [U32; 6],
    /// Reserved.
    pub reserved32: [u8; 480],
}

impl SanitizeStatus {
    /// Value of bits 2:0 of `status`: never sanitized.
    pub const NEVER: u16 = 0;
    /// The most recent sanitize succeeded.
    pub const DONE: u16 = 1;
    /// A sanitize is in progress.
    pub const UNDER_WAY: u16 = 2;
    /// The most recent sanitize failed.
    pub const FAILED: u16 = 3;
    /// Bit of `status`: no data were written since the last successful sanitize.
    pub const GLOBAL_DATA_ERASED: u16 = 1 << 8;

    /// Index of the block erase time in `times`.
    pub const BLOCK_ERASE: usize = 1;

    /// Bits 2:0 of `status`.
    pub fn stands(&self) -> u16 {
        self.status.get() & 7
    }

    /// Bits 7:3 of `status`.
    pub fn passes(&self) -> u8 {
        (self.status.get() >> 3 & 0x1f) as u8
    }
}

layout!(SanitizeStatus, 512, { progress @ 0, status @ 2, dword10 @ 4, times @ 8, reserved32 @ 32 });

/// Bits of SANICAP, in Identify Controller.
pub mod sanicap {
    /// CES: crypto erase is supported.
    pub const CRYPTO_ERASE: u32 = 1 << 0;
    /// BES: block erase is supported.
    pub const BLOCK_ERASE: u32 = 1 << 1;
    /// OWS: overwrite is supported.
    pub const OVERWRITE: u32 = 1 << 2;
    /// NODMMAS: media that are not deallocated after sanitize are not modified either.
    pub const NOT_MODIFIED_AFTERWARDS: u32 = 1 << 30;
}

/// All zeros: the initial state.
macro_rules! default_is_zeros {
    ($($structure:ty)+) => {$(
        impl Default for $structure {
            fn default() -> Self {
                Self::new_zeroed()
            }
        }
    )+};
}
default_is_zeros!(ErrorInformation SmartHealth FirmwareSlots CommandEffects);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smart_log_layout() {
        let mut smart = SmartHealth { temperature: 313.into(), ..SmartHealth::default() };
        smart.critical_warning = critical_warning::SPARE | critical_warning::READ_ONLY;
        smart.unsafe_shutdowns = 0x0102.into();
        smart.sensors[7] = 0x1234.into();
        let mut golden = [0u8; 512];
        golden[..3].copy_from_slice(&[0b1001, 0x39, 0x01]);
        golden[144..146].copy_from_slice(&[0x02, 0x01]);
        golden[214..216].copy_from_slice(&[0x34, 0x12]);
        assert_eq!(smart.as_bytes(), golden);
        assert_eq!(SmartHealth::read_from_bytes(&golden).unwrap(), smart);
    }

    #[test]
    fn error_log_entry_layout() {
        let entry = ErrorInformation {
            error_count: 1.into(),
            sqid: 2.into(),
            cid: 0x304.into(),
            lba: 0x0506.into(),
            nsid: 7.into(),
            version: 1,
            ..ErrorInformation::default()
        };
        let mut golden = [0u8; 64];
        golden[..12].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 4, 3]);
        golden[16..18].copy_from_slice(&[6, 5]);
        (golden[24], golden[63]) = (7, 1);
        assert_eq!(entry.as_bytes(), golden);
    }
}
