//! Fused Compare and Write by the driver: atomic, without deadlock on full queues, and reported as unknown
//! after a reset.

use std::cell::Cell;
use std::rc::Rc;

use bus::sim::{SimBus, SimHost};
use host::nvme::{Controller, Issuer, Options, Queue, QueueOptions, Shared};
use host::{BlockDevice, Buffer, Kind};
use plan::Plan;
use runtime::{LockPolicy, Log, Rng, Rt, Signal, Span};
use testing::plan;
use wire::Lba;
use world::device::{Clock, Device, MediumState};
use world::interfaces::NVME;

type Disk = Rc<Queue<SimHost>>;

fn machine(depth: &str) -> Plan {
    let sets = [
        ("medium.keep", "everything"),
        ("medium.capacity", "16 MiB"),
        ("host.cores", "4"),
        ("host.queue_depth", depth),
        ("host.sharing.policy", "single"),
        ("host.sharing.lock", "40 ns"),
        ("host.sharing.transfer", "100 ns"),
    ];
    plan("gen4", &sets)
}

/// A buffer of one block that holds this number.
fn block_of(disk: &Disk, number: u64) -> Buffer {
    let buffer = disk.buffer(disk.geometry().block_bytes as usize).expect("host memory");
    buffer.zero();
    buffer.copy_in(0, &number.to_le_bytes());
    buffer
}

