//! Register window in shared memory.

use wire::BusAddr;

use super::VECTORS;
use crate::{Masks, Memory};

/// The device's registers, followed by its interrupt counters.
#[derive(Clone)]
pub(super) struct Window {
    pub memory: Memory,
    pub register_bytes: u32,
    pub masks: Option<Masks>,
}

impl Window {
    pub fn bytes(register_bytes: u32) -> usize {
        (register_bytes + 4 * VECTORS) as usize
    }

    #[inline]
    pub fn word(&self, register: u32) -> Option<BusAddr> {
        (register < self.register_bytes).then_some(BusAddr(u64::from(register)))
    }

    /// Returns all ones beyond the last register.
    #[inline]
    pub fn load(&self, register: u32) -> u32 {
        let word = self.word(register);
        word.map_or(u32::MAX, |at| self.memory.load_u32(at).unwrap_or(u32::MAX))
    }

    #[inline]
    pub fn store(&self, register: u32, value: u32) {
        if let Some(at) = self.word(register) {
            self.memory.store_u32(at, value).expect("inside the window");
        }
    }

    /// As [`store`](Self::store), by a host: applies the mask registers.
    #[inline]
    pub fn write(&self, register: u32, value: u32) {
        match self.masks {
            Some(masks) if masks.has(register) => {
                let word = masks.written(register, self.load(masks.set), value);
                self.store(masks.set, word);
                self.store(masks.clear, word);
            }
            _ => self.store(register, value),
        }
    }

    pub fn interrupts(&self, vector: u16) -> BusAddr {
        let vector = u32::from(vector) % VECTORS;
        BusAddr(u64::from(self.register_bytes + 4 * vector))
    }
}
