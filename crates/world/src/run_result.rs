//! What a run is told beside its plan and its work, and what it gives.

use std::rc::Rc;
use std::sync::Arc;

use plan::Plan;
use runtime::{Log, Span};
use workload::job::Job;

use crate::device::{Device, FlashStats};
use crate::engine::{JobResult, Progress};
use crate::error::RunError;
use crate::members::flash_of;
use crate::run_recorder::RunRecorder;
use crate::series::{Look, TimeSeries};

/// What a run is told beside its plan and its work.
#[derive(Clone, Default)]
pub struct Options {
    /// The event log of a simulated run.
    pub log: Log,
    /// Picks ready tasks at random, by this seed: whatever the results, they must be right.
    pub shuffle: Option<u64>,
    pub progress: Arc<Progress>,
    /// Resets the device this many times under the work, each time 64 more operations have ended.
    pub resets: u32,
    /// Somebody else may have written to the device: what this run has not is not verified.
    pub contents_unknown: bool,
    /// Takes a time series down, by intervals of this length.
    pub series: Option<Span>,
    /// Live: takes down what arrives and which registers are written.
    pub run_recorder: Option<Rc<RunRecorder>>,
}

impl Options {
    /// Where a live host's end of the bus tells of what it does.
    pub(crate) fn live_log(&self) -> Log {
        self.run_recorder.as_ref().map_or(Log::Off, RunRecorder::log)
    }
}

#[derive(Default)]
pub struct RunResult {
    /// What each job has seen, its clones together.
    pub jobs: Vec<(Job, JobResult)>,
    /// Lines about recordings and what else is worth knowing.
    pub notes: Vec<String>,
    /// Resets that were completed under the work.
    pub resets: u32,
    /// Timed events of the whole run; none live.
    pub timed_events: Option<u64>,
    /// How busy the link was each way, up first, and each core; none live.
    pub busy: Option<Busy>,
    /// What the host's thread had of a processor, from the first command to the last; none in virtual time,
    /// and where the system does not say.
    pub host_thread: Option<Span>,
    /// How often each fault of the plan has struck; nothing, where the device is in another process.
    pub faults: Vec<(String, u64)>,
    /// What the flash has done, if there is any and the device is not in another process.
    pub flash: Option<FlashStats>,
    /// The run over time, if that was asked for.
    pub series: Option<TimeSeries>,
}

impl RunResult {
    pub fn of(told: HostResult) -> RunResult {
        let HostResult { jobs, notes, resets, software: _, series, host_thread } = told;
        RunResult { jobs, notes, resets, host_thread, series, ..RunResult::default() }
    }

    /// With what its device has to tell.
    pub(crate) fn beside(told: HostResult, device: DeviceStats) -> RunResult {
        let software = told.software;
        let flash =
            device.flash.map(|stats| FlashStats { software: stats.software.or(software), ..stats });
        RunResult { faults: device.faults, flash, ..RunResult::of(told) }
    }
}

/// How long the parts of a simulated world were busy.
pub struct Busy {
    pub of: Span,
    /// The link towards the host.
    pub up: Span,
    /// The link towards the device.
    pub down: Span,
    /// TLPs that went each way, up first.
    pub tlps: (u64, u64),
    /// Each host core, at work.
    pub cores: Vec<Span>,
    /// Each host core, looking at memory in vain.
    pub polling: Vec<Span>,
}

/// What a host has to tell of its run.
#[derive(Default)]
pub struct HostResult {
    pub(crate) jobs: Vec<(Job, JobResult)>,
    pub(crate) notes: Vec<String>,
    pub(crate) resets: u32,
    /// What flash software on the host has done.
    pub(crate) software: Option<ftl::Stats>,
    pub(crate) series: Option<TimeSeries>,
    /// What the host's thread had of a processor.
    pub(crate) host_thread: Option<Span>,
}

impl HostResult {
    pub(crate) fn add(&mut self, next: HostResult) {
        self.jobs.extend(next.jobs);
        self.notes.extend(next.notes);
    }

    /// Something went wrong that no operation can be blamed for.
    pub(crate) fn fail(&mut self, message: String) {
        if let Some((_, job_result)) = self.jobs.last_mut() {
            job_result.fail(message);
        }
    }
}

/// What flash software devices have, while it works.
pub(crate) fn look_at(devices: &[Device], look: &mut Look) {
    let software = flash_of(devices).and_then(|stats| stats.software);
    look.software = look.software.or(software.map(|stats| stats.counters));
}

/// What a device has to tell of its run.
pub(crate) struct DeviceStats {
    pub(crate) faults: Vec<(String, u64)>,
    pub(crate) flash: Option<FlashStats>,
}

impl DeviceStats {
    /// An array has no faults: those of the first are all.
    pub(crate) fn of(devices: &[Device]) -> DeviceStats {
        DeviceStats { faults: devices[0].fault_counts(), flash: flash_of(devices) }
    }
}

/// Switches devices off, and keeps their state where the plan says.
pub(crate) fn leave(devices: Vec<Device>, plan: &Plan) -> Result<(), RunError> {
    devices.into_iter().try_for_each(|device| device.switch_off().save(plan))
}
