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

pub(crate) const NO_TRACE: u32 = u32::MAX;

/// A named part of a journey, as a number in its table's list of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage(u8);

struct Row {
    begun: AtomicU64,
    last: AtomicU64,
    /// A bit for each stage that has a sum. Most have none on most ways, and are not touched.
    used: AtomicU64,
    sums: [AtomicU64; STAGES_MAX],
}

const _: () = assert!(STAGES_MAX <= u64::BITS as usize, "a bit for each stage");

/// Sums of named stages, of which most are nothing.
#[derive(Clone, Copy, Debug)]
pub struct StageSums {
    used: u64,
    ps: [u64; STAGES_MAX],
}

impl StageSums {
    /// No stage has anything.
    pub const fn new() -> StageSums {
        StageSums { used: 0, ps: [0; STAGES_MAX] }
    }

    /// Takes everything from all.
    #[inline]
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Adds picoseconds to the stage of this number.
    ///
    /// # Panics
    /// From [`STAGES_MAX`] on.
    #[inline]
    pub fn add(&mut self, stage: usize, ps: u64) {
        let bit = 1 << stage;
        let before = if self.used & bit == 0 { 0 } else { self.ps[stage] };
        self.ps[stage] = before + ps;
        self.used |= bit;
    }

    /// The stages that something was added to, and their picoseconds, in the order of their numbers.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        bits(self.used).map(|stage| (stage, self.ps[stage]))
    }
}

impl Default for StageSums {
    fn default() -> StageSums {
        StageSums::new()
    }
}

/// The numbers of the bits that are set, from the lowest on.
#[inline]
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        if set == 0 {
            return None;
        }
        let next = set.trailing_zeros() as usize;
        set &= set - 1;
        Some(next)
    })
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
pub struct Traces(Arc<Table>);

/// A finished journey.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// From its beginning to its end.
    pub total: Span,
    /// Picoseconds by stage, in the order of the world's names.
    pub stages: [u64; STAGES_MAX],
}

impl Traces {
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
    ) -> Traces {
        assert!(names.len() <= STAGES_MAX, "{} stages, at most {STAGES_MAX}", names.len());
        let rows = (0..queues * queue_depth)
            .map(|_| Row {
                begun: AtomicU64::new(0),
                last: AtomicU64::new(0),
                used: AtomicU64::new(0),
                sums: [const { AtomicU64::new(0) }; STAGES_MAX],
            })
            .collect();
        let (sample_mask, slot_bits) = ((1 << sample_log2) - 1, slot_bits(queue_depth));
        Traces(Arc::new(Table { rows, queue_depth, slot_bits, sample_mask, names }))
    }

    /// The names, in the order of [`Finished::stages`].
    pub fn names(&self) -> &'static [&'static str] {
        self.0.names
    }

    #[inline]
    fn row_of(&self, queue: u32, command: u16) -> u32 {
        let bits = self.0.slot_bits;
        let slot = u32::from(command) & ((1 << bits) - 1);
        // A slot has its turn once in so many uses, and not all slots have theirs together.
        let turn = slot + (u32::from(command) >> bits);
        if turn & self.0.sample_mask != 0 || slot >= self.0.queue_depth {
            return NO_TRACE;
        }
        let row = queue * self.0.queue_depth + slot;
        if (row as usize) < self.0.rows.len() { row } else { NO_TRACE }
    }
}

impl Row {
    fn begin(&self, at: Time) {
        self.begun.store(at.0, Relaxed);
        self.last.store(at.0, Relaxed);
        self.used.store(0, Relaxed);
    }

    fn record(&self, stage: Stage, at: Time) {
        let last = self.last.load(Relaxed);
        if at.0 > last {
            self.add(usize::from(stage.0), at.0 - last);
            self.last.store(at.0, Relaxed);
        }
    }

    fn add(&self, stage: usize, ps: u64) {
        let (sum, bit) = (&self.sums[stage], 1 << stage);
        let used = self.used.load(Relaxed);
        let before = if used & bit == 0 { 0 } else { sum.load(Relaxed) };
        sum.store(before + ps, Relaxed);
        self.used.store(used | bit, Relaxed);
    }

    /// The stages that have a sum, and their picoseconds.
    fn each(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        bits(self.used.load(Relaxed)).map(|stage| (stage, self.sums[stage].load(Relaxed)))
    }
}

impl Rt {
    /// The stage of this name. Asked for once, when a part is built.
    ///
    /// # Panics
    /// If the world has journeys and does not list the name: the list and the code disagree.
    pub fn stage(&self, name: &str) -> Stage {
        let Some(traces) = self.traces() else { return Stage(0) };
        match traces.names().iter().position(|n| *n == name) {
            Some(index) => Stage(index as u8),
            None => panic!("stage {name:?} is not in this world's list: {:?}", traces.names()),
        }
    }

    /// The same, by which the numbers of queues begin with this one, for journeys: several devices whose
    /// queues have the same numbers share a table so.
    pub fn queues_from(&self, first: u16) -> Rt {
        Rt(self.0.clone(), first)
    }

    #[inline]
    fn row_of(&self, traces: &Traces, queue: u16, command: u16) -> u32 {
        traces.row_of(u32::from(self.1) + u32::from(queue), command)
    }

