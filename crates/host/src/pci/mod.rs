//! PCI: from a machine of which nothing is known to functions with buses, addresses and interrupts.
//!
//! ```text
//!   find_roots ─► enumerate ─► Tree ─┬─► Devices    class drivers: bridge, storage, network
//!      numbers buses, sizes windows, ├─► route      the line of a pin: MP table, else up a bridge
//!      gives them places             └─► Vectors    MSI-X, vector by vector, in any order
//! ```
//!
//! Nobody is asked what firmware did. What cannot be served is left out and said ([`Trouble`]), and the rest
//! goes on: a function that lies harms itself. Every loop here is bounded by the numbers that there are
//! (256 buses, [`FUNCTIONS_MAX`] functions), whatever is read.

mod board;
mod class;
mod place;
mod routing;
mod scan;
mod slot;
mod vectors;

use alloc::vec::Vec;
use core::fmt;

use bus::pci::ConfigAccess;
use wire::pci::bar::{BarError, BarRequest};
use wire::pci::capability::{Express, Msi, Msix};
use wire::pci::{Bdf, Buses, Header, Layout, Space, Window, command, offset};

pub use board::Board;
pub use class::{Class, Device, Devices};
pub use place::Rooms;
pub use routing::{Line, Route, RouteError, Wires, route};
pub use scan::{Root, discover, enumerate, find_roots};
pub use slot::Slot;
pub use vectors::{Message, VectorError, Vectors};

/// Functions that are looked at, at most: more than a machine has, fewer than hostile hardware can show.
pub const FUNCTIONS_MAX: usize = 4096;

/// A base address register, and the window that it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Its number; a wide one takes the next, too.
    pub number: u8,
    /// What it asks for.
    pub request: BarRequest,
    /// Where its window lies; none: there was no room.
    pub at: Option<u64>,
}

/// A function that was found.
#[derive(Clone, Debug)]
pub struct Function {
    /// Where.
    pub at: Bdf,
    /// What it says of itself.
    pub header: Header,
    /// The bridge before it, by its number in the tree: the one whose secondary bus it is on. It comes
    /// before it.
    pub parent: Option<usize>,
    /// Of a bridge that works: its buses.
    pub buses: Option<Buses>,
    /// Its windows.
    pub bars: Vec<Bar>,
    /// Of a bridge: what it passes on, by [`Space`]; none: it has no such window.
    pub windows: [Option<Window>; 3],
    /// Of a bridge: its prefetchable window may lie above 4 GiB.
    pub wide: bool,
    /// Its MSI capability.
    pub msi: Option<Msi>,
    /// Its MSI-X capability.
    pub msix: Option<Msix>,
    /// Its PCI Express capability.
    pub express: Option<Express>,
}

impl Function {
    /// Whether it is a bridge to another PCI bus.
    pub fn is_bridge(&self) -> bool {
        self.header.layout == Layout::Bridge
    }

    /// The window of this number.
    pub fn bar(&self, number: u8) -> Option<&Bar> {
        self.bars.iter().find(|bar| bar.number == number)
    }

    /// Lets it answer for its windows, and reach memory.
    ///
    /// # Errors
    /// One of its windows has no place, and would answer where it must not.
    pub async fn enable(&self, bus: &impl ConfigAccess) -> Result<(), Trouble> {
        let mut on = command::BUS_MASTER;
        for bar in &self.bars {
            if bar.at.is_none() {
                return Err(Trouble { at: self.at, what: What::NoRoom { bar: *bar } });
            }
            on |= if bar.request.space == Space::Io { command::IO } else { command::MEMORY };
        }
        change_command(bus, self.at, on, 0).await;
        Ok(())
    }

    /// It answers no more, and reaches nothing.
    pub async fn disable(&self, bus: &impl ConfigAccess) {
        let off = command::IO | command::MEMORY | command::BUS_MASTER;
        change_command(bus, self.at, 0, off).await;
    }

