//! From the model of a run back to what was run.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use plan::{Plan, PlanErrors};
use runtime::Span;
use sha2::{Digest, Sha256};
use workload::trace::Mapping;
use world::UnknownInterface;
use world::interfaces::{self, Row};
use world::work::{Work, WorkError};

use crate::model;

pub struct Rebuilt {
    pub plan: Plan,
    pub work: Work,
    pub interface: &'static Row,
    pub resets: u32,
    /// Interval of the time series, if the run had one.
    pub series: Option<Span>,
    /// Settings of the jobs from the command line, which the work has.
    pub settings: Vec<(String, String)>,
}

/// A run that cannot be repeated from its result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RebuildError {
    #[error("found a live run, expected a simulated one: live runs do not repeat")]
    Live,
    #[error("the plan in the result: {0}")]
    Plan(#[from] PlanErrors),
    #[error("the work in the result: {0}")]
    Work(#[from] WorkError),
    #[error(transparent)]
    Interface(#[from] UnknownInterface),
    #[error("{}: cannot be read: {why}", path.display())]
    Recording { path: PathBuf, why: io::Error },
    #[error(
        "{path}: found SHA-256 {found}, expected {expected}: another recording than that of the run"
    )]
    OtherRecording { path: String, found: String, expected: String },
}

/// The run to repeat.
///
/// # Errors
/// It was live, or its recording or interface is not there.
pub fn rebuild(run: &model::Run) -> Result<Rebuilt, RebuildError> {
    if run.world == model::World::Live {
        return Err(RebuildError::Live);
    }
    let sets: Vec<_> =
        run.plan.sets.iter().map(|set| (set.key.as_str(), set.value.as_str())).collect();
    let plan = Plan::parse_with(&run.plan.text, &run.plan.origin, &sets)?;
    for recorded in &run.work.recordings {
        let found = recording(Path::new(&recorded.path))?;
        if found.sha256 != recorded.sha256 {
            let (found, expected) = (found.sha256, recorded.sha256.clone());
            return Err(RebuildError::OtherRecording {
                path: recorded.path.clone(),
                found,
                expected,
            });
        }
    }
    let mapping = match run.work.mapping {
        model::Mapping::Concatenate => Mapping::Concatenate,
        model::Mapping::Modulo => Mapping::Modulo,
    };
    let pairs = |settings: &[model::Setting]| -> Vec<(String, String)> {
        settings.iter().map(|one| (one.key.clone(), one.value.clone())).collect()
    };
    let work = Work::resolved(Path::new(&run.work.file), &run.work.text, mapping)?;
    Ok(Rebuilt {
        plan,
        // Notes name lines of the file as it was, and the text has no variables left.
        work: Work {
            notes: run.work.notes.clone(),
            globals: pairs(&run.work.globals),
            variables: pairs(&run.work.variables),
            ..work
        },
        interface: interfaces::named(&run.interface)?,
        resets: run.resets.requested,
        series: run.series.as_ref().map(|series| Span(series.interval_ps)),
        settings: pairs(&run.work.settings),
    })
}

/// The recordings that a work replays, by their contents.
///
/// # Errors
/// One cannot be read.
pub fn recordings(work: &Work) -> Result<Vec<model::Recording>, RebuildError> {
    work.recordings().iter().map(|path| recording(path)).collect()
}

fn recording(path: &Path) -> Result<model::Recording, RebuildError> {
    let unread = |why: io::Error| RebuildError::Recording { path: path.to_owned(), why };
    let (sha256, bytes) = File::open(path).and_then(digest).map_err(unread)?;
    Ok(model::Recording { path: path.display().to_string(), bytes, sha256 })
}

/// SHA-256 of what can be read, and its length in bytes.
///
/// # Errors
/// That of a read.
pub fn digest(mut from: impl Read) -> io::Result<(String, u64)> {
    let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let count = from.read(&mut piece)?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
        hash.update(&piece[..count]);
    }
    Ok((hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(), bytes))
}
