//! Capabilities: their list, which a hostile function may bend into anything, and those that a driver here
//! uses.

use super::{STATUS_CAPABILITIES, Words, offset};

/// Identifiers of capabilities (PCI code and ID assignment 1.11, 2).
pub mod id {
    /// Power management.
    pub const POWER: u8 = 0x01;
    /// Message signalled interrupts.
    pub const MSI: u8 = 0x05;
    /// PCI Express.
    pub const EXPRESS: u8 = 0x10;
    /// Message signalled interrupts by a table.
    pub const MSIX: u8 = 0x11;
}

/// A capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Identifier; see [`id`].
    pub id: u16,
    /// Offset of its first word, bytes.
    pub at: u16,
}

/// Iterates over the list in the first 256 bytes (PCI local bus 3.0, 6.7). Stops at the end of the list, at
/// an offset outside its space, and at an offset already visited.
pub fn list<W: Words + ?Sized>(words: &W) -> impl Iterator<Item = Capability> + '_ {
    let there = (words.word(offset::COMMAND as u16) >> 16) as u16 & STATUS_CAPABILITIES != 0;
    let first = if there { words.word(offset::CAPABILITIES as u16) as u8 } else { 0 };
    let (mut at, mut visited) = (u16::from(first & !3), 0_u64);
    core::iter::from_fn(move || {
        let bit = 1 << (at / 4);
        if at < 0x40 || visited & bit != 0 {
            return None;
        }
        visited |= bit;
        let word = words.word(at);
        let found = Capability { id: u16::from(word as u8), at };
        // All ones is no capability: the function has gone.
        let next = word >> 8 & 0xfc;
        at = next as u16;
        (found.id != 0xff).then_some(found)
    })
}

/// The first capability of this kind.
pub fn find<W: Words + ?Sized>(words: &W, id: u8) -> Option<u16> {
    list(words).find(|found| found.id == u16::from(id)).map(|found| found.at)
}

/// MSI (PCI local bus 3.0, 6.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msi {
    /// Offset of the capability, bytes.
    pub at: u16,
    /// Number of messages requested, a power of two from 1 to 32.
    pub messages: u8,
    /// True if the address has 64 bits.
    pub wide: bool,
    /// True if each message has a mask bit.
    pub masks: bool,
}

impl Msi {
    /// Message control: enabled.
    pub const ENABLE: u16 = 1;

    /// Finds the capability. Reserved message counts are taken as 32.
    pub fn find<W: Words + ?Sized>(words: &W) -> Option<Msi> {
        let at = find(words, id::MSI)?;
        let control = (words.word(at) >> 16) as u16;
        Some(Msi {
            at,
            messages: 1 << (control >> 1 & 7).min(5),
            wide: control & 1 << 7 != 0,
            masks: control & 1 << 8 != 0,
        })
    }

    /// Offset of the message data. The address is at offset 4 of the capability, with its upper half at 8
    /// if it has 64 bits.
    pub fn data_at(&self) -> u16 {
        self.at + if self.wide { 12 } else { 8 }
    }
}

/// MSI-X (PCIe base 5.0, 7.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    /// Offset of the capability, bytes.
    pub at: u16,
    /// Number of vectors, 1 to 2048.
    pub vectors: u16,
    /// BAR number of the table. 6 and 7 are reserved.
    pub table_bar: u8,
    /// Offset of the table in the BAR, bytes.
    pub table: u32,
    /// BAR number of the pending bits.
    pub pending_bar: u8,
    /// Offset of the pending bits in the BAR, bytes.
    pub pending: u32,
}

impl Msix {
    /// Message control: all vectors masked.
    pub const FUNCTION_MASK: u16 = 1 << 14;
    /// Message control: enabled.
    pub const ENABLE: u16 = 1 << 15;
    /// Control word of a table entry: masked.
    pub const MASKED: u32 = 1;

    /// Finds the capability.
    pub fn find<W: Words + ?Sized>(words: &W) -> Option<Msix> {
        let at = find(words, id::MSIX)?;
        let (table, pending) = (words.word(at + 4), words.word(at + 8));
        Some(Msix {
            at,
            vectors: (words.word(at) >> 16 & 0x7ff) as u16 + 1,
            table_bar: table as u8 & 7,
            table: table & !7,
            pending_bar: pending as u8 & 7,
            pending: pending & !7,
        })
    }
}

