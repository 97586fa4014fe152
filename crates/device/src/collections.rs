//! What a front end tells a host of the flash below it, where the host leads the collector.

use std::future::Future;
use std::pin::Pin;

use ftl::policy::{Candidate, GcControl, Space};
use ftl::{NotCollected, Pages};

use crate::drive::Drive;

/// Something that takes time, behind a wall that does not say whose.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Flash software whose collector can be led from outside. One command for each superblock comes here, so
/// that what it takes to go through a table of functions is nothing beside it.
pub trait Collections {
    /// Space, and what must be left; all that whoever chooses has to know beside its superblocks. None: the
    /// software is not mounted.
    fn survey(&self) -> Option<Survey>;

    /// What could be collected of a superblock now, if anything.
    fn candidate(&self, superblock: u32) -> Option<Candidate>;

    /// Who leads from now on.
    fn lead(&self, lead: GcControl);

    /// Returns when less space is left than [`GcControl::Named`] says.
    fn short(&self) -> Later<'_, ()>;

    /// As [`ftl::Ftl::collect`].
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

/// How much space there is, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey {
    /// What is left, and what must be; `start` is where the software would begin by itself.
    pub space: Space,
    /// How many superblocks there are.
    pub superblocks: u32,
    /// Units of each.
    pub superblock_units: u32,
    /// Rows of the collector that may be under way at the same time.
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
                // Nobody will ever write.
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
