//! Buses between a host and a device: host memory, registers, DMA, interrupts.
//!
//! The crate has no knowledge of commands, queues or drives. A driver holds a [`HostPort`], a device a
//! [`DevicePort`]; neither sees the other.
//!
//! ```text
//!    driver ── HostPort ──► registers, doorbells ──► DevicePort ── controller
//!           ◄── memory, interrupts ─┐             ┌─ DMA: read, write, publish
//!                                   └─ one Arena ─┘
//! ```
//!
//! Three buses implement both traits:
//!
//! * [`sim`]: a PCIe link in virtual time. Doorbells, DMA and interrupts are TLPs; bytes land in host memory
//!   at the moment the model says.
//! * [`live`] (feature `std`): memory that two threads or two processes share. Doorbells are plain words, DMA
//!   is a bounds-checked copy.
//! * [`vfio_user`] (feature `std`): a PCI function in one process, its driver in another.
//!
//! Two more implement the host side only: [`vfio`] (feature `std`) drives a real PCI function behind an
//! IOMMU, and [`qtest`] (feature `std`) drives QEMU's device models. [`pci`] provides access to configuration
//! space and models bridges. A port for another environment is written outside this crate, with the public
//! items alone ([`until`], [`Cost::NONE`]): `examples/boot/src/port.rs` is one.
//!
//! ```
//! use bus::live::Shared;
//! use bus::{DevicePort, HostPort};
//! use runtime::{Log, Rt, STD_CLOCK};
//! use wire::BusAddr;
//!
//! let rt = Rt::live(&STD_CLOCK, None, Log::Off);
//! let shared = Shared::between_threads(1 << 20, BusAddr(1 << 32), 8192)?;
//! let (host, device) = (shared.host(&rt), shared.device(&rt));
//!
//! let buffer = host.arena().buffer(64)?;
//! host.write32(0x1000, 7); // a doorbell
//! rt.block_on(async {
//!     let value = device.on_registers(|| Some(device.load(0x1000)).filter(|value| *value != 0)).await;
//!     let entry = [value.to_le_bytes(), 1_u32.to_le_bytes()].concat();
//!     device.publish(buffer.at(), &entry, false).expect("an address in host memory");
//!     host.on_memory(buffer.at(), 8, || (buffer.load_u32(4) == 1).then_some(())).await;
//! });
//! assert_eq!(buffer.load_u32(0), 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The contract
//!
//! 1. A register write is *posted*: it returns at once and arrives later, in order. A register read waits;
//!    everything that the device posted before it answered has landed when the read returns.
//! 2. A device's [`write`](DevicePort::write) returns when the last byte has left,
//!    [`publish`](DevicePort::publish) returns at once. Neither has landed yet. Strictly ordered writes land
//!    in the order in which they were posted; a relaxed write may be overtaken by other relaxed writes.
//! 3. A host that has loaded the flag word of a posted write ([`Memory::load_u32`]: acquire) sees everything
//!    that the write stored before the flag. Besides this there are four more orderings between host and
//!    device, and no others. Doorbell: a device that acts on a doorbell sees the host's stores before
//!    [`HostPort::write32`]. Interrupt: the host sees everything posted before the interrupt. Fetched entry:
//!    a device that has [fetched](DevicePort::fetch) an entry sees the host's stores before the entry's last
//!    word. Fences: if both sides store, fence and then load the other's word, at least one of them sees the
//!    other's store.
//! 4. Waiting is waiting for a change: [`HostPort::on_memory`], [`HostPort::on_interrupt`],
//!    [`DevicePort::on_registers`]. The check runs at once, and again whenever its result may have changed.
//! 5. The bus validates every address from the other side: an address outside host memory is a [`DmaError`],
//!    never an access.
//!
//! # Shared memory and unsafe code
//!
//! Memory that another party may write is never a `&[u8]`: it is a [`Memory`], or a [`Buffer`] of it, and
//! bytes cross by copying. A [`Buffer`] is given away for the time of a command and comes back with its
//! result. It is never borrowed: a future may be dropped at any await, and memory that the device may still
//! write stays with the command's slot.
//!
//! Four files of this crate hold `unsafe` (`crates/rules/tests/it/workspace.rs` has the list for the
//! workspace):
//! - `shared.rs`: mappings and copies, by atomic accesses;
//! - `mapped.rs`: mappings in whole pages of their file;
//! - `guard.rs`: the SIGBUS handler under mappings of a peer's files;
//! - `vfio/sys.rs`: VFIO's ioctls, and the mapped registers of a real device, accessed by volatile accesses
//!   of one word.
#![no_std]
#![warn(missing_docs)]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

