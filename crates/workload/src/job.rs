//! fio job files.
//!
//! Two stages. `ini` splits the text into sections and settings, line by line. The table [`KEYS`]
//! then gives, for each key, its handling: supported, noted (accepted without effect; a note gives
//! the reason) or refused. The result is plain [`Job`]s with every default filled in and no text
//! left to interpret. An unknown key is an error, never ignored: a benchmark that silently drops a
//! setting measures something else.
//!
//! ```
//! let text = "[global]\nbs=4k\n[reader]\nrw=randread\niodepth=8\n";
//! let file = workload::job::parse("hello.fio", text).unwrap();
//! assert_eq!(file.jobs[0].iodepth, 8);
//!
//! let said = workload::job::parse("hello.fio", "[reader]\niodpeth=8\n").unwrap_err();
//! assert_eq!(
//!     said.to_string(),
//!     "hello.fio:2: unknown key \"iodpeth\": did you mean \"iodepth\"?"
//! );
//! ```

mod error;
mod ini;
mod keys;
mod set;
mod value;

use runtime::Span;

pub use error::{JobError, JobErrors, Note, Wrong};
pub use keys::{KEYS, Key, Kind, Remark, find, help};
pub use value::Value;

use crate::limits::{JOB_FILE_BYTES_MAX, NUMJOBS_MAX};

/// One value for reads, one for writes and one for trims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerDirection<T> {
    pub read: T,
    pub write: T,
    pub trim: T,
}

impl<T: Clone> PerDirection<T> {
    pub fn all(value: T) -> PerDirection<T> {
        PerDirection { read: value.clone(), write: value.clone(), trim: value }
    }
}

impl<T> PerDirection<T> {
    /// In the order of the fields.
    pub fn each(&self) -> [&T; 3] {
        [&self.read, &self.write, &self.trim]
    }
}

/// Kinds of operations that a job submits (`rw=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Reads only.
    #[default]
    Read,
    /// Writes only.
    Write,
    /// Reads and writes, `read_percent` of them reads.
    Mixed,
    /// Trims (deallocations) only.
    Trim,
    /// Trims, each followed by a write of the same blocks.
    TrimWrite,
}

/// A number of bytes, or a share of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Bytes(u64),
    /// From 1 to 100 percent of the capacity.
    Percent(u8),
}

/// Sizes of the operations, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockSizes {
    One(u32),
    /// Evenly from `min` to `max`, both included, in multiples of `min`.
    Range {
        min: u32,
        max: u32,
    },
    /// Each size with its weight in percent; the weights add to 100.
    Split(Vec<(u32, u8)>),
}

impl BlockSizes {
    /// The smallest size, in bytes.
    pub fn min(&self) -> u32 {
        match self {
            BlockSizes::One(size) => *size,
            BlockSizes::Range { min, .. } => *min,
            BlockSizes::Split(sizes) => sizes.iter().map(|&(size, _)| size).min().unwrap_or(0),
        }
    }

