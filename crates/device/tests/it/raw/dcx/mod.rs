//! A host without a driver: it writes registers, forms entries by hand, marks buffers, and reads reports, so
//! that tests can do what no driver would.

pub mod script;
pub mod watch;
pub mod world;

use std::cell::Cell;

use bus::{HostPort, Memory};
use runtime::{Either, Rt, Span, race};
use wire::dcx::command::{self, Access, Command, Entry, Request};
use wire::dcx::notice;
use wire::dcx::registers::{Control, Group, Shape, Status};
use wire::dcx::report::{self, Code, Report};
use wire::dcx::tag::{Places, Tag};
use wire::{BusAddr, Lba};
use zerocopy::{FromBytes, IntoBytes};

/// Timeout for an expected event, in virtual time.
pub const PATIENCE: Span = Span::ms(50);
/// Live timeout for an expected event: threads may be delayed.
pub const LIVE_PATIENCE: Span = Span::s(100);
/// Wait before concluding that nothing happens.
pub const SILENCE: Span = Span::ms(1);
/// The host's tag; no data of these tests end with it.
pub const TAG: u32 = 0x7a67_a7e5;

/// Host state of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    pub number: u16,
    pub group: Group,
    pub commands: BusAddr,
    pub reports: BusAddr,
    pub notice: BusAddr,
    pub entries: u32,
    /// Packet size; each packet has one tag.
    pub packet_bytes: Option<u32>,
    pub vector: u16,
    /// The number of the next command.
    pub next: u32,
    /// The number of the last report.
    pub reported: u32,
}

/// A buffer marked with tags.
#[derive(Clone, Copy, Debug)]
pub struct Marked {
    pub at: BusAddr,
    pub bytes: u32,
    places: Places,
}

pub struct Raw<H> {
    pub host: H,
    pub rt: Rt,
    pub memory: Memory,
    /// Timeout for an expected event.
    pub patience: Span,
    block: u32,
    next_place: Cell<u64>,
}

impl<H: HostPort> Raw<H> {
    /// `block`: offset of the front end's registers; `from`: offset of the memory that this host may use.
    pub fn new(host: H, block: u32, from: u64) -> Raw<H> {
        let (rt, memory) = (host.rt().clone(), host.arena().memory().clone());
        let next_place = Cell::new(memory.base().0 + from);
        Raw { host, rt, memory, patience: PATIENCE, block, next_place }
    }

    /// Allocates host memory, aligned to `align` bytes.
    pub fn place(&self, bytes: u64, align: u64) -> BusAddr {
        let at = self.next_place.get().next_multiple_of(align);
        let end = self.memory.base().0 + self.memory.bytes() as u64;
        assert!(at + bytes <= end, "the test's host memory is too small for {bytes} bytes more");
        self.next_place.set(at + bytes);
        BusAddr(at)
    }

    /// Frees all memory allocated from `at` on.
    pub fn free_from(&self, at: BusAddr) {
        self.next_place.set(at.0);
    }

    pub async fn reg(&self, register: u32) -> u32 {
        self.host.read32(register).await
    }

    pub fn set64(&self, register: u32, value: u64) {
        self.host.write32(register, value as u32);
        self.host.write32(register + 4, (value >> 32) as u32);
    }

    /// Allocates memory for a queue, without writing registers.
    pub fn ring(&self, number: u16, entries: u32, packet_bytes: Option<u32>) -> Ring {
        Ring {
            number,
            group: Group::of(self.block, number.into()),
            commands: self.place(u64::from(entries) * command::BYTES as u64, 64),
            reports: self.place(u64::from(entries) * report::BYTES as u64, 64),
            notice: self.place(notice::BYTES as u64, 64),
            entries,
            packet_bytes,
            vector: 0,
            next: 1,
            reported: 0,
        }
    }

