//! Host-directed GC: the host requests which superblock is collected, when, and how fast. A request is a
//! hint, honoured within the invariant of [`space`](crate::space); otherwise it is rejected.
//!
//! The host cannot stall the collector. When writes would have to wait for space
//! ([`policy::GcControl::Named`]), the collector waits for a request, but at most [`PATIENCE`]. Then it works
//! on its own, and waits no more until the next request. So a host that stops sending requests costs that
//! wait once.

use runtime::{Either, Span, Time, race};

use crate::ftl::{Ftl, Inner};
use crate::options::Space;
use crate::pages::Pages;
use crate::policy::{self, Candidate};
use crate::request::{Named, NotCollected, Stage};
use crate::space;
use crate::state::State;
use crate::supers::Phase;

/// Maximum time for which a write that needs space waits for a request. Assumed: less than an erase, and more
/// than a driver, its interrupt and a look at the table.
pub(crate) const PATIENCE: Span = Span::ms(2);

impl<P: Pages> Ftl<P> {
    /// Number of superblocks.
    pub fn superblocks(&self) -> u32 {
        self.0.layout.shape.blocks
    }

    /// The superblock as a candidate for collection. `None` if it is erased, open, being collected, or holds
    /// parts of a cached map; if it would free no space or cannot be moved into the space left; or if the
    /// number is invalid.
    pub fn candidate(&self, superblock: u32) -> Option<Candidate> {
        let exists = superblock < self.0.layout.shape.blocks;
        exists.then(|| self.0.state.borrow().nameable(superblock)).flatten()
    }

    /// Free space and thresholds; `start` is where the collector starts on its own.
    pub fn space(&self) -> policy::Space {
        let own = Space::of(&self.0.layout, self.0.options.reserve);
        policy::Space { start: own.start, ..self.0.state.borrow().space() }
    }

    /// Maximum number of the collector's superpages in flight.
    pub fn gc_parallelism(&self) -> u32 {
        self.0.options.gc_parallelism.max(1)
    }

    /// Returns when less space is left than the notification threshold
    /// ([`GcControl::Named`](policy::GcControl::Named)).
    pub async fn short(&self) {
        loop {
            let seen = self.0.collect.version();
            if self.0.state.borrow().must_tell() {
                return;
            }
            self.0.collect.changed(&self.0.rt, seen).await;
        }
    }

    /// Collects a superblock whose erase count was `erases` when it was chosen, with at most `rows`
    /// superpages in flight. Returns the number of units that were valid at the start, as soon as all of it
    /// has been read: its space counts from then on, and it is erased when the copies have arrived. If the
    /// future is dropped, the superblock may be collected nevertheless.
    ///
    /// The reason, if it is not collected.
    /// It is not collected, and why.
    pub async fn collect(
        &self,
        superblock: u32,
        erases: u32,
        rows: u32,
    ) -> Result<u32, NotCollected> {
        let inner = &self.0;
        inner.state.borrow_mut().name(superblock, erases, rows)?;
        inner.collect.notify(&inner.rt);
        loop {
            let seen = inner.named.version();
            if let Some(ended) = inner.state.borrow_mut().ended(superblock, erases) {
                return ended;
            }
            inner.named.changed(&inner.rt, seen).await;
        }
    }
}

impl<P: Pages> Inner<P> {
    /// Waits for an event, or until the wait for the host-directed collector times out.
    pub async fn await_leader(&self, seen: u64, until: Time) {
        let news = self.collect.changed(&self.rt, seen);
        if let Either::Second(()) = race(news, self.rt.sleep_until(until)).await
            && let Some(leader) = &mut self.state.borrow_mut().leader
        {
            leader.silent = true;
        }
    }
}

impl State {
    /// Returns true if space is below the notification threshold.
    pub fn must_tell(&self) -> bool {
        self.leader.is_some_and(|leader| self.space().left < leader.below)
    }

