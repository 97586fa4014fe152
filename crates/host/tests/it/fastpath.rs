//! FastPath's engine on the modelled bus, with drives that are late, out of order, silent or broken.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::fake::{Aborts, Answer, Traits};
use crate::common::{BLOCK, Crowd, STAGES, Setup, World, pattern, poll_times};
use bus::sim::SimHost;
use bus::{Buffer, HostPort};
use host::BlockDevice;
use host::fastpath::{Area, Disk, Engine, Function, Handle, OpenError, Options, Refused, Schedule};
use host::nvme::{self, Controller, QueueOptions};
use runtime::{Either, Span, Traces, race};
use wire::Lba;
use wire::fastpath::{Direction, Refusal, Request, Response, Status, Transfer};
use wire::nvme::{io, status};

/// Trace identifier space of requests, after those of the admin queue and four I/O queues.
const TRACE_QUEUES: u16 = 5;

fn options(engines: u16, depth: u16) -> Options {
    let queue = QueueOptions { depth, ..QueueOptions::default() };
    Options {
        engines,
        queue,
        requests: 64,
        from: Lba(64),
        traces: TRACE_QUEUES,
        schedule: Schedule::RoundRobin,
    }
}

async fn start(world: &World, options: Options) -> (Controller<SimHost>, Engine<SimHost>) {
    let wanted =
        nvme::Options { queues: 4, timeout: Span::ms(10), retries: 1, ..nvme::Options::default() };
    let controller = Controller::start(world.host.clone(), wanted).await.unwrap();
    let engine =
        Engine::start(std::slice::from_ref(&world.host), &controller, options).await.unwrap();
    (controller, engine)
}

/// A handle with its area and its buffer.
struct Mine {
    handle: Handle,
    area: Area,
    buffer: Buffer,
}

fn open(engine: &Engine<SimHost>, blocks: u64, bytes: usize) -> Mine {
    let buffer = engine.port().arena().buffer(bytes).unwrap();
    let (handle, area) = engine.open(blocks, buffer.part(0, bytes)).unwrap();
    Mine { handle, area, buffer }
}

impl Mine {
    fn request(&self, direction: Direction, offset: u64, size: u32, block_size: u32) -> Request {
        let transfer = Transfer { direction, offset, size, block_size, buffer_offset: offset };
        Request::transfer(7, self.handle.fp_id, self.handle.generation, &transfer)
    }

    fn read(&self, offset: u64, size: u32, block_size: u32) -> Request {
        self.request(Direction::Read, offset, size, block_size)
    }

    fn holds_what_the_drive_has(&self, blocks: u64) -> bool {
        (0..blocks).all(|block| {
            let mut seen = vec![0; BLOCK];
            self.buffer.copy_out(block as usize * BLOCK, &mut seen);
            seen == pattern(self.area.first.0 + block)
        })
    }
}

fn refused(response: &Response) -> Refusal {
    match response.status() {
        Status::Engine(refusal) => refusal,
        other => panic!("{other}"),
    }
}

#[test]
fn one_4k_read_reports_status_and_latency() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (controller, engine) = start(&world, options(1, 8)).await;
        let mine = open(&engine, 64, 32 << 10);
        assert_eq!(mine.area.first, Lba(64), "what lies below is others'");
        let response = engine.perform(&mine.read(0, 4096, 4096)).await;
        assert_eq!((response.status(), response.completed.get()), (Status::Good, 1));
        assert_eq!(response.tag.get(), 7);
        assert!((10_000..20_000).contains(&response.took.get()), "{response:?}");
        assert!(mine.holds_what_the_drive_has(8));
        assert_eq!(engine.queues()[0].counters().submissions, 1);
        assert_eq!(engine.latency().requests, 1);
        controller.shutdown().await.unwrap();
    });
}

