//! Request traces: a latency breakdown by stage, recorded at each wait.
//!
//! A request trace is a row of stage sums and the time of the last record. The task that works on the
//! request (the caller's, then the device's) carries the trace; every named wait ends with a record, which
//! adds the time since the last record to its stage. So the stages of a trace add up to its latency
//! exactly, and time of an unnamed stage remains visible as unexplained.
//!
//! Both ends share the table (two threads in the live world) and find a row by numbers that the protocol
//! carries: queue and command identifier. Relaxed atomics are enough: the protocol's release and acquire
//! order the records of the two ends.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::rt::Rt;
use crate::time::{Span, Time};

/// Maximum number of stages in a world.
pub const STAGES_MAX: usize = 54;

/// Low bits of a command identifier that name its slot; identifiers that agree in them share a row. The
/// bits above count the uses of the slot; they are zero in protocols without such counts.
pub const SLOT_BITS: u32 = 10;

/// Number of low bits of a command identifier that name its slot, in a queue of `depth` commands:
/// [`SLOT_BITS`], or more if `depth` needs more.
pub const fn slot_bits(depth: u32) -> u32 {
    let needed = depth.saturating_sub(1).checked_ilog2();
    match needed {
        Some(highest) if highest + 1 > SLOT_BITS => highest + 1,
        _ => SLOT_BITS,
    }
}

pub(crate) const NO_TRACE: u32 = u32::MAX;

/// A named stage, as an index into its table's list of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage(u8);

struct Row {
    begun: AtomicU64,
    last: AtomicU64,
    /// One bit for each stage that has a sum. Most stages of most traces have none and are not touched.
    used: AtomicU64,
    sums: [AtomicU64; STAGES_MAX],
}

const _: () = assert!(STAGES_MAX <= u64::BITS as usize, "a bit for each stage");

/// Sums of named stages, most of them empty.
#[derive(Clone, Copy, Debug)]
pub struct StageSums {
    used: u64,
    ps: [u64; STAGES_MAX],
}

impl StageSums {
    /// Empty sums.
    pub const fn new() -> StageSums {
        StageSums { used: 0, ps: [0; STAGES_MAX] }
    }

    /// Empties all sums.
    #[inline]
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Adds picoseconds to the sum of a stage.
    ///
    /// # Panics
    /// If `stage` is [`STAGES_MAX`] or above.
    #[inline]
    pub fn add(&mut self, stage: usize, ps: u64) {
        let bit = 1 << stage;
        let before = if self.used & bit == 0 { 0 } else { self.ps[stage] };
        self.ps[stage] = before + ps;
        self.used |= bit;
    }

    /// The stages that have a sum, and their picoseconds, in order of their index.
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

/// Indices of the bits that are set, lowest first.
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

/// The request traces of a world. Cheap to clone; both ends hold the same table.
#[derive(Clone)]
pub struct Traces(Arc<Table>);

/// A finished request trace.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// Time from beginning to end.
    pub total: Span,
    /// Picoseconds per stage, in the order of the world's stage names.
    pub stages: [u64; STAGES_MAX],
}

impl Traces {
    /// A table for `queues` queues of `queue_depth` commands, with the given stage names. One command in
    /// `2^sample_log2` is traced, by slot and use; 0 traces all.
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

