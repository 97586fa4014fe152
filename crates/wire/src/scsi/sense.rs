//! Sense data (SPC-4, 4.5).

use core::fmt;

use super::data::Data;

/// SENSE KEY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// No sense data.
    NoSense,
    /// Success after recovery by the unit.
    RecoveredError,
    /// The unit is not accessible now.
    NotReady,
    /// The medium failed.
    MediumError,
    /// A hardware failure other than of the medium.
    HardwareError,
    /// The command is invalid.
    IllegalRequest,
    /// The unit has changed since the last command.
    UnitAttention,
    /// The blocks are protected.
    DataProtect,
    /// A blank medium.
    BlankCheck,
    /// Vendor specific.
    VendorSpecific,
    /// A copy was aborted.
    CopyAborted,
    /// The unit aborted the command; a retry may succeed.
    AbortedCommand,
    /// Obsolete or reserved.
    Reserved,
    /// No space for all of the data.
    VolumeOverflow,
    /// Compared data differ.
    Miscompare,
    /// Success with sense data.
    Completed,
}

const KEYS: [Key; 16] = [
    Key::NoSense,
    Key::RecoveredError,
    Key::NotReady,
    Key::MediumError,
    Key::HardwareError,
    Key::IllegalRequest,
    Key::UnitAttention,
    Key::DataProtect,
    Key::BlankCheck,
    Key::VendorSpecific,
    Key::CopyAborted,
    Key::AbortedCommand,
    Key::Reserved,
    Key::VolumeOverflow,
    Key::Miscompare,
    Key::Completed,
];

/// ADDITIONAL SENSE CODE and its QUALIFIER, the code in the upper eight bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Additional(pub u16);

macro_rules! named {
    ($($value:literal $name:ident $text:literal;)+) => {
        impl Additional {
            $(#[doc = concat!($text, ".")]
              pub const $name: Additional = Additional($value);)+

            /// All named values with their names in SPC-4, annex F, in ascending order.
            pub const NAMED: &[(Additional, &str)] = &[$((Additional::$name, $text)),+];
        }
    };
}

named! {
    0x0000 NONE "NO ADDITIONAL SENSE INFORMATION";
    0x0300 WRITE_FAULT "PERIPHERAL DEVICE WRITE FAULT";
    0x0400 NOT_READY "LOGICAL UNIT NOT READY, CAUSE NOT REPORTABLE";
    0x0402 START_REQUIRED "LOGICAL UNIT NOT READY, INITIALIZING COMMAND REQUIRED";
    0x0404 FORMAT_IN_PROGRESS "LOGICAL UNIT NOT READY, FORMAT IN PROGRESS";
    0x0500 NO_RESPONSE "LOGICAL UNIT DOES NOT RESPOND TO SELECTION";
    0x0801 TIME_OUT "LOGICAL UNIT COMMUNICATION TIME-OUT";
    0x0b08 POWER_LOSS_EXPECTED "WARNING - POWER LOSS EXPECTED";
    0x0e03 INVALID_INFORMATION_UNIT "INVALID FIELD IN COMMAND INFORMATION UNIT";
    0x1001 GUARD_CHECK_FAILED "LOGICAL BLOCK GUARD CHECK FAILED";
    0x1002 APPLICATION_TAG_CHECK_FAILED "LOGICAL BLOCK APPLICATION TAG CHECK FAILED";
    0x1003 REFERENCE_TAG_CHECK_FAILED "LOGICAL BLOCK REFERENCE TAG CHECK FAILED";
    0x1100 UNRECOVERED_READ_ERROR "UNRECOVERED READ ERROR";
    0x1a00 LIST_LENGTH_ERROR "PARAMETER LIST LENGTH ERROR";
    0x1d00 MISCOMPARE "MISCOMPARE DURING VERIFY OPERATION";
    0x2000 INVALID_OPCODE "INVALID COMMAND OPERATION CODE";
    0x2002 NO_ACCESS_RIGHTS "ACCESS DENIED - NO ACCESS RIGHTS";
    0x2009 INVALID_UNIT_IDENTIFIER "ACCESS DENIED - INVALID LU IDENTIFIER";
    0x2100 LBA_OUT_OF_RANGE "LOGICAL BLOCK ADDRESS OUT OF RANGE";
    0x2400 INVALID_FIELD_IN_CDB "INVALID FIELD IN CDB";
    0x2500 UNIT_NOT_SUPPORTED "LOGICAL UNIT NOT SUPPORTED";
    0x2600 INVALID_FIELD_IN_LIST "INVALID FIELD IN PARAMETER LIST";
    0x2700 WRITE_PROTECTED "WRITE PROTECTED";
    0x2707 SPACE_ALLOCATION_FAILED "SPACE ALLOCATION FAILED WRITE PROTECT";
    0x2904 INTERNAL_RESET "DEVICE INTERNAL RESET";
    0x3101 FORMAT_FAILED "FORMAT COMMAND FAILED";
    0x3900 SAVING_NOT_SUPPORTED "SAVING PARAMETERS NOT SUPPORTED";
    0x4400 INTERNAL_TARGET_FAILURE "INTERNAL TARGET FAILURE";
    0x5503 INSUFFICIENT_RESOURCES "INSUFFICIENT RESOURCES";
}

