//! Configuration space of a function as a block of bytes, some of them writable by the host.

use super::address::Pin;
use super::capability::{Msix, id};
use super::header::{STATUS_CAPABILITIES, Words, command};

/// Size of the configuration space of a PCI Express function, bytes (PCIe base 5.0, 7.2).
pub const CONFIG_BYTES: usize = 4096;
/// Size of an MSI-X table entry, bytes: address, data, control (PCIe base 5.0, 7.7.2).
pub const MSIX_ENTRY_BYTES: u32 = 16;

/// Register offsets, in bytes.
pub mod offset {
    /// Vendor identifier; the device identifier follows.
    pub const VENDOR: usize = 0x00;
    /// Command.
    pub const COMMAND: usize = 0x04;
    /// Status.
    pub const STATUS: usize = 0x06;
    /// Revision; the class code follows.
    pub const REVISION: usize = 0x08;
    /// Header type.
    pub const HEADER_TYPE: usize = 0x0e;
    /// The first of six base address registers.
    pub const BARS: usize = 0x10;
    /// Bridge: primary bus number; secondary and subordinate bus, and a timer follow.
    pub const PRIMARY: u16 = 0x18;
    /// Bridge: base of the I/O window; the limit follows.
    pub const IO_BASE: u16 = 0x1c;
    /// Bridge: base of the memory window; the limit follows.
    pub const MEMORY_BASE: u16 = 0x20;
    /// Bridge: base of the prefetchable window; the limit follows.
    pub const PREFETCHABLE_BASE: u16 = 0x24;
    /// Bridge: upper half of the prefetchable base; that of the limit follows.
    pub const PREFETCHABLE_UPPER: u16 = 0x28;
    /// Bridge: upper half of the I/O base; that of the limit follows.
    pub const IO_UPPER: u16 = 0x30;
    /// Subsystem vendor identifier; the subsystem identifier follows.
    pub const SUBSYSTEM: usize = 0x2c;
    /// Capabilities pointer.
    pub const CAPABILITIES: usize = 0x34;
    /// Interrupt line; the pin follows.
    pub const INTERRUPT: usize = 0x3c;
    /// The power management capability.
    pub const POWER: usize = 0x40;
    /// The MSI-X capability.
    pub const MSIX: usize = 0x50;
    /// The PCI Express capability.
    pub const EXPRESS: usize = 0x60;
    /// The device serial number, an extended capability.
    pub const SERIAL: usize = 0x100;
}

/// Command bits implemented by a function: memory, bus master, parity error response, SERR#, INTx disable.
const COMMAND_WRITABLE: u16 =
    command::MEMORY | command::BUS_MASTER | 1 << 6 | 1 << 8 | command::INTX_DISABLE;
/// Command bits implemented by a bridge: I/O too.
const BRIDGE_COMMAND_WRITABLE: u16 = COMMAND_WRITABLE | command::IO;

/// Identifier 3, version 1, no next capability.
const EXT_CAP_SERIAL: u32 = 0x0001_0003;

/// Class, subclass and programming interface of a bridge between PCI buses.
const BRIDGE_CLASS: u32 = 0x06_0400;

/// Device capabilities: role-based error reporting, required since 1.1.
const EXPRESS_ROLE_BASED: u32 = 1 << 15;
/// Device capabilities: function-level reset.
const EXPRESS_FLR: u32 = 1 << 28;
/// Device control: initiates a function-level reset; reads as zero.
const EXPRESS_START_FLR: u16 = 1 << 15;
/// Device control after reset: relaxed ordering, no snoop, reads of 512 bytes.
const EXPRESS_CONTROL_RESET: u16 = 1 << 4 | 1 << 11 | 2 << 12;
const EXPRESS_CONTROL: usize = offset::EXPRESS + 0x08;

/// A memory BAR of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// BAR number. A 64-bit BAR takes the next number too.
    pub number: usize,
    /// Length in bytes, a power of two of at least 16.
    pub bytes: u32,
    /// True for a 64-bit BAR.
    pub wide: bool,
    /// True if reads have no side effects, so that a bridge may prefetch.
    pub prefetchable: bool,
}