/// Every block size, requests up to the longest, completions in any order.
#[test]
fn requests_split_into_every_block_size() {
    let io = |n: u64, _: &io::Request| Answer::After(Span::us(n * 37 % 90));
    let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
    world.rt.block_on(async {
        let (_controller, engine) = start(&world, options(2, 32)).await;
        let mine = open(&engine, 2048, 1 << 20);
        for (size, block_size) in
            [(512, 512), (3 << 10, 1024), (64 << 10, 2048), (1 << 20, 4096), (1 << 20, 8192)]
        {
            let before = world.fake.commands.get();
            mine.buffer.zero();
            let response = engine.perform(&mine.read(0, size, block_size)).await;
            assert_eq!(response.status(), Status::Good);
            assert_eq!(response.completed.get(), size / block_size);
            assert_eq!(world.fake.commands.get() - before, u64::from(size / block_size));
            assert!(mine.holds_what_the_drive_has(u64::from(size) / BLOCK as u64), "{block_size}");
        }
        // Written with one block size, read with another.
        let bytes: Vec<u8> = (0..256 << 10).map(|n: u32| ((n * 7) >> 5) as u8).collect();
        mine.buffer.copy_in(0, &bytes);
        let write = engine.perform(&mine.request(Direction::Write, 0, 256 << 10, 8192)).await;
        assert_eq!(write.status(), Status::Good);
        mine.buffer.zero();
        engine.perform(&mine.read(0, 256 << 10, 512)).await;
        let mut seen = vec![0; bytes.len()];
        mine.buffer.copy_out(0, &mut seen);
        assert!(seen == bytes);
        let flush = Request::flush(1, mine.handle.fp_id, mine.handle.generation);
        assert_eq!(engine.perform(&flush).await.status(), Status::Good);
        assert_eq!(world.fake.flushes.get(), 1);
        // Both engines took a share, and both rings wrapped.
        for queue in engine.queues() {
            assert!(queue.counters().submissions > 300, "{:?}", queue.counters());
            assert_eq!(queue.counters().protocol_errors, 0);
        }
    });
}

#[test]
fn requests_outside_handle_rejected() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (_controller, engine) = start(&world, options(1, 8)).await;
        let mine = open(&engine, 64, 32 << 10);
        let freed = open(&engine, 64, 32 << 10);
        assert!(engine.close(freed.handle) && !engine.close(freed.handle));
        let forged = |fp_id, generation| {
            let handle = Handle { fp_id, generation };
            Mine { handle, area: mine.area, buffer: mine.buffer.part(0, 4096) }
        };
        let (area, bytes) = (64 * BLOCK as u64, 32 << 10);
        let at = |offset, size, buffer_offset| {
            let direction = Direction::Write;
            let transfer = Transfer { direction, offset, size, block_size: 512, buffer_offset };
            Request::transfer(7, mine.handle.fp_id, mine.handle.generation, &transfer)
        };
        let attempts = [
            (forged(999, 1).read(0, 512, 512), Refusal::Handle),
            (forged(u16::MAX, u16::MAX).read(0, 512, 512), Refusal::Handle),
            (forged(mine.handle.fp_id, 0).read(0, 512, 512), Refusal::Stale),
            (forged(mine.handle.fp_id, 2).read(0, 512, 512), Refusal::Stale),
            (freed.read(0, 512, 512), Refusal::Stale),
            (Request::flush(7, freed.handle.fp_id, freed.handle.generation), Refusal::Stale),
            (at(area, 512, 0), Refusal::Area),
            (at(area - 512, 1024, 0), Refusal::Area),
            (at(u64::MAX - 511, 512, 0), Refusal::Area),
            (at(u64::MAX - 511, 1024, 0), Refusal::Area),
            (at(0, 512, bytes), Refusal::Buffer),
            (at(0, 1024, bytes - 512), Refusal::Buffer),
            (at(0, 512, u64::MAX - 511), Refusal::Buffer),
            (at(0, (1 << 20) + 512, 0), Refusal::Size),
            (at(100, 512, 0), Refusal::Size),
            (at(0, 512, 100), Refusal::Size),
            (mine.read(0, 16384, 16384), Refusal::Size),
            (Request { opcode: 9, ..mine.read(0, 512, 512) }, Refusal::Opcode),
            (Request { reserved: 1, ..mine.read(0, 512, 512) }, Refusal::Opcode),
        ];
        for (request, refusal) in &attempts {
            let response = engine.perform(request).await;
            assert_eq!(refused(&response), *refusal, "{request:?}");
            assert_eq!(response.completed.get(), 0);
        }
        assert_eq!(world.fake.commands.get(), 0, "the drive has heard of none of them");
        assert_eq!(engine.latency().refused, attempts.len() as u64);
        assert!(engine.perform(&mine.read(0, 512, 512)).await.status().is_good());
    });
}

