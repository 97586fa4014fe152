//! Controller bring-up: failures, their errors, bounded waits.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::fake::{Fake, Traits, Turns};
use crate::common::{BLOCK, World, pattern, poll_times};
use bus::HostPort;
use host::nvme::{Completion, Controller, Options, QueueOptions};
use host::{BlockDevice, InitError};
use runtime::{Rng, Span};
use wire::nvme::opcode::admin as opcode;
use wire::nvme::registers::{self, Cap};
use wire::nvme::status::Status;
use wire::{Lba, Nsid, QueueId};

/// Starts a controller; returns the result and the time that it took.
fn start(world: &World, options: Options) -> (Result<(), InitError>, Span) {
    world.rt.block_on(async {
        let begin = world.rt.now();
        let result = Controller::start(world.host.clone(), options).await.map(drop);
        (result, world.rt.now().since(begin))
    })
}

fn refused(change: impl FnOnce(&mut Traits)) -> InitError {
    let mut traits = Traits::default();
    change(&mut traits);
    start(&World::new(traits), Options::default()).0.unwrap_err()
}

#[track_caller]
fn assert_unsupported(error: InitError, name: &str, value: u64) {
    match error {
        InitError::Unsupported { what, found, .. } => assert_eq!((what, found), (name, value)),
        other => panic!("{other}"),
    }
}

#[test]
fn unsupported_controller_error_names_register() {
    let cap = |cap: fn(Cap) -> Cap| refused(move |t| t.cap = cap(t.cap));
    assert_unsupported(cap(|cap| cap.with_mpsmin(1)), "CAP.MPSMIN", 1);
    assert_unsupported(cap(|cap| cap.with_css(0x80)), "CAP.CSS", 0x80);
    assert_unsupported(cap(|cap| cap.with_mqes(0)), "CAP.MQES", 0);
}

#[test]
fn unsupported_namespace_error_names_field() {
    assert_unsupported(refused(|t| t.namespace.nsze = 0.into()), "NSZE", 0);
    assert_unsupported(refused(|t| t.namespace.lbaf[0].ds = 8), "LBADS", 8);
    assert_unsupported(refused(|t| t.namespace.lbaf[0].ds = 13), "LBADS", 13);
    assert_unsupported(refused(|t| t.namespace.lbaf[0].ms = 8.into()), "MS", 8);
    assert_unsupported(refused(|t| t.namespace.flbas = 1), "FLBAS", 1);
    assert_unsupported(refused(|t| t.namespace.dps = 1), "MS", 0);
    assert_unsupported(refused(|t| t.namespace.dps = 5), "DPS", 5);
    let no_namespace = "the namespace asked for (0: the first)";
    assert_unsupported(refused(|t| t.namespaces.clear()), no_namespace, 0);
    let world = World::new(Traits::default());
    let options = Options { nsid: Some(Nsid(2)), ..Options::default() };
    assert_unsupported(start(&world, options).0.unwrap_err(), no_namespace, 2);
}

#[test]
fn ready_timeout_follows_cap_to_within_limits() {
    // CAP.TO is in units of 500 ms; the driver has a lower and an upper limit.
    for (to, expected) in [(0, Span::s(1)), (5, Span::ms(2500)), (255, Span::ms(127_500))] {
        let cap = Traits::default().cap.with_to(to);
        let world = World::new(Traits { cap, on: Turns::Never, ..Traits::default() });
        let (result, took) = start(&world, Options::default());
        let error =
            InitError::NotReady { register: "CSTS.RDY", found: 0, expected: 1, waited: expected };
        assert_eq!(result, Err(error));
        assert!(took >= expected && took < expected + Span::ms(50), "TO {to}: {took}");
    }
}

#[test]
fn start_fails_if_controller_does_not_disable() {
    let world = World::new(Traits::default());
    assert_eq!(start(&world, Options::default()).0, Ok(()));
    world.fake.traits.borrow_mut().off = Turns::Never;
    let (result, _) = start(&world, Options::default());
    let register = "CSTS.RDY";
    let waited = Span::s(1);
    assert_eq!(result, Err(InitError::NotReady { register, found: 1, expected: 0, waited }));
    assert_eq!(world.fake.enables.get(), 1);
}