impl Additional {
    /// Name in the specification, if this is one of [`Additional::NAMED`].
    pub fn name(self) -> Option<&'static str> {
        Additional::NAMED.iter().find(|(value, _)| *value == self).map(|(_, name)| *name)
    }
}

/// Example: "INVALID FIELD IN CDB (24h/00h)".
impl fmt::Display for Additional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [code, qualifier] = self.0.to_be_bytes();
        let name = self.name().unwrap_or("UNKNOWN");
        write!(f, "{name} ({code:02x}h/{qualifier:02x}h)")
    }
}

impl fmt::Debug for Additional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Position of a field in a command descriptor block: its byte, and its highest bit unless it is a whole
/// byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Byte, counted from 0.
    pub byte: u16,
    /// Most significant bit of the field, 7 to 0.
    pub bit: Option<u8>,
}

impl Field {
    /// A field that begins at this byte.
    pub const fn byte(byte: u8) -> Field {
        Field { byte: byte as u16, bit: None }
    }

    /// A field that begins at this bit.
    pub const fn bit(byte: u8, bit: u8) -> Field {
        Field { byte: byte as u16, bit: Some(bit) }
    }

    /// The sense-key specific bytes of a field pointer (SPC-4, 4.5.2.4.2).
    fn pointer(self) -> [u8; 3] {
        let bit = self.bit.map_or(0, |bit| BPV | bit & 7);
        let [high, low] = self.byte.to_be_bytes();
        [SKSV | IN_CDB | bit, high, low]
    }
}

/// The sense-key specific bytes are valid.
const SKSV: u8 = 0x80;
/// C/D: the error is in the command descriptor block, not in the data.
const IN_CDB: u8 = 0x40;
/// The bit pointer is valid.
const BPV: u8 = 0x08;

/// Current sense data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// Sense key.
    pub key: Key,
    /// Additional sense code and qualifier.
    pub additional: Additional,
    /// Invalid field, if any.
    pub field: Option<Field>,
    /// INFORMATION: the block concerned, if any.
    pub information: Option<u64>,
}

/// Bytes of sense data in the fixed format.
pub const FIXED_BYTES: usize = 18;

/// RESPONSE CODE: current information in the fixed format.
const FIXED_CURRENT: u8 = 0x70;
/// RESPONSE CODE: current information as descriptors.
const DESCRIPTOR_CURRENT: u8 = 0x72;
/// VALID, in the fixed format and in an information descriptor.
const VALID: u8 = 0x80;
/// Types of sense data descriptors.
const INFORMATION: u8 = 0x00;
const KEY_SPECIFIC: u8 = 0x02;

impl Sense {
    /// Sense data with codes only.
    pub const fn new(key: Key, additional: Additional) -> Sense {
        Sense { key, additional, field: None, information: None }
    }

    /// No sense data.
    pub const NONE: Sense = Sense::new(Key::NoSense, Additional::NONE);

    /// Sense data for an invalid field in the CDB.
    pub const fn invalid_field(field: Field) -> Sense {
        let sense = Sense::new(Key::IllegalRequest, Additional::INVALID_FIELD_IN_CDB);
        Sense { field: Some(field), ..sense }
    }

