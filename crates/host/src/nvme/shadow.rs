//! Shadow doorbells (NVMe base 2.0, 5.11): the driver writes doorbell values to memory, and rings only when
//! the controller requests it.

use bus::{Arena, Buffer, HostPort, OutOfMemory};
use wire::BusAddr;
use wire::nvme::registers::DOORBELLS;

use super::PAGE_BYTES;
use crate::quarantine;

/// The two pages shared by a controller and its driver.
pub(super) struct Shadows {
    /// Shadow doorbells, in the doorbells' order; written by the driver.
    told: Buffer,
    /// EventIdx values, beyond which the controller requests a doorbell write; written by the controller.
    asked: Buffer,
}

/// Offset of a doorbell's word in both pages, if it has one.
fn place(doorbell: u32) -> Option<usize> {
    let offset = doorbell.checked_sub(DOORBELLS)? as usize;
    (offset < PAGE_BYTES as usize).then_some(offset)
}

impl Shadows {
    /// Allocates zeroed pages.
    pub fn new(arena: &Arena) -> Result<Shadows, OutOfMemory> {
        let page = || arena.buffer(PAGE_BYTES as usize);
        let shadows = Shadows { told: page()?, asked: page()? };
        shadows.clear();
        Ok(shadows)
    }

    /// Zeroes both pages. The controller must not be using them.
    pub fn clear(&self) {
        self.told.zero();
        self.asked.zero();
    }

    /// Addresses of the shadow doorbell page and of the EventIdx page.
    pub fn at(&self) -> (BusAddr, BusAddr) {
        (self.told.at(), self.asked.at())
    }

    /// Sets the initial value of a shadow.
    pub fn begin(&self, doorbell: u32, value: u32) {
        if let Some(at) = place(doorbell) {
            self.told.store_u32(at, value);
        }
    }

    /// Writes a shadow doorbell; returns true if the doorbell itself must be written too: the EventIdx is in
    /// the range from the old value, inclusive, to the new value, exclusive.
    pub fn tell<P: HostPort>(&self, port: &P, doorbell: u32, old: u32, new: u32) -> bool {
        let Some(at) = place(doorbell) else { return true };
        // Release: after the queue entries. The fence orders this store before the load of the EventIdx.
        self.told.store_u32(at, new);
        port.fence();
        must_ring(self.asked.load_u32(at), old, new)
    }

    /// Quarantines the pages of a controller that could not be stopped.
    pub fn quarantine(&self) {
        quarantine(&self.told);
        quarantine(&self.asked);
    }
}

/// Doorbell values have 16 bits and wrap.
fn must_ring(asked: u32, old: u32, new: u32) -> bool {
    let behind = |value: u32| (new as u16).wrapping_sub(value as u16);
    behind(asked).wrapping_sub(1) < behind(old)
}

#[cfg(test)]
mod tests {
    use super::must_ring;

    #[test]
    fn shadow_doorbell_rings_if_event_idx_in_range() {
        assert!(must_ring(5, 5, 6), "the next");
        assert!(must_ring(5, 3, 9), "among several");
        assert!(!must_ring(5, 6, 9), "it was told before");
        assert!(!must_ring(9, 5, 9), "not yet");
        // Queue of eight entries, wrapped.
        assert!(must_ring(7, 7, 0));
        assert!(must_ring(7, 6, 2));
        assert!(!must_ring(3, 7, 2));
        // Longest queue.
        assert!(must_ring(65_535, 65_535, 0));
        assert!(!must_ring(0, 65_535, 0));
    }
}
