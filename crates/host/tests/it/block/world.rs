//! Test world: host, bus, scripted device.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use bus::Buffer;
use bus::sim::{SimBus, SimHost, SimSpec};
use host::BlockDevice;
use host::block::{Disk, Driver, Options, Sizing};
use host::nvme::Completion;
use runtime::{Either, Log, Rt, Span, race};
use wire::Lba;

use crate::common::{bus_spec, cost};

use super::fake::{BLOCK_BYTES, Fake, Traits};

/// Upper bound of a request, whatever the device does.
pub const BOUND: Span = Span::ms(700);

pub const COMPLETIONS: [Completion; 2] = [Completion::Polled, Completion::Interrupt { vector: 0 }];

pub type D = Disk<SimHost>;

/// Initial contents of block `lba`.
pub fn pattern(lba: u64) -> Vec<u8> {
    (0..BLOCK_BYTES).map(|i| (lba.wrapping_mul(37) as u8).wrapping_add(i as u8)).collect()
}

pub struct World {
    pub rt: Rt,
    pub bus: SimBus,
    pub host: SimHost,
    pub fake: Rc<Fake>,
}

/// Options of most tests: a ring of 16, blocks of at most 4.
pub fn options() -> Options {
    Options {
        depth: 8,
        completion: Completion::Polled,
        sizing: Sizing::adaptive(),
        timeout: Span::ms(2),
        retries: 3,
    }
}

impl World {
    pub fn new(traits: Traits) -> World {
        let rt = Rt::simulated(None, Log::Off);
        let spec = SimSpec {
            cores: 2,
            host_costs: vec![
                cost("submit", 90),
                cost("announce", 50),
                cost("complete", 60),
                cost("context switch", 1200),
            ],
            ..bus_spec()
        };
        let bus = SimBus::new(&rt, spec);
        let fake = Fake::start(bus.device(), traits);
        World { host: bus.host(0), rt, bus, fake }
    }

    /// Starts a driver with its disk.
    pub async fn start(&self, options: Options) -> (Driver<SimHost>, D) {
        let driver = Driver::start(&self.host, options).await.expect("a device");
        let disk = driver.disk(&self.bus.host(1));
        (driver, disk)
    }

    /// Waits for a future, for at most `bound`.
    pub async fn within<T>(&self, bound: Span, what: impl Future<Output = T>) -> T {
        match race(what, self.rt.sleep(bound)).await {
            Either::First(done) => done,
            Either::Second(()) => panic!("it takes longer than {bound}"),
        }
    }

    /// Reads and verifies the data.
    pub async fn read(&self, disk: &D, lba: u64, bytes: usize) {
        let into = disk.buffer(bytes).expect("memory");
        into.zero();
        let (buffer, result) = self.within(BOUND, disk.read(Lba(lba), into)).await;
        result.unwrap_or_else(|error| panic!("block {lba}: {error}"));
        self.compare(&buffer, lba);
    }

    pub fn compare(&self, buffer: &Buffer, lba: u64) {
        let mut seen = vec![0; buffer.bytes()];
        buffer.copy_out(0, &mut seen);
        let expected = self.fake.data(lba, buffer.bytes() / BLOCK_BYTES);
        assert!(seen == expected, "block {lba}, {} bytes", buffer.bytes());
    }
}

impl Drop for World {
    /// Breaks the cycle between tasks and executor.
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}

/// Polls all futures until they have ended; returns their outputs, and the order in which they ended.
pub async fn all<T>(futures: Vec<impl Future<Output = T>>) -> (Vec<T>, Vec<usize>) {
    let mut futures: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    let mut order = Vec::new();
    poll_fn(|cx| {
        for (number, place) in futures.iter_mut().enumerate() {
            if let Some(future) = place
                && let Poll::Ready(value) = future.as_mut().poll(cx)
            {
                done[number] = Some(value);
                order.push(number);
                *place = None;
            }
        }
        if futures.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (done.into_iter().map(|value| value.expect("all have ended")).collect(), order)
}
