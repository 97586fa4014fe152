//! Random hierarchies: every function is found, every window is reachable and disjoint from the others.

use bus::pci::{ConfigAccess, Fabric, MemoryAccess, NodeId, Topology};
use host::pci::{Class, Devices, Message, Root, Vectors, What, discover, enumerate, find_roots};
use proptest::prelude::*;
use wire::pci::{Bar, Bdf, BridgeIdentity, Layout, Pin, Space};

use super::{NVME, PCI_BRIDGE, ROOMS, identity, on, row, run};

const ROOT: [Root; 1] = [Root { bus: 0, last: 255 }];

/// Random parameters of one node.
#[derive(Clone, Debug)]
struct Drawn {
    bridge: bool,
    wide_bridge: bool,
    behind: prop::sample::Index,
    device: u8,
    function: u8,
    bars: [(u32, bool, bool); 2],
    pin: u8,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let bar = || (4_u32..26, any::<bool>(), any::<bool>());
    let place = (any::<bool>(), any::<bool>(), any::<prop::sample::Index>(), 0_u8..32, 0_u8..8);
    (place, bar(), bar(), 0_u8..4).prop_map(|(place, first, second, pin)| {
        let (bridge, wide_bridge, behind, device, function) = place;
        Drawn { bridge, wide_bridge, behind, device, function, bars: [first, second], pin }
    })
}

/// Builds the topology: root buses 0 and 128, nodes on any existing bus. Returns the functions.
fn build(drawn: &[Drawn]) -> (Topology, Vec<NodeId>) {
    let topology = Topology::new();
    let mut buses = vec![Fabric::Root(0), Fabric::Root(128)];
    let (mut taken, mut functions) = (Vec::new(), Vec::new());
    for node in drawn {
        let fabric = *node.behind.get(&buses);
        let place = bus::pci::Place {
            // A device is detected by its first function.
            function: if taken.contains(&(fabric, node.device, 0)) { node.function } else { 0 },
            ..on(fabric, node.device)
        };
        if taken.contains(&(fabric, node.device, place.function)) {
            continue;
        }
        taken.push((fabric, node.device, place.function));
        if node.bridge && buses.len() < 100 {
            let own = BridgeIdentity { wide: node.wide_bridge, ..PCI_BRIDGE };
            buses.push(Fabric::Behind(topology.bridge(place, own)));
        } else {
            let bar = |number, (log2, wide, prefetchable)| {
                Some(Bar { number, bytes: 1_u32 << log2, wide, prefetchable })
            };
            let bars = [bar(0, node.bars[0]), bar(4, node.bars[1])];
            functions.push(topology.function(place, &identity(bars, Pin::of(node.pin)), None));
        }
    }
    (topology, functions)
}

