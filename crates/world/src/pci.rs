//! PCI of simulated machines. The device is a function behind a root port. Before the driver starts, the host
//! enumerates the hierarchy, assigns BARs and sets the interrupt vectors.

use bus::pci::{Fabric, NodeId, Place, Topology};
use bus::sim::{INTERRUPTS_AT, SimBus};
use host::pci::{Function, Message, Rooms, Root, Vectors, enumerate};
use wire::pci::{BridgeIdentity, Window};

use crate::error::{CheckError, RunError};
use crate::function::VENDOR;
use crate::interfaces::Row;
use plan::Plan;

/// The root port. Assumed: an unassigned device ID, as for the functions.
const ROOT_PORT: BridgeIdentity =
    BridgeIdentity { vendor: VENDOR, device: 0x0100, port: Some(4), wide: true };
const ROOT: Root = Root { bus: 0, last: 255 };

/// Windows of the root complex. Registers are below 4 GiB, as in the link budgets of the papers.
const ROOMS: Rooms = Rooms {
    io: Window { base: 0x1000, limit: 0xffff },
    memory: Window { base: 0xf000_0000, limit: 0xfebf_ffff },
    wide: Window { base: 0x80_0000_0000, limit: 0xff_ffff_ffff },
};

/// Upstream port and downstream ports of a switch.
const UPSTREAM: BridgeIdentity = BridgeIdentity { device: 0x0101, port: Some(5), ..ROOT_PORT };
const DOWNSTREAM: BridgeIdentity = BridgeIdentity { device: 0x0102, port: Some(6), ..ROOT_PORT };

/// Attaches the device to a root port, or several devices to the ports of a switch, and enumerates. A device
/// without a PCI function is connected to the link directly.
pub async fn bring_up(row: &'static Row, buses: &[SimBus], plan: &Plan) -> Result<(), RunError> {
    let Some(function) = row.function(plan) else { return Ok(()) };
    let topology = Topology::new();
    let mut port = topology.bridge(on(Fabric::Root(0), 1), ROOT_PORT);
    let switch = row.members(plan).is_some();
    if switch {
        port = topology.bridge(on(Fabric::Behind(port), 0), UPSTREAM);
    }
    for (number, bus) in (0..).zip(buses) {
        let port = match switch {
            true => topology.bridge(on(Fabric::Behind(port), number), DOWNSTREAM),
            false => port,
        };
        let at = on(Fabric::Behind(port), 0);
        let node: NodeId = topology.function(at, &function.identity, None);
        bus.pci_slot(&topology, node);
    }
    let tree = enumerate(&topology, &[ROOT], &ROOMS).await;
    if let Some(trouble) = tree.troubles.first() {
        return Err(RunError::Pci(*trouble));
    }
    // Enumeration finds the functions in the order of their ports.
    let mut found = tree.of_class(function.identity.class);
    for bus in buses {
        let found = found.next();
        let found = found.ok_or(RunError::FunctionNotFound)?;
        set_up(bus, &topology, found, plan.host.pin.is_some()).await?;
    }
    Ok(())
}

/// Checks that the interface's driver can be interrupted by a pin, if the plan has one: a pin is one vector,
/// and deasserted by a head doorbell.
///
/// # Errors
/// It cannot.
pub fn check_pin(row: &'static Row, plan: &Plan) -> Result<(), CheckError> {
    if plan.host.pin.is_none() {
        return Ok(());
    }
    let expected = if !["nvme", "scsi"].contains(&row.name) {
        format!("\"messages\": the driver of interface {} knows no pin", row.name)
    } else if plan.host.queues > 1 || plan.host.shadow_doorbells {
        "host.queues = 1, without shadow doorbells: a pin is one vector, deasserted by a doorbell"
            .into()
    } else {
        return Ok(());
    };
    Err(CheckError::found(plan, "host.interrupts", "a pin", expected))
}

/// Enables memory access and bus mastering of a function, and its pin or its vectors.
async fn set_up(
    bus: &SimBus,
    topology: &Topology,
    found: &Function,
    by_pin: bool,
) -> Result<(), RunError> {
    found.enable(topology).await?;
    found.allow_pin(topology, by_pin).await;
    let vectors = Vectors::find(topology, found)?;
    for vector in 0..vectors.count() {
        let message = Message { at: INTERRUPTS_AT, data: vector.into() };
        vectors.set(vector, message).await?;
    }
    vectors.use_them(!by_pin).await;
    let registers = found.bar(0).and_then(|bar| bar.at).unwrap_or_default();
    bus.map(registers);
    Ok(())
}

fn on(on: Fabric, device: u8) -> Place {
    Place { on, device, function: 0 }
}
