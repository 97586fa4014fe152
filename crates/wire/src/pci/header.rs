//! The first 64 bytes of a configuration space, as a driver reads them: who it is, its base addresses, and
//! of a bridge the buses and the windows behind it.

use super::{Pin, offset};

/// Something whose configuration space can be read word by word.
pub trait Words {
    /// The 32-bit word at this offset, a multiple of four. All ones outside.
    fn word(&self, at: u16) -> u32;
}

impl Words for [u32] {
    fn word(&self, at: u16) -> u32 {
        self.get(usize::from(at) / 4).copied().unwrap_or(u32::MAX)
    }
}

/// Bits of the command register (PCI local bus 3.0, 6.2.2).
pub mod command {
    /// Port accesses are answered, or passed on by a bridge.
    pub const IO: u16 = 1;
    /// Memory accesses are answered, or passed on by a bridge.
    pub const MEMORY: u16 = 1 << 1;
    /// The function may access memory itself; a bridge passes on what comes from behind it.
    pub const BUS_MASTER: u16 = 1 << 2;
    /// INTx is not to be asserted.
    pub const INTX_DISABLE: u16 = 1 << 10;
}

/// Status: there is a list of capabilities (PCI local bus 3.0, 6.2.3).
pub const STATUS_CAPABILITIES: u16 = 1 << 4;

/// Base classes (PCI code and ID assignment 1.11, 1).
pub mod class {
    /// Mass storage controllers.
    pub const STORAGE: u8 = 0x01;
    /// Network controllers.
    pub const NETWORK: u8 = 0x02;
    /// Bridges.
    pub const BRIDGE: u8 = 0x06;
    /// Base class, subclass and programming interface of an NVM Express controller.
    pub const NVME: u32 = 0x01_0802;
}

/// What the header's second half is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Type 0: a device.
    Device,
    /// Type 1: a bridge to another PCI bus.
    Bridge,
    /// Another, which nobody here knows: its number.
    Other(u8),
}

impl Layout {
    /// How many base address registers it has.
    pub fn bars(self) -> u8 {
        match self {
            Layout::Device => 6,
            Layout::Bridge => 2,
            Layout::Other(_) => 0,
        }
    }
}

/// A header, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier.
    pub device: u16,
    /// Status.
    pub status: u16,
    /// Base class, subclass and programming interface: 010802h is NVMe.
    pub class: u32,
    /// Revision.
    pub revision: u8,
    /// What the second half is.
    pub layout: Layout,
    /// Whether the device has more functions than the first.
    pub multifunction: bool,
    /// The pin of its interrupt, if it has one.
    pub pin: Option<Pin>,
}

impl Header {
    /// Reads it. None: nobody is there.
    pub fn read(words: &(impl Words + ?Sized)) -> Option<Header> {
        let first = words.word(offset::VENDOR as u16);
        let vendor = first as u16;
        // All ones is what comes back where nobody answers; all zeros is no vendor either.
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

    /// The base class.
    pub fn base_class(&self) -> u8 {
        (self.class >> 16) as u8
    }
}

/// The buses that a bridge stands between (PCI-to-PCI bridge 1.2, 3.2.5.2 to 3.2.5.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buses {
    /// The bus it is on.
    pub primary: u8,
    /// The bus behind it. 0: it has not been told.
    pub secondary: u8,
    /// The last bus that is reached through it.
    pub subordinate: u8,
}

impl Buses {
    /// As the word at [`offset::PRIMARY`] has them; its top byte is the secondary latency timer.
    pub fn from_word(word: u32) -> Buses {
        let [primary, secondary, subordinate, _] = word.to_le_bytes();
        Buses { primary, secondary, subordinate }
    }

    /// The same the other way round.
    pub fn to_word(self) -> u32 {
        u32::from_le_bytes([self.primary, self.secondary, self.subordinate, 0])
    }

    /// Whether configuration accesses to this bus go through it.
    pub fn reach(self, bus: u8) -> bool {
        self.secondary != 0 && (self.secondary..=self.subordinate).contains(&bus)
    }
}

/// The kinds of address space that a bridge has windows for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// Ports.
    Io,
    /// Memory below 4 GiB whose reads may have effects.
    Memory,
    /// Memory whose reads have none, wherever it lies.
    Prefetchable,
}

impl Space {
    /// All of them.
    pub const ALL: [Space; 3] = [Space::Io, Space::Memory, Space::Prefetchable];

    /// What the ends of a bridge's window are multiples of, in bytes.
    pub const fn granule(self) -> u64 {
        match self {
            Space::Io => 4 << 10,
            Space::Memory | Space::Prefetchable => 1 << 20,
        }
    }
}

/// The addresses that a bridge passes on, from the first to the last. None pass if the last is below the
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first.
    pub base: u64,
    /// The last.
    pub limit: u64,
}

impl Window {
    /// Nothing passes, in the form that registers of every width can hold.
    pub const CLOSED: Window = Window { base: u64::MAX, limit: 0 };

    /// Of so many bytes from `base` on.
    pub fn of(base: u64, bytes: u64) -> Window {
        match bytes {
            0 => Window::CLOSED,
            bytes => Window { base, limit: base + (bytes - 1) },
        }
    }

    /// Whether so many bytes from here on lie inside.
    pub fn holds(self, at: u64, bytes: u64) -> bool {
        let last = at.checked_add(bytes.saturating_sub(1));
        self.base <= at && last.is_some_and(|last| last <= self.limit)
    }

    /// As a bridge's registers have it (PCI-to-PCI bridge 1.2, 3.2.5.6 to 3.2.5.10).
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

    /// What goes into the register, and into those of the upper halves: of base, of limit.
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
    fn a_header_says_who_is_there() {
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
        for nobody in [u32::MAX, 0, 0x1234_ffff, 0x1234_0000] {
            assert_eq!(Header::read(&words(&[(0, nobody)])[..]), None);
        }
    }

    #[test]
    fn a_window_survives_its_registers() {
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
    fn a_bridge_reaches_its_buses_and_no_others() {
        let buses = Buses::from_word(0x4005_0302);
        assert_eq!(buses, Buses { primary: 2, secondary: 3, subordinate: 5 });
        assert_eq!(buses.to_word(), 0x0005_0302);
        assert_eq!((0..=255).filter(|bus| buses.reach(*bus)).count(), 3);
        assert!(!Buses { primary: 0, secondary: 0, subordinate: 255 }.reach(0));
    }
}