mod arena;
#[cfg(feature = "std")]
mod backing;
mod direct;
#[cfg(feature = "std")]
mod fd;
#[cfg(feature = "std")]
mod guard;
pub mod link;
#[cfg(feature = "std")]
pub mod listen;
#[cfg(feature = "std")]
pub mod live;
#[cfg(feature = "std")]
mod mapped;
mod masks;
#[cfg(feature = "std")]
mod memfd;
mod out_of_range;
mod packets;
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
pub use direct::{Direct, InterruptPin};
pub use masks::Masks;
pub use out_of_range::OutOfRange;
pub use shared::{Memory, REGION_ALIGN};
pub use until::until;

/// A contiguous range of host memory, by bus address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Bus address of the first byte.
    pub at: BusAddr,
    /// Length in bytes.
    pub bytes: u32,
}

/// Source of a DMA write. It is read piece by piece, so that the bus copies the data once.
pub trait Payload {
    /// Calls `put` with ascending offsets and the bytes there. Bytes that no call covers are not written: a
    /// medium that keeps only stamps yields only stamps.
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable>;
}

/// Error: the source of a payload could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

impl Payload for [u8] {
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable> {
        put(0, self);
        Ok(())
    }
}

/// The bytes of a transfer that are copied. The modelled time is always that of the whole transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// All bytes.
    All,
    /// The first `bytes` bytes of every `of` bytes: stamps.
    Heads {
        /// Length of a head in bytes.
        bytes: u32,
        /// Distance between the starts of two heads in bytes.
        of: u32,
    },
}

/// Ordering of a posted write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting {
    /// Relaxed-ordering attribute: TLPs of this write may be overtaken by other relaxed TLPs.
    pub relaxed: bool,
    /// The words of this write that are flags.
    pub flags: Flags,
    /// Flags are doublewords, each stored at once; their addresses are multiples of eight.
    pub wide: bool,
}

impl Posting {
    /// Strictly ordered, without flags: visible to a host that sees a later flag.
    pub const STRICT: Posting = Posting { relaxed: false, flags: Flags::None, wide: false };
}

/// The words of a posted write that are flags. A flag is always written, as zero if no run of the payload
/// covers it, and separately, after the bytes that it announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    /// No flags.
    None,
    /// The last word: a host that sees it change sees the whole write, unless the write is relaxed.
    Last,
    /// The last word of each packet, cut by [`wire::pcie::Pieces`] with the given payload size in bytes: a
    /// host that sees it change sees that packet.
    EachPacket(u32),
}

/// Number of polls of a fetch on a live bus, where a poll takes no modelled time. A modelled link polls
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// One poll: the caller has other work if there is no new entry.
    Once,
    /// Many passes before the fetch returns 0: the caller is idle.
    Many,
}

/// Order in which the bytes of a device's write become visible to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The whole write is visible once its last word is ([`Flags::Last`]).
    InOrder,
    /// Each packet separately ([`Flags::EachPacket`]), with the given payload size in bytes.
    ByPacket(u32),
}

/// Failure of a DMA transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaError {
    /// The peer gave an address outside its memory.
    Address(OutOfRange),
    /// The source of the transfer could not be read.
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

/// A named cost of the plan: an index into the cost table of its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost(pub(crate) u8);

impl Cost {
    /// Returned for every name by live ports, where the work itself takes the time.
    pub const NONE: Cost = Cost(0);
}

