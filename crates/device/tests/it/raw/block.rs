//! A host without a driver: it writes registers and descriptors itself, valid or not.

use std::cell::Cell;
use std::rc::Rc;

use bus::link::LinkSpec;
use bus::sim::{SimBus, SimHost, SimSpec};
use bus::{Buffer, HostPort};
use device::block::{Front, Options};
use media::contents::{Backing, Keep, Spec};
use media::{Contents, Extent, Media, MediaError};
use runtime::{Log, Rt, Span, Time};
use wire::BusAddr;
use wire::block::descriptor::{BYTES, Command, Control as Word, Descriptor, Operation, PAGE_BYTES};
use wire::block::registers::{
    BLOCK, Block, CONTROL, Control, OFFSET, RING, SHAPE, STATUS, Shape, Status, Violation,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::raw::bus_spec;

pub const BLOCKS: u64 = 1024;
pub const ENTRIES: u32 = 8;

/// A medium whose accesses take `span` (1 us by default), and fail on one block.
pub struct Slow {
    rt: Rt,
    contents: std::cell::RefCell<Contents>,
    /// Reads and writes of this block fail.
    pub bad: Cell<Option<u64>>,
    pub span: Cell<Span>,
}

impl Slow {
    async fn reach(&self, at: Extent) -> Result<(), MediaError> {
        self.rt.sleep(self.span.get()).await;
        let bad = |block| (at.block..at.block + u64::from(at.blocks)).contains(&block);
        if self.bad.get().is_some_and(bad) { Err(MediaError::Unreadable) } else { Ok(()) }
    }
}

impl Media for Slow {
    fn blocks(&self) -> u64 {
        BLOCKS
    }

    fn block_bytes(&self) -> u32 {
        512
    }

    async fn read(&self, at: Extent) -> Result<Time, MediaError> {
        self.reach(at).await.map(|()| Time::ZERO)
    }

    fn runs(&self, at: Extent, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError> {
        let contents = self.contents.borrow();
        let mut put = |offset, run: &[u8]| put(offset, run);
        contents.runs(at.block * 512, at.blocks * 512, &mut put).map_err(|_| MediaError::Unreadable)
    }

    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        self.reach(at).await?;
        self.contents.borrow_mut().write(at.block * 512, data).map_err(|_| MediaError::WriteFault)
    }

    async fn flush(&self) -> Result<(), MediaError> {
        Ok(())
    }
}

pub fn options() -> Options {
    Options {
        entries_log2: 4,
        block_max: 4,
        group: 4,
        second_engine: false,
        ahead: 0,
        channels: 1,
        technology: 1,
        read_ns: 1000,
        write_ns: 1000,
    }
}

/// A simulated bus, a device, and a host controlled by the test.
pub struct World {
    pub rt: Rt,
    pub host: SimHost,
    pub medium: Rc<Slow>,
    pub front: Rc<Front<bus::sim::SimDevice, Slow>>,
    pub ring: Buffer,
    /// One page for each place of the ring.
    pub pages: Buffer,
}

impl World {
    /// Runs a test on a front end with these options.
    pub fn run<T>(options: Options, test: impl AsyncFnOnce(&World) -> T) -> T {
        let rt = Rt::simulated(None, Log::Off);
        let usual = bus_spec(&[
            ("parse", Span::ns(100)),
            ("post completion", Span::ns(50)),
            ("take block", Span::ns(80)),
            ("return", Span::ns(80)),
            ("dma start", Span::ns(60)),
        ]);
        let link = LinkSpec { completion_bytes: 64, host_read: Span::ns(100), ..usual.link };
        let spec = SimSpec {
            link,
            memory_bytes: 1 << 20,
            interrupt: Span::ns(500),
            device_processors: 1,
            ..usual
        };
        let bus = SimBus::new(&rt, spec);
        let spec = Spec {
            capacity_bytes: BLOCKS * 512,
            block_bytes: 512,
            keep: Keep::Everything,
            backing: Backing::Memory,
        };
        let medium = Rc::new(Slow {
            rt: rt.clone(),
            contents: Contents::new(spec).expect("a capacity of sense").into(),
            bad: Cell::new(None),
            span: Cell::new(Span::us(1)),
        });
        let front = Front::start(bus.device(), medium.clone(), options);
        let host = bus.host(0);
        let arena = host.arena();
        let ring = arena.buffer(ENTRIES as usize * BYTES).expect("memory");
        ring.zero();
        let pages = arena.buffer((ENTRIES * PAGE_BYTES) as usize).expect("memory");
        let world = World { rt: rt.clone(), host, medium, front, ring, pages };
        let result = rt.block_on(test(&world));
        rt.drop_tasks();
        result
    }

    /// Enables the test's ring with the first count `first`; returns STATUS.
    pub async fn enable(&self, first: u32) -> Status {
        self.enable_at(self.ring.at().0, ENTRIES.ilog2() as u8, first).await
    }

    pub async fn enable_at(&self, ring: u64, entries_log2: u8, first: u32) -> Status {
        self.host.write32(RING, ring as u32);
        self.host.write32(RING + 4, (ring >> 32) as u32);
        self.host.write32(SHAPE, Shape::new().with_entries_log2(entries_log2).into_bits());
        self.host.write32(OFFSET, first);
        self.host.write32(CONTROL, Control::new().with_enable(true).into_bits());
        self.status().await
    }

    pub async fn disable(&self) -> Status {
        self.host.write32(CONTROL, 0);
        for _ in 0..100 {
            let status = self.status().await;
            if status.into_bits() == 0 {
                return status;
            }
            self.rt.sleep(Span::us(1)).await;
        }
        panic!("it does not stop");
    }

    pub async fn status(&self) -> Status {
        Status::from_bits(self.host.read32(STATUS).await)
    }

    /// The violation that the device has stopped at, 100 us later.
    pub async fn violation(&self) -> Option<Violation> {
        self.rt.sleep(Span::us(100)).await;
        Violation::from_bits(self.status().await.violation())
    }

    /// A command for the page of its place.
    pub fn command(&self, count: u32, operation: Operation, block: u64, bytes: u32) -> Command {
        let at = BusAddr(self.pages.at().0 + u64::from(count % ENTRIES * PAGE_BYTES));
        Command { operation, at, offset: block * 512, bytes }
    }

    pub fn store(&self, count: u32, descriptor: &Descriptor) {
        self.ring.copy_in((count % ENTRIES) as usize * BYTES, descriptor.as_bytes());
    }

    /// Stores whole-page reads from block 8 on at these counts.
    pub fn store_reads(&self, first: u32, number: u32) {
        for count in (0..number).map(|n| first.wrapping_add(n)) {
            let command =
                self.command(count, Operation::Read, 8 * u64::from(count % 64), PAGE_BYTES);
            self.store(count, &Descriptor::command(count, &command));
        }
    }

    pub fn announce(&self, first: u32, size: u16, turn: u16) {
        self.host.write32(OFFSET, first);
        self.host.write32(BLOCK, Block::new().with_size(size).with_turn(turn).into_bits());
    }

    pub fn descriptor(&self, count: u32) -> Descriptor {
        let mut bytes = [0; BYTES];
        self.ring.copy_out((count % ENTRIES) as usize * BYTES, &mut bytes);
        Descriptor::read_from_bytes(&bytes).expect("its length")
    }

    pub fn is_back(&self, count: u32) -> bool {
        matches!(self.descriptor(count).control(), Word::Response { .. })
    }

    /// Waits until the descriptor has been returned.
    pub async fn back(&self, count: u32) -> Descriptor {
        for _ in 0..10_000 {
            if self.is_back(count) {
                return self.descriptor(count);
            }
            self.rt.sleep(Span::ns(10)).await;
        }
        panic!("descriptor {count} does not come back: {:?}", self.descriptor(count));
    }
}
