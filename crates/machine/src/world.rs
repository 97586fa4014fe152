//! Worlds: a device and a host, put together from a plan, in virtual time or live.

mod groups;
mod live;
mod members;
mod processor;
mod threads;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bus::link::Way;
use bus::sim::{SimBus, SimHost, SimSpec};
use runtime::{Dice, Either, Log, Rt, Span, race};
use workload::job::Job;

use crate::device::{self, Clock, Device, FlashSeen, Kept};
use crate::engine::{Hold, Progress, Ran};
use crate::interfaces::{Connected, Interface, Row, Side};
use crate::pci;
use crate::plan::Plan;
use crate::series::{Look, Recorder, TimeSeries};
use crate::tape::Tape;
use crate::work::Work;
use groups::{Watched, run_groups};
pub use live::{
    live_in_one_thread, live_in_threads, live_over_socket, live_over_vfio, live_over_vfio_user,
};
pub(crate) use live::{shared, until};
pub(crate) use members::{buses, flash_of, journeys};
use members::{link_busy, simulated_devices, tlps};
pub use threads::{Where, live_in_host_threads};

/// Operations that end between resets that one asks for.
const BETWEEN_RESETS: u64 = 64;
/// Operations that may end before a reset does that is due. Counted, so that resets come under the work on a
/// machine of any speed.
const DURING_RESET: u64 = 128;
/// Ports from this number on are on cores that the driver has to itself.
const OWN_CORES: usize = 1 << 16;
/// Costs of software above the driver, outermost first.
pub(crate) const LAYERS: [&str; 3] = ["benchmark", "system call", "block driver"];

/// What a run is told beside its plan and its work.
#[derive(Clone, Default)]
pub struct Options {
    /// The event log of a simulated run.
    pub log: Log,
    /// Picks ready tasks at random, by this seed: whatever the results, they must be right.
    pub shuffle: Option<u64>,
    /// Counts operations.
    pub progress: Arc<Progress>,
    /// Resets the device this many times under the work, each time 64 more operations have ended.
    pub resets: u32,
    /// Somebody else may have written to the device: what this run has not is not verified.
    pub contents_unknown: bool,
    /// Takes a time series down, by intervals of this length.
    pub series: Option<Span>,
    /// Live: takes down what arrives and which registers are written.
    pub tape: Option<Rc<Tape>>,
}

impl Options {
    /// Where a live host's end of the bus tells of what it does.
    fn live_log(&self) -> Log {
        self.tape.as_ref().map_or(Log::Off, Tape::log)
    }
}

/// What a run gave.
#[derive(Default)]
pub struct Outcome {
    /// What each job has seen, its clones together.
    pub jobs: Vec<(Job, Ran)>,
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
    pub flash: Option<FlashSeen>,
    /// The run over time, if that was asked for.
    pub series: Option<TimeSeries>,
}

impl Outcome {
    /// Of a live run.
    pub(crate) fn of(told: Told) -> Outcome {
        let Told { jobs, notes, resets, software: _, series, host_thread } = told;
        Outcome { jobs, notes, resets, host_thread, series, ..Outcome::default() }
    }

    /// With what its device has to tell.
    fn beside(told: Told, device: Tale) -> Outcome {
        let software = told.software;
        let flash =
            device.flash.map(|seen| FlashSeen { software: seen.software.or(software), ..seen });
        Outcome { faults: device.faults, flash, ..Outcome::of(told) }
    }
}

