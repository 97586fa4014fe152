//! What a server offers: a function's identity, and its registers as words that a session and a device
//! share.

use core::ops::Range;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::fd::Memfd;
use crate::{Masks, Memory};
use wire::BusAddr;
use wire::pci::Identity;

/// A PCI function that a server offers.
#[derive(Clone, Debug)]
pub struct Function {
    /// What it says of itself in its configuration space. Window 0 holds the registers.
    pub identity: Identity,
    /// Bytes of registers; whole pages.
    pub register_bytes: u32,
    /// From here on a client may map the registers, and write what it likes: doorbells.
    pub mapped_from: u32,
    /// Which of those before it a client may write. The rest is read-only.
    pub writable: &'static [Range<u32>],
    /// Two of those before it that are one word, whose bits a client sets and clears. While bit 0 is set the
    /// pin is silent.
    pub masks: Option<Masks>,
}

/// The registers. Cheap to clone; every clone is the same words.
#[derive(Clone)]
pub(super) struct Registers {
    /// Those that a client reaches by messages alone.
    control: Memory,
    /// Those that it may map. The pages before them are there, so that a place in the window is the
    /// same place in the file, and nobody looks at them.
    doorbells: Memory,
    file: Arc<Memfd>,
    mapped_from: u32,
    bytes: u32,
    writable: &'static [Range<u32>],
    masks: Option<Masks>,
}

impl Registers {
    /// New ones, all zero: whoever mapped an earlier client's rings nobody's doorbells.
    pub fn new(function: &Function) -> io::Result<Registers> {
        let (bytes, mapped_from) = (function.register_bytes, function.mapped_from);
        assert!(bytes.is_multiple_of(4096) && mapped_from.is_multiple_of(4096));
        assert!(0 < mapped_from && mapped_from < bytes, "registers of both kinds");
        let file = Memfd::new("doorbell-registers", bytes as usize)?;
        // Guarded: a client may punch holes into what it has a descriptor of, and leave the kernel
        // without a page to fill them.
        let doorbells = Memory::map_guarded(file.as_fd(), 0, file.bytes(), BusAddr(0), true)?;
        Ok(Registers {
            control: Memory::private(mapped_from as usize, BusAddr(0)),
            doorbells,
            file: Arc::new(file),
            mapped_from,
            bytes,
            writable: function.writable,
            masks: function.masks,
        })
    }

    /// The part that may be mapped, and the file that holds it at the same place.
    pub fn mapped(&self) -> (Range<u32>, BorrowedFd<'_>) {
        (self.mapped_from..self.bytes, self.file.as_fd())
    }

    #[inline]
    fn memory(&self, register: u32) -> &Memory {
        if register < self.mapped_from { &self.control } else { &self.doorbells }
    }

    /// The word at this place; all ones where there is none.
    #[inline]
    pub fn load(&self, register: u32) -> u32 {
        self.memory(register).load_u32(BusAddr(u64::from(register))).unwrap_or(u32::MAX)
    }

    /// Sets the word at this place, if there is one.
    #[inline]
    pub fn store(&self, register: u32, value: u32) {
        let _ = self.memory(register).store_u32(BusAddr(u64::from(register)), value);
    }

    /// Sets all to zero.
    pub fn clear(&self) {
        self.control.zero(BusAddr(0), self.control.bytes()).expect("its own length");
        self.doorbells.zero(BusAddr(0), self.doorbells.bytes()).expect("its own length");
    }

    /// What a client reads, at any place and of any length. Zeros behind the last register.
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

    /// Whether the pin is silent, if this register has to do with that.
    pub fn silences(&self, register: u32) -> Option<bool> {
        let masks = self.masks.filter(|masks| masks.has(register))?;
        Some(self.load(masks.set) & 1 != 0)
    }

    /// Whether the pin is silent.
    pub fn is_silent(&self) -> bool {
        self.masks.is_some_and(|masks| self.load(masks.set) & 1 != 0)
    }

    /// What a client writes. Read-only registers keep their value; a part of a word changes that part.
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
        word >= self.mapped_from || self.writable.iter().any(|range| range.contains(&word))
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
                pin: Pin::A,
                link_generation: 3,
                link_lanes: 4,
                serial: 1,
            },
            register_bytes: 0x2000,
            mapped_from: 0x1000,
            writable: &[0x14..0x18, 0x24..0x38],
            masks: Some(Masks { set: 0xc, clear: 0x10 }),
        }
    }

    #[test]
    fn ones_set_bits_and_clear_them_byte_by_byte() {
        let registers = Registers::new(&function()).unwrap();
        let writes = [(0xc, &[1, 0x80][..], 0x8001), (0xd, &[2], 0x8201), (0x10, &[1], 0x8200)];
        for (at, bytes, word) in writes {
            registers.write(at, bytes);
            assert_eq!((registers.load(0xc), registers.load(0x10)), (word, word));
            assert_eq!(registers.is_silent(), word & 1 != 0);
        }
    }

    #[test]
    fn a_client_changes_what_it_may_and_reads_what_there_is() {
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
