//! Identify Controller, CNS 01h (NVMe base 2.0, 5.17.2.1).

use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nvme::layout;

/// Properties and capabilities of the controller. [`Default`] is all zeros.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI vendor.
    pub vid: U16,
    /// PCI subsystem vendor.
    pub ssvid: U16,
    /// Serial number, in ASCII.
    pub sn: [u8; 20],
    /// Model number, in ASCII.
    pub mn: [u8; 40],
    /// Firmware revision, in ASCII.
    pub fr: [u8; 8],
    /// Recommended arbitration burst, as a power of two.
    pub rab: u8,
    /// The vendor's IEEE OUI, lowest byte first.
    pub ieee: [u8; 3],
    /// Bit 0: several ports; bit 1: several controllers; bit 3: asymmetric namespace access.
    pub cmic: u8,
    /// The largest transfer is `1 << mdts` smallest pages; 0 for no limit.
    pub mdts: u8,
    /// Controller's number in its subsystem.
    pub cntlid: U16,
    /// Version, as in the VS register.
    pub ver: U32,
    /// Typical time to resume after RTD3, in microseconds.
    pub rtd3r: U32,
    /// Typical time to enter RTD3, in microseconds.
    pub rtd3e: U32,
    /// Optional asynchronous events.
    pub oaes: U32,
    /// Attributes.
    pub ctratt: U32,
    /// Read recovery levels.
    pub rrls: U16,
    /// Reserved.
    pub reserved102: [u8; 9],
    /// 1 for an I/O controller, 2 discovery, 3 administrative.
    pub cntrltype: u8,
    /// FRU's globally unique identifier.
    pub fguid: [u8; 16],
    /// The three delays of a status' CRD field, in units of 100 ms.
    pub crdt: [U16; 3],
    /// Reserved.
    pub reserved134: [u8; 119],
    /// Subsystem report.
    pub nvmsr: u8,
    /// Vital product data write cycles.
    pub vwci: u8,
    /// Management endpoints.
    pub mec: u8,
    /// Optional admin commands: bits of [`oacs`].
    pub oacs: U16,
    /// Abort commands at once, less one.
    pub acl: u8,
    /// Asynchronous event requests at once, less one.
    pub aerl: u8,
    /// Firmware updates: slots in bits 3:1.
    pub frmw: u8,
    /// Log page attributes: bits of [`lpa`].
    pub lpa: u8,
    /// Entries of the error log, less one.
    pub elpe: u8,
    /// Power states, less one.
    pub npss: u8,
    /// Admin vendor commands have the standard format.
    pub avscc: u8,
    /// Autonomous power state transitions.
    pub apsta: u8,
    /// Temperature of warning, in kelvins.
    pub wctemp: U16,
    /// Critical temperature, in kelvins.
    pub cctemp: U16,
    /// Longest firmware activation, in units of 100 ms.
    pub mtfa: U16,
    /// Preferred host memory buffer size, in units of 4 KiB.
    pub hmpre: U32,
    /// Minimum host memory buffer size, in units of 4 KiB.
    pub hmmin: U32,
    /// Total capacity, in bytes.
    pub tnvmcap: U128,
    /// Unallocated capacity, in bytes.
    pub unvmcap: U128,
    /// Replay protected memory block.
    pub rpmbs: U32,
    /// Time of an extended self-test, in minutes.
    pub edstt: U16,
    /// Self-test options.
    pub dsto: u8,
    /// Firmware update granularity, in units of 4 KiB.
    pub fwug: u8,
    /// Keep alive granularity, in units of 100 ms; 0 for no keep alive.
    pub kas: U16,
    /// Host controlled thermal management.
    pub hctma: U16,
    /// Lowest threshold of thermal management, in kelvins.
    pub mntmt: U16,
    /// Highest threshold of thermal management, in kelvins.
    pub mxtmt: U16,
    /// Sanitize operations.
    pub sanicap: U32,
    /// Smallest descriptor of a host memory buffer, in units of 4 KiB.
    pub hmminds: U32,
    /// Most descriptors of a host memory buffer.
    pub hmmaxd: U16,
    /// Highest NVM set.
    pub nsetidmax: U16,
    /// Highest endurance group.
    pub endgidmax: U16,
    /// Longest asymmetric access transition, in seconds.
    pub anatt: u8,
    /// Asymmetric namespace access.
    pub anacap: u8,
    /// Highest asymmetric access group.
    pub anagrpmax: U32,
    /// Asymmetric access groups.
    pub nanagrpid: U32,
    /// Persistent event log size, in units of 64 KiB.
    pub pels: U32,
    /// Domain.
    pub domainid: U16,
    /// Reserved.
    pub reserved358: [u8; 10],
    /// Largest endurance group, in bytes.
    pub megcap: U128,
    /// Reserved.
    pub reserved384: [u8; 128],
    /// Size of submission entries: least in bits 3:0, most in 7:4, as powers of two.
    pub sqes: u8,
    /// Size of completion entries: least in bits 3:0, most in 7:4, as powers of two.
    pub cqes: u8,
    /// Most commands of one queue in flight; 0 for no such limit.
    pub maxcmd: U16,
    /// Highest namespace number.
    pub nn: U32,
    /// Optional I/O commands: bits of [`oncs`].
    pub oncs: U16,
    /// Fused operations: bits of [`fuses`].
    pub fuses: U16,
    /// Format NVM attributes.
    pub fna: u8,
    /// Volatile write cache: bits of [`vwc`].
    pub vwc: u8,
    /// Blocks written atomically, less one.
    pub awun: U16,
    /// Blocks written atomically even across a power failure, less one.
    pub awupf: U16,
    /// I/O vendor commands have the standard format (NVSCC).
    pub nvscc: u8,
    /// Namespace write protection.
    pub nwpc: u8,
    /// Blocks compared and written atomically, less one.
    pub acwu: U16,
    /// Copy descriptor formats.
    pub cdfs: U16,
    /// Scatter gather lists; 0 for none.
    pub sgls: U32,
    /// Most namespaces at once; 0 for as many as `nn`.
    pub mnan: U32,
    /// Most attachments in the domain.
    pub maxdna: U128,
    /// Most attachments to one controller.
    pub maxcna: U32,
    /// Reserved.
    pub reserved564: [u8; 204],
    /// Subsystem's NVMe qualified name, in UTF-8, ended and padded by zeros.
    pub subnqn: [u8; 256],
    /// Reserved.
    pub reserved1024: [u8; 768],
    /// For NVMe over Fabrics.
    pub fabrics: [u8; 256],
    /// Power states 0 to 31.
    pub psd: [PowerState; 32],
    /// Vendor specific.
    pub vendor: [u8; 1024],
}

