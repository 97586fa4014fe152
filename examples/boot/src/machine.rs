//! What the machine is: what its firmware says of processors and wires, its configuration space, and what is
//! found there.

use alloc::vec::Vec;
use core::fmt;

use bus::pci::{ConfigAccess, Ecam, MemoryAccess, PortAccess, Ports};
use host::pci::{Board, Function, Rooms, Root, Tree, Wires, enumerate, find_roots};
use wire::mp::{Entry, Pointer, Table};
use wire::pci::{Bdf, Window};

use crate::cpu::{self, Registers};
use crate::loader;

/// Where firmware may leave the floating pointer (MultiProcessor Specification 1.4, chapter 4): where the
/// segment of its own data begins is the word at 40Eh.
const EBDA_SEGMENT: u64 = 0x40e;
const BASE_MEMORY_LAST: u64 = 0x9_fc00;
const ROM: u64 = 0xf_0000;
const KIB: usize = 1024;
const TABLE_MAX: usize = 64 * KIB;

/// What the MP table says.
pub struct Firmware {
    pub at: u32,
    /// The processors that may be used, by their local controllers' numbers.
    pub processors: Vec<u8>,
    /// The interrupt controllers for devices, by number and address.
    pub controllers: Vec<(u8, u32)>,
    pub wires: Wires,
    /// Interrupts go past the controllers until a register says otherwise.
    pub imcr: bool,
}

impl Firmware {
    /// Looks for the table, and reads it.
    ///
    /// # Errors
    /// There is none, or it makes no sense.
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

/// Why something is not there.
#[derive(Clone, Copy, Debug)]
pub struct Why(pub &'static str);

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Ports, as the processor has them.
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

/// Configuration space, mapped where firmware has mapped it, else by ports; and memory.
#[derive(Clone, Copy)]
pub struct Bus {
    /// Where configuration space is mapped.
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

/// A machine as it is after its enumeration.
pub struct Machine {
    /// How its configuration space is reached.
    pub bus: Bus,
    pub board: Board,
    /// The root complex's own buses.
    pub roots: Vec<Root>,
    pub tree: Tree,
}

impl Machine {
    /// Numbers its buses and gives windows places, whatever firmware has done: from `memory_end` on is what
    /// it has for windows.
    ///
    /// # Errors
    /// Of this board it is not known where windows may lie.
    pub async fn enumerate() -> Result<Machine, Why> {
        let board = Board::find(&Ports(Io)).await;
        let board = board.ok_or(Why("its host bridge is neither 440FX's nor Q35's"))?;
        let bus = Bus { mapped: board.mapped(&Ports(Io)).await };
        let roots = find_roots(&bus).await;
        // What lies above 4 GiB is not mapped.
        let rooms = Rooms { wide: Window::CLOSED, ..board.rooms() };
        let tree = enumerate(&bus, &roots, &rooms).await;
        Ok(Machine { bus, board, roots, tree })
    }

    /// How many of the functions' first words read otherwise by ports than where they are mapped.
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

    /// Bridges between a function and its root bus.
    pub fn depth(&self, function: &Function) -> usize {
        self.tree.depth(function)
    }
}
