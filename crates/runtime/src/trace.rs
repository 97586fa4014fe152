//! Request traces: a latency breakdown by stage, recorded at each wait.
//!
//! A request trace is a row of stage sums and the time of the last record. The task that works on the
//! request (the caller's, then the device's) carries the trace; every named wait ends with a record, which
//! adds the time since the last record to its stage. So the stages of a trace add up to its latency
//! exactly, and time of an unnamed stage remains visible as unexplained.
//!
//! With [`Traces::with_spans`] each record is also stored as a span of time ([`Rt::trace_spans`]), for a
//! timeline.
//!
//! If several devices have the same queue numbers, [`Rt::queues_from`] offsets those of one executor handle,
//! so that one table serves all.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use crate::rt::Rt;
use crate::time::{Span, Time};
use crate::traces::{
    Finished, NO_TRACE, Row, STAGES_MAX, Stage, StageName, StageSums, TraceSpan, Traces,
    UNEXPLAINED,
};

impl Rt {
    /// The stage of this name. Called once, when a component is built.
    ///
    /// # Panics
    /// If the world is traced and does not list the name.
    pub fn stage(&self, name: StageName) -> Stage {
        let StageName(name) = name;
        let Some(traces) = self.traces() else { return Stage(0) };
        match traces.names().iter().position(|n| *n == name) {
            Some(index) => Stage(index as u8),
            None => panic!("stage {name:?} is not in this world's list: {:?}", traces.names()),
        }
    }

    /// Returns true if the world has a table of request traces.
    pub fn has_traces(&self) -> bool {
        self.traces().is_some()
    }