layout!(IdentifyController, 4096, {
    vid @ 0, ssvid @ 2, sn @ 4, mn @ 24, fr @ 64, rab @ 72, ieee @ 73, cmic @ 76, mdts @ 77,
    cntlid @ 78, ver @ 80, rtd3r @ 84, rtd3e @ 88, oaes @ 92, ctratt @ 96, rrls @ 100,
    cntrltype @ 111, fguid @ 112, crdt @ 128, nvmsr @ 253, vwci @ 254, mec @ 255,
    oacs @ 256, acl @ 258, aerl @ 259, frmw @ 260, lpa @ 261, elpe @ 262, npss @ 263,
    avscc @ 264, apsta @ 265, wctemp @ 266, cctemp @ 268, mtfa @ 270, hmpre @ 272,
    hmmin @ 276, tnvmcap @ 280, unvmcap @ 296, rpmbs @ 312, edstt @ 316, dsto @ 318,
    fwug @ 319, kas @ 320, hctma @ 322, mntmt @ 324, mxtmt @ 326, sanicap @ 328,
    hmminds @ 332, hmmaxd @ 336, nsetidmax @ 338, endgidmax @ 340, anatt @ 342,
    anacap @ 343, anagrpmax @ 344, nanagrpid @ 348, pels @ 352, domainid @ 356,
    megcap @ 368, sqes @ 512, cqes @ 513, maxcmd @ 514, nn @ 516, oncs @ 520, fuses @ 522,
    fna @ 524, vwc @ 525, awun @ 526, awupf @ 528, nvscc @ 530, nwpc @ 531, acwu @ 532,
    cdfs @ 534, sgls @ 536, mnan @ 540, maxdna @ 544, maxcna @ 560, subnqn @ 768,
    fabrics @ 1792, psd @ 2048, vendor @ 3072,
});

