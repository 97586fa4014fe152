//! Worlds in virtual time.

use bus::link::Way;
use bus::sim::{SimBus, SimHost};
use plan::Plan;
use runtime::{Log, Rng, Rt};

use crate::drive::{OWN_CORES, drive};
use crate::error::RunError;
use crate::interfaces::{Interface, Row};
use crate::members::{buses, link_busy, simulated_devices, tlps, traces};
use crate::run_result::{Busy, DeviceStats, Options, RunResult, leave, look_at};
use crate::series::Look;
use crate::work::Work;
use crate::{device, pci};

/// Runs work in virtual time.
pub fn simulate(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
) -> Result<RunResult, RunError> {
    device::check(row, plan)?;
    let rt = Rt::simulated(Some(traces(row, plan, 0)), options.log.clone());
    if let Some(seed) = options.shuffle {
        rt.shuffle_ready_tasks(Rng::for_part(seed, "shuffle"));
    }
    let buses = buses(row, &rt, plan);
    let devices = simulated_devices(row, &rt, &buses, plan)?;
    let ports = |member: usize, number| buses[member].host(core(plan, number));
    let busy = || (0..plan.host.cores).map(|core| buses[0].core_busy(core)).collect();
    let beside = |look: &mut Look| {
        look_at(&devices, look);
        look.cores = Some(busy());
    };
    let job_result = rt.block_on(async {
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
    let tale = DeviceStats::of(&devices);
    leave(devices, plan)?;
    let run_result = RunResult::beside(job_result?, tale);
    Ok(RunResult { timed_events: Some(timed_events), busy: Some(busy), ..run_result })
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
    let rt = Rt::simulated(Some(traces(row, plan, 0)), log);
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
