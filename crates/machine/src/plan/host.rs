//! The table `[host]`: memory, cores, how the driver works and what its software costs.

use bus::sim::NamedCost;
use runtime::Span;
use wire::BusAddr;

use super::fields::{Fields, Reader, Source::Welcome};

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

/// The host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Where the memory that the device may reach begins on the bus.
    pub memory_base: BusAddr,
    /// How much of it there is, bytes.
    pub memory_bytes: u64,
    /// Cores.
    pub cores: u32,
    /// How a driver learns of completions.
    pub completion: Completion,
    /// One turn of a polling loop.
    pub poll: Span,
    /// Taking an interrupt, from its arrival to the driver's handler.
    pub interrupt: Span,
    /// Completions that share an interrupt, and how long one waits for others, where they do.
    pub coalescing: Option<(u32, Span)>,
    /// When a driver rings.
    pub doorbell: Doorbell,
    /// Commands in flight in each queue, at most.
    pub queue_depth: u32,
    /// Queues for reads and writes.
    pub queues: u32,
    /// How long a command may take without the device's progress before it is given up.
    pub timeout: Span,
    /// How often a command that failed for no lasting reason is tried again.
    pub retries: u32,
    /// What software costs, in the order of [`HOST_COSTS`].
    pub costs: Vec<NamedCost>,
}

/// How a driver learns of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// It looks, again and again.
    Polled,
    /// It is interrupted.
    Interrupt,
}

/// When a driver rings the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// For each command.
    Each,
    /// Once for all commands that were submitted together.
    Batched,
}

/// Reads the host.
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
        &[("polled", Completion::Polled), ("interrupt", Completion::Interrupt)],
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
    let queue_depth = fields.number("queue_depth", Welcome, 1..=1024);
    let queues = fields.number("queues", Welcome, 1..=63);
    let timeout = fields.span("timeout", Welcome, Span::us(1)..=Span::s(3600));
    let retries = fields.number("retries", Welcome, 0..=100);
    let costs = costs(&fields, HOST_COSTS);
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
        queue_depth: queue_depth? as u32,
        queues: queues? as u32,
        timeout: timeout?,
        retries: retries? as u32,
        costs: costs?,
    })
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
pub(super) fn costs(fields: &Fields<'_>, names: &'static [&'static str]) -> Option<Vec<NamedCost>> {
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
