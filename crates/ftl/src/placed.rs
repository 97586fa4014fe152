//! The map on the host: reads whose caller says where each unit lies.
//!
//! Without the whole map in memory ([`Options::map_cache`](crate::Options::map_cache)) the location of a
//! unit often is on flash only. A caller that keeps the map saves that read: it passes a *place* for each
//! unit, the number of a location. Memory takes precedence: the write buffer, then changes and cached
//! parts. Otherwise the place is checked, and never trusted: it is read, and it counts only if
//! - the location is valid: no change contradicts the map on flash, so it is the only valid one of its unit;
//! - the tag in the spare bytes beside the data names this very unit.
//!
//! So a caller gets the newest data of the unit that it named, or [`Error::Stale`].
//!
//! The location that a write replaces is not taken from a caller: to clear the valid bit of a location on
//! its word alone would lose data, and to check the tag first would be a read for each write. It stays as
//! with a cached map: the old location is found when its part of the map is written.

use alloc::vec::Vec;

use crate::ftl::{Ftl, Inner};
use crate::layout::NONE;
use crate::options::Error;
use crate::pages::{LOST, PageRead, Pages, Part};
use crate::state::State;

/// State of a unit after the pages that its reader wanted have been read.
enum Sensed {
    Here,
    /// It has moved to a page that was not read.
    Moved,
}

impl State {
    /// True if this location, which a caller has named, can hold live data of a unit that has no change.
    fn may_be_at(&mut self, at: u32) -> bool {
        let superblock = self.layout.superblock(at);
        (superblock as usize) < self.supers.all.len()
            && self.supers.is_valid(at)
            && !self.is_uncommitted(superblock)
    }
}

impl<P: Pages> Inner<P> {
    /// True if this location, on a page that has been read, holds the live data of a unit without a change.
    fn is_at(&self, logical: u32, at: u32) -> bool {
        let tag = || self.pages.logical(self.layout.place(at)) & !LOST == logical;
        self.state.borrow_mut().may_be_at(at) && (self.options.mistakes.places_are_trusted || tag())
    }

    /// Location to be sensed for a unit with this place; `None` if it is buffered or unmapped.
    async fn locate_placed(&self, logical: u32, place: u32) -> Result<Option<u32>, Error> {
        if self.state.borrow().buffer.find(logical).is_some() {
            return Ok(None);
        }
        let known = self.state.borrow().look(logical);
        let at = match known {
            Some(at) => at,
            None if place == NONE => return self.locate(logical).await,
            None if self.state.borrow_mut().may_be_at(place) => place,
            None => return Err(Error::Stale),
        };
        Ok(Some(at).filter(|at| *at != NONE))
    }

    fn sensed(&self, logical: u32, place: u32, parts: &[Part]) -> Result<Sensed, Error> {
        if self.state.borrow().buffer.find(logical).is_some() {
            return Ok(Sensed::Here);
        }
        let known = self.state.borrow().look(logical);
        let at = match known.unwrap_or(place) {
            // With neither, the map was read; its frame may have been reused since.
            NONE if known.is_none() => return Ok(Sensed::Moved),
            NONE => return Ok(Sensed::Here),
            at => at,
        };
        let spot = self.layout.place(at);
        let here = |part: &&Part| part.page == spot.page && part.units >> spot.unit & 1 != 0;
        let Some(part) = parts.iter().find(here) else { return Ok(Sensed::Moved) };
        let good = matches!(part.seen, PageRead::Good { .. });
        match known {
            // Of an unreadable page the tag is unreadable too.
            None if !good || !self.is_at(logical, at) => Err(Error::Stale),
            _ if !good || self.pages.logical(spot) & LOST != 0 => Err(Error::Unreadable),
            _ => Ok(Sensed::Here),
        }
    }

