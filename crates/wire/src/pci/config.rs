//! The configuration space as a block of bytes, some of which a host may write.

use super::address::Pin;
use super::capability::{Msix, id};
use super::header::{STATUS_CAPABILITIES, Words, command};

/// Bytes of the configuration space of a PCI Express function (PCIe base 5.0, 7.2).
pub const CONFIG_BYTES: usize = 4096;
/// Bytes of an entry of the MSI-X table: address, data, control (PCIe base 5.0, 7.7.2).
pub const MSIX_ENTRY_BYTES: u32 = 16;

/// Where the registers lie that are named here, in bytes from the start.
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
    /// Of a bridge: the bus it is on; secondary and subordinate bus, and a timer follow.
    pub const PRIMARY: u16 = 0x18;
    /// Of a bridge: the base of its window of ports; the limit follows.
    pub const IO_BASE: u16 = 0x1c;
    /// Of a bridge: the base of its window of memory; the limit follows.
    pub const MEMORY_BASE: u16 = 0x20;
    /// Of a bridge: the base of its window of prefetchable memory; the limit follows.
    pub const PREFETCHABLE_BASE: u16 = 0x24;
    /// Of a bridge: the upper half of that base; that of the limit follows.
    pub const PREFETCHABLE_UPPER: u16 = 0x28;
    /// Of a bridge: the upper half of the base of its window of ports; that of the limit follows.
    pub const IO_UPPER: u16 = 0x30;
    /// Subsystem vendor identifier; the subsystem identifier follows.
    pub const SUBSYSTEM: usize = 0x2c;
    /// Where the list of capabilities begins.
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

/// Command bits that a function of this kind implements: memory, bus master, parity error response, SERR#,
/// INTx disable.
const COMMAND_WRITABLE: u16 =
    command::MEMORY | command::BUS_MASTER | 1 << 6 | 1 << 8 | command::INTX_DISABLE;
/// Those of a bridge, which passes ports on too.
const BRIDGE_COMMAND_WRITABLE: u16 = COMMAND_WRITABLE | command::IO;

/// Identifier 3, version 1, nothing after it.
const EXT_CAP_SERIAL: u32 = 0x0001_0003;

/// Class, subclass and programming interface of a bridge between PCI buses.
const BRIDGE_CLASS: u32 = 0x06_0400;

/// Device capabilities: role-based error reporting, which every function since 1.1 has.
const EXPRESS_ROLE_BASED: u32 = 1 << 15;
/// Device capabilities: the function can be reset alone.
const EXPRESS_FLR: u32 = 1 << 28;
/// Device control: starts such a reset; reads as zero.
const EXPRESS_START_FLR: u16 = 1 << 15;
/// Device control when the function is reset: relaxed ordering, no snoop, reads of 512 bytes.
const EXPRESS_CONTROL_RESET: u16 = 1 << 4 | 1 << 11 | 2 << 12;
const EXPRESS_CONTROL: usize = offset::EXPRESS + 0x08;

/// A memory window of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Its number. One with 64-bit addresses takes the next number too.
    pub number: usize,
    /// Its length in bytes, a power of two of at least 16.
    pub bytes: u32,
    /// Whether it may lie above 4 GiB.
    pub wide: bool,
    /// Whether reads have no effects, so that a bridge may read ahead.
    pub prefetchable: bool,
}

/// Where the vectors' table lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixTable {
    /// Vectors, 1 to 2048.
    pub vectors: u16,
    /// The number of the window that holds the table and the pending bits.
    pub bar: u8,
    /// Where the table begins in it, a multiple of 8.
    pub table: u32,
    /// Where the pending bits begin in it, a multiple of 8.
    pub pending: u32,
}

/// What a function says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor identifier, and that of the subsystem.
    pub vendor: u16,
    /// Device identifier, and that of the subsystem.
    pub device: u16,
    /// Class, subclass and programming interface: 010802h is NVMe.
    pub class: u32,
    /// Revision.
    pub revision: u8,
    /// Its windows.
    pub bars: [Option<Bar>; 2],
    /// Its vectors.
    pub msix: MsixTable,
    /// Its interrupt pin.
    pub pin: Pin,
    /// The link's generation, from 1, as the link registers count it.
    pub link_generation: u8,
    /// The link's lanes.
    pub link_lanes: u8,
    /// The serial number.
    pub serial: u64,
}

/// What a bridge says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeIdentity {
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier.
    pub device: u16,
    /// What it is on PCI Express, as the capability's field counts (PCIe base 5.0, 7.5.3.2); none: a
    /// bridge between conventional buses.
    pub port: Option<u8>,
    /// Its window of prefetchable memory may lie above 4 GiB.
    pub wide: bool,
}

/// What a write has asked for, beside the bytes that changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// A function-level reset.
    pub reset: bool,
}

/// The configuration space, as a host finds it and leaves it.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: [u8; CONFIG_BYTES],
    /// Bits that a host may change.
    writable: [u8; CONFIG_BYTES],
}

impl ConfigSpace {
    /// As it is after a reset.
    ///
    /// # Panics
    /// If a window's length is no power of two, or there are no vectors or too many.
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

