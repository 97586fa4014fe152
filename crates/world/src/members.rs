//! The devices of a world: one, or the members of an array.

use bus::link::{Packets, Way};
use bus::live::{LiveHost, Shared};
use bus::sim::{SimBus, SimSpec};
use runtime::{Rt, Span, Traces};

use crate::device::{self, Clock, Device, FlashStats, MediumState};
use crate::error::RunError;
use crate::interfaces::{Row, TRACE_QUEUES, of_member};
use plan::{Pin, Plan};

/// Busy time of the host's link: the link above the switch, if there is one.
pub(super) fn link_busy(bus: &SimBus, way: Way) -> Span {
    bus.switch_busy(way).unwrap_or_else(|| bus.link_busy(way))
}

/// Packets on the links of all devices.
pub(super) fn packets(buses: &[SimBus], way: Way) -> Packets {
    buses.iter().fold(Packets::default(), |sum, bus| sum.and(&bus.link_packets(way)))
}

/// Summed flash statistics of all devices; none if one has no statistics.
pub fn flash_of(devices: &[Device]) -> Option<FlashStats> {
    let mut all = devices.iter().map(Device::flash_stats);
    let first = all.next()??;
    all.try_fold(first, |sum, one| Some(sum.and(one?)))
}

/// The bus of the device, or one bus per member of an array.
pub fn buses(row: &'static Row, rt: &Rt, plan: &Plan) -> Vec<SimBus> {
    let spec = sim_spec(row, plan);
    let buses = match row.members(plan) {
        None => vec![SimBus::new(rt, spec)],
        Some(array) => {
            let rts: Vec<_> = (0..array.devices).map(|number| of(row, rt, plan, number)).collect();
            SimBus::below_switch(&rts, &spec, array.above(plan))
        }
    };
    if let Some(pin) = plan.host.pin {
        buses.iter().for_each(|bus| bus.use_pin(pin == Pin::ReadBack));
    }
    buses
}

/// The devices on these buses.
pub(super) fn simulated_devices(
    row: &'static Row,
    rt: &Rt,
    buses: &[SimBus],
    plan: &Plan,
    state: Option<MediumState>,
) -> Result<Vec<Device>, RunError> {
    match (state, buses) {
        (Some(state), [bus]) => Ok(vec![simulated_device_on(row, rt, bus, state, plan)?]),
        (Some(_), _) => {
            Err(RunError::Other("the members of an array have no state in common".into()))
        }
        (None, _) => {
            let each = |(number, bus)| simulated_device(row, rt, bus, &of_member(plan, number));
            (0..).zip(buses).map(each).collect()
        }
    }
}

/// The host ports of these windows, in one host.
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

/// Shared memory and registers of host and device within this process.
///
/// # Errors
/// The interface does not support the plan, or memory is exhausted.
pub fn shared(row: &'static Row, plan: &Plan) -> Result<Shared, RunError> {
    row.require_live()?;
    device::check(row, plan)?;
    let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
    Shared::between_threads(bytes, base, (row.register_bytes)(plan))
        .map(|shared| shared.with_masks(row.masks))
        .map_err(RunError::Memory)
}

/// Memory shared by host and device, with a register window for each member of an array.
pub(super) fn shared_with_all(row: &'static Row, plan: &Plan) -> Result<Vec<Shared>, RunError> {
    let first = shared(row, plan)?;
    let more = row.members(plan).map_or(0, |array| array.devices - 1);
    let others = (0..more).map(|_| first.another());
    Ok(std::iter::once(first.clone()).chain(others).collect())
}

/// Executor of a member. Its request traces have queue numbers of their own.
fn of(row: &'static Row, rt: &Rt, plan: &Plan, number: u32) -> Rt {
    rt.queues_from((number * (row.queues)(plan.host.queues).traces) as u16)
}

/// Request traces of a world: first those of the array's members in order, then those of its stripe updates.
pub fn traces(row: &'static Row, plan: &Plan, sample_log2: u32) -> Traces {
    let each = (row.queues)(plan.host.queues).traces;
    let queues = row
        .members(plan)
        .map_or(each, |array| array.devices * each + u32::from(TRACE_QUEUES) * plan.host.queues);
    let depth = plan.host.queue_depth;
    Traces::new(queues, depth, host::slot_bits(depth), sample_log2, row.stages)
}

/// [`traces`], with spans if there is a timeline.
pub(super) fn traces_of(
    row: &'static Row,
    plan: &Plan,
    sample_log2: u32,
    has_timeline: bool,
) -> Traces {
    let traces = traces(row, plan, sample_log2);
    if has_timeline { traces.with_spans() } else { traces }
}

/// Configuration of the simulated bus for this interface.
pub fn sim_spec(row: &'static Row, plan: &Plan) -> SimSpec {
    let mut spec = plan.sim_spec();
    spec.register_bytes = (row.register_bytes)(plan);
    spec.masks = row.masks;
    spec.cores += (row.cores)(plan).own;
    (row.adjust)(plan, &mut spec);
    // Costs of the plan's other interfaces have no stage here.
    let of_array = if row.members(plan).is_some() { array::COSTS } else { &[] };
    spec.host_costs.retain(|cost| row.stages.contains(&cost.name) || of_array.contains(&cost.name));
    spec.device_costs.retain(|cost| row.stages.contains(&cost.name));
    spec
}

/// Starts a device on a simulated bus.
pub fn simulated_device(
    row: &'static Row,
    rt: &Rt,
    bus: &SimBus,
    plan: &Plan,
) -> Result<Device, RunError> {
    simulated_device_on(row, rt, bus, MediumState::new(plan)?, plan)
}

fn simulated_device_on(
    row: &'static Row,
    rt: &Rt,
    bus: &SimBus,
    state: MediumState,
    plan: &Plan,
) -> Result<Device, RunError> {
    let device = Device::start(row, bus.device(), state, Clock::Virtual, plan)?;
    if let Some(faults) = device.faults().cloned() {
        let (rt, bus) = (rt.clone(), bus.clone());
        rt.clone().spawn(async move {
            faults.link_down(&rt).await;
            bus.take_link_down();
        });
    }
    Ok(device)
}
