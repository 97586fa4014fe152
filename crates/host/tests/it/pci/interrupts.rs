//! Interrupt routing matches the hardware's wiring, through any depth of bridges.

use bus::pci::{Fabric, Topology};
use host::pci::{Board, Root, RouteError, Wires, enumerate, find_roots, route};
use proptest::prelude::*;
use wire::mp::{Builder, Entry, ISA, PCI, Table, Wire};
use wire::pci::{Bdf, Pin};

use super::{NVME, ROOMS, identity, on, row, run};

const ROOT: [Root; 1] = [Root { bus: 0, last: 255 }];

fn wires(entries: &[Entry]) -> Wires {
    let mut bytes = vec![0; 4096];
    let mut builder = Builder::new(&mut bytes, *b"TEST    ", *b"TEST        ").unwrap();
    entries.iter().for_each(|entry| builder.put(entry).unwrap());
    builder.finish();
    Wires::read(&Table::parse(&bytes).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(super::cases(48))]

    #[test]
    fn route_matches_hardware_wiring(
        devices in prop::collection::vec(0_u8..32, 0..5),
        device in 0_u8..32,
        pin in 0_u8..4,
        root in prop::sample::select(vec![0_u8, 200]),
        board in prop::sample::select(vec![Board::Pc, Board::Q35]),
    ) {
        run(async {
            let topology = Topology::new();
            let mut fabric = Fabric::Root(root);
            for bridge in devices {
                fabric = Fabric::Behind(topology.bridge(on(fabric, bridge), super::PCI_BRIDGE));
            }
            let node = topology.function(on(fabric, device), &identity(NVME, Pin::of(pin)), None);
            let roots = find_roots(&topology).await;
            let tree = enumerate(&topology, &roots, &ROOMS).await;
            let table = board.table(&roots).unwrap();
            let wires = Wires::read(&Table::parse(&table).unwrap()).unwrap();
            topology.set_pin(node, true);
            let held = topology.held();
            prop_assert_eq!(held.len(), 1);
            let (bus, device, pin) = held[0];
            let function = tree.of_class(0x01_0802).next().unwrap();
            let found = route(&tree, &wires, function).unwrap();
            prop_assert_eq!(Some(found.line), wires.look_up(bus, device, pin));
            prop_assert_eq!((found.known.bus(), found.known.device()), (bus, device));
            function.allow_pin(&topology, false).await;
            prop_assert!(topology.held().is_empty());
            Ok(())
        })?;
    }
}

/// The entry of a function's own bus takes precedence over that of a bridge in front of it.
#[test]
fn route_prefers_nearest_mp_table_entry() {
    let topology = Topology::new();
    let bridges = row(&topology, &[3, 9]);
    topology.function(on(Fabric::Behind(bridges[1]), 4), &identity(NVME, Pin::B), None);
    let tree = run(enumerate(&topology, &ROOT, &ROOMS));
    let nvme = tree.of_class(0x01_0802).next().unwrap();
    let bus = |number| Entry::Bus { number, name: PCI };
    let wire = |bus, device, pin, input| Entry::Wire(Wire::of_pci(bus, device, pin, 1, input));
    // INTB of device 4 is INTB of device 9 (1 + 4), and then INTC of device 3 (1 + 9).
    let rows = [
        (
            vec![
                bus(0),
                bus(1),
                bus(2),
                wire(0, 3, Pin::C, 5),
                wire(1, 9, Pin::B, 6),
                wire(2, 4, Pin::B, 7),
            ],
            0,
            7,
        ),
        (vec![bus(0), bus(1), wire(0, 3, Pin::C, 5), wire(1, 9, Pin::B, 6)], 1, 6),
        (vec![bus(0), wire(0, 3, Pin::B, 4), wire(0, 3, Pin::C, 5)], 2, 5),
    ];
    for (entries, bridges, input) in rows {
        let found = route(&tree, &wires(&entries), nvme).unwrap();
        assert_eq!((found.bridges, found.line.input), (bridges, input));
    }
    let isa = [Entry::Bus { number: 0, name: ISA }, wire(0, 3, Pin::C, 5)];
    let error = route(&tree, &wires(&isa), nvme).unwrap_err();
    assert_eq!(error, RouteError::NotListed { at: Bdf::new(0, 3, 0), pin: Pin::C });
    let text = "the MP table has no entry for INTC of 00:03.0, nor for a device behind it";
    assert_eq!(error.to_string(), text);
    let bridge = &tree.functions[0];
    assert_eq!(route(&tree, &wires(&isa), bridge).unwrap_err(), RouteError::NoPin);
}
