//! Checks of flags before a run: flags that have no effect together are rejected.

use std::path::PathBuf;

use clap::Args;
use runtime::Span;

use super::{Device, Format, Lay, Run, World};
use crate::quoted;
use plan::Plan;
use plan::units::parse_span;
use workload::job::Job;
use world::interfaces::NVME;
use world::work::Work;

impl Run {
    /// Rejects flags that have no effect in any world of the run.
    pub(super) fn check_flags(&self) -> Result<(), String> {
        let simulated = self.world == World::Sim;
        let live = [
            ("--socket", self.socket.is_some()),
            ("--vfio-user", self.vfio_user.is_some()),
            ("--vfio", self.vfio.is_some()),
        ];
        for (flag, is_there) in live {
            if is_there && simulated {
                return Err(format!(
                    "{flag}: found --world sim, expected --world live or both: a simulated device is the \
                     plan's"
                ));
            }
        }
        if self.log.is_some() && self.world == World::Live {
            return Err(
                "--log: found --world live, expected --world sim or both: a live run has no event \
                        log; use --record"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Rejects `--threads` where host threads can't have queues of their own.
    pub(super) fn check_threads(&self, plan: &Plan) -> Result<(), String> {
        let found = match self.device() {
            _ if self.threads == 1 => return Ok(()),
            _ if self.world == World::Sim => "--world sim, whose hosts have the plan's cores",
            _ if self.interface.name != NVME.name => "another interface than nvme",
            _ if plan.array.is_some() => "an array",
            _ if self.record.is_some() => "--record",
            _ if self.series.is_some() => "--series",
            Device::Vfio(_) => "--vfio",
            _ => return Ok(()),
        };
        Err(format!(
            "--threads {}: found {found}, expected --world live or both, --interface nvme, and one device: \
             of this process, --socket or --vfio-user",
            self.threads
        ))
    }

    /// Rejects `--device-threads` where the device is not of this process, or has one thread.
    pub(super) fn check_device_threads(&self) -> Result<(), String> {
        let found = match self.device() {
            _ if self.device_threads == 1 => return Ok(()),
            _ if self.world == World::Sim => "--world sim",
            _ if self.interface.name != NVME.name => "another interface than nvme",
            Device::Thread => return Ok(()),
            _ => "a device in another process, whose server has threads of its own",
        };
        Err(format!(
            "--device-threads {}: found {found}, expected --world live or both, --interface nvme, and the \
             device of this process",
            self.device_threads
        ))
    }

    /// Rejects several runs in fio's object, which has one.
    pub(super) fn check_format(&self, files: usize) -> Result<(), String> {
        let runs = files * self.world.simulated().count();
        if self.format == Format::Fio && runs > 1 {
            return Err(format!(
                "--format fio: found {runs} runs, expected one file, and --world sim or live: fio's object \
                 is of one run"
            ));
        }
        Ok(())
    }

    /// Interval of the time series.
    pub(super) fn interval(&self) -> Result<Span, String> {
        let Some(typed) = &self.interval else { return Ok(INTERVAL) };
        match parse_span(typed) {
            Ok(span) if span > Span::ZERO => Ok(span),
            _ => Err(format!("--interval: found {typed:?}, expected a time: \"10 ms\"")),
        }
    }
}

const INTERVAL: Span = Span::ms(10);

/// Jobs of at most this many operations are short.
const SHORT: u64 = 50_000;

/// Interval of the curves of a page: a hundredth of the run time, if the jobs have one.
pub(crate) fn page_interval(work: &Work) -> Span {
    let runtimes = work.jobs.iter().map(|job| job.runtime);
    if let Some(longest) =
        runtimes.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max())
    {
        return (longest / 100).max(Span::us(100));
    }
    let is_short = |job: &Job| job.number_ios.is_some_and(|count| count <= SHORT);
    if work.jobs.iter().all(is_short) { Span::ms(1) } else { INTERVAL }
}

/// Flags of the jobs and recordings to run.
#[derive(Args, Clone)]
pub(crate) struct Jobs {
    /// Mapping of the trace's devices or files onto the SSD
    #[arg(long, value_enum, default_value_t = Lay::Concatenate)]
    map: Lay,
    /// Override a key of every job: iodepth=8 (repeatable)
    #[arg(long = "job", value_name = "KEY=VALUE", value_parser = job_key_and_value)]
    pub(crate) settings: Vec<(String, String)>,
}

fn job_key_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.trim().into(), value.trim().into())),
        None if !text.is_empty() => Ok((text.trim().into(), "1".into())),
        _ => Err(format!("{text:?}: expected KEY=VALUE, as in iodepth=8")),
    }
}

impl Jobs {
    /// Reads all files before anything runs.
    pub(crate) fn works(&self, files: &[PathBuf]) -> Result<Vec<Work>, String> {
        let load = |file: &PathBuf| {
            let work = Work::load_with(file, self.map.into(), &self.settings);
            work.map_err(|error| error.to_string())
        };
        let works: Vec<Work> = files.iter().map(load).collect::<Result<_, _>>()?;
        let plays = |work: &Work| work.jobs.iter().any(|job| job.trace.is_some());
        if self.map == Lay::Modulo && !works.iter().any(plays) {
            return Err("--map: found no recording, expected one, or a job with read_iolog: nothing else is \
                        laid onto the SSD"
                .to_owned());
        }
        Ok(works)
    }

    /// The flags as typed, quoted for a shell, each after a space.
    pub(super) fn typed(&self) -> String {
        let map = if self.map == Lay::Modulo { " --map modulo" } else { "" };
        let one = |(key, value): &(String, String)| {
            format!(" --job {}", quoted(&format!("{key}={value}")))
        };
        map.to_owned() + &self.settings.iter().map(one).collect::<String>()
    }
}
