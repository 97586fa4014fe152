//! Namespace identification descriptors, CNS 03h (NVMe base 2.0, 5.17.2.3).

use super::IDENTIFY_BYTES;

/// Persistent identifiers of a namespace. A namespace has at least one of the first three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdDescriptors {
    /// IEEE extended unique identifier, big endian.
    pub eui64: Option<[u8; 8]>,
    /// Namespace globally unique identifier, big endian.
    pub nguid: Option<[u8; 16]>,
    /// UUID of RFC 4122, big endian.
    pub uuid: Option<[u8; 16]>,
    /// The command set: [`super::csi`].
    pub csi: Option<u8>,
}

const NIDT_EUI64: u8 = 1;
const NIDT_NGUID: u8 = 2;
const NIDT_UUID: u8 = 3;
const NIDT_CSI: u8 = 4;

/// Bytes of NIDT, NIDL and two reserved bytes before each identifier.
const HEADER_BYTES: usize = 4;

/// Descriptors that a controller has no business to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDescriptors {
    /// The identifier of type `nidt` at byte `at` has `nidl` bytes, not as many as its type says.
    #[error(
        "namespace identifier of type {nidt} at byte {at} has length {nidl}, \
         expected 8, 16, 16, 1 for types 1 to 4"
    )]
    Length {
        /// Offset of the descriptor, bytes.
        at: usize,
        /// Type of the identifier.
        nidt: u8,
        /// Length of the identifier, bytes.
        nidl: u8,
    },
    /// The descriptor at byte `at` runs past the end.
    #[error("namespace identifier at byte {at} runs past byte {}", IDENTIFY_BYTES)]
    Truncated {
        /// Offset of the descriptor, bytes.
        at: usize,
    },
}

impl IdDescriptors {
    /// The descriptors as sent by the controller, terminated by zeros.
    pub fn to_bytes(&self) -> [u8; IDENTIFY_BYTES] {
        let mut bytes = [0; IDENTIFY_BYTES];
        let mut at = 0;
        let mut push = |nidt: u8, id: &[u8]| {
            bytes[at..at + 2].copy_from_slice(&[nidt, id.len() as u8]);
            bytes[at + HEADER_BYTES..at + HEADER_BYTES + id.len()].copy_from_slice(id);
            at += HEADER_BYTES + id.len();
        };
        if let Some(eui64) = self.eui64 {
            push(NIDT_EUI64, &eui64);
        }
        if let Some(nguid) = self.nguid {
            push(NIDT_NGUID, &nguid);
        }
        if let Some(uuid) = self.uuid {
            push(NIDT_UUID, &uuid);
        }
        if let Some(csi) = self.csi {
            push(NIDT_CSI, &[csi]);
        }
        bytes
    }

    /// Parses descriptors from a controller. Unknown types are skipped.
    ///
    /// # Errors
    /// If an identifier has the wrong length for its type, or runs past the end.
    pub fn parse(bytes: &[u8; IDENTIFY_BYTES]) -> Result<IdDescriptors, BadDescriptors> {
        let mut found = IdDescriptors::default();
        let mut at = 0;
        // The list ends with a length of zero, or with the page.
        while at + HEADER_BYTES <= bytes.len() && bytes[at + 1] != 0 {
            let (nidt, nidl) = (bytes[at], bytes[at + 1]);
            let body = at + HEADER_BYTES;
            let end = body + usize::from(nidl);
            let id = bytes.get(body..end).ok_or(BadDescriptors::Truncated { at })?;
            let wrong = |_| BadDescriptors::Length { at, nidt, nidl };
            match nidt {
                NIDT_EUI64 => found.eui64 = Some(id.try_into().map_err(wrong)?),
                NIDT_NGUID => found.nguid = Some(id.try_into().map_err(wrong)?),
                NIDT_UUID => found.uuid = Some(id.try_into().map_err(wrong)?),
                NIDT_CSI => {
                    let [csi] = id.try_into().map_err(wrong)?;
                    found.csi = Some(csi);
                }
                _ => {}
            }
            at = end;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_descriptors_round_trip() {
        let ids = IdDescriptors {
            eui64: Some([1, 2, 3, 4, 5, 6, 7, 8]),
            csi: Some(0),
            ..IdDescriptors::default()
        };
        let bytes = ids.to_bytes();
        assert_eq!(bytes[..12], [1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[12..20], [4, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(IdDescriptors::parse(&bytes), Ok(ids));

        let all = IdDescriptors { nguid: Some([9; 16]), uuid: Some([7; 16]), ..ids };
        assert_eq!(IdDescriptors::parse(&all.to_bytes()), Ok(all));
        let none = IdDescriptors::default();
        assert_eq!(IdDescriptors::parse(&none.to_bytes()), Ok(none));
    }

    #[test]
    fn unknown_descriptor_types_are_skipped() {
        let mut bytes = [0; IDENTIFY_BYTES];
        bytes[..6].copy_from_slice(&[0x77, 2, 0, 0, 0xaa, 0xbb]);
        bytes[6..11].copy_from_slice(&[4, 1, 0, 0, 2]);
        assert_eq!(IdDescriptors::parse(&bytes).unwrap().csi, Some(2));
    }

    #[test]
    fn invalid_descriptors_are_errors() {
        let mut bytes = [0; IDENTIFY_BYTES];
        bytes[..2].copy_from_slice(&[1, 9]);
        let wrong = BadDescriptors::Length { at: 0, nidt: 1, nidl: 9 };
        assert_eq!(IdDescriptors::parse(&bytes), Err(wrong));
        // Fifteen descriptors of 4 + 255 bytes, then one that does not fit in the page.
        let mut bytes = [0xff; IDENTIFY_BYTES];
        let parsed = IdDescriptors::parse(&bytes);
        assert_eq!(parsed, Err(BadDescriptors::Truncated { at: 15 * 259 }));
        for fill in 0..=u8::MAX {
            bytes.fill(fill);
            let _ = IdDescriptors::parse(&bytes);
        }
    }
}
