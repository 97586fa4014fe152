//! Block data in transfer between a medium and the bus.

use bus::{Carry, Payload, Unreadable};
use media::{Extent, Flip, Head, Media, flipped};

/// Blocks of a medium as a DMA payload, with an optional injected bit flip.
pub(crate) struct Blocks<'a, M> {
    pub media: &'a M,
    pub at: Extent,
    pub flip: Option<Flip>,
    /// Places of the blocks' mapping units that their reader named; empty if it named none.
    pub places: &'a [u32],
}

impl<M: Media> Payload for Blocks<'_, M> {
    #[inline]
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable> {
        let lend = |put: &mut dyn FnMut(u32, &[u8])| match self.places {
            [] => self.media.runs(self.at, put),
            places => self.media.runs_placed(self.at, places, put),
        };
        let scratch_guard = match &self.flip {
            None => lend(put),
            Some(flip) => flipped(std::slice::from_ref(flip), lend, put),
        };
        scratch_guard.map_err(|_| Unreadable)
    }
}

/// The bytes worth transferring: all, or the stamps if the medium keeps only these.
pub(crate) fn carry(head: Option<Head>) -> Carry {
    match head {
        None => Carry::All,
        Some(head) => Carry::Heads { bytes: head.bytes, of: head.of },
    }
}
