//! Worlds in virtual time.

use bus::link::Way;
use bus::sim::{SimBus, SimHost};
use plan::Plan;
use runtime::{Log, Rng, Rt};

use crate::device::{Device, MediumState};
use crate::drive::{OWN_CORES, drive};
use crate::error::RunError;
use crate::interfaces::{Connected, Cores, Row};
use crate::members::{buses, link_busy, packets, simulated_devices, traces, traces_of};
use crate::run_result::{DeviceStats, Options, RunResult, sample_flash, switch_off_all};
use crate::series::Sample;
use crate::window::{Busy, Instruments, Snapshot};
use crate::work::Work;
use crate::{device, pci};

/// Runs work in virtual time.
pub fn simulate(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
) -> Result<RunResult, RunError> {
    on_state(row, plan, work, options, None)
}

/// As [`simulate`], on flash in this state, as [`MediumState::new`] gives it for the plan. Nothing is saved:
/// the state after the run is dropped.
///
/// # Errors
/// As for [`simulate`]; also if the plan has an array, whose members have a state each.
pub fn simulate_on(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
    state: MediumState,
) -> Result<RunResult, RunError> {
    on_state(row, plan, work, options, Some(state))
}

fn on_state(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
    state: Option<MediumState>,
) -> Result<RunResult, RunError> {
    device::check(row, plan)?;
    let plan = &*(row.passed)(plan);
    let is_saved = state.is_none();
    let rt = Rt::simulated(
        Some(traces_of(row, plan, 0, options.timeline.is_some())),
        options.log.clone(),
    );
    if let Some(seed) = options.shuffle {
        rt.shuffle_ready_tasks(Rng::for_part(seed, "shuffle"));
    }
    let buses = buses(row, &rt, plan);
    if let Some(seed) = options.pauses {
        // Not of the links, which are there already: what they deliver is in order.
        rt.pause_tasks(Rng::for_part(seed, "pauses"));
    }
    let devices = simulated_devices(row, &rt, &buses, plan, state)?;
    let ports = |member: usize, number| buses[member].host(core(row, plan, number));
    let cores = || (0..plan.host.cores).map(|core| buses[0].core_busy(core)).collect();
    let add_to_sample = |sample: &mut Sample| {
        sample_flash(&devices, sample);
        sample.cores = Some(cores());
    };
    let snapshot = |snapshot: &mut Snapshot| {
        snapshot.add_devices(&devices);
        snapshot.busy = Some(Busy {
            of: rt.now().since(runtime::Time::ZERO),
            up: link_busy(&buses[0], Way::Up),
            down: link_busy(&buses[0], Way::Down),
            packets: (packets(&buses, Way::Up), packets(&buses, Way::Down)),
            cores: cores(),
            polling: (0..plan.host.cores).map(|core| buses[0].core_polling(core)).collect(),
        });
    };
    let instruments = Instruments { sample: &add_to_sample, snapshot: &snapshot };
    let job_result = rt.block_on(async {
        pci::bring_up(row, &buses, plan).await?;
        drive(row, &rt, plan, work, &options, &ports, instruments).await
    });
    let timed_events = rt.timed_events();
    let device_stats = DeviceStats::of(&devices);
    match is_saved {
        true => switch_off_all(devices, plan)?,
        false => Device::switch_off_all(devices).for_each(drop),
    }
    let run_result = RunResult::with_device(job_result?, device_stats, plan);
    Ok(RunResult { timed_events: Some(timed_events), ..run_result })
}

/// Runs `body` with a device and a connected driver in virtual time, without a load generator. The driver has
/// a port on each of `cores` cores.
///
/// # Errors
/// The interface does not support the plan, or the driver failed to start.
pub fn in_virtual_time<T>(
    row: &'static Row,
    plan: &Plan,
    log: Log,
    cores: u32,
    body: impl AsyncFnOnce(&Rt, &SimBus, Connected<SimHost>) -> T,
) -> Result<T, RunError> {
    device::check(row, plan)?;
    let rt = Rt::simulated(Some(traces(row, plan, 0)), log);
    let buses = buses(row, &rt, plan);
    let _devices = simulated_devices(row, &rt, &buses, plan, None)?;
    let done = rt.block_on(async {
        pci::bring_up(row, &buses, plan).await?;
        let Cores { own, reserved } = (row.cores)(plan);
        let own = (0..(own + reserved) as usize).map(|own| core(row, plan, OWN_CORES + own));
        let cores: Vec<_> = (0..cores).chain(own).collect();
        let ports = buses.iter().flat_map(|bus| cores.iter().map(|core| bus.host(*core)));
        let driver = row.connect(ports.collect(), plan).await?;
        Ok(body(&rt, &buses[0], driver).await)
    });
    rt.drop_tasks();
    done
}

/// Core of the port of this number.
fn core(row: &'static Row, plan: &Plan, number: usize) -> u32 {
    let Cores { own, reserved } = (row.cores)(plan);
    match number.checked_sub(OWN_CORES) {
        Some(number) if (number as u32) < own => plan.host.cores + number as u32,
        Some(number) => plan.host.cores - 1 - (number as u32 - own),
        None => number as u32 % (plan.host.cores - reserved),
    }
}
