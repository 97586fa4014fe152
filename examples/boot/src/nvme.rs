//! Bring-up of an NVMe device: first by INTx on the line in firmware's MP table, then by MSI-X to the cores.

use alloc::format;
use alloc::string::{String, ToString};

use bus::Arena;
use host::nvme::{Completion, Controller, Options};
use host::pci::{Function, Line, Route, RouteError, Vectors, route};
use runtime::{Rt, Span};

use crate::apic::{self, IoApic};
use crate::console::verdict;
use crate::cpu::Registers;
use crate::machine::{Firmware, Machine};
use crate::policies;
use crate::port::Port;

/// Timeout of each step, sufficient on a busy host that emulates this machine.
const TIMEOUT: Span = Span::s(10);
/// Part of the register window in use, bytes: registers, and the doorbells of our queues.
const WINDOW_BYTES: u64 = 16 << 10;

pub struct Device {
    /// Location on the bus, as shown on the console.
    pub name: String,
    pub registers: Registers,
    /// Message of its vector 0.
    pub first_message: usize,
    /// Number of MSI-X vectors in use.
    pub vectors: u16,
    /// Port of the first core.
    pub port: Port,
    /// Controller, driven by the first core.
    pub controller: Controller<Port>,
}

/// Resources for the bring-up of devices.
pub struct Bench<'a> {
    pub rt: &'a Rt,
    pub arena: &'a Arena,
    pub machine: &'a Machine,
    pub firmware: &'a Firmware,
    /// Local APIC number of each core, the first core's first.
    pub cores: &'a [u8],
}

impl Bench<'_> {
    /// Starts the device of a function with MSI-X: vector 0 for admin commands, then one per core. Prints a
    /// verdict.
    pub async fn bring_up(&self, function: &Function, first_message: usize) -> Option<Device> {
        let depth = self.machine.depth(function);
        let name = format!("{} behind {depth} bridges", function.at);
        match self.try_to(function, first_message, &name).await {
            Ok(device) => Some(device),
            Err(why) => {
                verdict(format_args!("{name} comes up"), Err::<&str, _>(why));
                None
            }
        }
    }

    async fn try_to(
        &self,
        function: &Function,
        first_message: usize,
        name: &str,
    ) -> Result<Device, String> {
        let bus = &self.machine.bus;
        function.enable(bus).await.map_err(|error| error.to_string())?;
        let bar = function.bar(0).ok_or("it has no BAR 0")?;
        let at = bar.at.ok_or("BAR 0 has no place")?;
        let registers = Registers::new(at, bar.request.bytes.min(WINDOW_BYTES));
        let registers = registers.ok_or("BAR 0 is not mapped")?;
        let port = Port::new(self.rt, self.arena, registers, first_message);
        self.by_pin(function, &port, name).await?;
        let before = port.by_pin();
        let vectors = self.use_vectors(function, first_message).await?;
        let cores = self.cores.len();
        let queues = cores + policies::queues(cores);
        let controller = start(&port, Completion::Interrupt { vector: 0 }, queues).await?;
        let identity = controller.identity();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_ascii_end().to_string();
        let what = format!(
            "{}, firmware {}, {} blocks of {} bytes, {} queues, {} vectors",
            text(&identity.controller.mn),
            text(&identity.controller.fr),
            identity.geometry.blocks,
            identity.geometry.block_bytes,
            identity.queues,
            vectors,
        );
        let quiet = port.by_pin() == before;
        let result = if quiet { Ok(what) } else { Err("its pin interrupted".to_string()) };
        verdict(format_args!("{name} answers by MSI-X to this core"), result);
        let name = name.to_string();
        Ok(Device { name, registers, first_message, vectors, port, controller })
    }

    /// Starts the controller with INTx and shuts it down again; polled, with a timeout on each wait, if
    /// firmware does not list the pin.
    async fn by_pin(&self, function: &Function, port: &Port, name: &str) -> Result<(), String> {
        let bus = &self.machine.bus;
        let (by, line) = match route(&self.machine.tree, &self.firmware.wires, function) {
            Ok(Route { pin, known, known_pin, line, .. }) => {
                let input = line.input;
                (format!("on {pin}, which is {known_pin} of {known}: input {input}"), Some(line))
            }
            Err(RouteError::NotListed { at, pin }) => {
                (format!("polled, as the MP table says nothing of {pin} of {at}"), None)
            }
            Err(why @ RouteError::NoPin) => (format!("polled, as {why}"), None),
        };
        function.allow_pin(bus, line.is_some()).await;
        let completion = match line {
            Some(line) => {
                port.listen(Some(self.lead(&line)?));
                Completion::Interrupt { vector: 0 }
            }
            None => Completion::Polled,
        };
        let controller = start(port, completion, 1).await;
        let ended = match &controller {
            Ok(controller) => controller.shutdown().await.map_err(|error| error.to_string()),
            Err(why) => Err(why.clone()),
        };
        let times = port.by_pin();
        port.listen(None);
        let result = match ended {
            Ok(()) if line.is_some() && times == 0 => Err("no interrupt has come".to_string()),
            Ok(()) => Ok(format!("{by}, {times} interrupts")),
            Err(why) => Err(format!("{by}, {times} interrupts: {why}")),
        };
        verdict(format_args!("{name} comes up before it has vectors"), result);
        controller.map(drop)
    }

    fn lead(&self, line: &Line) -> Result<apic::Listened, String> {
        let known = self.firmware.controllers.iter();
        let mut of_line =
            known.filter(|(number, _)| *number == line.controller || line.controller == 0xff);
        let (_, at) = of_line.next().ok_or("the MP table has no such controller")?;
        let controller = IoApic::begin((*at).into()).ok_or("the I/O APIC is where memory is")?;
        let led = controller.lead(line, self.cores[0]);
        Ok(led.ok_or("the I/O APIC has no such input")?)
    }

    /// Sets the vectors for admin commands and each core's queue, in descending order: any order is allowed.
    async fn use_vectors(&self, function: &Function, first_message: usize) -> Result<u16, String> {
        let bus = &self.machine.bus;
        let vectors = Vectors::find(bus, function).map_err(|error| error.to_string())?;
        let count = vectors.count().min(self.cores.len() as u16 + 1);
        for vector in (0..count).rev() {
            let core = self.cores[usize::from(vector.saturating_sub(1))];
            let message = apic::message(core, first_message + usize::from(vector));
            vectors.set(vector, message).await.map_err(|error| error.to_string())?;
        }
        vectors.use_them(true).await;
        Ok(count)
    }
}

async fn start(
    port: &Port,
    admin_completion: Completion,
    queues: usize,
) -> Result<Controller<Port>, String> {
    let options = Options {
        queues: queues as u16,
        timeout: TIMEOUT,
        admin_timeout: TIMEOUT,
        ready_floor: TIMEOUT,
        ready_ceiling: TIMEOUT,
        admin_completion,
        ..Options::default()
    };
    Controller::start(port.clone(), options).await.map_err(|error| error.to_string())
}