#[test]
fn failed_command_stops_request_and_sets_status() {
    let bad = status::Status::UNRECOVERED_READ_ERROR;
    let io = move |_: u64, request: &io::Request| match request.command {
        io::Command::Read(access) if access.lba == Lba(64 + 24) => Answer::Fails(Span::us(1), bad),
        _ => Answer::After(Span::us(10)),
    };
    let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
    world.rt.block_on(async {
        let (_controller, engine) = start(&world, options(1, 2)).await;
        let mine = open(&engine, 2048, 1 << 20);
        let response = engine.perform(&mine.read(0, 1 << 20, 4096)).await;
        assert_eq!(response.status(), Status::Nvme(bad));
        let completed = response.completed.get();
        assert!((4..8).contains(&completed), "{completed} of 256");
        assert_eq!(world.fake.commands.get(), u64::from(completed));
        let response = engine.perform(&mine.read(4096, 4096, 4096)).await;
        assert!(response.status().is_good(), "the next request is another");
        assert_eq!(engine.latency().failed, 1);
    });
}

#[test]
fn timeout_reported_and_engine_continues() {
    let silent = Rc::new(Cell::new(true));
    let held = silent.clone();
    let io = move |_: u64, _: &io::Request| match held.get() {
        true => Answer::Never,
        false => Answer::After(Span::us(1)),
    };
    let world = World::new(Traits { io: Box::new(io), aborts: Aborts::Work, ..Traits::default() });
    world.rt.block_on(async {
        let (_controller, engine) = start(&world, options(1, 4)).await;
        let mine = open(&engine, 64, 32 << 10);
        let response = engine.perform(&mine.read(0, 4096, 4096)).await;
        assert_eq!(refused(&response), Refusal::TimeOut);
        silent.set(false);
        assert!(engine.perform(&mine.read(0, 4096, 4096)).await.status().is_good());
    });
}

/// The area and memory of a closed handle stay in use until its commands have ended.
#[test]
fn closed_area_not_reused_before_last_command() {
    let io = |_: u64, _: &io::Request| Answer::After(Span::us(500));
    let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
    world.rt.block_on(async {
        let (_controller, engine) = start(&world, options(1, 4)).await;
        let blocks = engine.geometry().blocks - 64;
        let mine = open(&engine, blocks, 4096);
        let crowd = Crowd::new(&world.rt);
        let (asking, request) = (engine.clone(), mine.read(0, 4096, 4096));
        crowd.spawn(async move { asking.perform(&request).await });
        world.rt.sleep(Span::us(100)).await;
        assert!(engine.close(mine.handle));
        let buffer = || engine.port().arena().buffer(4096).unwrap();
        assert_eq!(engine.open(1, buffer()).err(), Some(OpenError::Full(0)));
        assert_eq!(refused(&engine.perform(&mine.read(0, 4096, 4096)).await), Refusal::Stale);
        assert!(crowd.all(Span::ms(5)).await[0].status().is_good());
        assert!(engine.open(blocks, buffer()).is_ok());
    });
}