/// Location of the MSI-X table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixTable {
    /// Number of vectors, 1 to 2048.
    pub vectors: u16,
    /// BAR number of the table and the pending bits.
    pub bar: u8,
    /// Offset of the table in the BAR, bytes; a multiple of 8.
    pub table: u32,
    /// Offset of the pending bits in the BAR, bytes; a multiple of 8.
    pub pending: u32,
}

/// Identity of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor identifier, also of the subsystem.
    pub vendor: u16,
    /// Device identifier, also of the subsystem.
    pub device: u16,
    /// Class, subclass and programming interface: 010802h is NVMe.
    pub class: u32,
    /// Revision.
    pub revision: u8,
    /// Memory BARs.
    pub bars: [Option<Bar>; 2],
    /// MSI-X table.
    pub msix: MsixTable,
    /// Interrupt pin; `None` if it interrupts by messages only.
    pub pin: Option<Pin>,
    /// Link generation, from 1, as in the link registers.
    pub link_generation: u8,
    /// Number of lanes.
    pub link_lanes: u8,
    /// Device serial number.
    pub serial: u64,
}

/// Identity of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeIdentity {
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier.
    pub device: u16,
    /// Device or port type of PCI Express (PCIe base 5.0, 7.5.3.2); `None` for a bridge between
    /// conventional buses.
    pub port: Option<u8>,
    /// True if its prefetchable window has 64-bit addresses.
    pub wide: bool,
}

/// Side effects of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// A function-level reset was initiated.
    pub reset: bool,
}

/// Configuration space as read and written by a host.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: [u8; CONFIG_BYTES],
    /// Mask of the bits that a host may change.
    writable: [u8; CONFIG_BYTES],
}

impl ConfigSpace {
    /// The configuration space after a reset.
    ///
    /// # Panics
    /// If a BAR's length is not a power of two, or the number of vectors is out of range.
    pub fn new(identity: &Identity) -> ConfigSpace {
        let mut space = ConfigSpace { bytes: [0; CONFIG_BYTES], writable: [0; CONFIG_BYTES] };
        space.put_header(identity);
        space.put_power();
        space.put_msix(identity.msix);
        space.put_express(identity);
        space.put_u32(offset::SERIAL, EXT_CAP_SERIAL, 0);
        space.put_u32(offset::SERIAL + 4, identity.serial as u32, 0);
        space.put_u32(offset::SERIAL + 8, (identity.serial >> 32) as u32, 0);
        space
    }

    /// The configuration space of a bridge after a reset (PCI-to-PCI bridge 1.2, 3.2). It has one function,
    /// no interrupt pin and no BARs.
    pub fn bridge(identity: BridgeIdentity) -> ConfigSpace {
        let mut space = ConfigSpace { bytes: [0; CONFIG_BYTES], writable: [0; CONFIG_BYTES] };
        space.put_u16(offset::VENDOR, identity.vendor, 0);
        space.put_u16(offset::VENDOR + 2, identity.device, 0);
        space.put_u16(offset::COMMAND, 0, BRIDGE_COMMAND_WRITABLE);
        space.put_u32(offset::REVISION, BRIDGE_CLASS << 8, 0);
        space.put_u8(0x0c, 0, 0xff);
        space.put_u8(offset::HEADER_TYPE, 1, 0);
        space.put_u32(offset::PRIMARY.into(), 0, 0x00ff_ffff);
        // I/O addresses of 16 bits; the other bases and limits are fully writable.
        space.put_u16(offset::IO_BASE.into(), 0, 0xf0f0);
        space.put_u32(offset::MEMORY_BASE.into(), 0, 0xfff0_fff0);
        let wide = u32::from(identity.wide);
        space.put_u32(offset::PREFETCHABLE_BASE.into(), wide << 16 | wide, 0xfff0_fff0);
        let upper = if identity.wide { u32::MAX } else { 0 };
        space.put_u32(offset::PREFETCHABLE_UPPER.into(), 0, upper);
        space.put_u32(usize::from(offset::PREFETCHABLE_UPPER) + 4, 0, upper);
        space.put_u8(offset::INTERRUPT, 0, 0xff);
        // Bridge control: parity, SERR#, ISA, VGA and secondary reset are writable, without effect.
        space.put_u16(offset::INTERRUPT + 2, 0, 0x004f);
        if let Some(port) = identity.port {
            space.put_u16(offset::STATUS, STATUS_CAPABILITIES, 0);
            space.put_u8(offset::CAPABILITIES, offset::EXPRESS as u8, 0);
            space.put_capability(offset::EXPRESS, id::EXPRESS, 0);
            space.put_u16(offset::EXPRESS + 0x02, 2 | u16::from(port) << 4, 0);
            space.put_u32(offset::EXPRESS + 0x04, EXPRESS_ROLE_BASED, 0);
        }
        space
    }

