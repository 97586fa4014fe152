//! Time-outs, aborts, resets, shutdown and surprise removal.

use std::rc::Rc;

use crate::common::fake::{Aborts, Answer, Traits, Turns};
use crate::common::{BLOCK, Crowd, Setup, World, pattern, slowly};
use bus::HostPort;
use bus::sim::SimHost;
use host::nvme::{Completion, Options, Queue, QueueOptions};
use host::{BlockDevice, InitError, IoError, Kind};
use runtime::{Rng, Span};
use wire::Lba;
use wire::nvme::opcode::admin as opcode;
use wire::nvme::status::Status;

type Q = Rc<Queue<SimHost>>;

const TIMEOUT: Span = Span::s(5);

/// A world in which the first `count` I/O commands are never completed.
fn silent(count: u64, change: impl FnOnce(&mut Traits)) -> World {
    let io = move |n, _: &_| if n < count { Answer::Never } else { Answer::After(Span::us(10)) };
    let mut traits = Traits { io: Box::new(io), ..Traits::default() };
    change(&mut traits);
    World::new(traits)
}

/// Reads one block and verifies its data.
async fn read(queue: Q, lba: u64) -> Result<(), IoError> {
    let buffer = queue.buffer(BLOCK).unwrap();
    let (buffer, result) = queue.read(Lba(lba), buffer).await;
    if result.is_ok() {
        let mut seen = vec![0; BLOCK];
        buffer.copy_out(0, &mut seen);
        assert_eq!(seen, pattern(lba), "LBA {lba}");
    }
    result
}