/// A power state (NVMe base 2.0, 5.17.2.1, power state descriptor).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct PowerState {
    /// Most power: in units of 0.01 W, or 0.1 mW if bit 0 of `flags` is set.
    pub mp: U16,
    /// Reserved.
    pub reserved2: u8,
    /// Bit 0: scale of `mp`; bit 1: no commands are processed in this state.
    pub flags: u8,
    /// Time to enter, in microseconds.
    pub enlat: U32,
    /// Time to leave, in microseconds.
    pub exlat: U32,
    /// Relative read throughput: lower is better.
    pub rrt: u8,
    /// Relative read latency: lower is better.
    pub rrl: u8,
    /// Relative write throughput: lower is better.
    pub rwt: u8,
    /// Relative write latency: lower is better.
    pub rwl: u8,
    /// Idle power.
    pub idlp: U16,
    /// Scale of `idlp`.
    pub ips: u8,
    /// Reserved.
    pub reserved19: u8,
    /// Active power.
    pub actp: U16,
    /// Workload and scale of `actp`.
    pub apws: u8,
    /// Reserved.
    pub reserved23: [u8; 9],
}

layout!(PowerState, 32, {
    mp @ 0, flags @ 3, enlat @ 4, exlat @ 8, rrt @ 12, rrl @ 13, rwt @ 14, rwl @ 15,
    idlp @ 16, ips @ 18, actp @ 20, apws @ 22,
});

impl PowerState {
    /// Bit of [`flags`](Self::flags): [`mp`](Self::mp) is in units of 0.1 mW.
    pub const FINE: u8 = 1 << 0;
    /// Bit of [`flags`](Self::flags): commands wait until the state is left.
    pub const NON_OPERATIONAL: u8 = 1 << 1;

    /// True if commands are processed in this state.
    pub fn is_operational(&self) -> bool {
        self.flags & PowerState::NON_OPERATIONAL == 0
    }

    /// Sets the maximum power, in milliwatts: rounded up, and saturated at the maximum of the field.
    pub fn with_milliwatts(self, most: u32) -> PowerState {
        let fine = most.checked_mul(10).and_then(|tenths| u16::try_from(tenths).ok());
        let coarse = u16::try_from(most.div_ceil(10)).unwrap_or(u16::MAX);
        match fine {
            Some(tenths) if !most.is_multiple_of(10) => {
                PowerState { mp: tenths.into(), flags: self.flags | PowerState::FINE, ..self }
            }
            _ => PowerState { mp: coarse.into(), ..self },
        }
    }
}

/// Bits of [`IdentifyController::cmic`].
pub mod cmic {
    /// The subsystem has, or may have, more than one port.
    pub const SEVERAL_PORTS: u8 = 1 << 0;
    /// The subsystem has, or may have, more than one controller.
    pub const SEVERAL_CONTROLLERS: u8 = 1 << 1;
}

/// Bits of [`IdentifyController::ctratt`].
pub mod ctratt {
    /// Host identifiers may have 16 bytes.
    pub const LONG_HOST_IDENTIFIERS: u32 = 1 << 0;
}

/// Bits of [`IdentifyController::oacs`].
pub mod oacs {
    /// Security Send and Receive.
    pub const SECURITY: u16 = 1 << 0;
    /// Format NVM.
    pub const FORMAT: u16 = 1 << 1;
    /// Firmware Commit and Image Download.
    pub const FIRMWARE: u16 = 1 << 2;
    /// Namespace Management and Attachment.
    pub const NAMESPACE_MANAGEMENT: u16 = 1 << 3;
    /// Device Self-test.
    pub const SELF_TEST: u16 = 1 << 4;
    /// Doorbell Buffer Config.
    pub const DOORBELL_BUFFER: u16 = 1 << 8;
}

/// Bits of [`IdentifyController::lpa`].
pub mod lpa {
    /// The SMART log is available per namespace.
    pub const SMART_PER_NAMESPACE: u8 = 1 << 0;
    /// The log of commands supported and their effects.
    pub const COMMANDS_SUPPORTED: u8 = 1 << 1;
    /// Get Log Page takes an offset, and lengths of more than 16 bits.
    pub const EXTENDED: u8 = 1 << 2;
}