    fn put_header(&mut self, identity: &Identity) {
        self.put_u16(offset::VENDOR, identity.vendor, 0);
        self.put_u16(offset::VENDOR + 2, identity.device, 0);
        self.put_u16(offset::COMMAND, 0, COMMAND_WRITABLE);
        self.put_u16(offset::STATUS, STATUS_CAPABILITIES, 0);
        self.put_u32(offset::REVISION, identity.class << 8 | u32::from(identity.revision), 0);
        // The cache line size is writable, without effect.
        self.put_u8(0x0c, 0, 0xff);
        for bar in identity.bars.iter().flatten() {
            assert!(bar.bytes.is_power_of_two() && bar.bytes >= 16, "{bar:?}");
            let at = offset::BARS + 4 * bar.number;
            // Bits 2:1 are the width (PCI local bus 3.0, 6.2.5.1); bits below the length stay zero, by
            // which a host determines the length.
            let kind = u32::from(bar.wide) << 2 | u32::from(bar.prefetchable) << 3;
            self.put_u32(at, kind, !(bar.bytes - 1));
            if bar.wide {
                self.put_u32(at + 4, 0, u32::MAX);
            }
        }
        self.put_u16(offset::SUBSYSTEM, identity.vendor, 0);
        self.put_u16(offset::SUBSYSTEM + 2, identity.device, 0);
        self.put_u8(offset::CAPABILITIES, offset::POWER as u8, 0);
        self.put_u8(offset::INTERRUPT, 0xff, 0xff);
        self.put_u8(offset::INTERRUPT + 1, identity.pin.map_or(0, |pin| pin.number() + 1), 0);
    }

    fn put_power(&mut self) {
        self.put_capability(offset::POWER, id::POWER, offset::MSIX);
        // Version 3; D1, D2 and power management events are not supported.
        self.put_u16(offset::POWER + 2, 3, 0);
        // The power state is writable; bit 3: registers survive D3hot.
        self.put_u16(offset::POWER + 4, 1 << 3, 0b11);
    }

    fn put_msix(&mut self, msix: MsixTable) {
        assert!((1..=2048).contains(&msix.vectors), "{msix:?}");
        self.put_capability(offset::MSIX, id::MSIX, offset::EXPRESS);
        self.put_u16(offset::MSIX + 2, msix.vectors - 1, Msix::FUNCTION_MASK | Msix::ENABLE);
        self.put_u32(offset::MSIX + 4, msix.table | u32::from(msix.bar), 0);
        self.put_u32(offset::MSIX + 8, msix.pending | u32::from(msix.bar), 0);
    }

    fn put_express(&mut self, identity: &Identity) {
        let at = offset::EXPRESS;
        self.put_capability(at, id::EXPRESS, 0);
        // Version 2, an endpoint.
        self.put_u16(at + 0x02, 2, 0);
        self.put_u32(at + 0x04, EXPRESS_ROLE_BASED | EXPRESS_FLR, 0);
        self.put_u16(EXPRESS_CONTROL, EXPRESS_CONTROL_RESET, !EXPRESS_START_FLR);
        let link = u32::from(identity.link_generation) | u32::from(identity.link_lanes) << 4;
        self.put_u32(at + 0x0c, link, 0);
        // Active-state power management, common clock, extended synch: writable, without effect.
        self.put_u16(at + 0x10, 0, 0x00c3);
        self.put_u16(at + 0x12, link as u16, 0);
        // All rates up to this one, starting at bit 1.
        self.put_u32(at + 0x2c, (1 << (identity.link_generation + 1)) - 2, 0);
        self.put_u16(at + 0x30, u16::from(identity.link_generation), 0x000f);
    }