#[test]
fn late_command_aborted_and_retried() {
    let world = silent(1, |_| {});
    world.rt.block_on(async {
        let (controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        let begin = world.rt.now();
        read(queue.clone(), 3).await.unwrap();
        let took = world.rt.now().since(begin);
        // Never early; late by an eighth plus one check interval at most.
        assert!(took >= TIMEOUT && took < TIMEOUT + TIMEOUT / 4 + Span::ms(1), "{took}");
        assert_eq!((world.fake.aborts_seen.get(), controller.resets()), (1, 0));
        assert_eq!(queue.counters().timeouts, 1);
    });
}

#[test]
fn command_times_out_after_retries() {
    let world = silent(u64::MAX, |_| {});
    world.rt.block_on(async {
        let options = Options { retries: 2, ..Options::default() };
        let (controller, queue) = world.queue(options, QueueOptions::default()).await;
        let error = read(queue.clone(), 3).await.unwrap_err();
        assert_eq!((error.kind, error.lba), (Kind::TimedOut, Some(Lba(3))));
        assert_eq!((world.fake.commands.get(), controller.resets()), (3, 0));
        assert_eq!(queue.slots_free(), 128);
        assert_eq!(queue.flush().await.unwrap_err().kind, Kind::TimedOut);
    });
}

#[test]
fn failed_aborts_lead_to_reset_without_io_errors() {
    // After 9 checks, and again after 16 if the first Abort was answered.
    for (aborts, tries) in [(Aborts::Fail, 2), (Aborts::Silent, 1)] {
        let world = silent(1, |traits| traits.aborts = aborts);
        world.rt.block_on(async {
            let (controller, queue) =
                world.queue(Options::default(), QueueOptions::default()).await;
            let crowd = Crowd::new(&world.rt);
            crowd.spawn(read(queue.clone(), 0));
            // Other reads run meanwhile, through the reset.
            for lba in 1..300 {
                let (rt, queue) = (world.rt.clone(), queue.clone());
                crowd.spawn(async move {
                    rt.sleep(Span::ms(50) * lba).await;
                    read(queue, lba).await
                });
            }
            for result in crowd.all(Span::s(60)).await {
                result.unwrap();
            }
            assert_eq!((controller.resets(), world.fake.enables.get()), (1, 2));
            assert_eq!(world.fake.aborts_seen.get(), tries);
            assert_eq!(queue.slots_free(), 128);
        });
    }
}

#[test]
fn reset_without_retries_fails_late_and_neighbour_commands() {
    // Reads of LBA 0 are never completed; the neighbour is slow, but completes.
    let io = |_, request: &wire::nvme::io::Request| match request.command {
        wire::nvme::io::Command::Read(access) if access.lba == Lba(0) => Answer::Never,
        _ => Answer::After(Span::s(12)),
    };
    let traits = Traits { io: Box::new(io), aborts: Aborts::Fail, ..Traits::default() };
    let world = World::new(traits);
    world.rt.block_on(async {
        let options = Options { retries: 0, timeout: Span::s(5), ..Options::default() };
        let (controller, queue) = world.queue(options, QueueOptions::default()).await;
        let crowd = Crowd::new(&world.rt);
        crowd.spawn(read(queue.clone(), 0));
        let (rt, other) = (world.rt.clone(), queue.clone());
        crowd.spawn(async move {
            rt.sleep(Span::s(8)).await;
            read(other, 1).await
        });
        let results = crowd.all(Span::s(60)).await;
        let kinds: Vec<_> = results.iter().map(|r| r.unwrap_err().kind).collect();
        assert_eq!(kinds, [Kind::TimedOut, Kind::Reset]);
        // The callers got their errors as soon as the controller was disabled.
        assert_eq!(controller.resets(), 0);
        world.rt.sleep(Span::ms(100)).await;
        assert_eq!(controller.resets(), 1);
    });
}

#[test]
fn aborts_in_flight_limited_by_acl() {
    for acl in [0, 3] {
        let world = silent(20, |traits| traits.controller.acl = acl);
        world.rt.block_on(async {
            let (controller, queue) =
                world.queue(Options::default(), QueueOptions::default()).await;
            let crowd = Crowd::new(&world.rt);
            (0..20).for_each(|lba| crowd.spawn(read(queue.clone(), lba)));
            for result in crowd.all(Span::s(60)).await {
                result.unwrap();
            }
            assert_eq!(world.fake.aborts_at_once_max.get(), u32::from(acl) + 1);
            // With one Abort per check, eight checks are not enough for twenty commands.
            assert_eq!(controller.resets(), u64::from(acl == 0));
        });
    }
}

#[test]
fn controller_failing_to_restart_is_gone_for_all() {
    let world = silent(u64::MAX, |traits| traits.aborts = Aborts::Silent);
    world.rt.block_on(async {
        let small = QueueOptions { depth: 4, ..QueueOptions::default() };
        let (controller, queue) = world.queue(Options::default(), small).await;
        world.fake.traits.borrow_mut().on = Turns::Never;
        let crowd = Crowd::new(&world.rt);
        // Four in flight, and four that wait for a slot.
        (0..8).for_each(|lba| crowd.spawn(read(queue.clone(), lba)));
        for result in crowd.all(Span::s(30)).await {
            assert_eq!(result.unwrap_err().kind, Kind::Gone);
        }
        assert_eq!(queue.slots_free(), 4);
        let waited = Span::s(1);
        let register = "CSTS.RDY";
        let why = InitError::NotReady { register, found: 0, expected: 1, waited };
        assert_eq!(controller.gone(), Some(why));
        // From now on every request fails without waiting.
        let begin = world.rt.now();
        assert_eq!(read(queue.clone(), 0).await.unwrap_err().kind, Kind::Gone);
        assert_eq!(queue.flush().await.unwrap_err().kind, Kind::Gone);
        assert_eq!(controller.queue(small).await.err(), Some(why));
        assert_eq!(controller.reset().await, Err(why));
        assert_eq!(controller.shutdown().await, Err(why));
        assert!(world.rt.now().since(begin) < Span::us(1));
        // It was disabled when it failed to restart: all memory is free again.
        assert_eq!(world.logged("quarantined"), 0);
    });
}

#[test]
fn memory_quarantined_if_controller_does_not_disable() {
    let world = silent(u64::MAX, |traits| traits.aborts = Aborts::Silent);
    world.rt.block_on(async {
        let (controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        world.fake.traits.borrow_mut().off = Turns::Never;
        const BYTES: usize = 64 << 10;
        let buffer = queue.buffer(BYTES).unwrap();
        let place = buffer.at();
        let (buffer, result) = queue.read(Lba(0), buffer).await;
        assert_eq!(result.unwrap_err().kind, Kind::Gone);
        assert_eq!(world.logged("quarantined"), 1);
        assert!(matches!(controller.gone(), Some(InitError::NotReady { expected: 0, .. })));
        drop(buffer);
        let next: Vec<_> = (0..8).map(|_| world.host.arena().buffer(BYTES).unwrap()).collect();
        assert!(next.iter().all(|buffer| buffer.at() != place));
    });
}

#[test]
fn link_down_detected_by_watchdog() {
    let world = silent(u64::MAX, |_| {});
    world.rt.block_on(async {
        let (controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        let crowd = Crowd::new(&world.rt);
        (0..10).for_each(|lba| crowd.spawn(read(queue.clone(), lba)));
        world.rt.sleep(Span::ms(100)).await;
        world.bus.take_link_down();
        let begin = world.rt.now();
        for result in crowd.all(Span::s(60)).await {
            assert_eq!(result.unwrap_err().kind, Kind::Gone);
        }
        assert!(world.rt.now().since(begin) < TIMEOUT / 8 + Span::ms(1));
        assert_eq!(controller.gone(), Some(InitError::Gone { register: "CSTS" }));
        assert_eq!(queue.slots_free(), 128);
        assert_eq!(read(queue, 0).await.unwrap_err().kind, Kind::Gone);
    });
}

#[test]
fn new_command_detects_link_down_at_once() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        world.bus.take_link_down();
        let begin = world.rt.now();
        assert_eq!(read(queue, 0).await.unwrap_err().kind, Kind::Gone);
        world.rt.yield_now().await;
        assert!(controller.gone().is_some());
        assert!(world.rt.now().since(begin) < Span::us(1));
    });
}