    /// The largest size, in bytes.
    pub fn max(&self) -> u32 {
        match self {
            BlockSizes::One(size) => *size,
            BlockSizes::Range { max, .. } => *max,
            BlockSizes::Split(sizes) => sizes.iter().map(|&(size, _)| size).max().unwrap_or(0),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    #[default]
    Uniform,
    /// Percent of the accesses and percent of the region; both columns add to 100.
    Zoned(Vec<(u8, u8)>),
    /// Percent of the accesses, which add to 100, and bytes of the region.
    ZonedBytes(Vec<(u8, u64)>),
}

/// Arrival process of a job with a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateProcess {
    #[default]
    Linear,
    /// Poisson process: exponentially distributed interarrival times.
    Poisson,
}

/// A recorded workload to replay instead of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSource {
    /// The files, in the order given; clone `k` replays file `k` modulo their number.
    pub paths: Vec<String>,
    /// Replay as fast as possible, in order.
    pub no_stall: bool,
    /// Speed in percent: 200 replays twice as fast.
    pub time_scale_percent: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verify {
    /// Writes carry stamps and reads are checked.
    pub on: bool,
    /// Read everything back after the writes. On unless `do_verify=0`.
    pub read_back: bool,
    /// Stop at the first mismatch.
    pub fatal: bool,
}

/// One section of a job file, with every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The section's name, or `name=`.
    pub name: String,
    pub description: String,
    /// The line of the section's header, from 1.
    pub line: u32,
    pub direction: Direction,
    /// Random offsets instead of sequential ones.
    pub random: bool,
    pub block_size: PerDirection<BlockSizes>,
    /// Alignment of random offsets, in bytes; `None`: the smallest block size.
    pub block_align: PerDirection<Option<u32>>,
    /// Length of the region. `None`: everything from `offset` on.
    pub size: Option<Amount>,
    /// Amount of data to move. `None`: the region's length.
    pub io_size: Option<Amount>,
    pub offset: Amount,
    /// Distance between the regions of successive clones.
    pub offset_increment: Amount,
    pub iodepth: u32,
    /// Operations submitted at once; after [`parse`] from 1 to `iodepth`.
    pub iodepth_batch: u32,
    /// Number of clones of this job.
    pub numjobs: u32,
    pub runtime: Option<Span>,
    /// Start over at the end of the region, until `runtime`.
    pub time_based: bool,
    /// Warm-up before the measurement begins.
    pub ramp_time: Span,
    /// Shortest and longest delay before the start.
    pub start_delay: (Span, Span),
    /// Stop after this number of reads and writes.
    pub number_ios: Option<u64>,
    /// Reads in a mixed job, in percent.
    pub read_percent: u8,
    /// The job's own seed, used instead of the run's.
    pub seed: Option<u64>,
    /// Draw random offsets independently, instead of each exactly once per pass.
    pub no_random_map: bool,
    pub distribution: PerDirection<Distribution>,
    /// Number of writes between flushes; 0: never.
    pub flush_every: u32,
    /// Flush at the end, if anything was written.
    pub end_flush: bool,
    pub verify: Verify,
    /// Operations per second of an open loop; `None` for a closed loop.
    pub rate_iops: PerDirection<Option<u64>>,
    pub rate_process: RateProcess,
    /// Pause after every `thinktime_blocks` completions.
    pub thinktime: Span,
    pub thinktime_blocks: u32,
    /// Start when every preceding job has ended; also begins a new group.
    pub wait_for_previous: bool,
    /// Begin a new reporting group.
    pub new_group: bool,
    /// Trace to replay instead of a pattern.
    pub trace: Option<TraceSource>,
    /// Report all clones as one.
    pub group_reporting: bool,
    /// The section's own settings as written in the file, for the report.
    pub options: Vec<(String, String)>,
}

impl Default for Job {
    fn default() -> Job {
        Job {
            name: String::new(),
            description: String::new(),
            line: 0,
            direction: Direction::Read,
            random: false,
            block_size: PerDirection::all(BlockSizes::One(4096)),
            block_align: PerDirection::all(None),
            size: None,
            io_size: None,
            offset: Amount::Bytes(0),
            offset_increment: Amount::Bytes(0),
            iodepth: 1,
            iodepth_batch: 1,
            numjobs: 1,
            runtime: None,
            time_based: false,
            ramp_time: Span::ZERO,
            start_delay: (Span::ZERO, Span::ZERO),
            number_ios: None,
            read_percent: 50,
            seed: None,
            no_random_map: false,
            distribution: PerDirection::all(Distribution::Uniform),
            flush_every: 0,
            end_flush: false,
            verify: Verify { on: false, read_back: true, fatal: false },
            rate_iops: PerDirection::all(None),
            rate_process: RateProcess::Linear,
            thinktime: Span::ZERO,
            thinktime_blocks: 1,
            wait_for_previous: false,
            new_group: false,
            trace: None,
            group_reporting: false,
            options: Vec::new(),
        }
    }
}

impl Job {
    /// Maximum number of bytes that one operation of the pattern transfers.
    pub fn data_bytes_max(&self) -> u32 {
        let sizes = &self.block_size;
        match self.direction {
            Direction::Read => sizes.read.max(),
            Direction::Write => sizes.write.max(),
            Direction::Mixed => sizes.read.max().max(sizes.write.max()),
            Direction::Trim => 0,
            Direction::TrimWrite => sizes.trim.max(),
        }
    }

