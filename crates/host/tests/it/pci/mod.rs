//! PCI enumeration on random modelled hierarchies and on malformed hardware. `PROPTEST_CASES=N` sets the
//! number of cases.

mod hierarchies;
mod hostile;
mod interrupts;

use bus::pci::{Fabric, NodeId, Place, Topology};
use proptest::test_runner::Config as ProptestConfig;
use runtime::{Log, Rt};
use wire::pci::{Bar, BridgeIdentity, Identity, MsixTable, Pin, Window};

use host::pci::Rooms;

/// Runs a future that never waits.
pub fn run<T>(what: impl Future<Output = T>) -> T {
    Rt::simulated(None, Log::Off).block_on(what)
}

/// Number of cases in debug builds, unless PROPTEST_CASES is set.
pub fn cases(here: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(here), ..ProptestConfig::default() }
}

/// Ranges of a board with memory below 2 GiB.
pub const ROOMS: Rooms = Rooms {
    io: Window { base: 0x1000, limit: 0xffff },
    memory: Window { base: 0xc000_0000, limit: 0xfebf_ffff },
    wide: Window { base: 0x8_0000_0000, limit: 0xf_ffff_ffff },
};

/// A function with these windows and this pin.
pub fn identity(bars: [Option<Bar>; 2], pin: Pin) -> Identity {
    let bar = bars.iter().flatten().map(|bar| bar.number as u8).next_back().unwrap_or(0);
    Identity {
        vendor: 0x0db1,
        device: 1,
        class: 0x01_0802,
        revision: 1,
        bars,
        msix: MsixTable { vectors: 8, bar, table: 0, pending: 2048 },
        pin: Some(pin),
        link_generation: 3,
        link_lanes: 4,
        serial: 1,
    }
}

/// Windows of an NVMe controller.
pub const NVME: [Option<Bar>; 2] = [
    Some(Bar { number: 0, bytes: 0x4000, wide: true, prefetchable: false }),
    Some(Bar { number: 4, bytes: 0x1000, wide: false, prefetchable: false }),
];

/// A bridge between conventional buses.
pub const PCI_BRIDGE: BridgeIdentity =
    BridgeIdentity { vendor: 0x0db1, device: 2, port: None, wide: true };

/// First function of a device on this bus.
pub fn on(on: Fabric, device: u8) -> Place {
    Place { on, device, function: 0 }
}

/// Creates a chain of bridges with these device numbers; returns them.
pub fn row(topology: &Topology, devices: &[u8]) -> Vec<NodeId> {
    let mut at = Fabric::Root(0);
    let mut bridges = Vec::new();
    for device in devices {
        let bridge = topology.bridge(on(at, *device), PCI_BRIDGE);
        at = Fabric::Behind(bridge);
        bridges.push(bridge);
    }
    bridges
}