/// The host side of the bus, used by a driver.
pub trait HostPort: Clone + 'static {
    /// Executor of this side.
    fn rt(&self) -> &Rt;

    /// Allocator of the host memory that the device can access.
    fn arena(&self) -> &Arena;

    /// Posts a write to the 32-bit register at offset `register`.
    fn write32(&self, register: u32, value: u32);

    /// Reads the 32-bit register at offset `register`: a round trip. Returns all ones if no device answers.
    fn read32(&self, register: u32) -> impl Future<Output = u32>;

    /// Returns true if the device is known to be gone: link down, process dead.
    fn is_gone(&self) -> bool;

    /// Waits until `check` returns `Some`. `check` reads words in the `bytes` bytes of host memory at `at`.
    fn on_memory<T>(
        &self,
        at: BusAddr,
        bytes: u32,
        check: impl FnMut() -> Option<T>,
    ) -> impl Future<Output = T>;

    /// Waits until the interrupt count of `vector` differs from `seen`, and returns it. A live port also
    /// returns when the device is gone: its interrupts will never come.
    fn on_interrupt(&self, vector: u16, seen: u32) -> impl Future<Output = u32>;

    /// Charges the core for a timer wake-up of a caller that slept instead of polling memory. No-op on a
    /// live bus, where the wake-up itself takes the time.
    fn woken(&self) -> impl Future<Output = ()> {
        core::future::ready(())
    }

    /// The order in which the device's writes become visible to the host.
    fn arrival(&self) -> Arrival;

    /// Store-load fence: the stores of this side before it are visible before its loads after it.
    fn fence(&self);

    /// Time at which the event that ended the last wait of this handle occurred: bytes in memory, or an
    /// interrupt. The time since then was spent detecting it.
    fn noticed(&self) -> Time;

    /// Looks up a cost by name, once, when a driver is built.
    fn cost(&self, name: &str) -> Cost;

    /// Spends a cost on the caller's core. No-op on a live bus, where the work itself takes the time.
    fn spend(&self, cost: Cost) -> impl Future<Output = ()>;

    /// Spends a cost `times` times in a row.
    fn spend_times(&self, cost: Cost, times: u32) -> impl Future<Output = ()>;
}

/// The device side of the bus.
pub trait DevicePort: Clone + 'static {
    /// Access to host memory without a wait; [`Infallible`](core::convert::Infallible) if there is none.
    type Direct: Direct;

    /// Executor of this side.
    fn rt(&self) -> &Rt;

    /// This port, sending by the link of port `port` of the device's switch. A bus on which devices have none
    /// returns the same port.
    #[must_use]
    fn through(&self, port: u32) -> Self {
        let _ = port;
        self.clone()
    }

    /// Loads the 32-bit register at offset `register` with acquire.
    fn load(&self, register: u32) -> u32;

    /// Stores the 32-bit register at offset `register` with release.
    fn store(&self, register: u32, value: u32);

    /// Waits until `check` returns `Some`. `check` reads registers, and device state whose changes are
    /// announced by [`check_again`](DevicePort::check_again).
    fn on_registers<T>(&self, check: impl FnMut() -> Option<T>) -> impl Future<Output = T>;

    /// Wakes the waits on registers: state other than a register, which their checks read, has changed.
    fn check_again(&self);

    /// Reads host memory, segment by segment, into `to`. Segments are cut to the length of `to`.
    fn read(
        &self,
        from: &[Segment],
        to: &mut [u8],
        carry: Carry,
    ) -> impl Future<Output = Result<(), DmaError>>;

    /// Fetches new entries of `entry_bytes` bytes from a ring in host memory, from `at` on, as many as fit
    /// `into`. `is_new` receives each entry's number, from 0, and its last word. Returns the number of
    /// consecutive new entries; each is copied as it was when its last word was stored. The request leaves
    /// at the call.
    fn fetch(
        &self,
        at: BusAddr,
        into: &mut [u8],
        entry_bytes: usize,
        looks: Looks,
        is_new: impl FnMut(u32, u32) -> bool,
    ) -> impl Future<Output = Result<u32, DmaError>>;

    /// Fence: writes published before it are visible before fetches after it.
    fn fence(&self);

    /// Writes `what` to host memory, segment by segment; returns when the last byte has left. `ready` is
    /// the time at which the source yields its last byte: the transfer does not end before it, whatever the
    /// link's rate.
    fn write<P: Payload + ?Sized>(
        &self,
        to: &[Segment],
        what: &P,
        how: Posting,
        ready: Time,
    ) -> impl Future<Output = Result<(), DmaError>>;

    /// Posts a small entry whose last word is its flag, and returns at once. `at` and the entry's length
    /// are multiples of 4.
    fn publish(&self, at: BusAddr, entry: &[u8], relaxed: bool) -> Result<(), DmaError>;

    /// Posts an interrupt on `vector`.
    fn interrupt(&self, vector: u16);

    /// Looks up a cost by name, once, when a device is built.
    fn cost(&self, name: &str) -> Cost;

    /// Spends a cost on the device's processor. No-op on a live bus.
    fn spend(&self, cost: Cost) -> impl Future<Output = ()>;

    /// Lets the time of a cost pass in dedicated hardware, without queueing for a processor. No-op on a
    /// live bus.
    fn elapse(&self, cost: Cost) -> impl Future<Output = ()>;

    /// Access to host memory without a wait: live buses have it.
    fn direct(&self) -> Option<&Self::Direct> {
        None
    }

    /// The pin by which the device interrupts. `None`: it interrupts by messages.
    fn pin(&self) -> Option<&dyn InterruptPin> {
        None
    }
}
