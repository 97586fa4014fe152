//! Drop tests: every future is dropped at every await. Memory that the device may still write stays in use,
//! and is freed when it cannot.

use std::future::Future;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bus::{Buffer, HostPort};
use host::BlockDevice;
use host::dcx::QueueOptions;
use runtime::Span;
use wire::{BusAddr, Lba};

use super::fake::{Answer, Traits};
use super::world::{COMPLETIONS, Q, World, options};

/// A length unique in these tests, so that its addresses are known.
const BYTES: usize = 64 << 10;

type Operation = fn(Q, Buffer) -> Pin<Box<dyn Future<Output = ()>>>;

const OPERATIONS: [(&str, Operation); 2] = [
    ("read", |queue, buffer| {
        Box::pin(async move {
            queue.read(Lba(8), buffer).await.1.unwrap();
        })
    }),
    ("write", |queue, buffer| {
        Box::pin(async move {
            queue.write(Lba(8), buffer, false).await.1.unwrap();
        })
    }),
];

/// Polls a future at most `times` times, then drops it. Returns true if it had ended.
async fn poll_times(future: impl Future, times: u32) -> bool {
    let mut future = Box::pin(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == times {
            return Poll::Ready(false);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if polls == times => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Buffers of another user, at whatever addresses are free now.
struct Canaries(Vec<Buffer>);

impl Canaries {
    fn new(world: &World) -> Canaries {
        let mut buffers = Vec::new();
        while let Ok(buffer) = world.host.arena().buffer(BYTES) {
            buffer.copy_in(0, &[0xee; BYTES]);
            buffers.push(buffer);
        }
        Canaries(buffers)
    }

    fn hold(&self, place: BusAddr) -> bool {
        self.0.iter().any(|buffer| buffer.at() == place)
    }

    #[track_caller]
    fn assert_alive(&self) {
        for buffer in &self.0 {
            let mut seen = vec![0; BYTES];
            buffer.copy_out(0, &mut seen);
            assert!(seen.iter().all(|byte| *byte == 0xee), "somebody wrote here");
        }
    }
}

fn in_flight(queue: &Q) -> u64 {
    let counters = queue.counters();
    let ended = counters.arrivals + counters.reports + counters.fences;
    counters.submissions - ended
}

#[test]
fn dcx_io_dropped_at_every_await_is_safe() {
    for packet_bytes in [None, Some(128)] {
        for completion in COMPLETIONS {
            for (name, operation) in OPERATIONS {
                // The read's packets arrive slowly, in two interleaved passes; a write takes as long.
                let order = (0..512).step_by(2).chain((1..512).step_by(2)).collect::<Vec<_>>();
                let io = move |_, _: &_| Answer::Order(order.clone(), Span::ns(50));
                let traits = Traits { io: Box::new(io), ..Traits::default() };
                let world = World::new(packet_bytes, traits);
                world.rt.block_on(async {
                    let options = QueueOptions { completion, ..options(2) };
                    let (_driver, queue) = world.queue(options).await;
                    let (mut times, mut ended) = (0, false);
                    while !ended {
                        let buffer = queue.buffer(BYTES).unwrap();
                        let place = buffer.at();
                        ended = poll_times(operation(queue.clone(), buffer), times).await;
                        let taken = in_flight(&queue);
                        let what = format!("{name}, {packet_bytes:?}, after {times} polls");
                        assert_eq!(queue.slots_free() as u64, 2 - taken, "{what}");
                        let canaries = Canaries::new(&world);
                        assert_eq!(canaries.hold(place), taken == 0, "{what}");
                        world.rt.sleep(Span::ms(2)).await;
                        canaries.assert_alive();
                        assert_eq!(queue.slots_free(), 2, "{what}, and the end");
                        drop(canaries);
                        assert!(Canaries::new(&world).hold(place), "{what}: free again");
                        times += 1;
                        assert!(times < 100, "{name} never ends");
                    }
                    assert!(times > 3, "{name}: only {times} awaits");
                    drop(world.read(&queue, 3, 512).await);
                });
            }
        }
    }
}

/// A read that times out, is retried and uses the other driver is dropped at every await.
#[test]
fn dcx_read_dropped_around_timeouts_is_safe() {
    let mut times = 0;
    loop {
        let io = |number, _: &_| match number {
            0 => Answer::After(Span::us(450)),
            1 | 2 => Answer::Never,
            _ => Answer::After(Span::us(2)),
        };
        let world = World::new(Some(128), Traits { io: Box::new(io), ..Traits::default() });
        let ended = world.rt.block_on(async {
            let options = QueueOptions { retries: 2, ..options(3) };
            let (_driver, queue) =
                world.queue(QueueOptions { max_latency: Span::us(33), ..options }).await;
            let buffer = queue.buffer(BYTES).unwrap();
            let ended = poll_times(queue.read(Lba(0), buffer), times).await;
            let canaries = Canaries::new(&world);
            world.rt.sleep(Span::ms(5)).await;
            canaries.assert_alive();
            assert_eq!(queue.slots_free(), 3, "after {times} polls");
            drop(canaries);
            drop(world.read(&queue, 3, 4096).await);
            ended
        });
        if ended {
            break;
        }
        times += 1;
    }
    assert!(times >= 8, "only {times} awaits");
}
