//! Job files and recordings, and their operations for the engines.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use host::Geometry;
use workload::job::{self, IncludeError, Included, Job, JobErrors, JobFile, Outside};
use workload::limits::{JOB_FILE_BYTES_MAX, RECORDING_BYTES_MAX};
use workload::pattern::{Op, Ops, PatternError, Target};
use workload::trace::{Extents, Longest, Map, Mapping, Reader, Recorded, Replay, TraceError};

/// The work of a run: groups of jobs that run in sequence.
#[derive(Clone, Debug)]
pub struct Work {
    pub file: PathBuf,
    pub jobs: Vec<Job>,
    /// Notes on ignored options of the file.
    pub notes: Vec<String>,
    /// Mapping of recordings to the device's address range.
    pub mapping: Mapping,
    /// Results of the recorded live run, if the work is a replay of one.
    pub recorded: Option<Recorded>,
    /// The settings of the sections `[global]`.
    pub globals: Vec<(String, String)>,
    /// Environment variables that the job file uses, with their values.
    pub variables: Vec<(String, String)>,
    /// The job file with its includes, variables and settings resolved.
    pub text: String,
    /// First passes over the recordings so far.
    pub scans: Scans,
}

/// Results of first passes over recordings, by path and target.
#[derive(Clone, Debug, Default)]
pub struct Scans(Arc<Mutex<Vec<(PathBuf, Target, Scanned)>>>);

type Scanned = Arc<Scan>;

/// Result of a first pass over a recording.
#[derive(Debug)]
struct Scan {
    extents: Extents,
    format: &'static str,
    backwards: u64,
}

/// Error in a job file or recording. The text names the file, and the line if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// A file cannot be read.
    #[error("{}: cannot be read: {why}", path.display())]
    Io { path: PathBuf, why: io::Error },
    /// A file is too long for its kind.
    #[error("{}: found {bytes} bytes, expected a {kind} of at most {most}", path.display())]
    TooLong {
        path: PathBuf,
        /// Length of the file, or a lower bound.
        bytes: u64,
        /// `job file` or `recording`.
        kind: &'static str,
        /// Maximum length, bytes.
        most: u64,
    },
    /// The job file has errors.
    #[error(transparent)]
    Job(#[from] JobErrors),
    /// A line of a recording is invalid.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A job does not fit the device.
    #[error("{}: {job}: {why}", path.display())]
    Pattern { path: PathBuf, job: String, why: PatternError },
}

impl Work {
    /// Loads a job file, or a recording as a single job. A file with the suffix `.fio` or with a section is a
    /// job file.
    pub fn load(path: &Path, mapping: Mapping) -> Result<Work, WorkError> {
        Work::load_with(path, mapping, &[])
    }

    /// As [`Work::load`], with settings that override those of every job. Included files are sought in the
    /// directory of the file that includes them, then in the working directory, as in fio.
    pub fn load_with(
        path: &Path,
        mapping: Mapping,
        settings: &[(String, String)],
    ) -> Result<Work, WorkError> {
        let outside =
            Outside { settings, variable: &|name| std::env::var(name).ok(), include: &included };
        // A longer file is not a job file, and the type of other files shows in their first bytes.
        let (text, length) = beginning(path, JOB_FILE_BYTES_MAX as u64).map_err(unread(path))?;
        let is_job = path.extension().is_some_and(|ending| ending == "fio")
            || text.lines().any(|line| line.starts_with('['));
        if is_job {
            if length > JOB_FILE_BYTES_MAX as u64 {
                let most = JOB_FILE_BYTES_MAX as u64;
                let path = path.to_owned();
                return Err(WorkError::TooLong { path, bytes: length, kind: "job file", most });
            }
            return Work::parse_with(path, &text, mapping, &outside);
        }
        let text = match Recorded::begins(&text) {
            true => recording(path)?,
            false => text,
        };
        let name = path.file_stem().map_or("recording".into(), |stem| stem.to_string_lossy());
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let recorded = Recorded::of(&path.display().to_string(), &text)?;
        let depth = recorded.as_ref().map_or(64, |recorded| recorded.depth);
        let text = format!("[{name}]\nread_iolog={file}\niodepth={depth}\n");
        Ok(Work { recorded, ..Work::parse_with(path, &text, mapping, &outside)? })
    }

    /// Parses a job file.
    ///
    /// # Errors
    /// All errors in the file.
    pub fn parse(path: &Path, text: &str, mapping: Mapping) -> Result<Work, WorkError> {
        Work::parse_with(path, text, mapping, &Outside::none())
    }

