//! The table `[host]`: memory, cores, driver configuration and software costs.

use ::host::nvme::{self, Policy, Sgl, SpinOrder};
use bus::sim::NamedCost;
use runtime::Span;
use wire::BusAddr;

use super::fields::{Fields, Reader, Source::Optional, Source::Required};
use super::{Plan, Unsupported};

/// Software costs on a host core, by stage name. A plan gives all of them, `"0 ns"` for those that are not on
/// its path.
pub const HOST_COSTS: &[&str] =
    &["submit", "complete", "context switch", "system call", "block driver", "benchmark"];

/// Default base address of host memory: 4 GiB, above the 32-bit MMIO window.
pub const MEMORY_BASE: BusAddr = BusAddr(1 << 32);

/// Start of the 32-bit window of registers and interrupts, which ends at 4 GiB. Host memory must not overlap
/// it.
const REGISTERS_AT: u64 = 0xf000_0000;

/// Page size of host memory in bytes.
const PAGE_BYTES: u64 = 4096;

#[derive(Clone, Debug)]
pub struct Host {
    /// Bus address of the memory that the device can access.
    pub memory_base: BusAddr,
    /// Size of that memory, bytes.
    pub memory_bytes: u64,
    pub cores: u32,
    /// Completion method of the driver.
    pub completion: Completion,
    /// Time of one iteration of a polling loop.
    pub poll: Span,
    /// Interrupt latency, from arrival to the driver's handler; also of timer interrupts.
    pub interrupt: Span,
    /// Interrupts by the pin, in virtual time; none: by messages.
    pub pin: Option<Pin>,
    /// Interrupt coalescing: threshold in completions, and the aggregation time; none: off.
    pub coalescing: Option<(u32, Span)>,
    pub doorbell: Doorbell,
    /// NVMe shadow doorbells are used; off by default.
    pub shadow_doorbells: bool,
    /// Transfers that use scatter-gather lists; none by default.
    pub sgl: Sgl,
    /// Time to generate or check the protection information of 512 bytes on the host; none: only the device
    /// generates and checks it.
    pub guard: Option<Span>,
    /// Maximum number of commands in flight in each queue.
    pub queue_depth: u32,
    pub queues: u32,
    /// Queue sharing between cores, for interfaces that support it.
    pub sharing: Option<Sharing>,
    /// Kernel buffering between callers and driver, if there is any.
    pub kernel: Option<Kernel>,
    /// The way of a call through a kernel. None: a call is the costs of its layers.
    pub path: Option<KernelPath>,
    /// Timeout of a command while the device makes no progress.
    pub timeout: Span,
    /// Number of retries of a command that failed with a transient error.
    pub retries: u32,
    /// Costs in the order of [`HOST_COSTS`].
    pub costs: Vec<NamedCost>,
}

/// A kernel's buffers between callers and a driver: the table `[host.kernel]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Maximum size of the pieces into which a request is split, bytes.
    pub buffer_bytes: u32,
    /// Time to copy 4 KiB between a buffer and the caller.
    pub copy: Span,
    /// A write completes to its caller once its data is in the kernel's buffers.
    pub write_behind: bool,
}

/// Work of a call through a kernel, by stage name: into it, per call, per piece, per line copied, per line
/// whose cached copies are written back or dropped for DMA, out of it.
/// The work of the driver on a piece is the cost "block driver".
pub const PATH_COSTS: &[&str] =
    &["call entry", "file layer", "block layer", "copy", "cache sync", "call exit"];

/// Bytes that the costs "copy" and "cache sync" of a [`KernelPath`] are of.
pub const LINE_BYTES: u32 = 64;

/// The way of a call through a kernel to a block driver: the table `[host.path]`.
#[derive(Clone, Debug)]
pub struct KernelPath {
    /// Maximum size of the pieces into which a request is split, one after the other, bytes.
    pub piece_bytes: u32,
    /// Costs in the order of [`PATH_COSTS`].
    pub costs: Vec<NamedCost>,
}

/// Queue sharing between cores: the table `[host.sharing]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Choice of the queue for a command.
    pub policy: Policy,
    /// Time to take and release an uncontended lock whose cache line is local.
    pub lock: Span,
    /// Time to transfer a cache line from one core to another.
    pub transfer: Span,
    /// Order in which waiting cores get a lock.
    pub order: SpinOrder,
    /// Core that takes in the completions of the first shared queue; none: drawn from the seed.
    pub home: Option<u32>,
}