/// Bits of [`IdentifyController::fuses`].
pub mod fuses {
    /// Compare followed by Write.
    pub const COMPARE_AND_WRITE: u16 = 1 << 0;
}

/// Bits of [`IdentifyController::oncs`].
pub mod oncs {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Features can be saved and selected.
    pub const FEATURE_SELECT: u16 = 1 << 4;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// The timestamp feature.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
    /// Copy.
    pub const COPY: u16 = 1 << 8;
}

/// Bits of [`IdentifyController::sgls`].
pub mod sgls {
    /// Bits 1:0: scatter gather lists are supported, with byte or dword granularity.
    pub const SUPPORTED: u32 = 3;
    /// Bits 1:0: any address and length, in bytes.
    pub const ANY_BYTE: u32 = 1;
    /// Bit bucket descriptors are supported.
    pub const BIT_BUCKET: u32 = 1 << 16;
    /// A list may be longer than the transfer of its command.
    pub const LONGER: u32 = 1 << 18;
    /// Metadata may be described by their own list.
    pub const METADATA: u32 = 1 << 19;
}

/// Bits of [`IdentifyController::vwc`].
pub mod vwc {
    /// There is a volatile write cache.
    pub const PRESENT: u8 = 1 << 0;
    /// Bits 2:1: Flush with the broadcast namespace is rejected.
    pub const NO_BROADCAST_FLUSH: u8 = 2 << 1;
    /// Bits 2:1: Flush with the broadcast namespace is supported.
    pub const BROADCAST_FLUSH: u8 = 3 << 1;
}

impl IdentifyController {
    /// The largest transfer of one command, in bytes; `None` for no limit.
    ///
    /// `page_bytes_min` is the smallest memory page, 4096 << CAP.MPSMIN.
    pub fn transfer_bytes_max(&self, page_bytes_min: u64) -> Option<u64> {
        if self.mdts == 0 {
            return None;
        }
        // A limit past 2^64 bytes is none.
        1u64.checked_shl(u32::from(self.mdts))?.checked_mul(page_bytes_min)
    }
}

impl Default for IdentifyController {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

impl Default for PowerState {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ascii_padded, ascii_text};
    use super::*;

    #[test]
    fn identify_controller_layout() {
        let mut identify = IdentifyController {
            vid: 0x1b36.into(),
            sn: ascii_padded("42").unwrap(),
            mn: ascii_padded("doorbell").unwrap(),
            mdts: 5,
            ver: 0x0002_0000.into(),
            sqes: 0x66,
            cqes: 0x44,
            nn: 1.into(),
            oncs: oncs::WRITE_ZEROES.into(),
            vwc: vwc::PRESENT | vwc::BROADCAST_FLUSH,
            ..IdentifyController::default()
        };
        identify.psd[1].enlat = 0x0100.into();
        let bytes = identify.as_bytes();
        assert_eq!(bytes[..8], [0x36, 0x1b, 0, 0, b'4', b'2', b' ', b' ']);
        assert_eq!(&bytes[24..34], b"doorbell  ");
        assert_eq!((bytes[77], bytes[82], bytes[525]), (5, 2, 7));
        assert_eq!(bytes[512..522], [0x66, 0x44, 0, 0, 1, 0, 0, 0, 8, 0]);
        assert_eq!(bytes[2048 + 32 + 5], 1);

        let read = IdentifyController::read_from_bytes(bytes).unwrap();
        assert_eq!(read, identify);
        assert_eq!(ascii_text(&read.mn), Some("doorbell"));
    }

    #[test]
    fn mdts_is_in_units_of_minimum_page() {
        let mdts = |mdts| IdentifyController { mdts, ..IdentifyController::default() };
        assert_eq!(mdts(0).transfer_bytes_max(4096), None);
        assert_eq!(mdts(5).transfer_bytes_max(4096), Some(128 << 10));
        assert_eq!(mdts(1).transfer_bytes_max(65536), Some(128 << 10));
        assert_eq!(mdts(63).transfer_bytes_max(4096), None);
        assert_eq!(mdts(255).transfer_bytes_max(4096), None);
    }
}
