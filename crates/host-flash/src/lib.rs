//! Flash software on the host: a block device over endpoints that have nothing but flash.
//!
//! ```text
//!   caller ─► Disk ─► ftl::Ftl ─► Remote: ftl::Pages ─► Endpoint ─► the bus
//!             copies    map,       places for pages      rings,
//!                       buffer,    that are read         pump    ◄─
//!                       collector
//! ```
//!
//! After the from-scratch SSD of Myoungsoo Jung and Mahmut Kandemir, "Challenges in Getting Flash Drives
//! Closer to CPU". The flash software is the same as a device's. What is between it and the flash is not:
//! each page operation is a command with a queue, an answer and the driver's costs on a core. A power cut
//! takes all of host memory, and the next start mounts what is on flash.
//!
//! [`Disk::read`] tells the story of one read.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]
extern crate alloc;

mod call;
mod copies;
mod disk;
mod endpoint;
mod flash;
mod store;

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
pub use flash::{Counts, Remote};
pub use host::nvme::Completion;

use endpoint::Endpoint;
use flash::Parts;
use host::InitError;
use store::Store;

/// The costs that a port is asked for: of a command for pages, its submission and its answer, and the context
/// switch where an interrupt tells of it; of the flash software, a unit that is looked up, one that is copied
/// to or from its caller, and one that the collector has in hand.
pub const COSTS: &[&str] = &["submit", "complete", "context switch", "map", "copy", "collect"];

/// The stages that this driver marks, beside its costs and those of the flash software.
pub const STAGES: &[&str] =
    &["operation wait", "slot wait", "room wait", "completion", "poll", "interrupt"];

/// The watchdog looks this many times within a time-out.
const TICKS_PER_TIMEOUT: u64 = 8;

/// How endpoints are driven.
#[derive(Clone, Debug)]
pub struct Options {
    /// Commands in flight at each endpoint, at most 1024.
    pub depth: u16,
    /// Reads, writes and flushes under way at once.
    pub operations: u16,
    /// The longest of them, bytes.
    pub transfer_bytes_max: u32,
    /// How answers are noticed. Where interrupts tell, each endpoint has the vector of its number.
    pub completion: Completion,
    /// Host memory for pages that are read, bytes.
    pub read_memory: u64,
    /// What the collector copies goes through host memory also within an endpoint.
    pub through_host: bool,
    /// An endpoint that holds a command for longer, or up to an eighth more, is given up.
    pub timeout: Span,
    /// The flash software.
    pub software: ftl::Options,
}

/// Places for spare bytes alone and for whole pages, of flash of this shape, with so much memory for pages.
///
/// # Errors
/// The memory that would do, in bytes: for the longest read, and for what one program may copy.
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

/// Host memory for the write buffer: what the host writes, and what the flash software does.
fn buffer_bytes(shape: &Shape, software: &ftl::Options) -> usize {
    let own = shape.group * shape.units + OWN_SLOTS;
    (software.slots + own) as usize * shape.unit_bytes as usize
}

/// Slots that the flash software asks for beside those of the host and a row in one plane, at most.
const OWN_SLOTS: u32 = 16;

/// Host memory that a driver takes of the arena, bytes, if these options can be had on such flash.
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
    // An arena gives powers of two.
    Ok(rings + parts.iter().map(|bytes| bytes.next_power_of_two()).sum::<u64>())
}

/// The driver: all endpoints of a device, and the flash software over them.
pub struct Driver<P: HostPort> {
    remote: Rc<Remote<P>>,
    software: Ftl<Remote<P>>,
    disks: Vec<Disk<P>>,
    timeout: Span,
}

impl<P: HostPort> Driver<P> {
    /// Starts all endpoints and mounts their flash. Answers are handled on the first port's core; each port
    /// has a disk.
    ///
    /// # Errors
    /// There is no such device, it cannot be served, it does not become ready in time, or its flash can't be
    /// mounted.
    pub async fn start(ports: Vec<P>, options: Options) -> Result<Driver<P>, InitError> {
        let (shape, count) = identify(&ports[0]).await?;
        let refuse = |what, found, expected| InitError::Unsupported { what, found, expected };
        let (bare, full) = places(&shape, &options).map_err(|least| {
            refuse("memory for pages", least, "no more than the plan has: that much is needed")
        })?;
        let arena = ports[0].arena();
        let page_bytes = (shape.units * shape.unit_bytes) as usize;
        let mut endpoints = Vec::new();
        for number in 0..count {
            let completion = match options.completion {
                kind @ (Completion::Polled | Completion::Hybrid) => kind,
                Completion::Interrupt { .. } => Completion::Interrupt { vector: number as u16 },
            };
            endpoints.push(Endpoint::new(&ports[0], number, options.depth, completion)?);
        }
        let room = buffer_bytes(&shape, &options.software);
        let store = Store::new(arena, bare, full, page_bytes)?;
        // The flash software asks for its buffer without a way to be refused.
        drop(arena.buffer(room)?);
        let remote = Rc::new(Remote::new(Parts {
            ports,
            endpoints,
            shape,
            store,
            through_host: options.through_host,
            interrupted: matches!(options.completion, Completion::Interrupt { .. }),
        }));
        let software = bring_up(&remote, &options).await?;
        remote.has_mounted();
        let disks = disk::disks(&remote, &software, &options);
        Ok(Driver { remote, software, disks, timeout: options.timeout })
    }

    /// The disk, for a caller on the core of the port of this number.
    pub fn disk(&self, number: usize) -> Disk<P> {
        self.disks[number % self.disks.len()].clone()
    }

    /// What the flash software has done.
    pub fn stats(&self) -> Stats {
        self.software.stats()
    }

    /// The flash software.
    pub fn software(&self) -> &Ftl<Remote<P>> {
        &self.software
    }

    /// What endpoints were asked for.
    pub fn counts(&self) -> Counts {
        self.remote.counts()
    }

    /// Host memory that the driver and its flash software take now, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.remote.memory_bytes()
    }

    /// Makes all durable, and takes the endpoints out of work.
    ///
    /// # Errors
    /// One does not answer in time.
    pub async fn stop(&self) -> Result<(), InitError> {
        if self.remote.is_gone() {
            return Err(InitError::Gone { register: "ID" });
        }
        // What can't be made durable is lost, as it would be in any SSD.
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

/// What the endpoints say of themselves, and how many they are.
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

/// Enables the endpoints, starts the tasks, and mounts. Should the flash be gone meanwhile, that is told.
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
        rt.spawn(endpoint::poll_completions(remote.clone(), number));
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
