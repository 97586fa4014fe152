//! Measurements of a plan in virtual time.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use bus::sim::SimHost;
use host::BlockDevice;
use runtime::{Log, Span};
use wire::Lba;
use workload::pattern::OpKind;
use workload::trace::Mapping;

use super::ExhibitError;
use super::changes::{Change, Changes, Runs};
use plan::Plan;
use world::interfaces::{DCX, DcxDriver, Row};
use world::work::Work;
use world::{self, Busy, Options};

/// A plan with overridden values.
#[derive(Clone)]
pub(super) struct Machine {
    plan: &'static str,
    sets: Vec<(String, String)>,
    changes: Arc<Changes>,
    runs: Arc<Runs>,
}

impl Machine {
    pub fn new(plan: &'static str, changes: Arc<Changes>, runs: Arc<Runs>) -> Machine {
        Machine { plan, sets: Vec::new(), changes, runs }
    }

    /// The caller's keys that this plan can have.
    fn given(&self) -> impl Iterator<Item = (&str, &str)> {
        let sets = &self.changes.sets;
        let has_flash = !sets.is_empty()
            && Plan::open(self.plan, &[]).is_ok_and(|plan| plan.medium.flash.is_some());
        let fits = move |key: &str| has_flash || !key.starts_with("medium.flash.");
        sets.iter().map(|(key, value)| (&key[..], &value[..])).filter(move |(key, _)| fits(key))
    }

    /// The same with one more override.
    pub fn with(&self, key: &str, value: &str) -> Machine {
        let mut machine = self.clone();
        machine.sets.push((key.to_owned(), value.to_owned()));
        machine
    }

    /// All overrides in their order: later ones prevail.
    fn settings(&self) -> Vec<(&str, &str)> {
        let mut settings: Vec<_> = self.given().collect();
        for change in &self.changes.all {
            if let Change::Plan(plan, key, value) = change
                && plan.is_none_or(|plan| plan == self.plan)
            {
                settings.push((*key, *value));
            }
        }
        let costs = self.changes.costs.iter().filter(|(plan, ..)| *plan == self.plan);
        settings.extend(costs.map(|(_, key, value)| (&key[..], &value[..])));
        for (key, value) in &self.sets {
            let instead = self.changes.all.iter().find_map(|change| match change {
                Change::Instead(k, from, to) if k == key && from == value => Some(*to),
                _ => None,
            });
            settings.push((key, instead.unwrap_or(value)));
        }
        for change in &self.changes.all {
            if let Change::Always(key, value) = change {
                settings.push((key, value));
            }
        }
        settings
    }

    pub fn open(&self) -> Result<Plan, ExhibitError> {
        let plan = Plan::open(self.plan, &self.settings())?;
        // Only a plan of a drive may have fitted values.
        match plan.drive {
            Some(_) => Err(ExhibitError::Fitted { plan: self.plan }),
            None => Ok(plan),
        }
    }

    pub fn is_of(&self, plan: &str) -> bool {
        self.plan == plan
    }

    pub fn is_switched(&self, name: &str) -> bool {
        self.changes.is_switched(name)
    }

    /// The result of this machine under a load, which `load` names.
    pub fn once<T: Clone + Send + 'static>(
        &self,
        load: impl Display,
        make: impl FnOnce(&Machine) -> Result<T, ExhibitError>,
    ) -> Result<T, ExhibitError> {
        let switches: Vec<_> = self.changes.switches().collect();
        let run = format!("{} {:?} {switches:?} {load}", self.plan, self.settings());
        self.runs.get(run, || make(self))
    }
}

/// Mean results of operations of one kind.
#[derive(Clone)]
pub(super) struct Reads {
    /// Total latency, us.
    pub total_us: f64,
    /// Latency by stage, us.
    pub parts: Vec<(&'static str, f64)>,
    pub busy: Busy,
    pub count: u64,
}

impl Reads {
    /// Latency of a stage, us.
    pub fn part(&self, name: &str) -> f64 {
        self.parts.iter().find(|(stage, _)| *stage == name).map_or(0.0, |(_, us)| *us)
    }

