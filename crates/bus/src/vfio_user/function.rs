//! Function offered by a server: its identity, and its registers as words shared by a session and a device.

use core::ops::Range;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::vec::Vec;

use crate::memfd::Memfd;
use crate::{Masks, Memory};
use wire::BusAddr;
use wire::pci::Identity;

/// A PCI function offered by a server.
#[derive(Clone, Debug)]
pub struct Function {
    /// Content of its configuration space. BAR 0 holds the registers.
    pub identity: Identity,
    /// Length of the registers, bytes; a multiple of 4096.
    pub register_bytes: u32,
    /// Registers that a client may map and write without restriction: doorbells. Whole pages of 4096 bytes.
    pub mapped: Range<u32>,
    /// Registers outside `mapped` that a client may write. The others are read-only.
    pub writable: Vec<Range<u32>>,
    /// Two registers outside `mapped` that are one mask word whose bits a client sets and clears. While bit 0
    /// is set the interrupt pin is masked.
    pub masks: Option<Masks>,
}

/// The registers. Cheap to clone; every clone is the same words.
#[derive(Clone)]
pub(super) struct Registers {
    /// Registers accessed by messages only.
    control: Memory,
    /// Mappable registers. The unused pages before them make the offset in the file equal to that in the
    /// window.
    doorbells: Memory,
    file: Arc<Memfd>,
    mapped: (u32, u32),
    bytes: u32,
    writable: Arc<[Range<u32>]>,
    masks: Option<Masks>,
}

impl Registers {
    /// Creates new registers, all zero: the mappings of an earlier client do not reach them.
    pub fn new(function: &Function) -> io::Result<Registers> {
        let (bytes, Range { start, end }) = (function.register_bytes, function.mapped.clone());
        assert!([bytes, start, end].iter().all(|at| at.is_multiple_of(4096)));
        assert!(0 < start && start < end && end <= bytes, "registers of both kinds");
        let file = Memfd::new("doorbell-registers", end as usize)?;
        // Guarded: a client has a descriptor and may punch holes, and the kernel may have no page to fill
        // them.
        let doorbells = Memory::map_guarded(file.as_fd(), 0, file.bytes(), BusAddr(0), true)?;
        Ok(Registers {
            control: Memory::private(bytes as usize, BusAddr(0)),
            doorbells,
            file: Arc::new(file),
            mapped: (start, end),
            bytes,
            writable: function.writable.as_slice().into(),
            masks: function.masks,
        })
    }

    /// The mappable range, and the file that holds it at the same offset.
    pub fn mapped(&self) -> (Range<u32>, BorrowedFd<'_>) {
        (self.mapped.0..self.mapped.1, self.file.as_fd())
    }

    #[inline]
    fn is_mapped(&self, register: u32) -> bool {
        self.mapped.0 <= register && register < self.mapped.1
    }

    #[inline]
    fn memory(&self, register: u32) -> &Memory {
        if self.is_mapped(register) { &self.doorbells } else { &self.control }
    }

    /// Loads the word at this offset. Returns all ones if there is none.
    #[inline]
    pub fn load(&self, register: u32) -> u32 {
        self.memory(register).load_u32(BusAddr(u64::from(register))).unwrap_or(u32::MAX)
    }

    /// Stores the word at this offset, if there is one.
    #[inline]
    pub fn store(&self, register: u32, value: u32) {
        let _ = self.memory(register).store_u32(BusAddr(u64::from(register)), value);
    }

    /// Sets all registers to zero.
    pub fn clear(&self) {
        self.control.zero(BusAddr(0), self.control.bytes()).expect("its own length");
        self.doorbells.zero(BusAddr(0), self.doorbells.bytes()).expect("its own length");
    }

