//! Runs and sweeps for Python: the compiled part of the package `doorbell_ssd`.
//!
//! ```text
//!   Python: arguments ─► JSON ─► request ─► campaign::run, campaign::sweep ─► JSON ─► Python: results
//! ```
//!
//! Work runs on a thread of its own, without Python's lock; the calling thread handles signals and progress.
//! It knows no model and no statistics: what a result is, `report` says, as for the command line. Arrays,
//! frames and pictures are made in Python.

mod errors;
mod request;
mod sweep;
mod wait;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use world::engine::Progress;

use crate::errors::Failure;
use crate::request::{PlanRequest, RunRequest};
use crate::wait::wait;

/// Compiled part of `doorbell_ssd`.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::{check_plan, interfaces, plans, run, version};

    #[pymodule_export]
    use crate::sweep::{Results, Sweep};
}

/// Version of this program: "0.1.0".
#[pyfunction]
fn version() -> String {
    campaign::document::program().version
}

/// Names of the built-in plans.
#[pyfunction]
fn plans() -> Vec<&'static str> {
    plan::built_in().iter().map(|(name, _)| *name).collect()
}

/// Names of the registered interfaces, as `simulate` takes them.
#[pyfunction]
fn interfaces() -> Vec<&'static str> {
    world::interfaces::all().into_iter().map(|row| row.name).collect()
}

/// Opens a plan: from a request as JSON, the plan as JSON.
#[pyfunction]
fn check_plan(py: Python<'_>, request: &str) -> PyResult<String> {
    let plan = PlanRequest::parse(request).and_then(|request| request.open(None));
    let plan = plan.map_err(|failure| failure.raise(py))?;
    let json = serde_json::to_string(&report::plan_of(&plan));
    json.map_err(|error| Failure::Request(error.to_string()).raise(py))
}

/// Runs a request, given as JSON: the document as JSON. `progress` is called with the number of operations.
#[pyfunction]
fn run(py: Python<'_>, request: &str, progress: Option<Py<PyAny>>) -> PyResult<String> {
    let request = RunRequest::parse(request).map_err(|failure| failure.raise(py))?;
    let stop = Arc::<AtomicBool>::default();
    let counted = Arc::new(Progress::stopped_by(&stop));
    let of_run = counted.clone();
    let mut reported = None;
    let document = wait(
        py,
        &stop,
        move || request.run(of_run),
        |py| {
            let operations = counted.operations();
            if let Some(progress) = &progress
                && reported.replace(operations) != Some(operations)
            {
                progress.call1(py, (operations,))?;
            }
            Ok(())
        },
    )?;
    document.map_err(|failure| failure.raise(py))
}
