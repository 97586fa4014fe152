//! The block in the loop: compiled by Verilator, it drives doorbell's own NVMe controller over the modelled
//! link.
//!
//! The host of these tests has no driver: it creates one queue pair by hand and passes it to the block.

#[path = "../../device/tests/it/raw/mod.rs"]
mod raw;

use std::rc::Rc;

use bus::sim::SimHost;
use media::MediaError;
use raw::nvme::world::{Setup as Bench, World};
use rtl::{Engine, Setup, Timing, Verilated};
use runtime::{Rng, Span};
use wire::fastpath::registers::{Counter, Handle};
use wire::fastpath::{Direction, Refusal, Request, Response, Status, Transfer};
use wire::nvme::registers::{cq_head_doorbell, sq_tail_doorbell};
use wire::{BusAddr, QueueId};

const BLOCK: u32 = 512;
const AREA_LBA: u64 = 1000;
const BUFFER_BYTES: u64 = 512 << 10;
const FP_ID: u16 = 3;
const GENERATION: u16 = 9;

struct Loop {
    world: World,
    engine: Engine<SimHost>,
    setup: Setup,
    buffer: BusAddr,
}

fn setup(pair: &raw::nvme::Pair) -> Setup {
    Setup {
        submission_queue: pair.sq.at,
        completion_queue: pair.cq.at,
        depth: pair.sq.entries as u16,
        queue_id: 1,
        tail_doorbell: sq_tail_doorbell(QueueId(1), 0),
        head_doorbell: cq_head_doorbell(QueueId(1), 0),
        namespace: 1,
        lba_shift: 9,
        batch: 8,
        poll_interval: 4,
        timeout: Span::us(300),
    }
}

/// Runs a test with a drive, a queue pair, a block that owns the pair, and a handle for 4096 blocks.
fn in_the_loop<T>(test: impl AsyncFnOnce(Rc<Loop>) -> T) -> T {
    Bench::default().run(async |mut world: World| {
        let pair = world.raw.up().await;
        let buffer = world.raw.place(BUFFER_BYTES, 4096);
        let (setup, timing) = (setup(&pair), Timing { write: 8, read: 14 });
        let host = world.raw.host.clone();
        let engine =
            Engine::start(host, Verilated::new(), &setup, timing).await.expect("a set-up of sense");
        engine.set_handle(FP_ID, &handle(buffer, GENERATION)).await.expect("a handle");
        test(Rc::new(Loop { world, engine, setup, buffer })).await
    })
}

fn handle(buffer: BusAddr, generation: u16) -> Handle {
    Handle {
        live: true,
        generation,
        area_lba: AREA_LBA,
        area_lbas: 4096,
        buffer: buffer.0,
        buffer_bytes: BUFFER_BYTES,
    }
}

impl Loop {
    async fn perform(
        &self,
        direction: Direction,
        offset: u64,
        size: u32,
        block_size: u32,
        at: u64,
    ) -> Response {
        let transfer = Transfer { direction, offset, size, block_size, buffer_offset: at };
        let request = Request::transfer(0, FP_ID, GENERATION, &transfer);
        self.engine.perform(&request).await.expect("an enabled block takes requests")
    }

    fn memory(&self, at: u64, bytes: u32) -> Vec<u8> {
        self.world.raw.bytes(BusAddr(self.buffer.0 + at), bytes as usize)
    }

    fn fill(&self, at: u64, data: &[u8]) {
        self.world.raw.memory.write(BusAddr(self.buffer.0 + at), data).expect("the buffer");
    }

    fn on_medium(&self, offset: u64, bytes: u32) -> Vec<u8> {
        self.world.medium.peek(AREA_LBA + offset / u64::from(BLOCK), bytes as usize)
    }
}

/// All block sizes, both directions, each byte compared.
#[test]
fn rtl_write_read_back_all_block_sizes() {
    in_the_loop(async |l: Rc<Loop>| {
        for (seed, block_size) in (1..).zip([512, 1024, 2048, 4096, 8192]) {
            let (size, offset) = (6 * block_size, 65_536 * seed);
            let data = raw::nvme::pattern(seed, size as usize);
            l.fill(8192, &data);
            let written = l.perform(Direction::Write, offset, size, block_size, 8192).await;
            assert_eq!((written.status(), written.completed.get()), (Status::Good, 6));
            assert_eq!(l.on_medium(offset, size), data, "blocks of {block_size}");
            let read = l.perform(Direction::Read, offset, size, block_size, 256 << 10).await;
            assert_eq!((read.status(), read.completed.get()), (Status::Good, 6));
            assert_eq!(l.memory(256 << 10, size), data, "blocks of {block_size}");
            assert!(read.took.get() > 0);
        }
        let flushed = l.engine.perform(&Request::flush(0, FP_ID, GENERATION)).await.unwrap();
        assert_eq!((flushed.status(), l.world.medium.flushes.get()), (Status::Good, 1));
        // The head doorbell is written in batches, and when no command is in flight.
        let doorbells = l.engine.counter(Counter::HeadDoorbells).await.unwrap();
        let commands = l.engine.counter(Counter::Commands).await.unwrap();
        assert_eq!(commands, 61);
        assert!(doorbells > 0 && doorbells <= commands);
    });
}

