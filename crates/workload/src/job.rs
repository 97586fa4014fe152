//! fio job files.
//!
//! Two stages. `ini` splits the text into sections and settings, line by line. The table [`KEYS`]
//! then gives, for each key, its handling: supported, ignored (accepted without effect; a note gives
//! the reason) or rejected. The result is plain [`Job`]s with every default filled in and no text
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

mod beside_recording;
mod error;
mod ini;
mod keys;
mod set;
mod skew;
mod value;

use runtime::Span;

pub use error::{IncludeError, JobError, JobErrors, Note, ValueError, Wrong};
pub use keys::{KEYS, Key, Kind, Remark, find, help};
pub use skew::Skew;
pub use value::{Decimal, Value};

use crate::limits::NUMJOBS_MAX;
use ini::{Section, Setting};

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
    Skewed(Skew),
}

/// Expected lifetime of written data, compared with other data of the device (`write_hint=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    Short,
    Medium,
    Long,
    Extreme,
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
    /// Number of passes over `io_size`.
    pub loops: u32,
    /// Bytes from the end of a sequential operation to the next one.
    pub distance: i64,
    /// Number of clones of this job.
    pub numjobs: u32,
    pub runtime: Option<Span>,
    /// Start over at the end of the region, until `runtime`.
    pub time_based: bool,
    /// Warm-up before the measurement begins.
    pub ramp_time: Span,
    /// Shortest and longest delay before the start.
    pub start_delay: (Span, Span),
    /// Stop after this number of reads and writes, in all passes.
    pub number_ios: Option<u64>,
    /// Reads in a mixed job, in percent.
    pub read_percent: u8,
    /// The job's own seed, used instead of the run's.
    pub seed: Option<u64>,
    /// Draw random offsets independently, instead of each exactly once per pass.
    pub no_random_map: bool,
    pub distribution: PerDirection<Distribution>,
    /// Hint for the region, given to the device before the first operation.
    pub write_hint: Option<Lifetime>,
    /// Number of writes between flushes; 0: never.
    pub flush_every: u32,
    /// Flush at the end, if anything was written.
    pub end_flush: bool,
    /// Each write is on the medium when it completes (FUA).
    pub sync: bool,
    pub verify: Verify,
    /// Operations per second of an open loop; `None` for a closed loop.
    pub rate_iops: PerDirection<Option<u64>>,
    /// Bytes per second of an open loop.
    pub rate_bytes: PerDirection<Option<u64>>,
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
            loops: 1,
            distance: 0,
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
            write_hint: None,
            flush_every: 0,
            end_flush: false,
            sync: false,
            verify: Verify { on: false, read_back: true, fatal: false },
            rate_iops: PerDirection::all(None),
            rate_bytes: PerDirection::all(None),
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
        if self.write_hint.is_some() && self.trace.is_some() {
            let why = "found with read_iolog, which has no region: expected a pattern".to_owned();
            return Some((&["write_hint"], why));
        }
        let rates = self.rate_bytes.each().into_iter().zip(self.rate_iops.each());
        if rates.into_iter().any(|(bytes, ops)| bytes.is_some() && ops.is_some()) {
            let why = "found with rate_iops, expected one of them for a direction".to_owned();
            return Some((&["rate"], why));
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
    /// Environment variables that the file uses, with their values.
    pub variables: Vec<(String, String)>,
    /// The file with all that it takes from outside: parses to the same jobs.
    pub text: String,
}

/// Settings, variables and files from outside a job file.
pub struct Outside<'a> {
    /// Key and value of settings that come after those of every section.
    pub settings: &'a [(String, String)],
    /// The value of an environment variable, if it is set.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Opens the file of an `include` line: the name of the file that has the line, and the name in it.
    /// Returns the name for errors and the text.
    pub include: &'a dyn Fn(&str, &str) -> Included,
}

/// Name for errors and text of an included file, or why it cannot be read.
pub type Included = Result<(String, String), IncludeError>;

impl Outside<'_> {
    /// No settings, no variables, no files.
    pub fn none() -> Outside<'static> {
        let include: &'static dyn Fn(&str, &str) -> Included = &|_, _| Err(IncludeError::NotInFile);
        Outside { settings: &[], variable: &|_| None, include }
    }
}