    /// Writes the registers that describe a queue.
    pub fn describe(&self, ring: &Ring) {
        self.set64(ring.group.commands, ring.commands.0);
        self.set64(ring.group.reports, ring.reports.0);
        self.set64(ring.group.notice, ring.notice.0);
        let packet_log2 = ring.packet_bytes.map_or(0, |bytes| bytes.ilog2() as u8);
        let shape = Shape::new()
            .with_entries_log2(ring.entries.ilog2() as u8)
            .with_packet_log2(packet_log2)
            .with_vector(ring.vector);
        self.host.write32(ring.group.shape, shape.into_bits());
    }

    /// Waits until `want(STATUS)` is true.
    pub async fn until_status(&self, ring: &Ring, what: &str, want: impl Fn(Status) -> bool) {
        let begin = self.rt.now();
        loop {
            let status = Status::from_bits(self.reg(ring.group.status).await);
            if want(status) {
                return;
            }
            let waited = self.rt.now().since(begin);
            assert!(waited <= self.patience, "{what}: STATUS is {status:?} after {waited}");
            self.rt.sleep(Span::us(1)).await;
        }
    }

    /// Clears a queue's memory, and writes its registers and CONTROL.
    pub fn start(&self, ring: &mut Ring, control: Control) {
        let zero = |at, bytes: usize| {
            if self.memory.holds(at, bytes) {
                self.memory.zero(at, bytes).expect("it lies inside");
            }
        };
        zero(ring.commands, ring.entries as usize * command::BYTES);
        zero(ring.reports, ring.entries as usize * report::BYTES);
        zero(ring.notice, notice::BYTES);
        (ring.next, ring.reported) = (1, 0);
        self.describe(ring);
        self.host.write32(ring.group.control, control.with_enable(true).into_bits());
    }

    /// Enables a queue as a driver does.
    pub async fn enable(&self, ring: &mut Ring, control: Control) {
        self.start(ring, control);
        self.until_status(ring, "enabling", |status| status.ready()).await;
        let status = Status::from_bits(self.reg(ring.group.status).await);
        assert!(!status.fault(), "enabling: {status:?}");
    }

    /// Enables a queue that never sleeps.
    pub async fn up(&self, number: u16, entries: u32, packet_bytes: Option<u32>) -> Ring {
        let mut ring = self.ring(number, entries, packet_bytes);
        self.enable(&mut ring, Control::new()).await;
        ring
    }

    /// Disables a queue, and waits until STATUS is 0.
    pub async fn disable(&self, ring: &Ring) {
        self.host.write32(ring.group.control, 0);
        self.until_status(ring, "disabling", |status| status.into_bits() == 0).await;
    }

    /// Stores an entry at the next place, its number last.
    pub fn store(&self, ring: &mut Ring, entry: &Entry) {
        let place = ring.next.wrapping_sub(1) & (ring.entries - 1);
        let at = ring.commands.0 + u64::from(place) * command::BYTES as u64;
        let bytes = entry.as_bytes();
        self.memory.write(BusAddr(at), &bytes[..60]).expect("the ring lies in host memory");
        self.memory.store_u32(BusAddr(at + 60), entry.number()).expect("as the rest");
        ring.next = ring.next.wrapping_add(1);
    }

    /// Stores the next command; returns its number.
    pub fn push(&self, ring: &mut Ring, slot: u16, command: Command) -> u32 {
        let number = ring.next;
        self.store(ring, &Entry::new(&Request { number, slot, command }));
        number
    }

    /// Allocates and marks a buffer of `bytes`, `off` bytes past the start of a page.
    pub fn marked(&self, ring: &Ring, bytes: u32, off: u64) -> Marked {
        let at = self.place(u64::from(bytes) + off, 4096);
        self.mark(ring, BusAddr(at.0 + off), bytes)
    }

    pub fn mark(&self, ring: &Ring, at: BusAddr, bytes: u32) -> Marked {
        let places = Places::new(at, bytes, ring.packet_bytes);
        for place in places {
            self.memory.store_u32(BusAddr(at.0 + u64::from(place)), TAG).expect("a place");
        }
        Marked { at, bytes, places }
    }

