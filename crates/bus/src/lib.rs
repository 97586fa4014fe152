//! What lies between a host and a device: host memory, registers, DMA, interrupts.
//!
//! A driver holds a [`HostPort`], a device a [`DevicePort`], and neither sees the other. Two buses stand
//! behind these faces:
//!
//! * [`sim`]: a PCIe link in virtual time. Doorbells, DMA and interrupts are TLPs; bytes land in host
//!   memory at the moment the model says.
//! * [`live`] (feature `std`): memory that two threads or two processes share. Doorbells are plain
//!   words, DMA is a bounds-checked copy.
//!
//! and, for drivers alone, [`vfio`] (feature `std`): a real PCI function behind an IOMMU; and
//! [`qtest`] (feature `std`): the hardware models of a QEMU. [`pci`] is what finds such functions:
//! configuration space, and a model of bridges.
//!
//! # The contract
//!
//! 1. A register write is *posted*: it returns at once and arrives later, in order. A register read
//!    waits, and what the device posted before it answers has landed when it returns.
//! 2. A device's [`write`](DevicePort::write) returns when the last byte has left, and
//!    [`publish`](DevicePort::publish) at once. Neither has landed yet. Strictly ordered postings land
//!    in the order in which they were made; a relaxed one may be overtaken by relaxed ones.
//! 3. What a posting wrote before its flag word is seen by a host that has loaded that word
//!    ([`Memory::load_u32`]: acquire). There is no other order between host and device than this, the
//!    doorbell's (what the host wrote before [`HostPort::write32`] is seen by a device that acts on
//!    it), the interrupt's (what was posted before it), the fetched entry's (what the host wrote before
//!    it stored an entry's last word is seen by a device that has [fetched](DevicePort::fetch) it), and
//!    that of the two fences: of two sides that each write, fence and then look at what the other
//!    writes, one at least sees the other's.
//! 4. Waiting is waiting for a change: [`HostPort::on_memory`], [`HostPort::on_interrupt`],
//!    [`DevicePort::on_registers`]. The check is asked at once, and then whenever the answer may have
//!    changed.
//! 5. An address from the other side is judged here: outside host memory it is a [`DmaError`], never
//!    an access.
#![no_std]
#![warn(missing_docs)]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

mod arena;
#[cfg(feature = "std")]
mod backing;
#[cfg(feature = "std")]
mod fd;
#[cfg(feature = "std")]
mod guard;
pub mod link;
#[cfg(feature = "std")]
pub mod listen;
#[cfg(feature = "std")]
pub mod live;
mod masks;
pub mod pci;
mod pieces;
#[cfg(feature = "std")]
pub mod qtest;
mod shared;
pub mod sim;
pub mod switch;
mod until;
#[cfg(feature = "std")]
pub mod vfio;
#[cfg(feature = "std")]
pub mod vfio_user;

use core::fmt;
use core::future::Future;

use runtime::{Rt, Time};
use wire::BusAddr;

pub use arena::{Arena, BUFFER_ALIGN, Buffer, OutOfMemory};
pub use masks::Masks;
pub use shared::{Memory, OutOfRange, REGION_ALIGN};
pub use until::until;

/// A contiguous piece of host memory, as a device addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first byte.
    pub at: BusAddr,
    /// Its length in bytes.
    pub bytes: u32,
}

/// What a device writes to host memory, lent piece by piece so that the bus copies it once.
pub trait Payload {
    /// Calls `put` with ascending offsets and the bytes there. Bytes that no call covers are not
    /// written: a medium that keeps only stamps hands out only stamps.
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable>;
}

/// The source of a payload could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

impl Payload for [u8] {
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable> {
        put(0, self);
        Ok(())
    }
}

/// Which bytes of a transfer are worth copying. The time it takes is that of the whole, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// All of them.
    All,
    /// The first `bytes` of every `of`: stamps.
    Heads {
        /// Bytes to copy.
        bytes: u32,
        /// The distance from one head to the next, in bytes.
        of: u32,
    },
}

/// How a posted write may land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting {
    /// The relaxed-ordering attribute: TLPs of this write may be overtaken by other relaxed ones.
    pub relaxed: bool,
    /// Which of its own words are flags.
    pub flags: Flags,
}

impl Posting {
    /// Strictly ordered, without flags of its own: seen by whoever sees a later flag.
    pub const STRICT: Posting = Posting { relaxed: false, flags: Flags::None };
}

/// Which words of a posted write are flags. A flag is always written, as zero where no run of the
/// payload covers it, and by itself, after the rest of what it speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    /// None.
    None,
    /// The last: a host that sees it changed sees the whole write, unless it is relaxed.
    Last,
    /// The last of each packet that [`wire::pcie::Pieces`] cuts with payloads of so many bytes: a host
    /// that sees it changed sees that packet.
    EachPacket(u32),
}

/// How often a fetch looks for entries where looking takes no time: live. On a modelled link it is once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// Once: for who has something else to do if there is nothing.
    Once,
    /// Again and again, for many passes, before it says that there is nothing: for who waits.
    Many,
}

/// In which order the bytes of a device's write become visible to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A write whose last word is seen is there as a whole ([`Flags::Last`]).
    InOrder,
    /// Each packet by itself ([`Flags::EachPacket`]), with payloads of so many bytes.
    ByPacket(u32),
}

/// What went wrong with a DMA transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaError {
    /// The other side named an address outside its memory.
    Address(OutOfRange),
    /// Our own source could not be read.
    Unreadable,
}

