//! Errors, and the exceptions of `doorbell_ssd` that they become.

use campaign::sweep::SweepError;
use plan::{Place, PlanErrors};
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use report::RebuildError;
use world::RunError;
use world::work::WorkError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Plan(#[from] PlanErrors),
    #[error(transparent)]
    Work(#[from] WorkError),
    #[error(transparent)]
    Recording(#[from] RebuildError),
    #[error(transparent)]
    Run(RunError),
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// An argument, in words that name it.
    #[error("{0}")]
    Request(String),
    /// A thread panicked: a bug.
    #[error("the program failed: {0}")]
    Panicked(String),
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        match error {
            RunError::Plan(errors) => Failure::Plan(errors),
            RunError::Work(error) => Failure::Work(error),
            error => Failure::Run(error),
        }
    }
}

/// Key, found, expected and place of an error in a plan.
type Item = (String, String, String, String);

impl Failure {
    /// Name of the exception's class in `doorbell_ssd`.
    fn class(&self) -> &'static str {
        match self {
            Failure::Plan(_) => "PlanError",
            Failure::Work(_) | Failure::Recording(_) => "JobError",
            Failure::Run(_) | Failure::Panicked(_) => "RunError",
            Failure::Sweep(_) => "SweepError",
            Failure::Request(_) => "ArgumentError",
        }
    }

    /// The exception, or the reason why its class cannot be had.
    pub fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        let class =
            py.import("doorbell_ssd._errors").and_then(|errors| errors.getattr(self.class()));
        let made = class.and_then(|class| match &self {
            Failure::Plan(errors) => class.call1((text, items(errors))),
            _ => class.call1((text,)),
        });
        match made {
            Ok(exception) => PyErr::from_value(exception),
            Err(why) => PyImportError::new_err(format!("doorbell_ssd._errors: {why}: {self}")),
        }
    }
}

fn items(errors: &PlanErrors) -> Vec<Item> {
    let item = |error: &plan::PlanError| {
        let place = match &error.place {
            Place::Whole => errors.origin.clone(),
            Place::At { line, column } => format!("{}:{line}:{column}", errors.origin),
            Place::Base { origin, line, column } => format!("{origin}:{line}:{column}"),
            Place::Set(text) => format!("{}, --set {text}", errors.origin),
        };
        (error.key.clone(), error.found.clone(), error.expected.clone(), place)
    };
    errors.errors.iter().map(item).collect()
}
