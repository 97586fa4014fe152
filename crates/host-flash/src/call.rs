//! Host memory of a flash call: reserved at once, and freed however the call ends.

use alloc::vec::Vec;

use bus::HostPort;
use ftl::Page;

use super::flash::Remote;
use super::store::{Kind, NONE};

impl<P: HostPort> Remote<P> {
    pub(super) fn list(&self) -> Vec<u16> {
        self.lists.borrow_mut().pop().unwrap_or_default()
    }

    /// Reserves the given numbers of bare and full places, and a full place for each of `pins` that is not in
    /// memory. Pages in memory are pinned until the call has ended.
    pub(super) async fn reserve(
        &self,
        (bare, full): (usize, usize),
        pins: &[(Page, u32)],
    ) -> Call<'_, P> {
        let mut call = Call { remote: self, places: self.list(), pinned: self.list() };
        let _turn = match self.turnstile.try_take() {
            Some(()) => Turnstile(self),
            None => {
                self.turnstile.take(&self.rt).await;
                Turnstile(self)
            }
        };
        loop {
            for (page, units) in pins {
                let found = self.store.find_units(*page, *units);
                found.inspect(|at| self.store.pin(*at));
                call.pinned.push(found.unwrap_or(NONE));
            }
            let missing = call.pinned.iter().filter(|at| **at == NONE).count();
            let full = full + missing;
            if self.store.has(Kind::Bare, bare) && self.store.has(Kind::Full, full) {
                call.places.extend((0..full).map(|_| self.store.take(Kind::Full)));
                call.places.extend((0..bare).map(|_| self.store.take(Kind::Bare)));
                self.rt.record(self.stages.room);
                return call;
            }
            call.unpin();
            // Space freed by unpinning has been considered already.
            let room = self.store.room();
            room.changed(&self.rt, room.version()).await;
        }
    }
}

/// Turn to reserve places; released on drop.
struct Turnstile<'a, P: HostPort>(&'a Remote<P>);

impl<P: HostPort> Drop for Turnstile<'_, P> {
    fn drop(&mut self) {
        self.0.turnstile.give(&self.0.rt, ());
    }
}

/// Reserved places of a call. On drop each is freed, at once or when its command has ended.
pub(super) struct Call<'a, P: HostPort> {
    remote: &'a Remote<P>,
    pub places: Vec<u16>,
    pub pinned: Vec<u16>,
}

impl<P: HostPort> Call<'_, P> {
    fn unpin(&mut self) {
        let (store, rt) = (&self.remote.store, &self.remote.rt);
        self.pinned.drain(..).filter(|at| *at != NONE).for_each(|at| store.unpin(rt, at));
    }
}

impl<P: HostPort> Drop for Call<'_, P> {
    fn drop(&mut self) {
        self.unpin();
        let remote = self.remote;
        self.places.drain(..).for_each(|at| remote.store.let_go(&remote.rt, at));
        let mut lists = remote.lists.borrow_mut();
        lists.push(core::mem::take(&mut self.places));
        lists.push(core::mem::take(&mut self.pinned));
    }
}