/// The NVMe driver uses the same drive through its own queue, with a reset of the controller.
#[test]
fn nvme_queue_shares_drive_with_engine_across_reset() {
    let io = |n: u64, _: &io::Request| Answer::After(Span::us(n * 13 % 40));
    let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
    world.rt.block_on(async {
        let (controller, engine) = start(&world, options(1, 8)).await;
        let queue =
            controller.queue(QueueOptions { depth: 8, ..QueueOptions::default() }).await.unwrap();
        let mine = Rc::new(open(&engine, 1024, 512 << 10));
        let crowd = Crowd::new(&world.rt);
        for n in 0..64_u64 {
            let (queue, asking, mine) = (queue.clone(), engine.clone(), mine.clone());
            crowd.spawn(async move {
                let (buffer, result) = queue.read(Lba(n), queue.buffer(BLOCK).unwrap()).await;
                let mut seen = vec![0; BLOCK];
                buffer.copy_out(0, &mut seen);
                let ordinary = result.is_ok() && seen == pattern(n);
                ordinary
                    && asking.perform(&mine.read(n * 8192, 8192, 4096)).await.status().is_good()
            });
        }
        world.rt.sleep(Span::us(50)).await;
        controller.reset().await.unwrap();
        assert!(crowd.all(Span::s(2)).await.iter().all(|good| *good));
        assert!(mine.holds_what_the_drive_has(1024));
    });
}

/// After a dropped task the drive still owns the slot and the buffer.
#[test]
fn dropped_request_frees_slot_after_completion() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let small = Options { requests: 2, ..options(1, 4) };
        let (_controller, engine) = start(&world, small).await;
        let disk = Disk::new(&engine, &world.host, 4096).unwrap();
        for polls in 1..40 {
            let read = disk.read(Lba(0), disk.buffer(8192).unwrap());
            poll_times(read, polls % 5).await;
            world.rt.sleep(Span::us(polls as u64 * 3)).await;
        }
        world.rt.sleep(Span::ms(1)).await;
        let (_, result) = disk.read(Lba(0), disk.buffer(1 << 20).unwrap()).await;
        assert_eq!(result, Ok(()));
    });
}

/// As a block device: the trace's stages sum to the latency for any number of commands.
#[test]
fn trace_of_multi_command_request_sums_to_latency() {
    let traces = Traces::new(6, 64, 10, 0, STAGES);
    let io = |n: u64, _: &io::Request| Answer::After(Span::us(10 + n * 29 % 70));
    let traits = Traits { io: Box::new(io), ..Traits::default() };
    let world = World::with(traits, Setup { traces: Some(traces), ..Setup::default() });
    world.rt.block_on(async {
        let (_controller, engine) = start(&world, options(1, 8)).await;
        let disk = Disk::new(&engine, &world.host, 4096).unwrap();
        let wrong = RefCell::new(Vec::new());
        for bytes in [512, 4096, 64 << 10] {
            let begun = world.rt.now();
            let (_, result) = disk.read(Lba(8), disk.buffer(bytes).unwrap()).await;
            let finished = world.rt.finish_trace().expect("it is followed");
            let spent = world.rt.now().since(begun);
            if result.is_err()
                || finished.total != spent
                || finished.stages.iter().sum::<u64>() != spent.0
            {
                wrong.borrow_mut().push((bytes, finished, spent));
            }
        }
        assert!(wrong.borrow().is_empty(), "{wrong:?}");
    });
}

/// A function that inverts blocks, and rejects those that contain a given block of 512 bytes.
#[derive(Default)]
struct Inverts {
    refuses: Option<u64>,
    written: Vec<(u64, usize, bool)>,
}

impl Inverts {
    fn pass(&self, place: u64, block: &mut [u8]) -> Result<(), Refused> {
        if self.refuses.is_some_and(|at| (place..place + block.len() as u64).contains(&at)) {
            return Err(Refused);
        }
        block.iter_mut().for_each(|byte| *byte = !*byte);
        Ok(())
    }
}

impl Function for Inverts {
    fn outward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused> {
        self.pass(place, block)
    }

    fn inward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused> {
        self.pass(place, block)
    }

    fn written(&mut self, place: u64, bytes: usize, good: bool) {
        self.written.push((place, bytes, good));
    }
}

