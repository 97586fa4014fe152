//! Blocks that the engine's owner allocates itself, such as areas that outlive their handles.

use bus::HostPort;
use wire::Lba;

use super::engine::Engine;
use super::schedule::Share;
use super::serve::Serving;
use super::table::{Area, Handle, OpenError};

impl<P: HostPort> Engine<P> {
    /// Reserves these blocks: no area is allocated from them. Returns false if one of them is not free.
    pub fn reserve(&self, first: Lba, blocks: u64) -> bool {
        self.0.table.borrow_mut().areas.take_at(first, blocks)
    }

    /// Reserves contiguous free blocks.
    ///
    /// # Errors
    /// No free area of this length.
    pub fn reserve_free(&self, blocks: u64) -> Result<Lba, OpenError> {
        if blocks == 0 {
            return Err(OpenError::Empty);
        }
        self.0.table.borrow_mut().areas.take(blocks).map_err(OpenError::Full)
    }

    /// Frees the reserved blocks that begin here.
    pub fn unreserve(&self, first: Lba) {
        self.0.table.borrow_mut().areas.give(first);
    }
}

impl<P: HostPort> Serving<P> {
    /// Opens a handle for reserved blocks, and for bytes of the ring's memory. Closing it frees no blocks.
    ///
    /// # Errors
    /// No handle left, or the memory does not hold these bytes.
    pub fn open_reserved(&self, area: Area) -> Result<Handle, OpenError> {
        if !self.memory.holds(area.at, usize::try_from(area.bytes).unwrap_or(usize::MAX)) {
            return Err(OpenError::Memory);
        }
        let handle = self.core.table.borrow_mut().open_over(self.owner(), area)?;
        self.core.control.borrow_mut().set_share(handle.fp_id, Share::default());
        Ok(handle)
    }
}
