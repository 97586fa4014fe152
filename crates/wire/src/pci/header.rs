//! The first 64 bytes of a configuration space, as read by a driver: identity, base addresses, and the
//! buses and windows of a bridge.

use super::{Pin, offset};

/// A configuration space that can be read word by word.
pub trait Words {
    /// The 32-bit word at offset `at`, a multiple of four. All ones outside the space.
    fn word(&self, at: u16) -> u32;
}

impl Words for [u32] {
    fn word(&self, at: u16) -> u32 {
        self.get(usize::from(at) / 4).copied().unwrap_or(u32::MAX)
    }
}

/// Bits of the command register (PCI local bus 3.0, 6.2.2).
pub mod command {
    /// Enables I/O accesses; a bridge forwards them.
    pub const IO: u16 = 1;
    /// Enables memory accesses; a bridge forwards them.
    pub const MEMORY: u16 = 1 << 1;
    /// Enables memory accesses by the function; a bridge forwards those from behind it.
    pub const BUS_MASTER: u16 = 1 << 2;
    /// Disables INTx.
    pub const INTX_DISABLE: u16 = 1 << 10;
}

/// Status: there is a capabilities list (PCI local bus 3.0, 6.2.3).
pub const STATUS_CAPABILITIES: u16 = 1 << 4;

/// Base classes (PCI code and ID assignment 1.11, 1).
pub mod class {
    /// Mass storage controllers.
    pub const STORAGE: u8 = 0x01;
    /// Network controllers.
    pub const NETWORK: u8 = 0x02;
    /// Bridges.
    pub const BRIDGE: u8 = 0x06;
    /// Base class, subclass and programming interface of an NVMe controller.
    pub const NVME: u32 = 0x01_0802;
    /// Base class, subclass and programming interface of a mass storage controller whose registers its vendor
    /// defines.
    pub const OTHER_STORAGE: u32 = 0x01_8000;
}

/// Layout of the header's second half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Type 0: a device.
    Device,
    /// Type 1: a bridge to another PCI bus.
    Bridge,
    /// Other layout, by its number.
    Other(u8),
}

impl Layout {
    /// Number of base address registers.
    pub fn bars(self) -> u8 {
        match self {
            Layout::Device => 6,
            Layout::Bridge => 2,
            Layout::Other(_) => 0,
        }
    }
}

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier.
    pub device: u16,
    /// Status register.
    pub status: u16,
    /// Base class, subclass and programming interface: 010802h is NVMe.
    pub class: u32,
    /// Revision.
    pub revision: u8,
    /// Layout of the second half.
    pub layout: Layout,
    /// True if the device may have functions other than 0.
    pub multifunction: bool,
    /// Interrupt pin, if any.
    pub pin: Option<Pin>,
}

impl Header {
    /// Reads the header. `None` if there is no function.
    pub fn read(words: &(impl Words + ?Sized)) -> Option<Header> {
        let first = words.word(offset::VENDOR as u16);
        let vendor = first as u16;
        // All ones is read if no function responds; all zeros is no vendor either.
        if vendor == 0xffff || vendor == 0 {
            return None;
        }
        let class = words.word(offset::REVISION as u16);
        let kind = (words.word(offset::HEADER_TYPE as u16 & !3) >> 16) as u8;
        Some(Header {
            vendor,
            device: (first >> 16) as u16,
            status: (words.word(offset::COMMAND as u16) >> 16) as u16,
            class: class >> 8,
            revision: class as u8,
            layout: match kind & 0x7f {
                0 => Layout::Device,
                1 => Layout::Bridge,
                other => Layout::Other(other),
            },
            multifunction: kind & 0x80 != 0,
            pin: Pin::from_register((words.word(offset::INTERRUPT as u16) >> 8) as u8),
        })
    }

    /// Base class.
    pub fn base_class(&self) -> u8 {
        (self.class >> 16) as u8
    }
}

/// Bus numbers of a bridge (PCI-to-PCI bridge 1.2, 3.2.5.2 to 3.2.5.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buses {
    /// Bus on the primary side.
    pub primary: u8,
    /// Bus on the secondary side. 0: not configured.
    pub secondary: u8,
    /// Highest bus number behind the bridge.
    pub subordinate: u8,
}

impl Buses {
    /// Decodes the word at [`offset::PRIMARY`]; its top byte is the secondary latency timer.
    pub fn from_word(word: u32) -> Buses {
        let [primary, secondary, subordinate, _] = word.to_le_bytes();
        Buses { primary, secondary, subordinate }
    }

    /// Encodes the word at [`offset::PRIMARY`].
    pub fn to_word(self) -> u32 {
        u32::from_le_bytes([self.primary, self.secondary, self.subordinate, 0])
    }

    /// True if configuration accesses to this bus go through the bridge.
    pub fn reach(self, bus: u8) -> bool {
        self.secondary != 0 && (self.secondary..=self.subordinate).contains(&bus)
    }
}

/// Address spaces for which a bridge has windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// I/O space.
    Io,
    /// Memory below 4 GiB whose reads may have side effects.
    Memory,
    /// Prefetchable memory, at any address.
    Prefetchable,
}

impl Space {
    /// All spaces.
    pub const ALL: [Space; 3] = [Space::Io, Space::Memory, Space::Prefetchable];

    /// Granularity of a bridge's window, in bytes.
    pub const fn granule(self) -> u64 {
        match self {
            Space::Io => 4 << 10,
            Space::Memory | Space::Prefetchable => 1 << 20,
        }
    }
}

/// Addresses that a bridge forwards, inclusive. The window is closed if `limit` is below `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First address.
    pub base: u64,
    /// Last address.
    pub limit: u64,
}

