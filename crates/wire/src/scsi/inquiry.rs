//! INQUIRY data: standard (SPC-4, 6.6.2) and the pages of vital product data (SPC-4, 7.8; SBC-3, 6.6).

use super::capacity::Unmapped;
use super::data::Data;

/// Identity of a logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// T10 VENDOR IDENTIFICATION, padded with blanks.
    pub vendor: [u8; 8],
    /// PRODUCT IDENTIFICATION, padded with blanks.
    pub product: [u8; 16],
    /// PRODUCT REVISION LEVEL, padded with blanks.
    pub revision: [u8; 4],
    /// PRODUCT SERIAL NUMBER, padded with blanks.
    pub serial: [u8; 20],
    /// EUI-64, if any.
    pub eui64: Option<[u8; 8]>,
    /// EUI-64-based identifier of 16 bytes, NGUID in NVMe, if any.
    pub nguid: Option<[u8; 16]>,
    /// Rotation rate of its medium.
    pub rotation: Rotation,
}

/// MEDIUM ROTATION RATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// Non-rotating.
    None,
    /// Not reported.
    Unknown,
    /// Revolutions per minute, 1025 to 65534.
    PerMinute(u16),
}

/// Limits of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of blocks per command.
    pub transfer_max: u32,
    /// Optimal number of blocks per command.
    pub transfer_optimal: u32,
    /// Maximum number of blocks per UNMAP, in all its ranges; 0 if UNMAP is not supported.
    pub unmap_max: u32,
    /// Maximum number of ranges per UNMAP.
    pub unmap_ranges_max: u32,
}

/// PAGE CODE.
pub mod page {
    /// Supported VPD pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Unit serial number.
    pub const SERIAL: u8 = 0x80;
    /// Device identification.
    pub const IDENTIFICATION: u8 = 0x83;
    /// Block limits.
    pub const BLOCK_LIMITS: u8 = 0xb0;
    /// Block device characteristics.
    pub const CHARACTERISTICS: u8 = 0xb1;
    /// Logical block provisioning.
    pub const PROVISIONING: u8 = 0xb2;
}

/// Supported pages in ascending order; the last only with provisioning.
const PAGES: [u8; 6] = [
    page::SUPPORTED,
    page::SERIAL,
    page::IDENTIFICATION,
    page::BLOCK_LIMITS,
    page::CHARACTERISTICS,
    page::PROVISIONING,
];

/// VERSION: SPC-4.
const SPC_4: u8 = 0x06;
/// Version descriptors: SAM-5, SPC-4 and SBC-3, no version claimed.
const VERSIONS: [u16; 3] = [0x00a0, 0x0460, 0x04c0];
/// PERIPHERAL QUALIFIER and DEVICE TYPE without a unit.
const NO_UNIT: u8 = 0x7f;
/// Bytes of standard INQUIRY data.
const STANDARD_BYTES: usize = 96;

/// Standard INQUIRY data of a connected disk.
pub fn standard(identity: &Identity) -> Data {
    let mut data = Data::new();
    // HISUP, response data format 2; CMDQUE.
    data.put(&[0, 0, SPC_4, 0x12, STANDARD_BYTES as u8 - 5, 0, 0, 0x02]);
    data.put(&identity.vendor).put(&identity.product).put(&identity.revision);
    data.put_zeros(58 - data.len());
    for version in VERSIONS {
        data.put_u16(version);
    }
    data.put_zeros(STANDARD_BYTES - data.len());
    data
}

/// Standard INQUIRY data without a unit (SPC-4, 6.6.2, PERIPHERAL QUALIFIER 011b).
pub fn no_unit() -> Data {
    let mut data = Data::new();
    data.put(&[NO_UNIT, 0, SPC_4, 0x02, STANDARD_BYTES as u8 - 5]);
    data.put_zeros(STANDARD_BYTES - data.len());
    data
}