#[test]
fn csts_cfs_ends_ready_wait() {
    let world = World::new(Traits { on: Turns::Fatal, ..Traits::default() });
    let (result, took) = start(&world, Options::default());
    assert_eq!(result, Err(InitError::Fatal { found: 2 }));
    assert!(took < Span::ms(100), "{took}");
}

/// Starts a controller that another driver has just enabled and then abandoned.
fn start_behind_another(world: &World) -> Result<(), InitError> {
    let on = registers::Cc::new().with_iosqes(6).with_iocqes(4).with_en(true);
    world.host.write32(registers::AQA, 0x0001_0001);
    world.host.write32(registers::CC, on.into_bits());
    start(world, Options::default()).0
}

#[test]
fn enabling_controller_not_disabled_before_ready() {
    let slowly = Turns::After(Span::ms(3));
    let world = World::new(Traits { on: slowly, ..Traits::default() });
    assert_eq!(start_behind_another(&world), Ok(()));
    assert_eq!(world.fake.enables.get(), 2, "it has seen that it was off in between");
}

#[test]
fn failed_controller_enabled_after_cfs_clears() {
    let slowly = Turns::After(Span::ms(3));
    let world = World::new(Traits { on: Turns::Fatal, off: slowly, ..Traits::default() });
    let fake = world.fake.clone();
    let rt = world.rt.clone();
    world.rt.spawn(async move {
        while fake.enables.get() == 0 {
            rt.sleep(Span::us(1)).await;
        }
        fake.traits.borrow_mut().on = Turns::After(Span::us(10));
    });
    assert_eq!(start_behind_another(&world), Ok(()));
    assert_eq!(world.fake.enables.get(), 2);
}

#[test]
fn device_removed_during_start_reports_gone() {
    let moments = [0, 1, 2, 3, 10, 1_000, 15_000].into_iter().chain(20_000..20_060);
    let (mut quick, mut slow, mut started) = (0, 0, 0);
    for us in moments {
        let world = World::new(Traits::default());
        let (rt, bus) = (world.rt.clone(), world.bus.clone());
        world.rt.spawn(async move {
            rt.sleep(Span::us(us)).await;
            bus.take_link_down();
        });
        let (result, took) = start(&world, Options::default());
        match result {
            Err(InitError::Gone { .. }) if took < Span::s(1) => quick += 1,
            // A command was in flight: its time-out ends the wait.
            Err(InitError::Gone { .. }) if took < Span::s(6) => slow += 1,
            Ok(()) if took < Span::us(us) => started += 1,
            other => panic!("after {us} us: {other:?} in {took}"),
        }
    }
    assert!(quick > 5 && slow > 5 && started > 5, "{quick} {slow} {started}");
}

#[test]
fn failed_admin_command_error_has_step_and_status() {
    let failing = [
        (opcode::IDENTIFY, "Identify Controller"),
        (opcode::SET_FEATURES, "Set Features: Number of Queues"),
    ];
    for (code, step) in failing {
        let status = Status::INTERNAL_ERROR.with_dnr();
        let error = refused(|t| t.admin_fails = [(code, status)].into());
        assert_eq!(error, InitError::Refused { step, status });
        let error = refused(|t| t.admin_silent = [code].into());
        assert_eq!(error, InitError::TimedOut { step, waited: Span::s(5) });
    }
}

