//! Host-directed GC: flash state that a controller reports, and commands that it accepts.

use std::future::Future;
use std::pin::Pin;

use ftl::policy::{Candidate, GcControl, Space};
use ftl::{NotCollected, Pages};

use crate::drive::Drive;

/// A boxed future.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A translation layer whose GC can be directed from outside. It is called once per superblock, so the cost
/// of dynamic dispatch is negligible.
pub trait Collections {
    /// Free space and its thresholds, the input of a victim selection besides the superblocks themselves.
    /// `None` if the flash is not mounted.
    fn survey(&self) -> Option<Survey>;

    /// GC candidate data of this superblock now. `None` if it cannot be collected.
    fn candidate(&self, superblock: u32) -> Option<Candidate>;

    /// Sets whether host or device directs GC.
    fn lead(&self, lead: GcControl);

    /// Returns when free space falls below the threshold of [`GcControl::Named`].
    fn short(&self) -> Later<'_, ()>;

    /// Collects a superblock, as [`ftl::Ftl::collect`].
    ///
    /// # Errors
    /// The superblock is not collected.
    fn collect(
        &self,
        superblock: u32,
        erases: u32,
        rows: u32,
    ) -> Later<'_, Result<u32, NotCollected>>;
}

/// Free space and geometry, as reported to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Free space and the space that must remain; `start` is the level at which the device starts GC by
    /// itself.
    pub space: Space,
    /// Number of superblocks.
    pub superblocks: u32,
    /// Mapping units per superblock.
    pub superblock_units: u32,
    /// GC parallelism: superpages that GC may process at the same time.
    pub gc_parallelism: u32,
}

impl<P: Pages> Collections for Drive<P> {
    fn survey(&self) -> Option<Survey> {
        let software = self.mounted()?;
        Some(Survey {
            space: software.space(),
            superblocks: software.superblocks(),
            superblock_units: software.superblock_units(),
            gc_parallelism: software.gc_parallelism(),
        })
    }

    fn candidate(&self, superblock: u32) -> Option<Candidate> {
        self.mounted()?.candidate(superblock)
    }

    fn lead(&self, lead: GcControl) {
        if let Some(software) = self.mounted() {
            software.lead(lead);
        }
    }

    fn short(&self) -> Later<'_, ()> {
        Box::pin(async {
            match self.software().await {
                Ok(software) => software.short().await,
                // Not mounted, so no write will ever use space.
                Err(_) => std::future::pending().await,
            }
        })
    }

    fn collect(
        &self,
        superblock: u32,
        erases: u32,
        rows: u32,
    ) -> Later<'_, Result<u32, NotCollected>> {
        Box::pin(async move {
            let software = self.software().await.map_err(|_| NotCollected::WornOut)?;
            software.collect(superblock, erases, rows).await
        })
    }
}