    /// Contradictory settings, if any: their keys, and the reason.
    fn contradiction(&self) -> Option<(&'static [&'static str], String)> {
        if self.time_based && self.runtime.is_none() {
            return Some((&["time_based"], "needs runtime=, which says when to stop".to_owned()));
        }
        if let Some(trace) = &self.trace
            && trace.paths.is_empty()
        {
            let keys = &["replay_no_stall", "replay_time_scale"];
            return Some((keys, "needs read_iolog=, which says what to play".into()));
        }
        None
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFile {
    /// The sections, in order, without `[global]`.
    pub jobs: Vec<Job>,
    /// Settings accepted without effect, with the reason.
    pub notes: Vec<Note>,
    /// The settings of `[global]` as written in the file, for the report.
    pub globals: Vec<(String, String)>,
}

/// Error for the first job that brings the clones of jobs running at the same time above [`NUMJOBS_MAX`].
fn too_many(file: &str, sections: &[ini::Section<'_>], jobs: &[Job]) -> Option<JobError> {
    let mut clones = 0;
    for job in jobs {
        if job.wait_for_previous {
            clones = 0;
        }
        clones += u64::from(job.numjobs);
        if clones > NUMJOBS_MAX {
            let global = |section: &&ini::Section<'_>| section.name.eq_ignore_ascii_case("global");
            let own = sections.iter().filter(|section| section.line == job.line);
            let mut settings =
                own.chain(sections.iter().filter(global)).flat_map(|section| &section.settings);
            let line = settings.find(|one| one.key == "numjobs").map_or(job.line, |one| one.line);
            let why = format!(
                "the jobs that run at the same time, up to [{}], make {clones} clones; expected at most \
                 {NUMJOBS_MAX}: fewer of them, or stonewall between the jobs",
                job.name
            );
            return Some(JobError::new(file, line, Wrong::Contradiction { key: "numjobs", why }));
        }
    }
    None
}

/// Reads a job file. `file` is the name that errors and notes show.
///
/// # Errors
/// Every mistake in the file, each with its line and the expected form.
pub fn parse(file: &str, text: &str) -> Result<JobFile, JobErrors> {
    let mut errors = Vec::new();
    let mut result = JobFile::default();
    if text.len() > JOB_FILE_BYTES_MAX {
        errors.push(JobError::new(file, 1, Wrong::FileTooLong { bytes: text.len() }));
        return Err(JobErrors(errors));
    }
    let sections = ini::sections(file, text, &mut errors);
    let mut global_settings = Vec::new();
    for section in &sections {
        if section.name.eq_ignore_ascii_case("global") {
            global_settings.extend_from_slice(&section.settings);
            result.globals.extend(section.settings.iter().map(ini::Setting::as_option));
            // Report a mistake in [global] once, at its own line, not once per job.
            let mut scratch = Job::default();
            set::apply(file, &mut scratch, &section.settings, &mut result.notes, &mut errors);
            continue;
        }
        let mut job = Job { name: section.name.to_owned(), line: section.line, ..Job::default() };
        let settings: Vec<_> = global_settings.iter().chain(&section.settings).copied().collect();
        let (mut said, mut wrong) = (Vec::new(), Vec::new());
        set::apply(file, &mut job, &settings, &mut said, &mut wrong);
        for note in said {
            if !result.notes.contains(&note) {
                result.notes.push(note);
            }
        }
        for error in wrong {
            if !errors.contains(&error) {
                errors.push(error);
            }
        }
        // As in fio: 0, or more than `iodepth`, means `iodepth`.
        if job.iodepth_batch == 0 || job.iodepth_batch > job.iodepth {
            job.iodepth_batch = job.iodepth;
        }
        job.options = section.settings.iter().map(ini::Setting::as_option).collect();
        if let Some((keys, why)) = job.contradiction() {
            let is = |setting: &ini::Setting<'_>| keys.iter().find(|key| **key == setting.key);
            let found = settings.iter().rev().find_map(|one| Some((*is(one)?, one.line)));
            let (key, line) = found.unwrap_or((keys[0], job.line));
            errors.push(JobError::new(file, line, Wrong::Contradiction { key, why }));
        }
        result.jobs.push(job);
    }
    if result.jobs.is_empty() && errors.is_empty() {
        errors.push(JobError::new(file, 1, Wrong::NoJob));
    }
    if errors.is_empty() {
        errors.extend(too_many(file, &sections, &result.jobs));
    }
    errors.sort_by_key(|error| error.line);
    if errors.is_empty() { Ok(result) } else { Err(JobErrors(errors)) }
}