    fn put_capability(&mut self, at: usize, id: u8, next: usize) {
        self.put_u8(at, id, 0);
        self.put_u8(at + 1, next as u8, 0);
    }

    fn put_u8(&mut self, at: usize, value: u8, writable: u8) {
        self.bytes[at] = value;
        self.writable[at] = writable;
    }

    fn put_u16(&mut self, at: usize, value: u16, writable: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        self.writable[at..at + 2].copy_from_slice(&writable.to_le_bytes());
    }

    fn put_u32(&mut self, at: usize, value: u32, writable: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self.writable[at..at + 4].copy_from_slice(&writable.to_le_bytes());
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Sets the multi-function bit of the header type.
    pub fn set_multifunction(&mut self) {
        self.bytes[offset::HEADER_TYPE] |= 0x80;
    }

    /// Copies bytes out. Returns false, and copies nothing, if the range is not inside.
    pub fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let Some(range) = inside(at, to.len()) else { return false };
        to.copy_from_slice(&self.bytes[range]);
        true
    }

    /// Changes the writable bits of these bytes. Returns `None`, and changes nothing, if the range is not
    /// inside.
    pub fn write(&mut self, at: u64, from: &[u8]) -> Option<Effects> {
        let range = inside(at, from.len())?;
        let start_reset = EXPRESS_CONTROL + 1;
        let reset = range.contains(&start_reset)
            && from[start_reset - range.start] & (EXPRESS_START_FLR >> 8) as u8 != 0;
        for (place, value) in range.zip(from) {
            let writable = self.writable[place];
            self.bytes[place] = self.bytes[place] & !writable | value & writable;
        }
        Some(Effects { reset })
    }

    /// True if the function may access memory.
    pub fn bus_master(&self) -> bool {
        self.u16_at(offset::COMMAND) & command::BUS_MASTER != 0
    }

    /// True if INTx may be asserted: not disabled, and not replaced by MSI-X.
    pub fn intx_enabled(&self) -> bool {
        self.u16_at(offset::COMMAND) & command::INTX_DISABLE == 0 && !self.msix_enabled()
    }

    /// True if MSI-X is enabled and the function mask is clear.
    pub fn msix_unmasked(&self) -> bool {
        let control = self.u16_at(offset::MSIX + 2);
        control & (Msix::ENABLE | Msix::FUNCTION_MASK) == Msix::ENABLE
    }

    /// True if MSI-X is enabled.
    pub fn msix_enabled(&self) -> bool {
        self.u16_at(offset::MSIX + 2) & Msix::ENABLE != 0
    }
}

impl Words for ConfigSpace {
    fn word(&self, at: u16) -> u32 {
        let mut bytes = [0xff; 4];
        self.read(u64::from(at & !3), &mut bytes);
        u32::from_le_bytes(bytes)
    }
}

