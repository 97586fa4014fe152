//! Shadow doorbells (NVMe base 2.0, 5.11): the driver says in memory what it would tell the doorbells, and
//! rings only where the controller has asked to be told.

use bus::{Arena, Buffer, HostPort, OutOfMemory};
use wire::BusAddr;
use wire::nvme::registers::DOORBELLS;

use super::PAGE_BYTES;
use crate::quarantine;

/// Two pages that a controller and its driver share.
pub(super) struct Shadows {
    /// What the doorbells would be told, in their order: the driver writes.
    told: Buffer,
    /// The values behind which the controller wants to be told: it writes.
    asked: Buffer,
}

/// Where a doorbell's word lies in either page, if the doorbell has one there.
fn place(doorbell: u32) -> Option<usize> {
    let offset = doorbell.checked_sub(DOORBELLS)? as usize;
    (offset < PAGE_BYTES as usize).then_some(offset)
}

impl Shadows {
    /// Pages of zeros.
    pub fn new(arena: &Arena) -> Result<Shadows, OutOfMemory> {
        let page = || arena.buffer(PAGE_BYTES as usize);
        let shadows = Shadows { told: page()?, asked: page()? };
        shadows.clear();
        Ok(shadows)
    }

    /// Nothing was told, nothing is asked. The controller must not be using them.
    pub fn clear(&self) {
        self.told.zero();
        self.asked.zero();
    }

    /// Where they lie: what the driver tells, and what the controller asks.
    pub fn at(&self) -> (BusAddr, BusAddr) {
        (self.told.at(), self.asked.at())
    }

    /// What a doorbell was told that the controller does not know of yet.
    pub fn begin(&self, doorbell: u32, value: u32) {
        if let Some(at) = place(doorbell) {
            self.told.store_u32(at, value);
        }
    }

    /// Tells a doorbell's shadow; whether the doorbell itself is to be told too. The controller has asked for
    /// what comes behind a value: is that from the old value on, before the new one?
    pub fn tell<P: HostPort>(&self, port: &P, doorbell: u32, old: u32, new: u32) -> bool {
        let Some(at) = place(doorbell) else { return true };
        // Release: the entries before it.
        self.told.store_u32(at, new);
        port.fence();
        must_ring(self.asked.load_u32(at), old, new)
    }

    /// The controller could not be stopped: it may write there for ever.
    pub fn quarantine(&self) {
        quarantine(&self.told);
        quarantine(&self.asked);
    }
}

/// Sixteen bits, as values of a doorbell have, and as they wrap.
fn must_ring(asked: u32, old: u32, new: u32) -> bool {
    let behind = |value: u32| (new as u16).wrapping_sub(value as u16);
    behind(asked).wrapping_sub(1) < behind(old)
}

#[cfg(test)]
mod tests {
    use super::must_ring;

    #[test]
    fn what_was_asked_for_lies_between_old_and_new() {
        assert!(must_ring(5, 5, 6), "the next");
        assert!(must_ring(5, 3, 9), "among several");
        assert!(!must_ring(5, 6, 9), "it was told before");
        assert!(!must_ring(9, 5, 9), "not yet");
        // A queue of eight that wraps.
        assert!(must_ring(7, 7, 0));
        assert!(must_ring(7, 6, 2));
        assert!(!must_ring(3, 7, 2));
        // The longest queue there is.
        assert!(must_ring(65_535, 65_535, 0));
        assert!(!must_ring(0, 65_535, 0));
    }
}