proptest! {
    #![proptest_config(super::cases(64))]

    #[test]
    fn windows_reachable_and_disjoint_in_random_hierarchies(drawn in prop::collection::vec(drawn(), 1..60)) {
        run(async {
            let (topology, functions) = build(&drawn);
            let roots = find_roots(&topology).await;
            let tree = enumerate(&topology, &roots, &ROOMS).await;
            let devices = tree.functions.iter().filter(|f| f.header.layout == Layout::Device);
            prop_assert_eq!(devices.clone().count(), functions.len());
            let unplaced = |f: &host::pci::Function| f.bars.iter().any(|bar| bar.at.is_none());
            for function in devices.clone().filter(|f| !unplaced(f)) {
                function.enable(&topology).await.unwrap();
            }
            let mut windows = Vec::new();
            for function in devices.filter(|f| !unplaced(f)) {
                let mut claims = Vec::new();
                for bar in &function.bars {
                    let at = bar.at.unwrap();
                    prop_assert!(at.is_multiple_of(bar.request.bytes), "{function:?}");
                    prop_assert!(bar.request.wide || at + bar.request.bytes <= 1 << 32, "{function:?}");
                    windows.push((at, bar.request.bytes));
                    for (place, offset) in [(at, 0), (at + bar.request.bytes - 4, bar.request.bytes - 4)] {
                        let claim = topology.claim(place, 4);
                        prop_assert!(claim.is_some(), "{place:#x} of {function:?}");
                        let claim = claim.unwrap();
                        prop_assert_eq!((claim.bar, claim.at), (bar.number, offset));
                        claims.push(claim.node);
                    }
                }
                prop_assert!(claims.windows(2).all(|two| two[0] == two[1]));
            }
            windows.sort_unstable();
            prop_assert!(windows.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
            // Every window without an address is reported as a trouble.
            let without: usize =
                tree.functions.iter().flat_map(|f| &f.bars).filter(|b| b.at.is_none()).count();
            let said = tree.troubles.iter().filter(|t| matches!(t.what, What::NoRoom { .. })).count();
            prop_assert_eq!(without, said);
            // A later discovery finds the same functions behind the same bridges.
            let again = discover(&topology, &roots).await;
            let seen = |tree: &host::pci::Tree| {
                let parent = |f| tree.parent(f).map(|bridge| bridge.at);
                let mut seen: Vec<_> = tree.functions.iter().map(|f| (f.at, parent(f))).collect();
                seen.sort_unstable();
                seen
            };
            prop_assert_eq!(seen(&again), seen(&tree));
            Ok(())
        })?;
    }
}

#[test]
fn find_roots_detects_all_root_buses() {
    let topology = Topology::new();
    for bus in [0, 3, 128] {
        topology.function(on(Fabric::Root(bus), 5), &identity(NVME, Pin::A), None);
    }
    let bridge = topology.bridge(on(Fabric::Root(3), 1), PCI_BRIDGE);
    topology.function(on(Fabric::Behind(bridge), 0), &identity(NVME, Pin::A), None);
    let roots = run(find_roots(&topology));
    let expected = [(0, 2), (3, 127), (128, 255)].map(|(bus, last)| Root { bus, last });
    assert_eq!(roots, expected);
}

#[test]
fn accesses_outside_enabled_windows_read_all_ones() {
    let topology = Topology::new();
    let bridges = row(&topology, &[3, 9]);
    topology.function(on(Fabric::Behind(bridges[1]), 4), &identity(NVME, Pin::A), None);
    run(async {
        assert_eq!(
            topology.config_read(Bdf::new(2, 4, 0), 0).await,
            u32::MAX,
            "no bus has a number"
        );
        let tree = enumerate(&topology, &ROOT, &ROOMS).await;
        let nvme = tree.of_class(0x01_0802).next().unwrap();
        assert_eq!((nvme.at, tree.depth(nvme)), (Bdf::new(2, 4, 0), 2));
        let at = nvme.bar(4).unwrap().at.unwrap();
        assert_eq!(topology.memory_read(at + 12).await, u32::MAX, "it has not been enabled");
        nvme.enable(&topology).await.unwrap();
        assert_eq!(topology.memory_read(at + 12).await, 1, "a vector is masked at first");
        assert_eq!(topology.memory_read(at + 4096).await, u32::MAX);
        assert_eq!(topology.config_read(Bdf::new(3, 4, 0), 0).await, u32::MAX);
        assert_eq!(topology.config_read(Bdf::new(2, 5, 0), 0).await, u32::MAX);
        // A bridge forwards less when its windows are reduced.
        topology.config_write(Bdf::new(1, 9, 0), 4, 0).await;
        assert_eq!(topology.memory_read(at + 12).await, u32::MAX);
    });
}

#[test]
fn removed_function_reads_all_ones() {
    let topology = Topology::new();
    let bridges = row(&topology, &[1, 2]);
    let node = topology.function(on(Fabric::Behind(bridges[1]), 0), &identity(NVME, Pin::A), None);
    run(async {
        let tree = enumerate(&topology, &ROOT, &ROOMS).await;
        let nvme = tree.of_class(0x01_0802).next().unwrap();
        nvme.enable(&topology).await.unwrap();
        let at = nvme.bar(4).unwrap().at.unwrap();
        assert!(topology.is_master(node) && topology.is_there(node));
        topology.remove(bridges[0]);
        assert!(!topology.is_master(node) && !topology.is_there(node));
        assert_eq!(topology.config_read(nvme.at, 0).await, u32::MAX);
        assert_eq!(topology.memory_read(at).await, u32::MAX);
        topology.memory_write(at, 1);
    });
}

#[test]
fn longest_windows_skipped_if_space_too_small() {
    let topology = Topology::new();
    let bar = |bytes| [Some(Bar { number: 0, bytes, wide: false, prefetchable: false }), None];
    for (device, bytes) in [(1, 1 << 31), (2, 1 << 29), (3, 1 << 29), (4, 1 << 12), (5, 1 << 20)] {
        topology.function(on(Fabric::Root(0), device), &identity(bar(bytes), Pin::A), None);
    }
    let tree = run(enumerate(&topology, &ROOT, &ROOMS));
    let placed = |device| tree.find(Bdf::new(0, device, 0)).unwrap().bars[0].at.is_some();
    assert_eq!([1, 2, 3, 4, 5].map(placed), [false, false, true, true, true]);
    let said: Vec<String> = tree.troubles.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "00:01.0: BAR 0: no room for its 2147483648 bytes",
            "00:02.0: BAR 0: no room for its 536870912 bytes",
        ]
    );
    let refused = run(tree.find(Bdf::new(0, 1, 0)).unwrap().enable(&topology));
    assert_eq!(refused.unwrap_err(), tree.troubles[0]);
}

