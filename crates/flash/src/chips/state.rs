//! Chips without power.

use media::nand::Nand;

use super::buffer::Buffer;

/// State after power-off: the flash, and the buffer if it is protected.
pub struct ChipState {
    pub(super) nand: Nand,
    pub(super) buffer: Option<Buffer>,
}

impl ChipState {
    /// The flash, for changes other than by its operations.
    pub fn nand_mut(&mut self) -> &mut Nand {
        &mut self.nand
    }

    /// The flash.
    pub fn nand(&self) -> &Nand {
        &self.nand
    }

    /// Copy-on-write copy: it uses memory only for differences.
    pub fn fork(&self) -> ChipState {
        ChipState { nand: self.nand.fork(), buffer: self.buffer.clone() }
    }

    /// The flash alone; discards the buffer.
    pub fn into_nand(self) -> Nand {
        self.nand
    }
}

impl From<Nand> for ChipState {
    fn from(nand: Nand) -> ChipState {
        ChipState { nand, buffer: None }
    }
}
