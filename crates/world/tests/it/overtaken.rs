//! DC Express on real memory, with the packets of every transfer stored in random order.
//!
//! Both ports are wrapped: the device's stores packet by packet, permuted, with pauses between them; the
//! host's says
//! that data arrive by packet. Driver and controller are those of every run.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bus::live::{LiveDevice, LiveHost, Shared};
use bus::{
    Arena, Arrival, Buffer, Carry, Cost, DevicePort, DmaError, Flags, HostPort, Looks, OutOfMemory,
    Payload, Posting, Segment,
};
use device::dcx::{Front, Options, Tagged};
use host::dcx::{Completion, Driver, QueueOptions, Tags};
use host::{BlockDevice, Geometry, IoError};
use media::contents::{Backing, Keep, Spec};
use media::{Banked, Contents, Extent, Media, Pace};
use runtime::{Log, Rng, Rt, STD_CLOCK, Span, Time};
use wire::pcie::Pieces;
use wire::{BusAddr, Lba};

const PACKET: u32 = 128;
const BLOCK: usize = 512;
const BLOCKS: u64 = 256;
const BYTES: usize = 4096;

#[derive(Clone)]
struct ByPacket(LiveHost);

impl HostPort for ByPacket {
    fn rt(&self) -> &Rt {
        self.0.rt()
    }

    fn arena(&self) -> &Arena {
        self.0.arena()
    }

    fn write32(&self, register: u32, value: u32) {
        self.0.write32(register, value);
    }

    fn read32(&self, register: u32) -> impl Future<Output = u32> {
        self.0.read32(register)
    }

    fn is_gone(&self) -> bool {
        self.0.is_gone()
    }

    fn on_memory<T>(
        &self,
        at: BusAddr,
        bytes: u32,
        check: impl FnMut() -> Option<T>,
    ) -> impl Future<Output = T> {
        self.0.on_memory(at, bytes, check)
    }

    fn on_interrupt(&self, vector: u16, seen: u32) -> impl Future<Output = u32> {
        self.0.on_interrupt(vector, seen)
    }

    fn arrival(&self) -> Arrival {
        Arrival::ByPacket(PACKET)
    }

    fn fence(&self) {
        self.0.fence();
    }

    fn noticed(&self) -> Time {
        self.0.noticed()
    }

    fn cost(&self, name: &str) -> Cost {
        self.0.cost(name)
    }

    fn spend(&self, cost: Cost) -> impl Future<Output = ()> {
        self.0.spend(cost)
    }

    fn spend_times(&self, cost: Cost, times: u32) -> impl Future<Output = ()> {
        self.0.spend_times(cost, times)
    }
}

#[derive(Clone)]
struct Permuting {
    port: LiveDevice,
    rng: Rc<RefCell<Rng>>,
}

impl Permuting {
    /// Packets of a segment in random order: offset and length.
    fn order(&self, to: Segment) -> Vec<(usize, usize)> {
        let mut packets = Vec::new();
        let mut done = 0;
        for piece in Pieces::new(to.at.0, u64::from(to.bytes), PACKET) {
            packets.push((done, piece.bytes as usize));
            done += piece.bytes as usize;
        }
        for last in (1..packets.len()).rev() {
            let other = self.rng.borrow_mut().below(last as u64 + 1) as usize;
            packets.swap(last, other);
        }
        packets
    }
}

impl DevicePort for Permuting {
    type Direct = Infallible;

    fn rt(&self) -> &Rt {
        self.port.rt()
    }

    fn load(&self, register: u32) -> u32 {
        self.port.load(register)
    }

    fn store(&self, register: u32, value: u32) {
        self.port.store(register, value);
    }

    fn on_registers<T>(&self, check: impl FnMut() -> Option<T>) -> impl Future<Output = T> {
        self.port.on_registers(check)
    }

    fn check_again(&self) {
        self.port.check_again();
    }

    fn read(
        &self,
        from: &[Segment],
        to: &mut [u8],
        carry: Carry,
    ) -> impl Future<Output = Result<(), DmaError>> {
        self.port.read(from, to, carry)
    }

    fn fetch(
        &self,
        at: BusAddr,
        into: &mut [u8],
        entry_bytes: usize,
        looks: Looks,
        is_new: impl FnMut(u32, u32) -> bool,
    ) -> impl Future<Output = Result<u32, DmaError>> {
        self.port.fetch(at, into, entry_bytes, looks, is_new)
    }

    fn fence(&self) {
        self.port.fence();
    }

    async fn write<P: Payload + ?Sized>(
        &self,
        to: &[Segment],
        what: &P,
        how: Posting,
        ready: Time,
    ) -> Result<(), DmaError> {
        let &[whole] = to else { return self.port.write(to, what, how, ready).await };
        let mut bytes = vec![0; whole.bytes as usize];
        what.runs(&mut |offset, run| bytes[offset as usize..][..run.len()].copy_from_slice(run))
            .map_err(|_| DmaError::Unreadable)?;
        for (offset, length) in self.order(whole) {
            let at = BusAddr(whole.at.0 + offset as u64);
            let packet = Segment { at, bytes: length as u32 };
            let how =
                Posting { relaxed: how.relaxed, flags: Flags::EachPacket(PACKET), wide: how.wide };
            self.port.write(&[packet], &bytes[offset..][..length], how, Time::ZERO).await?;
            // So that the host's thread has a core meanwhile, on a machine of one too, and looks.
            thread::sleep(Duration::from_micros(10));
        }
        Ok(())
    }