    /// TLPs per read, upstream and downstream, including bring-up, which is negligible over the number of
    /// reads.
    pub fn tlps(&self) -> (f64, f64) {
        let (up, down) = (self.busy.packets.0.tlps(), self.busy.packets.1.tlps());
        (up as f64 / self.count as f64, down as f64 / self.count as f64)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrivals {
    /// Each at the end of the previous one.
    Loop,
    /// Random, with this average rate per second.
    Random(u32),
}

/// Random reads of `bytes` bytes at depth 1. In virtual time a thousand are as good as a million.
pub(super) fn reads(
    row: &'static Row,
    machine: &Machine,
    bytes: u32,
    arrivals: Arrivals,
) -> Result<Reads, ExhibitError> {
    let when = match arrivals {
        Arrivals::Loop => "number_ios=1000".to_owned(),
        // A polling device is never idle: the simulation cost is by time, not by reads.
        Arrivals::Random(rate) => {
            let count = (rate / 10).clamp(20, 1000);
            format!("number_ios={count}\nrate_iops={rate}\nrate_process=poisson")
        }
    };
    let job = format!("[reads]\nrw=randread\nbs={bytes}\n{when}\n");
    run(row, machine, &job, OpKind::Read)
}

/// Random reads of `bytes` bytes at this queue depth: operations per second.
pub(super) fn rate_at(
    row: &'static Row,
    machine: &Machine,
    bytes: u32,
    depth: u32,
) -> Result<f64, ExhibitError> {
    let job =
        format!("[reads]\nrw=randread\nbs={bytes}\niodepth={depth}\nsize=16m\nnumber_ios=1000\n");
    machine.once(format!("rate {} {job}", row.name), |machine| {
        let work = Work::parse(Path::new("papers"), &job, Mapping::default())?;
        let mut run_result = world::simulate(row, &machine.open()?, &work, Options::default())?;
        let job_result = run_result.jobs.remove(0).1;
        if job_result.errors() > 0 {
            return Err(ExhibitError::Job(job_result.messages));
        }
        Ok(job_result.stats.of(OpKind::Read).iops(job_result.measured))
    })
}

/// Random writes of `bytes` bytes at depth 1.
pub(super) fn writes(
    row: &'static Row,
    machine: &Machine,
    bytes: u32,
) -> Result<Reads, ExhibitError> {
    let job = format!("[writes]\nrw=randwrite\nbs={bytes}\nnumber_ios=300\n");
    run(row, machine, &job, OpKind::Write)
}

fn run(
    row: &'static Row,
    machine: &Machine,
    job: &str,
    kind: OpKind,
) -> Result<Reads, ExhibitError> {
    let job = format!("{job}iodepth=1\nsize=16m\n");
    machine.once(format!("{} {job}", row.name), |machine| run_once(row, machine, &job, kind))
}

fn run_once(
    row: &'static Row,
    machine: &Machine,
    job: &str,
    kind: OpKind,
) -> Result<Reads, ExhibitError> {
    let plan = machine.open()?;
    let work = Work::parse(Path::new("papers"), job, Mapping::default())?;
    let mut run_result = world::simulate(row, &plan, &work, Options::default())?;
    let job_result = run_result.jobs.remove(0).1;
    if job_result.errors() > 0 {
        return Err(ExhibitError::Job(job_result.messages));
    }
    let mean = job_result.stats.breakdowns[&kind].mean();
    let us = |ps: f64| ps / 1e6;
    Ok(Reads {
        total_us: us(mean.total_ps),
        parts: row.stages.iter().copied().zip(mean.stages_ps.iter().map(|ps| us(*ps))).collect(),
        busy: run_result.busy.expect("a simulated world"),
        count: mean.count,
    })
}

/// Mean latency of DC Express reads of the first `bytes` bytes of a block, in a tight loop, us.
pub(super) fn small_reads(machine: &Machine, bytes: u32) -> Result<f64, ExhibitError> {
    machine.once(format!("head {bytes}"), |machine| small_reads_once(machine, bytes))
}

fn small_reads_once(machine: &Machine, bytes: u32) -> Result<f64, ExhibitError> {
    const WARM: u64 = 200;
    const COUNT: u64 = 1000;
    let plan = machine.open()?;
    let span = world::in_virtual_time(DCX, &plan, Log::Off, 1, async |rt, _, driver| {
        let dcx = driver.typed::<DcxDriver<SimHost>>();
        let mut buffer = driver.disk(0).buffer(bytes as usize)?;
        let mut begun = rt.now();
        for read in 0..WARM + COUNT {
            if read == WARM {
                begun = rt.now();
            }
            let (back, done) = dcx.read_head(Lba(read * 7919 % 4096), buffer).await;
            done?;
            buffer = back;
        }
        Ok::<Span, ExhibitError>(rt.now().since(begun))
    })??;
    Ok(span.as_us_f64() / COUNT as f64)
}

/// Reads whose packets overtake one another.
#[derive(Clone)]
pub(super) struct Overtaken {
    pub reads: u64,
    /// Reads that ended with other data than those written.
    pub stale: u64,
}

/// DC Express reads of 4 KiB, compared with the data written, where the root complex delays one packet in
/// eight.
pub(super) fn overtaken(machine: &Machine) -> Result<Overtaken, ExhibitError> {
    let delayed = machine
        .with("link.relaxed_ordering", "true")
        .with("link.held_up", "{ one_in = 8, span = \"2 us\" }");
    delayed.once("overtaken", overtaken_once)
}

fn overtaken_once(machine: &Machine) -> Result<Overtaken, ExhibitError> {
    const BYTES: usize = 4096;
    const PLACES: u64 = 61;
    const COUNT: u64 = 1000;
    let plan = machine.open()?;
    world::in_virtual_time(DCX, &plan, Log::Off, 1, async |_, _, driver| {
        let disk = driver.disk(0);
        let lba = |place: u64| Lba(place * BYTES as u64 / 512);
        let mut buffer = disk.buffer(BYTES)?;
        for place in 0..PLACES {
            buffer.copy_in(0, &[place as u8 + 1; BYTES]);
            let (back, done) = disk.write(lba(place), buffer, false).await;
            done?;
            buffer = back;
        }
        let mut stale = 0;
        for read in 0..COUNT {
            let place = read * 7 % PLACES;
            let (back, done) = disk.read(lba(place), buffer).await;
            done?;
            let mut found = [0; BYTES];
            back.copy_out(0, &mut found);
            stale += u64::from(found.iter().any(|byte| *byte != place as u8 + 1));
            buffer = back;
        }
        Ok::<_, ExhibitError>(Overtaken { reads: COUNT, stale })
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_of_drives_are_refused() {
        let machine = |plan| Machine::new(plan, Arc::default(), Arc::default());
        assert!(machine("tlc").open().is_ok());
        let error = machine("samsung-980-pro-1tb").open().expect_err("a plan with fitted values");
        assert!(matches!(error, ExhibitError::Fitted { .. }), "{error}");
    }

    #[test]
    fn keys_of_flash_are_set_in_plans_that_have_it_beneath_those_of_exhibits() {
        let key = |key: &str| (key.to_owned(), "1 us".to_owned());
        let sets = vec![key("medium.flash.processing.lookup"), key("host.interrupt")];
        let changes = Arc::new(Changes { sets, ..Changes::default() });
        let settings = |plan| {
            let machine = Machine::new(plan, changes.clone(), Arc::default());
            let machine = machine.with("host.interrupt", "2 us");
            let keys = |(key, value): (&str, &str)| format!("{key}={value}");
            machine.settings().into_iter().map(keys).collect::<Vec<_>>()
        };
        let both = ["host.interrupt=1 us", "host.interrupt=2 us"];
        assert_eq!(settings("gen4"), both);
        assert_eq!(settings("flash-bridge")[0], "medium.flash.processing.lookup=1 us");
        assert_eq!(settings("flash-bridge")[1..], both);
    }
}