#[test]
fn window_above_4g_needs_64bit_bridges() {
    let topology = Topology::new();
    let bars = [Some(Bar { number: 0, bytes: 1 << 24, wide: true, prefetchable: true }), None];
    for (device, wide) in [(1, true), (2, false)] {
        let own = BridgeIdentity { wide, ..PCI_BRIDGE };
        let bridge = topology.bridge(on(Fabric::Root(0), device), own);
        topology.function(on(Fabric::Behind(bridge), 0), &identity(bars, Pin::A), None);
    }
    let tree = run(enumerate(&topology, &ROOT, &ROOMS));
    let at = |bus| tree.find(Bdf::new(bus, 0, 0)).unwrap().bars[0].at.unwrap();
    assert!(ROOMS.wide.holds(at(1), 1 << 24) && ROOMS.memory.holds(at(2), 1 << 24));
    let window =
        |bus, space| tree.find(Bdf::new(0, bus, 0)).unwrap().windows[space as usize].unwrap();
    assert!(window(1, Space::Prefetchable).holds(at(1), 1 << 24));
    assert!(window(2, Space::Memory).holds(at(2), 1 << 24));
}

#[test]
fn class_devices_start_and_stop() {
    let topology = Topology::new();
    let bridges = row(&topology, &[1]);
    topology.function(on(Fabric::Behind(bridges[0]), 0), &identity(NVME, Pin::A), None);
    let network = host_network();
    topology.function(on(Fabric::Root(0), 2), &network, None);
    run(async {
        let tree = enumerate(&topology, &ROOT, &ROOMS).await;
        let mut devices = Devices::of(&tree);
        let classes: Vec<_> = devices.iter().map(|d| (d.class, d.unit, d.operational)).collect();
        // In tree order: a whole bus before the buses behind its bridges.
        let expected =
            [(Class::Bridge, 0, true), (Class::Network, 0, false), (Class::Storage, 0, false)];
        assert_eq!(classes, expected);
        devices.start(Class::Storage, 0, &tree, &topology).await.unwrap();
        let units = devices.iter().filter(|device| device.class == Class::Storage).count();
        let missing =
            devices.start(Class::Storage, units, &tree, &topology).await.expect_err("none");
        assert_eq!(missing.to_string(), format!("storage {units}: there is no such device"));
        assert!(devices.get(Class::Storage, 0).unwrap().operational);
        assert_eq!(topology.config_read(Bdf::new(1, 0, 0), 4).await & 6, 6);
        devices.stop(Class::Storage, 0, &tree, &topology).await;
        devices.stop(Class::Bridge, 0, &tree, &topology).await;
        assert_eq!(topology.config_read(Bdf::new(1, 0, 0), 4).await & 6, 0);
        assert_eq!(topology.config_read(Bdf::new(0, 1, 0), 4).await & 6, 6, "a bridge stays open");
    });
}

fn host_network() -> wire::pci::Identity {
    wire::pci::Identity { class: 0x02_0000, ..identity(NVME, Pin::A) }
}

#[test]
fn msix_vectors_set_in_any_order() {
    let topology = Topology::new();
    let node = topology.function(on(Fabric::Root(0), 3), &identity(NVME, Pin::A), None);
    run(async {
        let tree = enumerate(&topology, &ROOT, &ROOMS).await;
        let nvme = &tree.functions[0];
        nvme.enable(&topology).await.unwrap();
        let vectors = Vectors::find(&topology, nvme).unwrap();
        let message = |vector: u16| Message {
            at: 0x1000 + 4 * u64::from(vector),
            data: 100 + u32::from(vector),
        };
        vectors.set(7, message(7)).await.unwrap();
        vectors.set(0, message(0)).await.unwrap();
        assert_eq!(topology.message(node, 7), None, "they are not in use");
        vectors.use_them(true).await;
        vectors.set(3, message(3)).await.unwrap();
        for vector in 0..8 {
            let set = [0, 3, 7].contains(&vector);
            let Message { at, data } = message(vector);
            assert_eq!(topology.message(node, vector), set.then_some((at, data)), "{vector}");
        }
        vectors.mask(3, true).await.unwrap();
        assert_eq!(topology.message(node, 3), None);
        vectors.mask(3, false).await.unwrap();
        assert_eq!(topology.message(node, 3), Some((0x100c, 103)));
        let error = vectors.set(8, message(8)).await.unwrap_err();
        assert_eq!(error.to_string(), "vector 8, expected one below 8");
        vectors.use_them(false).await;
        assert_eq!(topology.message(node, 7), None);
    });
}