    /// A bridge as it is after a reset (PCI-to-PCI bridge 1.2, 3.2). It has one function, no interrupt pin
    /// and no windows of its own.
    pub fn bridge(identity: BridgeIdentity) -> ConfigSpace {
        let mut space = ConfigSpace { bytes: [0; CONFIG_BYTES], writable: [0; CONFIG_BYTES] };
        space.put_u16(offset::VENDOR, identity.vendor, 0);
        space.put_u16(offset::VENDOR + 2, identity.device, 0);
        space.put_u16(offset::COMMAND, 0, BRIDGE_COMMAND_WRITABLE);
        space.put_u32(offset::REVISION, BRIDGE_CLASS << 8, 0);
        space.put_u8(0x0c, 0, 0xff);
        space.put_u8(offset::HEADER_TYPE, 1, 0);
        space.put_u32(offset::PRIMARY.into(), 0, 0x00ff_ffff);
        // Ports of 16 bits; all of the rest of the windows' ends can be written.
        space.put_u16(offset::IO_BASE.into(), 0, 0xf0f0);
        space.put_u32(offset::MEMORY_BASE.into(), 0, 0xfff0_fff0);
        let wide = u32::from(identity.wide);
        space.put_u32(offset::PREFETCHABLE_BASE.into(), wide << 16 | wide, 0xfff0_fff0);
        let upper = if identity.wide { u32::MAX } else { 0 };
        space.put_u32(offset::PREFETCHABLE_UPPER.into(), 0, upper);
        space.put_u32(usize::from(offset::PREFETCHABLE_UPPER) + 4, 0, upper);
        space.put_u8(offset::INTERRUPT, 0, 0xff);
        // Bridge control: parity, SERR#, ISA, VGA and secondary reset can be written, without effect.
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
        // The cache line size has no effect, and may be written.
        self.put_u8(0x0c, 0, 0xff);
        for bar in identity.bars.iter().flatten() {
            assert!(bar.bytes.is_power_of_two() && bar.bytes >= 16, "{bar:?}");
            let at = offset::BARS + 4 * bar.number;
            // Bits 2:1 say 64 bits (PCI local bus 3.0, 6.2.5.1); those below the length stay zero,
            // which is how a host learns it.
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
        self.put_u8(offset::INTERRUPT + 1, identity.pin.number() + 1, 0);
    }

    fn put_power(&mut self) {
        self.put_capability(offset::POWER, id::POWER, offset::MSIX);
        // Version 3; D1, D2 and power management events are not supported.
        self.put_u16(offset::POWER + 2, 3, 0);
        // The power state may be written; bit 3: registers survive D3hot.
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
        // Active-state power management, common clock, extended synch: written, without effect.
        self.put_u16(at + 0x10, 0, 0x00c3);
        self.put_u16(at + 0x12, link as u16, 0);
        // Every rate up to this one, bit 1 being the first.
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

    /// The device has more functions than this one.
    pub fn set_multifunction(&mut self) {
        self.bytes[offset::HEADER_TYPE] |= 0x80;
    }

    /// Copies bytes out. False, and nothing copied, if they do not lie inside.
    pub fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let Some(range) = inside(at, to.len()) else { return false };
        to.copy_from_slice(&self.bytes[range]);
        true
    }

    /// Changes what of these bytes may be changed. `None`, and nothing done, if they do not lie inside.
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

    /// Whether the function may access memory.
    pub fn bus_master(&self) -> bool {
        self.u16_at(offset::COMMAND) & command::BUS_MASTER != 0
    }

    /// Whether INTx may be asserted: not forbidden, and not replaced by MSI-X.
    pub fn intx_enabled(&self) -> bool {
        self.u16_at(offset::COMMAND) & command::INTX_DISABLE == 0 && !self.msix_enabled()
    }

    /// Whether MSI-X is in use, and not masked as a whole.
    pub fn msix_unmasked(&self) -> bool {
        let control = self.u16_at(offset::MSIX + 2);
        control & (Msix::ENABLE | Msix::FUNCTION_MASK) == Msix::ENABLE
    }

    /// Whether MSI-X is in use.
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
            pin: Pin::B,
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
    fn a_host_learns_the_length_of_a_window_by_writing_ones() {
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
    fn the_list_of_capabilities_ends_and_holds_what_is_promised() {
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
    fn only_what_may_be_written_changes() {
        let mut space = ConfigSpace::new(&identity());
        let before = space.clone();
        assert_eq!(space.write(0, &[0xff; CONFIG_BYTES]), Some(Effects { reset: true }));
        for at in 0..CONFIG_BYTES {
            let changed = space.bytes[at] ^ before.bytes[at];
            assert_eq!(changed & !before.writable[at], 0, "byte {at:#x}");
        }
        assert!(space.bus_master() && space.msix_enabled() && !space.intx_enabled());
        // The bit that starts a reset reads as zero.
        assert_eq!(space.u16_at(EXPRESS_CONTROL) & EXPRESS_START_FLR, 0);
        assert_eq!(space.write(EXPRESS_CONTROL as u64, &[0]), Some(Effects { reset: false }));
    }

    #[test]
    fn a_bridge_keeps_its_buses_and_its_windows() {
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
    fn nothing_outside_is_reached() {
        let mut space = ConfigSpace::new(&identity());
        assert!(space.read(4095, &mut [0]));
        for (at, bytes) in [(4095, 2), (4096, 1), (u64::MAX, 1), (0, 4097)] {
            assert!(!space.read(at, &mut [0; 4097][..bytes]), "{bytes} at {at:#x}");
            assert_eq!(space.write(at, &[0; 4097][..bytes]), None, "{bytes} at {at:#x}");
        }
        assert!(space.read(4096, &mut []));
    }
}