    /// Stage names, in the order of [`Finished::stages`].
    pub fn names(&self) -> &'static [&'static str] {
        self.0.names
    }

    #[inline]
    fn row_of(&self, queue: u32, command: u16) -> u32 {
        let bits = self.0.slot_bits;
        let slot = u32::from(command) & ((1 << bits) - 1);
        // Each slot is sampled once in `sample_mask + 1` uses, and not all slots at the same use.
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
    /// The stage of the given name. Called once, when a component is built.
    ///
    /// # Panics
    /// If the world is traced and does not list the name: the list and the code disagree.
    pub fn stage(&self, name: &str) -> Stage {
        let Some(traces) = self.traces() else { return Stage(0) };
        match traces.names().iter().position(|n| *n == name) {
            Some(index) => Stage(index as u8),
            None => panic!("stage {name:?} is not in this world's list: {:?}", traces.names()),
        }
    }

    /// Returns a handle whose queue numbers, for request traces, begin with `first`: several devices with
    /// equal queue numbers can then share a table.
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

    /// Returns true if this command would be traced: a caller that must read a clock for the beginning
    /// checks this first.
    #[inline]
    pub fn follows(&self, queue: u16, command: u16) -> bool {
        self.traces().is_some_and(|all| self.row_of(all, queue, command) != NO_TRACE)
    }

    /// Begins the trace of this command, at a time that may be in the past (an intended arrival). The
    /// current task carries it.
    pub fn begin_trace(&self, queue: u16, command: u16, at: Time) {
        let Some(traces) = self.traces() else { return };
        let row = self.row_of(traces, queue, command);
        self.trace_cell().set(row);
        if row != NO_TRACE {
            traces.0.rows[row as usize].begin(at);
        }
    }

    /// Attaches to the current task the trace that the other end has begun.
    #[inline]
    pub fn attach_trace(&self, queue: u16, command: u16) {
        if let Some(traces) = self.traces() {
            self.trace_cell().set(self.row_of(traces, queue, command));
        }
    }

    /// Moves the current task's trace to another command, so that a new trace may begin under the old
    /// identifier. Returns false, and drops the trace, if either is not traced.
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

    /// Row number of the current task's trace, valid at both ends; `u32::MAX` if not traced.
    #[inline]
    pub fn trace(&self) -> u32 {
        self.trace_cell().get()
    }

    /// Attaches the trace of the given row number to the current task. The number may come from the peer:
    /// an invalid one means no trace.
    #[inline]
    pub fn attach_trace_number(&self, trace: u32) {
        let rows = self.traces().map_or(0, |traces| traces.0.rows.len());
        let known = (trace as usize) < rows;
        self.trace_cell().set(if known { trace } else { NO_TRACE });
    }

    /// Detaches the trace from the current task.
    #[inline]
    pub fn detach_trace(&self) {
        self.trace_cell().set(NO_TRACE);
    }

    /// Returns true if the current task carries a trace.
    #[inline]
    pub fn is_traced(&self) -> bool {
        self.trace_cell().get() != NO_TRACE
    }

    /// Adds the time since the last record to this stage.
    #[inline]
    pub fn record(&self, stage: Stage) {
        if let Some(row) = self.row() {
            row.record(stage, self.now());
        }
    }

    /// Adds the time from the last record to `at` to this stage; a time before the last record adds
    /// nothing.
    #[inline]
    pub fn record_at(&self, stage: Stage, at: Time) {
        if let Some(row) = self.row() {
            row.record(stage, at);
        }
    }

    /// Splits the time from the last record to `at` between two stages: at most the span of `part` to its
    /// stage, the remainder to `rest`.
    #[inline]
    pub fn record_split(&self, rest: Stage, part: (Stage, Span), at: Time) {
        if let Some(row) = self.row() {
            let last = Time(row.last.load(Relaxed));
            row.record(part.0, (last + part.1).min(at));
            row.record(rest, at);
        }
    }

    /// Adds these sums, of a trace that covers the time since the last record, and sets the last record to
    /// now.
    pub fn record_parts(&self, parts: &StageSums) {
        if let Some(row) = self.row() {
            parts.iter().for_each(|(stage, ps)| row.add(stage, ps));
            row.last.store(self.now().0, Relaxed);
        }
    }

    /// Ends the current task's trace and adds its stages to `sums`. Returns false if it was not traced.
    #[inline]
    pub fn add_trace_to(&self, sums: &mut StageSums) -> bool {
        let Some(row) = self.row() else { return false };
        if sums.used == 0 {
            // The first command, and the only one of most operations.
            sums.used = row.used.load(Relaxed);
            row.each().for_each(|(stage, ps)| sums.ps[stage] = ps);
        } else {
            row.each().for_each(|(stage, ps)| sums.add(stage, ps));
        }
        self.detach_trace();
        true
    }

    /// Ends the current task's trace and returns it; `None` if it was not traced.
    pub fn finish_trace(&self) -> Option<Finished> {
        let row = self.row()?;
        let total = self.now().since(Time(row.begun.load(Relaxed)));
        let mut stages = [0; STAGES_MAX];
        row.each().for_each(|(stage, ps)| stages[stage] = ps);
        self.detach_trace();
        Some(Finished { total, stages })
    }
}