impl From<OutOfRange> for DmaError {
    fn from(error: OutOfRange) -> DmaError {
        DmaError::Address(error)
    }
}

impl From<Unreadable> for DmaError {
    fn from(_: Unreadable) -> DmaError {
        DmaError::Unreadable
    }
}

impl fmt::Display for DmaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DmaError::Address(error) => error.fmt(f),
            DmaError::Unreadable => f.write_str("the source of the transfer could not be read"),
        }
    }
}

impl core::error::Error for DmaError {}

/// A named cost of the plan, as a number in its side's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost(pub(crate) u8);

impl Cost {
    /// What a port gives for every name where the work itself costs.
    pub const NONE: Cost = Cost(0);
}

/// The bus as a driver sees it.
pub trait HostPort: Clone + 'static {
    /// The executor of this side.
    fn rt(&self) -> &Rt;

    /// Host memory that the device may reach.
    fn arena(&self) -> &Arena;

    /// Posts a write to the 32-bit register at this offset.
    fn write32(&self, register: u32, value: u32);

    /// Reads the 32-bit register at this offset: a round trip. All ones where no device answers.
    fn read32(&self, register: u32) -> impl Future<Output = u32>;

    /// Whether the device is known to be gone: its link is down, its process has died.
    fn is_gone(&self) -> bool;

    /// Waits until `check` gives something. It looks at words in these `bytes` bytes of host memory.
    fn on_memory<T>(
        &self,
        at: BusAddr,
        bytes: u32,
        check: impl FnMut() -> Option<T>,
    ) -> impl Future<Output = T>;

    /// Waits until the count of this vector's interrupts differs from `seen`, and returns it.
    fn on_interrupt(&self, vector: u16, seen: u32) -> impl Future<Output = u32>;

    /// A timer has woken the caller, who slept instead of waiting for memory: spends what that takes of its
    /// core. Nothing in the live world: there waking itself costs.
    fn woken(&self) -> impl Future<Output = ()> {
        core::future::ready(())
    }

    /// The order in which a device's writes become visible here.
    fn arrival(&self) -> Arrival;

    /// What this side has stored in host memory is visible before anything that it loads from now on.
    fn fence(&self);

    /// When that which ended this handle's last wait had come: bytes in memory, or an interrupt. What has
    /// passed since went into noticing it.
    fn noticed(&self) -> Time;

    /// The cost of this name. Asked for once, when a driver is built.
    fn cost(&self, name: &str) -> Cost;

    /// Spends a cost on the caller's core. Nothing in the live world: there the work itself costs.
    fn spend(&self, cost: Cost) -> impl Future<Output = ()>;

    /// Spends a cost so many times in a row.
    fn spend_times(&self, cost: Cost, times: u32) -> impl Future<Output = ()>;
}

/// The bus as a device sees it.
pub trait DevicePort: Clone + 'static {
    /// The executor of this side.
    fn rt(&self) -> &Rt;

    /// The 32-bit register at this offset, with acquire.
    fn load(&self, register: u32) -> u32;

    /// Sets the 32-bit register at this offset, with release.
    fn store(&self, register: u32, value: u32);

    /// Waits until `check` gives something. It looks at registers, and at what the device itself says
    /// with [`check_again`](DevicePort::check_again).
    fn on_registers<T>(&self, check: impl FnMut() -> Option<T>) -> impl Future<Output = T>;

    /// Something other than a register has changed that checks of registers look at.
    fn check_again(&self);

    /// Reads host memory, piece after piece, into `to`. Segments that hold more than `to` are cut.
    fn read(
        &self,
        from: &[Segment],
        to: &mut [u8],
        carry: Carry,
    ) -> impl Future<Output = Result<(), DmaError>>;

    /// Looks for entries of `entry_bytes` bytes in a ring in host memory: as many as `into` has room
    /// for, from `at` on. `is_new` is asked of the last word of one after the other, by number from 0;
    /// gives how many in a row are new, copied as they were when that word was stored. The request
    /// leaves with the call.
    fn fetch(
        &self,
        at: BusAddr,
        into: &mut [u8],
        entry_bytes: usize,
        looks: Looks,
        is_new: impl FnMut(u32, u32) -> bool,
    ) -> impl Future<Output = Result<u32, DmaError>>;

    /// These places will be read or written soon.
    fn prefetch(&self, to: Segment);

    /// What this side has published is visible before anything that it fetches from now on.
    fn fence(&self);

    /// Writes `what` to host memory, piece after piece; returns when its last byte has left. `ready` is
    /// when the source yields its last byte: the transfer is not over before, however fast the link.
    fn write<P: Payload + ?Sized>(
        &self,
        to: &[Segment],
        what: &P,
        how: Posting,
        ready: Time,
    ) -> impl Future<Output = Result<(), DmaError>>;

    /// Posts a small entry whose last word is its flag, and returns at once. `at` and the entry's
    /// length are multiples of four.
    fn publish(&self, at: BusAddr, entry: &[u8], relaxed: bool) -> Result<(), DmaError>;

    /// Posts an interrupt.
    fn interrupt(&self, vector: u16);

    /// The cost of this name. Asked for once, when a device is built.
    fn cost(&self, name: &str) -> Cost;

    /// Spends a cost on the device's processor. Nothing in the live world.
    fn spend(&self, cost: Cost) -> impl Future<Output = ()>;

    /// Lets the time of a cost pass in hardware that the caller has to itself: it queues for no processor.
    /// Nothing in the live world.
    fn elapse(&self, cost: Cost) -> impl Future<Output = ()>;
}
