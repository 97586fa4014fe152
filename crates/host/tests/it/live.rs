//! The driver on real memory, with the controller in another thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::common::fake::{Answer, Fake, Traits};
use crate::common::{BLOCK, pattern};
use bus::HostPort;
use bus::live::Shared;
use host::BlockDevice;
use host::fastpath::{Engine, Options as EngineOptions, Schedule, ring};
use host::nvme::{Completion, Controller, Doorbell, Options, QueueOptions};
use runtime::{Log, Rt, STD_CLOCK, Span};
use wire::fastpath;
use wire::nvme::io::{Command, Request};
use wire::{BusAddr, Lba};

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The device never answers commands from this block on.
const UNANSWERED: Lba = Lba(4000);

/// The threads of a test spin: one test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Runs a controller in its own thread while `f` runs.
fn beside_a_controller(f: impl FnOnce(&Rt, &Shared)) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = Shared::between_threads(16 << 20, BusAddr(0x1_0000_0000), 0x2000).unwrap();
    let (there, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // The other thread ends with this one, even on a panic.
        let _stop = SetOnDrop(&stop);
        scope.spawn(|| {
            let rt = Rt::live(&STD_CLOCK, None, Log::Off);
            let io = |n: u64, request: &Request| match request.command {
                Command::Read(access) if access.lba == UNANSWERED => Answer::Never,
                _ => Answer::After(Span::us(n * 7 % 50)),
            };
            let traits = Traits { io: Box::new(io), queues: 6, ..Traits::default() };
            let _fake = Fake::start(shared.device(&rt), traits);
            there.store(true, Ordering::Release);
            rt.block_on(async {
                while !stop.load(Ordering::Relaxed) {
                    rt.sleep(Span::ms(1)).await;
                }
            });
            rt.drop_tasks();
        });
        while !there.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        f(&rt, &shared);
        rt.drop_tasks();
    });
}

#[test]
fn live_reads_all_completion_and_doorbell_modes() {
    beside_a_controller(|rt, shared| {
        rt.block_on(async {
            let host = shared.host(rt);
            let options = Options { queues: 6, ..Options::default() };
            let controller = Controller::start(host, options).await.unwrap();
            let completions =
                [Completion::Polled, Completion::Hybrid, Completion::Interrupt { vector: 3 }];
            for completion in completions {
                for doorbell in [Doorbell::Each, Doorbell::Batched] {
                    let depth = 8;
                    let options =
                        QueueOptions { depth, completion, doorbell, ..QueueOptions::default() };
                    let queue = controller.queue(options).await.unwrap();
                    let left = Rc::new(Cell::new(500));
                    let wrong = Rc::new(RefCell::new(Vec::new()));
                    for lba in 0..500_u64 {
                        let (queue, left, wrong) = (queue.clone(), left.clone(), wrong.clone());
                        rt.spawn(async move {
                            let buffer = queue.buffer(BLOCK).unwrap();
                            let (buffer, read) = queue.read(Lba(lba), buffer).await;
                            let mut seen = vec![0; BLOCK];
                            buffer.copy_out(0, &mut seen);
                            if read.is_err() || seen != pattern(lba) {
                                wrong.borrow_mut().push((lba, read));
                            }
                            left.set(left.get() - 1);
                        });
                    }
                    while left.get() > 0 {
                        rt.sleep(Span::us(100)).await;
                    }
                    assert_eq!(*wrong.borrow(), []);
                    assert_eq!(queue.slots_free(), 8);
                    assert_eq!(queue.counters().protocol_errors, 0);
                }
            }
            controller.reset().await.unwrap();
            controller.shutdown().await.unwrap();
        });
    });
}

/// Interrupts that will never come are not waited for: the time-out is an hour.
#[test]
fn device_gone_ends_commands_in_every_completion_mode() {
    let modes = [Completion::Polled, Completion::Hybrid, Completion::Interrupt { vector: 3 }];
    for completion in modes {
        beside_a_controller(|rt, shared| {
            rt.block_on(async {
                let host = shared.host(rt);
                let options = Options {
                    timeout: Span::s(3600),
                    admin_timeout: Span::s(3600),
                    admin_completion: match completion {
                        Completion::Interrupt { .. } => Completion::Interrupt { vector: 0 },
                        polled => polled,
                    },
                    ..Options::default()
                };
                let controller = Controller::start(host.clone(), options).await.unwrap();
                let options = QueueOptions { completion, ..QueueOptions::default() };
                let queue = controller.queue(options).await.unwrap();
                let buffer = queue.buffer(BLOCK).unwrap();
                let (sent, counted, port) = (queue.clone(), rt.clone(), host.clone());
                rt.spawn(async move {
                    while sent.counters().sq_doorbells == 0 {
                        counted.yield_now().await;
                    }
                    port.mark_gone();
                });
                let (_, read) = queue.read(UNANSWERED, buffer).await;
                let error = read.unwrap_err().to_string();
                assert!(error.contains("gone"), "{completion:?}: {error}");
            });
        });
    }
}