/// Interrupts by a pin (INTx), a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// The handler ends after its doorbell.
    Plain,
    /// The handler reads a register after its doorbell, so that the pin is deasserted when it ends.
    ReadBack,
}

/// Completion method of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    Polled,
    /// Sleep until shortly before the expected completion, then polling.
    Hybrid,
    Interrupt,
}

impl Completion {
    /// The driver's completion mode; `vector` is used in interrupt mode only.
    pub fn by(self, vector: u16) -> nvme::Completion {
        match self {
            Completion::Polled => nvme::Completion::Polled,
            Completion::Hybrid => nvme::Completion::Hybrid,
            Completion::Interrupt => nvme::Completion::Interrupt { vector },
        }
    }
}

impl Plan {
    /// For an interface whose driver has no hybrid polling.
    ///
    /// # Errors
    /// `host.completion` is hybrid.
    pub fn reject_hybrid_polling(&self, interface: &str) -> Result<(), Unsupported> {
        let (origin, interface) = (self.origin.clone(), interface.to_owned());
        match self.host.completion {
            Completion::Polled | Completion::Interrupt => Ok(()),
            Completion::Hybrid => Err(Unsupported::HybridPolling { origin, interface }),
        }
    }

    /// For an interface whose driver does not transfer protection information.
    ///
    /// # Errors
    /// `host.protection` is `"host"`.
    pub fn reject_host_protection(&self, interface: &str) -> Result<(), Unsupported> {
        let (origin, interface) = (self.origin.clone(), interface.to_owned());
        match self.host.guard {
            None => Ok(()),
            Some(_) => Err(Unsupported::HostProtection { origin, interface }),
        }
    }
}

/// Doorbell policy of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    Each,
    /// Once per batch of commands that were submitted together.
    Batched,
}

pub(super) fn read(fields: Fields<'_>) -> Option<Host> {
    let memory_base = memory_base(&fields);
    let sized =
        |bytes: u64| bytes.is_multiple_of(PAGE_BYTES) && (1 << 20..=1 << 40).contains(&bytes);
    let expected = "whole pages of 4 KiB from \"1 MiB\" to \"1 TiB\"";
    let memory_bytes = fields.size("memory", Optional, sized, expected);
    let cores = fields.number("cores", Optional, 1..=64);
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
    let coalescing = fields.table_if("coalescing", coalescing);
    let pin = pin(&fields, completion);
    let doorbell =
        fields.choice("doorbell", &[("each", Doorbell::Each), ("batched", Doorbell::Batched)]);
    let shadow_doorbells = fields.boolean_or("shadow_doorbells", false);
    let lists = [("never", Sgl::Never), ("long", Sgl::Long), ("always", Sgl::Always)];
    let sgl = fields.choice_or("sgl", Sgl::Never, &lists);
    let by_host = fields.choice_or("protection", false, &[("device", false), ("host", true)]);
    let guard = if by_host == Some(true) { fields.cost("guard") } else { None };
    let queue_depth = fields.number("queue_depth", Optional, 1..=4095);
    let queues = fields.number("queues", Optional, 1..=63);
    let timeout = fields.span("timeout", Optional, Span::us(1)..=Span::s(3600));
    let retries = fields.number("retries", Optional, 0..=100);
    let costs = costs(&fields, HOST_COSTS);
    let sharing = fields.table_if("sharing", |table| sharing(table, cores.unwrap_or(1)));
    let kernel = fields.table_if("kernel", kernel);
    if fields.has("path") && fields.has("kernel") {
        fields.error("path", "both path and kernel", "one of the tables host.path and host.kernel");
    }
    let path = fields.table_if("path", path);
    fields.done();
    Some(Host {
        memory_base: BusAddr(memory_base?),
        memory_bytes: memory_bytes?,
        cores: cores? as u32,
        completion: completion?,
        poll: poll?,
        interrupt: interrupt?,
        pin: pin?,
        coalescing: coalescing?,
        doorbell: doorbell?,
        shadow_doorbells: shadow_doorbells?,
        sgl: sgl?,
        guard: if by_host? { Some(guard?) } else { None },
        queue_depth: queue_depth? as u32,
        queues: queues? as u32,
        sharing: sharing?,
        kernel: kernel?,
        path: path?,
        timeout: timeout?,
        retries: retries? as u32,
        costs: costs?,
    })
}

