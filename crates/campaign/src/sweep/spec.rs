//! A sweep: its axes, its settings, its inputs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use plan::Plan;
use report::model::sweep::{SWEEP_SCHEMA, SWEEP_SCHEMA_VERSION};
use report::model::{Program, Recording, SweepAxis, SweepHeader};
use workload::trace::Mapping;
use world::work::Work;

use super::axis::{Axis, Target, Value};
use super::error::SweepError;
use super::file::{FileText, settings};
use super::space::Space;

/// A sweep whose points can all run.
pub struct Sweep {
    pub(super) path: PathBuf,
    pub(super) header: SweepHeader,
    pub(super) space: Space,
    fixed: Settings,
    pub(super) mapping: Mapping,
    pub(super) leave_out: bool,
    /// By name: origin and merged text.
    pub(super) plans: BTreeMap<String, (String, String)>,
    pub(super) works: Mutex<Works>,
    /// By point; of a part, those of other points are empty.
    pub(super) checked: Vec<Checked>,
    pub(super) stop: Arc<AtomicBool>,
}

/// Works by file and settings of their jobs, with the digests of their recordings.
pub(super) type Works = BTreeMap<(String, Vec<(String, String)>), Arc<(Work, Vec<Recording>)>>;

/// Findings on a point that can run.
#[derive(Clone, Debug, Default)]
pub(super) struct Checked {
    /// Number of its saved state.
    pub state: Option<usize>,
    /// Estimates of its memory, and of that of its state.
    pub bytes: u64,
    pub state_bytes: u64,
    /// The interface does not support the plan.
    pub left_out: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub plan: String,
    pub file: PathBuf,
    pub interface: String,
    pub seed: Option<u64>,
    pub sets: Vec<(String, String)>,
    pub jobs: Vec<(String, String)>,
}

impl Settings {
    /// The settings of the plan with the seed, in their order.
    pub fn plan_sets(&self) -> Vec<(String, String)> {
        let seed = self.seed.map(|seed| ("run.seed".to_owned(), seed.to_string()));
        self.sets.iter().cloned().chain(seed).collect()
    }
}

impl Sweep {
    /// Reads a sweep file and checks all of its points, on this number of threads. `full` asks for the whole
    /// document of each point.
    ///
    /// # Errors
    /// The file is wrong, or points cannot run.
    pub fn load(
        path: &Path,
        program: Program,
        full: bool,
        threads: usize,
    ) -> Result<Sweep, SweepError> {
        let unread = |why| SweepError::Io { path: path.to_owned(), attempt: "read", why };
        let text = fs::read_to_string(path).map_err(unread)?;
        Sweep::parse(path, &text, program, full, threads)
    }

    /// As [`Sweep::load`], from the text of a sweep file as if it were at `path`.
    ///
    /// # Errors
    /// The text is wrong, or points cannot run.
    pub fn parse(
        path: &Path,
        text: &str,
        program: Program,
        full: bool,
        threads: usize,
    ) -> Result<Sweep, SweepError> {
        let mut sweep = Sweep::unchecked(path, text, program, full)?;
        let points: Vec<u64> = (0..sweep.space.points).collect();
        sweep.checked = sweep.check(&points, threads)?;
        Ok(sweep)
    }

    /// As [`Sweep::parse`], to run these points alone: others are not checked.
    ///
    /// # Errors
    /// The text is wrong, these points cannot run, or the sweep has no such points.
    pub fn part(
        path: &Path,
        text: &str,
        program: Program,
        full: bool,
        points: &[u64],
    ) -> Result<Sweep, SweepError> {
        let mut sweep = Sweep::unchecked(path, text, program, full)?;
        let count = sweep.space.points;
        if let Some(point) = points.iter().find(|point| **point >= count) {
            let (path, expected) =
                (path.to_owned(), format!("less than {count}, the points of the sweep"));
            return Err(SweepError::Key {
                path,
                key: "points",
                found: point.to_string(),
                expected,
            });
        }
        let mut checked = vec![Checked::default(); count as usize];
        for (point, one) in points.iter().zip(sweep.check(points, 1)?) {
            checked[*point as usize] = one;
        }
        sweep.checked = checked;
        Ok(sweep)
    }