    /// Encodes in fixed format (SPC-4, 4.5.3). An LBA that does not fit is left out.
    pub fn fixed(&self) -> [u8; FIXED_BYTES] {
        let mut bytes = [0; FIXED_BYTES];
        bytes[0] = FIXED_CURRENT;
        bytes[2] = self.key as u8;
        if let Some(Ok(information)) = self.information.map(u32::try_from) {
            bytes[0] |= VALID;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[7] = FIXED_BYTES as u8 - 8;
        bytes[12..14].copy_from_slice(&self.additional.0.to_be_bytes());
        if let Some(field) = self.field {
            bytes[15..18].copy_from_slice(&field.pointer());
        }
        bytes
    }

    /// Encodes in descriptor format (SPC-4, 4.5.2).
    pub fn descriptors(&self) -> Data {
        let mut data = Data::new();
        data.put(&[DESCRIPTOR_CURRENT, self.key as u8]).put_u16(self.additional.0).put_zeros(4);
        if let Some(information) = self.information {
            data.put(&[INFORMATION, 10, VALID, 0]).put_u64(information);
        }
        if let Some(field) = self.field {
            data.put(&[KEY_SPECIFIC, 6, 0, 0]).put(&field.pointer()).put_zeros(1);
        }
        data.set(7, data.len() as u8 - 8);
        data
    }

    /// Decodes sense data of either format; `None` if they are too short, or of another format.
    pub fn parse(bytes: &[u8]) -> Option<Sense> {
        match bytes.first()? & 0x7f {
            FIXED_CURRENT => Sense::parse_fixed(bytes),
            DESCRIPTOR_CURRENT => Sense::parse_descriptors(bytes),
            _ => None,
        }
    }

    fn parse_fixed(bytes: &[u8]) -> Option<Sense> {
        let &[response, _, key, a, b, c, d, additional, ref rest @ ..] = bytes else { return None };
        // Bytes beyond the additional length are not sense data.
        let rest = &rest[..rest.len().min(usize::from(additional))];
        let byte = |at: usize| rest.get(at - 8).copied();
        let code = Additional(u16::from_be_bytes([byte(12)?, byte(13)?]));
        let information = u64::from(u32::from_be_bytes([a, b, c, d]));
        let specific = byte(15).zip(byte(16)).zip(byte(17)).map(|((x, y), z)| [x, y, z]);
        Some(Sense {
            field: specific.and_then(field),
            information: (response & VALID != 0).then_some(information),
            ..Sense::new(KEYS[usize::from(key & 0xf)], code)
        })
    }

    fn parse_descriptors(bytes: &[u8]) -> Option<Sense> {
        let &[_, key, code, qualifier, _, _, _, additional, ref rest @ ..] = bytes else {
            return None;
        };
        let mut rest = &rest[..rest.len().min(usize::from(additional))];
        let code = Additional(u16::from_be_bytes([code, qualifier]));
        let mut sense = Sense::new(KEYS[usize::from(key & 0xf)], code);
        while let &[kind, length, ref more @ ..] = rest {
            let Some(body) = more.get(..usize::from(length)) else { break };
            match (kind, body) {
                (INFORMATION, &[flags, _, a, b, c, d, e, f, g, h, ..]) if flags & VALID != 0 => {
                    sense.information = Some(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
                }
                (KEY_SPECIFIC, &[_, _, x, y, z, ..]) => sense.field = field([x, y, z]),
                _ => {}
            }
            rest = &more[usize::from(length)..];
        }
        Some(sense)
    }
}

/// Target of a field pointer, if it is valid and points into the command descriptor block.
fn field([flags, high, low]: [u8; 3]) -> Option<Field> {
    let valid = flags & (SKSV | IN_CDB) == SKSV | IN_CDB;
    let bit = (flags & BPV != 0).then_some(flags & 7);
    valid.then_some(Field { byte: u16::from_be_bytes([high, low]), bit })
}

/// Example: "IllegalRequest: INVALID FIELD IN CDB (24h/00h), byte 1, bit 7".
impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.key, self.additional)?;
        if let Some(field) = self.field {
            write!(f, ", byte {}", field.byte)?;
            if let Some(bit) = field.bit {
                write!(f, ", bit {bit}")?;
            }
        }
        match self.information {
            Some(lba) => write!(f, ", LBA {lba}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn sense_fixed_format_layout() {
        let sense =
            Sense { information: Some(0x0102_0304), ..Sense::invalid_field(Field::bit(1, 7)) };
        #[rustfmt::skip]
        assert_eq!(sense.fixed(), [
            0xf0, 0, 0x05, 1, 2, 3, 4, 10, 0, 0, 0, 0, 0x24, 0x00, 0, 0xcf, 0, 1,
        ]);
        let far = Sense { information: Some(1 << 32), ..Sense::NONE };
        assert_eq!(far.fixed()[..7], [0x70, 0, 0, 0, 0, 0, 0], "no room for 33 bits");
    }

    #[test]
    fn sense_descriptor_format_layout() {
        let sense = Sense { information: Some(1 << 32), ..Sense::invalid_field(Field::byte(2)) };
        #[rustfmt::skip]
        assert_eq!(sense.descriptors().as_slice(), [
            0x72, 0x05, 0x24, 0x00, 0, 0, 0, 20,
            0x00, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0,
            0x02, 6, 0, 0, 0xc0, 0, 2, 0,
        ]);
    }

    #[test]
    fn sense_display_has_code_and_field() {
        let text = "IllegalRequest: INVALID FIELD IN CDB (24h/00h), byte 1, bit 7";
        assert_eq!(format!("{}", Sense::invalid_field(Field::bit(1, 7))), text);
    }

    #[test]
    fn additional_sense_names_are_sorted_and_unique() {
        for pair in Additional::NAMED.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{} comes before {}", pair[0].1, pair[1].1);
        }
    }
}