    async fn sense_placed(
        &self,
        pieces: impl Iterator<Item = (u32, u32, u32)> + Clone,
        places: &[u32],
        parts: &mut Vec<Part>,
    ) -> Result<Sensed, Error> {
        parts.clear();
        let placed = || pieces.clone().map(|(logical, ..)| logical).zip(places.iter().copied());
        for (logical, place) in placed() {
            let found = self.locate_placed(logical, place).await?;
            self.count(found, logical);
            if let Some(at) = found {
                self.add_part(parts, at);
            }
        }
        if !parts.is_empty() {
            self.pages.read(parts).await;
            parts.iter().for_each(|part| self.note(part));
        }
        for (logical, place) in placed() {
            if let Sensed::Moved = self.sensed(logical, place, parts)? {
                return Ok(Sensed::Moved);
            }
        }
        Ok(Sensed::Here)
    }

    async fn read_placed(&self, block: u64, blocks: u32, places: &[u32]) -> Result<(), Error> {
        let pieces = self.pieces(block, blocks)?;
        if self.state.borrow().cached().is_none() || pieces.count() != places.len() {
            return self.read(block, blocks).await;
        }
        let mut parts = self.take_parts();
        let done = self.sense_placed(pieces, places, &mut parts).await;
        self.give_parts(parts);
        match done? {
            Sensed::Here => Ok(()),
            // Rare: the unit was written or collected meanwhile.
            Sensed::Moved => self.read(block, blocks).await,
        }
    }

    /// Location of a unit that was read by this place.
    pub fn known_by(&self, logical: u32, place: u32) -> Option<u32> {
        if place == NONE {
            return self.known_place(logical);
        }
        let known = self.state.borrow().look(logical);
        match known {
            None if self.is_at(logical, place) => Some(place),
            _ => self.known_place(logical),
        }
    }
}

impl<P: Pages> Ftl<P> {
    /// As [`read`](Ftl::read), by the places of these blocks' units, from the first on. `u32::MAX`: not
    /// known, look it up. With the whole map in memory places have no effect.
    ///
    /// # Errors
    /// [`Error::Stale`]: a unit is not at its place. Otherwise as for `read`.
    pub async fn read_placed(&self, block: u64, blocks: u32, places: &[u32]) -> Result<(), Error> {
        self.0.read_placed(block, blocks, places).await
    }

    /// As [`lend`](Ftl::lend), of blocks that were read by these places.
    ///
    /// # Errors
    /// As for `lend`.
    pub fn lend_placed(
        &self,
        block: u64,
        blocks: u32,
        places: &[u32],
        put: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<(), Error> {
        self.0.lend(block, blocks, places, put)
    }

    /// Passes the place of each unit that these blocks touch to a callback: `u32::MAX` for a unit that has
    /// none, or is in the write buffer. Reads the map from flash where it is not cached.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Unreadable`]: the map can't be read.
    pub async fn places(
        &self,
        block: u64,
        blocks: u32,
        put: &mut dyn FnMut(u32),
    ) -> Result<(), Error> {
        for (logical, ..) in self.0.pieces(block, blocks)? {
            put(self.0.locate(logical).await?.unwrap_or(NONE));
        }
        Ok(())
    }

    /// Keeps up to `most` moves of units from now on, for [`take_move`](Ftl::take_move). 0: none.
    pub fn keep_moves(&self, most: u32) {
        self.0.state.borrow_mut().moves.keep(most as usize);
        self.0.landed.notify(&self.0.rt);
    }

    /// Takes the oldest move: unit, and its place or `u32::MAX`.
    pub fn take_move(&self) -> Option<(u32, u32)> {
        self.0.state.borrow_mut().moves.take()
    }

    /// Number of moves that were dropped because the ring was full.
    pub fn dropped_moves(&self) -> u64 {
        self.0.state.borrow().moves.dropped()
    }

    /// Returns when half as many moves are waiting as are kept.
    pub async fn moves_due(&self) {
        loop {
            let seen = self.0.landed.version();
            if self.0.state.borrow().moves.are_due() {
                return;
            }
            self.0.landed.changed(&self.0.rt, seen).await;
        }
    }
}
