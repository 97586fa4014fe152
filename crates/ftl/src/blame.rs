//! What a write or a flush waits for: whether the collector holds it up, or other work of the host's.
//!
//! Whoever waits, waits for a row to come to flash. That may be held up in two places: before it is made up,
//! while the host has to wait for space that the collector must gain, and then at its die, while that works
//! for the collector. Both are clocks that only go on, so that a wait is told by how far they have gone.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use runtime::{Rt, Span, Stage, Time};

use crate::ftl::Inner;
use crate::pages::Pages;
use crate::state::Job;

/// The stages that flash software marks.
pub const STAGES: &[&str] =
    &["buffer wait", "collector at buffer", "flush", "collector at flush", "map read"];

/// A wait for something, and for the collector instead.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    rest: Stage,
    collector: Stage,
}

pub(crate) struct Blame {
    pub buffer: Held,
    pub flush: Held,
    /// A part of the map is read.
    pub map: Stage,
    throttled: Cell<Throttled>,
    /// The last row of the host's that has come to flash.
    last: Cell<Option<Landed>>,
    spare: RefCell<Vec<Vec<Span>>>,
}

/// For how long the host has had to wait for space.
#[derive(Clone, Copy, Default)]
struct Throttled {
    before: Span,
    since: Option<Time>,
}

/// The clocks when a row was made up.
#[derive(Clone, Copy, Default)]
pub(crate) struct Clocks {
    throttled: Span,
    collected: Span,
}

#[derive(Clone, Copy)]
struct Landed {
    at: Time,
    die: u32,
    made_up: Clocks,
}

/// The clocks when a wait began.
pub(crate) struct Since {
    at: Time,
    throttled: Span,
    dies: Vec<Span>,
}

impl Blame {
    pub fn new(rt: &Rt) -> Blame {
        let held = |rest, collector| Held { rest: rt.stage(rest), collector: rt.stage(collector) };
        Blame {
            buffer: held("buffer wait", "collector at buffer"),
            flush: held("flush", "collector at flush"),
            map: rt.stage("map read"),
            throttled: Cell::default(),
            last: Cell::new(None),
            spare: RefCell::default(),
        }
    }

    /// From now on the host has to wait for space, or no more.
    pub fn throttle(&self, now: Time, is_throttled: bool) {
        let before = self.throttled(now);
        self.throttled.set(Throttled { before, since: is_throttled.then_some(now) });
    }

    fn throttled(&self, now: Time) -> Span {
        let Throttled { before, since } = self.throttled.get();
        before + since.map_or(Span::ZERO, |since| now.since(since))
    }
}

impl<P: Pages> Inner<P> {
    /// The clocks for a row that is made up now.
    pub fn clocks(&self, die: u32) -> Clocks {
        let throttled = self.blame.throttled(self.rt.now());
        Clocks { throttled, collected: self.pages.collected(die) }
    }

    /// A row has come to flash.
    pub fn has_landed(&self, job: &Job) {
        if !job.collected && !job.of_map {
            let (at, die) = (self.rt.now(), job.write_pointer.die);
            self.blame.last.set(Some(Landed { at, die, made_up: job.made_up }));
        }
    }

    /// A wait begins. None: nobody asks where its time goes.
    pub fn begin_wait(&self) -> Option<Since> {
        if !self.rt.is_traced() {
            return None;
        }
        let mut dies = self.blame.spare.borrow_mut().pop().unwrap_or_default();
        dies.extend((0..self.layout.shape.dies).map(|die| self.pages.collected(die)));
        let at = self.rt.now();
        Some(Since { at, throttled: self.blame.throttled(at), dies })
    }

    /// It is over, as the last row has come to flash: where its time went.
    pub fn end_wait(&self, since: Option<Since>, held: Held) {
        let Some(mut since) = since else { return };
        let mut collector = Span::ZERO;
        if let Some(Landed { at, die, made_up }) = self.blame.last.get()
            && at >= since.at
        {
            let had = since.dies[die as usize].max(made_up.collected);
            collector = made_up.throttled.saturating_sub(since.throttled)
                + self.pages.collected(die).saturating_sub(had);
        }
        self.rt.record_split(held.rest, (held.collector, collector), self.rt.now());
        since.dies.clear();
        self.blame.spare.borrow_mut().push(since.dies);
    }
}
