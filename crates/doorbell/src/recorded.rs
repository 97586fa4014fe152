//! A live run that is taken down.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::rc::Rc;

use workload::limits::IODEPTH_MAX;
use world::RunResult;
use world::run_recorder::{ENTRIES_MAX, RunRecorder};
use world::work::Work;

use super::output::{Page, create};

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
        page: Page,
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
        page.line(format_args!(
            "recorded: {operations} operations, {writes} register writes, in {path}"
        ));
        if recording.lost > 0 {
            page.line(format_args!("note: there was no room for {} more of them", recording.lost));
        }
        Ok(())
    }
}
