//! Read path: locations from the map, pages into memory, bytes to the reader.

use alloc::vec::Vec;

use crate::ftl::{Inner, Pieces, Run};
use crate::layout::NONE;
use crate::options::Error;
use crate::pages::{LOST, PageRead, Pages, Part, Place};

/// Mapping unit, first byte in it, length in bytes.
type Piece = (u32, u32, u32);

/// Location at which a reader finds the newest version of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Slot(u32),
    /// It was never written, or is trimmed.
    Unmapped,
    Flash(Place),
    /// On a page that this read has not sensed.
    Moved,
}

impl<P: Pages> Inner<P> {
    /// Location that a read of the unit has to sense; `None` if the unit is buffered or unmapped.
    pub async fn locate(&self, logical: u32) -> Result<Option<u32>, Error> {
        if self.state.borrow().buffer.find(logical).is_some() {
            return Ok(None);
        }
        let at = self.place_of(logical).await?;
        // It may have been written while the map was read.
        let buffered = self.state.borrow().buffer.find(logical).is_some();
        Ok(Some(at).filter(|at| *at != NONE && !buffered))
    }

    /// Senses a unit at its current location; returns that location, or `None` if no sensing was needed.
    pub async fn sense(&self, logical: u32) -> Result<Option<u32>, Error> {
        let mut parts = self.take_parts();
        let done = loop {
            let at = match self.locate(logical).await {
                Ok(Some(at)) => at,
                Ok(None) => break Ok(None),
                Err(error) => break Err(error),
            };
            parts.clear();
            self.add_part(&mut parts, at);
            self.pages.read(&mut parts).await;
            let is_there = self.locate(logical).await == Ok(Some(at));
            // No units: the page has been erased since, whatever is there now.
            if is_there && parts[0].units > 0 {
                self.note(&parts[0]);
                let lost = || self.pages.logical(self.layout.place(at)) & LOST != 0;
                let good = matches!(parts[0].seen, PageRead::Good { .. }) && !lost();
                break if good { Ok(Some(at)) } else { Err(Error::Unreadable) };
            }
        };
        self.give_parts(parts);
        done
    }

    pub async fn read(&self, block: u64, blocks: u32) -> Result<(), Error> {
        let pieces = self.pieces(block, blocks)?;
        let mut parts = self.take_parts();
        let done = match self.sense_all(pieces, &mut parts).await {
            Ok(()) if parts.is_empty() => Ok(()),
            Ok(()) => self.visit(pieces, &mut parts, &mut |_, _| Ok(())).await,
            Err(error) => Err(error),
        };
        self.give_parts(parts);
        done
    }

