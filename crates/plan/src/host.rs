//! The table `[host]`: memory, cores, how the driver works and what its software costs.

use ::host::nvme::{self, Policy, Sgl};
use bus::sim::NamedCost;
use runtime::Span;
use wire::BusAddr;

use super::Plan;
use super::fields::{Fields, Reader, Source::Due, Source::Welcome};

/// What software may cost on a host core, by the names under which drivers spend it. A plan gives
/// all of them: what is not on its path is `"0 ns"`, and says so.
pub const HOST_COSTS: &[&str] =
    &["submit", "complete", "context switch", "system call", "block driver", "benchmark"];

/// Where host memory begins unless a plan says otherwise: at 4 GiB, as that of any server does.
pub const MEMORY_BASE: BusAddr = BusAddr(1 << 32);

/// Where 32-bit registers and interrupts lie on the bus, up to 4 GiB: no place for host memory.
const REGISTERS_AT: u64 = 0xf000_0000;

/// Memory comes in pages of this many bytes.
const PAGE_BYTES: u64 = 4096;

#[derive(Clone, Debug)]
pub struct Host {
    /// Where the memory that the device may reach begins on the bus.
    pub memory_base: BusAddr,
    /// How much of it there is, bytes.
    pub memory_bytes: u64,
    pub cores: u32,
    /// How a driver learns of completions.
    pub completion: Completion,
    /// One turn of a polling loop.
    pub poll: Span,
    /// Taking an interrupt, from its arrival to the driver's handler: a device's, or a timer's.
    pub interrupt: Span,
    /// Completions that share an interrupt, and how long one waits for others, where they do.
    pub coalescing: Option<(u32, Span)>,
    pub doorbell: Doorbell,
    /// Whether NVMe's doorbells have shadows in memory; not unless a plan says so.
    pub shadow_doorbells: bool,
    /// Which buffers scatter gather lists describe; none unless a plan says so.
    pub sgl: Sgl,
    /// Making, or checking, what guards 512 bytes of data, where the host does it; none: the device alone
    /// makes and checks protection information.
    pub guard: Option<Span>,
    /// Commands in flight in each queue, at most.
    pub queue_depth: u32,
    /// Queues for reads and writes.
    pub queues: u32,
    /// How cores share queues, where an interface lets them.
    pub sharing: Option<Sharing>,
    /// What a kernel does with each piece of a request, where there is one.
    pub kernel: Option<Kernel>,
    /// How long a command may take without the device's progress before it is given up.
    pub timeout: Span,
    /// How often a command that failed for no lasting reason is tried again.
    pub retries: u32,
    /// What software costs, in the order of [`HOST_COSTS`].
    pub costs: Vec<NamedCost>,
}

/// A kernel's buffers between callers and a driver: the table `[host.kernel]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The longest piece that a request is cut into, bytes.
    pub buffer_bytes: u32,
    /// Copying 4 KiB between a buffer and the caller.
    pub copy: Span,
    /// A write is over for its caller when it lies in the kernel's buffers.
    pub write_behind: bool,
}

/// How cores share queues: the table `[host.sharing]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Which queue a command goes to.
    pub policy: Policy,
    /// Taking and giving back a lock whose word is at hand.
    pub lock: Span,
    /// The way of a word from one core's cache to another's.
    pub transfer: Span,
}

/// How a driver learns of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// It looks, again and again.
    Polled,
    /// It sleeps until a completion is to be expected, and looks then.
    Hybrid,
    Interrupt,
}

impl Completion {
    /// The driver's word for it; `vector` is that of its interrupts, where it has some.
    pub fn by(self, vector: u16) -> nvme::Completion {
        match self {
            Completion::Polled => nvme::Completion::Polled,
            Completion::Hybrid => nvme::Completion::Hybrid,
            Completion::Interrupt => nvme::Completion::Interrupt { vector },
        }
    }
}

impl Plan {
    /// For an interface whose driver looks for answers otherwise than NVMe's queues do.
    ///
    /// # Errors
    /// The host is to sleep before it looks.
    pub fn must_not_sleep(&self, interface: &str) -> Result<(), String> {
        match self.host.completion {
            Completion::Polled | Completion::Interrupt => Ok(()),
            Completion::Hybrid => Err(format!(
                "{}: interface {interface}: host.completion: found \"hybrid\", expected \"polled\" or \
                 \"interrupt\": only drivers on NVMe's queues sleep before they look",
                self.origin
            )),
        }
    }

    /// For an interface by whose driver data come without their protection information.
    ///
    /// # Errors
    /// The host is to check it.
    pub fn must_not_guard(&self, interface: &str) -> Result<(), String> {
        match self.host.guard {
            None => Ok(()),
            Some(_) => Err(format!(
                "{}: interface {interface}: host.protection: found \"host\", expected \"device\": only \
                 NVMe's own queues carry protection information",
                self.origin
            )),
        }
    }
}

/// When a driver rings the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    Each,
    /// Once for all commands that were submitted together.
    Batched,
}

