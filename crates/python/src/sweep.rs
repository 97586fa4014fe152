//! Sweeps, and the file of their results.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

use campaign::document::program;
use campaign::sweep::{self, Effort, Found, Progress, SweepError, available_memory_bytes};
use pyo3::prelude::*;
use serde_json::json;

use crate::errors::Failure;
use crate::request::toml_of_json;
use crate::wait::wait;

/// A sweep whose points can run.
#[pyclass(frozen)]
pub(crate) struct Sweep(Arc<sweep::Sweep>);

/// Results of a sweep in their file, which is locked until they are closed.
#[pyclass(frozen)]
pub(crate) struct Results(Arc<Mutex<Option<sweep::Results>>>);

type Held = Arc<Mutex<Option<sweep::Results>>>;

fn locked(results: &Held) -> MutexGuard<'_, Option<sweep::Results>> {
    results.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does this with results that are not closed.
fn with<T>(
    results: &Held,
    act: impl FnOnce(&mut sweep::Results) -> Result<T, SweepError>,
) -> Result<T, Failure> {
    match &mut *locked(results) {
        Some(results) => Ok(act(results)?),
        None => Err(Failure::Request("results: found closed ones, expected open ones".to_owned())),
    }
}

fn effort(workers: Option<usize>, memory_bytes: Option<u64>) -> Effort {
    Effort {
        workers: workers.unwrap_or_else(cores),
        memory_bytes: memory_bytes.unwrap_or_else(available_memory_bytes),
    }
}

fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

#[pymethods]
impl Sweep {
    /// Of a text in TOML, or a table in JSON; files are sought beside `path`. Without `points` all points are
    /// checked, and can run.
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        text: String,
        is_json: bool,
        full: bool,
        points: Option<Vec<u64>>,
    ) -> PyResult<Sweep> {
        let load = move || {
            let text = if is_json { toml_of_json(&text)? } else { text };
            let sweep = match points {
                None => sweep::Sweep::parse(&path, &text, program(), full, cores()),
                Some(points) => sweep::Sweep::part(&path, &text, program(), full, &points),
            };
            Ok(sweep?)
        };
        let sweep: Result<_, Failure> = wait(py, &Arc::default(), load, |_| Ok(()))?;
        Ok(Sweep(Arc::new(sweep.map_err(|failure| failure.raise(py))?)))
    }

    /// The first line of the results.
    fn header(&self, py: Python<'_>) -> PyResult<String> {
        let json = serde_json::to_string(self.0.header());
        json.map_err(|error| Failure::Request(error.to_string()).raise(py))
    }

    /// Runs the points that the results lack. `progress` is called with the points that are done, all of
    /// them, and those that failed.
    fn run(
        &self,
        py: Python<'_>,
        results: &Results,
        workers: Option<usize>,
        memory_bytes: Option<u64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let (sweep, results) = (self.0.clone(), results.0.clone());
        self.watched(py, progress, move |report| {
            with(&results, |results| sweep.run(results, effort(workers, memory_bytes), report))
        })
    }

    /// Searches along an axis; the findings as JSON.
    fn find(
        &self,
        py: Python<'_>,
        results: &Results,
        text: &str,
        workers: Option<usize>,
        memory_bytes: Option<u64>,
    ) -> PyResult<String> {
        let find = self.0.find(text).map_err(|error| Failure::from(error).raise(py))?;
        let (sweep, results) = (self.0.clone(), results.0.clone());
        let found = self.watched(py, None, move |report| {
            let effort = effort(workers, memory_bytes);
            with(&results, |results| sweep.search(&find, results, effort, report))
        })?;
        let found = found.iter().map(json_of);
        Ok(serde_json::Value::Array(found.collect()).to_string())
    }

    /// The points that the results lack, in batches of at most `most` for other processes.
    fn batches(&self, py: Python<'_>, results: &Results, most: usize) -> PyResult<Vec<Vec<u64>>> {
        let batches = with(&results.0, |results| Ok(self.0.batches(results, most)));
        batches.map_err(|failure| failure.raise(py))
    }

    /// Runs these points: their lines.
    fn lines(
        &self,
        py: Python<'_>,
        points: Vec<u64>,
        workers: Option<usize>,
        memory_bytes: Option<u64>,
    ) -> PyResult<Vec<String>> {
        let sweep = self.0.clone();
        self.watched(py, None, move |_| Ok(sweep.lines(&points, effort(workers, memory_bytes))?))
    }
}

impl Sweep {
    fn watched<T: Send + 'static>(
        &self,
        py: Python<'_>,
        progress: Option<Py<PyAny>>,
        work: impl FnOnce(&mut (dyn FnMut(Progress) + Send)) -> Result<T, Failure> + Send + 'static,
    ) -> PyResult<T> {
        let latest = Arc::<Mutex<Option<Progress>>>::default();
        let written = latest.clone();
        let mut report = move |progress: Progress| {
            *written.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
        };
        let tick = |py: Python<'_>| {
            let now = latest.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let (Some(progress), Some(now)) = (&progress, now) {
                progress.call1(py, (now.done, now.of, now.failed))?;
            }
            Ok(())
        };
        let result = wait(py, self.0.stop_flag(), move || work(&mut report), tick)?;
        result.map_err(|failure| failure.raise(py))
    }
}

#[pymethods]
impl Results {
    /// Begins the results of a sweep in a file, or goes on with them.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, sweep: &Sweep, restart: bool) -> PyResult<Results> {
        let results = sweep::Results::open(Path::new(&path), sweep.0.header(), restart);
        let results = results.map_err(|error| Failure::from(error).raise(py))?;
        Ok(Results(Arc::new(Mutex::new(Some(results)))))
    }

    /// Adds a line that another process made.
    fn append(&self, py: Python<'_>, sweep: &Sweep, line: &str) -> PyResult<()> {
        let points = sweep.0.header().points;
        let done = with(&self.0, |results| results.append_line(line, points));
        done.map_err(|failure| failure.raise(py))
    }

    /// Number of points with results, and of those that failed.
    fn counts(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let counts = with(&self.0, |results| Ok(results.counts()));
        counts.map_err(|failure| failure.raise(py))
    }

    /// Puts the lines in the order of the points.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        with(&self.0, sweep::Results::finish).map_err(|failure| failure.raise(py))
    }

    /// Unlocks the file: any further call is an error.
    fn close(&self) {
        drop(locked(&self.0).take());
    }
}

fn json_of(found: &Found) -> serde_json::Value {
    let tried = found.tried.iter().map(|tried| {
        let (value, point) = (&tried.value, tried.point);
        json!({ "value": value, "point": point, "metrics": tried.metrics, "holds": tried.holds })
    });
    let at: serde_json::Map<_, _> =
        found.at.iter().map(|(axis, value)| (axis.clone(), value.clone().into())).collect();
    json!({
        "at": at,
        "value": found.value,
        "is_monotone": found.is_monotone,
        "tried": tried.collect::<Vec<_>>(),
    })
}
