//! Test world: host, bus, scripted device, and a correct other driver.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bus::link::LinkSpec;
use bus::sim::{SimBus, SimHost, SimSpec};
use bus::{Buffer, HostPort, OutOfMemory};
use host::dcx::{Driver, Queue, QueueOptions, Tags};
use host::nvme::Completion;
use host::{BlockDevice, Geometry, InitError, IoError};
use runtime::{Either, Log, Rt, Span, race};
use wire::{BusAddr, Lba};

use crate::common::{bus_spec, cost};

use super::fake::{BLOCK, BLOCKS, Fake, Traits};

/// Upper bound of a read, whatever the device does.
pub const BOUND: Span = Span::ms(500);

/// Initial contents of block `lba`. No granule ends with zero.
pub fn pattern(lba: u64) -> Vec<u8> {
    (0..BLOCK).map(|i| (lba.wrapping_mul(37) as u8).wrapping_add(i as u8) | 1).collect()
}

/// The other driver: the same blocks, with a latency of 1 us.
#[derive(Clone)]
pub struct Beneath {
    rt: Rt,
    fake: Rc<Fake>,
    host: SimHost,
    pub reads: Rc<Cell<u64>>,
    pub places: Rc<RefCell<Vec<BusAddr>>>,
}

impl BlockDevice for Beneath {
    fn geometry(&self) -> Geometry {
        let block_bytes = BLOCK as u32;
        Geometry {
            blocks: BLOCKS,
            block_bytes,
            transfer_bytes_max: 1 << 17,
            buffer_align: 4,
            volatile_cache: false,
        }
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.host.arena().buffer(bytes)
    }

    async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        self.reads.set(self.reads.get() + 1);
        self.places.borrow_mut().push(into.at());
        self.rt.sleep(Span::us(1)).await;
        into.copy_in(0, &self.fake.data(lba, (into.bytes() / BLOCK) as u32));
        (into, Ok(()))
    }

    async fn write(&self, lba: Lba, from: Buffer, _: bool) -> (Buffer, Result<(), IoError>) {
        self.rt.sleep(Span::us(1)).await;
        let mut data = vec![0; from.bytes()];
        from.copy_out(0, &mut data);
        for (lba, block) in (lba.0..).zip(data.chunks_exact(BLOCK)) {
            self.fake.blocks.borrow_mut().insert(lba, block.to_vec());
        }
        (from, Ok(()))
    }

    async fn flush(&self) -> Result<(), IoError> {
        Ok(())
    }
}

pub type Q = Rc<Queue<SimHost, Beneath>>;

pub struct World {
    pub rt: Rt,
    pub bus: SimBus,
    pub host: SimHost,
    pub fake: Rc<Fake>,
    pub beneath: Beneath,
}

/// Options with this depth, otherwise as in most tests.
pub fn options(depth: u16) -> QueueOptions {
    QueueOptions {
        depth,
        completion: Completion::Polled,
        tags: Tags::Random { bits: 32, seed: 1 },
        marks_last: false,
        max_latency: Span::us(100),
        retries: 3,
        timeout: Span::ms(2),
        may_sleep: false,
        writes: true,
        traces: 0,
    }
}

pub const COMPLETIONS: [Completion; 2] = [Completion::Polled, Completion::Interrupt { vector: 1 }];

impl World {
    /// Packets arrive in order if `packet_bytes` is `None`, otherwise in any order.
    pub fn new(packet_bytes: Option<u32>, traits: Traits) -> World {
        let rt = Rt::simulated(None, Log::Off);
        let usual = bus_spec();
        let mps = packet_bytes.unwrap_or(usual.link.mps);
        let spec = SimSpec {
            link: LinkSpec { mps, ..usual.link },
            relaxed_ordering: packet_bytes.is_some(),
            host_costs: vec![
                cost("mark", 1),
                cost("submit", 90),
                cost("complete", 60),
                cost("context switch", 1200),
            ],
            ..usual
        };
        let bus = SimBus::new(&rt, spec);
        let fake = Fake::start(bus.device(), traits);
        let host = bus.host(0);
        let beneath = Beneath {
            rt: rt.clone(),
            fake: fake.clone(),
            host: host.clone(),
            reads: Rc::default(),
            places: Rc::default(),
        };
        World { host, rt, bus, fake, beneath }
    }

    pub async fn driver(&self) -> Driver<SimHost> {
        Driver::start(&self.host, 0, &self.beneath).await.expect("a device")
    }

    pub async fn try_queue(
        &self,
        options: QueueOptions,
    ) -> (Driver<SimHost>, Result<Q, InitError>) {
        let driver = self.driver().await;
        let queue = driver.queue_on(&self.host, self.beneath.clone(), options).await;
        (driver, queue)
    }

    /// Starts a driver with one queue.
    pub async fn queue(&self, options: QueueOptions) -> (Driver<SimHost>, Q) {
        let (driver, queue) = self.try_queue(options).await;
        (driver, queue.expect("a queue"))
    }

    /// Waits for a future, for at most `bound`.
    pub async fn within<T>(&self, bound: Span, what: impl Future<Output = T>) -> T {
        match race(what, self.rt.sleep(bound)).await {
            Either::First(done) => done,
            Either::Second(()) => panic!("it takes longer than {bound}"),
        }
    }

    /// Reads into this buffer and verifies the data.
    pub async fn read_into(&self, queue: &Q, lba: u64, into: Buffer) -> Buffer {
        let bytes = into.bytes();
        let (buffer, result) = self.within(BOUND, queue.read(Lba(lba), into)).await;
        result.unwrap_or_else(|error| panic!("block {lba}: {error}"));
        assert_eq!(buffer.bytes(), bytes, "a buffer of its length comes back");
        let mut seen = vec![0; bytes];
        buffer.copy_out(0, &mut seen);
        let expected = self.fake.data(Lba(lba), (bytes / BLOCK) as u32);
        assert!(seen == expected, "block {lba}, {bytes} bytes at {}", buffer.at());
        buffer
    }

    pub async fn read(&self, queue: &Q, lba: u64, bytes: usize) -> Buffer {
        self.read_into(queue, lba, queue.buffer(bytes).expect("memory")).await
    }
}

impl Drop for World {
    /// Breaks the cycle between tasks and executor.
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}
