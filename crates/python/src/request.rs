//! Requests of Python, as JSON, and what they ask for.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use campaign::document::of_runs;
use campaign::event_log::Digest;
use campaign::run::{Device, RunSpec};
use campaign::sweep::settings;
use plan::Plan;
use plan::units::parse_span;
use report::model::Command;
use runtime::Span;
use serde::Deserialize;
use workload::trace::Mapping;
use world::engine::Progress;
use world::interfaces::{NVME, Row, named};
use world::work::Work;

use crate::errors::Failure;

/// A plan by name, path or text, with settings.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanRequest {
    /// Built-in name or path; of a text, its name in errors.
    name: String,
    text: Option<String>,
    #[serde(default)]
    set: toml::Table,
}

/// A run in one world.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunRequest {
    plan: PlanRequest,
    seed: Option<u64>,
    /// Path of a job file or recording; of a text, its name in errors.
    file: PathBuf,
    text: Option<String>,
    #[serde(default)]
    job_set: toml::Table,
    #[serde(default)]
    modulo: bool,
    interface: String,
    simulated: bool,
    #[serde(default)]
    resets: u32,
    series: Option<String>,
    #[serde(default = "one")]
    threads: u32,
    socket: Option<PathBuf>,
    vfio_user: Option<PathBuf>,
}

fn one() -> u32 {
    1
}

/// Parses a request. Python has checked the types, so what is wrong is a value within a table.
fn parsed<'t, T: Deserialize<'t>>(text: &'t str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::Request(error.to_string()))
}

impl PlanRequest {
    pub fn parse(text: &str) -> Result<PlanRequest, Failure> {
        parsed(text)
    }

    /// # Errors
    /// All errors in the plan.
    pub fn open(&self, seed: Option<u64>) -> Result<Plan, Failure> {
        let seed = seed.map(|seed| ("run.seed".to_owned(), seed.to_string()));
        let sets: Vec<_> = settings(&self.set).into_iter().chain(seed).collect();
        let sets: Vec<_> = sets.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        Ok(match &self.text {
            Some(text) => Plan::parse_with(text, &self.name, &sets)?,
            None => Plan::open(&self.name, &sets)?,
        })
    }
}

/// A table as TOML, from JSON.
pub(crate) fn toml_of_json(json: &str) -> Result<String, Failure> {
    let table: toml::Table = parsed(json)?;
    toml::to_string(&table).map_err(|error| Failure::Request(error.to_string()))
}

impl RunRequest {
    pub fn parse(text: &str) -> Result<RunRequest, Failure> {
        parsed(text)
    }

    /// Runs, and gives the document as JSON.
    pub fn run(&self, progress: Arc<Progress>) -> Result<String, Failure> {
        let plan = self.plan.open(self.seed)?;
        let settings = settings(&self.job_set);
        let work = self.work(&settings)?;
        let interface =
            named(&self.interface).map_err(|error| Failure::Request(error.to_string()))?;
        let recordings = report::recordings(&work)?;
        self.check_threads(&plan, interface)?;
        let spec = RunSpec {
            plan: &plan,
            work: &work,
            settings: &settings,
            interface,
            simulated: self.simulated,
            device: self.device(),
            resets: self.resets,
            threads: self.threads,
            device_threads: 1,
            series: self.interval()?,
            timeline: None,
            run_recorder: None,
            register_writes: Rc::default(),
            progress,
        };
        // As `doorbell run --json`, so that a replay can be compared.
        let log = self.simulated.then(Digest::default);
        let run_result = spec.run(log.as_ref())?;
        let log = log.map(|log| log.finish()).transpose();
        let log = log.map_err(|error| Failure::Request(error.to_string()))?;
        let run = spec.model(&run_result, &recordings, log);
        Ok(report::to_json(&of_runs(self.command(&settings), vec![run])))
    }

    fn work(&self, settings: &[(String, String)]) -> Result<Work, Failure> {
        let mapping = if self.modulo { Mapping::Modulo } else { Mapping::Concatenate };
        Ok(match &self.text {
            Some(text) => Work::of_text(&self.file, text, mapping, settings)?,
            None => Work::load_with(&self.file, mapping, settings)?,
        })
    }

    fn device(&self) -> Device<'_> {
        match (&self.socket, &self.vfio_user) {
            (Some(socket), _) => Device::Shared(socket),
            (None, Some(socket)) => Device::VfioUser(socket),
            (None, None) => Device::Thread,
        }
    }

    fn interval(&self) -> Result<Option<Span>, Failure> {
        let Some(text) = &self.series else { return Ok(None) };
        match parse_span(text) {
            Ok(span) if span > Span::ZERO => Ok(Some(span)),
            _ => {
                let expected = "expected a time: \"10 ms\"";
                Err(Failure::Request(format!("series: found {text:?}, {expected}")))
            }
        }
    }

    /// Rejects threads that would have no queue of their own.
    fn check_threads(&self, plan: &Plan, interface: &Row) -> Result<(), Failure> {
        let found = match self.threads {
            1 => return Ok(()),
            0 | 65.. => "another number",
            _ if interface.name != NVME.name => "another interface than nvme",
            _ if plan.array.is_some() => "an array",
            _ if self.series.is_some() => "a time series",
            _ => return Ok(()),
        };
        let expected = "1 to 64, and more than 1 with interface nvme, one device and no series";
        Err(Failure::Request(format!(
            "threads {}: found {found}, expected {expected}",
            self.threads
        )))
    }

    /// The command that does the same, but for texts and tables, which have no file.
    fn command(&self, jobs: &[(String, String)]) -> Command {
        let mut arguments = vec![self.file.display().to_string()];
        let mut add = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
        add("--plan", self.plan.name.clone());
        add("--world", if self.simulated { "sim" } else { "live" }.to_owned());
        add("--interface", self.interface.clone());
        self.seed.iter().for_each(|seed| add("--seed", seed.to_string()));
        jobs.iter().for_each(|(key, value)| add("--job", format!("{key}={value}")));
        let sets = settings(&self.plan.set);
        sets.iter().for_each(|(key, value)| add("--set", format!("{key}={value}")));
        if self.resets > 0 {
            add("--resets", self.resets.to_string());
        }
        if self.threads > 1 {
            add("--threads", self.threads.to_string());
        }
        Command { name: "run".to_owned(), arguments }
    }
}
