//! A map that the host keeps: flash state that a controller reports, and places that it accepts.

use ftl::Pages;

use crate::collections::Later;
use crate::drive::Drive;

/// A translation layer whose map a host may keep. Reads by place go through [`media::Placed`];
/// these calls are rare, so the cost of dynamic dispatch is negligible.
pub trait Mapping {
    /// Bytes of a mapping unit.
    fn unit_bytes(&self) -> u32;

    /// Appends the place of each unit that these blocks touch, as [`ftl::Ftl::places`].
    ///
    /// # Errors
    /// The blocks do not exist, or the map cannot be read.
    fn places<'a>(
        &'a self,
        block: u64,
        blocks: u32,
        into: &'a mut Vec<u32>,
    ) -> Later<'a, Result<(), ftl::Error>>;

    /// Sets how many moves of units are kept. 0: none.
    fn keep_moves(&self, most: u32);

    /// Takes the oldest move: unit and place.
    fn take_move(&self) -> Option<(u32, u32)>;

    /// Number of moves that were dropped.
    fn dropped_moves(&self) -> u64;

    /// Returns when half as many moves are waiting as are kept.
    fn moves_due(&self) -> Later<'_, ()>;
}

impl<P: Pages> Mapping for Drive<P> {
    fn unit_bytes(&self) -> u32 {
        Drive::unit_bytes(self)
    }

    fn places<'a>(
        &'a self,
        block: u64,
        blocks: u32,
        into: &'a mut Vec<u32>,
    ) -> Later<'a, Result<(), ftl::Error>> {
        Box::pin(async move {
            let software = self.software().await.map_err(|_| ftl::Error::Unreadable)?;
            software.places(block, blocks, &mut |place| into.push(place)).await
        })
    }

    fn keep_moves(&self, most: u32) {
        if let Some(software) = self.mounted() {
            software.keep_moves(most);
        }
    }

    fn take_move(&self) -> Option<(u32, u32)> {
        self.mounted()?.take_move()
    }

    fn dropped_moves(&self) -> u64 {
        self.mounted().map_or(0, ftl::Ftl::dropped_moves)
    }

    fn moves_due(&self) -> Later<'_, ()> {
        Box::pin(async {
            match self.software().await {
                Ok(software) => software.moves_due().await,
                // Not mounted, so no unit will ever move.
                Err(_) => std::future::pending().await,
            }
        })
    }
}
