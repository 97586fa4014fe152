//! Latency breakdown of an operation: the software above the driver, and the request traces of its commands.

use std::rc::Rc;

use runtime::{Rt, Span, StageSums, Time, TraceSpan};
use workload::pattern::Op;

use super::Done;
use crate::timeline::{Ended, Path, Sampler};

/// Stage sums of commands, one after the other, and their spans if there is a timeline.
pub(super) struct CommandTrace {
    pub sums: StageSums,
    /// Every command has been traced.
    pub traced: bool,
    /// None: no timeline.
    pub path: Option<Path>,
    /// Commands that the path has.
    commands: u32,
}

impl CommandTrace {
    pub fn new(has_timeline: bool) -> CommandTrace {
        let path = has_timeline.then(Path::default);
        CommandTrace { sums: StageSums::new(), traced: true, path, commands: 0 }
    }

    pub fn begin(&mut self) {
        self.traced = true;
        self.sums.clear();
        if let Some(path) = &mut self.path {
            path.spans.clear();
            // A helper may find no command left.
            path.is_complete = false;
            self.commands = 0;
        }
    }

    /// Names the command whose trace is added next.
    pub fn names(&mut self, lba: u64, bytes: u32) {
        if let Some(path) = self.path.as_mut().filter(|_| self.commands == 0) {
            (path.lba, path.bytes) = (lba, bytes);
        }
    }

    /// Adds the request trace of a completed command.
    pub fn add(&mut self, rt: &Rt) {
        if self.path.is_some() {
            self.add_spans(rt);
        }
        self.traced &= rt.add_trace_to(&mut self.sums);
    }

    #[cold]
    fn add_spans(&mut self, rt: &Rt) {
        let Some(path) = &mut self.path else { return };
        path.ended = rt.now();
        let is_stored = rt.trace_spans(&mut path.spans);
        path.is_complete = is_stored && (path.is_complete || self.commands == 0);
        self.commands += 1;
        if let Some((queue, request)) = rt.trace_queue_and_slot() {
            (path.queue, path.request) = (queue, request);
        }
    }
}

pub(super) struct OpTrace {
    /// Of the software above the driver, and of the longest path through the commands.
    pub longest: CommandTrace,
    /// Paths of an operation of several commands.
    pub paths: Vec<Path>,
    pub longest_path: usize,
    layers: Vec<TraceSpan>,
    sampler: Option<Rc<Sampler>>,
}

impl OpTrace {
    pub fn new(sampler: Option<Rc<Sampler>>) -> OpTrace {
        let longest = CommandTrace::new(sampler.is_some());
        OpTrace { longest, paths: Vec::new(), longest_path: 0, layers: Vec::new(), sampler }
    }

    pub fn begin(&mut self) {
        self.longest.begin();
        if self.sampler.is_some() {
            self.layers.clear();
            self.paths.clear();
            self.longest_path = 0;
        }
    }

    pub fn has_timeline(&self) -> bool {
        self.sampler.is_some()
    }

    /// Adds the trace of an operation's only command.
    pub fn add_request_trace(&mut self, rt: &Rt) {
        self.longest.add(rt);
    }

    /// Adds the time of a layer above the driver.
    pub fn add_layer(&mut self, stage: usize, from: Time, to: Time) {
        self.longest.sums.add(stage, to.since(from).0);
        if self.sampler.is_some() {
            self.layers.push(TraceSpan { stage: Some(stage), from, to });
        }
    }

    pub fn add(&mut self, stage: usize, span: Span) {
        self.longest.sums.add(stage, span.0);
    }

    /// Passes the operation to the sampler, if there is one.
    pub fn sample(&self, op: &Op, job: &str, done: &Done, arrival_stage: Option<usize>) {
        let (Some(sampler), Some(path)) = (&self.sampler, &self.longest.path) else { return };
        let ended = Ended {
            op,
            job,
            arrival: Time(done.at.0 - done.total.0),
            late: done.late,
            arrival_stage,
            ended: done.at,
            layers: &self.layers,
            longest: self.longest_path,
        };
        match self.paths.is_empty() {
            true => sampler.note(&ended, std::slice::from_ref(path)),
            false => sampler.note(&ended, &self.paths),
        }
    }
}