    fn publish(&self, at: BusAddr, entry: &[u8], relaxed: bool) -> Result<(), DmaError> {
        self.port.publish(at, entry, relaxed)
    }

    fn interrupt(&self, vector: u16) {
        self.port.interrupt(vector);
    }

    fn cost(&self, name: &str) -> Cost {
        self.port.cost(name)
    }

    fn spend(&self, cost: Cost) -> impl Future<Output = ()> {
        self.port.spend(cost)
    }

    fn elapse(&self, cost: Cost) -> impl Future<Output = ()> {
        self.port.elapse(cost)
    }
}

/// The other path, which no read of these tests may take.
struct Nothing(LiveHost);

impl BlockDevice for Nothing {
    fn geometry(&self) -> Geometry {
        Geometry {
            block_bytes: BLOCK as u32,
            blocks: BLOCKS,
            transfer_bytes_max: BYTES as u32,
            buffer_align: 4,
            volatile_cache: false,
        }
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.0.arena().buffer(bytes)
    }

    async fn read(&self, lba: Lba, _: Buffer) -> (Buffer, Result<(), IoError>) {
        panic!("a read of block {} by the other path", lba.0)
    }

    async fn write(&self, lba: Lba, _: Buffer, _: bool) -> (Buffer, Result<(), IoError>) {
        panic!("a write of block {}", lba.0)
    }

    async fn flush(&self) -> Result<(), IoError> {
        Ok(())
    }
}

/// A word of the block: no two blocks have any in common.
fn byte_of(lba: u64) -> u8 {
    lba as u8
}

fn serve(shared: &Shared, ready: &AtomicBool, stop: &AtomicBool) {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let spec = Spec {
        capacity_bytes: BLOCKS * BLOCK as u64,
        block_bytes: BLOCK as u32,
        keep: Keep::Everything,
        backing: Backing::Memory,
    };
    let contents = Contents::new(spec).expect("memory");
    let medium = Rc::new(Banked::new(&rt, contents, Pace::Immediate));
    let rng = Rc::new(RefCell::new(Rng::for_part(7, "packets")));
    let port = Permuting { port: shared.device(&rt), rng };
    rt.block_on(async {
        for block in 0..BLOCKS {
            let data = [byte_of(block); BLOCK];
            medium.write(Extent { block, blocks: 1 }, &data).await.expect("in range");
        }
        let options = Options {
            block: 0,
            queues: 1,
            entries_log2: 6,
            slots: 16,
            fetch_max: 4,
            anticipate: false,
            sleep_after: u32::MAX,
            poll_gap_max: None,
            transfer_bytes_max: BYTES as u32,
            relaxed_ordering: true,
            traces_from: 0,
        };
        let _front =
            Front::start(port, Rc::new(Tagged::without_tags(&rt, medium.clone())), options);
        ready.store(true, Ordering::Release);
        while !stop.load(Ordering::Relaxed) {
            rt.sleep(Span::us(100)).await;
        }
    });
    rt.drop_tasks();
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads of 4 KiB that ended with other bytes than the blocks have, of this number.
fn wrong(reads: u64, bits: u32, marks_last: bool) -> u64 {
    let _turn = testing::turn();
    let shared = Shared::between_threads(16 << 20, BusAddr(0x1_0000_0000), 0x2000).expect("memory");
    let (ready, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        // The device's thread ends with this one, even on a panic.
        let _stop = SetOnDrop(&stop);
        scope.spawn(|| serve(&shared, &ready, &stop));
        while !ready.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let wrong = rt.block_on(read_all(&rt, &shared, reads, (bits, marks_last)));
        rt.drop_tasks();
        wrong
    })
}

async fn read_all(rt: &Rt, shared: &Shared, reads: u64, (bits, marks_last): (u32, bool)) -> u64 {
    let host = ByPacket(shared.host(rt));
    let beneath = Nothing(host.0.clone());
    let driver = Driver::start(&host, 0, &beneath).await.expect("a register block");
    let options = QueueOptions {
        depth: 4,
        completion: Completion::Polled,
        tags: Tags::Random { bits, seed: 1 },
        marks_last,
        max_latency: Span::s(10),
        retries: 0,
        timeout: Span::s(60),
        may_sleep: false,
        writes: false,
        traces: 1,
    };
    let queue = driver.queue_on(&host, beneath, options).await.expect("a queue");
    let mut buffer = queue.buffer(BYTES).expect("memory");
    let mut wrong = 0;
    for read in 0..reads {
        // Never the blocks of the read before, whose bytes are still in the buffer.
        let lba = read * 8 % (BLOCKS - 8);
        let (back, done) = queue.read(Lba(lba), buffer).await;
        done.expect("a read");
        let mut found = [0; BYTES];
        back.copy_out(0, &mut found);
        let is_good = |(at, byte): (usize, &u8)| *byte == byte_of(lba + (at / BLOCK) as u64);
        wrong += u64::from(!found.iter().enumerate().all(is_good));
        buffer = back;
    }
    driver.stop().await.expect("the queue is disabled");
    wrong
}

#[test]
fn live_reads_are_whole_with_packets_in_any_order() {
    assert_eq!(wrong(300, 32, false), 0);
}

#[test]
fn live_reads_with_wide_tags_are_whole_with_packets_in_any_order() {
    assert_eq!(wrong(300, 64, false), 0);
}

/// The marks are the mechanism: with one alone, reads end before their data are there.
#[test]
fn live_reads_are_torn_with_one_tag_and_packets_in_any_order() {
    assert!(wrong(100, 32, true) > 0);
    assert!(wrong(100, 64, true) > 0);
}