    /// Parses the text of a job file as if `path` had it: with settings that override those of every job,
    /// included files and variables.
    ///
    /// # Errors
    /// All errors in the text.
    pub fn of_text(
        path: &Path,
        text: &str,
        mapping: Mapping,
        settings: &[(String, String)],
    ) -> Result<Work, WorkError> {
        let outside =
            Outside { settings, variable: &|name| std::env::var(name).ok(), include: &included };
        Work::parse_with(path, text, mapping, &outside)
    }

    /// The work of a resolved job file: the [`Work::text`] of a work that was loaded from `path`. It equals
    /// that work but for the notes, whose lines are those of the text, and the variables.
    ///
    /// # Errors
    /// All errors in the text, or that its recording is not the one of a live run that it begins as.
    pub fn resolved(path: &Path, text: &str, mapping: Mapping) -> Result<Work, WorkError> {
        let mut work = Work::parse(path, text, mapping)?;
        if work.recordings().iter().any(|recording| recording == path) {
            let (beginning, _) =
                beginning(path, JOB_FILE_BYTES_MAX as u64).map_err(unread(path))?;
            if Recorded::begins(&beginning) {
                work.recorded = Recorded::of(&path.display().to_string(), &recording(path)?)?;
            }
        }
        Ok(work)
    }

    /// Paths of the recordings that the jobs replay, each once.
    pub fn recordings(&self) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        for name in self.jobs.iter().filter_map(|job| job.trace.as_ref()).flat_map(|t| &t.paths) {
            let path = self.recording(name);
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        paths
    }

    /// Path of a recording that the job file names.
    fn recording(&self, name: &str) -> PathBuf {
        self.file.parent().unwrap_or(Path::new(".")).join(name)
    }

    fn parse_with(
        path: &Path,
        text: &str,
        mapping: Mapping,
        outside: &Outside<'_>,
    ) -> Result<Work, WorkError> {
        let JobFile { jobs, notes, globals, variables, text } =
            job::parse_with(&path.display().to_string(), text, outside)?;
        let notes = notes.iter().map(ToString::to_string).collect();
        let file = path.to_owned();
        let scans = Scans::default();
        Ok(Work { file, jobs, notes, mapping, recorded: None, globals, variables, text, scans })
    }

    /// Maximum number of concurrent clones.
    pub fn clones_at_once(&self) -> usize {
        self.groups().iter().map(|group| clones(group)).max().unwrap_or(1)
    }

    pub fn depth(&self) -> u32 {
        self.jobs.iter().map(|job| job.iodepth).max().unwrap_or(1)
    }

    /// The groups: jobs that run concurrently.
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

    /// The read or write of a job's recordings that takes the largest buffer, with its file. `None` if the
    /// job replays none, or they neither read nor write.
    pub fn longest(
        &self,
        job: &Job,
        target: Target,
    ) -> Result<Option<(PathBuf, Longest)>, WorkError> {
        let mut longest: Option<(PathBuf, Longest)> = None;
        for name in job.trace.iter().flat_map(|trace| &trace.paths) {
            let path = self.recording(name);
            let Some(found) = self.scan(&path, target)?.extents.longest else { continue };
            if longest.as_ref().is_none_or(|(_, before)| before.bytes < found.bytes) {
                longest = Some((path, found));
            }
        }
        Ok(longest)
    }

    /// Whether `iodepth` of the recording that is the work itself is this program's default.
    pub fn depth_is_default(&self) -> bool {
        let given = |job: &Job| job.options.iter().filter(|(key, _)| key == "iodepth").count() > 1;
        self.recorded.is_none()
            && self.recordings() == [self.file.as_path()]
            && !self.jobs.iter().any(given)
    }

