//! A slot of the write buffer.

use crate::layout::NONE;
use crate::policy::Heat;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Free,
    /// Waits for a superpage; may still be modified.
    Pending,
    /// In a superpage that is being programmed; its bytes are frozen.
    Flying,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub logical: u32,
    /// Write order: later writes have greater numbers. A write that replaces a failed one takes its number.
    pub order: u64,
    pub phase: Phase,
    /// The queue in which it waits.
    pub heat: Heat,
    /// A newer version is on flash already, or it was trimmed: its location will be ignored.
    pub dead: bool,
    /// In NV-SRAM of a bounded size; see [`region`](crate::region).
    pub kept: bool,
    /// Slot with an older version of the same unit that is still in flight.
    pub older: u32,
    /// Neighbours in write order.
    pub before: u32,
    pub after: u32,
}

pub(crate) const EMPTY: Slot = Slot {
    logical: NONE,
    order: 0,
    phase: Phase::Free,
    heat: Heat::Typical,
    dead: false,
    kept: false,
    older: NONE,
    before: NONE,
    after: NONE,
};