    pub async fn read_to(
        &self,
        block: u64,
        blocks: u32,
        put: &mut dyn FnMut(u32, Run<'_>),
    ) -> Result<(), Error> {
        let pieces = self.pieces(block, blocks)?;
        let mut parts = self.take_parts();
        let done = match self.sense_all(pieces, &mut parts).await {
            Ok(()) => {
                let mut take = |piece, found| self.copy_to(pieces, piece, found, put);
                self.visit(pieces, &mut parts, &mut take).await
            }
            Err(error) => Err(error),
        };
        self.give_parts(parts);
        done
    }

    /// Counts a unit that a reader wants, and whether flash has it. A drive that was never written answers at
    /// once, which says nothing of its flash.
    pub fn count(&self, found: Option<u32>, logical: u32) {
        let mut state = self.state.borrow_mut();
        state.counters.read_units += 1;
        if found.is_none() && state.buffer.find(logical).is_none() {
            state.counters.blank_units += 1;
        }
    }

    /// Senses the pages of these units, each page once, in one operation.
    async fn sense_all(
        &self,
        pieces: impl Iterator<Item = Piece>,
        parts: &mut Vec<Part>,
    ) -> Result<(), Error> {
        parts.clear();
        for (logical, _, _) in pieces {
            let found = self.locate(logical).await?;
            self.count(found, logical);
            if let Some(at) = found {
                self.add_part(parts, at);
            }
        }
        if !parts.is_empty() {
            self.pages.read(parts).await;
            parts.iter().for_each(|part| self.note(part));
        }
        Ok(())
    }

    /// Passes each unit to `take`, once: where it is found. Those that have moved since they were located are
    /// located and sensed again, in one operation, as often as that happens. With the whole map in memory, no
    /// time passes between the end of the reads and `take`.
    async fn visit(
        &self,
        pieces: Pieces,
        parts: &mut Vec<Part>,
        take: &mut dyn FnMut(Piece, Found) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut moved = Vec::new();
        for piece in pieces {
            match self.find(piece.0, parts).await? {
                Found::Moved => moved.push(piece),
                found => take(piece, found)?,
            }
        }
        while !moved.is_empty() {
            let again = core::mem::take(&mut moved);
            self.sense_all(again.iter().copied(), parts).await?;
            for piece in again {
                match self.find(piece.0, parts).await? {
                    Found::Moved => moved.push(piece),
                    found => take(piece, found)?,
                }
            }
        }
        Ok(())
    }

    /// Finds the newest version of a unit, given the pages that have just been sensed.
    async fn find(&self, logical: u32, parts: &[Part]) -> Result<Found, Error> {
        let located = self.locate(logical).await?;
        let Some(at) = located else {
            let slot = self.state.borrow().buffer.find(logical);
            return Ok(slot.map_or(Found::Unmapped, Found::Slot));
        };
        let place = self.layout.place(at);
        let sensed = |part: &&Part| part.page == place.page && part.units >> place.unit & 1 != 0;
        match parts.iter().find(sensed) {
            None => Ok(Found::Moved),
            Some(part) if !matches!(part.seen, PageRead::Good { .. }) => Err(Error::Unreadable),
            Some(_) if self.pages.logical(place) & LOST != 0 => Err(Error::Unreadable),
            Some(_) => Ok(Found::Flash(place)),
        }
    }

    /// Passes the bytes of a unit to a reader of `pieces`.
    fn copy_to(
        &self,
        pieces: Pieces,
        piece: Piece,
        found: Found,
        put: &mut dyn FnMut(u32, Run<'_>),
    ) -> Result<(), Error> {
        let (_, offset, bytes) = piece;
        let base = pieces.offset(piece);
        let mut covered = offset;
        let mut cut = |at: u32, run: &[u8]| {
            let (low, high) = (at.max(covered), (at + run.len() as u32).min(offset + bytes));
            if low >= high {
                return;
            }
            if covered < low {
                put(base + covered - offset, Run::Zeros(low - covered));
            }
            let run = &run[(low - at) as usize..(high - at) as usize];
            put(base + low - offset, Run::Bytes(run));
            covered = high;
        };
        match found {
            Found::Slot(slot) => self.pages.lend_slot(slot, &mut cut),
            Found::Flash(place) if !self.pages.lend(place, &mut cut) => {
                return Err(Error::Unreadable);
            }
            _ => {}
        }
        if covered < offset + bytes {
            put(base + covered - offset, Run::Zeros(offset + bytes - covered));
        }
        Ok(())
    }

    pub fn lend(
        &self,
        block: u64,
        blocks: u32,
        places: &[u32],
        put: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<(), Error> {
        let mut done = 0;
        for (at, (logical, offset, bytes)) in self.pieces(block, blocks)?.enumerate() {
            let named = places.get(at).copied().unwrap_or(NONE);
            let base = done;
            let mut cut = |at: u32, run: &[u8]| {
                let (low, high) = (at.max(offset), (at + run.len() as u32).min(offset + bytes));
                if low < high {
                    put(base + low - offset, &run[(low - at) as usize..(high - at) as usize]);
                }
            };
            let slot = self.state.borrow().buffer.find(logical);
            let at = match slot {
                Some(_) => Some(NONE),
                None => self.known_by(logical, named),
            };
            match (slot, at) {
                (Some(slot), _) => self.pages.lend_slot(slot, &mut cut),
                (None, Some(NONE)) => {}
                (None, None) => return Err(Error::Unreadable),
                (None, Some(at)) => {
                    let place = self.layout.place(at);
                    let lost = self.pages.logical(place) & LOST != 0;
                    if lost || !self.pages.lend(place, &mut cut) {
                        return Err(Error::Unreadable);
                    }
                }
            }
            done += bytes;
        }
        Ok(())
    }
}