fn inside(at: u64, bytes: usize) -> Option<core::ops::Range<usize>> {
    let start = usize::try_from(at).ok().filter(|start| *start <= CONFIG_BYTES)?;
    (bytes <= CONFIG_BYTES - start).then(|| start..start + bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            vendor: 0x1234,
            device: 0x5678,
            class: 0x01_0802,
            revision: 1,
            bars: [
                Some(Bar { number: 0, bytes: 0x4000, wide: true, prefetchable: false }),
                Some(Bar { number: 4, bytes: 0x1000, wide: false, prefetchable: true }),
            ],
            msix: MsixTable { vectors: 64, bar: 4, table: 0, pending: 0x800 },
            pin: Some(Pin::B),
            link_generation: 4,
            link_lanes: 4,
            serial: 0x0123_4567_89ab_cdef,
        }
    }

    fn word(space: &ConfigSpace, at: usize) -> u32 {
        let mut bytes = [0; 4];
        assert!(space.read(at as u64, &mut bytes));
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn bar_sizing_by_writing_ones() {
        let mut space = ConfigSpace::new(&identity());
        space.write(0x10, &[0xff; 24]).unwrap();
        assert_eq!(word(&space, 0x10), 0xffff_c004);
        assert_eq!(word(&space, 0x14), 0xffff_ffff);
        assert_eq!((word(&space, 0x18), word(&space, 0x1c)), (0, 0));
        assert_eq!(word(&space, 0x20), 0xffff_f008);
        assert_eq!(word(&space, offset::INTERRUPT) >> 8, 2);
        assert_eq!(word(&space, 0x24), 0);
    }

    #[test]
    fn config_space_capability_list() {
        let space = ConfigSpace::new(&identity());
        let (mut at, mut seen) = (word(&space, offset::CAPABILITIES) as u8, [0; 3]);
        for id in &mut seen {
            let header = word(&space, usize::from(at));
            (*id, at) = (header as u8, (header >> 8) as u8);
        }
        assert_eq!((seen, at), ([id::POWER, id::MSIX, id::EXPRESS], 0));
        assert_eq!(word(&space, offset::STATUS & !3) >> 16, u32::from(STATUS_CAPABILITIES));
        // 64 vectors; generation 4, 4 lanes; rates 1 to 4.
        assert_eq!(word(&space, offset::MSIX) >> 16, 63);
        assert_eq!(word(&space, offset::EXPRESS + 0x0c), 0x44);
        assert_eq!(word(&space, offset::EXPRESS + 0x2c), 0b1_1110);
        assert_eq!(word(&space, offset::SERIAL), 0x0001_0003);
    }

    #[test]
    fn config_write_changes_only_writable_bits() {
        let mut space = ConfigSpace::new(&identity());
        let before = space.clone();
        assert_eq!(space.write(0, &[0xff; CONFIG_BYTES]), Some(Effects { reset: true }));
        for at in 0..CONFIG_BYTES {
            let changed = space.bytes[at] ^ before.bytes[at];
            assert_eq!(changed & !before.writable[at], 0, "byte {at:#x}");
        }
        assert!(space.bus_master() && space.msix_enabled() && !space.intx_enabled());
        // The bit that initiates a reset reads as zero.
        assert_eq!(space.u16_at(EXPRESS_CONTROL) & EXPRESS_START_FLR, 0);
        assert_eq!(space.write(EXPRESS_CONTROL as u64, &[0]), Some(Effects { reset: false }));
    }

    #[test]
    fn bridge_config_keeps_buses_and_windows() {
        use super::super::{Buses, Header, Layout, Space, Window};
        let wide = BridgeIdentity { vendor: 1, device: 2, port: Some(4), wide: true };
        let mut space = ConfigSpace::bridge(wide);
        let header = Header::read(&space).unwrap();
        assert_eq!((header.layout, header.class, header.pin), (Layout::Bridge, 0x06_0400, None));
        let buses = Buses { primary: 1, secondary: 2, subordinate: 9 };
        space.write(offset::PRIMARY.into(), &buses.to_word().to_le_bytes());
        assert_eq!(Buses::from_word(space.word(offset::PRIMARY)), buses);
        let window = Window::of(0x8_0010_0000, 0x30_0000);
        let (low, base, limit) = window.to_words(Space::Prefetchable);
        let at = offset::PREFETCHABLE_BASE;
        for (by, word) in [(0, low), (4, base), (8, limit)] {
            space.write(u64::from(at + by), &word.to_le_bytes());
        }
        assert_eq!(Window::read(&space, Space::Prefetchable), window);
        assert_eq!(Window::read(&space, Space::Memory), Window { base: 0, limit: 0xf_ffff });
    }

    #[test]
    fn config_access_outside_space_fails() {
        let mut space = ConfigSpace::new(&identity());
        assert!(space.read(4095, &mut [0]));
        for (at, bytes) in [(4095, 2), (4096, 1), (u64::MAX, 1), (0, 4097)] {
            assert!(!space.read(at, &mut [0; 4097][..bytes]), "{bytes} at {at:#x}");
            assert_eq!(space.write(at, &[0; 4097][..bytes]), None, "{bytes} at {at:#x}");
        }
        assert!(space.read(4096, &mut []));
    }
}
