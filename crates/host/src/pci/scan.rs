//! Discovery of functions and numbering of buses.

use alloc::vec::Vec;

use bus::pci::ConfigAccess;
use wire::pci::capability::{Express, Msi, Msix, PortType};
use wire::pci::{BUSES, Bdf, Buses, DEVICES, FUNCTIONS, Header, Layout, offset};

use super::{FUNCTIONS_MAX, Function, Rooms, Tree, What, place};

/// Root bus, and the last bus number for its bridges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Hard-wired number of the bus.
    pub bus: u8,
    /// Last number that buses behind its bridges may have.
    pub last: u8,
}

/// Finds root buses: after all bridges are closed, only root buses still respond.
pub async fn find_roots(bus: &impl ConfigAccess) -> Vec<Root> {
    let mut roots: Vec<Root> = Vec::new();
    for number in 0..=u8::MAX {
        let mut answers = false;
        for at in places(number, DEVICES) {
            let first = bus.config_read(at, 0).await;
            let there = Header::read(&[first; 16][..]).is_some();
            answers |= there;
            if there && layout(bus, at).await == Layout::Bridge {
                bus.config_write(at, offset::PRIMARY, Buses::default().to_word()).await;
            }
        }
        if answers {
            if let Some(before) = roots.last_mut() {
                before.last = number - 1;
            }
            roots.push(Root { bus: number, last: u8::MAX });
        }
    }
    roots
}

/// First functions of `devices` devices.
fn places(bus: u8, devices: u8) -> impl Iterator<Item = Bdf> {
    (0..devices).map(move |device| Bdf::new(bus, device, 0))
}

async fn layout(bus: &impl ConfigAccess, at: Bdf) -> Layout {
    match bus.config_read(at, offset::HEADER_TYPE as u16 & !3).await >> 16 & 0x7f {
        0 => Layout::Device,
        1 => Layout::Bridge,
        other => Layout::Other(other as u8),
    }
}

/// Finds all functions, numbers the buses behind bridges, and assigns windows addresses in these ranges.
/// Overwrites the settings of firmware.
pub async fn enumerate(bus: &impl ConfigAccess, roots: &[Root], rooms: &Rooms) -> Tree {
    let mut tree = Tree::default();
    for root in roots {
        number(bus, *root, &mut tree).await;
    }
    place::place(bus, rooms, &mut tree).await;
    tree
}

/// Finds all functions by the bus numbers that firmware assigned, without changing anything. Windows are not
/// read.
pub async fn discover(bus: &impl ConfigAccess, roots: &[Root]) -> Tree {
    let mut tree = Tree::default();
    let mut seen = [false; BUSES];
    for root in roots {
        if core::mem::replace(&mut seen[usize::from(root.bus)], true) {
            continue;
        }
        let mut next = tree.functions.len();
        look(bus, root.bus, None, &mut tree).await;
        while let Some(found) = tree.functions.get(next) {
            let (at, is_bridge) = (found.at, found.is_bridge());
            next += 1;
            if !is_bridge {
                continue;
            }
            let buses = Buses::from_word(bus.config_read(at, offset::PRIMARY).await);
            if !buses.reach(buses.secondary) {
                continue;
            }
            if core::mem::replace(&mut seen[usize::from(buses.secondary)], true) {
                tree.trouble(at, What::Twice { bus: buses.secondary });
                continue;
            }
            tree.functions[next - 1].buses = Some(buses);
            look(bus, buses.secondary, Some(next - 1), &mut tree).await;
        }
    }
    tree
}

/// A bus being numbered: the bridge in front of it, and the bridges on it still to be numbered.
struct Level {
    bridge: Option<usize>,
    pending: Vec<usize>,
}

