//! A controller's queues in several host threads: reads verify, also under resets; a request for one queue
//! too many fails with the number of queues; commands past their deadline are aborted; removal of the device
//! ends the work of every thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use bus::HostPort;
use bus::live::{LiveHost, Shared};
use host::nvme::threads::{Queues, granter};
use host::nvme::{Completion, Controller, Options, Queue, QueueOptions};
use host::{BlockDevice, InitError, Kind};
use plan::Plan;
use runtime::{Log, Rt, STD_CLOCK, Span};
use testing::plan;
use wire::Lba;
use world::device::{Clock, Device, MediumState};
use world::interfaces::NVME;

const THREADS: usize = 2;
const BLOCK: usize = 4096;
/// Blocks of each thread.
const BLOCKS: u64 = 8;

/// Sets a flag on drop, so that a panic of one thread does not block the others.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Waits for a condition; panics after 60 s.
async fn until(rt: &Rt, mut come: impl FnMut() -> bool) {
    let end = rt.now() + Span::ms(60_000);
    while !come() {
        assert!(rt.now() < end, "a thread is stuck, or has ended");
        rt.sleep(Span::ms(1)).await;
    }
}

/// Runs a device with these faults on its own thread until `host` returns or sets its flag.
fn with_device(faults: &str, host: impl FnOnce(&Plan, &Shared, &AtomicBool)) {
    let _turn = testing::turn();
    let sets = [("medium.capacity", "16 MiB"), ("device.queues", "2"), ("faults", faults)];
    let plan = plan("live", &sets);
    let registers = (NVME.register_bytes)(&plan);
    let shared = Shared::between_threads(64 << 20, plan.host.memory_base, registers).unwrap();
    let shared = shared.with_masks(NVME.masks);
    let (there, dead) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let rt = Rt::live(&STD_CLOCK, None, Log::Off);
            let kept = MediumState::new(&plan).unwrap();
            let port = shared.device(&rt);
            let device = Device::start(NVME, port, kept, Clock::Wall, &plan).unwrap();
            there.store(true, Ordering::Release);
            rt.block_on(async {
                while !dead.load(Ordering::Acquire) {
                    rt.sleep(Span::ms(1)).await;
                }
            });
            drop(device);
            rt.drop_tasks();
        });
        let _ends = Sets(&dead);
        while !there.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        host(&plan, &shared, &dead);
    });
}

/// Contents of a block in round `round` of a thread.
fn stamp(thread: usize, lba: u64, round: u64) -> Vec<u8> {
    let words =
        (0..BLOCK as u64 / 8).map(|word| (thread as u64) << 56 | round << 32 | lba << 16 | word);
    words.flat_map(u64::to_le_bytes).collect()
}

/// LBA of a thread's block.
fn place<P: HostPort>(queue: &Queue<P>, thread: usize, piece: u64) -> Lba {
    let blocks = BLOCK as u64 / u64::from(queue.geometry().block_bytes);
    Lba((thread as u64 * BLOCKS + piece) * blocks)
}

/// Writes a thread's blocks from `first` on, and reads them back.
async fn round<P: HostPort>(
    queue: &Queue<P>,
    thread: usize,
    first: u64,
    round: u64,
) -> Result<(), Kind> {
    for lba in first..BLOCKS {
        let at = place(queue, thread, lba);
        let buffer = queue.buffer(BLOCK).unwrap();
        buffer.copy_in(0, &stamp(thread, lba, round));
        queue.write(at, buffer, false).await.1.map_err(|error| error.kind)?;
    }
    for lba in first..BLOCKS {
        let at = place(queue, thread, lba);
        let (buffer, read) = queue.read(at, queue.buffer(BLOCK).unwrap()).await;
        read.map_err(|error| error.kind)?;
        let mut seen = vec![0; BLOCK];
        buffer.copy_out(0, &mut seen);
        assert!(seen == stamp(thread, lba, round), "thread {thread}, block {lba}, round {round}");
    }
    Ok(())
}

/// Runs one thread: gets a queue, does rounds until `over` is set or the device is gone, and returns the
/// queue. Sends its number to `reports` after each round.
fn works(
    shared: &Shared,
    queues: &Queues,
    thread: usize,
    over: &AtomicBool,
    reports: &Sender<usize>,
) -> Kind {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let port = shared.host_of(&rt, thread + 1, THREADS + 1);
    let completion = [Completion::Polled, Completion::Hybrid][thread % 2];
    let options = QueueOptions { depth: 8, completion, ..QueueOptions::default() };
    let end = rt.block_on(async {
        let mine = queues.queue(&port, options).await.expect("a queue for each thread");
        let mut number = 0;
        let end = loop {
            if over.load(Ordering::Acquire) {
                break Kind::Closed;
            }
            if let Err(kind) = round(mine.queue(), thread, 0, number).await {
                break kind;
            }
            number += 1;
            // The receiver may have ended.
            let _ = reports.send(thread);
        };
        if end == Kind::Closed {
            mine.give_back().await.expect("the controller answers");
        }
        end
    });
    rt.drop_tasks();
    end
}