/// Device or port type (PCIe base 5.0, 7.5.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortType {
    /// Endpoint.
    Endpoint,
    /// Legacy endpoint, which may need I/O space.
    LegacyEndpoint,
    /// Root port.
    Root,
    /// Upstream port of a switch.
    SwitchUpstream,
    /// Downstream port of a switch.
    SwitchDownstream,
    /// Bridge from PCI Express to a conventional bus.
    ToPci,
    /// Bridge from a conventional bus to PCI Express.
    FromPci,
    /// Root complex integrated endpoint.
    Integrated,
    /// Other type, by its number.
    Other(u8),
}

/// PCI Express (PCIe base 5.0, 7.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Express {
    /// Offset of the capability, bytes.
    pub at: u16,
    /// Device or port type.
    pub port: PortType,
    /// Current link generation, from 1, as in the link status register.
    pub generation: u8,
    /// Current number of lanes.
    pub lanes: u8,
}

impl Express {
    /// Finds the capability.
    pub fn find<W: Words + ?Sized>(words: &W) -> Option<Express> {
        let at = find(words, id::EXPRESS)?;
        let status = (words.word(at + 0x10) >> 16) as u16;
        let port = match (words.word(at) >> 20 & 0xf) as u8 {
            0 => PortType::Endpoint,
            1 => PortType::LegacyEndpoint,
            4 => PortType::Root,
            5 => PortType::SwitchUpstream,
            6 => PortType::SwitchDownstream,
            7 => PortType::ToPci,
            8 => PortType::FromPci,
            9 => PortType::Integrated,
            other => PortType::Other(other),
        };
        Some(Express {
            at,
            port,
            generation: status as u8 & 0xf,
            lanes: (status >> 4) as u8 & 0x3f,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// A configuration space with these words; `first` is the capabilities pointer.
    fn space(first: u8, words: &[(u16, u32)]) -> Vec<u32> {
        let mut space = vec![0; 1024];
        space[1] = u32::from(STATUS_CAPABILITIES) << 16;
        space[offset::CAPABILITIES / 4] = first.into();
        words.iter().for_each(|(at, word)| space[usize::from(*at) / 4] = *word);
        space
    }

    #[test]
    fn capability_list_is_followed_to_end() {
        let words =
            [(0x40, 0x0000_5001), (0x50, 0x8004_6011), (0x60, 0x0042_0010), (0x70, 0x0041_0000)];
        let space = space(0x40, &words);
        let found: Vec<_> = list(&space[..]).map(|c| (c.id, c.at)).collect();
        assert_eq!(found, [(0x01, 0x40), (0x11, 0x50), (0x10, 0x60)]);
        assert_eq!(Msix::find(&space[..]).unwrap().vectors, 5);
        let express = Express::find(&space[..]).unwrap();
        assert_eq!((express.port, express.generation, express.lanes), (PortType::Root, 1, 4));
        assert_eq!(Msi::find(&space[..]), None);
    }

    #[test]
    fn capability_list_loop_terminates() {
        assert_eq!(list(&space(0x40, &[(0x40, 0x5001), (0x50, 0x4005)])[..]).count(), 2);
        assert_eq!(list(&space(0x40, &[(0x40, 0x4001)])[..]).count(), 1);
        assert_eq!(list(&space(0x3c, &[])[..]).count(), 0);
        assert_eq!(list(&vec![u32::MAX; 1024][..]).count(), 0);
        // Without the status bit the pointer means nothing.
        let mut silent = space(0x40, &[(0x40, 0x0001)]);
        silent[1] = 0;
        assert_eq!(list(&silent[..]).count(), 0);
    }

    #[test]
    fn msi_message_count_and_data_offset() {
        let narrow = Msi::find(&space(0x40, &[(0x40, 0x0106_0005)])[..]).unwrap();
        assert_eq!((narrow.messages, narrow.wide, narrow.masks), (8, false, true));
        assert_eq!(narrow.data_at(), 0x48);
        let wide = Msi::find(&space(0x40, &[(0x40, 0x008e_0005)])[..]).unwrap();
        assert_eq!((wide.messages, wide.wide, wide.data_at()), (32, true, 0x4c));
    }
}