/// Depth first, so that the buses behind a bridge have consecutive numbers.
async fn number(bus: &impl ConfigAccess, root: Root, tree: &mut Tree) {
    let mut last = root.bus;
    let pending = look_and_close(bus, root.bus, None, tree).await;
    let mut levels = alloc::vec![Level { bridge: None, pending }];
    while let Some(level) = levels.last_mut() {
        let Some(bridge) = level.pending.pop() else {
            let done = levels.pop().and_then(|level| level.bridge);
            if let Some(bridge) = done {
                end(bus, bridge, last, tree).await;
            }
            continue;
        };
        let at = tree.functions[bridge].at;
        if last >= root.last {
            tree.trouble(at, What::NoBuses { last: root.last });
            continue;
        }
        // All remaining numbers, until the number of buses behind it is known.
        let wanted = Buses { primary: at.bus(), secondary: last + 1, subordinate: root.last };
        bus.config_write(at, offset::PRIMARY, wanted.to_word()).await;
        let found = Buses::from_word(bus.config_read(at, offset::PRIMARY).await);
        if found != wanted {
            tree.trouble(at, What::Stuck { wanted, found });
            continue;
        }
        last += 1;
        tree.functions[bridge].buses = Some(wanted);
        let pending = look_and_close(bus, last, Some(bridge), tree).await;
        levels.push(Level { bridge: Some(bridge), pending });
    }
}

/// Sets the last bus number behind a bridge.
async fn end(bus: &impl ConfigAccess, bridge: usize, last: u8, tree: &mut Tree) {
    let function = &mut tree.functions[bridge];
    if let Some(buses) = &mut function.buses {
        buses.subordinate = last;
        bus.config_write(function.at, offset::PRIMARY, buses.to_word()).await;
    }
}

/// Finds the functions of a bus and closes its bridges: two bridges with the same old numbers would both
/// respond. Returns the bridges, last first.
async fn look_and_close(
    bus: &impl ConfigAccess,
    number: u8,
    behind: Option<usize>,
    tree: &mut Tree,
) -> Vec<usize> {
    let first = tree.functions.len();
    look(bus, number, behind, tree).await;
    let found = first..tree.functions.len();
    let bridges: Vec<usize> =
        found.rev().filter(|index| tree.functions[*index].is_bridge()).collect();
    for bridge in &bridges {
        let at = tree.functions[*bridge].at;
        bus.config_write(at, offset::PRIMARY, Buses::default().to_word()).await;
    }
    bridges
}

/// Finds the functions of a bus.
async fn look(bus: &impl ConfigAccess, number: u8, behind: Option<usize>, tree: &mut Tree) {
    // A link has one device at its end.
    let is_link = behind
        .and_then(|bridge| tree.functions[bridge].express)
        .is_some_and(|express| matches!(express.port, PortType::Root | PortType::SwitchDownstream));
    for at in places(number, if is_link { 1 } else { DEVICES }) {
        let Some(first) = read(bus, at, tree).await else { continue };
        let more = if first.multifunction { FUNCTIONS } else { 1 };
        add(bus, at, first, behind, tree).await;
        for function in 1..more {
            let at = Bdf::new(number, at.device(), function);
            if let Some(next) = read(bus, at, tree).await {
                add(bus, at, next, behind, tree).await;
            }
        }
        if tree.functions.len() >= FUNCTIONS_MAX {
            return;
        }
    }
}

/// Reads the header of a function, if present. Nothing else is read for an unknown header type.
async fn read(bus: &impl ConfigAccess, at: Bdf, tree: &mut Tree) -> Option<Header> {
    let mut words = [0; 16];
    words[0] = bus.config_read(at, 0).await;
    Header::read(&words[..])?;
    for index in [1, 2, 3, offset::INTERRUPT / 4] {
        words[index] = bus.config_read(at, 4 * index as u16).await;
    }
    let header = Header::read(&words[..])?;
    if let Layout::Other(found) = header.layout {
        tree.trouble(at, What::Layout { found });
    }
    Some(header)
}

/// Reads the other registers of a function and adds it to the tree.
async fn add(
    bus: &impl ConfigAccess,
    at: Bdf,
    header: Header,
    parent: Option<usize>,
    tree: &mut Tree,
) {
    if matches!(header.layout, Layout::Other(_)) || tree.functions.len() >= FUNCTIONS_MAX {
        return;
    }
    let mut words = [0; 64];
    for (index, word) in words.iter_mut().enumerate() {
        *word = bus.config_read(at, 4 * index as u16).await;
    }
    let words = &words[..];
    tree.functions.push(Function {
        at,
        header,
        parent,
        buses: None,
        bars: Vec::new(),
        windows: [None; 3],
        wide: false,
        msi: Msi::find(words),
        msix: Msix::find(words),
        express: Express::find(words),
    });
    if tree.functions.len() == FUNCTIONS_MAX {
        tree.trouble(at, What::TooMany);
    }
}
