//! One point: its plan and its work, its run, and its line.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, PoisonError};

use media::contents::Backing;
use plan::Plan;
use report::model::{self, Command, Device, Document, Recording, SweepPoint, World};
use report::{RunContext, recordings};
use world::engine::Progress;
use world::interfaces::{Row, named};
use world::work::Work;
use world::{Options, RunError, RunResult, device};

use crate::document::document;

use super::axis::Axis;
use super::error::PointError;
use super::saved::Saved;
use super::spec::{Settings, Sweep};

/// Most works that are kept; those of drawn job keys are parsed again.
const WORKS_MAX: usize = 1024;

/// A point that can run.
pub(super) struct Case {
    pub plan: Plan,
    pub work: Arc<(Work, Vec<Recording>)>,
    pub row: &'static Row,
    pub settings: Settings,
}

impl Case {
    /// The row for the plan.
    pub fn row(&self) -> &'static Row {
        self.row.of_plan(&self.plan)
    }

    /// # Errors
    /// The interface does not support the plan.
    pub fn check(&self) -> Result<(), RunError> {
        device::check(self.row(), &self.plan)
    }
}

impl Sweep {
    /// The work of this file with these settings.
    pub(super) fn work(
        &self,
        file: &Path,
        jobs: &[(String, String)],
    ) -> Result<Arc<(Work, Vec<Recording>)>, PointError> {
        let key = (file.display().to_string(), jobs.to_vec());
        let works = || self.works.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = works().get(&key) {
            return Ok(known.clone());
        }
        let work = Work::load_with(file, self.mapping, jobs)?;
        let digests = recordings(&work)?;
        let entry = Arc::new((work, digests));
        let mut works = works();
        if works.len() < WORKS_MAX {
            works.insert(key, entry.clone());
        }
        Ok(entry)
    }

    /// # Errors
    /// The point cannot run.
    pub(super) fn case(&self, point: u64) -> Result<Case, PointError> {
        let settings = self.settings(&self.space.at(point));
        let sets = settings.plan_sets();
        let sets: Vec<_> = sets.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let (origin, text) = &self.plans[&settings.plan];
        let plan = Plan::parse_with(text, origin, &sets)?;
        let row = named(&settings.interface)?;
        let work = self.work(&settings.file, &settings.jobs)?;
        let origin = || plan.origin.clone();
        if plan.medium.contents.backing != Backing::Memory {
            return Err(PointError::File { origin: origin(), key: "medium.file" });
        }
        if let Some(state) = plan.medium.flash.as_ref().and_then(|flash| flash.state.as_ref())
            && !state.exists()
        {
            return Err(PointError::NoState { origin: origin(), path: state.clone() });
        }
        Ok(Case { plan, work, row, settings })
    }

    /// Runs a point. The line has the reason if it fails.
    pub(super) fn line(&self, point: u64, saved: &Saved) -> SweepPoint {
        let mut line = self.empty_line(point);
        let case = match self.case(point) {
            Ok(case) => case,
            Err(error) => {
                return SweepPoint { failed: Some(error.to_string()), ..line };
            }
        };
        line.plan.clone_from(&case.plan.name);
        line.interface = case.row.name.to_owned();
        line.file = case.work.0.file.display().to_string();
        line.seed = case.plan.run.seed;
        let checked = &self.checked[point as usize];
        if let Some(why) = &checked.left_out {
            return SweepPoint { left_out: Some(why.clone()), ..line };
        }
        // A failed assertion ends the point, not the sweep.
        let run = catch_unwind(AssertUnwindSafe(|| self.simulate(point, &case, saved)));
        let run = run.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(PointError::Panic(text.unwrap_or("without a message").to_owned()))
        });
        match run {
            Err(error) => SweepPoint { failed: Some(error.to_string()), ..line },
            Ok(run) => {
                line.result = Some(report::sweep::result_of(&run));
                line.document = self.header.full.then(|| Box::new(self.document(&case, run)));
                line
            }
        }
    }

    fn simulate(&self, point: u64, case: &Case, saved: &Saved) -> Result<model::Run, PointError> {
        let (row, plan, (work, recordings)) = (case.row(), &case.plan, &*case.work);
        let progress = Arc::new(Progress::stopped_by(&self.stop));
        let options = Options { progress, ..Options::default() };
        let run_result: RunResult = match self.checked[point as usize].state {
            None => world::simulate(row, plan, work, options)?,
            Some(state) => {
                let state = saved.take(state, plan).map_err(PointError::State)?;
                world::simulate_on(row, plan, work, options, state.into())?
            }
        };
        let context = RunContext {
            plan,
            work,
            settings: &case.settings.jobs,
            recordings,
            interface: case.row.name,
            world: World::Simulated,
            device: Device::Modelled,
            threads: 1,
            resets: 0,
            log: None,
            register_writes: 0,
        };
        let mut run = context.with(&run_result);
        if let (Some(flash), true) = (&mut run.flash, self.checked[point as usize].state.is_some())
        {
            // Shared with other points, so it depends on what runs beside this one.
            flash.memory_bytes = 0;
        }
        Ok(run)
    }

    /// The line of a point without its result.
    fn empty_line(&self, point: u64) -> SweepPoint {
        let at = self.space.at(point);
        let axes = || self.space.axes.iter().zip(&at);
        let value =
            |(axis, place): (&Axis, &usize)| (axis.name.clone(), axis.values[*place].text.clone());
        let number = |(axis, place): (&Axis, &usize)| {
            Some((axis.name.clone(), *axis.numbers.get(*place)? as f64))
        };
        SweepPoint {
            point,
            at: axes().map(value).collect(),
            number: axes().filter_map(number).collect(),
            plan: String::new(),
            interface: String::new(),
            file: String::new(),
            seed: 0,
            failed: None,
            left_out: None,
            result: None,
            document: None,
        }
    }

    /// The document that `doorbell run` would write, without the digest of an event log.
    fn document(&self, case: &Case, run: model::Run) -> Document {
        let settings = &case.settings;
        let mut arguments = vec![settings.file.display().to_string()];
        let mut add = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
        add("--plan", settings.plan.clone());
        add("--world", "sim".to_owned());
        add("--interface", case.row.name.to_owned());
        settings.seed.iter().for_each(|seed| add("--seed", seed.to_string()));
        settings.jobs.iter().for_each(|(key, value)| add("--job", format!("{key}={value}")));
        settings.sets.iter().for_each(|(key, value)| add("--set", format!("{key}={value}")));
        let command = Command { name: "run".to_owned(), arguments };
        Document { program: self.header.program.clone(), ..document(command, vec![run]) }
    }
}
