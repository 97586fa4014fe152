//! Looking up and changing the map, with the valid bits that follow from it.

use crate::content::{Holds, holds};
use crate::layout::NONE;
use crate::map::{Cached, Map};
use crate::state::State;

impl State {
    /// The cached map, if it is not fully resident.
    #[inline]
    pub fn cached(&self) -> Option<&Cached> {
        match &self.map {
            Map::Cached(cached) => Some(cached),
            Map::Whole(_) => None,
        }
    }

    #[inline]
    pub fn cached_mut(&mut self) -> Option<&mut Cached> {
        match &mut self.map {
            Map::Cached(cached) => Some(cached),
            Map::Whole(_) => None,
        }
    }

    /// Location of a unit; `None` on a cache miss.
    #[inline]
    pub fn look(&self, logical: u32) -> Option<u32> {
        match &self.map {
            Map::Whole(map) => Some(map.get(logical).wrapping_sub(1)),
            Map::Cached(cached) => cached.look(logical).or_else(|| self.blank(logical)),
        }
    }

    /// `NONE` as the location, if this unit's part was never written to flash.
    fn blank(&self, logical: u32) -> Option<u32> {
        let cached = self.cached()?;
        let part = cached.part(logical);
        let blank = self.chunks[part as usize] == NONE
            && cached.laid.is_none()
            && cached.slot_of(part).is_none();
        blank.then_some(NONE)
    }

    /// Updates the map only, not the valid bits.
    #[inline]
    pub fn put(&mut self, logical: u32, unit: u32) {
        match &mut self.map {
            Map::Whole(map) => {
                *map.get_mut(logical) = unit.wrapping_add(1);
                self.dirty[(logical / self.per_part) as usize] = true;
            }
            Map::Cached(cached) => match &mut cached.laid {
                Some(map) => map[logical as usize] = unit.wrapping_add(1),
                None => cached.replay(logical, unit),
            },
        }
    }

    /// Maps a unit to a new location or `NONE`, and invalidates the old one: `from`, if known.
    #[inline]
    pub fn replace(&mut self, logical: u32, unit: u32, from: Option<u32>) {
        let from = from.or_else(|| self.blank(logical));
        let before = match &mut self.map {
            Map::Whole(map) => {
                let entry = map.get_mut(logical);
                let before = core::mem::replace(entry, unit.wrapping_add(1)).wrapping_sub(1);
                if before != unit {
                    self.dirty[(logical / self.per_part) as usize] = true;
                }
                before
            }
            Map::Cached(cached) => cached.put(logical, unit, from),
        };
        if before != NONE {
            self.supers.clear_valid(before);
        }
        self.moves.note(logical, unit);
    }

    /// Returns true if the content with this tag is still at this location. The location must not have been
    /// erased since its spare bytes were read.
    #[inline]
    pub fn is_still_at(&mut self, logical: u32, at: u32) -> bool {
        let (Map::Cached(cached), Holds::Data { logical, .. }) = (&mut self.map, holds(logical))
        else {
            return self.owner(logical) == at;
        };
        match cached.change(logical) {
            None => self.supers.is_valid(at),
            Some(now) if now == at => true,
            Some(_) => {
                // The change has replaced this location.
                if self.supers.is_valid(at) && cached.freshen(logical) {
                    self.supers.clear_valid(at);
                }
                false
            }
        }
    }

    /// Returns true if a map part must be written before further changes.
    #[inline]
    pub fn is_map_full(&self) -> bool {
        self.cached().is_some_and(Cached::is_full)
    }

    /// Number of changes whose old location still counts as valid.
    #[inline]
    pub fn stale(&self) -> u32 {
        self.cached().map_or(0, |cached| cached.stale)
    }

    /// Erased superblocks reserved for the map.
    #[inline]
    pub fn owed(&self) -> u32 {
        self.cached().map_or(0, |cached| cached.quota.superblocks.saturating_sub(cached.supers))
    }

    /// Superblocks for data that are erased or may be erased.
    #[inline]
    pub fn free(&self) -> u32 {
        self.supers.free.saturating_sub(self.owed())
    }
}