/// VPD page with this number; `None` if it is not supported.
pub fn vital(number: u8, identity: &Identity, limits: &Limits, unmapped: Unmapped) -> Option<Data> {
    let provisioned = unmapped != Unmapped::Never;
    let mut data = Data::new();
    data.put(&[0, number, 0, 0]);
    match number {
        page::SUPPORTED => data.put(&PAGES[..PAGES.len() - usize::from(!provisioned)]),
        page::SERIAL => data.put(&identity.serial),
        page::IDENTIFICATION => identification(&mut data, identity),
        page::BLOCK_LIMITS => data
            .put_zeros(4)
            .put_u32(limits.transfer_max)
            .put_u32(limits.transfer_optimal)
            // No prefetch.
            .put_zeros(4)
            .put_u32(limits.unmap_max)
            .put_u32(limits.unmap_ranges_max)
            // No granularity of unmap, no write same, no atomic writes.
            .put_zeros(36),
        page::CHARACTERISTICS => data.put_u16(identity.rotation.rate()).put_zeros(58),
        page::PROVISIONING if provisioned => {
            // LBPU, and LBPRZ; all blocks have space: resource provisioned (SBC-3, 6.6.5).
            let zeros = unmapped == Unmapped::Zeros;
            data.put(&[0, 1 << 7 | u8::from(zeros) << 2, 1, 0])
        }
        _ => return None,
    };
    data.set_u16(2, data.len() as u16 - 4);
    Some(data)
}

/// Designators of the unit: by vendor, and by EUI-64 or NGUID if present (SPC-4, 7.8.6).
fn identification<'a>(data: &'a mut Data, identity: &Identity) -> &'a mut Data {
    const BINARY: u8 = 1;
    const ASCII: u8 = 2;
    const T10_VENDOR: u8 = 1;
    const EUI64: u8 = 2;
    if let Some(nguid) = identity.nguid {
        data.put(&[BINARY, EUI64, 0, 16]).put(&nguid);
    }
    if let Some(eui64) = identity.eui64 {
        data.put(&[BINARY, EUI64, 0, 8]).put(&eui64);
    }
    let (vendor, product, serial) = (&identity.vendor, &identity.product, &identity.serial);
    let length = (vendor.len() + product.len() + serial.len()) as u8;
    data.put(&[ASCII, T10_VENDOR, 0, length]).put(vendor).put(product).put(serial)
}

impl Rotation {
    fn rate(self) -> u16 {
        match self {
            Rotation::Unknown => 0,
            Rotation::None => 1,
            Rotation::PerMinute(rate) => rate,
        }
    }

    /// Decodes the field of the block device characteristics page.
    pub const fn of(rate: u16) -> Rotation {
        match rate {
            1 => Rotation::None,
            1025..=0xfffe => Rotation::PerMinute(rate),
            _ => Rotation::Unknown,
        }
    }
}

/// Fields of standard INQUIRY data used by an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandardInquiry {
    /// True for a connected direct-access block device.
    pub is_disk: bool,
    /// T10 VENDOR IDENTIFICATION.
    pub vendor: [u8; 8],
    /// PRODUCT IDENTIFICATION.
    pub product: [u8; 16],
    /// PRODUCT REVISION LEVEL.
    pub revision: [u8; 4],
}

/// Decodes standard INQUIRY data; `None` if they are shorter than the minimum of 36 bytes.
pub fn parse_standard(bytes: &[u8]) -> Option<StandardInquiry> {
    let field = |at: usize, bytes: &mut [u8], from: &[u8]| {
        bytes.copy_from_slice(&from[at..at + bytes.len()]);
    };
    let from = bytes.get(..36)?;
    let mut seen = StandardInquiry {
        is_disk: from[0] == 0,
        vendor: [0; 8],
        product: [0; 16],
        revision: [0; 4],
    };
    field(8, &mut seen.vendor, from);
    field(16, &mut seen.product, from);
    field(32, &mut seen.revision, from);
    Some(seen)
}

/// Decodes the block limits page; `None` if it is too short, or another page.
pub fn parse_limits(bytes: &[u8]) -> Option<Limits> {
    let from = bytes.get(..16).filter(|from| from[1] == page::BLOCK_LIMITS)?;
    let number =
        |at: usize| u32::from_be_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]]);
    let unmap = bytes.get(20..28).map_or((0, 0), |from| {
        let number =
            |at: usize| from[at..at + 4].iter().fold(0, |n, byte| n << 8 | u32::from(*byte));
        (number(0), number(4))
    });
    Some(Limits {
        transfer_max: number(8),
        transfer_optimal: number(12),
        unmap_max: unmap.0,
        unmap_ranges_max: unmap.1,
    })
}