/// The drive holds the function's output, the caller's memory is unchanged, and other handles are not
/// affected.
#[test]
fn function_transforms_blocks_on_data_path() {
    let io = |n: u64, _: &io::Request| Answer::After(Span::us(n * 37 % 90));
    let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
    world.rt.block_on(async {
        let (controller, engine) = start(&world, options(2, 8)).await;
        let mine = open(&engine, 256, 128 << 10);
        let function = Rc::new(RefCell::new(Inverts::default()));
        engine.pass_through(mine.handle, function.clone()).unwrap();
        let bytes: Vec<u8> = (0..128_u32 << 10).map(|n| ((n * 7) >> 5) as u8).collect();
        mine.buffer.copy_in(0, &bytes);
        let write = engine.perform(&mine.request(Direction::Write, 0, 128 << 10, 8192)).await;
        assert_eq!((write.status(), write.completed.get()), (Status::Good, 16));
        let first = mine.area.first.0 * BLOCK as u64;
        let mut written = std::mem::take(&mut function.borrow_mut().written);
        written.sort_unstable();
        assert_eq!(written, (0..16).map(|n| (first + n * 8192, 8192, true)).collect::<Vec<_>>());
        let mut seen = vec![0; bytes.len()];
        mine.buffer.copy_out(0, &mut seen);
        assert!(seen == bytes, "a write changes nothing of the caller's");
        let ordinary = controller.queue(QueueOptions::default()).await.unwrap();
        let there = ordinary.buffer(128 << 10).unwrap();
        let (there, read) = ordinary.read(mine.area.first, there).await;
        read.unwrap();
        there.copy_out(0, &mut seen);
        assert!(seen.iter().zip(&bytes).all(|(there, here)| *there == !*here));
        for block_size in [512, 4096, 8192] {
            mine.buffer.zero();
            let read = engine.perform(&mine.read(0, 128 << 10, block_size)).await;
            assert_eq!(read.status(), Status::Good);
            mine.buffer.copy_out(0, &mut seen);
            assert!(seen == bytes, "{block_size}");
        }
    });
}

#[test]
fn block_rejected_by_function_is_not_transferred() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (_controller, engine) = start(&world, options(1, 8)).await;
        let mine = open(&engine, 64, 32 << 10);
        let refuses = Some((mine.area.first.0 + 20) * BLOCK as u64);
        let function = Rc::new(RefCell::new(Inverts { refuses, ..Inverts::default() }));
        engine.pass_through(mine.handle, function.clone()).unwrap();
        let pages = |from: u64| -> Vec<u8> {
            let mut seen = vec![0; 4096];
            mine.buffer.copy_out(from as usize * 4096, &mut seen);
            seen
        };
        // The third page is rejected: it is not copied to memory, the first two are.
        let before = world.fake.commands.get();
        let read = engine.perform(&mine.read(0, 32 << 10, 4096)).await;
        assert_eq!(refused(&read), Refusal::Function);
        assert!(pages(2).iter().all(|byte| *byte == 0));
        assert!(pages(0).iter().any(|byte| *byte != 0));
        assert!(world.fake.commands.get() > before + 2);
        // A rejected write does not reach the drive.
        let before = world.fake.commands.get();
        let write = engine.perform(&mine.request(Direction::Write, 8192, 4096, 4096)).await;
        assert_eq!((refused(&write), write.completed.get()), (Refusal::Function, 1));
        assert_eq!(world.fake.commands.get(), before);
        assert!(function.borrow().written.is_empty());
        // Stale handles and handles with requests in flight are rejected.
        let stale = Handle { generation: 9, ..mine.handle };
        assert_eq!(engine.pass_through(stale, function.clone()), Err(OpenError::Busy));
        let request = mine.read(0, 4096, 4096);
        let meanwhile = async { engine.pass_through(mine.handle, function.clone()) };
        let ended = race(engine.perform(&request), meanwhile).await;
        assert!(matches!(ended, Either::Second(Err(OpenError::Busy))));
    });
}

/// A function's time is charged to the engine's core: 5 ns per 512 bytes here.
#[test]
fn function_cost_adds_to_latency() {
    let took = |function: bool| {
        let world = World::new(Traits::default());
        world.rt.block_on(async {
            let (_controller, engine) = start(&world, options(1, 8)).await;
            let mine = open(&engine, 64, 32 << 10);
            if function {
                let function = Rc::new(RefCell::new(Inverts::default()));
                engine.pass_through(mine.handle, function).unwrap();
            }
            engine.perform(&mine.read(0, 4096, 4096)).await.took.get()
        })
    };
    assert_eq!(took(true), took(false) + 8 * 5);
}
