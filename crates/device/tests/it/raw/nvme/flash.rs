//! Flash under a bench, as host-directed GC sees it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use flash::collections::{Collections, Later, Survey};
use flash::mapping::Mapping;
use ftl::NotCollected;
use ftl::policy::{Candidate, GcControl, Space};
use runtime::{Rt, Signal};

pub const SUPERBLOCKS: u32 = 300;

/// Flash with results set by the test.
pub struct Flash {
    rt: Rt,
    pub left: Cell<u64>,
    pub led: Cell<GcControl>,
    /// Superblocks named for collection: superblock, erases, rows.
    pub named: RefCell<Vec<(u32, u32, u32)>>,
    /// Result of a collection; `None` while it is running.
    pub ends: Cell<Option<Result<u32, NotCollected>>>,
    changed: Signal,
    /// Moves that are kept, and how many may be.
    pub moves: RefCell<VecDeque<(u32, u32)>>,
    pub moves_most: Cell<u32>,
}

impl Flash {
    pub fn new(rt: &Rt) -> Flash {
        Flash {
            rt: rt.clone(),
            left: Cell::new(1000),
            led: Cell::new(GcControl::Own),
            named: RefCell::default(),
            ends: Cell::new(None),
            changed: Signal::default(),
            moves: RefCell::default(),
            moves_most: Cell::new(0),
        }
    }

    /// Sets the units left.
    pub fn leave(&self, left: u64) {
        self.left.set(left);
        self.changed.notify(&self.rt);
    }

    /// Sets the result of collections.
    pub fn end(&self, ends: Result<u32, NotCollected>) {
        self.ends.set(Some(ends));
        self.changed.notify(&self.rt);
    }
}

impl Flash {
    /// Moves a unit.
    pub fn move_to(&self, unit: u32, place: u32) {
        self.moves.borrow_mut().push_back((unit, place));
        self.changed.notify(&self.rt);
    }
}

/// Bytes of a mapping unit of the bench.
pub const UNIT_BYTES: u32 = 4096;

impl Mapping for Flash {
    fn unit_bytes(&self) -> u32 {
        UNIT_BYTES
    }

    /// The place of a unit is its number and 1,000.
    fn places<'a>(
        &'a self,
        block: u64,
        blocks: u32,
        into: &'a mut Vec<u32>,
    ) -> Later<'a, Result<(), ftl::Error>> {
        let unit = |block: u64| (block * 512 / u64::from(UNIT_BYTES)) as u32;
        let last = unit(block + u64::from(blocks) - 1);
        into.extend((unit(block)..=last).map(|unit| unit + 1000));
        Box::pin(std::future::ready(Ok(())))
    }

    fn keep_moves(&self, most: u32) {
        self.moves_most.set(most);
        self.moves.borrow_mut().clear();
        self.changed.notify(&self.rt);
    }

    fn take_move(&self) -> Option<(u32, u32)> {
        self.moves.borrow_mut().pop_front()
    }

    fn dropped_moves(&self) -> u64 {
        7
    }

    fn moves_due(&self) -> Later<'_, ()> {
        Box::pin(async {
            loop {
                let seen = self.changed.version();
                let most = self.moves_most.get() as usize;
                if most > 0 && 2 * self.moves.borrow().len() >= most {
                    return;
                }
                self.changed.changed(&self.rt, seen).await;
            }
        })
    }
}

impl Collections for Flash {
    fn survey(&self) -> Option<Survey> {
        let space = Space { left: self.left.get(), hold: 200, start: 250 };
        Some(Survey { space, superblocks: SUPERBLOCKS, superblock_units: 100, gc_parallelism: 7 })
    }

    fn candidate(&self, superblock: u32) -> Option<Candidate> {
        (superblock != 1).then_some(Candidate {
            valid: superblock,
            units: 400,
            age: 1 << (superblock % 40),
            erases: 5,
        })
    }

    fn lead(&self, lead: GcControl) {
        self.led.set(lead);
        self.changed.notify(&self.rt);
    }

    fn short(&self) -> Later<'_, ()> {
        Box::pin(async {
            loop {
                let seen = self.changed.version();
                if matches!(self.led.get(), GcControl::Named(below) if self.left.get() < below) {
                    return;
                }
                self.changed.changed(&self.rt, seen).await;
            }
        })
    }

    fn collect(
        &self,
        superblock: u32,
        erases: u32,
        rows: u32,
    ) -> Later<'_, Result<u32, NotCollected>> {
        Box::pin(async move {
            self.named.borrow_mut().push((superblock, erases, rows));
            loop {
                let seen = self.changed.version();
                if let Some(ends) = self.ends.get() {
                    return ends;
                }
                self.changed.changed(&self.rt, seen).await;
            }
        })
    }
}
