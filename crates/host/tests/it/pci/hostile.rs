//! Random configuration spaces: enumeration ends whatever is read, and its results are consistent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bus::pci::ConfigAccess;
use host::pci::{
    Board, FUNCTIONS_MAX, Root, Tree, What, Wires, discover, enumerate, find_roots, route,
};
use proptest::prelude::*;
use wire::mp::Table;
use wire::pci::{Bdf, Space};

use super::{ROOMS, run};

/// Random configuration words; writes are kept or dropped by mask.
struct Hostile {
    words: Vec<u32>,
    keeps: u32,
    /// If set, every bus has the same contents.
    same: bool,
    /// Number of devices per bus that respond.
    devices: u8,
    /// Number of reads answered before the device falls silent.
    patience: u64,
    written: RefCell<BTreeMap<(u16, u16), u32>>,
    asked: Cell<u64>,
}

impl Hostile {
    fn of(words: Vec<u32>) -> Hostile {
        Hostile {
            words,
            keeps: u32::MAX,
            same: true,
            devices: 32,
            patience: u64::MAX,
            written: RefCell::default(),
            asked: Cell::new(0),
        }
    }
}

impl ConfigAccess for Hostile {
    async fn config_read(&self, of: Bdf, at: u16) -> u32 {
        self.asked.set(self.asked.get() + 1);
        if self.asked.get() > self.patience || of.device() >= self.devices {
            return u32::MAX;
        }
        let base = if self.same { 0 } else { usize::from(of.bits()).wrapping_mul(7) };
        let own = self.words[(base + usize::from(at) / 4) % self.words.len()];
        let written = self.written.borrow().get(&(of.bits(), at)).copied().unwrap_or(own);
        written & self.keeps | own & !self.keeps
    }

    async fn config_write(&self, of: Bdf, at: u16, value: u32) {
        self.asked.set(self.asked.get() + 1);
        self.written.borrow_mut().insert((of.bits(), at), value);
    }
}

/// Upper bound of accesses: each function is read as a whole and has a few registers that are probed, and
/// 65,536 addresses are checked for a function.
const ACCESSES_MAX: u64 = FUNCTIONS_MAX as u64 * 160 + 6 * 65_536;

fn validate(tree: &Tree) -> Result<(), TestCaseError> {
    prop_assert!(tree.functions.len() <= FUNCTIONS_MAX);
    prop_assert!(tree.troubles.len() <= FUNCTIONS_MAX);
    let mut windows = Vec::new();
    for (index, function) in tree.functions.iter().enumerate() {
        prop_assert!(function.parent.is_none_or(|parent| parent < index));
        prop_assert!(tree.depth(function) < 256);
        for bar in &function.bars {
            let Some(at) = bar.at else { continue };
            let space = bar.request.space == Space::Io;
            let rooms = [ROOMS.io, ROOMS.memory, ROOMS.wide];
            prop_assert!(rooms.iter().any(|room| room.holds(at, bar.request.bytes)), "{bar:?}");
            windows.push((space, at, bar.request.bytes));
        }
    }
    windows.sort_unstable();
    let apart = |two: &[(bool, u64, u64)]| two[0].0 != two[1].0 || two[0].1 + two[0].2 <= two[1].1;
    prop_assert!(windows.windows(2).all(apart));
    Ok(())
}

const ROOT: [Root; 1] = [Root { bus: 0, last: 255 }];

fn all_of_it(hostile: &Hostile) -> Result<(), TestCaseError> {
    run(async {
        let tree = enumerate(hostile, &ROOT, &ROOMS).await;
        prop_assert!(hostile.asked.get() <= ACCESSES_MAX, "{} accesses", hostile.asked.get());
        validate(&tree)?;
        let table = Board::Pc.table(&ROOT).unwrap();
        let wires = Wires::read(&Table::parse(&table).unwrap()).unwrap();
        for function in &tree.functions {
            let _ = route(&tree, &wires, function);
        }
        hostile.asked.set(0);
        let tree = discover(hostile, &ROOT).await;
        prop_assert!(hostile.asked.get() <= ACCESSES_MAX, "{} accesses", hostile.asked.get());
        validate(&tree)
    })
}