#[test]
fn controller_rejecting_async_events_still_works() {
    let mut traits = Traits::default();
    traits.admin_fails.insert(opcode::ASYNC_EVENT_REQUEST, Status::INVALID_OPCODE);
    let world = World::new(traits);
    world.rt.block_on(async {
        let (_controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        queue.read(Lba(0), queue.buffer(BLOCK).unwrap()).await.1.unwrap();
    });
    let sent = world.fake.admin_log.borrow().clone();
    let requests = sent.iter().filter(|code| **code == opcode::ASYNC_EVENT_REQUEST).count();
    assert_eq!(requests, 1);
}

#[test]
fn queue_beyond_granted_count_rejected() {
    let world = World::new(Traits { queues: 2, ..Traits::default() });
    world.rt.block_on(async {
        let options = Options { queues: 3, ..Options::default() };
        let (controller, first) = world.queue(options, QueueOptions::default()).await;
        assert_eq!(controller.identity().queues, 2);
        let second = controller.queue(QueueOptions::default()).await.unwrap();
        assert_eq!((first.qid().0, second.qid().0), (1, 2));
        let error = controller.queue(QueueOptions::default()).await.err().unwrap();
        assert_eq!(error, InitError::TooFewQueues { asked: 3, granted: 2 });
    });
}

#[test]
fn queue_depth_limited_to_cap_mqes() {
    let cap = Traits::default().cap.with_mqes(15);
    let world = World::new(Traits { cap, ..Traits::default() });
    world.rt.block_on(async {
        let controller = Controller::start(world.host.clone(), Options::default()).await.unwrap();
        let depth = |depth| QueueOptions { depth, ..QueueOptions::default() };
        let refusal = |depth_asked| {
            let controller = &controller;
            async move { controller.queue(depth(depth_asked)).await.err().unwrap() }
        };
        assert_unsupported(refusal(0).await, "the depth of a queue", 0);
        assert_unsupported(refusal(4097).await, "the depth of a queue", 4097);
        for (asked, found) in [(14, 14), (15, 15), (16, 15), (1024, 15)] {
            let queue = controller.queue(depth(asked)).await.unwrap();
            assert_eq!(queue.depth(), found, "{asked}");
            // More reads than slots: they wait in the driver, and none fails.
            let done = Rc::new(Cell::new(0));
            for _ in 0..4 * found {
                let (queue, done) = (queue.clone(), done.clone());
                world.rt.spawn(async move {
                    queue.read(Lba(0), queue.buffer(BLOCK).unwrap()).await.1.unwrap();
                    done.set(done.get() + 1);
                });
            }
            for _ in 0..10_000 {
                if done.get() < 4 * found {
                    world.rt.sleep(Span::us(1)).await;
                }
            }
            assert_eq!(done.get(), 4 * found);
        }
    });
}

#[test]
fn rejected_queue_creation_frees_qid() {
    for code in [opcode::CREATE_CQ, opcode::CREATE_SQ] {
        let world = World::new(Traits::default());
        world.rt.block_on(async {
            let controller =
                Controller::start(world.host.clone(), Options::default()).await.unwrap();
            let status = Status::INVALID_QUEUE_SIZE;
            world.fake.traits.borrow_mut().admin_fails.insert(code, status);
            let error = controller.queue(QueueOptions::default()).await.err().unwrap();
            assert!(matches!(error, InitError::Refused { status: s, .. } if s == status));
            world.fake.traits.borrow_mut().admin_fails.clear();
            let queue = controller.queue(QueueOptions::default()).await.unwrap();
            assert_eq!(queue.qid().0, 1);
            queue.read(Lba(0), queue.buffer(BLOCK).unwrap()).await.1.unwrap();
        });
    }
}

#[test]
fn doorbell_stride_supported() {
    let cap = Traits::default().cap.with_dstrd(4);
    let world = World::new(Traits { cap, ..Traits::default() });
    world.rt.block_on(async {
        let (_controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        queue.read(Lba(0), queue.buffer(BLOCK).unwrap()).await.1.unwrap();
    });
}

#[test]
fn admin_queue_interrupt_uses_vector_0_only() {
    let world = World::new(Traits::default());
    let admin_completion = Completion::Interrupt { vector: 0 };
    let options = Options { admin_completion, ..Options::default() };
    assert_eq!(start(&world, options).0, Ok(()));
    let admin_completion = Completion::Interrupt { vector: 1 };
    let options = Options { admin_completion, ..Options::default() };
    let error = start(&world, options).0.unwrap_err();
    assert_unsupported(error, "the vector of the admin queue", 1);
}

/// A pin stays asserted until the controller gets the new head by a doorbell.
#[test]
fn admin_cq_head_written_at_once_with_pin_interrupt() {
    let told = |admin_completion| {
        let world = World::new(Traits::default());
        let options = Options { admin_completion, ..Options::default() };
        assert_eq!(start(&world, options).0, Ok(()));
        let head = registers::cq_head_doorbell(QueueId::ADMIN, 0);
        world.rt.block_on(async { world.host.read32(head).await })
    };
    assert_eq!(told(Completion::Polled), 0);
    assert!(told(Completion::Interrupt { vector: 0 }) > 3);
}

#[test]
fn controller_restarts_after_shutdown() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        for _ in 0..3 {
            let (controller, queue) =
                world.queue(Options::default(), QueueOptions::default()).await;
            queue.read(Lba(0), queue.buffer(BLOCK).unwrap()).await.1.unwrap();
            controller.shutdown().await.unwrap();
            controller.shutdown().await.unwrap();
            let (_, read) = queue.read(Lba(0), queue.buffer(BLOCK).unwrap()).await;
            assert_eq!(read.unwrap_err().kind, host::Kind::Closed);
            assert_eq!(
                controller.queue(QueueOptions::default()).await.err(),
                Some(InitError::Closed)
            );
        }
    });
    assert_eq!(world.fake.enables.get(), 3);
}

