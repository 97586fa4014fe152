//! Timelines of sampled operations: for each, the spans of its stages in order, with the lane of each.
//!
//! The first operations after `ramp_time` are kept, then a uniform sample of all later ones (Vitter's
//! algorithm R), so that the number is bounded however long the run is. Draws are from the run's seed; a
//! simulated run keeps the same operations each time. Live, only traced operations are sampled.

use std::cell::RefCell;

use runtime::{Rng, Span, Time, TraceSpan};
use workload::pattern::{Op, OpKind};

use crate::lanes::{Lane, StageLane};

/// Name of the spans of time that no stage names.
pub const UNEXPLAINED: &str = "unexplained";

/// Of the kept operations, one in this number is reserved for the first ones.
const FIRST_PART: usize = 4;

/// A stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageSpan {
    /// The stage, or [`UNEXPLAINED`].
    pub stage: &'static str,
    pub lane: Lane,
    pub from: Time,
    pub to: Time,
}

/// A command of a sampled operation, from the operation's arrival to the command's end. Of an operation
/// longer than one command each command is one request, except that commands which waited for a place that
/// another command had are one request with that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledRequest {
    /// Number of the operation among the sampled ones; requests with the same number are of one operation.
    pub operation: u64,
    pub job: String,
    /// Queue and slot of the request trace, counted over all queues of the world.
    pub queue: u16,
    pub request: u16,
    pub kind: OpKind,
    /// First block, and length in bytes; of the first command, if there are several.
    pub lba: u64,
    pub bytes: u32,
    /// The spans of this request are the latency of the operation: the others ended earlier.
    pub is_longest: bool,
    pub begun: Time,
    /// End of the queueing delay and of the software above the driver, which are common to the requests of an
    /// operation.
    pub commands_begun: Time,
    pub ended: Time,
    /// Contiguous, from `begun` to `ended`.
    pub spans: Vec<StageSpan>,
}

/// The sampled operations of a run, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    pub requests: Vec<SampledRequest>,
    /// Number of operations that the sample was drawn from.
    pub drawn_from: u64,
}

impl Timeline {
    /// Adds the sample of another thread.
    pub(crate) fn merge(&mut self, other: Timeline) {
        let shift = self.requests.iter().map(|request| request.operation + 1).max().unwrap_or(0);
        self.requests.extend(other.requests.into_iter().map(|request| {
            let operation = request.operation + shift;
            SampledRequest { operation, ..request }
        }));
        self.drawn_from += other.drawn_from;
    }
}

/// The trace of one command, or of commands one after the other in one place.
#[derive(Clone, Default)]
pub struct Path {
    pub queue: u16,
    pub request: u16,
    pub lba: u64,
    pub bytes: u32,
    pub ended: Time,
    pub spans: Vec<TraceSpan>,
    /// Every command was traced, and no span is missing.
    pub is_complete: bool,
}

/// A completed operation, as the sampler gets it.
pub struct Ended<'a> {
    pub op: &'a Op,
    pub job: &'a str,
    pub arrival: Time,
    /// Time from the arrival to the submission, and its stage.
    pub late: Span,
    pub arrival_stage: Option<usize>,
    pub ended: Time,
    /// Spans of the software above the driver.
    pub layers: &'a [TraceSpan],
    /// Number of the path that ended last.
    pub longest: usize,
}

