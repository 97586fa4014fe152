//! Checks of flags before a run: flags that have no effect together are rejected.

use std::path::PathBuf;

use runtime::Span;

use super::{Device, Lay, Run, World};
use plan::Plan;
use plan::units::parse_span;
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

    /// Interval of the time series.
    pub(super) fn interval(&self) -> Result<Span, String> {
        match parse_span(&self.interval) {
            Ok(span) if span > Span::ZERO => Ok(span),
            _ => Err(format!("--interval: found {:?}, expected a time: \"10 ms\"", self.interval)),
        }
    }
}

/// Reads all files before anything runs.
pub(crate) fn works(files: &[PathBuf], map: Lay) -> Result<Vec<Work>, String> {
    let load = |file: &PathBuf| Work::load(file, map.into()).map_err(|error| error.to_string());
    let works: Vec<Work> = files.iter().map(load).collect::<Result<_, _>>()?;
    let plays = |work: &Work| work.jobs.iter().any(|job| job.trace.is_some());
    if map == Lay::Modulo && !works.iter().any(plays) {
        return Err("--map: found no recording, expected one, or a job with read_iolog: nothing else is laid \
                    onto the SSD"
            .to_owned());
    }
    Ok(works)
}
