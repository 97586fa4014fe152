//! FTL on the host: a block device over endpoints that expose bare flash.
//!
//! ```text
//!   caller ─► Disk ─► ftl::Ftl ─► Remote: ftl::Pages ─► Endpoint ─► the bus
//!             copies    map,       places for pages      rings,
//!                       buffer,    that are read         poller  ◄─
//!                       GC
//! ```
//!
//! After the from-scratch SSD of Myoungsoo Jung and Mahmut Kandemir, "Challenges in Getting Flash Drives
//! Closer to CPU". The FTL is the same code as a device's. The path to the flash differs: each page operation
//! is a command with a queue, an answer and the driver's costs on a core. A power cut loses all of host
//! memory, and the next start mounts from flash.
//!
//! [`Disk::read`] shows the path of one read.
//!
//! It is not a driver for SSDs: the device must expose bare flash (`device::pages`). Data that were read
//! occupy places of host memory (`store.rs`). A call reserves all its places at once, so that no call waits
//! for places while it holds others, and a reader copies as soon as its pages are there, so that none of them
//! is evicted before. docs/flash-closer.md describes the interface.
//!
//! ```no_run
//! use bus::HostPort;
//! use host::InitError;
//! use host_flash::{Driver, Options};
//! use wire::Lba;
//!
//! async fn first_block(port: impl HostPort, options: Options) -> Result<[u8; 512], InitError> {
//!     let driver = Driver::start(vec![port.clone()], options).await?;
//!     let buffer = port.arena().buffer(4096)?;
//!     let (buffer, read) = driver.disk(0).read(Lba(0), buffer).await;
//!     read.expect("a readable block");
//!     let mut block = [0; 512];
//!     buffer.copy_out(0, &mut block);
//!     driver.stop().await?;
//!     Ok(block)
//! }
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
extern crate alloc;

mod call;
mod copies;
mod disk;
mod endpoint;
mod flash;
mod schedule;
mod store;
mod submit;

use alloc::rc::Rc;
use alloc::vec::Vec;

use bus::HostPort;
use ftl::{Ftl, MountError, Stats};
use runtime::Span;
use wire::pages::{
    BLOCKS, DIES, ENDPOINT, ENDPOINTS_MAX, Endpoint as Numbered, GROUP, ID, LIMITS, Limits, MAGIC,
    PAGES, PLANES, REACH, STRIDE, Shape, UNIT_BYTES, UNITS,
};

pub use disk::Disk;
pub use flash::{Counts, Memory, Remote};
pub use host::nvme::Completion;

use endpoint::Endpoint;
use flash::Parts;
use host::InitError;
use schedule::Schedule;
use store::Store;

/// Names of the host costs: a page command's submission, its answer, and the context switch after an
/// interrupt; of the FTL, a unit looked up, a unit copied from or to the caller, and a unit moved by GC; of a
/// caller, an operation handed to a core of the FTL, or its end noticed.
pub const COSTS: &[&str] =
    &["submit", "complete", "context switch", "map", "copy", "collect", "hand over"];

/// Stages recorded in addition to its costs and those of the FTL.
pub const STAGES: &[&str] =
    &["operation wait", "slot wait", "room wait", "completion", "poll", "interrupt"];

/// Checks of the watchdog per time-out.
const TICKS_PER_TIMEOUT: u64 = 8;

/// Options of the driver.
#[derive(Clone, Debug)]
pub struct Options {
    /// Commands in flight per endpoint, at most 1024.
    pub depth: u16,
    /// Commands outstanding at each die at most, at least 1; others wait on the host, and leave the slots to
    /// commands for other dies. `None`: no limit, and commands are submitted in the order of their calls.
    pub die_commands: Option<u16>,
    /// Most reads, writes and flushes in flight.
    pub operations: u16,
    /// Longest operation in bytes.
    pub transfer_bytes_max: u32,
    /// Completion mode. With interrupts, each endpoint uses the vector of its number.
    pub completion: Completion,
    /// Host memory for read pages in bytes.
    pub read_memory: u64,
    /// True if GC copies within an endpoint go through host memory too.
    pub through_host: bool,
    /// The last ports, this many, are on cores that run the FTL alone. 0: each operation's part of it runs on
    /// its caller's port, and the rest on the first.
    pub own_ports: u16,
    /// Age of a command at which its endpoint is given up; up to an eighth more.
    pub timeout: Span,
    /// Options of the FTL.
    pub software: ftl::Options,
}