/// Chooses operations and keeps their spans.
pub struct Sampler {
    /// Stages of the interface, each with its lane.
    stages: Vec<(&'static str, StageLane)>,
    /// Most operations kept, and how many of them are the first ones.
    most: usize,
    first: usize,
    state: RefCell<State>,
}

struct State {
    rng: Rng,
    seen: u64,
    /// Requests of each kept operation.
    kept: Vec<Vec<SampledRequest>>,
}

impl Sampler {
    /// A sampler of operations with these stages, which keeps at most `most`, a quarter of them the first
    /// ones.
    pub fn new(stages: Vec<(&'static str, StageLane)>, seed: u64, most: u32) -> Sampler {
        let (most, rng) = (most.max(1) as usize, Rng::for_part(seed, "timeline"));
        let state = RefCell::new(State { rng, seen: 0, kept: Vec::with_capacity(most) });
        Sampler { stages, most, first: most.div_ceil(FIRST_PART), state }
    }

    /// Draws whether to keep an operation.
    pub fn note(&self, ended: &Ended<'_>, paths: &[Path]) {
        if !paths.iter().any(|path| path.is_complete) {
            return;
        }
        let mut state = self.state.borrow_mut();
        let number = state.seen;
        state.seen += 1;
        let place = match state.kept.len() < self.most {
            true => state.kept.len(),
            false => {
                let later = state.seen - self.first as u64;
                let drawn = state.rng.below(later) as usize;
                match self.first + drawn {
                    place if place < self.most => place,
                    _ => return,
                }
            }
        };
        let of_path = |(index, path): (usize, &Path)| self.request(ended, path, index, number);
        let complete = paths.iter().enumerate().filter(|(_, path)| path.is_complete);
        let requests = complete.map(of_path).collect();
        match state.kept.get_mut(place) {
            Some(old) => *old = requests,
            None => state.kept.push(requests),
        }
    }

    fn request(&self, of: &Ended<'_>, path: &Path, index: usize, number: u64) -> SampledRequest {
        let is_longest = index == of.longest;
        let ended = if is_longest { of.ended } else { path.ended };
        let mut spans =
            Spans { stages: &self.stages, kind: of.op.kind, at: of.arrival, spans: Vec::new() };
        if let Some(stage) = of.arrival_stage {
            spans.push(Some(stage), of.arrival + of.late);
        }
        // Work of the layers is before the first command, and on the way through a kernel also between
        // commands and after them.
        let first = path.spans.first().map_or(ended, |span| span.from);
        let before = of.layers.partition_point(|span| span.from < first);
        let (before, among) = of.layers.split_at(before);
        before.iter().for_each(|span| spans.put(span));
        let commands_begun = spans.at;
        let mut among = among.iter().peekable();
        for span in &path.spans {
            while let Some(layer) = among.next_if(|layer| layer.from < span.from) {
                spans.put(layer);
            }
            spans.put(span);
        }
        among.for_each(|span| spans.put(span));
        spans.push(None, ended);
        SampledRequest {
            operation: number,
            job: of.job.to_owned(),
            queue: path.queue,
            request: path.request,
            kind: of.op.kind,
            lba: path.lba,
            bytes: path.bytes,
            is_longest,
            begun: of.arrival,
            commands_begun,
            ended,
            spans: spans.spans,
        }
    }

    /// The sample so far, in order of completion.
    pub fn timeline(&self) -> Timeline {
        let state = self.state.borrow();
        let mut requests: Vec<_> = state.kept.iter().flatten().cloned().collect();
        requests.sort_by_key(|request| request.operation);
        Timeline { requests, drawn_from: state.seen }
    }
}

/// Spans of a request up to a time.
struct Spans<'a> {
    stages: &'a [(&'static str, StageLane)],
    kind: OpKind,
    at: Time,
    spans: Vec<StageSpan>,
}

impl Spans<'_> {
    /// Appends a span. Time before it that has no span is unexplained.
    fn put(&mut self, span: &TraceSpan) {
        self.push(None, span.from);
        self.push(span.stage, span.to);
    }

    /// Appends a span from the last one's end to `to`; nothing if that is not later.
    fn push(&mut self, stage: Option<usize>, to: Time) {
        if to <= self.at {
            return;
        }
        let (stage, lane) = match stage {
            Some(stage) => {
                let (stage, lane) = self.stages[stage];
                (stage, lane.of(self.kind))
            }
            None => (UNEXPLAINED, Lane::Host),
        };
        self.spans.push(StageSpan { stage, lane, from: self.at, to });
        self.at = to;
    }
}