/// Eight callers, each with its own part of the area, checked against a copy in memory. The queue wraps.
fn many_callers(seed: u64) -> (u64, u64) {
    in_the_loop(async |l: Rc<Loop>| {
        let left = Rc::new(std::cell::Cell::new(8));
        for caller in 0..8_u64 {
            let (l, left) = (l.clone(), left.clone());
            l.world.rt.clone().spawn(async move {
                one_caller(&l, caller, &mut Rng::new(seed * 8 + caller)).await;
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            l.world.rt.sleep(Span::us(5)).await;
        }
        let completed = l.engine.counter(Counter::Completed).await.unwrap();
        assert!(completed > 200, "{completed} commands: the queue has wrapped");
        assert_eq!(l.engine.counter(Counter::NoSense).await, Ok(0));
        (l.world.rt.now().0, l.engine.cycles())
    })
}

async fn one_caller(l: &Loop, caller: u64, rng: &mut Rng) {
    let (area, buffer) = (caller * (128 << 10), caller * (64 << 10));
    let mut copy = l.on_medium(area, 128 << 10);
    for _ in 0..12 {
        let block = 512_u32 << (rng.next_u64() % 5);
        let size = block * (1 + (rng.next_u64() % 5) as u32);
        let offset = (rng.next_u64() % 64) * 1024;
        let place = offset as usize..offset as usize + size as usize;
        if rng.next_u64().is_multiple_of(2) {
            let data = raw::nvme::pattern(rng.next_u64(), size as usize);
            l.fill(buffer, &data);
            let written = l.perform(Direction::Write, area + offset, size, block, buffer).await;
            assert_eq!(written.status(), Status::Good);
            copy[place].copy_from_slice(&data);
        } else {
            let read = l.perform(Direction::Read, area + offset, size, block, buffer).await;
            assert_eq!(read.status(), Status::Good);
            assert!(
                l.memory(buffer, size) == copy[place],
                "caller {caller}, offset {offset}, {size} bytes"
            );
        }
    }
    assert!(l.on_medium(area, 128 << 10) == copy, "caller {caller}");
}

#[test]
fn rtl_concurrent_callers_are_deterministic() {
    assert_eq!(many_callers(1), many_callers(1), "the end, and the cycles until then");
}

#[test]
fn rtl_rejects_forged_requests() {
    in_the_loop(async |l: Rc<Loop>| {
        let good = Transfer {
            direction: Direction::Write,
            offset: 0,
            size: 4096,
            block_size: 4096,
            buffer_offset: 0,
        };
        let end = 4096 * u64::from(BLOCK);
        let cases = [
            (FP_ID + 1, GENERATION, good, Refusal::Handle),
            (FP_ID + 64, GENERATION, good, Refusal::Handle),
            (FP_ID, GENERATION + 1, good, Refusal::Stale),
            (FP_ID, GENERATION, Transfer { offset: end - 2048, ..good }, Refusal::Area),
            (FP_ID, GENERATION, Transfer { offset: u64::MAX - 511, ..good }, Refusal::Area),
            (FP_ID, GENERATION, Transfer { buffer_offset: BUFFER_BYTES, ..good }, Refusal::Buffer),
            (FP_ID, GENERATION, Transfer { buffer_offset: 512, ..good }, Refusal::Size),
            (FP_ID, GENERATION, Transfer { size: 6144, ..good }, Refusal::Size),
        ];
        for (fp_id, generation, transfer, refusal) in cases {
            let request = Request::transfer(0, fp_id, generation, &transfer);
            let response = l.engine.perform(&request).await.unwrap();
            assert_eq!(response.status(), Status::Engine(refusal), "{transfer:?}");
        }
        let odd = Request { opcode: 5, ..Request::transfer(0, FP_ID, GENERATION, &good) };
        let response = l.engine.perform(&odd).await.unwrap();
        assert_eq!(response.status(), Status::Engine(Refusal::Opcode));
        // A handle with a new generation makes the old generation stale.
        l.engine.set_handle(FP_ID, &handle(l.buffer, GENERATION + 1)).await.unwrap();
        assert_eq!(
            l.perform(Direction::Write, 0, 4096, 4096, 0).await.status(),
            Status::Engine(Refusal::Stale)
        );
        assert_eq!(l.engine.counter(Counter::Commands).await, Ok(0));
        assert!(l.world.medium.written.borrow().is_empty());
    });
}

#[test]
fn rtl_reports_media_error_and_continues() {
    in_the_loop(async |l: Rc<Loop>| {
        l.world.medium.fails.set(Some(MediaError::Unreadable));
        let response = l.perform(Direction::Read, 0, 4096, 4096, 0).await;
        let Status::Nvme(status) = response.status() else { panic!("{response:?}") };
        assert!(!status.is_ok());
        assert_eq!(l.perform(Direction::Read, 0, 4096, 4096, 0).await.status(), Status::Good);
        assert_eq!(l.engine.counter(Counter::BadStatuses).await, Ok(1));
    });
}

/// The drive hangs: requests in flight and later ones fail. Drive and block are reset, and work again.
#[test]
fn rtl_times_out_on_hung_drive_and_recovers() {
    Bench::default().run(async |mut world: World| {
        let pair = world.raw.up().await;
        let buffer = world.raw.place(BUFFER_BYTES, 4096);
        let (host, timing) = (world.raw.host.clone(), Timing { write: 8, read: 14 });
        let engine = Engine::start(host, Verilated::new(), &setup(&pair), timing).await.unwrap();
        engine.set_handle(FP_ID, &handle(buffer, GENERATION)).await.unwrap();
        let read = Transfer {
            direction: Direction::Read,
            offset: 0,
            size: 16_384,
            block_size: 4096,
            buffer_offset: 0,
        };
        let read = Request::transfer(0, FP_ID, GENERATION, &read);
        world.medium.close();
        let begin = world.rt.now();
        assert_eq!(engine.perform(&read).await.unwrap().status(), Status::Engine(Refusal::TimeOut));
        assert!(world.rt.now().since(begin) >= Span::us(300));
        assert!(engine.status().await.unwrap().halted());
        assert_eq!(
            engine.perform(&read).await.unwrap().status(),
            Status::Engine(Refusal::Controller)
        );
        world.raw.disable().await;
        world.medium.open();
        let pair = world.raw.up().await;
        engine.set_up(&setup(&pair)).await.unwrap();
        assert_eq!(engine.perform(&read).await.unwrap().status(), Status::Good);
    });
}

/// A queue outside memory: a bus error, and no doorbell write.
#[test]
fn rtl_halts_on_bus_error() {
    in_the_loop(async |l: Rc<Loop>| {
        let nowhere = BusAddr(1 << 40);
        l.engine.set_up(&Setup { submission_queue: nowhere, ..l.setup }).await.unwrap();
        let response = l.perform(Direction::Read, 0, 4096, 4096, 0).await;
        assert_eq!(response.status(), Status::Engine(Refusal::Bus));
        assert_eq!(l.engine.counter(Counter::TailDoorbells).await, Ok(0));
        let askew = Setup { submission_queue: BusAddr(l.setup.submission_queue.0 + 64), ..l.setup };
        assert!(l.engine.set_up(&askew).await.is_err(), "a queue that begins at no page");
    });
}

/// The ordinary driver brings the drive up and lends a queue pair, which the block uses while the driver
/// runs.
#[test]
fn rtl_uses_queue_pair_lent_by_driver() {
    Bench::default().run(async |world: World| {
        let host = world.raw.host.clone();
        // The first bytes of the arena, which the driver then leaves alone.
        let buffer = world.raw.place(BUFFER_BYTES, 4096);
        let options = host::nvme::Options { queues: 1, ..host::nvme::Options::default() };
        let arena = bus::HostPort::arena(&host).clone();
        let _placed = arena.buffer((BUFFER_BYTES as usize).next_power_of_two()).unwrap();
        let controller = host::nvme::Controller::start(host.clone(), options).await.unwrap();
        assert!(controller.lend(1).await.is_err(), "a queue of one entry");
        let lent = controller.lend(64).await.unwrap();
        let setup = Setup {
            submission_queue: lent.submission().at(),
            completion_queue: lent.completion().at(),
            depth: lent.entries() as u16,
            queue_id: lent.qid().0,
            tail_doorbell: lent.tail_doorbell(),
            head_doorbell: lent.head_doorbell(),
            namespace: controller.identity().nsid.0,
            lba_shift: 9,
            batch: 8,
            poll_interval: 4,
            timeout: Span::us(300),
        };
        let timing = Timing { write: 8, read: 14 };
        let engine = Engine::start(host, Verilated::new(), &setup, timing).await.unwrap();
        engine.set_handle(FP_ID, &handle(buffer, GENERATION)).await.unwrap();
        let data = raw::nvme::pattern(5, 65_536);
        world.raw.memory.write(buffer, &data).unwrap();
        let write = Transfer {
            direction: Direction::Write,
            offset: 0,
            size: 65_536,
            block_size: 4096,
            buffer_offset: 0,
        };
        let write = Request::transfer(0, FP_ID, GENERATION, &write);
        assert_eq!(engine.perform(&write).await.unwrap().status(), Status::Good);
        assert!(world.medium.peek(AREA_LBA, 65_536) == data);
        controller.shutdown().await.unwrap();
    });
}