    fn unchecked(
        path: &Path,
        text: &str,
        program: Program,
        full: bool,
    ) -> Result<Sweep, SweepError> {
        let text = FileText::parse(path, text)?;
        let space = Space::new(path, &text)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let fixed = Settings {
            plan: plan_name(folder, text.plan.as_deref().unwrap_or("gen4")),
            file: text.file.as_deref().map(|file| beside(folder, file)).unwrap_or_default(),
            interface: text.interface.clone().unwrap_or_else(|| "nvme".to_owned()),
            seed: text.seed,
            sets: settings(&text.set),
            jobs: settings(&text.job),
        };
        let mut sweep = Sweep {
            path: path.to_owned(),
            header: header(&text, &space, program, full),
            fixed,
            mapping: if text.modulo { Mapping::Modulo } else { Mapping::Concatenate },
            leave_out: text.leave_out_unsupported,
            plans: BTreeMap::new(),
            works: Mutex::default(),
            checked: Vec::new(),
            stop: Arc::default(),
            space,
        };
        let typed = [&text.plan, &text.file].map(|name| name.clone().unwrap_or_default());
        sweep.read_inputs(&typed)?;
        Ok(sweep)
    }

    /// Once it is set, no further point begins, and those that run end without a result.
    pub fn stop_flag(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// The first line of its results.
    pub fn header(&self) -> &SweepHeader {
        &self.header
    }

    /// The largest estimate of the memory of a point, bytes, and of a saved state.
    pub fn memory_bytes(&self) -> (u64, u64) {
        let most = |of: fn(&Checked) -> u64| self.checked.iter().map(of).max().unwrap_or(0);
        (most(|one| one.bytes), most(|one| one.state_bytes))
    }

    /// Number of distinct saved states that points begin from.
    pub fn states(&self) -> usize {
        self.checked.iter().filter_map(|one| one.state).max().map_or(0, |most| most + 1)
    }

    /// The settings of a point.
    pub(super) fn settings(&self, at: &[usize]) -> Settings {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let mut settings = self.fixed.clone();
        for (axis, place) in self.space.axes.iter().zip(at) {
            for (target, value) in &axis.values[*place].settings {
                match target {
                    Target::Set(key) => settings.sets.push((key.clone(), value.clone())),
                    Target::Job(key) => settings.jobs.push((key.clone(), value.clone())),
                    Target::Interface => settings.interface.clone_from(value),
                    Target::Plan => settings.plan = plan_name(folder, value),
                    Target::File => settings.file = beside(folder, value),
                    // A seed that is no number is an error of the plan's key.
                    Target::Seed => match value.parse() {
                        Ok(seed) => settings.seed = Some(seed),
                        Err(_) => settings.sets.push(("run.seed".to_owned(), value.clone())),
                    },
                }
            }
        }
        settings
    }

    /// Values of the plans and the files of the sweep: the fixed one, and those of axes.
    fn values(&self, target: &Target, fixed: &str) -> Vec<String> {
        let values = self.space.axes.iter().flat_map(|axis| &axis.values);
        let of_target = values.flat_map(|value| &value.settings).filter(|(of, _)| of == target);
        let mut all: Vec<String> = of_target.map(|(_, value)| value.clone()).collect();
        // Some points have the fixed one, unless an axis sets it at each of its values.
        let sets = |value: &Value| value.settings.iter().any(|(of, _)| of == target);
        if !self.space.axes.iter().any(|axis| axis.values.iter().all(sets)) {
            all.push(fixed.to_owned());
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Opens the plans, and takes the digests of all inputs into the header.
    fn read_inputs(&mut self, [plan, file]: &[String; 2]) -> Result<(), SweepError> {
        let folder = self.path.parent().unwrap_or(Path::new("")).to_owned();
        let key = |key, found: String, expected: &str| {
            let (path, expected) = (self.path.clone(), expected.to_owned());
            SweepError::Key { path, key, found, expected }
        };
        let mut inputs = BTreeMap::new();
        for value in self.values(&Target::Plan, if plan.is_empty() { "gen4" } else { plan }) {
            let name = plan_name(&folder, &value);
            let plan = Plan::open(&name, &[]).map_err(|errors| {
                key("plan", format!("{value}: {errors}"), "a built-in plan or the path of a plan")
            })?;
            inputs.insert(format!("plan {value}"), report::sweep::sha256(&plan.text));
            self.plans.insert(name, (plan.origin, plan.text));
        }
        for value in self.values(&Target::File, file) {
            let file = beside(&folder, &value);
            if value.is_empty() {
                return Err(key(
                    "file",
                    "nothing".to_owned(),
                    "the path of a job file or recording",
                ));
            }
            let entry = self.work(&file, &self.fixed.jobs);
            let (work, recordings) = &*entry
                .map_err(|error| key("file", error.to_string(), "a job file or a recording"))?;
            inputs.insert(format!("file {value}"), report::sweep::sha256(&work.text));
            for recording in recordings {
                inputs.insert(format!("recording {}", recording.path), recording.sha256.clone());
            }
        }
        self.header.inputs = inputs;
        Ok(())
    }
}

fn header(text: &FileText, space: &Space, program: Program, full: bool) -> SweepHeader {
    let axis = |axis: &Axis| SweepAxis {
        name: axis.name.clone(),
        of: axis.of.clone(),
        unit: axis.unit.name().to_owned(),
        values: axis.values.iter().map(|value| value.text.clone()).collect(),
        numbers: axis.numbers.iter().map(|number| *number as f64).collect(),
    };
    let mut fixed = BTreeMap::new();
    for (word, table) in [("set", &text.set), ("job", &text.job)] {
        for (key, value) in settings(table) {
            fixed.insert(format!("{word} {key}"), value);
        }
    }
    let named = [("plan", &text.plan), ("file", &text.file), ("interface", &text.interface)];
    for (word, value) in named {
        fixed.extend(value.iter().map(|value| (word.to_owned(), value.clone())));
    }
    fixed.entry("plan".to_owned()).or_insert_with(|| "gen4".to_owned());
    fixed.extend(text.seed.map(|seed| ("seed".to_owned(), seed.to_string())));
    for (word, flag) in
        [("modulo", text.modulo), ("leave_out_unsupported", text.leave_out_unsupported)]
    {
        fixed.extend(flag.then(|| (word.to_owned(), "true".to_owned())));
    }
    // The settings of a case are part of what is swept.
    for (axis, of) in text.axis.iter().zip(&space.axes) {
        for (case, value) in axis.cases.iter().flatten().zip(&of.values) {
            let settings =
                value.settings.iter().map(|(target, value)| format!("{target:?} {value}"));
            let settings: Vec<String> = settings.collect();
            fixed.insert(format!("case {} of {}", case.name, of.name), settings.join("; "));
        }
    }
    SweepHeader {
        schema: SWEEP_SCHEMA.to_owned(),
        schema_version: SWEEP_SCHEMA_VERSION,
        program,
        about: text.about.clone(),
        method: text.method.name().to_owned(),
        draw_seed: text.method.is_drawn().then(|| text.draw_seed.unwrap_or(1)),
        points: space.points,
        axes: space.axes.iter().map(axis).collect(),
        fixed,
        inputs: BTreeMap::new(),
        full,
    }
}

/// The path of a file that the sweep file names: beside it, or else from the working directory.
fn beside(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    if path.exists() { path } else { PathBuf::from(name) }
}

/// A plan's name, or the path of its file.
fn plan_name(folder: &Path, name: &str) -> String {
    match name.contains(['/', '.']) {
        true => beside(folder, name).display().to_string(),
        false => name.to_owned(),
    }
}
