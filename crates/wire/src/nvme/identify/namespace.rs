//! Identify Namespace, CNS 00h (NVM command set 1.0, 4.1.5.1).

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nvme::layout;

/// Properties of a namespace. [`Default`] is all zeros, as for an inactive one.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Size, in blocks: LBAs run from 0 to one less.
    pub nsze: U64,
    /// Blocks that can be allocated at once.
    pub ncap: U64,
    /// Blocks now allocated.
    pub nuse: U64,
    /// Features: bits of [`nsfeat`].
    pub nsfeat: u8,
    /// LBA formats, less one.
    pub nlbaf: u8,
    /// Format in use: number in bits 3:0 and 6:5; bit 4: metadata follows each block's data.
    pub flbas: u8,
    /// Metadata capabilities.
    pub mc: u8,
    /// Protection information capabilities.
    pub dpc: u8,
    /// Protection information settings.
    pub dps: u8,
    /// Bit 0: several controllers may attach it.
    pub nmic: u8,
    /// Reservations.
    pub rescap: u8,
    /// Progress of a format.
    pub fpi: u8,
    /// Read value of a deallocated block: bits 2:0 0 not specified, 1 zeros, 2 all ones.
    pub dlfeat: u8,
    /// Same as AWUN, for this namespace.
    pub nawun: U16,
    /// Same as AWUPF, for this namespace.
    pub nawupf: U16,
    /// Same as ACWU, for this namespace.
    pub nacwu: U16,
    /// Atomic boundary, in blocks less one.
    pub nabsn: U16,
    /// First atomic boundary.
    pub nabo: U16,
    /// Atomic boundary for power failures, in blocks less one.
    pub nabspf: U16,
    /// Optimal I/O boundary, in blocks; 0 for none.
    pub noiob: U16,
    /// Capacity, in bytes.
    pub nvmcap: U128,
    /// Preferred write granularity, in blocks less one.
    pub npwg: U16,
    /// Preferred write alignment, in blocks less one.
    pub npwa: U16,
    /// Preferred deallocation granularity, in blocks less one.
    pub npdg: U16,
    /// Preferred deallocation alignment, in blocks less one.
    pub npda: U16,
    /// Optimal write size, in blocks less one.
    pub nows: U16,
    /// Most blocks of one source range of a Copy.
    pub mssrl: U16,
    /// Most blocks of a Copy.
    pub mcl: U32,
    /// Most source ranges of a Copy, less one.
    pub msrc: u8,
    /// Reserved.
    pub reserved81: [u8; 11],
    /// Asymmetric access group.
    pub anagrpid: U32,
    /// Reserved.
    pub reserved96: [u8; 3],
    /// Bit 0: write protected now.
    pub nsattr: u8,
    /// NVM set.
    pub nvmsetid: U16,
    /// Endurance group.
    pub endgid: U16,
    /// Globally unique, 16 bytes, big endian; zeros for none.
    pub nguid: [u8; 16],
    /// Globally unique, 8 bytes, big endian; zeros for none.
    pub eui64: [u8; 8],
    /// LBA formats 0 to 63.
    pub lbaf: [LbaFormat; 64],
    /// Vendor specific.
    pub vendor: [u8; 3712],
}

layout!(IdentifyNamespace, 4096, {
    nsze @ 0, ncap @ 8, nuse @ 16, nsfeat @ 24, nlbaf @ 25, flbas @ 26, mc @ 27, dpc @ 28,
    dps @ 29, nmic @ 30, rescap @ 31, fpi @ 32, dlfeat @ 33, nawun @ 34, nawupf @ 36,
    nacwu @ 38, nabsn @ 40, nabo @ 42, nabspf @ 44, noiob @ 46, nvmcap @ 48, npwg @ 64,
    npwa @ 66, npdg @ 68, npda @ 70, nows @ 72, mssrl @ 74, mcl @ 76, msrc @ 80,
    anagrpid @ 92, nsattr @ 99, nvmsetid @ 100, endgid @ 102, nguid @ 104, eui64 @ 120,
    lbaf @ 128, vendor @ 384,
});

