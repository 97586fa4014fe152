//! Options and result of a run.

use std::rc::Rc;
use std::sync::Arc;

use plan::Plan;
use runtime::{Log, Span};
use workload::job::Job;

use crate::device::{Device, FlashStats, StateUse};
use crate::engine::{JobResult, Progress};
use crate::error::RunError;
use crate::interfaces::of_member;
use crate::members::flash_of;
use crate::processor::ThreadUse;
use crate::run_recorder::RunRecorder;
use crate::series::{Sample, TimeSeries};
use crate::timeline::Timeline;
use crate::warning::{self, Warning};
use crate::window::{Busy, Snapshot};

/// Options of a run in addition to its plan and its work.
#[derive(Clone, Default)]
pub struct Options {
    /// The event log of a simulated run.
    pub log: Log,
    /// Seed to pick ready tasks in random order; results must be correct in any order.
    pub shuffle: Option<u64>,
    /// Virtual time: seed of pauses of host and device, drawn at every step ([`runtime::Rt::pause_tasks`]).
    pub pauses: Option<u64>,
    pub progress: Arc<Progress>,
    /// Number of device resets under I/O, one per 64 completed operations.
    pub resets: u32,
    /// The device may hold data of other writers: only blocks that this run has written are verified.
    pub contents_unknown: bool,
    /// Interval of a time series; none: no time series.
    pub series: Option<Span>,
    /// Maximum number of operations in a timeline; none: no timeline.
    pub timeline: Option<u32>,
    /// Live: number of device threads that the queues are dealt to; 0 is as 1.
    pub device_threads: u32,
    /// Live: recorder of arrivals and register writes.
    pub run_recorder: Option<Rc<RunRecorder>>,
}

impl Options {
    /// Event log of the host port in a live world.
    pub(crate) fn live_log(&self) -> Log {
        self.run_recorder.as_ref().map_or(Log::Off, RunRecorder::log)
    }
}

#[derive(Default)]
pub struct RunResult {
    /// Result of each job, with its clones merged.
    pub jobs: Vec<(Job, JobResult)>,
    /// Informational lines, such as the mapping of recordings.
    pub notes: Vec<String>,
    /// Number of completed resets under I/O.
    pub resets: u32,
    /// Number of timed events of the simulation; none live.
    pub timed_events: Option<u64>,
    /// Busy times of the link and of each core in the measured window; none live.
    pub busy: Option<Busy>,
    /// CPU time of the host's thread in the measured window; none in virtual time, or if the
    /// system does not report it.
    pub host_thread: Option<Span>,
    /// Number of injections of each fault by name; empty if the device is in another process.
    pub faults: Vec<(String, u64)>,
    /// Use of each power state in the measured window, if the plan has any and the device is in this
    /// process.
    pub power: Vec<StateUse>,
    /// Flash statistics, counts in the measured window and the state at the end, if there is flash and the
    /// device is in this process.
    pub flash: Option<FlashStats>,
    /// Time series, if one was requested.
    pub series: Option<TimeSeries>,
    /// Sampled operations, if they were requested.
    pub timeline: Option<Timeline>,
    /// Conditions that a reader of the results must know.
    pub warnings: Vec<Warning>,
    /// Host memory of an FTL on the host, by what it grows with.
    pub host_memory: Option<host_flash::Memory>,
}

impl RunResult {
    pub fn of(host_result: HostResult) -> RunResult {
        let HostResult { jobs, notes, resets, series, timeline, threads, host_memory, .. } =
            host_result;
        let measured = host_result.measured;
        let host_thread = threads.first().filter(|_| threads.len() == 1);
        let host_thread = host_thread.and_then(|thread| measured.cpu.or(thread.cpu));
        let longest_wait =
            threads.into_iter().max_by_key(|thread| (thread.waited, thread.switches));
        let warnings = warning::of_thread("host", longest_wait).into_iter().collect();
        RunResult {
            jobs,
            notes,
            resets,
            host_thread,
            busy: measured.busy,
            power: measured.power.0,
            series,
            timeline,
            warnings,
            host_memory,
            ..RunResult::default()
        }
    }

