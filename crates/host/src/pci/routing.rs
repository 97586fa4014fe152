//! Interrupt routing: the interrupt controller input of a function's pin, from the MP table; if the table
//! lacks the function's bus, from the entry of a bridge in front of it, by the standard rotation of pins.

use alloc::vec::Vec;

use wire::mp::{Entry, Kind, MpError, PCI, Polarity, Table, Trigger, Wire};
use wire::pci::{BUSES, Bdf, Pin};

use super::{Function, Tree};

/// Input of an interrupt controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Number of the controller in the table.
    pub controller: u8,
    /// Input number.
    pub input: u8,
    /// Active level.
    pub polarity: Polarity,
    /// Edge or level.
    pub trigger: Trigger,
}

/// Interrupt wires of PCI buses in a table.
#[derive(Clone, Debug)]
pub struct Wires(Vec<Wire>);

impl Wires {
    /// Reads the wires from a table.
    ///
    /// # Errors
    /// The table is malformed.
    pub fn read(table: &Table<'_>) -> Result<Wires, MpError> {
        let (mut is_pci, mut wires) = ([false; BUSES], Vec::new());
        for entry in table.entries() {
            match entry? {
                Entry::Bus { number, name } => is_pci[usize::from(number)] = name == PCI,
                Entry::Wire(wire) if wire.kind == Kind::Vectored => wires.push(wire),
                _ => {}
            }
        }
        wires.retain(|wire| is_pci[usize::from(wire.bus)]);
        Ok(Wires(wires))
    }

    /// Number of wires.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Line of this pin; `None` if the table lacks it.
    pub fn look_up(&self, bus: u8, device: u8, pin: Pin) -> Option<Line> {
        let same = |wire: &&Wire| wire.bus == bus && wire.pci() == (device, pin);
        self.0.iter().find(same).map(|wire| Line {
            controller: wire.controller,
            input: wire.input,
            polarity: wire.polarity,
            trigger: wire.trigger,
        })
    }
}

/// Route of a pin to its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Pin of the function itself.
    pub pin: Pin,
    /// Number of bridges passed until an entry of the table.
    pub bridges: usize,
    /// Function or bridge that the table lists.
    pub known: Bdf,
    /// Pin of that function or bridge.
    pub known_pin: Pin,
    /// Line.
    pub line: Line,
}

/// Why there is no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The function has no pin.
    #[error("the function has no interrupt pin")]
    NoPin,
    /// Neither it nor a bridge before it is in the table.
    #[error("the MP table has no entry for {pin} of {at}, nor for a device behind it")]
    NotListed {
        /// Last address looked up.
        at: Bdf,
        /// Its pin.
        pin: Pin,
    },
}

/// Finds the line of a function's pin.
///
/// # Errors
/// [`RouteError`] if there is none.
pub fn route(tree: &Tree, wires: &Wires, function: &Function) -> Result<Route, RouteError> {
    let own = function.header.pin.ok_or(RouteError::NoPin)?;
    let (mut at, mut pin, mut bridges) = (function, own, 0);
    loop {
        if let Some(line) = wires.look_up(at.at.bus(), at.at.device(), pin) {
            return Ok(Route { pin: own, bridges, known: at.at, known_pin: pin, line });
        }
        // Parents come before their children in the tree, so this terminates.
        let Some(bridge) = tree.parent(at) else {
            return Err(RouteError::NotListed { at: at.at, pin });
        };
        pin = pin.through_bridge(at.at.device());
        (at, bridges) = (bridge, bridges + 1);
    }
}
