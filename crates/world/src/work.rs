//! From a job file or a recording to what engines run.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use workload::job::{self, Job, JobFile};
use workload::limits::{JOB_FILE_BYTES_MAX, RECORDING_BYTES_MAX};
use workload::pattern::{Ops, Target};
use workload::trace::{Extents, Map, Mapping, Reader, Recorded, Replay};

use crate::engine::Source;

/// What is to be run: jobs in groups, one group after the other.
#[derive(Clone, Debug)]
pub struct Work {
    /// The file that it came from.
    pub file: PathBuf,
    pub jobs: Vec<Job>,
    /// What the file asked for and does not get, in words.
    pub notes: Vec<String>,
    /// How recordings are laid onto the device.
    pub mapping: Mapping,
    /// What was seen live of what is run, if that is a recorded run.
    pub recorded: Option<Recorded>,
}

/// Why there is nothing to run. Prints with file and line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WorkError(String);

fn fail<T>(error: impl std::fmt::Display) -> Result<T, WorkError> {
    Err(WorkError(error.to_string()))
}

impl Work {
    /// Reads a job file, or a recording as a job of its own: a file whose name ends in `.fio`, or that
    /// has a section, is a job file.
    pub fn load(path: &Path, mapping: Mapping) -> Result<Work, WorkError> {
        // What is longer than a job file is no job file, and all that is wanted of another is its beginning.
        let (text, length) = beginning(path, JOB_FILE_BYTES_MAX as u64)?;
        let is_job = path.extension().is_some_and(|ending| ending == "fio")
            || text.lines().any(|line| line.starts_with('['));
        if is_job {
            if length > JOB_FILE_BYTES_MAX as u64 {
                let expected = format!("a job file of at most {JOB_FILE_BYTES_MAX}");
                return fail(format!(
                    "{}: found {length} bytes, expected {expected}",
                    path.display()
                ));
            }
            return Work::parse(path, &text, mapping);
        }
        let text = match Recorded::begins(&text) {
            true => recording(path)?,
            false => text,
        };
        let name = path.file_stem().map_or("recording".into(), |stem| stem.to_string_lossy());
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let recorded = Recorded::of(&path.display().to_string(), &text).or_else(fail)?;
        let depth = recorded.as_ref().map_or(64, |recorded| recorded.depth);
        let text = format!("[{name}]\nread_iolog={file}\niodepth={depth}\n");
        Ok(Work { recorded, ..Work::parse(path, &text, mapping)? })
    }

    /// Reads the text of a job file.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(path: &Path, text: &str, mapping: Mapping) -> Result<Work, WorkError> {
        match job::parse(&path.display().to_string(), text) {
            Ok(JobFile { jobs, notes, .. }) => {
                let notes = notes.iter().map(ToString::to_string).collect();
                Ok(Work { file: path.to_owned(), jobs, notes, mapping, recorded: None })
            }
            Err(errors) => fail(errors),
        }
    }

    /// The most clones that run at once.
    pub fn clones_at_once(&self) -> usize {
        self.groups().iter().map(|group| clones(group)).max().unwrap_or(1)
    }

    pub fn depth(&self) -> u32 {
        self.jobs.iter().map(|job| job.iodepth).max().unwrap_or(1)
    }

    /// Jobs that run at the same time.
    pub fn groups(&self) -> Vec<&[Job]> {
        let mut groups: Vec<&[Job]> = Vec::new();
        let mut from = 0;
        for at in 1..=self.jobs.len() {
            if at == self.jobs.len() || self.jobs[at].wait_for_previous {
                groups.push(&self.jobs[from..at]);
                from = at;
            }
        }
        groups
    }

    /// Where a clone's operations come from, and how long it waits before the first; with a line about
    /// a recording's place on the device.
    pub fn source(
        &self,
        job: &Job,
        clone: u32,
        seed: u64,
        target: Target,
    ) -> Result<Prepared, WorkError> {
        let Some(trace) = &job.trace else {
            return match Ops::new(job, clone, seed, target) {
                Ok(ops) => Ok(Prepared {
                    start_delay: ops.start_delay(),
                    source: Source::Pattern(Box::new(ops)),
                    summary: None,
                }),
                Err(error) => fail(format!("{}: {}: {error}", self.file.display(), job.name)),
            };
        };
        let name = &trace.paths[clone as usize % trace.paths.len()];
        let path = self.file.parent().unwrap_or(Path::new(".")).join(name);
        let shown = path.display().to_string();
        let open = || -> Result<Reader<BufReader<File>>, WorkError> {
            match File::open(&path) {
                Ok(file) => Reader::new(&shown, BufReader::new(file)).or_else(fail),
                Err(error) => fail(format!("{shown}: cannot be read: {error}")),
            }
        };
        let mut first_pass = open()?;
        let extents = Extents::scan(&shown, first_pass.by_ref()).or_else(fail)?;
        let map = match Map::new(&extents, self.mapping, target) {
            Ok(map) => map,
            Err(error) => return fail(format!("{shown}: {error}")),
        };
        let backwards = first_pass.backwards();
        let summary = map.summary(&shown, first_pass.format(), backwards, &extents);
        let replay = Replay::new(&shown, open()?, map, trace);
        let delay = job.start_delay.0;
        let source = Source::Recorded(Box::new(replay));
        Ok(Prepared { source, start_delay: delay, summary: Some(summary) })
    }
}

/// The first bytes of a file, and how many it has: at least so many, where it does not say.
fn beginning(path: &Path, most: u64) -> Result<(String, u64), WorkError> {
    let unread = |error| WorkError(format!("{}: cannot be read: {error}", path.display()));
    let file = File::open(path).map_err(unread)?;
    let says = file.metadata().map_err(unread)?.len();
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(unread)?;
    let length = says.max(bytes.len() as u64);
    Ok((String::from_utf8_lossy(&bytes).into_owned(), length))
}

/// The whole of a recording.
fn recording(path: &Path) -> Result<String, WorkError> {
    let (text, length) = beginning(path, RECORDING_BYTES_MAX)?;
    if length > RECORDING_BYTES_MAX {
        let expected = format!("a recording of at most {RECORDING_BYTES_MAX}");
        return fail(format!("{}: found {length} bytes, expected {expected}", path.display()));
    }
    Ok(text)
}

/// A clone's operations, ready to be run.
pub struct Prepared {
    pub source: Source,
    /// How long the clone waits before the first.
    pub start_delay: runtime::Span,
    /// How a recording lies on the device.
    pub summary: Option<String>,
}

fn clones(group: &[Job]) -> usize {
    group.iter().map(|job| job.numjobs as usize).sum()
}

/// Whether any job of these verifies.
pub fn verifies(jobs: &[Job]) -> bool {
    jobs.iter().any(|job| job.verify.on)
}
