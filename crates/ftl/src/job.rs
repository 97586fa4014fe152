//! A superpage on its way to flash, and the queue of a die.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::blame::Clocks;
use crate::layout::{Layout, WritePointer};
use crate::pages::{Header, Unit};

#[derive(Clone)]
pub(crate) struct Job {
    pub write_pointer: WritePointer,
    pub planes: u32,
    pub header: Header,
    pub units: Vec<Unit>,
    /// For each unit, the location that it was copied from: the copy counts only if the map still points
    /// there. `NONE` if the unit comes from the buffer.
    pub from: Vec<u32>,
    pub collected: bool,
    /// It counts only after the uncommitted superblock that holds it is committed.
    pub uncommitted: bool,
    /// Filler: it closes word lines and holds no data.
    pub filler: bool,
    /// It holds parts of a cached map.
    pub of_map: bool,
    /// Time at which it was formed.
    pub made_up: Clocks,
}

/// Work queued for a die.
#[derive(Clone)]
pub(crate) struct Queue {
    pub jobs: VecDeque<Job>,
    /// Number of the superpage being programmed.
    pub flying: Option<u64>,
}

/// Superpages queued for a die behind the one being programmed.
pub(crate) const QUEUE: usize = 2;

impl Job {
    /// Iterator over the units of the superpage: plane, and number.
    pub fn targets(&self, layout: &Layout) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (first, per_plane) = (layout.first(self.write_pointer), layout.plane_units);
        let planes = self.planes;
        (0..32).filter(move |plane| planes >> plane & 1 != 0).flat_map(move |plane| {
            (0..per_plane).map(move |at| (plane, first + plane * per_plane + at))
        })
    }
}
