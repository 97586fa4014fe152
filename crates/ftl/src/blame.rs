//! Attribution of write and flush waits: to the collector, or to other work of the host.
//!
//! A wait ends when a superpage has reached flash. It can be delayed in two places: before the superpage is
//! formed, while the host waits for space that the collector must free; and then at its die, while that works
//! for the collector. Each has a monotonic clock, whose advance during a wait is the share of the collector.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use runtime::{Rt, Span, Stage, StageName, Time, stage};

use crate::pages::Pages;

/// Stages that the flash translation layer records.
pub const STAGES: &[&str] =
    &["buffer wait", "collector at buffer", "flush", "collector at flush", "map read"];

/// Stages of a wait: its own share, and the collector's.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    rest: Stage,
    collector: Stage,
}

pub(crate) struct Blame {
    pub buffer: Held,
    pub flush: Held,
    /// Reading a map part.
    pub map: Stage,
    throttled: Cell<Throttled>,
    /// Last superpage of the host that has reached flash.
    last: Cell<Option<Landed>>,
    spare: RefCell<Vec<Vec<Span>>>,
}

/// Total time for which the host has waited for space.
#[derive(Clone, Copy, Default)]
struct Throttled {
    before: Span,
    since: Option<Time>,
}

/// Clock values when a superpage was formed.
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

/// Clock values at the start of a wait.
pub(crate) struct Since {
    at: Time,
    throttled: Span,
    dies: Vec<Span>,
}

impl Blame {
    pub fn new(rt: &Rt) -> Blame {
        let held = |rest, collector| {
            let stage = |name| rt.stage(StageName::of(STAGES, name));
            Held { rest: stage(rest), collector: stage(collector) }
        };
        Blame {
            buffer: held("buffer wait", "collector at buffer"),
            flush: held("flush", "collector at flush"),
            map: stage!(rt, STAGES, "map read"),
            throttled: Cell::default(),
            last: Cell::new(None),
            spare: RefCell::default(),
        }
    }

    /// Starts or stops the clock of the host's waits for space.
    pub fn throttle(&self, now: Time, is_throttled: bool) {
        let before = self.throttled(now);
        self.throttled.set(Throttled { before, since: is_throttled.then_some(now) });
    }

    fn throttled(&self, now: Time) -> Span {
        let Throttled { before, since } = self.throttled.get();
        before + since.map_or(Span::ZERO, |since| now.since(since))
    }
    /// Current clock values, for a superpage that is formed now; `collected` is that of its die.
    pub fn clocks(&self, now: Time, collected: Span) -> Clocks {
        Clocks { throttled: self.throttled(now), collected }
    }

    /// Records that a superpage of the host has reached flash.
    pub fn has_landed(&self, at: Time, die: u32, made_up: Clocks) {
        self.last.set(Some(Landed { at, die, made_up }));
    }

    /// Begins a wait; `None` if the request is not traced.
    pub fn begin_wait<P: Pages>(&self, rt: &Rt, pages: &P) -> Option<Since> {
        if !rt.is_traced() {
            return None;
        }
        let mut dies = self.spare.borrow_mut().pop().unwrap_or_default();
        dies.extend((0..pages.shape().dies).map(|die| pages.collected(die)));
        let at = rt.now();
        Some(Since { at, throttled: self.throttled(at), dies })
    }

    /// Ends the wait, which the last superpage to arrive has ended, and attributes its time.
    pub fn end_wait<P: Pages>(&self, rt: &Rt, pages: &P, since: Option<Since>, held: Held) {
        let Some(mut since) = since else { return };
        let mut collector = Span::ZERO;
        if let Some(Landed { at, die, made_up }) = self.last.get()
            && at >= since.at
        {
            let had = since.dies[die as usize].max(made_up.collected);
            collector = made_up.throttled.saturating_sub(since.throttled)
                + pages.collected(die).saturating_sub(had);
        }
        rt.record_split(held.rest, (held.collector, collector), rt.now());
        since.dies.clear();
        self.spare.borrow_mut().push(since.dies);
    }
}
