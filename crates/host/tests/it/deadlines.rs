//! Reads and writes with deadlines: the command is aborted, and the buffer comes back when that is safe.

use std::rc::Rc;

use crate::common::fake::{Aborts, Answer, Traits};
use crate::common::{BLOCK, Crowd, World, pattern, poll_times};
use bus::sim::SimHost;
use bus::{Buffer, HostPort};
use host::nvme::{Completion, Options, Queue, QueueOptions};
use host::{BlockDevice, IoError, Kind};
use runtime::{Span, Time};
use wire::Lba;
use wire::nvme::io::{Command, Request};

type Q = Rc<Queue<SimHost>>;

const IN: Span = Span::us(20);

fn answering(io: impl Fn(u64, &Request) -> Answer + 'static, aborts: Aborts) -> World {
    World::new(Traits { io: Box::new(io), aborts, ..Traits::default() })
}

/// Reads one block and verifies its data.
async fn read(queue: Q, lba: u64, deadline: Time) -> Result<(), IoError> {
    let buffer = queue.buffer(BLOCK).unwrap();
    let (buffer, result) = queue.read_before(Lba(lba), buffer, deadline).await;
    if result.is_ok() {
        let mut seen = vec![0; BLOCK];
        buffer.copy_out(0, &mut seen);
        assert_eq!(seen, pattern(lba), "LBA {lba}");
    }
    result
}

fn timed_out(result: Result<(), IoError>) -> bool {
    match result {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.kind, Kind::TimedOut, "{error}");
            true
        }
    }
}

/// The completion arrives at every moment: before the deadline, at it, before the Abort is sent, before it
/// arrives, before it is answered, after. The call ends once, with a correct result.
#[test]
fn completion_racing_deadline_abort_is_consistent() {
    // Finer steps in long runs.
    let steps: u64 = if std::env::var_os("DOORBELL_HEAVY").is_some() { 1000 } else { 40 };
    for completion in [Completion::Polled, Completion::Hybrid, Completion::Interrupt { vector: 1 }]
    {
        let (mut in_time, mut late, mut aborted) = (0, 0, 0);
        // Around the deadline, while the Abort is in flight, and around its end, 100 us later.
        let about =
            |from: u64, to: u64| (0..steps).map(move |n| Span::ns(from + (to - from) * n / steps));
        let moments = about(14_000, 22_000).chain(about(22_000, 118_000));
        for moment in moments.chain(about(118_000, 124_000)) {
            let io = |_, request: &Request| match request.command {
                Command::Write(_) => Answer::Never,
                _ => Answer::After(Span::us(1)),
            };
            let world = answering(io, Aborts::Work);
            world.rt.block_on(async {
                let options = QueueOptions { completion, ..QueueOptions::default() };
                let (controller, queue) = world.queue(Options::default(), options).await;
                let used = world.host.arena().used_bytes();
                let deadline = world.rt.now() + IN;
                // The command is held until then, unless an Abort comes first.
                let (rt, fake) = (world.rt.clone(), world.fake.clone());
                world.rt.spawn(async move {
                    rt.sleep(moment).await;
                    fake.complete_held();
                });
                let buffer = queue.buffer(BLOCK).unwrap();
                let (buffer, result) = queue.write_before(Lba(3), buffer, false, deadline).await;
                let gave_up = timed_out(result);
                drop(buffer);
                let asked = world.logged("deadline") > 0;
                match (gave_up, asked) {
                    (false, false) => in_time += 1,
                    (false, true) => late += 1,
                    (true, _) => aborted += 1,
                }
                assert!(!asked || world.rt.now() >= deadline);
                assert_eq!((queue.slots_free(), world.host.arena().used_bytes()), (128, used));
                // The next command finds everything unchanged.
                assert!(!timed_out(read(queue.clone(), 5, world.rt.now() + IN).await));
                world.rt.sleep(Span::ms(1)).await;
                assert_eq!(queue.counters().protocol_errors, 0);
                assert_eq!((controller.resets(), queue.slots_free()), (0, 128));
            });
        }
        assert!(in_time > 5 && late > 5 && aborted > 5, "{in_time}, {late}, {aborted}");
    }
}

/// The command is not retried, and the call ends after the reset: before that the device could still write.
#[test]
fn deadline_with_failed_abort_ends_after_reset() {
    // At once, and again after 1, 2, 4, 8 and 16 checks; not if an Abort is unanswered.
    for (aborts, tries) in [(Aborts::Fail, 6), (Aborts::Silent, 1)] {
        let world = answering(|_, _| Answer::Never, aborts);
        world.rt.block_on(async {
            let options = Options { timeout: Span::s(1), ..Options::default() };
            let (controller, queue) = world.queue(options, QueueOptions::default()).await;
            let begin = world.rt.now();
            assert!(timed_out(read(queue.clone(), 3, begin + IN).await));
            let took = world.rt.now().since(begin);
            assert!(took > Span::s(2) && took < Span::s(4), "{took}");
            world.rt.sleep(Span::s(1)).await;
            assert_eq!((world.fake.commands.get(), controller.resets()), (1, 1));
            assert_eq!((world.fake.aborts_seen.get(), queue.slots_free()), (tries, 128));
        });
    }
}

