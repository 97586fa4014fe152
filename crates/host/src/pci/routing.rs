//! Which line of an interrupt controller a function's pin leads to: what the MP table says of its bus, and
//! where the table lacks that bus, what it says of the bridge before it, whose pin follows from how bridges
//! are wired.

use alloc::vec::Vec;
use core::fmt;

use wire::mp::{Entry, Kind, MpError, PCI, Polarity, Table, Trigger, Wire};
use wire::pci::{BUSES, Bdf, Pin};

use super::{Function, Tree};

/// An input of an interrupt controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The controller's number in the table.
    pub controller: u8,
    /// Its input.
    pub input: u8,
    /// When it is active.
    pub polarity: Polarity,
    /// What of it counts.
    pub trigger: Trigger,
}

/// The wires from PCI buses, as a table tells of them.
#[derive(Clone, Debug)]
pub struct Wires(Vec<Wire>);

impl Wires {
    /// Takes them out of a table.
    ///
    /// # Errors
    /// The table ends in something that makes no sense.
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The line of this pin, if the table has it.
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

/// How a pin gets to its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The function's own pin.
    pub pin: Pin,
    /// Bridges that it passes until the table knows of it.
    pub bridges: usize,
    /// The function or bridge of which the table knows.
    pub known: Bdf,
    /// The pin of that.
    pub known_pin: Pin,
    /// The line.
    pub line: Line,
}

/// Why there is no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// The function has no pin.
    NoPin,
    /// Neither it nor a bridge before it is in the table.
    NotListed {
        /// The last that was looked up.
        at: Bdf,
        /// Its pin.
        pin: Pin,
    },
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouteError::NoPin => f.write_str("the function has no interrupt pin"),
            RouteError::NotListed { at, pin } => {
                write!(f, "the MP table has no entry for {pin} of {at}, nor for a device behind it")
            }
        }
    }
}

impl core::error::Error for RouteError {}

/// Finds the line of a function's pin.
///
/// # Errors
/// There is none.
pub fn route(tree: &Tree, wires: &Wires, function: &Function) -> Result<Route, RouteError> {
    let own = function.header.pin.ok_or(RouteError::NoPin)?;
    let (mut at, mut pin, mut bridges) = (function, own, 0);
    loop {
        if let Some(line) = wires.look_up(at.at.bus(), at.at.device(), pin) {
            return Ok(Route { pin: own, bridges, known: at.at, known_pin: pin, line });
        }
        // Parents come before their children in the tree, so this ends.
        let Some(bridge) = tree.parent(at) else {
            return Err(RouteError::NotListed { at: at.at, pin });
        };
        pin = pin.through_bridge(at.at.device());
        (at, bridges) = (bridge, bridges + 1);
    }
}