#[test]
fn csts_cfs_triggers_reset() {
    let world = silent(10, |_| {});
    world.rt.block_on(async {
        let (controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        let crowd = Crowd::new(&world.rt);
        (0..10).for_each(|lba| crowd.spawn(read(queue.clone(), lba)));
        world.rt.sleep(Span::ms(1)).await;
        world.fake.fail();
        for result in crowd.all(TIMEOUT).await {
            result.unwrap();
        }
        assert_eq!((controller.resets(), world.logged("controller-failed")), (1, 1));
    });
}

#[test]
fn resets_under_load_lose_no_command() {
    for seed in 0..12 {
        let mut rng = Rng::for_part(seed, "load");
        let mut latency = Rng::for_part(seed, "latency");
        let io = move |_, _: &_| Answer::After(Span::us(1 + latency.below(3000)));
        let traits = Traits { io: Box::new(io), ..Traits::default() };
        let setup = Setup { shuffle: Some(seed), ..Setup::default() };
        let world = World::with(traits, setup);
        world.rt.block_on(async {
            let completion = match seed % 3 {
                0 => Completion::Polled,
                1 => Completion::Hybrid,
                _ => Completion::Interrupt { vector: 5 },
            };
            let options = Options { retries: 100, ..Options::default() };
            let small = QueueOptions { depth: 8, completion, ..QueueOptions::default() };
            let (controller, first) = world.queue(options, small).await;
            let second = controller.queue(small).await.unwrap();
            let crowd = Crowd::new(&world.rt);
            for lba in 0..400 {
                let queue = if rng.chance(1, 2) { &first } else { &second };
                crowd.spawn(read(queue.clone(), lba));
            }
            for _ in 0..5 {
                world.rt.sleep(Span::us(rng.below(20_000))).await;
                controller.reset().await.unwrap();
            }
            for result in crowd.all(Span::s(60)).await {
                result.unwrap();
            }
            assert_eq!(controller.resets(), 5);
            assert_eq!((first.slots_free(), second.slots_free()), (8, 8));
            assert_eq!(first.counters().protocol_errors, 0);
        });
    }
}

#[test]
fn concurrent_reset_requests_share_one_reset() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        let controller = Rc::new(controller);
        let crowd = Crowd::new(&world.rt);
        for _ in 0..2 {
            let controller = controller.clone();
            crowd.spawn(async move { controller.reset().await });
        }
        assert_eq!(crowd.all(Span::s(2)).await, [Ok(()), Ok(())]);
        assert_eq!(controller.resets(), 1);
        read(queue, 0).await.unwrap();
    });
}