/// A call without a slot at its deadline, or with an expired deadline, returns its buffer at once.
#[test]
fn slot_wait_ends_at_deadline() {
    let world = answering(|_, _| Answer::After(Span::ms(1)), Aborts::Work);
    world.rt.block_on(async {
        let options = QueueOptions { depth: 1, ..QueueOptions::default() };
        let (_controller, queue) = world.queue(Options::default(), options).await;
        let crowd = Crowd::new(&world.rt);
        let (first, begin) = (queue.clone(), world.rt.now());
        crowd.spawn(async move { read(first, 0, Time::NEVER).await });
        world.rt.sleep(Span::us(5)).await;
        assert!(timed_out(read(queue.clone(), 1, begin + IN).await));
        assert_eq!(world.rt.now(), begin + IN);
        assert!(timed_out(read(queue.clone(), 1, world.rt.now()).await), "it has passed");
        assert_eq!(crowd.all(Span::ms(2)).await, [Ok(())]);
        assert_eq!((world.fake.commands.get(), queue.slots_free()), (1, 1));
    });
}

/// Aborts are sent up to the controller's limit, the others as those end, without waiting for watchdog
/// checks.
#[test]
fn simultaneous_deadlines_respect_acl() {
    for acl in [0, 3] {
        let traits = Traits { io: Box::new(|_, _| Answer::Never), ..Traits::default() };
        let world = World::new(traits);
        world.fake.traits.borrow_mut().controller.acl = acl;
        world.rt.block_on(async {
            let (controller, queue) =
                world.queue(Options::default(), QueueOptions::default()).await;
            let (crowd, begin) = (Crowd::new(&world.rt), world.rt.now());
            (0..20).for_each(|lba| crowd.spawn(read(queue.clone(), lba, begin + IN)));
            let results = crowd.all(Span::ms(100)).await;
            assert!(results.into_iter().all(timed_out));
            assert_eq!(world.fake.aborts_at_once_max.get(), u32::from(acl) + 1);
            assert_eq!((controller.resets(), queue.slots_free()), (0, 128));
            assert_eq!((world.fake.commands.get(), queue.counters().timeouts), (20, 20));
        });
    }
}

/// The watchdog still finds a command without a deadline while many deadlines pass.
#[test]
fn deadlines_do_not_delay_watchdog() {
    let io = |n, request: &Request| match request.command {
        Command::Read(access) if access.lba == Lba(0) && n == 0 => Answer::Never,
        Command::Read(access) if access.lba == Lba(9) => Answer::Never,
        _ => Answer::After(Span::us(1)),
    };
    let world = answering(io, Aborts::Work);
    world.rt.block_on(async {
        let (_controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        let (crowd, begin) = (Crowd::new(&world.rt), world.rt.now());
        let hung = queue.clone();
        crowd.spawn(async move { hung.read(Lba(0), hung.buffer(BLOCK).unwrap()).await.1 });
        world.rt.sleep(Span::us(5)).await;
        while crowd.left() > 0 {
            assert!(timed_out(read(queue.clone(), 9, world.rt.now() + Span::ms(50)).await));
            assert!(world.rt.now().since(begin) < Span::s(8), "it was never looked at");
        }
        assert_eq!(crowd.all(Span::ZERO).await, [Ok(())]);
    });
}

/// A write that was given up returns its buffer as a read does; one in time is done.
#[test]
fn write_deadline_returns_buffer() {
    let world = answering(
        |n, _| if n == 0 { Answer::Never } else { Answer::After(Span::us(1)) },
        Aborts::Work,
    );
    world.rt.block_on(async {
        let (_controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        let buffer = queue.buffer(BLOCK).unwrap();
        buffer.copy_in(0, &[7; BLOCK]);
        let deadline = world.rt.now() + IN;
        let (buffer, result) = queue.write_before(Lba(4), buffer, false, deadline).await;
        assert!(timed_out(result));
        assert_eq!(world.fake.block(4), pattern(4));
        let deadline = world.rt.now() + IN;
        let (_, result) = queue.write_before(Lba(4), buffer, false, deadline).await;
        assert_eq!(result, Ok(()));
        assert_eq!(world.fake.block(4), [7; BLOCK]);
        let beyond = queue.buffer(BLOCK).unwrap();
        let (_, result) = queue.write_before(Lba(u64::MAX), beyond, false, Time::NEVER).await;
        assert_eq!(result.unwrap_err().kind, Kind::OutOfRange);
    });
}

/// Dropped at every await: slot and buffer are always freed.
#[test]
fn dropped_deadline_read_frees_slot_and_buffer() {
    for first in [Answer::After(Span::us(10)), Answer::After(Span::us(21)), Answer::Never] {
        for polls in 1..12 {
            let io = move |_, request: &Request| match request.command {
                Command::Read(access) if access.lba == Lba(8) => first,
                _ => Answer::After(Span::us(1)),
            };
            let world = answering(io, Aborts::Work);
            world.rt.block_on(async {
                let options = Options { timeout: Span::ms(8), ..Options::default() };
                let (_controller, queue) = world.queue(options, QueueOptions::default()).await;
                let used = world.host.arena().used_bytes();
                let buffer: Buffer = queue.buffer(BLOCK).unwrap();
                let call = queue.read_before(Lba(8), buffer, world.rt.now() + IN);
                poll_times(call, polls).await;
                world.rt.sleep(Span::ms(40)).await;
                assert_eq!((queue.slots_free(), world.host.arena().used_bytes()), (128, used));
                assert!(!timed_out(read(queue.clone(), 5, world.rt.now() + IN).await));
            });
        }
    }
}