/// Error for the first job that brings the clones of jobs running at the same time above [`NUMJOBS_MAX`].
fn too_many(sections: &[Section], jobs: &[Job]) -> Option<JobError> {
    let mut clones = 0;
    let global = |section: &&Section| section.name.eq_ignore_ascii_case("global");
    let own = sections.iter().filter(|section| !global(section));
    for (job, own) in jobs.iter().zip(own) {
        if job.wait_for_previous {
            clones = 0;
        }
        clones += u64::from(job.numjobs);
        if clones > NUMJOBS_MAX {
            let all = std::iter::once(own).chain(sections.iter().filter(global));
            let mut settings = all.flat_map(|section| &section.settings);
            let found = settings.find(|one| one.key == "numjobs");
            let (file, line) = found.map_or((&own.file, own.line), |one| (&one.file, one.line));
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
/// Every mistake in the file, each with its line and the expected form. Variables and included files have
/// no value here: see [`parse_with`].
pub fn parse(file: &str, text: &str) -> Result<JobFile, JobErrors> {
    parse_with(file, text, &Outside::none())
}

/// Reads a job file with settings, variables and included files from outside.
///
/// # Errors
/// As [`parse`].
pub fn parse_with(file: &str, text: &str, outside: &Outside<'_>) -> Result<JobFile, JobErrors> {
    let mut lexer = ini::Lexer::new(outside);
    lexer.read(file, text, 0);
    let ini::Lexer { mut sections, mut errors, variables, .. } = lexer;
    let added = outside.settings.iter().map(|(key, value)| Setting {
        file: format!("{key}={value}").into(),
        line: 0,
        key: key.clone(),
        value: Some(value.clone()),
    });
    let added: Vec<Setting> = added.collect();
    let mut result = JobFile { variables, ..JobFile::default() };
    let mut global_settings = Vec::new();
    for section in &mut sections {
        if section.name.eq_ignore_ascii_case("global") {
            global_settings.extend_from_slice(&section.settings);
            result.globals.extend(section.settings.iter().map(Setting::as_option));
            // Report a mistake in [global] once, at its own line, not once per job.
            set::apply(&mut Job::default(), &section.settings, &mut result.notes, &mut errors);
            continue;
        }
        section.settings.extend_from_slice(&added);
        let job = one_job(section, &global_settings, &mut result.notes, &mut errors);
        result.jobs.push(job);
    }
    result.text = sections.iter().map(Section::to_text).collect();
    if result.jobs.is_empty() && errors.is_empty() {
        errors.push(JobError::new(file, 1, Wrong::NoJob));
    }
    if errors.is_empty() {
        errors.extend(too_many(&sections, &result.jobs));
    }
    errors
        .sort_by(|a, b| (a.file != file, &a.file, a.line).cmp(&(b.file != file, &b.file, b.line)));
    if errors.is_empty() { Ok(result) } else { Err(JobErrors(errors)) }
}

/// The job of a section. Notes and errors that are there already are not repeated.
fn one_job(
    section: &Section,
    global_settings: &[Setting],
    notes: &mut Vec<Note>,
    errors: &mut Vec<JobError>,
) -> Job {
    let mut job = Job { name: section.name.clone(), line: section.line, ..Job::default() };
    let settings: Vec<_> = global_settings.iter().chain(&section.settings).cloned().collect();
    let (mut remarks, mut wrong) = (Vec::new(), Vec::new());
    set::apply(&mut job, &settings, &mut remarks, &mut wrong);
    job.number_ios = job.number_ios.map(|number| number.saturating_mul(job.loops.into()));
    if job.time_based && job.runtime.is_none() {
        // As in fio, which warns.
        job.time_based = false;
        let own = settings.iter().rev().find(|one| one.key == "time_based");
        remarks.extend(own.map(|own| Note {
            file: own.file.to_string(),
            line: own.line,
            key: own.key.clone(),
            why: "no runtime: the job ends after one pass".to_owned(),
        }));
    }
    beside_recording::note(&job, &settings, &mut remarks);
    let new = |note: &Note| !notes.contains(note);
    let remarks: Vec<_> = remarks.into_iter().filter(new).collect();
    notes.extend(remarks);
    job.options = section.settings.iter().map(Setting::as_option).collect();
    if let Some((keys, why)) = job.contradiction() {
        let is = |setting: &Setting| keys.iter().find(|key| **key == setting.key);
        let found =
            settings.iter().rev().find_map(|one| Some((*is(one)?, one.file.clone(), one.line)));
        let (key, file, line) = found.unwrap_or((keys[0], section.file.clone(), section.line));
        wrong.push(JobError::new(&file, line, Wrong::Contradiction { key, why }));
    }
    for error in wrong {
        if !errors.contains(&error) {
            errors.push(error);
        }
    }
    job
}