    /// Returns true if space is short and the host may still choose what is collected.
    pub fn leaves_it_to_the_leader(&mut self) -> bool {
        let Some(leader) = self.leader.as_mut().filter(|leader| !leader.silent) else {
            return false;
        };
        leader.awaited = true;
        true
    }

    /// Returns true if the collector idles until the host sends a request.
    pub fn awaits_leader(&self) -> bool {
        self.leader.is_some_and(|leader| leader.awaited)
    }

    fn name(&mut self, superblock: u32, erases: u32, rows: u32) -> Result<(), NotCollected> {
        let superblocks = self.layout.shape.blocks;
        if superblock >= superblocks {
            return Err(NotCollected::Number { superblocks });
        }
        if self.named.is_some_and(|named| !matches!(named.stage, Stage::Ended(_))) {
            return Err(NotCollected::Busy);
        }
        self.named = Some(Named { superblock, erases, rows: rows.max(1), stage: Stage::Waits });
        Ok(())
    }

    /// Result of a request; `None` while it is in progress.
    fn ended(&mut self, superblock: u32, erases: u32) -> Option<Result<u32, NotCollected>> {
        let named = self.named.filter(|one| (one.superblock, one.erases) == (superblock, erases));
        match named.map(|named| named.stage) {
            Some(Stage::Ended(ended)) => {
                self.named = None;
                Some(ended)
            }
            Some(Stage::Waits | Stage::Begun(_)) => None,
            None => Some(Err(NotCollected::Changed)),
        }
    }

    /// Makes the requested superblock the collector's victim, if that is allowed.
    pub fn take_named(&mut self) -> Option<u32> {
        let named = self.named.filter(|named| named.stage == Stage::Waits)?;
        let taken = self.nameable(named.superblock).filter(|one| one.erases == named.erases);
        let stage =
            taken.map_or(Stage::Ended(Err(NotCollected::Changed)), |one| Stage::Begun(one.valid));
        self.named = Some(Named { stage, ..named });
        if let (Some(_), Some(leader)) = (&taken, &mut self.leader) {
            leader.silent = false;
        }
        taken.map(|_| named.superblock)
    }

    /// The superblock as a candidate, if it may be collected now on request.
    fn nameable(&self, superblock: u32) -> Option<Candidate> {
        let candidate = self.supers.candidate(superblock, self.next_sequence);
        let gaining = candidate.filter(Candidate::gains);
        gaining.filter(|one| self.free() >= 2 || self.fits_keep(one))
    }

    /// Returns true if it may be collected when only the reserve superblock is left.
    fn fits_keep(&self, one: &Candidate) -> bool {
        let rows = space::uncommitted_rows(&self.layout.shape);
        let keep = self.reserve_units().map(|keep| keep.min(one.units));
        keep.is_some_and(|keep| space::fits(one.valid, keep, self.layout.row_units, rows))
    }

    /// Superpages that may be in flight for the request.
    pub fn named_rows(&self) -> u32 {
        match &self.named {
            Some(Named { stage: Stage::Waits | Stage::Begun(_), rows, .. }) => *rows,
            _ => 0,
        }
    }

    /// Records how the request has ended, if it has; returns true on a change.
    pub fn validate_named(&mut self) -> bool {
        let Some(named) = self.named else { return false };
        let ended = match named.stage {
            Stage::Waits if self.worn_out => Err(NotCollected::WornOut),
            Stage::Waits => return false,
            Stage::Ended(_) => return true,
            Stage::Begun(valid) => {
                let one = &self.supers.all[named.superblock as usize];
                if self.collection.victim.is_some_and(|(at, _)| at == named.superblock) {
                    return false;
                }
                // The collector may have abandoned it for another.
                let left = one.erases == named.erases && one.phase == Phase::Filled;
                if left { Err(NotCollected::Changed) } else { Ok(valid) }
            }
        };
        self.named = Some(Named { stage: Stage::Ended(ended), ..named });
        true
    }
}