    /// Lets it hold its interrupt pin, or forbids it.
    pub async fn allow_pin(&self, bus: &impl ConfigAccess, allow: bool) {
        let (on, off) = if allow { (0, command::INTX_DISABLE) } else { (command::INTX_DISABLE, 0) };
        change_command(bus, self.at, on, off).await;
    }
}

/// Changes bits of the command register. The status beside it is cleared by ones, so zeros are written.
async fn change_command(bus: &impl ConfigAccess, at: Bdf, on: u16, off: u16) {
    let word = bus.config_read(at, offset::COMMAND as u16).await;
    let command = (word as u16 | on) & !off;
    bus.config_write(at, offset::COMMAND as u16, command.into()).await;
}

/// What was found, bridges before what is behind them.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The functions.
    pub functions: Vec<Function>,
    /// What was left out, and why.
    pub troubles: Vec<Trouble>,
}

impl Tree {
    /// The function at this place.
    pub fn find(&self, at: Bdf) -> Option<&Function> {
        self.functions.iter().find(|function| function.at == at)
    }

    /// The functions of this class, subclass and programming interface.
    pub fn of_class(&self, class: u32) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(move |function| function.header.class == class)
    }

    /// How many bridges are between a function and its root bus.
    pub fn depth(&self, function: &Function) -> usize {
        core::iter::successors(self.parent(function), |bridge| self.parent(bridge)).count()
    }

    /// The bridge before a function.
    pub fn parent(&self, function: &Function) -> Option<&Function> {
        self.functions.get(function.parent?)
    }

    fn trouble(&mut self, at: Bdf, what: What) {
        // A function has seven registers, three windows and a header to be troubled by.
        if self.troubles.len() < FUNCTIONS_MAX {
            self.troubles.push(Trouble { at, what });
        }
    }
}

/// What was left out of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Where.
    pub at: Bdf,
    /// Why.
    pub what: What,
}

/// Why something was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A header of a kind that nobody knows.
    Layout {
        /// Its number.
        found: u8,
    },
    /// A base address register without sense.
    Bar {
        /// Its number.
        number: u8,
        /// What is wrong with it.
        error: BarError,
    },
    /// No room for a window.
    NoRoom {
        /// The window.
        bar: Bar,
    },
    /// A bridge before it passes no ports on.
    NoPorts {
        /// The window.
        bar: Bar,
    },
    /// A bridge does not keep the numbers of its buses.
    Stuck {
        /// What it was told.
        wanted: Buses,
        /// What it reads.
        found: Buses,
    },
    /// A bridge for which no bus number is left.
    NoBuses {
        /// The last that there is.
        last: u8,
    },
    /// Two bridges say that this bus is behind them: the first is believed.
    Twice {
        /// The bus.
        bus: u8,
    },
    /// More functions than anybody looks at.
    TooMany,
    /// It answered, and then no more.
    Gone,
}

/// `02:00.0: ...`
impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.at)?;
        match self.what {
            What::Layout { found } => write!(f, "header type {found}, expected 0 or 1"),
            What::Bar { number, error } => write!(f, "BAR {number}: {error}"),
            What::NoRoom { bar } => {
                let (number, bytes) = (bar.number, bar.request.bytes);
                write!(f, "BAR {number}: no room for its {bytes} bytes")
            }
            What::NoPorts { bar } => {
                write!(f, "BAR {}: a bridge before it passes no ports on", bar.number)
            }
            What::Stuck { wanted, found } => write!(
                f,
                "a bridge was told buses {} to {} and has {} to {}",
                wanted.secondary, wanted.subordinate, found.secondary, found.subordinate
            ),
            What::NoBuses { last } => {
                write!(f, "no bus number is left for this bridge: the last is {last}")
            }
            What::Twice { bus } => write!(f, "bus {bus} is behind another bridge already"),
            What::TooMany => write!(f, "more than {FUNCTIONS_MAX} functions: the rest is left out"),
            What::Gone => f.write_str("it has gone while it was looked at"),
        }
    }
}

impl core::error::Error for Trouble {}
