//! Stream of a superpage: by the hints for its units, and by the superblocks that are open or may be opened.

use crate::content::{Holds, holds};
use crate::policy::{Heat, Stream};
use crate::space::{self, Opening};
use crate::state::State;

impl State {
    /// Heat of what a unit holds. Metadata have none.
    pub fn heat(&self, logical: u32) -> Heat {
        match holds(logical) {
            Holds::Data { logical, .. } if self.options.hints => self.hints.heat(logical),
            _ => Heat::Typical,
        }
    }

    /// Stream for a superpage of the host's units of this heat: another one of the host if its own has no
    /// superblock and may not open one.
    pub fn host_stream(&mut self, heat: Heat) -> Stream {
        let own = Stream::of_host(heat);
        if !self.options.hints || self.supers.peek(own).is_some() {
            return own;
        }
        let wanted = u32::from(self.supers.refreshing > 0);
        if space::may_open(Stream::Host, self.free(), wanted) == Opening::Plain {
            return own;
        }
        let mut others = Stream::OF_HOST.into_iter();
        others.find(|one| self.supers.peek(*one).is_some()).unwrap_or(own)
    }

    /// Stream of a class for the collector, if it has a superblock with space or may open one.
    pub fn hinted_stream(&mut self, heat: Heat) -> Option<Stream> {
        let own = Stream::of_host(heat);
        let usable = heat != Heat::Typical
            && self.reserve_copy.is_none()
            && (self.supers.peek(own).is_some() || (self.free() > 1 && self.supers.clean > 0));
        usable.then_some(own)
    }

    /// Returns true if the collector does not separate classes: it has the reserve superblock, or only that
    /// one is left.
    pub fn mixes_classes(&mut self) -> bool {
        !self.options.hints || self.reserve_copy.is_some() || self.free() <= 1
    }

    /// Stream that the collector writes its next superpage to: that of its class, or else its own, or the
    /// host's, if it has no superblock of its own and none is available, for example after failed programs.
    pub fn collector_stream(&mut self) -> Stream {
        if let Some(stream) = self.hinted_stream(self.collection.heat) {
            return stream;
        }
        let own = self.supers.peek(Stream::Collector).is_some()
            || self.reserve_copy.is_some()
            || (self.options.separate_streams && self.supers.clean > 0);
        if own { Stream::Collector } else { Stream::Host }
    }
}