/// Bring-up and queue creation are dropped at every await: the next start works, and no memory is written
/// that has been reused.
#[test]
fn start_dropped_at_every_await_is_safe() {
    let mut times = 0;
    loop {
        let world = World::new(Traits::default());
        let finished = world.rt.block_on(async {
            let options = Options::default();
            let start = async {
                let controller = Controller::start(world.host.clone(), options).await.unwrap();
                controller.queue(QueueOptions::default()).await.unwrap();
            };
            let finished = poll_times(start, times).await.is_some();
            // The remaining tasks end and release their memory.
            for _ in 0..3 {
                world.rt.yield_now().await;
            }
            let canary: Vec<_> =
                (0..40).map(|_| world.host.arena().buffer(4096).unwrap()).collect();
            canary.iter().for_each(|buffer| buffer.copy_in(0, &[0xee; 4096]));
            world.rt.sleep(Span::ms(50)).await;
            for buffer in &canary {
                let mut seen = [0; 4096];
                buffer.copy_out(0, &mut seen);
                assert!(seen == [0xee; 4096], "after {times} polls: written by the device");
            }
            let (_controller, queue) =
                world.queue(Options::default(), QueueOptions::default()).await;
            let (buffer, read) = queue.read(Lba(1), queue.buffer(BLOCK).unwrap()).await;
            read.unwrap();
            let mut seen = [0; BLOCK];
            buffer.copy_out(0, &mut seen);
            assert_eq!(seen[..], pattern(1));
            finished
        });
        if finished {
            break;
        }
        times += 1;
    }
    assert!(times > 20, "only {times} awaits");
}

/// Random register values that change at any time give an error in bounded time.
#[test]
fn random_registers_give_error_in_bounded_time() {
    for seed in 0..300 {
        let world = World::new(Traits::default());
        let mut rng = Rng::for_part(seed, "registers");
        let fake: &Fake = &world.fake;
        let device = fake.device().clone();
        let lasts = [Span::ZERO, Span::ms(1), Span::ms(30)][rng.below(3) as usize];
        let rt = world.rt.clone();
        world.rt.spawn(async move {
            use bus::DevicePort;
            loop {
                let all = [registers::CAP, registers::CAP + 4, registers::VS, registers::CSTS];
                for register in all {
                    let value = match rng.below(4) {
                        0 => u32::MAX,
                        1 => rng.next_u64() as u32 & 3,
                        _ => rng.next_u64() as u32,
                    };
                    device.store(register, value);
                }
                if lasts == Span::ZERO {
                    return;
                }
                rt.sleep(lasts).await;
            }
        });
        world.rt.block_on(async {
            world.rt.sleep(Span::us(1)).await;
            let begin = world.rt.now();
            let start = Controller::start(world.host.clone(), Options::default());
            let started = start.await.is_ok();
            let took = world.rt.now().since(begin);
            assert!(took < Span::s(120), "seed {seed}: {took}, started: {started}");
        });
    }
}