proptest! {
    #![proptest_config(super::cases(24))]

    #[test]
    fn enumeration_of_random_config_space_is_bounded(
        mut words in prop::collection::vec(any::<u32>(), 16..80),
        header in prop::sample::select(vec![0_u32, 0, 0x80, 1, 1, 0x81, 0x7f]),
        keeps in prop::sample::select(vec![0, u32::MAX, 0x00ff_ff00, 0xfff0_fff0, 0x5555_5555]),
        same: bool,
        devices in prop::sample::select(vec![1_u8, 2, 32]),
        // Debug builds are slow: most cases end when the device falls silent.
        patience in prop::sample::select(vec![50_u64, 500, 3000, 10_000, 40_000]),
    ) {
        words[3] = header << 16;
        let hostile = Hostile { keeps, same, devices, patience, ..Hostile::of(words) };
        all_of_it(&hostile)?;
    }
}

/// Every function of every bus responds, with a different value at each read.
#[test]
fn enumeration_of_noise_is_bounded() {
    let words = (0..61_u32).map(|n| n.wrapping_mul(0x9e37_79b9) >> 3).collect();
    let hostile = Hostile { same: false, keeps: 0x5555_5555, ..Hostile::of(words) };
    all_of_it(&hostile).unwrap();
    hostile.asked.set(0);
    let roots = run(find_roots(&hostile));
    assert!(hostile.asked.get() <= ACCESSES_MAX && roots.len() <= 256);
}

/// Configuration words of a bridge that keeps everything written to it.
fn bridge() -> Vec<u32> {
    let mut words = vec![0; 64];
    (words[0], words[2], words[3]) = (0x0010_1b36, 0x0604_0000, 0x0001_0000);
    words
}

/// An endless chain of bridges.
#[test]
fn endless_bridge_chain_stops_at_256_buses() {
    let hostile = Hostile { devices: 1, ..Hostile::of(bridge()) };
    let tree = run(enumerate(&hostile, &ROOT, &ROOMS));
    validate(&tree).unwrap();
    assert_eq!(tree.functions.len(), 256);
    let text = "ff:00.0: no bus number is left for this bridge: the last is 255";
    let said = tree.troubles.iter().filter(|trouble| trouble.to_string() == text).count();
    assert_eq!(said, 1, "{:?}", tree.troubles);
}

/// 32 bridges on every bus.
#[test]
fn bridge_forest_stops_at_functions_max() {
    let hostile = Hostile::of(bridge());
    let tree = run(enumerate(&hostile, &ROOT, &ROOMS));
    validate(&tree).unwrap();
    assert_eq!(tree.functions.len(), FUNCTIONS_MAX);
    assert!(tree.troubles.iter().any(|trouble| trouble.what == What::TooMany));
}

/// A bridge that does not keep what is written to it.
#[test]
fn bridge_with_stuck_bus_numbers_is_skipped() {
    let hostile = Hostile { keeps: 0, devices: 2, ..Hostile::of(bridge()) };
    let tree = run(enumerate(&hostile, &ROOT, &ROOMS));
    assert_eq!(tree.functions.len(), 2);
    let text = "00:01.0: a bridge was told buses 1 to 255 and has 0 to 0";
    assert!(tree.troubles.iter().any(|trouble| trouble.to_string() == text), "{:?}", tree.troubles);
}

/// Two bridges with the same secondary bus, and one with its own bus.
#[test]
fn duplicate_secondary_bus_used_once() {
    for secondary in [1_u32, 0] {
        let mut words = bridge();
        words[6] = 0xff_0000 | secondary << 8;
        let hostile = Hostile { devices: 2, ..Hostile::of(words) };
        let tree = run(discover(&hostile, &ROOT));
        validate(&tree).unwrap();
        // Bus 0 is the root's: a bridge that claims it is not numbered at all.
        assert_eq!(tree.functions.len(), if secondary == 1 { 4 } else { 2 });
        let twice = tree.troubles.iter().filter(|t| t.what == What::Twice { bus: 1 }).count();
        assert_eq!(twice, if secondary == 1 { 3 } else { 0 });
    }
}

/// Windows longer than any address space.
#[test]
fn oversized_window_gets_no_address() {
    let mut words = vec![0; 64];
    (words[0], words[2]) = (0x0010_1b36, 0x0108_0200);
    (words[4], words[5]) = (0x0000_000c, 0x8000_0000);
    let hostile = Hostile { keeps: 0, devices: 1, ..Hostile::of(words) };
    let tree = run(enumerate(&hostile, &ROOT, &ROOMS));
    let text = format!("00:00.0: BAR 0: no room for its {} bytes", 1_u64 << 63);
    assert_eq!(tree.troubles.iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
}