    /// Adds the statistics of the device.
    pub(crate) fn with_device(
        host_result: HostResult,
        device: DeviceStats,
        plan: &Plan,
    ) -> RunResult {
        let (software, falling) = (host_result.software, host_result.measured.falling);
        let flash = device.flash.map(|stats| {
            let all = FlashStats { software: stats.software.or(software), ..stats };
            host_result.measured.of_window(all)
        });
        let mut run_result =
            RunResult { faults: device.faults, flash, ..RunResult::of(host_result) };
        if let Some(falling) = falling {
            run_result.warnings.push(Warning::StillFalls { falling });
        }
        if run_result.power.is_empty() {
            run_result.power = device.power;
        }
        run_result.warnings.extend(warning::of_thread("device", device.thread));
        let stats =
            run_result.flash.and_then(|stats| stats.software).zip(plan.medium.flash.as_ref());
        if let Some((stats, flash)) = stats {
            let unit_bytes = flash.spec.geometry.unit_bytes.into();
            run_result.warnings.extend(warning::of_flash(&stats, unit_bytes));
            run_result.warnings.extend(warning::of_reads(&stats));
        }
        run_result
    }

    /// Adds the warnings about the breakdowns of a live run.
    pub(crate) fn with_live_warnings(mut self, plan: &Plan) -> RunResult {
        self.warnings.extend(warning::of_breakdowns(plan, &self.jobs));
        self
    }
}

/// Host side of the result of a run.
#[derive(Default)]
pub struct HostResult {
    pub(crate) jobs: Vec<(Job, JobResult)>,
    pub(crate) notes: Vec<String>,
    pub(crate) resets: u32,
    /// Statistics of an FTL on the host.
    pub(crate) software: Option<ftl::Stats>,
    pub(crate) series: Option<TimeSeries>,
    pub(crate) timeline: Option<Timeline>,
    /// Processor use of the host's threads; none in virtual time.
    pub(crate) threads: Vec<ThreadUse>,
    pub(crate) host_memory: Option<host_flash::Memory>,
    /// Counts of the measured window.
    pub(crate) measured: Snapshot,
}

impl HostResult {
    pub(crate) fn add(&mut self, next: HostResult) {
        self.jobs.extend(next.jobs);
        self.notes.extend(next.notes);
    }

    /// Records a failure outside of an operation in the last job.
    pub(crate) fn fail(&mut self, message: String) {
        if let Some((_, job_result)) = self.jobs.last_mut() {
            job_result.fail(message);
        }
    }
}

/// Adds the FTL counters of the devices to a sample.
pub(crate) fn sample_flash(devices: &[Device], sample: &mut Sample) {
    let software = flash_of(devices).and_then(|stats| stats.software);
    sample.software = sample.software.or(software.map(|stats| stats.counters));
}

/// Device side of the result of a run.
#[derive(Default)]
pub(crate) struct DeviceStats {
    pub(crate) faults: Vec<(String, u64)>,
    pub(crate) power: Vec<StateUse>,
    pub(crate) flash: Option<FlashStats>,
    /// Processor use of its (first) thread; none if it has none of its own.
    pub(crate) thread: Option<ThreadUse>,
}

impl DeviceStats {
    /// An array has no faults, so the counts of the first device are complete.
    pub(crate) fn of(devices: &[Device]) -> DeviceStats {
        DeviceStats {
            faults: devices[0].fault_counts(),
            power: devices[0].power_use(),
            flash: flash_of(devices),
            thread: None,
        }
    }
}

impl DeviceStats {
    /// With these counts of flash and power states in place of those of the whole run.
    pub(crate) fn counted(self, counted: Snapshot) -> DeviceStats {
        let flash = self.flash.map(|stats| counted.of_window(stats));
        DeviceStats { flash, power: counted.power.0, ..self }
    }
}

/// Powers the devices off and saves their state as the plan says: of all, also where one fails.
pub(crate) fn switch_off_all(devices: Vec<Device>, plan: &Plan) -> Result<(), RunError> {
    let states = (0..).zip(Device::switch_off_all(devices));
    let saved = states.map(|(number, mut state)| state.save(&of_member(plan, number)));
    let saved: Vec<_> = saved.collect();
    saved.into_iter().collect()
}