/// How long the parts of a simulated world were busy.
pub struct Busy {
    /// The whole run.
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

/// Why a run did not come to its end. Prints what, and what was expected.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunError(pub String);

impl RunError {
    pub(crate) fn of(error: impl std::fmt::Display) -> RunError {
        RunError(error.to_string())
    }
}

/// Runs work in virtual time.
pub fn simulate(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
) -> Result<Outcome, RunError> {
    device::check(row, plan)?;
    let rt = Rt::simulated(Some(journeys(row, plan, 0)), options.log.clone());
    if let Some(seed) = options.shuffle {
        rt.shuffle_ready_tasks(Dice::for_part(seed, "shuffle"));
    }
    let buses = buses(row, &rt, plan);
    let devices = simulated_devices(row, &rt, &buses, plan)?;
    let ports = |member: usize, number| buses[member].host(core(plan, number));
    let busy = || (0..plan.host.cores).map(|core| buses[0].core_busy(core)).collect();
    let beside = |look: &mut Look| {
        look_at(&devices, look);
        look.cores = Some(busy());
    };
    let ran = rt.block_on(async {
        pci::bring_up(row, &buses, plan).await?;
        drive(row, &rt, plan, work, &options, &ports, &beside).await
    });
    let busy = Busy {
        of: rt.now().since(runtime::Time::ZERO),
        up: link_busy(&buses[0], Way::Up),
        down: link_busy(&buses[0], Way::Down),
        tlps: (tlps(&buses, Way::Up), tlps(&buses, Way::Down)),
        cores: busy(),
        polling: (0..plan.host.cores).map(|core| buses[0].core_polling(core)).collect(),
    };
    let timed_events = rt.timed_events();
    let tale = Tale::of(&devices);
    leave(devices, plan)?;
    let outcome = Outcome::beside(ran?, tale);
    Ok(Outcome { timed_events: Some(timed_events), busy: Some(busy), ..outcome })
}

/// What flash software devices have, while it works.
fn look_at(devices: &[Device], look: &mut Look) {
    let software = flash_of(devices).and_then(|seen| seen.software);
    look.software = look.software.or(software.map(|stats| stats.counters));
}

/// What a device has to tell of its run.
struct Tale {
    faults: Vec<(String, u64)>,
    flash: Option<FlashSeen>,
}

impl Tale {
    /// An array has no faults: those of the first are all.
    fn of(devices: &[Device]) -> Tale {
        Tale { faults: devices[0].fault_counts(), flash: flash_of(devices) }
    }
}

/// Switches devices off, and keeps their state where the plan says.
fn leave(devices: Vec<Device>, plan: &Plan) -> Result<(), RunError> {
    devices.into_iter().try_for_each(|device| device.switch_off().save(plan))
}

/// A device on a modelled bus.
pub(crate) fn simulated_device(
    row: &'static Row,
    rt: &Rt,
    bus: &SimBus,
    plan: &Plan,
) -> Result<Device, RunError> {
    let device = Device::start(row, bus.device(), Kept::new(plan)?, Clock::Virtual, plan)?;
    if let Some(faults) = device.faults().cloned() {
        let (rt, bus) = (rt.clone(), bus.clone());
        rt.clone().spawn(async move {
            faults.link_down(&rt).await;
            bus.take_link_down();
        });
    }
    Ok(device)
}

/// A device and a connected driver in virtual time, for who speaks to the driver without an engine.
///
/// # Errors
/// The plan lacks what the interface needs, or the driver could not be started.
pub fn in_virtual_time<I: Interface, T>(
    plan: &Plan,
    log: Log,
    body: impl AsyncFnOnce(&Rt, &SimBus, I::Driver<SimHost>) -> T,
) -> Result<T, RunError> {
    on_cores_in_virtual_time::<I, T>(plan, log, 1, body)
}

/// The same, with a port of the driver on each of so many cores.
///
/// # Errors
/// As for [`in_virtual_time`].
pub fn on_cores_in_virtual_time<I: Interface, T>(
    plan: &Plan,
    log: Log,
    cores: u32,
    body: impl AsyncFnOnce(&Rt, &SimBus, I::Driver<SimHost>) -> T,
) -> Result<T, RunError> {
    let row = I::ROW;
    device::check(row, plan)?;
    let rt = Rt::simulated(Some(journeys(row, plan, 0)), log);
    let buses = buses(row, &rt, plan);
    let _devices = simulated_devices(row, &rt, &buses, plan)?;
    let done = rt.block_on(async {
        pci::bring_up(row, &buses, plan).await?;
        let own = (0..(row.own_cores)(plan)).map(|own| plan.host.cores + own);
        let cores: Vec<_> = (0..cores).chain(own).collect();
        let ports = buses.iter().flat_map(|bus| cores.iter().map(|core| bus.host(*core)));
        let driver = I::connect(ports.collect(), plan).await.map_err(RunError::of)?;
        Ok(body(&rt, &buses[0], driver).await)
    });
    rt.drop_tasks();
    done
}

/// The core of the port of this number.
fn core(plan: &Plan, number: usize) -> u32 {
    match number.checked_sub(OWN_CORES) {
        Some(own) => plan.host.cores + own as u32,
        None => number as u32 % plan.host.cores,
    }
}

pub(crate) fn sim_spec(row: &'static Row, plan: &Plan) -> SimSpec {
    let mut spec = plan.sim_spec();
    spec.register_bytes = (row.register_bytes)(plan);
    spec.masks = row.masks;
    spec.cores += (row.own_cores)(plan);
    (row.adjust)(plan, &mut spec);
    // What another interface of the plan's would spend has no stage here.
    let of_array = if (row.members)(plan).is_some() { host::array::COSTS } else { &[] };
    spec.host_costs.retain(|cost| row.stages.contains(&cost.name) || of_array.contains(&cost.name));
    spec.device_costs.retain(|cost| row.stages.contains(&cost.name));
    spec
}

/// I/O queues that a host makes: no more than can be in use.
fn queues(plan: &Plan, work: &Work) -> usize {
    work.clones_at_once().min(plan.host.queues as usize)
}

/// What a host has to tell of its run.
#[derive(Default)]
pub(crate) struct Told {
    jobs: Vec<(Job, Ran)>,
    notes: Vec<String>,
    resets: u32,
    /// What flash software on the host has done.
    software: Option<ftl::Stats>,
    series: Option<TimeSeries>,
    /// What the host's thread had of a processor.
    host_thread: Option<Span>,
}

impl Told {
    /// What came behind it.
    fn add(&mut self, next: Told) {
        self.jobs.extend(next.jobs);
        self.notes.extend(next.notes);
    }