/// Runs the controller's thread and the other threads. `body` gets a function that returns the number of
/// rounds of each thread. Returns the reason for which each thread ended.
fn with_threads(
    plan: &Plan,
    shared: &Shared,
    body: impl AsyncFnOnce(&LiveHost, &Controller<LiveHost>, &mut dyn FnMut() -> [u64; THREADS]),
) -> Vec<Kind> {
    let (over, rt) = (AtomicBool::new(false), Rt::live(&STD_CLOCK, None, Log::Off));
    let (reports, rounds) = channel();
    let (granter, queues) = granter();
    let ends = std::thread::scope(|scope| {
        let ends = Sets(&over);
        let others: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (queues, reports, over) = (queues.clone(), reports.clone(), &over);
                scope.spawn(move || works(shared, &queues, thread, over, &reports))
            })
            .collect();
        rt.block_on(async {
            let port = shared.host_of(&rt, 0, THREADS + 1);
            let timeout = plan.host.timeout;
            let options = Options { queues: THREADS as u16, timeout, ..Options::default() };
            let controller = Controller::start(port.clone(), options).await.unwrap();
            let body = async {
                let mut done = [0; THREADS];
                let mut look = || {
                    rounds.try_iter().for_each(|thread| done[thread] += 1);
                    done
                };
                until(&rt, || !look().contains(&0)).await;
                // All queues are granted, so one more fails with both numbers.
                let one_more = queues.queue(&port, QueueOptions::default()).await;
                let (asked, granted) = (THREADS as u32 + 1, THREADS as u32);
                assert_eq!(one_more.err(), Some(InitError::TooFewQueues { asked, granted }));
                body(&port, &controller, &mut look).await;
                match controller.gone() {
                    None => drop(ends),
                    // The threads notice a removed device themselves, however late: nothing else ends them.
                    Some(_) => std::mem::forget(ends),
                }
                drop(queues);
            };
            let serve = granter.serve(&controller);
            let (mut body, mut serve) = (std::pin::pin!(body), std::pin::pin!(serve));
            runtime::race(&mut body, &mut serve).await;
            serve.await;
            if controller.gone().is_none() {
                controller.shutdown().await.unwrap();
            }
        });
        others.into_iter().map(|other| other.join().unwrap()).collect()
    });
    rt.drop_tasks();
    ends
}

#[test]
fn thread_queues_verify_under_resets_and_ids_are_reused() {
    with_device("[]", |plan, shared, _| {
        // In the second run all queue identifiers are free again.
        for resets in [2, 0] {
            let ends = with_threads(plan, shared, async |port, controller, look| {
                for _ in 0..resets {
                    let before = look();
                    controller.reset().await.unwrap();
                    let all = |now: [u64; THREADS]| (0..THREADS).all(|n| now[n] >= before[n] + 2);
                    until(port.rt(), || all(look())).await;
                }
                assert_eq!(controller.resets(), resets);
            });
            assert_eq!(ends, [Kind::Closed; THREADS]);
        }
    });
}

#[test]
fn removed_device_ends_all_host_threads() {
    with_device("[]", |plan, shared, dead| {
        let ends = with_threads(plan, shared, async |port, controller, _| {
            dead.store(true, Ordering::Release);
            port.mark_gone();
            until(port.rt(), || controller.gone().is_some()).await;
        });
        assert_eq!(ends, [Kind::Gone; THREADS]);
    });
}

/// Shadow doorbells are in memory of the controller's thread.
#[test]
fn shadow_doorbells_exclude_queues_of_other_threads() {
    with_device("[]", |_, shared, _| {
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        rt.block_on(async {
            let options = Options { shadow_doorbells: true, ..Options::default() };
            let controller = Controller::start(shared.host(&rt), options).await.unwrap();
            let granted = controller.grant(QueueOptions::default()).await.err().unwrap();
            let expected = "shadow doorbells is 1, expected 0: queues of other executors have none";
            assert!(granted.to_string().contains(expected), "{granted}");
            controller.shutdown().await.unwrap();
        });
        rt.drop_tasks();
    });
}

/// More timeouts than the queue has slots: each slot is returned.
#[test]
fn command_past_deadline_is_aborted_by_controller_thread() {
    let held = r#"[{ name = "held", what = "hang", command = "read", last_lba = 0 }]"#;
    with_device(held, |_, shared, _| {
        let (rt, (granter, queues)) = (Rt::live(&STD_CLOCK, None, Log::Off), granter());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let rt = Rt::live(&STD_CLOCK, None, Log::Off);
                let port = shared.host_of(&rt, 1, 2);
                rt.block_on(async {
                    let options = QueueOptions { depth: 4, ..QueueOptions::default() };
                    let mine = queues.queue(&port, options).await.unwrap();
                    drop(queues);
                    let queue = mine.queue();
                    for _ in 0..6 {
                        let buffer = queue.buffer(BLOCK).unwrap();
                        let deadline = rt.now() + Span::ms(2);
                        let ended = queue.read_before(Lba(0), buffer, deadline).await.1;
                        assert_eq!(ended.map_err(|error| error.kind), Err(Kind::TimedOut));
                    }
                    round(queue, 0, 1, 0).await.expect("nothing else is held");
                    mine.give_back().await.unwrap();
                });
                rt.drop_tasks();
            });
            rt.block_on(async {
                let port = shared.host_of(&rt, 0, 2);
                // Short enough that an Abort which overtook its command is soon repeated.
                let timeout = Span::ms(1000);
                let options = Options { queues: 1, timeout, ..Options::default() };
                let controller = Controller::start(port, options).await.unwrap();
                granter.serve(&controller).await;
                controller.shutdown().await.unwrap();
            });
        });
        rt.drop_tasks();
    });
}