/// Reads the kind of interrupts.
fn pin(fields: &Fields<'_>, by: Option<Completion>) -> Option<Option<Pin>> {
    let kinds =
        [("messages", None), ("pin", Some(Pin::Plain)), ("pin-read-back", Some(Pin::ReadBack))];
    let pin = fields.choice_or("interrupts", None, &kinds)?;
    let others = [
        ("completion", by != Some(Completion::Interrupt), "\"interrupt\""),
        ("coalescing", fields.has("coalescing"), "none: the pin is a level"),
    ];
    for (key, is_wrong, expected) in others {
        if pin.is_some() && is_wrong {
            fields.error(key, "another", format!("{expected}, with host.interrupts by the pin"));
        }
    }
    Some(pin)
}

fn memory_base(fields: &Fields<'_>) -> Option<u64> {
    let paged = |address: u64| address.is_multiple_of(PAGE_BYTES);
    let expected = "a multiple of 4096, as in \"0x1_0000_0000\"";
    fields.or("memory_base", MEMORY_BASE.0, |key| fields.address(key, paged, expected))
}

/// Policies by their name in plans and on the command line.
pub const POLICIES: [(&str, Policy); 4] = [
    ("single", Policy::Single),
    ("round-robin", Policy::RoundRobin),
    ("per-core", Policy::PerCore),
    ("pool", Policy::Pool),
];

/// Orders in which waiting cores get a lock, by their name in plans and on the command line.
pub const LOCK_ORDERS: [(&str, SpinOrder); 2] =
    [("unfair", SpinOrder::Unfair), ("fair", SpinOrder::Fair)];

/// Reads the table `[host.sharing]` of a host of `cores` cores.
fn sharing(fields: Fields<'_>, cores: u64) -> Option<Sharing> {
    let policy = fields.choice("policy", &POLICIES);
    let (lock, transfer) = (fields.cost("lock"), fields.cost("transfer"));
    let order = fields.choice_or("order", SpinOrder::Unfair, &LOCK_ORDERS);
    let home = fields.given("home", |key| fields.number(key, Optional, 0..=cores - 1));
    fields.done();
    let home = home?.map(|home| home as u32);
    Some(Sharing { policy: policy?, lock: lock?, transfer: transfer?, order: order?, home })
}

/// Reads the table `[host.kernel]`.
fn kernel(fields: Fields<'_>) -> Option<Kernel> {
    let sized = |bytes: u64| bytes.is_power_of_two() && (4096..=1 << 20).contains(&bytes);
    let expected = "a power of two from \"4 KiB\" to \"1 MiB\"";
    let buffer_bytes = fields.size("buffer", Required, sized, expected);
    let copy = fields.cost("copy");
    let write_behind = fields.boolean("write_behind");
    fields.done();
    let (copy, write_behind) = (copy?, write_behind?);
    Some(Kernel { buffer_bytes: buffer_bytes? as u32, copy, write_behind })
}

/// Reads the table `[host.path]`.
fn path(fields: Fields<'_>) -> Option<KernelPath> {
    let sized = |bytes: u64| bytes.is_power_of_two() && (512..=1 << 20).contains(&bytes);
    let expected = "a power of two from \"512 B\" to \"1 MiB\"";
    let piece_bytes = fields.size("piece", Required, sized, expected);
    let costs = costs(&fields, PATH_COSTS);
    fields.done();
    Some(KernelPath { piece_bytes: piece_bytes? as u32, costs: costs? })
}

/// Reads the table `[host.coalescing]` (NVMe base 2.0, 5.27.1.6).
fn coalescing(fields: Fields<'_>) -> Option<(u32, Span)> {
    let completions = fields.number("completions", Optional, 2..=256);
    let at_most = fields.span("at_most", Optional, COALESCING_UNIT..=COALESCING_UNIT * 255);
    let whole = at_most.filter(|span| span.0.is_multiple_of(COALESCING_UNIT.0));
    if let (Some(span), None) = (at_most, whole) {
        fields.error("at_most", span.to_string(), "a multiple of \"100 us\"");
    }
    fields.done();
    Some((completions? as u32, whole?))
}

/// Unit of the aggregation time (NVMe base 2.0, 5.27.1.6).
pub const COALESCING_UNIT: Span = Span::us(100);

/// The costs of these names. All of them are required.
pub fn costs(fields: &Fields<'_>, names: &'static [&'static str]) -> Option<Vec<NamedCost>> {
    let table = fields.table("costs")?;
    let costs: Vec<_> =
        names.iter().map(|name| table.cost(name).map(|span| NamedCost { name, span })).collect();
    table.done();
    costs.into_iter().collect()
}

/// Checks that host memory does not overlap the register window and ends within the address space.
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