    /// Something went wrong that no operation can be blamed for.
    fn fail(&mut self, message: String) {
        if let Some((_, ran)) = self.jobs.last_mut() {
            ran.fail(message);
        }
    }
}

/// Connects the driver, runs the work, and leaves the device in order. `port` gives the port to a member, by
/// its number; `beside` adds to a look what the world knows beside the driver.
pub(crate) async fn drive<P: Side>(
    row: &'static Row,
    rt: &Rt,
    plan: &Plan,
    work: &Work,
    options: &Options,
    port: &dyn Fn(usize, usize) -> P,
    beside: &dyn Fn(&mut Look),
) -> Result<Told, RunError> {
    let own = (0..(row.own_cores)(plan) as usize).map(|own| OWN_CORES + own);
    let each: Vec<_> = (0..queues(plan, work)).chain(own).collect();
    let members = (row.members)(plan).map_or(1, |array| array.devices as usize);
    let ports = (0..members).flat_map(|member| each.iter().map(move |number| (member, *number)));
    let ports = ports.map(|(member, number)| port(member, number)).collect();
    let port = &|number| port(0, number);
    let driver = row.connect(ports, plan).await.map_err(RunError::of)?;
    let hold = (options.resets > 0).then(Rc::<Hold>::default);
    let series = options.series.map(Recorder::new).map(Rc::new);
    let watched =
        Watched { hold: hold.clone(), series: series.clone(), tape: options.tape.clone() };
    let work = run_groups(row, rt, plan, work, options, &driver, port, watched);
    let work = async {
        let Some(series) = &series else { return work.await };
        let memory = port(0).arena().clone();
        let look = || {
            let software = driver.software();
            let memory_bytes = memory.used_bytes() as u64 + driver.memory_bytes();
            let counters = software.map(|software| software.counters);
            let mut look = Look { software: counters, memory_bytes, cores: None };
            beside(&mut look);
            look
        };
        match race(work, series.watch(rt, look)).await {
            Either::First(told) => told,
            Either::Second(()) => unreachable!("the watch never ends"),
        }
    };
    let mut told = match &hold {
        None => work.await?,
        Some(hold) => under_resets(rt, &driver, options, hold, work).await?,
    };
    told.software = driver.software();
    told.notes.extend(driver.notes());
    told.series = series.map(|series| series.series());
    if let Err(error) = driver.stop().await {
        told.fail(format!("shutdown: {error}"));
    }
    Ok(told)
}

/// Work, with resets of the device under it.
async fn under_resets<P: Side>(
    rt: &Rt,
    driver: &Connected<P>,
    options: &Options,
    hold: &Hold,
    work: impl Future<Output = Result<Told, RunError>>,
) -> Result<Told, RunError> {
    let (done, progress) = (Cell::new(0), &options.progress);
    let resets = async {
        while done.get() < options.resets {
            let due = progress.operations() + BETWEEN_RESETS;
            hold.reach(rt, progress, due, DURING_RESET).await;
            driver.reset().await?;
            done.set(done.get() + 1);
        }
        hold.lift(rt);
        core::future::pending::<Result<(), String>>().await
    };
    match race(work, resets).await {
        Either::First(ran) => ran.map(|told| Told { resets: done.get(), ..told }),
        Either::Second(failed) => {
            Err(RunError(format!("reset under I/O: {}", failed.unwrap_err())))
        }
    }
}
