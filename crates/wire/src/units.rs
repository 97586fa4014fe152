//! Newtypes for numbers: LBA, bus address, queue, command and namespace identifiers.

use core::fmt;

/// Logical block address in a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// Address in host memory as the device uses it in a TLP.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusAddr(pub u64);

/// Identifier of a submission or completion queue; 0 is the admin queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u16);

/// Command identifier, unique in one submission queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u16);

/// Namespace identifier, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nsid(pub u32);

impl BusAddr {
    /// The address plus `bytes`; `None` past the end of the address space.
    pub const fn offset(self, bytes: u64) -> Option<BusAddr> {
        match self.0.checked_add(bytes) {
            Some(addr) => Some(BusAddr(addr)),
            None => None,
        }
    }

    /// Offset of this address in its page, bytes. `page_bytes` is a power of two.
    #[inline]
    pub const fn page_offset(self, page_bytes: u64) -> u64 {
        debug_assert!(page_bytes.is_power_of_two());
        self.0 & (page_bytes - 1)
    }
}

impl QueueId {
    /// The admin submission or completion queue.
    pub const ADMIN: QueueId = QueueId(0);
}

impl Nsid {
    /// No namespace: the command applies to the controller.
    pub const NONE: Nsid = Nsid(0);
    /// Every namespace (NVMe base 2.0, 3.2.1.2).
    pub const BROADCAST: Nsid = Nsid(0xffff_ffff);
}

impl fmt::Debug for BusAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BusAddr({:#x})", self.0)
    }
}

impl fmt::Display for BusAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Displays a bare number; the text around it names its type.
macro_rules! display_number {
    ($($unit:ident)*) => {$(
        impl fmt::Display for $unit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
display_number!(Lba QueueId CommandId Nsid);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn bus_addr_offset_is_none_on_overflow() {
        assert_eq!(BusAddr(0x1000).offset(0x234), Some(BusAddr(0x1234)));
        assert_eq!(BusAddr(u64::MAX).offset(0), Some(BusAddr(u64::MAX)));
        assert_eq!(BusAddr(u64::MAX).offset(1), None);
        assert_eq!(BusAddr(0x1234).page_offset(4096), 0x234);
        assert_eq!(BusAddr(0x1_1234).page_offset(65536), 0x1234);
    }

    #[test]
    fn units_display_hex_addresses_decimal_numbers() {
        assert_eq!(format!("{:?}", BusAddr(0xdead_b000)), "BusAddr(0xdeadb000)");
        assert_eq!(format!("LBA {} of {}", Lba(255), Nsid(1)), "LBA 255 of 1");
    }
}
