//! Table of request traces: a row for each request in flight.
//!
//! Both ends share the table (two threads in the live world) and find a row by numbers that the protocol
//! carries: of the queue, and of the request in it. Relaxed atomics are enough: the protocol's release and
//! acquire order the records of the two ends.
//!
//! A table [with spans](Traces::with_spans) also stores, for each row, when each stage ended, in order. Of
//! any other table a record tests one bit, of a word that it has loaded anyway.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::time::{Span, Time};

/// Maximum number of stages in a world.
pub const STAGES_MAX: usize = 60;

pub(crate) const NO_TRACE: u32 = u32::MAX;

/// The name of a stage that the list of its component has. [`stage!`](crate::stage) makes one, and does not
/// compile otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageName(pub(crate) &'static str);

impl StageName {
    /// The stage `name` of a component whose stages are `list`.
    ///
    /// # Panics
    /// If `list` lacks it; at compile time in a constant.
    pub const fn of(list: &[&str], name: &'static str) -> StageName {
        assert!(is_listed(list, name), "the stage is not in the list of its component");
        StageName(name)
    }

    /// The stage of a cost: costs are listed where the world's stages are, not with their component.
    pub const fn of_cost(name: &'static str) -> StageName {
        StageName(name)
    }
}

/// Returns true if the list has this name.
pub const fn is_listed(list: &[&str], name: &str) -> bool {
    let mut at = 0;
    while at < list.len() {
        if equal(list[at].as_bytes(), name.as_bytes()) {
            return true;
        }
        at += 1;
    }
    false
}

const fn equal(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// The stage of this name, for an executor handle: `stage!(rt, STAGES, "link wait")`. Does not compile if the
/// list, a constant of the component, lacks the name.
#[macro_export]
macro_rules! stage {
    ($rt:expr, $list:expr, $name:expr) => {{
        const NAME: $crate::StageName = $crate::StageName::of($list, $name);
        $rt.stage(NAME)
    }};
}

/// A named stage, as an index into its table's list of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage(pub(crate) u8);

pub(crate) struct Row {
    pub begun: AtomicU64,
    pub last: AtomicU64,
    /// One bit for each stage that has a sum. Most stages of most traces have none and are not touched.
    pub used: AtomicU64,
    pub sums: [AtomicU64; STAGES_MAX],
}

/// Bit of [`Row::used`] of a row whose spans are stored.
pub(crate) const SPANS: u64 = 1 << 63;

const _: () =
    assert!(STAGES_MAX < u64::BITS as usize, "a bit for each stage, and one for the spans");

/// Maximum number of stored spans of a request trace.
pub const SPANS_MAX: usize = 510;

/// Words of a row's spans: their number, then stage and end of each.
const SPAN_WORDS: usize = 1 + 2 * SPANS_MAX;

/// Stage number of a span of time that no stage names.
pub(crate) const UNEXPLAINED: u64 = u64::MAX;

/// A stage of a request trace as a span of time. The spans of a trace are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSpan {
    /// Index of the stage in the world's list; `None` is time that no stage names.
    pub stage: Option<usize>,
    /// End of the span before, or the beginning of the trace.
    pub from: Time,
    /// Time of the record that ended the stage.
    pub to: Time,
}

/// Sums of named stages, most of them empty.
#[derive(Clone, Copy, Debug)]
pub struct StageSums {
    pub(crate) used: u64,
    pub(crate) ps: [u64; STAGES_MAX],
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
    /// [`Row::used`] of a row that begins.
    fresh: u64,
    /// [`SPAN_WORDS`] for each row; empty if no spans are stored.
    spans: Box<[AtomicU64]>,
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
    /// A table for `queues` queues of `queue_depth` requests, with the given stage names. The low `slot_bits`
    /// bits of a request's number name its row, the bits above count the uses of the row. One request in
    /// `2^sample_log2` is traced, by row and use; 0 traces all.
    ///
    /// # Panics
    /// If there are more than [`STAGES_MAX`] names.
    pub fn new(
        queues: u32,
        queue_depth: u32,
        slot_bits: u32,
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
        let sample_mask = (1 << sample_log2) - 1;
        let spans = Box::default();
        Traces(Arc::new(Table {
            rows,
            queue_depth,
            slot_bits,
            sample_mask,
            fresh: 0,
            spans,
            names,
        }))
    }

    /// The table, with room for the spans of each row: at most [`SPANS_MAX`], 16 bytes each.
    ///
    /// # Panics
    /// If another handle to the table exists.
    #[must_use]
    pub fn with_spans(self) -> Traces {
        let mut table = Arc::into_inner(self.0).expect("the only handle to a new table");
        let words = table.rows.len() * SPAN_WORDS;
        table.spans = (0..words).map(|_| AtomicU64::new(0)).collect();
        table.fresh = SPANS;
        Traces(Arc::new(table))
    }