pub(super) fn read(fields: Fields<'_>) -> Option<Host> {
    let paged = |address: u64| address.is_multiple_of(PAGE_BYTES);
    let memory_base = if fields.has("memory_base") {
        fields.address("memory_base", paged, "a multiple of 4096, as in \"0x1_0000_0000\"")
    } else {
        Some(MEMORY_BASE.0)
    };
    let sized = |bytes: u64| paged(bytes) && (1 << 20..=1 << 40).contains(&bytes);
    let expected = "whole pages of 4 KiB from \"1 MiB\" to \"1 TiB\"";
    let memory_bytes = fields.size("memory", Welcome, sized, expected);
    let cores = fields.number("cores", Welcome, 1..=64);
    let completion = fields.choice(
        "completion",
        &[
            ("polled", Completion::Polled),
            ("hybrid", Completion::Hybrid),
            ("interrupt", Completion::Interrupt),
        ],
    );
    let poll = fields.cost("poll");
    let interrupt = fields.cost("interrupt");
    let shared = fields.has("coalescing");
    let coalescing = if shared {
        fields.table("coalescing").and_then(coalescing)
    } else {
        Some((1, Span::ZERO))
    };
    let doorbell =
        fields.choice("doorbell", &[("each", Doorbell::Each), ("batched", Doorbell::Batched)]);
    let shadows = fields.has("shadow_doorbells");
    let shadow_doorbells = if shadows { fields.boolean("shadow_doorbells") } else { Some(false) };
    let lists = [("never", Sgl::Never), ("long", Sgl::Long), ("always", Sgl::Always)];
    let sgl = if fields.has("sgl") { fields.choice("sgl", &lists) } else { Some(Sgl::Never) };
    let by_host = if fields.has("protection") {
        fields.choice("protection", &[("device", false), ("host", true)])
    } else {
        Some(false)
    };
    let guard = if by_host == Some(true) { fields.cost("guard") } else { None };
    let queue_depth = fields.number("queue_depth", Welcome, 1..=4095);
    let queues = fields.number("queues", Welcome, 1..=63);
    let timeout = fields.span("timeout", Welcome, Span::us(1)..=Span::s(3600));
    let retries = fields.number("retries", Welcome, 0..=100);
    let costs = costs(&fields, HOST_COSTS);
    let shares = fields.has("sharing");
    let sharing = if shares { fields.table("sharing").and_then(sharing) } else { None };
    let copies = fields.has("kernel");
    let kernel = if copies { fields.table("kernel").and_then(kernel) } else { None };
    fields.done();
    Some(Host {
        memory_base: BusAddr(memory_base?),
        memory_bytes: memory_bytes?,
        cores: cores? as u32,
        completion: completion?,
        poll: poll?,
        interrupt: interrupt?,
        coalescing: coalescing.map(|limits| shared.then_some(limits))?,
        doorbell: doorbell?,
        shadow_doorbells: shadow_doorbells?,
        sgl: sgl?,
        guard: if by_host? { Some(guard?) } else { None },
        queue_depth: queue_depth? as u32,
        queues: queues? as u32,
        sharing: if shares { Some(sharing?) } else { None },
        kernel: if copies { Some(kernel?) } else { None },
        timeout: timeout?,
        retries: retries? as u32,
        costs: costs?,
    })
}

/// The words for policies, in plans and on the command line.
pub const POLICIES: [(&str, Policy); 4] = [
    ("single", Policy::Single),
    ("round-robin", Policy::RoundRobin),
    ("per-core", Policy::PerCore),
    ("pool", Policy::Pool),
];

/// Reads the table `[host.sharing]`.
fn sharing(fields: Fields<'_>) -> Option<Sharing> {
    let policy = fields.choice("policy", &POLICIES);
    let (lock, transfer) = (fields.cost("lock"), fields.cost("transfer"));
    fields.done();
    Some(Sharing { policy: policy?, lock: lock?, transfer: transfer? })
}

/// Reads the table `[host.kernel]`.
fn kernel(fields: Fields<'_>) -> Option<Kernel> {
    let sized = |bytes: u64| bytes.is_power_of_two() && (4096..=1 << 20).contains(&bytes);
    let expected = "a power of two from \"4 KiB\" to \"1 MiB\"";
    let buffer_bytes = fields.size("buffer", Due, sized, expected);
    let copy = fields.cost("copy");
    let write_behind = fields.boolean("write_behind");
    fields.done();
    let (copy, write_behind) = (copy?, write_behind?);
    Some(Kernel { buffer_bytes: buffer_bytes? as u32, copy, write_behind })
}

/// Reads the table `[host.coalescing]` (NVMe base 2.0, 5.27.1.6).
fn coalescing(fields: Fields<'_>) -> Option<(u32, Span)> {
    let completions = fields.number("completions", Welcome, 2..=256);
    let at_most = fields.span("at_most", Welcome, COALESCING_UNIT..=COALESCING_UNIT * 255);
    let whole = at_most.filter(|span| span.0.is_multiple_of(COALESCING_UNIT.0));
    if let (Some(span), None) = (at_most, whole) {
        fields.error("at_most", span.to_string(), "a multiple of \"100 us\"");
    }
    fields.done();
    Some((completions? as u32, whole?))
}

/// Its unit of time.
pub const COALESCING_UNIT: Span = Span::us(100);

/// The costs of these names, all of which have to be there: a driver asks for them by name.
pub fn costs(fields: &Fields<'_>, names: &'static [&'static str]) -> Option<Vec<NamedCost>> {
    let table = fields.table("costs")?;
    let costs: Vec<_> =
        names.iter().map(|name| table.cost(name).map(|span| NamedCost { name, span })).collect();
    table.done();
    costs.into_iter().collect()
}

/// Host memory lies apart from the registers and ends within the address space.
pub(super) fn check_place(reader: &Reader, host: &Host) {
    let (base, bytes) = (host.memory_base.0, host.memory_bytes);
    let apart = match base.checked_add(bytes) {
        Some(end) => end <= REGISTERS_AT || base >= 1 << 32,
        None => false,
    };
    if !apart {
        reader.error(
            "host.memory_base",
            format!("{bytes} bytes of memory from {base:#x}"),
            format!("memory that ends by {REGISTERS_AT:#x} or begins at 4 GiB or above"),
        );
    }
}