/// Numbers of bare and of full places for flash of this shape with the configured memory.
///
/// # Errors
/// The required memory in bytes: for the longest read, and for the copies of one program.
pub fn places(shape: &Shape, options: &Options) -> Result<(u16, u16), u64> {
    let all = u32::MAX >> (32 - shape.planes);
    let row = shape.planes * shape.group;
    let bare = shape.dies * row + shape.dies * shape.units + u32::from(options.depth);
    let transfer = options.transfer_bytes_max.div_ceil(shape.unit_bytes) + 1;
    let page_bytes = u64::from(shape.units) * u64::from(shape.unit_bytes);
    let least = u64::from(shape.row_units(all).max(transfer) + 2);
    let full = options.read_memory / page_bytes;
    if full < least {
        return Err(least * page_bytes);
    }
    let most = u64::from(u16::MAX - 1) - u64::from(bare.min(1 << 15));
    Ok((bare.min(1 << 15) as u16, full.min(most) as u16))
}

/// Host memory of the write buffer: slots of the host and of the FTL.
fn buffer_bytes(shape: &Shape, software: &ftl::Options) -> usize {
    let own = shape.group * shape.units + OWN_SLOTS;
    (software.slots + own) as usize * shape.unit_bytes as usize
}

/// Most slots that the FTL uses beyond those of the host and one row in one plane.
const OWN_SLOTS: u32 = 16;

/// Arena memory of a driver in bytes, if these options are possible on such flash.
///
/// # Errors
/// As for [`places`].
pub fn arena_bytes(shape: &Shape, endpoints: u32, options: &Options) -> Result<u64, u64> {
    let (bare, full) = places(shape, options)?;
    let page_bytes = u64::from(shape.units * shape.unit_bytes);
    let rings = u64::from(endpoints) * (2 << 12).max(u64::from(options.depth) * 2 * 80);
    let parts = [
        (u64::from(bare) + u64::from(full)) * 256,
        u64::from(full) * page_bytes,
        buffer_bytes(shape, &options.software) as u64,
    ];
    // An arena allocates powers of two.
    Ok(rings + parts.iter().map(|bytes| bytes.next_power_of_two()).sum::<u64>())
}

/// Driver: all endpoints of a device, with the FTL over them.
pub struct Driver<P: HostPort> {
    remote: Rc<Remote<P>>,
    software: Ftl<Remote<P>>,
    disks: Vec<Disk<P>>,
    timeout: Span,
}

impl<P: HostPort> Driver<P> {
    /// Starts all endpoints and mounts their flash. Answers are processed on the first port's core, or on the
    /// FTL's own, the endpoints dealt out among them; each other port has a disk.
    ///
    /// # Errors
    /// No such device, it is not supported, it does not become ready in time, or its flash cannot be mounted.
    pub async fn start(ports: Vec<P>, options: Options) -> Result<Driver<P>, InitError> {
        let (shape, count) = identify(&ports[0]).await?;
        // A caller there must be.
        let own = usize::from(options.own_ports).min(ports.len() - 1);
        let first = if own > 0 { ports.len() - own } else { 0 };
        let refuse = |what, found, expected| InitError::Unsupported { what, found, expected };
        let (bare, full) = places(&shape, &options).map_err(|least| {
            refuse("memory for pages", least, "no more than the plan has: that much is needed")
        })?;
        let arena = ports[0].arena();
        let unit_bytes = shape.unit_bytes as usize;
        let page_bytes = shape.units as usize * unit_bytes;
        let mut endpoints = Vec::new();
        for number in 0..count {
            let completion = match options.completion {
                kind @ (Completion::Polled | Completion::Hybrid) => kind,
                Completion::Interrupt { .. } => Completion::Interrupt { vector: number as u16 },
            };
            let port = &ports[first + number as usize % own.max(1)];
            let schedule = options
                .die_commands
                .map(|most| Schedule::new(most.into(), shape.dies.div_ceil(count), bare + full));
            let number = (number, count);
            endpoints.push(Endpoint::new(port, number, options.depth, completion, schedule)?);
        }
        let room = buffer_bytes(&shape, &options.software);
        let store = Store::new(arena, bare, full, (page_bytes, unit_bytes))?;
        // The FTL allocates its buffer without error handling, so check here.
        drop(arena.buffer(room)?);
        let remote = Rc::new(Remote::new(Parts {
            ports,
            endpoints,
            shape,
            store,
            first,
            through_host: options.through_host,
            interrupted: matches!(options.completion, Completion::Interrupt { .. }),
        }));
        let software = bring_up(&remote, &options).await?;
        remote.has_mounted();
        let disks = disk::disks(&remote, &software, &options);
        Ok(Driver { remote, software, disks, timeout: options.timeout })
    }

    /// Disk for a caller on the core of port `number`.
    pub fn disk(&self, number: usize) -> Disk<P> {
        self.disks[number % self.disks.len()].clone()
    }

    /// Statistics of the FTL.
    pub fn stats(&self) -> Stats {
        self.software.stats()
    }

    /// The FTL itself.
    pub fn software(&self) -> &Ftl<Remote<P>> {
        &self.software
    }

    /// Statistics of endpoint commands.
    pub fn counts(&self) -> Counts {
        self.remote.counts()
    }

    /// Host memory in use by the driver and its FTL.
    pub fn memory(&self) -> Memory {
        self.remote.memory(&self.software.stats())
    }

