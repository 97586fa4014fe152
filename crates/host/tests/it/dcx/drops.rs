//! Drop tests: every future is dropped at every await. Memory that the device may still write stays in use,
//! and is freed when it cannot.

use host::BlockDevice;
use host::dcx::QueueOptions;
use runtime::Span;
use wire::Lba;

use crate::common::{Canaries, operations, poll_times};

use super::fake::{Answer, Traits};
use super::world::{COMPLETIONS, Q, World, options};

/// A length unique in these tests, so that its addresses are known.
const BYTES: usize = 64 << 10;

fn in_flight(queue: &Q) -> u64 {
    let counters = queue.counters();
    let ended = counters.arrivals + counters.reports + counters.fences;
    counters.submissions - ended
}

#[test]
fn dcx_io_dropped_at_every_await_is_safe() {
    for packet_bytes in [None, Some(128)] {
        for completion in COMPLETIONS {
            for (name, operation) in operations().into_iter().take(2) {
                // The read's packets come in two directions and slowly; a write ends after as long.
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
                        ended = poll_times(operation(queue.clone(), buffer), times).await.is_some();
                        let taken = in_flight(&queue);
                        let what = format!("{name}, {packet_bytes:?}, after {times} polls");
                        assert_eq!(queue.slots_free() as u64, 2 - taken, "{what}");
                        let canaries = Canaries::new(&world.host, BYTES, usize::MAX);
                        assert_eq!(canaries.hold(place), taken == 0, "{what}");
                        world.rt.sleep(Span::ms(2)).await;
                        canaries.assert_alive();
                        assert_eq!(queue.slots_free(), 2, "{what}, and the end");
                        drop(canaries);
                        assert!(
                            Canaries::new(&world.host, BYTES, usize::MAX).hold(place),
                            "{what}: free again"
                        );
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
            let ended = poll_times(queue.read(Lba(0), buffer), times).await.is_some();
            let canaries = Canaries::new(&world.host, BYTES, usize::MAX);
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
    assert!(times >= 5, "only {times} awaits");
}