    /// Stores a read into a marked buffer.
    pub fn read(&self, ring: &mut Ring, slot: u16, lba: u64, blocks: u32, to: &Marked) -> u32 {
        let access = Access { lba: Lba(lba), bytes: 512 * blocks, at: to.at };
        self.push(ring, slot, Command::Read { access, tag_version: 0, wide: false })
    }

    /// Number of tags that have not been overwritten.
    pub fn tags_left(&self, marked: &Marked) -> usize {
        let stands = |place: &u32| {
            let at = BusAddr(marked.at.0 + u64::from(*place));
            Tag::new(TAG.into(), 32).is_in(self.memory.load_u32(at).expect("a place"))
        };
        marked.places.filter(stands).count()
    }

    /// Waits until all tags have been overwritten; returns the buffer's contents.
    pub async fn arrived(&self, marked: &Marked) -> Vec<u8> {
        let check = || (self.tags_left(marked) == 0).then_some(());
        let arrival = self.host.on_memory(marked.at, marked.bytes, check);
        if race(arrival, self.rt.sleep(self.patience)).await == Either::Second(()) {
            panic!("{} tags of {marked:?} have not vanished", self.tags_left(marked));
        }
        self.bytes(marked.at, marked.bytes as usize)
    }

    /// The next report, if present.
    pub fn try_report(&self, ring: &mut Ring) -> Option<Report> {
        let place = ring.reported & (ring.entries - 1);
        let at = BusAddr(ring.reports.0 + u64::from(place) * report::BYTES as u64);
        let flag = BusAddr(at.0 + Report::NUMBER_AT as u64);
        let number = ring.reported.wrapping_add(1);
        if self.memory.load_u32(flag).expect("the ring lies in host memory") != number {
            return None;
        }
        ring.reported = number;
        let bytes = self.bytes(at, report::BYTES);
        Some(Report::read_from_bytes(&bytes).expect("a report's length"))
    }

    /// Waits for the next report: command number, slot, code.
    pub async fn report(&self, ring: &mut Ring) -> (u32, u16, Code) {
        let deadline = self.rt.now() + self.patience;
        loop {
            if let Some(report) = self.try_report(ring) {
                return (report.command(), report.slot(), report.code());
            }
            assert!(self.rt.now() < deadline, "no report comes: {ring:?}");
            self.rt.sleep(Span::ns(100)).await;
        }
    }

    /// Asserts that no report arrives within [`SILENCE`].
    pub async fn assert_silence(&self, ring: &mut Ring) {
        self.rt.sleep(SILENCE).await;
        let report = self.try_report(ring);
        assert!(report.is_none(), "{report:?}");
    }

    /// Reads blocks into a temporary buffer, and returns the data.
    pub async fn read_now(&self, ring: &mut Ring, lba: u64, blocks: u32, bytes: u32) -> Vec<u8> {
        let here = self.next_place.get();
        let to = self.marked(ring, bytes, 0);
        self.read(ring, 7, lba, blocks, &to);
        let data = self.arrived(&to).await;
        self.next_place.set(here);
        data
    }

    /// Stores an entry and expects this error code.
    pub async fn refused(&self, ring: &mut Ring, entry: &Entry, code: Code) {
        let number = ring.next;
        self.store(ring, entry);
        assert_eq!(self.report(ring).await, (number, entry.slot(), code), "{entry:?}");
    }

    /// Stores a fence and expects it to succeed.
    pub async fn fence(&self, ring: &mut Ring) {
        let number = self.push(ring, 0xffff, Command::Fence);
        assert_eq!(self.report(ring).await, (number, 0xffff, Code::DONE));
    }

    pub fn bytes(&self, at: BusAddr, bytes: usize) -> Vec<u8> {
        let mut copy = vec![0; bytes];
        self.memory.read(at, &mut copy).expect("it lies in host memory");
        copy
    }

    pub fn everything(&self) -> Vec<u8> {
        self.bytes(self.memory.base(), self.memory.bytes())
    }
}

/// Bytes without the word [`TAG`], different from block to block.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    crate::raw::nvme::pattern(seed, bytes)
}