/// Waits for a message of another thread while this executor keeps running.
async fn receive<T>(rt: &Rt, from: &std::sync::mpsc::Receiver<T>) -> T {
    loop {
        match from.try_recv() {
            Ok(sent) => return sent,
            Err(std::sync::mpsc::TryRecvError::Empty) => rt.sleep(Span::us(100)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A queue is created and used in another thread than the controller's, given back, and created again.
#[test]
fn granted_queue_works_in_other_thread() {
    use std::sync::mpsc::channel;
    beside_a_controller(|rt, shared| {
        let (to_there, from_here) = channel::<Option<host::nvme::Grant>>();
        let (to_here, from_there) = channel::<host::nvme::Rings>();
        let (done, created) = channel::<()>();
        let (read, has_read) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let rt = Rt::live(&STD_CLOCK, None, Log::Off);
                let port = shared.host(&rt);
                // The other arena uses the lower half.
                let _lower = port.arena().buffer(8 << 20).unwrap();
                rt.block_on(async {
                    while let Some(grant) = receive(&rt, &from_here).await {
                        let granted = grant.accept(&port).unwrap();
                        to_here.send(granted.rings()).unwrap();
                        receive(&rt, &created).await;
                        let queue = granted.open();
                        for lba in 0..50_u64 {
                            let buffer = queue.buffer(BLOCK).unwrap();
                            let (buffer, result) = queue.read(Lba(lba), buffer).await;
                            let mut seen = vec![0; BLOCK];
                            buffer.copy_out(0, &mut seen);
                            assert_eq!((result, seen), (Ok(()), pattern(lba)));
                        }
                        read.send(()).unwrap();
                        receive(&rt, &created).await;
                        granted.give_back();
                        let (_, after) = queue.read(Lba(0), queue.buffer(BLOCK).unwrap()).await;
                        assert_eq!(after.unwrap_err().kind, host::Kind::Closed);
                    }
                });
                rt.drop_tasks();
            });
            rt.block_on(async {
                let options = Options { queues: 2, ..Options::default() };
                let controller = Controller::start(shared.host(rt), options).await.unwrap();
                for completion in
                    [Completion::Polled, Completion::Hybrid, Completion::Interrupt { vector: 3 }]
                {
                    let options = QueueOptions { depth: 8, completion, ..QueueOptions::default() };
                    let grant = controller.grant(options).await.unwrap();
                    to_there.send(Some(grant)).unwrap();
                    let rings = receive(rt, &from_there).await;
                    controller.create_granted(&rings).await.unwrap();
                    done.send(()).unwrap();
                    receive(rt, &has_read).await;
                    controller.delete_granted(&rings).await.unwrap();
                    done.send(()).unwrap();
                }
                to_there.send(None).unwrap();
                controller.shutdown().await.unwrap();
            });
        });
    });
}

/// A granted queue that was not created on the controller: commands end within twice the time-out, and its
/// memory is quarantined.
#[test]
fn granted_queue_without_controller_is_given_up() {
    beside_a_controller(|rt, shared| {
        rt.block_on(async {
            let options = Options { timeout: Span::ms(20), ..Options::default() };
            let controller = Controller::start(shared.host(rt), options).await.unwrap();
            let grant = controller.grant(QueueOptions { depth: 4, ..QueueOptions::default() });
            let granted = grant.await.unwrap().accept(&shared.host(rt)).unwrap();
            let _ = granted.rings();
            let queue = granted.open();
            let (_, result) = queue.read(Lba(0), queue.buffer(BLOCK).unwrap()).await;
            assert_eq!(result.unwrap_err().kind, host::Kind::Gone);
            assert_eq!((queue.counters().timeouts, queue.slots_free()), (1, 4));
        });
    });
}

/// A caller that sends requests without a handle as fast as they are rejected must not have the engine's
/// thread to itself: on a live bus nothing that the engine does for them waits.
#[test]
fn rejected_requests_of_a_ring_leave_turns_to_other_tasks() {
    beside_a_controller(|rt, shared| {
        let host = shared.host(rt);
        rt.block_on(async {
            let wanted = Options { queues: 2, ..Options::default() };
            let controller = Controller::start(host.clone(), wanted).await.unwrap();
            let options = EngineOptions {
                engines: 1,
                queue: QueueOptions::default(),
                requests: 64,
                from: Lba(0),
                traces: 0,
                schedule: Schedule::RoundRobin,
            };
            let engine =
                Engine::start(std::slice::from_ref(&host), &controller, options).await.unwrap();
            let (memory, page) = (host.arena().memory(), host.arena().buffer(ring::BYTES).unwrap());
            page.zero();
            let mut caller = ring::Caller::new(memory, page.at()).unwrap();
            (0..64).for_each(|tag| assert!(caller.send(&fastpath::Request::flush(tag, 0, 9))));
            let serving = engine.serve(memory, page.at()).unwrap();
            let (mut passes, mut answered) = (0, 0);
            while answered < 64 {
                rt.yield_now().await;
                passes += 1;
                answered += std::iter::from_fn(|| caller.receive()).count();
            }
            assert!(passes >= 6, "64 requests in {passes} passes");
            // Some are rejected before the service ends, and none after it.
            (0..64).for_each(|tag| assert!(caller.send(&fastpath::Request::flush(tag, 0, 9))));
            rt.yield_now().await;
            serving.end().await;
            let answered = std::iter::from_fn(|| caller.receive()).count();
            assert!((1..64).contains(&answered), "{answered} of 64");
            engine.stop();
            controller.shutdown().await.unwrap();
        });
    });
}