/// Bits of [`IdentifyNamespace::nsfeat`].
pub mod nsfeat {
    /// Thin provisioning: fewer blocks may be allocated than the size.
    pub const THIN: u8 = 1 << 0;
    /// NAWUN, NAWUPF and NACWU apply, not the controller's values.
    pub const OWN_ATOMICITY: u8 = 1 << 1;
    /// Reads of unwritten blocks can return an error.
    pub const UNWRITTEN_ERROR: u8 = 1 << 2;
    /// NPWG, NPWA, NPDG, NPDA and NOWS apply.
    pub const OPTIMAL_SIZES: u8 = 1 << 4;
}

/// Format of a block.
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
pub struct LbaFormat {
    /// Metadata, in bytes.
    pub ms: U16,
    /// LBADS: data of `1 << ds` bytes, at least 512; 0 for a format not available.
    pub ds: u8,
    /// Relative performance in bits 1:0, from 0 for best.
    pub rp: u8,
}

layout!(LbaFormat, 4, { ms @ 0, ds @ 2, rp @ 3 });

impl LbaFormat {
    /// Data bytes of a block; `None` if the format is invalid.
    pub fn block_bytes(&self) -> Option<u64> {
        if (9..64).contains(&self.ds) { Some(1 << self.ds) } else { None }
    }
}

impl IdentifyNamespace {
    /// The format in use; `None` if its number is out of range.
    pub fn format(&self) -> Option<LbaFormat> {
        // Bits 6:5 apply only with more than 16 formats.
        let high = if self.nlbaf > 15 { self.flbas >> 5 & 3 } else { 0 };
        let index = high << 4 | self.flbas & 0xf;
        if index > self.nlbaf {
            return None;
        }
        self.lbaf.get(usize::from(index)).copied()
    }

    /// True if metadata, if any, follow each block's data instead of having their own buffer.
    pub fn metadata_is_inline(&self) -> bool {
        self.flbas & 1 << 4 != 0
    }
}

impl Default for IdentifyNamespace {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identify_namespace_layout() {
        let mut identify = IdentifyNamespace {
            nsze: 0x0102_0304.into(),
            nlbaf: 1,
            flbas: 1,
            dlfeat: 1,
            eui64: [1, 2, 3, 4, 5, 6, 7, 8],
            ..IdentifyNamespace::default()
        };
        identify.lbaf[0].ds = 9;
        identify.lbaf[1] = LbaFormat { ms: 8.into(), ds: 12, rp: 0 };
        let bytes = identify.as_bytes();
        assert_eq!(bytes[..8], [4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!((bytes[25], bytes[26], bytes[33]), (1, 1, 1));
        assert_eq!(bytes[120..136], [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 9, 0, 8, 0, 12, 0]);
        let read = IdentifyNamespace::read_from_bytes(bytes).unwrap();
        assert_eq!(read.format().unwrap().block_bytes(), Some(4096));
    }

    #[test]
    fn unavailable_lba_format_is_none() {
        let mut identify = IdentifyNamespace { nlbaf: 1, flbas: 2, ..Default::default() };
        assert_eq!(identify.format(), None);
        // Bits 6:5 are ignored with 16 formats or fewer, and apply with more.
        identify.flbas = 0b110_0001;
        assert_eq!(identify.format(), Some(LbaFormat::default()));
        assert!(!identify.metadata_is_inline());
        assert!(IdentifyNamespace { flbas: 0x11, ..identify }.metadata_is_inline());
        identify.nlbaf = 63;
        identify.lbaf[0b11_0001].ds = 9;
        assert_eq!(identify.format().unwrap().block_bytes(), Some(512));
        for ds in [0, 8, 64, 255] {
            assert_eq!(LbaFormat { ds, ..LbaFormat::default() }.block_bytes(), None);
        }
    }
}
