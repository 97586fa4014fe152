//! Machine discovery: firmware's MP table with processors and interrupt wires, configuration space, and PCI
//! enumeration.

use alloc::vec::Vec;
use core::fmt;

use bus::pci::{ConfigAccess, Ecam, MemoryAccess, PortAccess, Ports};
use host::pci::{Board, Function, Rooms, Root, Tree, Wires, enumerate, find_roots};
use wire::mp::{Entry, Pointer, Table};
use wire::pci::{Bdf, Window};

use crate::cpu::{self, Registers};
use crate::loader;

/// Search areas for the MP floating pointer (MultiProcessor Specification 1.4, chapter 4). The word at 40Eh
/// is the segment of the extended BIOS data area.
const EBDA_SEGMENT: u64 = 0x40e;
const BASE_MEMORY_LAST: u64 = 0x9_fc00;
const ROM: u64 = 0xf_0000;
const KIB: usize = 1024;
const TABLE_MAX: usize = 64 * KIB;

/// Contents of the MP table.
pub struct Firmware {
    pub at: u32,
    /// Local APIC numbers of the enabled processors.
    pub processors: Vec<u8>,
    /// Number and address of each I/O APIC.
    pub controllers: Vec<(u8, u32)>,
    pub wires: Wires,
    /// True if the board has an IMCR, through which the 8259 interrupts bypass the APICs after reset.
    pub imcr: bool,
}

impl Firmware {
    /// Finds and parses the MP table.
    ///
    /// # Errors
    /// There is no table, or it is invalid.
    pub fn read() -> Result<Firmware, Why> {
        let segment = loader::firmware(EBDA_SEGMENT, 2).ok_or(Why("no BIOS data area"))?;
        let ebda = u64::from(u16::from_le_bytes([segment[0], segment[1]])) << 4;
        let places = [(ebda, KIB), (BASE_MEMORY_LAST, KIB), (ROM, 64 * KIB)];
        let pointer = places
            .into_iter()
            .find_map(|(at, bytes)| Some(Pointer::find(&loader::firmware(at, bytes)?)?.1));
        let pointer = pointer.ok_or(Why("firmware has left no MP table"))?;
        let bytes = loader::firmware(pointer.table.into(), TABLE_MAX);
        let bytes = bytes.ok_or(Why("the MP table is out of reach"))?;
        let table = Table::parse(&bytes).map_err(|_| Why("the MP table makes no sense"))?;
        let wires = Wires::read(&table).map_err(|_| Why("the MP table's wires make no sense"))?;
        let (mut processors, mut controllers) = (Vec::new(), Vec::new());
        for entry in table.entries().flatten() {
            match entry {
                Entry::Processor { apic, enabled: true, .. } => processors.push(apic),
                Entry::IoApic { number, enabled: true, at } => controllers.push((number, at)),
                _ => {}
            }
        }
        let imcr = pointer.imcr;
        Ok(Firmware { at: pointer.table, processors, controllers, wires, imcr })
    }
}

/// Error message of machine discovery.
#[derive(Clone, Copy, Debug)]
pub struct Why(pub &'static str);

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The processor's I/O ports and memory-mapped registers.
#[derive(Clone, Copy)]
pub struct Io;

impl PortAccess for Io {
    async fn port_read(&self, at: u16) -> u32 {
        cpu::in32(at)
    }

    async fn port_write(&self, at: u16, value: u32) {
        cpu::out32(at, value);
    }
}

impl MemoryAccess for Io {
    async fn memory_read(&self, at: u64) -> u32 {
        Registers::new(at, 4).map_or(u32::MAX, |word| word.read(0))
    }

    fn memory_write(&self, at: u64, value: u32) {
        if let Some(word) = Registers::new(at, 4) {
            word.write(0, value);
        }
    }
}

/// Access to memory, and to configuration space: memory-mapped if firmware has mapped it, else by ports.
#[derive(Clone, Copy)]
pub struct Bus {
    /// Address of memory-mapped configuration space; `None` if it is not mapped.
    pub mapped: Option<u64>,
}

impl ConfigAccess for Bus {
    async fn config_read(&self, of: Bdf, at: u16) -> u32 {
        match self.mapped {
            Some(base) => Ecam { memory: Io, at: base }.config_read(of, at).await,
            None => Ports(Io).config_read(of, at).await,
        }
    }

    async fn config_write(&self, of: Bdf, at: u16, value: u32) {
        match self.mapped {
            Some(base) => Ecam { memory: Io, at: base }.config_write(of, at, value).await,
            None => Ports(Io).config_write(of, at, value).await,
        }
    }
}

impl MemoryAccess for Bus {
    async fn memory_read(&self, at: u64) -> u32 {
        Io.memory_read(at).await
    }

    fn memory_write(&self, at: u64, value: u32) {
        Io.memory_write(at, value);
    }
}

/// A machine after PCI enumeration.
pub struct Machine {
    pub bus: Bus,
    pub board: Board,
    /// Root buses of the root complex.
    pub roots: Vec<Root>,
    pub tree: Tree,
}

impl Machine {
    /// Numbers the buses and places the windows, independent of firmware's configuration.
    ///
    /// # Errors
    /// The host bridge is unknown, and with it the address ranges for windows.
    pub async fn enumerate() -> Result<Machine, Why> {
        let board = Board::find(&Ports(Io)).await;
        let board = board.ok_or(Why("its host bridge is neither 440FX's nor Q35's"))?;
        let bus = Bus { mapped: board.mapped(&Ports(Io)).await };
        let roots = find_roots(&bus).await;
        // Addresses above 4 GiB are not mapped.
        let rooms = Rooms { wide: Window::CLOSED, ..board.rooms() };
        let tree = enumerate(&bus, &roots, &rooms).await;
        Ok(Machine { bus, board, roots, tree })
    }

    /// Number of configuration words, of 5 per function, that differ between ports and the memory map.
    pub async fn differs_by_ports(&self) -> usize {
        let mut differs = 0;
        for function in &self.tree.functions {
            for at in [0, 8, 0x10, 0x18, 0x3c] {
                let by_ports = Ports(Io).config_read(function.at, at).await;
                differs += usize::from(by_ports != self.bus.config_read(function.at, at).await);
            }
        }
        differs
    }

    /// Number of bridges between a function and its root bus.
    pub fn depth(&self, function: &Function) -> usize {
        self.tree.depth(function)
    }
}
