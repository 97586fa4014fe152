//! Identity of a state, and its place in the journal.

use std::path::PathBuf;

use super::journal::frame::Position;

/// Identity of the state, and of the journal that belongs to it.
#[derive(Clone, Default)]
pub(super) struct Lineage {
    /// Id of the state that was loaded or written last: the checksum of its header.
    pub id: u64,
    /// Number of times that it was rewritten.
    pub generation: u64,
    /// Journal position up to which that state includes the journal.
    pub saved: Position,
    /// Journal position of this flash.
    pub position: Position,
    /// The journal that was replayed.
    pub replayed: Option<PathBuf>,
    /// That journal belongs to another state.
    pub aside: bool,
}
