//! Map on the host: vendor-specific I/O commands, a log page, a feature and an event.
//!
//! The host keeps the map of flash and sends the *place* of each mapping unit with a read ([`PlacedRead`]).
//! The controller checks every place, so a wrong one costs a [stale
//! place](super::status::Status::STALE_PLACE) and nothing else. The host asks for places by Read Map, which
//! returns one little-endian dword per mapping unit. Units move without the host: the log page of moves
//! ([`Moves`], followed by a [`Move`] each) reports these. NVMe leaves opcodes, log pages and features from
//! C0h on to vendors (NVMe base 2.0, 5, 5.16 and 5.27).

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::access::Access;
use super::entry::Sqe;
use super::layout;

/// No place: the host doesn't know it, or the unit has none on flash. The controller looks such a unit up.
pub const NO_PLACE: u32 = u32::MAX;

/// Parameters of Read Placed: a read, with a place for each mapping unit that it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedRead {
    /// Blocks and flags. If the blocks touch several mapping units, MPTR is the address of the list of their
    /// places, one little-endian dword each.
    pub access: Access,
    /// Dword 13: the place, if the blocks touch one mapping unit only.
    pub place: u32,
}

impl PlacedRead {
    pub(super) fn parse(sqe: &Sqe) -> PlacedRead {
        PlacedRead { access: Access::parse(sqe), place: sqe.cdw13.get() }
    }

    pub(super) fn store(&self, sqe: &mut Sqe) {
        self.access.store(sqe);
        sqe.cdw13 = self.place.into();
    }
}

/// Header of the log page [`MOVES`](super::log::lid::MOVES). Reading the page takes the moves that it
/// returns.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Moves {
    /// Moves that were dropped since the feature was set, because the host read too late.
    pub dropped: U64,
    /// Bytes of a mapping unit.
    pub unit_bytes: U32,
    /// Number of moves that follow, at most [`MOVES_PER_PAGE`].
    pub count: U32,
}

layout!(Moves, 16, { dropped @ 0, unit_bytes @ 8, count @ 12 });

/// A mapping unit has a new place.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Move {
    /// Mapping unit, counted from block 0.
    pub unit: U32,
    /// Its place, or [`NO_PLACE`].
    pub place: U32,
}

layout!(Move, 8, { unit @ 0, place @ 4 });

/// Most moves in one log page, which is then a memory page long.
pub const MOVES_PER_PAGE: u32 = (4096 - size_of::<Moves>() as u32) / size_of::<Move>() as u32;

/// Value of the feature [`HOST_MAP`](super::features::fid::HOST_MAP). A reset disables it.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct HostMap {
    /// Moves that the controller keeps until the host reads them, at most [`HostMap::MOVES_MAX`]; with half
    /// as many it sends an event. 0: it keeps none.
    pub moves: u32,
}

impl HostMap {
    /// Most moves that a controller keeps.
    pub const MOVES_MAX: u32 = 1 << 16;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn move_layout() {
        let moved = Move { unit: 0x0102.into(), place: NO_PLACE.into() };
        assert_eq!(moved.as_bytes(), [2, 1, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(MOVES_PER_PAGE, 510);
    }
}
