//! The driver side on independent hardware models: a QEMU machine without firmware and processor, reached
//! through its qtest socket.
//!
//! ```text
//!    doorbell hardware ─► host::pci, host::nvme ─► bus::qtest ── socket, shared memory ──► QEMU's devices
//! ```
//!
//! Its buses are numbered, its BARs assigned, and its interrupt router programmed. Then every function that
//! can assert its interrupt pin does so, and NVMe devices are brought up on their pins, switched to MSI-X,
//! and written and read with verification.
//!
//! It starts no QEMU: `tools/qemu-hardware` does, with each topology (docs/pci.md).
//!
//! ```console
//! $ doorbell hardware --qtest SOCKET --memory FILE
//! ```

mod error;
mod nvme;
mod pull;
mod usb;

use std::path::Path;

use bus::live::LiveHost;
use bus::pci::{ConfigAccess, Ecam, MemoryAccess, Ports};
use bus::qtest::{LINES, Machine};
use host::pci::{
    Board, Class, Function, Rooms, Route, RouteError, Slot, Tree, Wires, enumerate, find_roots,
    route,
};
use runtime::{Log, Rt, STD_CLOCK};
use wire::mp::Table;
use wire::pci::{Bdf, class};

pub use error::QemuError;

/// Memory below belongs to the board: the drivers' memory begins here, above any address that firmware uses.
const RESERVED: u64 = 16 << 20;
/// QEMU's name of the interrupt controller for devices, on both boards.
const IO_APIC: &str = "ioapic";
/// The board's timer runs while virtual time does; no pin is wired to its input.
const TIMER_INPUT: usize = 0;

#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Socket of QEMU's option `-qtest`.
    pub socket: &'a Path,
    pub memory: &'a Path,
    /// Verified operations per NVMe device.
    pub ios: u64,
    pub depth: u16,
    /// Seed for addresses and contents of operations.
    pub seed: u64,
    /// Surprise-removes, under I/O, the first NVMe device whose slot power can be switched; the others are
    /// checked afterwards.
    pub pull: bool,
}

struct Bench<'a> {
    rt: &'a Rt,
    bus: Bus,
    tree: Tree,
    wires: Wires,
}

/// The board's configuration space, and memory.
struct Bus {
    machine: Machine,
    /// Address of memory-mapped configuration space; `None`: access through I/O ports.
    mapped: Option<u64>,
}

impl ConfigAccess for Bus {
    async fn config_read(&self, of: Bdf, at: u16) -> u32 {
        match self.mapped {
            Some(base) => self.ecam(base).config_read(of, at).await,
            None => Ports(&self.machine).config_read(of, at).await,
        }
    }

    async fn config_write(&self, of: Bdf, at: u16, value: u32) {
        match self.mapped {
            Some(base) => self.ecam(base).config_write(of, at, value).await,
            None => Ports(&self.machine).config_write(of, at, value).await,
        }
    }
}

impl MemoryAccess for Bus {
    async fn memory_read(&self, at: u64) -> u32 {
        self.machine.memory_read(at).await
    }

    fn memory_write(&self, at: u64, value: u32) {
        self.machine.memory_write(at, value);
    }
}

impl Bus {
    fn ecam(&self, at: u64) -> Ecam<&Machine> {
        Ecam { memory: &self.machine, at }
    }
}

/// Runs all checks, reports line by line, and returns the numbers of passed and failed checks.
///
/// # Errors
/// There is no such machine, or it is of another kind.
pub fn check(wanted: &Wanted<'_>, say: &mut dyn FnMut(&str)) -> Result<(u32, u32), QemuError> {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let done = rt.block_on(async {
        let machine = Machine::open(&rt, wanted.socket, wanted.memory, RESERVED);
        let bench = set_up(&rt, machine?, say).await?;
        Ok(bench.check_all(wanted, say).await)
    });
    rt.drop_tasks();
    done
}

/// Driver endpoint for the first NVMe device of a machine, after enumeration, with this many vectors in use.
pub async fn first_nvme(
    rt: &Rt,
    socket: &Path,
    memory: &Path,
    vectors: u16,
) -> Result<LiveHost, QemuError> {
    let machine = Machine::open(rt, socket, memory, RESERVED)?;
    let bench = set_up(rt, machine, &mut |_| {}).await?;
    let Some(function) = bench.tree.of_class(class::NVME).next() else {
        return Err(QemuError::NoNvme);
    };
    nvme::by_vectors(&bench, function, vectors).await
}

