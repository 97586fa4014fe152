//! Timelines in Chrome's trace-event format, which Perfetto and `chrome://tracing` open.
//!
//! A run is a process. A thread of it is a track of a lane: spans that overlap in a lane, of requests in
//! flight at the same time, are on different tracks, because the events of a track must not overlap. Flow
//! events join the spans of a request across lanes. Times are microseconds with three decimals since the
//! first sampled request began; picoseconds are in the arguments. The format: "Trace Event Format" of the
//! Chromium project.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use runtime::Time;
use serde_json::{Value, json};
use world::RunResult;
use world::interfaces::Lane;
use world::timeline::{SampledRequest, StageSpan, Timeline};

use super::output::create;

/// Thread numbers of a lane's tracks begin at a multiple of this.
const LANE_TIDS: usize = 10_000;

/// A file of trace events, written at the end.
pub(super) struct TraceFile {
    file: File,
    path: PathBuf,
    events: TraceEvents,
}

impl TraceFile {
    /// Creates the file, so that a run does not end in a trace that cannot be written.
    pub fn create(path: &Path) -> Result<TraceFile, String> {
        let path = path.to_owned();
        Ok(TraceFile { file: create(&path)?, path, events: TraceEvents::default() })
    }

    /// Adds the timeline of a run, if it has one.
    pub fn add(&mut self, title: &str, run_result: &RunResult) {
        if let Some(timeline) = &run_result.timeline {
            self.events.add(title, timeline);
        }
    }

    pub fn finish(mut self) -> Result<(), String> {
        let written = self.file.write_all(self.events.to_json().as_bytes());
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

/// Trace events of several runs.
#[derive(Default)]
struct TraceEvents {
    /// A JSON object each.
    events: Vec<String>,
    runs: Vec<Value>,
}

/// A span and its request.
struct Slice<'a> {
    request: &'a SampledRequest,
    span: &'a StageSpan,
    number: usize,
    from_ns: u64,
    to_ns: u64,
}

impl TraceEvents {
    /// Adds a run.
    fn add(&mut self, title: &str, timeline: &Timeline) {
        let pid = self.runs.len() + 1;
        let origin = timeline.requests.iter().map(|request| request.begun).min();
        let origin = origin.unwrap_or_default();
        self.runs.push(json!({
            "pid": pid,
            "run": title,
            "origin_ps": origin.0,
            "sampled_from": timeline.drawn_from,
        }));
        self.name(pid, None, "process_name", title);
        for (number, lane) in Lane::ALL.into_iter().enumerate() {
            let slices = slices(timeline, lane, origin);
            let tracks = self.lane(pid, (number + 1) * LANE_TIDS, &slices);
            for track in 0..tracks {
                let tid = (number + 1) * LANE_TIDS + track;
                let name = match track {
                    0 => lane.to_string(),
                    _ => format!("{lane} {}", track + 1),
                };
                self.name(pid, Some(tid), "thread_name", &name);
                let sort = json!({
                    "ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid,
                    "args": { "sort_index": tid },
                });
                self.events.push(sort.to_string());
            }
        }
    }

    fn name(&mut self, pid: usize, tid: Option<usize>, what: &str, name: &str) {
        let tid = tid.unwrap_or(0);
        let args = json!({ "name": name });
        let event = json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": args });
        self.events.push(event.to_string());
    }

    /// Adds the spans of a lane, each on the first track that is free; returns the number of tracks.
    fn lane(&mut self, pid: usize, tid: usize, slices: &[Slice<'_>]) -> usize {
        let mut free_from: Vec<u64> = Vec::new();
        for slice in slices {
            let free = free_from.iter().position(|free| *free <= slice.from_ns);
            let track = free.unwrap_or(free_from.len());
            match free_from.get_mut(track) {
                Some(free) => *free = slice.to_ns,
                None => free_from.push(slice.to_ns),
            }
            self.events.push(slice.complete_event(pid, tid + track));
            self.events.extend(slice.flow_event(pid, tid + track));
        }
        free_from.len()
    }

    /// The file.
    fn to_json(&self) -> String {
        let other = json!({ "version": env!("CARGO_PKG_VERSION"), "runs": self.runs });
        let mut text = format!(r#"{{"displayTimeUnit":"ns","otherData":{other},"traceEvents":["#);
        for (number, event) in self.events.iter().enumerate() {
            text += if number == 0 { "\n" } else { ",\n" };
            text += event;
        }
        text + "\n]}\n"
    }
}

/// The spans of a lane by time. Both ends are rounded alike to nanoseconds: spans that touch still do.
fn slices(timeline: &Timeline, lane: Lane, origin: Time) -> Vec<Slice<'_>> {
    let ns = |at: Time| (at.0 - origin.0 + 500) / 1000;
    let of_request = |request| {
        let drawn = drawn(request);
        drawn.enumerate().filter(move |(_, span)| span.lane == lane).map(move |(number, span)| {
            let (from_ns, to_ns) = (ns(span.from), ns(span.to));
            Slice { request, span, number, from_ns, to_ns }
        })
    };
    let mut slices: Vec<_> = timeline.requests.iter().flat_map(of_request).collect();
    slices.sort_by_key(|slice| (slice.from_ns, slice.to_ns, slice.request.operation, slice.number));
    slices
}

/// The spans of a request that are drawn. Those before the first command of an operation are common to its
/// requests, and are drawn once.
fn drawn(request: &SampledRequest) -> impl Iterator<Item = &StageSpan> {
    let common = |span: &&StageSpan| !request.is_longest && span.to <= request.commands_begun;
    request.spans.iter().skip_while(common)
}

/// Microseconds with three decimals.
fn us(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

impl Slice<'_> {
    fn complete_event(&self, pid: usize, tid: usize) -> String {
        let (request, span) = (self.request, self.span);
        let args = json!({
            "stage": span.stage,
            "operation": request.operation,
            "job": request.job,
            "kind": request.kind.name(),
            "lba": request.lba,
            "bytes": request.bytes,
            "queue": request.queue,
            "slot": request.request,
            "from_ps": span.from.0,
            "to_ps": span.to.0,
        });
        let (ts, dur) = (us(self.from_ns), us(self.to_ns - self.from_ns));
        let place = format!(r#""pid":{pid},"tid":{tid},"ts":{ts},"dur":{dur}"#);
        let (kind, stage) = (request.kind.name(), span.stage);
        format!(r#"{{"ph":"X","cat":"{kind}","name":"{stage}",{place},"args":{args}}}"#)
    }

    /// Joins the span to those before and after it of its request; none for the only span of a request.
    fn flow_event(&self, pid: usize, tid: usize) -> Option<String> {
        let request = self.request;
        let last = drawn(request).count() - 1;
        let (phase, bind) = match self.number {
            _ if last == 0 => return None,
            0 => ("s", ""),
            number if number == last => ("f", r#","bp":"e""#),
            _ => ("t", ""),
        };
        let id = format!("{pid}.{}.{}.{}", request.operation, request.queue, request.request);
        let place = format!(r#""pid":{pid},"tid":{tid},"ts":{}"#, us(self.from_ns));
        let names = r#""cat":"request","name":"request""#;
        Some(format!(r#"{{"ph":"{phase}"{bind},{names},"id":"{id}",{place}}}"#))
    }
}
