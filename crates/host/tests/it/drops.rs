//! Drop tests: every future is dropped at every await. Memory that the device may still write stays in use,
//! and is freed when it cannot.

use std::rc::Rc;

use crate::common::fake::{Aborts, Answer, Traits};
use crate::common::{BLOCK, Canaries, Operation, World, operations, pattern, poll_times};
use bus::sim::SimHost;
use host::BlockDevice;
use host::nvme::{Completion, Doorbell, Options, Queue, QueueOptions};
use runtime::Span;
use wire::Lba;

/// A length unique in these tests, so that its addresses are known.
const BYTES: usize = 64 << 10;
const CANARIES: usize = 40;

type Q = Rc<Queue<SimHost>>;
fn all_ways() -> impl Iterator<Item = QueueOptions> {
    let completions = [Completion::Polled, Completion::Hybrid, Completion::Interrupt { vector: 1 }];
    completions.into_iter().flat_map(|completion| {
        [Doorbell::Each, Doorbell::Batched].into_iter().map(move |doorbell| QueueOptions {
            depth: 2,
            completion,
            doorbell,
            ..QueueOptions::default()
        })
    })
}

/// Polls one operation `times` times, then drops it. Returns true if it had ended.
async fn drop_after(
    world: &World,
    queue: &Q,
    (name, run): (&str, Operation<Q>),
    times: u32,
) -> bool {
    let buffer = queue.buffer(BYTES).unwrap();
    let place = buffer.at();
    let before = queue.counters();
    let ended = poll_times(run(queue.clone(), buffer), times).await.is_some();
    let counters = queue.counters();
    let submitted = counters.submissions - before.submissions;
    let in_flight = submitted - (counters.completions - before.completions);
    assert_eq!(queue.slots_free() as u64, 2 - in_flight, "{name} after {times} polls");

    // The arena is last in, first out: the canaries get the buffer's address, unless it is in use.
    let canaries = Canaries::new(&world.host, BYTES, CANARIES);
    let taken = in_flight == 1 && name != "flush";
    assert_eq!(canaries.hold(place), !taken, "{name} after {times} polls");
    world.rt.sleep(Span::ms(2)).await;
    canaries.assert_alive();
    assert_eq!(queue.slots_free(), 2, "{name} after {times} polls and the completion");
    // No other free memory of this length is left.
    assert!(canaries.hold(place) || queue.buffer(BYTES).unwrap().at() == place);
    ended
}

#[test]
fn io_dropped_at_every_await_is_safe() {
    for options in all_ways() {
        for operation in operations() {
            let io = |_, _: &_| Answer::After(Span::us(100));
            let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
            world.rt.block_on(async {
                let (_controller, queue) = world.queue(Options::default(), options).await;
                let mut times = 0;
                while !drop_after(&world, &queue, operation, times).await {
                    times += 1;
                    assert!(times < 100, "{} never ends", operation.0);
                }
                // Submit, completion, complete; with an interrupt also the context switch.
                let least = match options.completion {
                    Completion::Polled | Completion::Hybrid => 3,
                    Completion::Interrupt { .. } => 4,
                };
                assert!(times >= least, "{}: only {times} awaits", operation.0);
                let (buffer, read) = queue.read(Lba(3), queue.buffer(BLOCK).unwrap()).await;
                read.unwrap();
                let mut seen = vec![0; BLOCK];
                buffer.copy_out(0, &mut seen);
                assert_eq!(seen, pattern(3));
                assert_eq!(queue.counters().protocol_errors, 0);
            });
        }
    }
}

#[test]
fn drop_while_waiting_for_slot_passes_turn() {
    let io = |_, _: &_| Answer::After(Span::us(100));
    let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
    world.rt.block_on(async {
        let single = QueueOptions { depth: 1, ..QueueOptions::default() };
        let (_controller, queue) = world.queue(Options::default(), single).await;
        for times in 1..4 {
            let first = queue.clone();
            world.rt.spawn(async move {
                first.read(Lba(0), first.buffer(BLOCK).unwrap()).await.1.unwrap();
            });
            world.rt.sleep(Span::us(10)).await;
            let buffer = queue.buffer(BLOCK).unwrap();
            poll_times(queue.read(Lba(1), buffer), times).await;
            let begin = world.rt.now();
            queue.read(Lba(2), queue.buffer(BLOCK).unwrap()).await.1.unwrap();
            assert!(world.rt.now().since(begin) < Span::us(400));
            assert_eq!(queue.slots_free(), 1);
        }
    });
}

/// The command is never completed and has no owner: only a reset frees the slot and the buffer.
#[test]
fn reset_frees_slot_and_buffer_of_orphan() {
    let io = |n, _: &_| if n == 0 { Answer::Never } else { Answer::After(Span::us(10)) };
    let traits = Traits { io: Box::new(io), aborts: Aborts::Fail, ..Traits::default() };
    let world = World::new(traits);
    world.rt.block_on(async {
        let single = QueueOptions { depth: 1, ..QueueOptions::default() };
        let (controller, queue) = world.queue(Options::default(), single).await;
        let buffer = queue.buffer(BYTES).unwrap();
        let place = buffer.at();
        poll_times(queue.read(Lba(0), buffer), 2).await;
        world.rt.sleep(Span::s(4)).await;
        assert_eq!((queue.slots_free(), controller.resets()), (0, 0));
        let canaries = Canaries::new(&world.host, BYTES, CANARIES);
        assert!(!canaries.hold(place));
        world.rt.sleep(Span::s(10)).await;
        assert_eq!((queue.slots_free(), controller.resets()), (1, 1));
        assert_eq!(queue.buffer(BYTES).unwrap().at(), place);
    });
}

/// A read is dropped at every await before, during and after a reset.
#[test]
fn read_dropped_around_reset_is_safe() {
    let mut times = 0;
    loop {
        let io = |n, _: &_| if n == 0 { Answer::Never } else { Answer::After(Span::us(100)) };
        let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
        let ended = world.rt.block_on(async {
            let single = QueueOptions { depth: 1, ..QueueOptions::default() };
            let (controller, queue) = world.queue(Options::default(), single).await;
            let controller = Rc::new(controller);
            let (rt, resetter) = (world.rt.clone(), controller.clone());
            world.rt.spawn(async move {
                rt.sleep(Span::us(300)).await;
                resetter.reset().await.unwrap();
            });
            let buffer = queue.buffer(BYTES).unwrap();
            let ended = poll_times(queue.read(Lba(0), buffer), times).await.is_some();
            let canaries = Canaries::new(&world.host, BYTES, CANARIES);
            world.rt.sleep(Span::ms(200)).await;
            canaries.assert_alive();
            assert_eq!((queue.slots_free(), controller.resets()), (1, 1));
            queue.read(Lba(2), queue.buffer(BLOCK).unwrap()).await.1.unwrap();
            ended
        });
        if ended {
            break;
        }
        times += 1;
    }
    assert!(times >= 5, "only {times} awaits");
}
