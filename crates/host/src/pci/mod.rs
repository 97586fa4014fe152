//! PCI: enumeration without firmware, from an unknown machine to functions with buses, addresses and
//! interrupts.
//!
//! ```text
//!   find_roots ─► enumerate ─► Tree ─┬─► Devices    class drivers: bridge, storage, network
//!      numbers buses, sizes windows, ├─► route      the line of a pin: MP table, else up a bridge
//!      gives them places             └─► Vectors    MSI-X, vector by vector, in any order
//! ```
//!
//! Buses are numbered depth first, without recursion. Windows are laid out from the leaves to the root
//! complex, longest first, so that they leave no gaps; windows that do not fit are omitted, longest first,
//! and reported. The interrupt line of a pin is looked up in the MP table for the function, then for the
//! bridge above it with the pin that the bridge's wiring gives, and so on upwards. For boards with published
//! wiring the driver writes that table itself ([`Board`]).
//!
//! Firmware settings are not used. Unsupported functions are skipped and reported ([`Trouble`]); a malformed
//! function affects only itself. Hardware is not trusted: a capability list may loop, a bridge may forget its
//! numbers, a bus may appear again behind its own bridge. So every loop is bounded by a constant (256 buses,
//! 48 capabilities, [`FUNCTIONS_MAX`] functions), never by a value read.

mod board;
mod class;
mod place;
mod routing;
mod scan;
mod slot;
mod vectors;

use alloc::vec::Vec;

use bus::pci::ConfigAccess;
use wire::pci::bar::{BarError, BarRequest};
use wire::pci::capability::{Express, Msi, Msix};
use wire::pci::{Bdf, Buses, Header, Layout, Space, Window, command, offset};

pub use board::Board;
pub use class::{Class, Device, Devices, StartError};
pub use place::Rooms;
pub use routing::{Line, Route, RouteError, Wires, route};
pub use scan::{Root, discover, enumerate, find_roots};
pub use slot::Slot;
pub use vectors::{Message, VectorError, Vectors};

/// Most functions that are examined: more than a machine has, fewer than malicious hardware can present.
pub const FUNCTIONS_MAX: usize = 4096;

/// A base address register with its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Number of the register; a 64-bit one uses the next too.
    pub number: u8,
    /// Size and kind of window requested.
    pub request: BarRequest,
    /// Address of the window; `None` if there was no space.
    pub at: Option<u64>,
}

/// A function found.
#[derive(Clone, Debug)]
pub struct Function {
    /// Bus, device and function number.
    pub at: Bdf,
    /// Configuration header.
    pub header: Header,
    /// Index in the tree of its parent, the bridge whose secondary bus it is on; less than its own index.
    /// `None` on a root bus.
    pub parent: Option<usize>,
    /// Bus numbers of a working bridge.
    pub buses: Option<Buses>,
    /// Windows.
    pub bars: Vec<Bar>,
    /// Windows forwarded by a bridge, by [`Space`]; `None` if it has no such window.
    pub windows: [Option<Window>; 3],
    /// True if a bridge's prefetchable window may be above 4 GiB.
    pub wide: bool,
    /// MSI capability.
    pub msi: Option<Msi>,
    /// MSI-X capability.
    pub msix: Option<Msix>,
    /// PCI Express capability.
    pub express: Option<Express>,
}

impl Function {
    /// Returns true for a bridge to another PCI bus.
    pub fn is_bridge(&self) -> bool {
        self.header.layout == Layout::Bridge
    }

    /// Window of this number.
    pub fn bar(&self, number: u8) -> Option<&Bar> {
        self.bars.iter().find(|bar| bar.number == number)
    }

    /// Enables its windows and bus mastering.
    ///
    /// # Errors
    /// One of its windows has no address, and would respond at a wrong one.
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

    /// Disables its windows and bus mastering.
    pub async fn disable(&self, bus: &impl ConfigAccess) {
        let off = command::IO | command::MEMORY | command::BUS_MASTER;
        change_command(bus, self.at, 0, off).await;
    }

    /// Enables or disables its interrupt pin.
    pub async fn allow_pin(&self, bus: &impl ConfigAccess, allow: bool) {
        let (on, off) = if allow { (0, command::INTX_DISABLE) } else { (command::INTX_DISABLE, 0) };
        change_command(bus, self.at, on, off).await;
    }
}

/// Changes bits of the command register. The adjacent status bits are write-one-to-clear, so zeros are
/// written.
async fn change_command(bus: &impl ConfigAccess, at: Bdf, on: u16, off: u16) {
    let word = bus.config_read(at, offset::COMMAND as u16).await;
    let command = (word as u16 | on) & !off;
    bus.config_write(at, offset::COMMAND as u16, command.into()).await;
}

/// Result of an enumeration; bridges come before the functions behind them.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Functions.
    pub functions: Vec<Function>,
    /// Skipped items with reasons.
    pub troubles: Vec<Trouble>,
}

impl Tree {
    /// Function at this address.
    pub fn find(&self, at: Bdf) -> Option<&Function> {
        self.functions.iter().find(|function| function.at == at)
    }

    /// Functions of this class, subclass and programming interface.
    pub fn of_class(&self, class: u32) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(move |function| function.header.class == class)
    }

    /// Number of bridges between a function and its root bus.
    pub fn depth(&self, function: &Function) -> usize {
        core::iter::successors(self.parent(function), |bridge| self.parent(bridge)).count()
    }

    /// Bridge in front of a function; `None` on a root bus.
    pub fn parent(&self, function: &Function) -> Option<&Function> {
        self.functions.get(function.parent?)
    }

    fn trouble(&mut self, at: Bdf, what: What) {
        // A function can cause one entry per register (seven), window (three) and header.
        if self.troubles.len() < FUNCTIONS_MAX {
            self.troubles.push(Trouble { at, what });
        }
    }
}

/// A function or bridge left out of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct Trouble {
    /// Address of the function.
    pub at: Bdf,
    /// Reason.
    pub what: What,
}

/// Why something was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum What {
    /// A header of an unknown type.
    #[error("header type {found}, expected 0 or 1")]
    Layout {
        /// Header type.
        found: u8,
    },
    /// A base address register without sense.
    #[error("BAR {number}: {error}")]
    Bar {
        /// Number of the register.
        number: u8,
        /// Error of the register.
        error: BarError,
    },
    /// No room for a window.
    #[error("BAR {}: no room for its {} bytes", bar.number, bar.request.bytes)]
    NoRoom {
        /// The window.
        bar: Bar,
    },
    /// A bridge before it passes no ports on.
    #[error("BAR {}: a bridge before it passes no ports on", bar.number)]
    NoPorts {
        /// The window.
        bar: Bar,
    },
    /// A bridge does not keep the numbers of its buses.
    #[error(
        "a bridge was told buses {} to {} and has {} to {}",
        wanted.secondary, wanted.subordinate, found.secondary, found.subordinate
    )]
    Stuck {
        /// Value written.
        wanted: Buses,
        /// Value read.
        found: Buses,
    },
    /// A bridge for which no bus number is left.
    #[error("no bus number is left for this bridge: the last is {last}")]
    NoBuses {
        /// Last usable number.
        last: u8,
    },
    /// Two bridges say that this bus is behind them: the first is believed.
    #[error("bus {bus} is behind another bridge already")]
    Twice {
        /// Bus number.
        bus: u8,
    },
    /// More functions than anybody looks at.
    #[error("more than {} functions: the rest is left out", FUNCTIONS_MAX)]
    TooMany,
    /// It answered, and then no more.
    #[error("it has gone while it was looked at")]
    Gone,
}