/// Queue creation around a reset: the queue works, or the call reports the reset.
#[test]
fn queue_creation_racing_reset_works_or_reports_reset() {
    let (mut made, mut refused) = (0, 0);
    // With a slow task the answer is seen after the reset.
    for (ns, slow) in (0..12_000).step_by(100).flat_map(|ns| [(ns, Span::ZERO), (ns, Span::us(2))])
    {
        let world = World::new(Traits::default());
        world.rt.block_on(async {
            let (controller, first) =
                world.queue(Options::default(), QueueOptions::default()).await;
            let controller = Rc::new(controller);
            let (rt, resetter) = (world.rt.clone(), controller.clone());
            let crowd = Crowd::new(&world.rt);
            crowd.spawn(async move {
                rt.sleep(Span::ns(ns)).await;
                resetter.reset().await
            });
            let queue = controller.queue(QueueOptions::default());
            let queue = slowly(&world.rt, slow, queue).await;
            crowd.all(Span::s(1)).await[0].unwrap();
            read(first, 1).await.unwrap();
            let begin = world.rt.now();
            match queue {
                Ok(queue) => {
                    made += 1;
                    read(queue, 2).await.unwrap();
                }
                Err(InitError::Reset { .. }) => {
                    refused += 1;
                    let queue = controller.queue(QueueOptions::default()).await.unwrap();
                    read(queue, 2).await.unwrap();
                }
                Err(other) => panic!("after {ns} ns: {other}"),
            }
            assert!(world.rt.now().since(begin) < Span::ms(1), "after {ns} ns");
        });
    }
    assert!(made > 5 && refused > 5, "{made} made, {refused} refused");
}

#[test]
fn namespace_format_change_at_reset_stops_io() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        world.fake.traits.borrow_mut().namespace.lbaf[0].ds = 12;
        assert!(matches!(controller.reset().await, Err(InitError::Unsupported { .. })));
        assert_eq!(read(queue, 0).await.unwrap_err().kind, Kind::Gone);
    });
}

#[test]
fn lost_interrupts_recovered_by_watchdog() {
    let world = World::new(Traits { loses_interrupts: true, ..Traits::default() });
    world.rt.block_on(async {
        let completion = Completion::Interrupt { vector: 2 };
        let options = QueueOptions { completion, ..QueueOptions::default() };
        let (controller, queue) = world.queue(Options::default(), options).await;
        for lba in 0..10 {
            let begin = world.rt.now();
            read(queue.clone(), lba).await.unwrap();
            assert!(world.rt.now().since(begin) < TIMEOUT / 2);
        }
        let counters = queue.counters();
        assert!(counters.lost_interrupts >= 4, "{counters:?}");
        assert_eq!((counters.timeouts, controller.resets()), (0, 0));
    });
}

#[test]
fn zero_timeout_never_aborts() {
    let world = silent(1, |_| {});
    world.rt.block_on(async {
        let options = Options { timeout: Span::ZERO, ..Options::default() };
        let (controller, queue) = world.queue(options, QueueOptions::default()).await;
        let crowd = Crowd::new(&world.rt);
        let buffer = queue.buffer(BLOCK).unwrap();
        let late = queue.clone();
        crowd.spawn(async move { late.read(Lba(0), buffer).await.1 });
        world.rt.sleep(Span::s(3600)).await;
        assert_eq!((crowd.left(), world.fake.held()), (1, 1));
        world.fake.complete_held();
        assert_eq!(crowd.all(Span::s(1)).await, [Ok(())]);
        assert_eq!((queue.counters().timeouts, controller.resets()), (0, 0));
        controller.reset().await.unwrap();
        read(queue, 1).await.unwrap();
    });
}