/// Brings a machine from power-on to a state in which its functions can be driven.
async fn set_up<'a>(
    rt: &'a Rt,
    machine: Machine,
    say: &mut dyn FnMut(&str),
) -> Result<Bench<'a>, QemuError> {
    machine.intercept(IO_APIC).await?;
    let ports = Ports(&machine);
    let Some(board) = Board::find(&ports).await else {
        let host = ports.config_read(Bdf::new(0, 0, 0), 0).await;
        let (vendor, device) = (host & 0xffff, host >> 16);
        return Err(QemuError::Board { vendor, device });
    };
    let mapped = board.set_up(&ports).await;
    let bus = Bus { machine, mapped };
    let roots = find_roots(&bus).await;
    let rooms: Rooms = board.rooms();
    let begun = rt.now();
    let tree = enumerate(&bus, &roots, &rooms).await;
    let (took, accesses) = (rt.now().since(begun), bus.machine.accesses());
    let table = board.table(&roots)?;
    let wires = Table::parse(&table).and_then(|table| Wires::read(&table))?;
    let bench = Bench { rt, bus, tree, wires };
    say(&format!(
        "# {board:?}: {} functions on {} root buses, enumerated in {took}, {accesses} accesses so far",
        bench.tree.functions.len(),
        roots.len()
    ));
    bench.tree.functions.iter().for_each(|function| say(&format!("# {}", bench.row(function))));
    Ok(bench)
}

struct Verdicts<'a> {
    say: &'a mut dyn FnMut(&str),
    passed: u32,
    failed: u32,
}

impl Verdicts<'_> {
    fn take(&mut self, name: &str, result: Result<String, QemuError>) {
        match result {
            Ok(more) => {
                self.passed += 1;
                (self.say)(&format!("ok {name}: {more}"));
            }
            Err(why) => {
                self.failed += 1;
                (self.say)(&format!("not ok {name}: {why}"));
            }
        }
    }
}

impl Bench<'_> {
    /// A function as one line of text.
    fn row(&self, function: &Function) -> String {
        let indent = "  ".repeat(self.tree.depth(function));
        let what = match (Class::of(function), function.header.class) {
            (Some(Class::Bridge), _) => {
                let buses = function.buses.unwrap_or_default();
                format!("bridge to buses {:02x} to {:02x}", buses.secondary, buses.subordinate)
            }
            (_, class::NVME) => "NVMe".into(),
            (_, class) => format!("class {class:06x}"),
        };
        let line = match route(&self.tree, &self.wires, function) {
            Ok(Route { pin, known, known_pin, line, .. }) => {
                format!("{pin}, which is {known_pin} of {known}: input {}", line.input)
            }
            Err(why) => why.to_string(),
        };
        format!("{indent}{} {what}, {line}", function.at)
    }

    async fn check_all(&self, wanted: &Wanted<'_>, say: &mut dyn FnMut(&str)) -> (u32, u32) {
        let mut verdicts = Verdicts { say, passed: 0, failed: 0 };
        let troubles: Vec<String> = self.tree.troubles.iter().map(ToString::to_string).collect();
        let placed = match troubles.is_empty() {
            true => Ok("everything".into()),
            false => Err(QemuError::Found(troubles.join("; "))),
        };
        verdicts.take("every function has what it asks for", placed);
        for function in self.tree.of_class(usb::UHCI).chain(self.tree.of_class(usb::EHCI)) {
            let name = format!("{} raises the line that is predicted", function.at);
            verdicts.take(&name, self.raises(function, usb::raise(self, function)).await);
        }
        let (mut devices, mut pulled) = (0, !wanted.pull);
        for function in self.tree.of_class(class::NVME) {
            devices += 1;
            let slot = match self.tree.parent(function).filter(|_| !pulled) {
                Some(port) => Slot::of(&self.bus, port).await,
                None => None,
            };
            pulled |= slot.is_some();
            match slot {
                Some(slot) => pull::check(self, function, &slot, &mut verdicts).await,
                None => nvme::check(self, function, wanted, &mut verdicts).await,
            }
        }
        if !pulled {
            let why = "no NVMe device is in a slot whose power can be switched";
            verdicts.take("a device is pulled out", Err(QemuError::Found(why.into())));
        }
        let found = if devices > 0 {
            Ok(devices.to_string())
        } else {
            Err(QemuError::Found("none".into()))
        };
        verdicts.take("NVMe devices are found", found);
        let alive = self
            .bus
            .machine
            .gone()
            .map_or(Ok("it answers".into()), |gone| Err(QemuError::Found(gone.to_string())));
        verdicts.take("the machine lives", alive);
        (verdicts.passed, verdicts.failed)
    }

    fn predicted(&self, function: &Function) -> Result<Route, RouteError> {
        route(&self.tree, &self.wires, function)
    }

    /// Checks that `work` on a function raises its interrupt line, and no other.
    async fn raises(
        &self,
        function: &Function,
        work: impl Future<Output = Result<(), QemuError>>,
    ) -> Result<String, QemuError> {
        let found = self.predicted(function)?;
        let before = self.bus.machine.raised();
        let done = work.await;
        let lines = self.changed(before);
        let input = found.line.input;
        let way = format!("{}, {} bridges up", found.pin, found.bridges);
        match (done, &lines[..]) {
            (Ok(()), [line]) if *line == input => Ok(format!("{way}, is input {input}")),
            (done, _) => {
                let why = done.err().map(Box::new);
                Err(QemuError::Line { way, predicted: input, raised: lines, why })
            }
        }
    }

    /// Lines that were raised since `before`, except the timer's.
    fn changed(&self, before: [u32; LINES]) -> Vec<u8> {
        let now = self.bus.machine.raised();
        (0..LINES)
            .filter(|line| *line != TIMER_INPUT && now[*line] != before[*line])
            .map(|line| line as u8)
            .collect()
    }
}