    /// Read by a client, at any offset and of any length. Zeros beyond the last register.
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        for (place, byte) in (offset..).zip(to) {
            *byte = match u32::try_from(place & !3) {
                Ok(word) if word < self.bytes => {
                    self.load(word).to_le_bytes()[(place & 3) as usize]
                }
                _ => 0,
            };
        }
    }

    /// Returns `Some` if this register belongs to the mask pair: true if the pin is masked.
    pub fn silences(&self, register: u32) -> Option<bool> {
        let masks = self.masks.filter(|masks| masks.has(register))?;
        Some(self.load(masks.set) & 1 != 0)
    }

    /// Returns true if the pin is masked.
    pub fn is_silent(&self) -> bool {
        self.masks.is_some_and(|masks| self.load(masks.set) & 1 != 0)
    }

    /// Write by a client. Read-only registers keep their value; a partial write of a word changes that
    /// part.
    pub fn write(&self, offset: u64, mut from: &[u8]) {
        let mut offset = offset;
        while !from.is_empty() {
            let within = (offset & 3) as usize;
            let (now, later) = from.split_at(from.len().min(4 - within));
            let word = u32::try_from(offset & !3).ok().filter(|word| *word < self.bytes);
            if let Some((word, masks)) = word.zip(self.masks).filter(|(word, m)| m.has(*word)) {
                let mut bytes = [0; 4];
                bytes[within..within + now.len()].copy_from_slice(now);
                let bits = masks.written(word, self.load(masks.set), u32::from_le_bytes(bytes));
                self.store(masks.set, bits);
                self.store(masks.clear, bits);
            } else if let Some(word) = word.filter(|word| self.may_write(*word)) {
                let mut bytes = self.load(word).to_le_bytes();
                bytes[within..within + now.len()].copy_from_slice(now);
                self.store(word, u32::from_le_bytes(bytes));
            }
            offset += now.len() as u64;
            from = later;
        }
    }

    fn may_write(&self, word: u32) -> bool {
        self.is_mapped(word) || self.writable.iter().any(|range| range.contains(&word))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use wire::pci::{Bar, MsixTable, Pin};

    pub(in super::super) fn function() -> Function {
        Function {
            identity: Identity {
                vendor: 1,
                device: 2,
                class: 0x01_0802,
                revision: 0,
                bars: [
                    Some(Bar { number: 0, bytes: 0x4000, wide: true, prefetchable: false }),
                    Some(Bar { number: 4, bytes: 0x1000, wide: false, prefetchable: false }),
                ],
                msix: MsixTable { vectors: 64, bar: 4, table: 0, pending: 0x800 },
                pin: Some(Pin::A),
                link_generation: 3,
                link_lanes: 4,
                serial: 1,
            },
            register_bytes: 0x2000,
            mapped: 0x1000..0x2000,
            writable: std::vec![0x14..0x18, 0x24..0x38],
            masks: Some(Masks { set: 0xc, clear: 0x10 }),
        }
    }

    #[test]
    fn mask_registers_accept_byte_writes() {
        let registers = Registers::new(&function()).unwrap();
        let writes = [(0xc, &[1, 0x80][..], 0x8001), (0xd, &[2], 0x8201), (0x10, &[1], 0x8200)];
        for (at, bytes, word) in writes {
            registers.write(at, bytes);
            assert_eq!((registers.load(0xc), registers.load(0x10)), (word, word));
            assert_eq!(registers.is_silent(), word & 1 != 0);
        }
    }

    #[test]
    fn client_writes_respect_read_only_registers() {
        let registers = Registers::new(&function()).unwrap();
        registers.store(0, 0x1122_3344);
        registers.write(0, &[0xff; 0x40]);
        assert_eq!((registers.load(0), registers.load(0x14)), (0x1122_3344, u32::MAX));
        assert_eq!((registers.load(0xc), registers.load(0x10)), (0, 0), "set, then cleared");
        assert_eq!((registers.load(0x24), registers.load(0x38)), (u32::MAX, 0));
        registers.write(0x15, &[1, 2]);
        assert_eq!(registers.load(0x14), 0xff02_01ff);
        let mut bytes = [9; 6];
        registers.read(0x13, &mut bytes);
        assert_eq!(bytes, [0, 0xff, 1, 2, 0xff, 0]);
        registers.write(0x1ffe, &[1; 100]);
        registers.read(0x1ffd, &mut bytes);
        assert_eq!(bytes, [0, 1, 1, 0, 0, 0]);
        registers.write(u64::MAX - 10, &[1; 8]);
        registers.clear();
        assert_eq!((registers.load(0x14), registers.load(0x1ffc)), (0, 0));
    }
}