#[test]
fn shutdown_waits_for_commands_in_flight() {
    let io = |_, _: &_| Answer::After(Span::ms(300));
    let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
    world.rt.block_on(async {
        let (controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        let crowd = Crowd::new(&world.rt);
        (0..5).for_each(|lba| crowd.spawn(read(queue.clone(), lba)));
        world.rt.sleep(Span::ms(1)).await;
        controller.shutdown().await.unwrap();
        for result in crowd.all(Span::ms(1)).await {
            result.unwrap();
        }
        let sent = world.fake.admin_log.borrow();
        assert_eq!(sent[sent.len() - 2..], [opcode::DELETE_SQ, opcode::DELETE_CQ]);
        assert!(world.fake.shutdown_seen.get());
    });
}

#[test]
fn shutdown_wait_is_bounded() {
    let world = silent(u64::MAX, |_| {});
    world.rt.block_on(async {
        let (controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        let crowd = Crowd::new(&world.rt);
        (0..5).for_each(|lba| crowd.spawn(read(queue.clone(), lba)));
        world.rt.sleep(Span::ms(1)).await;
        let begin = world.rt.now();
        controller.shutdown().await.unwrap();
        assert!(world.rt.now().since(begin) < TIMEOUT + Span::s(1));
        for result in crowd.all(Span::ms(1)).await {
            assert_eq!(result.unwrap_err().kind, Kind::Closed);
        }
        assert_eq!(queue.slots_free(), 128);
    });
}

#[test]
fn dropped_shutdown_future_still_shuts_down() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        assert!(crate::common::poll_times(controller.shutdown(), 1).await.is_none());
        drop(controller);
        world.rt.sleep(Span::s(1)).await;
        assert!(world.fake.shutdown_seen.get());
        assert_eq!(read(queue, 0).await.unwrap_err().kind, Kind::Closed);
    });
}

#[test]
fn shutdown_of_silent_controller_is_bounded() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (controller, _queue) = world.queue(Options::default(), QueueOptions::default()).await;
        let silent = [opcode::DELETE_SQ, opcode::DELETE_CQ].into();
        world.fake.traits.borrow_mut().admin_silent = silent;
        let step = "Delete I/O Submission Queue";
        let error = InitError::TimedOut { step, waited: Span::s(5) };
        assert_eq!(controller.shutdown().await, Err(error));
        assert!(world.fake.shutdown_seen.get(), "the rest is done all the same");
    });
}

#[test]
fn async_events_recorded_and_rearmed() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (controller, _queue) = world.queue(Options::default(), QueueOptions::default()).await;
        for count in 1..=40_u32 {
            world.rt.sleep(Span::ms(5)).await;
            // Temperature event, from the SMART log.
            assert!(world.fake.send_event(0x0002_0101), "request {count} is not there");
            world.rt.sleep(Span::ms(5)).await;
            let (events, seen) = controller.events();
            assert_eq!(seen, u64::from(count));
            assert_eq!(events.last().unwrap().into_bits(), 0x0002_0101);
            assert_eq!(events.len(), (count as usize).min(32));
        }
        controller.reset().await.unwrap();
        world.rt.sleep(Span::ms(5)).await;
        assert!(world.fake.send_event(0x0002_0101), "no request after a reset");
    });
    let sent = world.fake.admin_log.borrow();
    let logs = sent.iter().filter(|code| **code == opcode::GET_LOG_PAGE).count();
    assert!(logs >= 40);
}

#[test]
fn unrequested_abort_status_is_device_error() {
    let io = |_, _: &_| Answer::Fails(Span::us(1), Status::ABORT_REQUESTED);
    let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
    world.rt.block_on(async {
        let (_controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        let error = read(queue, 0).await.unwrap_err();
        assert_eq!(error.kind, Kind::DeviceFailed);
        assert_eq!(error.status, Some(Status::ABORT_REQUESTED));
    });
}
