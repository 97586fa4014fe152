//! Identity that a driver requires of a function before it uses it.

use core::fmt;

use thiserror::Error;

use super::config::{Identity, offset};
use super::header::class;

/// Length of the header's part that names a function, bytes.
pub const NAMED_BYTES: usize = offset::REVISION + 4;

/// Functions that one driver can drive: those of a class, or one vendor's device of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionKind {
    /// Class, subclass and programming interface.
    pub class: u32,
    /// Vendor and device identifier; `None`: any, because the class defines the registers.
    pub ids: Option<(u16, u16)>,
}

impl FunctionKind {
    /// NVMe controllers of any vendor.
    pub const NVME: FunctionKind = FunctionKind { class: class::NVME, ids: None };

    /// The kind of a function with this identity. Class [`class::OTHER_STORAGE`] defines no registers, so the
    /// identifiers belong to the kind.
    pub fn of(identity: &Identity) -> FunctionKind {
        let ids = (identity.vendor, identity.device);
        let ids = (identity.class == class::OTHER_STORAGE).then_some(ids);
        FunctionKind { class: identity.class, ids }
    }

    /// Validates the first bytes of a function's configuration space.
    ///
    /// # Errors
    /// The function is of another kind.
    pub fn validate(self, header: &[u8; NAMED_BYTES]) -> Result<(), WrongFunction> {
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let [_, interface, subclass, base] = [0, 1, 2, 3].map(|n| header[offset::REVISION + n]);
        let ids = (half(offset::VENDOR), half(offset::VENDOR + 2));
        let class = u32::from_be_bytes([0, base, subclass, interface]);
        if class == self.class && self.ids.is_none_or(|expected| expected == ids) {
            return Ok(());
        }
        let found = FunctionKind { class, ids: Some(ids) };
        Err(WrongFunction { found, expected: self })
    }
}

impl fmt::Display for FunctionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}", self.class)?;
        match self.ids {
            Some((vendor, device)) => write!(f, " ({vendor:04x}:{device:04x})"),
            None => Ok(()),
        }
    }
}

/// A function of another kind than its driver requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is of class {found}, expected {expected}")]
pub struct WrongFunction {
    /// Kind of the function, with its identifiers.
    pub found: FunctionKind,
    /// Kind that the driver requires.
    pub expected: FunctionKind,
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    const NVME: [u8; 12] = [0xb1, 0x0d, 1, 0, 6, 0, 0x10, 0, 1, 2, 8, 1];
    const BLOCK: [u8; 12] = [0xb1, 0x0d, 2, 0, 6, 0, 0x10, 0, 1, 0, 0x80, 1];

    #[test]
    fn class_alone_or_with_ids_selects_a_driver() {
        let block = FunctionKind { class: class::OTHER_STORAGE, ids: Some((0x0db1, 2)) };
        let other = FunctionKind { ids: Some((0x0db1, 3)), ..block };
        assert_eq!(FunctionKind::NVME.validate(&NVME), Ok(()));
        assert_eq!(block.validate(&BLOCK), Ok(()));
        for (kind, header, said) in [
            (block, NVME, "it is of class 010802 (0db1:0001), expected 018000 (0db1:0002)"),
            (other, BLOCK, "it is of class 018000 (0db1:0002), expected 018000 (0db1:0003)"),
            (FunctionKind::NVME, BLOCK, "it is of class 018000 (0db1:0002), expected 010802"),
        ] {
            assert_eq!(kind.validate(&header).unwrap_err().to_string(), said);
        }
    }
}
