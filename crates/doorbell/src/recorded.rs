//! A live run that is taken down, and its replay beside it.

use std::cell::Cell;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::rc::Rc;

use papers::Table;
use runtime::Log;
use workload::limits::IODEPTH_MAX;
use workload::pattern::OpKind;
use workload::stats::Latencies;
use workload::trace::{Recorded, StageMean};
use world::RunResult;
use world::engine::JobResult;
use world::run_recorder::{ENTRIES_MAX, RunRecorder, register_write, stages};
use world::work::Work;

use super::run::create;

/// A file that a live run is to be taken down into.
pub(super) struct Recorder {
    path: PathBuf,
    file: File,
    pub(super) run_recorder: Rc<RunRecorder>,
}

impl Recorder {
    /// Makes the file, and the room for what comes.
    pub(super) fn new(path: &PathBuf) -> Result<Recorder, String> {
        Ok(Recorder {
            path: path.to_owned(),
            file: create(path)?,
            run_recorder: RunRecorder::new(ENTRIES_MAX),
        })
    }

    /// Writes down what was taken down; `run` says what it was.
    pub(super) fn finish(
        self,
        run: String,
        work: &Work,
        run_result: &RunResult,
    ) -> Result<(), String> {
        let at_once = |jobs: &[workload::job::Job]| -> u64 {
            jobs.iter().map(|job| u64::from(job.iodepth) * u64::from(job.numjobs)).sum()
        };
        let deepest = work.groups().into_iter().map(at_once).max().unwrap_or(1);
        let depth = deepest.clamp(1, IODEPTH_MAX) as u32;
        let recording = self.run_recorder.finish(run, depth, run_result);
        let path = self.path.display();
        recording
            .write(BufWriter::new(self.file))
            .map_err(|error| format!("{path}: the recording is not whole: {error}"))?;
        let (operations, writes) = (recording.arrivals.len(), recording.register_writes.len());
        println!("recorded: {operations} operations, {writes} register writes, in {path}");
        if recording.lost > 0 {
            println!("note: there was no room for {} more of them", recording.lost);
        }
        Ok(())
    }
}

/// A log that also counts the registers that the host writes.
pub(super) fn counting(log: Log, count: &Rc<Cell<u64>>) -> Log {
    let count = count.clone();
    Log::To(Rc::new(move |entry| {
        count.set(count.get() + u64::from(register_write(entry).is_some()));
        log.put(entry);
    }))
}

/// Prints a recorded run beside what has now become of the same arrivals.
pub(super) fn print_report(live: &Recorded, run_result: &RunResult, register_writes: u64) {
    let mut all = JobResult::default();
    run_result.jobs.iter().for_each(|(_, job_result)| all.merge(job_result));
    let now = stages(run_result);
    println!("as recorded ({}), and as replayed", live.run);
    for kind in OpKind::ALL {
        let before = live.latencies.get(&kind).cloned().unwrap_or_default();
        let after = &all.stats.of(kind).total;
        if before.count() + after.count() == 0 {
            continue;
        }
        let lines = [
            ("operations", [before.count().to_string(), after.count().to_string()]),
            ("p50, us", both(&before, after, |of| of.percentile_ns(50_000) as f64)),
            ("p99, us", both(&before, after, |of| of.percentile_ns(99_000) as f64)),
            ("mean, us", both(&before, after, Latencies::mean_ns)),
        ];
        let line = |name: &str, [a, b]: [String; 2]| vec![name.to_owned(), a, b];
        let mut lines: Vec<_> = lines.map(|(name, cells)| line(name, cells)).into();
        for name in names(&live.stages, &now, kind) {
            let cell = |of: &[StageMean]| {
                let mean = of.iter().find(|stage| stage.kind == kind && stage.name == name);
                mean.map_or("-".into(), |stage| format!("{:.3}", stage.mean_ps as f64 / 1e6))
            };
            lines.push(line(&format!("  {name}"), [cell(&live.stages), cell(&now)]));
        }
        let columns = ["", "recorded", "replayed"].map(str::to_owned).into();
        let followed = live.stages.iter().find(|stage| stage.kind == kind);
        let followed = followed.map_or(0, |stage| stage.count);
        let notes = vec![format!("stages as recorded are the means of {followed} operations")];
        println!("{}", Table { what: kind.name().to_owned(), columns, lines, notes });
    }
    println!("register writes: {} recorded, {register_writes} replayed", live.register_writes);
}

fn both(a: &Latencies, b: &Latencies, of: impl Fn(&Latencies) -> f64) -> [String; 2] {
    [a, b].map(|stats| match stats.count() {
        0 => "-".into(),
        _ => format!("{:.3}", of(stats) / 1e3),
    })
}

/// The stages that either has, in the order in which they first come.
fn names<'a>(live: &'a [StageMean], now: &'a [StageMean], kind: OpKind) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for stage in now.iter().chain(live).filter(|stage| stage.kind == kind) {
        if !names.contains(&stage.name.as_str()) {
            names.push(&stage.name);
        }
    }
    names
}