    /// Stage names, in the order of [`Finished::stages`].
    pub fn names(&self) -> &'static [&'static str] {
        self.0.names
    }

    #[inline]
    pub(crate) fn rows(&self) -> usize {
        self.0.rows.len()
    }

    #[inline]
    pub(crate) fn row(&self, number: u32) -> &Row {
        &self.0.rows[number as usize]
    }

    /// `used` of a row that begins.
    #[inline]
    pub(crate) fn fresh(&self) -> u64 {
        self.0.fresh
    }

    /// Queue and slot of a row.
    pub(crate) fn queue_and_slot(&self, number: u32) -> (u16, u16) {
        ((number / self.0.queue_depth) as u16, (number % self.0.queue_depth) as u16)
    }

    fn span_words(&self, number: u32) -> &[AtomicU64] {
        &self.0.spans[number as usize * SPAN_WORDS..][..SPAN_WORDS]
    }

    pub(crate) fn begin_spans(&self, number: u32) {
        self.span_words(number)[0].store(0, Relaxed);
    }

    /// Ends a span of `stage` at `to`. A further span of the last stage extends that. A row with more than
    /// [`SPANS_MAX`] spans keeps none.
    pub(crate) fn put_span(&self, number: u32, stage: u64, to: u64) {
        let words = self.span_words(number);
        let count = words[0].load(Relaxed) as usize;
        if count > 0 && count <= SPANS_MAX && words[2 * count - 1].load(Relaxed) == stage {
            return words[2 * count].store(to, Relaxed);
        }
        if count < SPANS_MAX {
            words[2 * count + 1].store(stage, Relaxed);
            words[2 * count + 2].store(to, Relaxed);
        }
        words[0].store((count + 1).min(SPANS_MAX + 1) as u64, Relaxed);
    }

    /// Stages and ends of a row's spans; `None` if there were too many.
    pub(crate) fn spans(&self, number: u32) -> Option<impl Iterator<Item = (u64, u64)> + '_> {
        let words = self.span_words(number);
        let count = words[0].load(Relaxed) as usize;
        let cells = words[1..].chunks_exact(2);
        let read = |cell: &[AtomicU64]| (cell[0].load(Relaxed), cell[1].load(Relaxed));
        (count <= SPANS_MAX).then(|| cells.take(count).map(read))
    }

    /// Marks the spans of a row as incomplete, so that none are read.
    pub(crate) fn spoil_spans(&self, number: u32) {
        self.span_words(number)[0].store(SPANS_MAX as u64 + 1, Relaxed);
    }

    pub(crate) fn copy_spans(&self, from: u32, to: u32) {
        let (from, to) = (self.span_words(from), self.span_words(to));
        let count = (from[0].load(Relaxed) as usize).min(SPANS_MAX);
        for (from, to) in from.iter().zip(to).take(1 + 2 * count) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }

    /// Row number of a request; [`NO_TRACE`] if it is not traced.
    #[inline]
    pub(crate) fn row_of(&self, queue: u32, request: u16) -> u32 {
        let bits = self.0.slot_bits;
        let slot = u32::from(request) & ((1 << bits) - 1);
        // Each slot is sampled once in `sample_mask + 1` uses, and not all slots at the same use.
        let turn = slot + (u32::from(request) >> bits);
        if turn & self.0.sample_mask != 0 || slot >= self.0.queue_depth {
            return NO_TRACE;
        }
        let row = queue * self.0.queue_depth + slot;
        if (row as usize) < self.0.rows.len() { row } else { NO_TRACE }
    }
}

impl Row {
    pub fn begin(&self, at: Time, fresh: u64) {
        self.begun.store(at.0, Relaxed);
        self.last.store(at.0, Relaxed);
        self.used.store(fresh, Relaxed);
    }

    /// Returns true if a span must be stored.
    #[inline]
    pub fn record(&self, stage: Stage, at: Time) -> bool {
        let last = self.last.load(Relaxed);
        if at.0 <= last {
            return false;
        }
        let stores_spans = self.add(usize::from(stage.0), at.0 - last);
        self.last.store(at.0, Relaxed);
        stores_spans
    }

    /// Returns true if the spans of the row are stored.
    #[inline]
    pub fn add(&self, stage: usize, ps: u64) -> bool {
        let (sum, bit) = (&self.sums[stage], 1 << stage);
        let used = self.used.load(Relaxed);
        let before = if used & bit == 0 { 0 } else { sum.load(Relaxed) };
        sum.store(before + ps, Relaxed);
        self.used.store(used | bit, Relaxed);
        used & SPANS != 0
    }

    pub fn stores_spans(&self) -> bool {
        self.used.load(Relaxed) & SPANS != 0
    }

    /// The stages that have a sum, a bit each.
    pub fn used_stages(&self) -> u64 {
        self.used.load(Relaxed) & !SPANS
    }

    /// The stages that have a sum, and their picoseconds.
    pub fn each(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        bits(self.used_stages()).map(|stage| (stage, self.sums[stage].load(Relaxed)))
    }
}
