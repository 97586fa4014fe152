//! The devices of a world: one, or the members of an array.

use bus::link::Way;
use bus::live::{LiveHost, Shared};
use bus::sim::{SimBus, SimSpec};
use runtime::{Rt, Span, Traces};

use crate::device::{Clock, Device, FlashStats, MediumState};
use crate::error::RunError;
use crate::interfaces::{Row, TRACE_QUEUES, of_member};
use crate::live::shared;
use plan::Plan;

/// How long the host's own link has been busy: that above the switch, where there is one.
pub(super) fn link_busy(bus: &SimBus, way: Way) -> Span {
    bus.switch_busy(way).unwrap_or_else(|| bus.link_busy(way))
}

pub(super) fn tlps(buses: &[SimBus], way: Way) -> u64 {
    buses.iter().map(|bus| bus.link_tlps(way)).sum()
}

/// What the flash of all has done.
pub fn flash_of(devices: &[Device]) -> Option<FlashStats> {
    let mut all = devices.iter().map(Device::flash_stats);
    let first = all.next()??;
    all.try_fold(first, |sum, one| Some(sum.and(one?)))
}

/// The bus of the device, or one for each member of an array.
pub fn buses(row: &'static Row, rt: &Rt, plan: &Plan) -> Vec<SimBus> {
    let spec = sim_spec(row, plan);
    match (row.members)(plan) {
        None => vec![SimBus::new(rt, spec)],
        Some(array) => {
            let rts: Vec<_> = (0..array.devices).map(|number| of(row, rt, plan, number)).collect();
            SimBus::below_switch(&rts, &spec, array.above(plan))
        }
    }
}

/// The devices on these buses.
pub(super) fn simulated_devices(
    row: &'static Row,
    rt: &Rt,
    buses: &[SimBus],
    plan: &Plan,
) -> Result<Vec<Device>, RunError> {
    let each = |(number, bus)| simulated_device(row, rt, bus, &of_member(plan, number));
    (0..).zip(buses).map(each).collect()
}

/// The driver's ends of these, in one host.
pub(super) fn hosts(row: &'static Row, rt: &Rt, shared: &[Shared], plan: &Plan) -> Vec<LiveHost> {
    let first = shared[0].host(rt);
    let each = |(number, shared)| first.beside(&of(row, rt, plan, number), shared);
    (0..).zip(shared).map(each).collect()
}

pub(super) fn live_devices(
    row: &'static Row,
    rt: &Rt,
    shared: &[Shared],
    plan: &Plan,
) -> Result<Vec<Device>, RunError> {
    let each = |(number, shared): (u32, &Shared)| {
        let rt = of(row, rt, plan, number);
        let plan = of_member(plan, number);
        Device::start(row, shared.device(&rt), MediumState::new(&plan)?, Clock::Wall, &plan)
    };
    (0..).zip(shared).map(each).collect()
}

/// What host and device share: a window for each member, where there are several.
pub(super) fn shared_with_all(row: &'static Row, plan: &Plan) -> Result<Vec<Shared>, RunError> {
    let first = shared(row, plan)?;
    let more = (row.members)(plan).map_or(0, |array| array.devices - 1);
    let others = (0..more).map(|_| first.another());
    Ok(std::iter::once(first.clone()).chain(others).collect())
}

/// The executor as this member's bus has it: its commands' journeys are its own.
fn of(row: &'static Row, rt: &Rt, plan: &Plan, number: u32) -> Rt {
    rt.queues_from((number * (row.trace_queues)(plan.host.queues)) as u16)
}

/// The journeys of a world. Those of an array's members follow one another, and behind them are its own
/// changes of stripes.
pub fn traces(row: &'static Row, plan: &Plan, sample_log2: u32) -> Traces {
    let each = (row.trace_queues)(plan.host.queues);
    let queues = (row.members)(plan)
        .map_or(each, |array| array.devices * each + u32::from(TRACE_QUEUES) * plan.host.queues);
    Traces::new(queues, plan.host.queue_depth, sample_log2, row.stages)
}

/// What the modelled bus is to be for this interface.
pub fn sim_spec(row: &'static Row, plan: &Plan) -> SimSpec {
    let mut spec = plan.sim_spec();
    spec.register_bytes = (row.register_bytes)(plan);
    spec.masks = row.masks;
    spec.cores += (row.own_cores)(plan);
    (row.adjust)(plan, &mut spec);
    // What another interface of the plan's would spend has no stage here.
    let of_array = if (row.members)(plan).is_some() { array::COSTS } else { &[] };
    spec.host_costs.retain(|cost| row.stages.contains(&cost.name) || of_array.contains(&cost.name));
    spec.device_costs.retain(|cost| row.stages.contains(&cost.name));
    spec
}

/// A device on a modelled bus.
pub fn simulated_device(
    row: &'static Row,
    rt: &Rt,
    bus: &SimBus,
    plan: &Plan,
) -> Result<Device, RunError> {
    let device = Device::start(row, bus.device(), MediumState::new(plan)?, Clock::Virtual, plan)?;
    if let Some(faults) = device.faults().cloned() {
        let (rt, bus) = (rt.clone(), bus.clone());
        rt.clone().spawn(async move {
            faults.link_down(&rt).await;
            bus.take_link_down();
        });
    }
    Ok(device)
}