    #[inline]
    fn row(&self) -> Option<&Row> {
        let row = self.trace_cell().get();
        if row == NO_TRACE {
            return None;
        }
        self.traces().map(|traces| &traces.0.rows[row as usize])
    }

    /// Whether the journey of this command would be followed: whoever has to read a clock for its
    /// beginning asks first.
    #[inline]
    pub fn follows(&self, queue: u16, command: u16) -> bool {
        self.traces().is_some_and(|all| self.row_of(all, queue, command) != NO_TRACE)
    }

    /// Begins the journey of this command, at a moment that may lie in the past (an intended
    /// arrival); the current task takes it along.
    pub fn begin_trace(&self, queue: u16, command: u16, at: Time) {
        let Some(traces) = self.traces() else { return };
        let row = self.row_of(traces, queue, command);
        self.trace_cell().set(row);
        if row != NO_TRACE {
            traces.0.rows[row as usize].begin(at);
        }
    }

    /// The current task takes along the journey that another end has begun.
    #[inline]
    pub fn attach_trace(&self, queue: u16, command: u16) {
        if let Some(traces) = self.traces() {
            self.trace_cell().set(self.row_of(traces, queue, command));
        }
    }

    /// The current task's journey goes on under this number, so that another may begin under its own.
    /// False, and it is let go of, if either is not followed.
    pub fn move_trace_to(&self, queue: u16, command: u16) -> bool {
        let (from, traces) = (self.row(), self.traces());
        let to = traces.map_or(NO_TRACE, |all| self.row_of(all, queue, command));
        let (Some(from), Some(traces)) = (from, traces.filter(|_| to != NO_TRACE)) else {
            self.detach_trace();
            return false;
        };
        let row = &traces.0.rows[to as usize];
        row.begun.store(from.begun.load(Relaxed), Relaxed);
        row.last.store(from.last.load(Relaxed), Relaxed);
        row.used.store(from.used.load(Relaxed), Relaxed);
        for (stage, ps) in from.each() {
            row.sums[stage].store(ps, Relaxed);
        }
        self.trace_cell().set(to);
        true
    }

    /// The current task's journey, by a number that both ends know; none that is followed: `u32::MAX`.
    #[inline]
    pub fn trace(&self) -> u32 {
        self.trace_cell().get()
    }

    /// The current task takes along the journey of this number, which may come from the other side: one that
    /// there is not is none.
    #[inline]
    pub fn attach_trace_number(&self, trace: u32) {
        let rows = self.traces().map_or(0, |traces| traces.0.rows.len());
        let known = (trace as usize) < rows;
        self.trace_cell().set(if known { trace } else { NO_TRACE });
    }

    /// The current task lets go of its journey.
    #[inline]
    pub fn detach_trace(&self) {
        self.trace_cell().set(NO_TRACE);
    }

    /// Whether the current task has a journey along that is followed.
    #[inline]
    pub fn is_traced(&self) -> bool {
        self.trace_cell().get() != NO_TRACE
    }

    /// The time since the last mark belongs to this stage.
    #[inline]
    pub fn record(&self, stage: Stage) {
        if let Some(row) = self.row() {
            row.record(stage, self.now());
        }
    }

    /// The time from the last mark to this moment belongs to this stage; a moment before the last
    /// mark adds nothing.
    #[inline]
    pub fn record_at(&self, stage: Stage, at: Time) {
        if let Some(row) = self.row() {
            row.record(stage, at);
        }
    }

    /// The time from the last mark to this moment belongs to two stages: so much of it to that of `part`, as
    /// far as it reaches, and what is left to `rest`.
    #[inline]
    pub fn record_split(&self, rest: Stage, part: (Stage, Span), at: Time) {
        if let Some(row) = self.row() {
            let last = Time(row.last.load(Relaxed));
            row.record(part.0, (last + part.1).min(at));
            row.record(rest, at);
        }
    }

    /// The time since the last mark was that of a journey with these stages, which ends now.
    pub fn record_parts(&self, parts: &StageSums) {
        if let Some(row) = self.row() {
            parts.iter().for_each(|(stage, ps)| row.add(stage, ps));
            row.last.store(self.now().0, Relaxed);
        }
    }

    /// Ends the current task's journey and adds its stages to `sums`; false if it was not followed.
    #[inline]
    pub fn add_trace_to(&self, sums: &mut StageSums) -> bool {
        let Some(row) = self.row() else { return false };
        if sums.used == 0 {
            // The only command so far, as of most operations.
            sums.used = row.used.load(Relaxed);
            row.each().for_each(|(stage, ps)| sums.ps[stage] = ps);
        } else {
            row.each().for_each(|(stage, ps)| sums.add(stage, ps));
        }
        self.detach_trace();
        true
    }

    /// Ends the current task's journey and returns it, if it was followed.
    pub fn finish_trace(&self) -> Option<Finished> {
        let row = self.row()?;
        let total = self.now().since(Time(row.begun.load(Relaxed)));
        let mut stages = [0; STAGES_MAX];
        row.each().for_each(|(stage, ps)| stages[stage] = ps);
        self.detach_trace();
        Some(Finished { total, stages })
    }
}