    /// The first pass over a recording; each is read once.
    fn scan(&self, path: &Path, target: Target) -> Result<Arc<Scan>, WorkError> {
        let mut scans = self.scans.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., scan)) = scans.iter().find(|(at, of, _)| at == path && *of == target) {
            return Ok(scan.clone());
        }
        let mut reader = open(path)?;
        let extents = Extents::scan(&mut reader, target)?;
        let (format, backwards) = (reader.format(), reader.backwards());
        let scan = Arc::new(Scan { extents, format, backwards });
        scans.push((path.to_owned(), target, scan.clone()));
        Ok(scan)
    }

    /// Operations and start delay of a clone, with a line about the mapping of a recording.
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
                Err(why) => {
                    let (path, job) = (self.file.clone(), job.name.clone());
                    Err(WorkError::Pattern { path, job, why })
                }
            };
        };
        let path = self.recording(&trace.paths[clone as usize % trace.paths.len()]);
        let shown = path.display().to_string();
        let scan = self.scan(&path, target)?;
        let Scan { extents, format, backwards } = &*scan;
        let map = Map::new(extents, self.mapping, target).map_err(|wrong| TraceError {
            file: shown.clone(),
            line: extents.beyond_line(),
            wrong,
        })?;
        let summary = map.summary(&shown, format, *backwards, extents);
        let replay = Replay::new(&shown, open(&path)?, map, trace);
        let delay = job.start_delay.0;
        let until = job.runtime.map(|runtime| runtime + job.ramp_time);
        let most = usize::try_from(job.number_ios.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let is_due =
            move |op: &Op| op.not_before.is_none_or(|due| until.is_none_or(|end| due < end));
        let played = replay.take_while(move |op| op.as_ref().map_or(true, is_due)).take(most);
        let source = Source::Recorded(Box::new(played));
        Ok(Prepared { source, start_delay: delay, summary: Some(summary) })
    }
}

fn open(path: &Path) -> Result<Reader<BufReader<File>>, WorkError> {
    match File::open(path) {
        Ok(file) => Ok(Reader::new(&path.display().to_string(), BufReader::new(file))?),
        Err(why) => Err(WorkError::Io { path: path.to_owned(), why }),
    }
}

/// Reads up to `most` + 1 bytes of a file, and returns its length. The length is a lower bound if the file
/// system reports none.
fn beginning(path: &Path, most: u64) -> io::Result<(String, u64)> {
    let file = File::open(path)?;
    let reported = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    let length = reported.max(bytes.len() as u64);
    Ok((String::from_utf8_lossy(&bytes).into_owned(), length))
}

fn unread(path: &Path) -> impl Fn(io::Error) -> WorkError {
    move |why| WorkError::Io { path: path.to_owned(), why }
}

fn recording(path: &Path) -> Result<String, WorkError> {
    let (text, length) = beginning(path, RECORDING_BYTES_MAX).map_err(unread(path))?;
    if length > RECORDING_BYTES_MAX {
        let (path, most) = (path.to_owned(), RECORDING_BYTES_MAX);
        return Err(WorkError::TooLong { path, bytes: length, kind: "recording", most });
    }
    Ok(text)
}

/// The file of an `include` line in the file `from`.
fn included(from: &str, name: &str) -> Included {
    let beside = Path::new(from).parent().unwrap_or(Path::new("")).join(name);
    let path = if beside.exists() { beside } else { PathBuf::from(name) };
    let unread = |why: io::Error| IncludeError::Io { path: path.clone(), why: why.to_string() };
    let (text, length) = beginning(&path, JOB_FILE_BYTES_MAX as u64).map_err(unread)?;
    match length > JOB_FILE_BYTES_MAX as u64 {
        true => Err(IncludeError::TooLong { bytes: length }),
        false => Ok((path.display().to_string(), text)),
    }
}

/// The operations of a clone of a job.
pub enum Source {
    /// A pattern of a job file.
    Pattern(Box<Ops>),
    Recorded(Box<dyn Iterator<Item = Result<Op, TraceError>>>),
}

impl Source {
    /// The next operation. An invalid line of a recording is passed to `failed` and ends it.
    pub(crate) fn next(&mut self, failed: impl FnOnce(TraceError)) -> Option<Op> {
        match self {
            Source::Pattern(ops) => ops.next(),
            Source::Recorded(ops) => ops.next()?.map_err(failed).ok(),
        }
    }

    pub(crate) fn stop(&mut self) {
        match self {
            Source::Pattern(ops) => ops.stop(),
            Source::Recorded(ops) => *ops = Box::new(std::iter::empty()),
        }
    }
}

pub struct Prepared {
    pub source: Source,
    /// Delay before the first operation.
    pub start_delay: runtime::Span,
    /// Description of the mapping of a recording.
    pub summary: Option<String>,
}

/// Address range for patterns and recordings.
pub(crate) fn target(geometry: Geometry) -> Target {
    Target {
        capacity_bytes: geometry.blocks * u64::from(geometry.block_bytes),
        block_bytes: geometry.block_bytes,
    }
}

fn clones(group: &[Job]) -> usize {
    group.iter().map(|job| job.numjobs as usize).sum()
}

/// Whether any of these jobs has verification enabled.
pub fn verifies(jobs: &[Job]) -> bool {
    jobs.iter().any(|job| job.verify.on)
}