async fn number(disk: &Disk, lba: Lba) -> u64 {
    let (buffer, read) = disk.read(lba, block_of(disk, 0)).await;
    read.expect("a read");
    let mut bytes = [0; 8];
    buffer.copy_out(0, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Results of tasks that increment a counter in one block.
#[derive(Default)]
struct Counted {
    /// Number of pairs that were written; `differed` and `unknown` count the others.
    written: Cell<u64>,
    differed: Cell<u64>,
    unknown: Cell<u64>,
    tasks: Cell<u64>,
    done: Signal,
}

/// Tries `times` times to increment the counter in block `lba` by a fused pair.
async fn count(rt: Rt, disk: Disk, lba: Lba, times: u64, counted: Rc<Counted>) {
    let more = |of: &Cell<u64>| of.set(of.get() + 1);
    for _ in 0..times {
        let seen = number(&disk, lba).await;
        let (with, from) = (block_of(&disk, seen), block_of(&disk, seen + 1));
        let (_, done) = disk.compare_and_write(lba, with, from, false).await;
        match done {
            Ok(true) => more(&counted.written),
            Ok(false) => more(&counted.differed),
            Err(error) => {
                assert_eq!(error.kind, Kind::Reset, "{error}");
                more(&counted.unknown);
            }
        }
    }
    more(&counted.tasks);
    counted.done.notify(&rt);
}

/// Runs tasks that increment a counter in one block through `disks` in turn, with `resets` controller resets.
async fn contend(
    (rt, controller): (&Rt, &Controller<SimHost>),
    disks: &[Disk],
    resets: u64,
    seed: u64,
) -> Rc<Counted> {
    const TASKS: u64 = 8;
    let (counted, lba) = (Rc::new(Counted::default()), Lba(5));
    disks[0].write(lba, block_of(&disks[0], 0), false).await.1.expect("a write");
    for task in 0..TASKS {
        let disk = disks[task as usize % disks.len()].clone();
        rt.spawn(count(rt.clone(), disk, lba, 40, counted.clone()));
    }
    let mut rng = Rng::new(seed);
    for _ in 0..resets {
        rt.sleep(Span::ns(1_000 + rng.below(60_000))).await;
        controller.reset().await.expect("a reset");
    }
    loop {
        let version = counted.done.version();
        if counted.tasks.get() == TASKS {
            break;
        }
        counted.done.changed(rt, version).await;
    }
    let last = number(&disks[0], lba).await;
    let (written, unknown) = (counted.written.get(), counted.unknown.get());
    assert!((written..=written + unknown).contains(&last), "{written} and {unknown}, found {last}");
    for disk in disks {
        assert_eq!(disk.slots_free(), usize::from(disk.depth()));
    }
    counted
}

/// Runs `body` with a device of this plan and a started controller.
fn with_controller(plan: &Plan, body: impl AsyncFnOnce(&Rt, &SimBus, &Controller<SimHost>)) {
    let rt = Rt::simulated(None, Log::Off);
    let spec = bus::sim::SimSpec { register_bytes: (NVME.register_bytes)(plan), ..plan.sim_spec() };
    let bus = SimBus::new(&rt, spec);
    let kept = MediumState::new(plan).expect("a medium in memory");
    Device::start(NVME, bus.device(), kept, Clock::Virtual, plan).expect("a plan with timing");
    rt.block_on(async {
        let options = Options { queues: 2, ..Options::default() };
        let controller = Controller::start(bus.host(0), options).await.expect("a controller");
        body(&rt, &bus, &controller).await;
    });
    rt.drop_tasks();
}

/// Two queues, of depth 2, where each pair needs both slots, and deeper.
#[test]
fn fused_pairs_lose_no_increment() {
    for depth in [2, 3, 16] {
        with_controller(&machine("16"), async |rt, _, controller| {
            let options = QueueOptions { depth, ..QueueOptions::default() };
            let disks = [
                controller.queue(options).await.expect("a queue"),
                controller.queue(options).await.expect("a queue"),
            ];
            let counted = contend((rt, controller), &disks, 0, 0).await;
            assert!(counted.written.get() >= 20 && counted.differed.get() >= 20);
            assert_eq!(counted.unknown.get(), 0);
        });
    }
}

/// A pair interrupted by a reset is not retried: if it was executed, a retry would report a mismatch.
#[test]
fn fused_pair_interrupted_by_reset_is_unknown() {
    let mut unknown = 0;
    for seed in 0..6 {
        with_controller(&machine("16"), async |rt, _, controller| {
            let options = QueueOptions { depth: 4, ..QueueOptions::default() };
            let disks = [controller.queue(options).await.expect("a queue")];
            unknown += contend((rt, controller), &disks, 12, seed).await.unknown.get();
        });
    }
    assert!(unknown > 10, "{unknown}");
}

/// Cores that share a queue of two commands: a pair that waits for a second slot does not deadlock the
/// others.
#[test]
fn fused_pairs_on_shared_queue_lose_no_increment() {
    for (depth, resets) in [(2, 0), (3, 0), (2, 6), (5, 6)] {
        with_controller(&machine("16"), async |rt, bus, controller| {
            let options = QueueOptions { depth, ..QueueOptions::default() };
            let queue = controller.queue(options).await.expect("a queue");
            let shared = Shared::new(LockPolicy::Unfair(Rng::new(7)), Span::ns(100));
            let handle = |core: u16| {
                let port = bus.host(core.into());
                queue.shared_by(&port, &shared, &Issuer::new(core), core == 0)
            };
            let disks: Vec<Disk> = (0..4).map(handle).collect();
            let counted = contend((rt, controller), &disks, resets, u64::from(depth)).await;
            assert!(counted.written.get() > 40, "{}", counted.written.get());
        });
    }
}

/// A pair dropped at any time returns its slots and its turn.
#[test]
fn dropped_fused_pair_returns_slots() {
    with_controller(&machine("16"), async |rt, _, controller| {
        let options = QueueOptions { depth: 2, ..QueueOptions::default() };
        let disk = controller.queue(options).await.expect("a queue");
        disk.write(Lba(5), block_of(&disk, 0), false).await.1.expect("a write");
        for moment in 0..400 {
            let pair =
                disk.compare_and_write(Lba(5), block_of(&disk, 0), block_of(&disk, 0), false);
            let read = disk.read(Lba(6), block_of(&disk, 0));
            let both = async { runtime::race(std::pin::pin!(pair), std::pin::pin!(read)).await };
            let late = rt.sleep(Span::ns(moment * 25));
            let _ = runtime::race(std::pin::pin!(both), std::pin::pin!(late)).await;
        }
        let (with, from) = (block_of(&disk, 0), block_of(&disk, 1));
        assert_eq!(disk.compare_and_write(Lba(5), with, from, true).await.1, Ok(true));
        assert_eq!((number(&disk, Lba(5)).await, disk.slots_free()), (1, 2));
    });
}

#[test]
fn fused_pair_needs_queue_depth_2() {
    with_controller(&machine("16"), async |_, _, controller| {
        let options = QueueOptions { depth: 1, ..QueueOptions::default() };
        let disk = controller.queue(options).await.expect("a queue");
        let (with, from) = (block_of(&disk, 0), block_of(&disk, 1));
        let error = disk.compare_and_write(Lba(5), with, from, false).await.1.expect_err("refused");
        assert_eq!((error.kind, disk.counters().submissions), (Kind::Unsupported, 0));
    });
}
