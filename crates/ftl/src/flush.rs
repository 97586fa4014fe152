//! When data survive a power cut: in NV-SRAM, if there is some, or on flash.

use crate::ftl::Inner;
use crate::options::{Cache, Error};
use crate::pages::Pages;

impl<P: Pages> Inner<P> {
    pub async fn flush(&self) -> Result<(), Error> {
        if self.options.cache == Cache::Protected || self.options.mistakes.flush_returns_at_once {
            return Ok(());
        }
        self.until_on_flash().await
    }

    /// Returns when all earlier writes and trims are on flash, whatever the buffer survives.
    pub async fn until_on_flash(&self) -> Result<(), Error> {
        let ticket = {
            let mut state = self.state.borrow_mut();
            state.seal_note();
            let ticket = state.buffer.next_order() - 1;
            state.force = state.force.max(ticket);
            ticket
        };
        self.form();
        let since = self.blame.begin_wait(&self.rt, &*self.pages);
        loop {
            let seen = self.landed.version();
            if let Some(done) = self.is_flushed(ticket) {
                self.blame.end_wait(&self.rt, &*self.pages, since, self.blame.flush);
                done?;
                return Ok(self.pages.persist()?);
            }
            self.form();
            self.landed.changed(&self.rt, seen).await;
        }
    }

    /// Returns `Some` if all writes up to this one are on flash or never will be. Hurries trim records that
    /// replace some of them.
    fn is_flushed(&self, ticket: u64) -> Option<Result<(), Error>> {
        let mut state = self.state.borrow_mut();
        let landed = state.buffer.oldest_order().is_none_or(|oldest| oldest > ticket);
        // Data trimmed during the wait need not be on flash; then the trim record must be.
        let stands = state.standing.iter().any(|(_, order)| *order <= ticket);
        let open = state.note.is_some_and(|note| note.stands_for <= ticket);
        if landed && !stands && !open {
            return Some(Ok(()));
        }
        if state.worn_out {
            return Some(Err(Error::WornOut));
        }
        if open || (landed && stands) {
            state.seal_note();
            state.force = state.force.max(state.buffer.next_order() - 1);
        }
        None
    }

    /// Returns when the writes up to this number survive a power cut, in a write buffer that does.
    ///
    /// # Errors
    /// [`Error::WornOut`]: there is no room, and there never will be.
    pub async fn until_kept(&self, order: u64) -> Result<(), Error> {
        if self.options.nv_slots.is_none() || self.is_kept(order) {
            return Ok(());
        }
        let since = self.blame.begin_wait(&self.rt, &*self.pages);
        // Writes that come at this moment fill the superpage that would be padded.
        self.rt.yield_now().await;
        let done = loop {
            let seen = self.landed.version();
            if self.is_kept(order) {
                break Ok(());
            }
            if self.state.borrow().worn_out {
                break Err(Error::WornOut);
            }
            self.make_room();
            self.landed.changed(&self.rt, seen).await;
        };
        self.blame.end_wait(&self.rt, &*self.pages, since, self.blame.buffer);
        done
    }

    /// Tells the flash which slots have found room, and looks.
    fn is_kept(&self, order: u64) -> bool {
        let mut state = self.state.borrow_mut();
        while let Some(slot) = state.buffer.pop_found() {
            self.pages.preserve(slot, true);
        }
        self.options.mistakes.nv_sram_has_no_bound || state.buffer.is_safe(order)
    }

    /// Sends the oldest units to flash if none of those in the NV-SRAM is on its way: a superpage that does
    /// not fill is padded.
    fn make_room(&self) {
        let mut state = self.state.borrow_mut();
        if !state.buffer.is_stuck() {
            drop(state);
            // Superpages may be held until others close their word lines.
            return self.collect.notify(&self.rt);
        }
        if let Some((oldest, _)) = state.buffer.oldest_waiting() {
            state.force = state.force.max(oldest);
        }
        drop(state);
        self.form();
    }
}