    /// Flushes, and disables the endpoints.
    ///
    /// # Errors
    /// An endpoint does not respond in time.
    pub async fn stop(&self) -> Result<(), InitError> {
        if self.remote.is_gone() {
            return Err(InitError::Gone { register: "ID" });
        }
        // Data that cannot be flushed is lost, as in any SSD.
        let _ = disk::or_gone(&self.remote, self.software.flush()).await;
        for endpoint in &self.remote.endpoints {
            if let Err(error) = endpoint.disable(self.timeout).await {
                self.remote.quarantine();
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Reads the flash shape and the number of endpoints.
async fn identify<P: HostPort>(port: &P) -> Result<(Shape, u32), InitError> {
    let id = port.read32(ID).await;
    if port.is_gone() || id == u32::MAX {
        return Err(InitError::Gone { register: "ID" });
    }
    let refuse = |what, found, expected| {
        Err(InitError::Unsupported { what, found: u64::from(found), expected })
    };
    if id != MAGIC {
        return refuse("ID", id, "the letters DPG1: an endpoint with flash");
    }
    let all = Numbered::from_bits(port.read32(ENDPOINT).await);
    let count = u32::from(all.of());
    if !(1..=ENDPOINTS_MAX).contains(&count) || all.number() != 0 {
        return refuse("ENDPOINT", all.into_bits(), "the first of 1 to 16");
    }
    for number in 1..count {
        let id = port.read32(number * STRIDE + ID).await;
        if id != MAGIC {
            return refuse("ID of an endpoint", id, "the letters DPG1: an endpoint with flash");
        }
    }
    let limits = Limits::from_bits(port.read32(LIMITS).await);
    if limits.entries_log2() < wire::pages::ENTRIES_LOG2_MAX {
        return refuse("LIMITS", limits.into_bits(), "rings of 1024 entries");
    }
    let shape = Shape {
        dies: port.read32(DIES).await,
        planes: port.read32(PLANES).await,
        blocks: port.read32(BLOCKS).await,
        pages: port.read32(PAGES).await,
        group: port.read32(GROUP).await,
        units: port.read32(UNITS).await,
        unit_bytes: port.read32(UNIT_BYTES).await,
        reach: port.read32(REACH).await,
    };
    if !shape.is_sense() || count > shape.dies {
        return refuse("DIES", shape.dies, "flash of a shape that makes sense");
    }
    Ok((shape, count))
}

/// Enables the endpoints, starts the tasks, and mounts. Fails if an endpoint is gone meanwhile.
async fn bring_up<P: HostPort>(
    remote: &Rc<Remote<P>>,
    options: &Options,
) -> Result<Ftl<Remote<P>>, InitError> {
    let rt = &remote.rt;
    for number in 0..remote.endpoints.len() {
        if let Err(error) = remote.endpoints[number].enable(options.timeout).await {
            remote.quarantine();
            return Err(error);
        }
        rt.spawn(poll_completions(remote.clone(), number));
    }
    rt.spawn(watch(remote.clone(), options.timeout));
    rt.spawn(remote.clone().mark());
    let begin = async {
        let refused = |_| InitError::Unsupported {
            what: "the table of bad blocks",
            found: 0,
            expected: "bits for each die",
        };
        remote.list_bad().await.map_err(refused)?;
        Ftl::mount(rt, remote.clone(), &options.software).await.map_err(of_mount)
    };
    match disk::or_gone(remote, begin).await {
        Some(mounted) => mounted,
        None => Err(InitError::Gone { register: "STATUS of an endpoint" }),
    }
}

fn of_mount(error: MountError) -> InitError {
    let (what, found) = match error {
        MountError::Shape => ("the shape of the flash", 0),
        MountError::Options => ("what the flash software is told", 0),
        MountError::Space { most } => ("units on good blocks", most),
        _ => ("the map on flash", 0),
    };
    InitError::Unsupported { what, found, expected: "flash that this software can mount" }
}

/// Task of an endpoint's completion poller. Gives all endpoints up when it ends.
async fn poll_completions<P: HostPort>(remote: Rc<Remote<P>>, number: usize) {
    remote.endpoints[number].poll_completions(&remote.store, &remote.gone).await;
    remote.give_up();
}

/// Gives the endpoints up if one of them holds a command for too long.
async fn watch<P: HostPort>(remote: Rc<Remote<P>>, timeout: Span) {
    let tick = Span((timeout.0 / TICKS_PER_TIMEOUT).max(1));
    while !remote.is_gone() {
        remote.rt.sleep(tick).await;
        let stuck = |endpoint: &Endpoint<P>| endpoint.is_stuck(TICKS_PER_TIMEOUT as u32);
        let mut any = remote.ports[0].is_gone();
        remote.endpoints.iter().for_each(|endpoint| any |= stuck(endpoint));
        if any {
            remote.give_up();
        }
    }
}
