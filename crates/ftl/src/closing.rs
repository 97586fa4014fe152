//! Superpages on open word lines: see `close.rs`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::job::Job;
use crate::layout::WritePointer;
use crate::policy::Stream;

/// A superpage whose closing superpage has not been formed yet.
#[derive(Clone)]
pub(crate) struct Open {
    pub write_pointer: WritePointer,
    pub oldest: u64,
}

/// Superpages on open word lines.
#[derive(Clone)]
pub(crate) struct Closing {
    /// Per stream: superpages whose closing superpage has not been formed.
    pub open: [VecDeque<Open>; Stream::COUNT],
    /// Per die: programmed superpages that are held, with the planes in which they failed.
    pub held: Vec<Vec<(Job, u32)>>,
}

impl Closing {
    pub fn new(dies: u32) -> Closing {
        Closing { open: Default::default(), held: (0..dies).map(|_| Vec::new()).collect() }
    }

    /// Returns true if no superpage is held.
    pub fn is_empty(&self) -> bool {
        self.held.iter().all(Vec::is_empty)
    }

    /// Sequence number of the oldest superpage that is held.
    pub fn oldest(&self) -> Option<u64> {
        self.held.iter().flatten().map(|(job, _)| job.header.sequence).min()
    }

    /// Hands the collector's open word lines over to the host stream.
    pub fn hand_over(&mut self) {
        self.open[Stream::Host as usize] =
            core::mem::take(&mut self.open[Stream::Collector as usize]);
    }
}
