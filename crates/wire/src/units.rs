//! Unlike numbers have unlike types.

use core::fmt;

/// A logical block's number in its namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// An address in host memory as the device sees it: what the device puts into a TLP.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusAddr(pub u64);

/// The number of a submission or completion queue; 0 is the admin queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u16);

/// The number by which a completion names its command, unique in one submission queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u16);

/// A namespace's number. Real ones begin at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nsid(pub u32);

impl BusAddr {
    /// The address `bytes` further on, or `None` past the end of the address space.
    pub const fn offset(self, bytes: u64) -> Option<BusAddr> {
        match self.0.checked_add(bytes) {
            Some(addr) => Some(BusAddr(addr)),
            None => None,
        }
    }

    /// How far into its page this address lies. `page_bytes` is a power of two.
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
    /// No namespace: the command concerns the controller.
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

/// A number prints as itself; the text around it says what it numbers.
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
    fn an_address_stops_at_the_end_of_the_address_space() {
        assert_eq!(BusAddr(0x1000).offset(0x234), Some(BusAddr(0x1234)));
        assert_eq!(BusAddr(u64::MAX).offset(0), Some(BusAddr(u64::MAX)));
        assert_eq!(BusAddr(u64::MAX).offset(1), None);
        assert_eq!(BusAddr(0x1234).page_offset(4096), 0x234);
        assert_eq!(BusAddr(0x1_1234).page_offset(65536), 0x1234);
    }

    #[test]
    fn addresses_print_in_hex_and_numbers_in_decimal() {
        assert_eq!(format!("{:?}", BusAddr(0xdead_b000)), "BusAddr(0xdeadb000)");
        assert_eq!(format!("LBA {} of {}", Lba(255), Nsid(1)), "LBA 255 of 1");
    }
}
