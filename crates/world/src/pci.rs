//! Modelled machines have PCI: their device is a function behind a root port, which the driver's side finds,
//! gives its windows, and whose vectors it sets, before the driver itself comes to it.

use bus::pci::{Fabric, NodeId, Place, Topology};
use bus::sim::{INTERRUPTS_AT, SimBus};
use host::pci::{Function, Message, Rooms, Root, Vectors, enumerate};
use wire::pci::{BridgeIdentity, Window};

use crate::RunError;
use crate::function::VENDOR;
use crate::interfaces::Row;
use plan::Plan;

/// The root port. Assumed: a number that nobody has been assigned, as for the functions.
const ROOT_PORT: BridgeIdentity =
    BridgeIdentity { vendor: VENDOR, device: 0x0100, port: Some(4), wide: true };
const ROOT: Root = Root { bus: 0, last: 255 };

/// What a root complex passes on. Registers below 4 GiB, as link budgets of the papers have them.
const ROOMS: Rooms = Rooms {
    io: Window { base: 0x1000, limit: 0xffff },
    memory: Window { base: 0xf000_0000, limit: 0xfebf_ffff },
    wide: Window { base: 0x80_0000_0000, limit: 0xff_ffff_ffff },
};

/// A switch's port to what is above it, and one of those below.
const UPSTREAM: BridgeIdentity = BridgeIdentity { device: 0x0101, port: Some(5), ..ROOT_PORT };
const DOWNSTREAM: BridgeIdentity = BridgeIdentity { device: 0x0102, port: Some(6), ..ROOT_PORT };

/// Puts the device behind a root port, or several behind the ports of a switch, and enumerates. An interface
/// whose device is no PCI function stays where it is, at the end of the link.
pub async fn bring_up(row: &'static Row, buses: &[SimBus], plan: &Plan) -> Result<(), RunError> {
    let Some(function) = row.function else { return Ok(()) };
    let function = function(plan);
    let topology = Topology::new();
    let mut port = topology.bridge(on(Fabric::Root(0), 1), ROOT_PORT);
    let switch = (row.members)(plan).is_some();
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
        return Err(RunError::of(trouble));
    }
    // They are found in the order of their ports.
    let mut found = tree.of_class(function.identity.class);
    for bus in buses {
        let found = found.next();
        let found = found.ok_or_else(|| RunError("a device's function was not found".into()))?;
        set_up(bus, &topology, found).await?;
    }
    Ok(())
}

/// Lets the driver reach a function, and it the host.
async fn set_up(bus: &SimBus, topology: &Topology, found: &Function) -> Result<(), RunError> {
    found.enable(topology).await.map_err(RunError::of)?;
    let vectors = Vectors::find(topology, found).map_err(RunError::of)?;
    for vector in 0..vectors.count() {
        let message = Message { at: INTERRUPTS_AT, data: vector.into() };
        vectors.set(vector, message).await.map_err(RunError::of)?;
    }
    vectors.use_them(true).await;
    let registers = found.bar(0).and_then(|bar| bar.at).unwrap_or_default();
    bus.map(registers);
    Ok(())
}

fn on(on: Fabric, device: u8) -> Place {
    Place { on, device, function: 0 }
}
