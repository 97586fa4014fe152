//! Superblocks that somebody outside names, for the collector to go over: which, when and how fast are then
//! not decided here. What can be collected is, by what the proof of [`space`](crate::space) asks: a name is
//! a wish, which is refused where it can't be had.
//!
//! Nobody outside can hold the collector up. Where the host would have to wait ([`policy::GcControl::Named`]) it
//! waits for a name itself, but no longer than [`PATIENCE`]: then it works by itself, and waits for nobody
//! until another name comes. So whoever names superblocks and falls silent costs that once, and nothing else.

use core::fmt;

use runtime::{Either, Span, Time, race};

use crate::ftl::{Ftl, Inner};
use crate::options::Space;
use crate::pages::Pages;
use crate::policy::{self, Candidate};
use crate::space;
use crate::state::State;
use crate::supers::Phase;

/// What is named, one at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    superblock: u32,
    /// How often it had been erased: what was written there since is not what was meant.
    erases: u32,
    /// Rows that may be under way for it.
    rows: u32,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waits,
    /// It is the collector's victim; so many units were valid.
    Begun(u32),
    Ended(Result<u32, NotCollected>),
}

/// How long the host's writes may have to wait for a name, where they wait for space. Assumed: less than an
/// erase takes, and more than a driver, its interrupt and a look at the table.
pub(crate) const PATIENCE: Span = Span::ms(2);

/// Somebody outside who names superblocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leader {
    /// Below so many units it is told.
    below: u64,
    /// It was waited for in vain.
    silent: bool,
    /// The collector does nothing so that it may name one.
    pub awaited: bool,
}

impl Leader {
    pub fn new(below: u64) -> Leader {
        Leader { below, silent: false, awaited: false }
    }
}

/// Why a superblock that was named is not collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotCollected {
    /// There is none of this number.
    Number {
        /// So many there are.
        superblocks: u32,
    },
    /// Another is named, and not yet gone over.
    Busy,
    /// It is not what it was, holds nothing that could be gained, or can't be moved into the space that is
    /// left.
    Changed,
    /// So many blocks have gone bad that nothing can be written any more.
    WornOut,
}

impl fmt::Display for NotCollected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotCollected::Number { superblocks } => {
                write!(f, "there are {superblocks} superblocks")
            }
            NotCollected::Busy => {
                f.write_str("another superblock is being collected by its number")
            }
            NotCollected::Changed => {
                f.write_str("the superblock can't be collected, or not any more")
            }
            NotCollected::WornOut => f.write_str("too many blocks of flash have gone bad"),
        }
    }
}

impl core::error::Error for NotCollected {}

impl<P: Pages> Ftl<P> {
    /// How many superblocks there are.
    pub fn superblocks(&self) -> u32 {
        self.0.layout.shape.blocks
    }

    /// What could be collected of a superblock now. None: it is erased, open, being collected, or holds parts
    /// of a map that is cached; nothing is gained by it; it can't be moved into the space that is left; or
    /// there is none of this number.
    pub fn candidate(&self, superblock: u32) -> Option<Candidate> {
        let exists = superblock < self.0.layout.shape.blocks;
        exists.then(|| self.0.state.borrow().nameable(superblock)).flatten()
    }

    /// Space that is left, and what has to be; and when the collector begins if nobody else leads it.
    pub fn space(&self) -> policy::Space {
        let own = Space::of(&self.0.layout, self.0.options.reserve);
        policy::Space { start: own.start, ..self.0.state.borrow().space() }
    }

    /// Rows of the collector that may be under way at the same time.
    pub fn gc_parallelism(&self) -> u32 {
        self.0.options.gc_parallelism.max(1)
    }

    /// Returns when less space is left than whoever names superblocks wants to be told of
    /// ([`GcControl::Named`](policy::Lead::Named)).
    pub async fn short(&self) {
        loop {
            let seen = self.0.collect.version();
            if self.0.state.borrow().must_tell() {
                return;
            }
            self.0.collect.changed(&self.0.rt, seen).await;
        }
    }

    /// Collects a superblock that had been erased `erases` times when it was chosen, with at most `rows` rows
    /// under way. Returns how many units were valid when it was begun, as soon as all of it has been gone
    /// over: its space counts from then on, and it is erased when what was valid has arrived elsewhere. If
    /// the future is dropped, the superblock may be collected all the same.
    ///
    /// # Errors
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
    /// The collector waits for something to happen, or until it has waited long enough for its leader.
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
    /// So little space is left that whoever leads is to be told.
    pub fn must_tell(&self) -> bool {
        self.leader.is_some_and(|leader| self.space().left < leader.below)
    }

    /// Space is short, and who leads may still say what is to be collected.
    pub fn leaves_it_to_the_leader(&mut self) -> bool {
        let Some(leader) = self.leader.as_mut().filter(|leader| !leader.silent) else {
            return false;
        };
        leader.awaited = true;
        true
    }

    /// The collector does nothing but wait for who leads.
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

    /// What became of a superblock that was named; none: it is yet to be gone over.
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

    /// The superblock that was named becomes the collector's, if it may.
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

    /// A superblock that may be collected now because somebody names it.
    fn nameable(&self, superblock: u32) -> Option<Candidate> {
        let candidate = self.supers.candidate(superblock, self.next_sequence);
        let gaining = candidate.filter(Candidate::gains);
        gaining.filter(|one| self.free() >= 2 || self.fits_keep(one))
    }

    /// Whether it may be collected where nothing but the keep is left to move it to.
    fn fits_keep(&self, one: &Candidate) -> bool {
        let rows = space::uncommitted_rows(&self.layout.shape);
        let keep = self.reserve_units().map(|keep| keep.min(one.units));
        keep.is_some_and(|keep| space::fits(one.valid, keep, self.layout.row_units, rows))
    }

    /// Rows that may be under way for what is named.
    pub fn named_rows(&self) -> u32 {
        match &self.named {
            Some(Named { stage: Stage::Waits | Stage::Begun(_), rows, .. }) => *rows,
            _ => 0,
        }
    }

    /// Notes how what was named has ended, if it has. True where there is news.
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
                // The collector may have had to leave it for another.
                let left = one.erases == named.erases && one.phase == Phase::Filled;
                if left { Err(NotCollected::Changed) } else { Ok(valid) }
            }
        };
        self.named = Some(Named { stage: Stage::Ended(ended), ..named });
        true
    }
}
