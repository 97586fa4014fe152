//! Journeys: where one request's time went, as a by-product of its waits.
//!
//! A journey is a row of stage sums and the moment of its last mark. Whoever works on the request
//! (the caller's task, then the device's) takes the journey along; every named wait ends with a mark,
//! which gives the time since the last mark to that stage. So the stages of a journey add up to its
//! length exactly, whoever waited and wherever, and a stage that nobody named shows as what is left.
//!
//! The table is shared by both ends (two threads in the live world), which agree on a row by the
//! numbers that the protocol itself carries: queue and command. Relaxed atomics are enough: the
//! protocol's own release and acquire order the two ends' marks.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::rt::Rt;
use crate::time::{Span, Time};

/// The most stages that a world may name.
pub const STAGES_MAX: usize = 54;

/// Commands of a queue whose numbers agree in so many low bits have one row: what lies above counts the
/// uses of a slot. Where a protocol has no such counts, they are zero.
pub const SLOT_BITS: u32 = 10;

/// The low bits of a command's number that name its slot, for a queue of so many: [`SLOT_BITS`], or as many
/// as that needs.
pub const fn slot_bits(depth: u32) -> u32 {
    let needed = depth.saturating_sub(1).checked_ilog2();
    match needed {
        Some(highest) if highest + 1 > SLOT_BITS => highest + 1,
        _ => SLOT_BITS,
    }
}

pub(crate) const NO_JOURNEY: u32 = u32::MAX;

/// A named part of a journey, as a number in its table's list of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage(u8);

struct Row {
    begun: AtomicU64,
    last: AtomicU64,
    sums: [AtomicU64; STAGES_MAX],
}

struct Table {
    rows: Box<[Row]>,
    queue_depth: u32,
    slot_bits: u32,
    sample_mask: u32,
    names: &'static [&'static str],
}

/// The table of journeys of a world. Cheap to clone; both ends hold the same one.
#[derive(Clone)]
pub struct Journeys(Arc<Table>);

/// A finished journey.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// From its beginning to its end.
    pub total: Span,
    /// Picoseconds by stage, in the order of the world's names.
    pub stages: [u64; STAGES_MAX],
}

impl Journeys {
    /// A table for `queues` queues of `queue_depth` commands, with these stage names. Of the commands
    /// one in `2^sample_log2` is followed, by slot and use: 0 follows all.
    ///
    /// # Panics
    /// If there are more than [`STAGES_MAX`] names.
    pub fn new(
        queues: u32,
        queue_depth: u32,
        sample_log2: u32,
        names: &'static [&'static str],
    ) -> Journeys {
        assert!(names.len() <= STAGES_MAX, "{} stages, at most {STAGES_MAX}", names.len());
        let rows = (0..queues * queue_depth)
            .map(|_| Row {
                begun: AtomicU64::new(0),
                last: AtomicU64::new(0),
                sums: [const { AtomicU64::new(0) }; STAGES_MAX],
            })
            .collect();
        let (sample_mask, slot_bits) = ((1 << sample_log2) - 1, slot_bits(queue_depth));
        Journeys(Arc::new(Table { rows, queue_depth, slot_bits, sample_mask, names }))
    }

    /// The names, in the order of [`Finished::stages`].
    pub fn names(&self) -> &'static [&'static str] {
        self.0.names
    }

    #[inline]
    fn row_of(&self, queue: u16, command: u16) -> u32 {
        let bits = self.0.slot_bits;
        let (queue, slot) = (u32::from(queue), u32::from(command) & ((1 << bits) - 1));
        // A slot has its turn once in so many uses, and not all slots have theirs together.
        let turn = slot + (u32::from(command) >> bits);
        if turn & self.0.sample_mask != 0 || slot >= self.0.queue_depth {
            return NO_JOURNEY;
        }
        let row = queue * self.0.queue_depth + slot;
        if (row as usize) < self.0.rows.len() { row } else { NO_JOURNEY }
    }
}

impl Row {
    fn mark(&self, stage: Stage, at: Time) {
        let last = self.last.load(Relaxed);
        if at.0 > last {
            let sum = &self.sums[stage.0 as usize];
            sum.store(sum.load(Relaxed) + (at.0 - last), Relaxed);
            self.last.store(at.0, Relaxed);
        }
    }
}

impl Rt {
    /// The stage of this name. Asked for once, when a part is built.
    ///
    /// # Panics
    /// If the world has journeys and does not list the name: the list and the code disagree.
    pub fn stage(&self, name: &str) -> Stage {
        let Some(journeys) = self.journeys() else { return Stage(0) };
        match journeys.names().iter().position(|n| *n == name) {
            Some(index) => Stage(index as u8),
            None => panic!("stage {name:?} is not in this world's list: {:?}", journeys.names()),
        }
    }