    /// Names of the stages of its table, in their order; none without one.
    pub fn stage_names(&self) -> &'static [&'static str] {
        self.traces().map_or(&[], Traces::names)
    }

    /// Returns a handle whose queue numbers, for request traces, begin with `first`: several devices with
    /// equal queue numbers can then share a table.
    pub fn queues_from(&self, first: u16) -> Rt {
        Rt(self.0.clone(), first)
    }

    #[inline]
    fn row_of(&self, traces: &Traces, queue: u16, request: u16) -> u32 {
        traces.row_of(u32::from(self.1) + u32::from(queue), request)
    }

    #[inline]
    fn row(&self) -> Option<&Row> {
        let row = self.trace_cell().get();
        if row == NO_TRACE {
            return None;
        }
        self.traces().map(|traces| traces.row(row))
    }

    /// Returns true if this request would be traced: a caller that must read a clock for the beginning
    /// checks this first.
    #[inline]
    pub fn follows(&self, queue: u16, request: u16) -> bool {
        self.traces().is_some_and(|all| self.row_of(all, queue, request) != NO_TRACE)
    }

    /// Begins the trace of this request, at a time that may be in the past (an intended arrival). The
    /// current task carries it.
    pub fn begin_trace(&self, queue: u16, request: u16, at: Time) {
        let Some(traces) = self.traces() else { return };
        let row = self.row_of(traces, queue, request);
        self.trace_cell().set(row);
        if row != NO_TRACE {
            traces.row(row).begin(at, traces.fresh());
            if traces.fresh() != 0 {
                traces.begin_spans(row);
            }
        }
    }

    /// Attaches to the current task the trace that the other end has begun.
    #[inline]
    pub fn attach_trace(&self, queue: u16, request: u16) {
        if let Some(traces) = self.traces() {
            self.trace_cell().set(self.row_of(traces, queue, request));
        }
    }

    /// Moves the current task's trace to another request, so that a new trace may begin under the old
    /// identifier. Returns false, and drops the trace, if either is not traced.
    pub fn move_trace_to(&self, queue: u16, request: u16) -> bool {
        let (from, traces) = (self.row(), self.traces());
        let to = traces.map_or(NO_TRACE, |all| self.row_of(all, queue, request));
        let (Some(from), Some(traces)) = (from, traces.filter(|_| to != NO_TRACE)) else {
            self.detach_trace();
            return false;
        };
        let row = traces.row(to);
        row.begun.store(from.begun.load(Relaxed), Relaxed);
        row.last.store(from.last.load(Relaxed), Relaxed);
        row.used.store(from.used.load(Relaxed), Relaxed);
        for (stage, ps) in from.each() {
            row.sums[stage].store(ps, Relaxed);
        }
        if from.stores_spans() {
            traces.copy_spans(self.trace(), to);
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
        let rows = self.traces().map_or(0, |traces| traces.rows());
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
        if let Some(row) = self.row()
            && let now = self.now()
            && row.record(stage, now)
        {
            self.put_span(u64::from(stage.0), now);
        }
    }

    /// Adds the time from the last record to `at` to this stage; a time before the last record adds
    /// nothing.
    #[inline]
    pub fn record_at(&self, stage: Stage, at: Time) {
        if let Some(row) = self.row()
            && row.record(stage, at)
        {
            self.put_span(u64::from(stage.0), at);
        }
    }

    /// Splits the time from the last record to `at` between two stages: at most the span of `part` to its
    /// stage, the remainder to `rest`.
    #[inline]
    pub fn record_split(&self, rest: Stage, part: (Stage, Span), at: Time) {
        if let Some(row) = self.row() {
            let last = Time(row.last.load(Relaxed));
            self.record_at(part.0, (last + part.1).min(at));
            self.record_at(rest, at);
        }
    }

    /// Stores that a stage of the current task's trace ended. Out of line: most tables store no spans.
    #[cold]
    #[inline(never)]
    fn put_span(&self, stage: u64, to: Time) {
        if let Some(traces) = self.traces() {
            traces.put_span(self.trace(), stage, to.0);
        }
    }

    /// Adds these sums, of the ended trace of row number `of`, which covers the time since the last record,
    /// and sets the last record to now.
    pub fn record_parts(&self, parts: &StageSums, of: u32) {
        let (Some(row), now) = (self.row(), self.now()) else { return };
        parts.iter().for_each(|(stage, ps)| _ = row.add(stage, ps));
        if row.stores_spans() {
            self.put_spans_of(of, row.last.load(Relaxed), now.0);
        }
        row.last.store(now.0, Relaxed);
    }

    /// Appends another row's spans after `last` to the current task's trace, until now.
    #[cold]
    fn put_spans_of(&self, of: u32, last: u64, now: u64) {
        let (Some(traces), own) = (self.traces(), self.trace()) else { return };
        let Some(spans) = traces.spans(of) else { return traces.spoil_spans(own) };
        let mut end = last;
        for (stage, to) in spans.filter(|(_, to)| *to > last) {
            traces.put_span(own, stage, to);
            end = to;
        }
        if end < now {
            traces.put_span(own, UNEXPLAINED, now);
        }
    }

    /// Appends the spans of the current task's trace, in order. Returns false if they are not stored, or are
    /// more than [`SPANS_MAX`](crate::SPANS_MAX).
    pub fn trace_spans(&self, to: &mut Vec<TraceSpan>) -> bool {
        let (Some(row), Some(traces)) = (self.row(), self.traces()) else { return false };
        let spans = if row.stores_spans() { traces.spans(self.trace()) } else { None };
        let Some(spans) = spans else { return false };
        let mut from = Time(row.begun.load(Relaxed));
        to.extend(spans.map(|(stage, end)| {
            let stage = (stage != UNEXPLAINED).then_some(stage as usize);
            let span = TraceSpan { stage, from, to: Time(end) };
            from = span.to;
            span
        }));
        true
    }

    /// Queue and slot of the current task's trace, of all queues of the world; `None` if not traced.
    pub fn trace_queue_and_slot(&self) -> Option<(u16, u16)> {
        let traces = self.traces().filter(|_| self.is_traced())?;
        Some(traces.queue_and_slot(self.trace()))
    }

    /// Ends the current task's trace and adds its stages to `sums`. Returns false if it was not traced.
    #[inline]
    pub fn add_trace_to(&self, sums: &mut StageSums) -> bool {
        let Some(row) = self.row() else { return false };
        if sums.used == 0 {
            // The first request, and the only one of most operations.
            sums.used = row.used_stages();
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
