//! One file in one world: a run, and its result as data.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use plan::Plan;
use report::RunContext;
use report::model::{self, EventLog, Recording};
use runtime::{Log, Span};
use world::engine::Progress;
use world::interfaces::{NVME, Row};
use world::run_recorder::RunRecorder;
use world::work::Work;
use world::{self, Options, RunError, RunResult, Where};

use crate::event_log::{Digest, counting};

/// Location of a live run's device.
#[derive(Clone, Copy)]
pub enum Device<'a> {
    /// In this process, on its own thread.
    Thread,
    /// Behind this socket, over shared memory.
    Shared(&'a Path),
    /// Behind this socket, a PCI function over vfio-user.
    VfioUser(&'a Path),
    /// A PCI function at this address, through VFIO.
    Vfio(&'a str),
}

/// One file in one world.
pub struct RunSpec<'a> {
    pub plan: &'a Plan,
    pub work: &'a Work,
    /// Settings of the jobs from the command line.
    pub settings: &'a [(String, String)],
    pub interface: &'static Row,
    pub simulated: bool,
    pub device: Device<'a>,
    pub resets: u32,
    /// Live: threads of the host.
    pub threads: u32,
    /// Live, of a device in this process: its threads.
    pub device_threads: u32,
    /// Interval of the time series.
    pub series: Option<Span>,
    /// Maximum number of operations in a timeline.
    pub timeline: Option<u32>,
    /// Live: records the run.
    pub run_recorder: Option<Rc<RunRecorder>>,
    /// Simulated, of a recorded run: register writes replayed so far.
    pub register_writes: Rc<Cell<u64>>,
    pub progress: Arc<Progress>,
}

impl RunSpec<'_> {
    /// # Errors
    /// The interface does not support the plan, or the run did not end.
    pub fn run(&self, log: Option<&Digest>) -> Result<RunResult, RunError> {
        let (options, plan, work) = (self.options(log), self.plan, self.work);
        let row = self.interface.of_plan(plan);
        match self.device {
            _ if self.simulated => world::simulate(row, plan, work, options),
            _ if row.name == NVME.name && plan.array.is_none() && self.several_threads() => {
                self.run_in_host_threads(options)
            }
            Device::Thread => world::live_in_threads(row, plan, work, options),
            Device::Shared(socket) => world::live_over_socket(row, plan, work, options, socket),
            Device::VfioUser(socket) => {
                world::live_over_vfio_user(row, plan, work, options, socket)
            }
            Device::Vfio(address) => world::live_over_vfio(row, plan, work, options, address),
        }
    }

    fn run_in_host_threads(&self, options: Options) -> Result<RunResult, RunError> {
        let device = match self.device {
            Device::Thread => Where::Thread,
            Device::Shared(socket) => Where::Socket(socket),
            Device::VfioUser(socket) => Where::VfioUser(socket),
            Device::Vfio(_) => return Err(RunError::Other("--vfio: one thread has it".into())),
        };
        world::live_in_host_threads(self.plan, self.work, options, self.threads, device)
    }

    fn options(&self, log: Option<&Digest>) -> Options {
        let mut log = log.map_or(Log::Off, Digest::log);
        if self.simulated && self.work.recorded.is_some() {
            log = counting(log, &self.register_writes);
        }
        Options {
            log,
            progress: self.progress.clone(),
            resets: self.resets,
            device_threads: self.device_threads,
            series: self.series,
            timeline: self.timeline,
            run_recorder: self.run_recorder.clone(),
            ..Options::default()
        }
    }

    /// Whether the host is of more than one thread: no more than there are clones to run.
    fn several_threads(&self) -> bool {
        !self.simulated && self.host_threads() > 1
    }

    fn host_threads(&self) -> u32 {
        self.threads.min(self.work.clones_at_once() as u32)
    }

    /// The run with its result, as data.
    pub fn model(
        &self,
        run_result: &RunResult,
        recordings: &[Recording],
        log: Option<EventLog>,
    ) -> model::Run {
        let context = RunContext {
            plan: self.plan,
            work: self.work,
            settings: self.settings,
            recordings,
            interface: self.interface.name,
            world: if self.simulated { model::World::Simulated } else { model::World::Live },
            device: match self.device {
                _ if self.simulated => model::Device::Modelled,
                Device::Thread => model::Device::Thread,
                Device::Shared(_) => model::Device::SharedMemory,
                Device::VfioUser(_) => model::Device::VfioUser,
                Device::Vfio(_) => model::Device::Vfio,
            },
            threads: if self.several_threads() { self.host_threads() } else { 1 },
            resets: self.resets,
            log,
            register_writes: self.register_writes.get(),
        };
        let mut run = context.with(run_result);
        if !self.simulated && self.host_threads() < self.threads {
            let at_once = self.work.clones_at_once();
            let text = format!(
                "{} threads were asked for, and {at_once} clones run at once",
                self.threads
            );
            run.warnings.push(model::Warning { kind: model::WarningKind::WithoutEffect, text });
        }
        run
    }
}