impl Window {
    /// A closed window, in a form that registers of every width can hold.
    pub const CLOSED: Window = Window { base: u64::MAX, limit: 0 };

    /// A window of `bytes` bytes from `base` on.
    pub fn of(base: u64, bytes: u64) -> Window {
        match bytes {
            0 => Window::CLOSED,
            bytes => Window { base, limit: base + (bytes - 1) },
        }
    }

    /// True if `bytes` bytes from `at` on are inside.
    pub fn holds(self, at: u64, bytes: u64) -> bool {
        let last = at.checked_add(bytes.saturating_sub(1));
        self.base <= at && last.is_some_and(|last| last <= self.limit)
    }

    /// Decodes a bridge's registers (PCI-to-PCI bridge 1.2, 3.2.5.6 to 3.2.5.10).
    pub fn read(words: &(impl Words + ?Sized), space: Space) -> Window {
        let (at, upper) = match space {
            Space::Io => {
                let (low, high) = (words.word(offset::IO_BASE), words.word(offset::IO_UPPER));
                let wide = low & 0xf == 1;
                let end = |low: u32, high: u32| {
                    u64::from(low & 0xf0) << 8
                        | if wide { u64::from(high & 0xffff) << 16 } else { 0 }
                };
                let base = end(low, high);
                return Window { base, limit: end(low >> 8, high >> 16) | 0xfff };
            }
            Space::Memory => (offset::MEMORY_BASE, None),
            Space::Prefetchable => {
                let at = offset::PREFETCHABLE_BASE;
                let wide = words.word(at) & 0xf == 1;
                (at, wide.then_some(offset::PREFETCHABLE_UPPER))
            }
        };
        let word = words.word(at);
        let upper = |by: u16| upper.map_or(0, |at| u64::from(words.word(at + by)) << 32);
        let base = u64::from(word & 0xfff0) << 16 | upper(0);
        Window { base, limit: u64::from(word >> 16 & 0xfff0) << 16 | upper(4) | 0xf_ffff }
    }

    /// Register values: base and limit, upper half of the base, upper half of the limit.
    pub fn to_words(self, space: Space) -> (u32, u32, u32) {
        let (base, limit) = (self.base, self.limit);
        match space {
            Space::Io => {
                let low = (base >> 8 & 0xf0) as u32 | (limit & 0xf000) as u32;
                (low, (base >> 16) as u32 & 0xffff, (limit >> 16) as u32 & 0xffff)
            }
            Space::Memory | Space::Prefetchable => {
                let low = (base >> 16 & 0xfff0) as u32 | (limit & 0xfff0_0000) as u32;
                (low, (base >> 32) as u32, (limit >> 32) as u32)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pairs: &[(u16, u32)]) -> [u32; 16] {
        let mut words = [0; 16];
        pairs.iter().for_each(|(at, word)| words[usize::from(*at) / 4] = *word);
        words
    }

    #[test]
    fn header_read_identity_and_layout() {
        let read = words(&[
            (0x00, 0x0010_1b36),
            (0x04, 0x0010_0000),
            (0x08, 0x0108_0202),
            (0x0c, 0x0080_0000),
            (0x3c, 0x0000_0300),
        ]);
        let header = Header::read(&read[..]).unwrap();
        assert_eq!((header.vendor, header.device), (0x1b36, 0x0010));
        assert_eq!((header.class, header.revision, header.base_class()), (class::NVME, 2, 1));
        assert_eq!((header.layout, header.multifunction), (Layout::Device, true));
        assert_eq!((header.pin, header.status), (Some(Pin::C), STATUS_CAPABILITIES));
        for absent in [u32::MAX, 0, 0x1234_ffff, 0x1234_0000] {
            assert_eq!(Header::read(&words(&[(0, absent)])[..]), None);
        }
    }

    #[test]
    fn bridge_window_round_trip() {
        let wide = |space, window: Window| {
            let (low, base, limit) = window.to_words(space);
            let bits = if space == Space::Memory { 0 } else { 1 };
            let both = if space == Space::Io { bits | bits << 8 } else { bits | bits << 16 };
            let pairs = match space {
                Space::Io => {
                    [(offset::IO_BASE, low | both), (offset::IO_UPPER, base | limit << 16), (0, 0)]
                }
                Space::Memory => [(offset::MEMORY_BASE, low), (0, 0), (0, 0)],
                Space::Prefetchable => [
                    (offset::PREFETCHABLE_BASE, low | both),
                    (offset::PREFETCHABLE_UPPER, base),
                    (offset::PREFETCHABLE_UPPER + 4, limit),
                ],
            };
            Window::read(&words(&pairs)[..], space)
        };
        let windows = [
            (Space::Io, Window::of(0xc000, 0x3000)),
            (Space::Io, Window::of(0x2_c000, 0x1000)),
            (Space::Memory, Window::of(0xc010_0000, 0x20_0000)),
            (Space::Prefetchable, Window::of(0x8_0000_0000, 0x1_0010_0000)),
        ];
        for (space, window) in windows {
            assert_eq!(wide(space, window), window, "{space:?}");
        }
        for space in Space::ALL {
            let closed = wide(space, Window::CLOSED);
            assert!(closed.base > closed.limit, "{space:?}: {closed:?}");
        }
    }

    #[test]
    fn bridge_bus_range() {
        let buses = Buses::from_word(0x4005_0302);
        assert_eq!(buses, Buses { primary: 2, secondary: 3, subordinate: 5 });
        assert_eq!(buses.to_word(), 0x0005_0302);
        assert_eq!((0..=255).filter(|bus| buses.reach(*bus)).count(), 3);
        assert!(!Buses { primary: 0, secondary: 0, subordinate: 255 }.reach(0));
    }
}