    #[inline]
    fn row(&self) -> Option<&Row> {
        let row = self.journey_cell().get();
        if row == NO_JOURNEY {
            return None;
        }
        self.journeys().map(|journeys| &journeys.0.rows[row as usize])
    }

    /// Whether the journey of this command would be followed: whoever has to read a clock for its
    /// beginning asks first.
    #[inline]
    pub fn follows(&self, queue: u16, command: u16) -> bool {
        self.journeys().is_some_and(|journeys| journeys.row_of(queue, command) != NO_JOURNEY)
    }

    /// Begins the journey of this command, at a moment that may lie in the past (an intended
    /// arrival); the current task takes it along.
    pub fn begin_journey(&self, queue: u16, command: u16, at: Time) {
        let Some(journeys) = self.journeys() else { return };
        let row = journeys.row_of(queue, command);
        self.journey_cell().set(row);
        if row != NO_JOURNEY {
            let row = &journeys.0.rows[row as usize];
            row.begun.store(at.0, Relaxed);
            row.last.store(at.0, Relaxed);
            for sum in &row.sums {
                sum.store(0, Relaxed);
            }
        }
    }

    /// The current task takes along the journey that another end has begun.
    #[inline]
    pub fn join_journey(&self, queue: u16, command: u16) {
        if let Some(journeys) = self.journeys() {
            self.journey_cell().set(journeys.row_of(queue, command));
        }
    }

    /// The current task's journey goes on under this number, so that another may begin under its own.
    /// False, and it is let go of, if either is not followed.
    pub fn carry_journey_to(&self, queue: u16, command: u16) -> bool {
        let (from, journeys) = (self.row(), self.journeys());
        let to = journeys.map_or(NO_JOURNEY, |journeys| journeys.row_of(queue, command));
        let (Some(from), Some(journeys)) = (from, journeys.filter(|_| to != NO_JOURNEY)) else {
            self.part_from_journey();
            return false;
        };
        let row = &journeys.0.rows[to as usize];
        row.begun.store(from.begun.load(Relaxed), Relaxed);
        row.last.store(from.last.load(Relaxed), Relaxed);
        for (sum, other) in row.sums.iter().zip(&from.sums) {
            sum.store(other.load(Relaxed), Relaxed);
        }
        self.journey_cell().set(to);
        true
    }

    /// The current task's journey, by a number that both ends know; none that is followed: `u32::MAX`.
    #[inline]
    pub fn journey(&self) -> u32 {
        self.journey_cell().get()
    }

    /// The current task takes along the journey of this number, which may come from the other side: one that
    /// there is not is none.
    #[inline]
    pub fn take_along(&self, journey: u32) {
        let rows = self.journeys().map_or(0, |journeys| journeys.0.rows.len());
        let known = (journey as usize) < rows;
        self.journey_cell().set(if known { journey } else { NO_JOURNEY });
    }

    /// The current task lets go of its journey.
    #[inline]
    pub fn part_from_journey(&self) {
        self.journey_cell().set(NO_JOURNEY);
    }

    /// Whether the current task has a journey along that is followed.
    #[inline]
    pub fn is_followed(&self) -> bool {
        self.journey_cell().get() != NO_JOURNEY
    }

    /// The time since the last mark belongs to this stage.
    #[inline]
    pub fn mark(&self, stage: Stage) {
        if let Some(row) = self.row() {
            row.mark(stage, self.now());
        }
    }

    /// The time from the last mark to this moment belongs to this stage; a moment before the last
    /// mark adds nothing.
    #[inline]
    pub fn mark_at(&self, stage: Stage, at: Time) {
        if let Some(row) = self.row() {
            row.mark(stage, at);
        }
    }

    /// The time from the last mark to this moment belongs to two stages: so much of it to that of `part`, as
    /// far as it reaches, and what is left to `rest`.
    #[inline]
    pub fn mark_split(&self, rest: Stage, part: (Stage, Span), at: Time) {
        if let Some(row) = self.row() {
            let last = Time(row.last.load(Relaxed));
            row.mark(part.0, (last + part.1).min(at));
            row.mark(rest, at);
        }
    }

    /// Ends the current task's journey and adds its stages to `sums`; false if it was not followed.
    #[inline]
    pub fn add_journey_to(&self, sums: &mut [u64; STAGES_MAX]) -> bool {
        let Some(row) = self.row() else { return false };
        let named = self.journeys().map_or(0, |journeys| journeys.names().len());
        for (sum, stage) in sums.iter_mut().zip(&row.sums[..named]) {
            *sum += stage.load(Relaxed);
        }
        self.part_from_journey();
        true
    }

    /// Ends the current task's journey and returns it, if it was followed.
    pub fn finish_journey(&self) -> Option<Finished> {
        let row = self.row()?;
        let total = self.now().since(Time(row.begun.load(Relaxed)));
        let stages = core::array::from_fn(|i| row.sums[i].load(Relaxed));
        self.part_from_journey();
        Some(Finished { total, stages })
    }
}
