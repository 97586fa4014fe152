//! Block data in transfer between a medium and the bus.

use bus::{Carry, Payload, Unreadable};
use media::{Extent, Flip, Head, Media, MediaError, flipped};

/// Blocks of a medium as a DMA payload, with an optional injected bit flip.
pub(crate) struct Blocks<'a, M> {
    pub media: &'a M,
    pub at: Extent,
    pub flip: Option<Flip>,
}

impl<M: Media> Payload for Blocks<'_, M> {
    #[inline]
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable> {
        with_flip(self.flip.as_ref(), |put| self.media.runs(self.at, put), put)
    }
}

/// Passes on the runs that `lend` passes, with an injected bit flip.
#[inline]
pub(crate) fn with_flip(
    flip: Option<&Flip>,
    lend: impl FnOnce(&mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError>,
    put: &mut dyn FnMut(u32, &[u8]),
) -> Result<(), Unreadable> {
    let done = match flip {
        None => lend(put),
        Some(flip) => flipped(std::slice::from_ref(flip), lend, put),
    };
    done.map_err(|_| Unreadable)
}

/// The bytes worth transferring: all, or the stamps if the medium keeps only these.
pub(crate) fn carry(head: Option<Head>) -> Carry {
    match head {
        None => Carry::All,
        Some(head) => Carry::Heads { bytes: head.bytes, of: head.of },
    }
}
