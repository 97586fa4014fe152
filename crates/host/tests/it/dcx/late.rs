//! Late reads: a read ends, and its buffer comes back, when its data are there or a fence has been passed.

use std::collections::BTreeSet;

use bus::{Buffer, HostPort};
use host::BlockDevice;
use host::dcx::QueueOptions;
use runtime::Span;
use wire::{BusAddr, Lba};

use super::fake::{Answer, Traits, Turns};
use super::world::{COMPLETIONS, World, options};

/// A length unique in these tests.
const BYTES: usize = 32 << 10;

fn traits(io: impl FnMut(u64) -> Answer + 'static) -> Traits {
    let mut io = io;
    Traits { io: Box::new(move |number, _| io(number)), ..Traits::default() }
}

/// Allocates `count` buffers of another user, at whatever addresses are free now.
fn others(world: &World, count: usize) -> Vec<Buffer> {
    let all: Vec<_> = (0..count).map(|_| world.host.arena().buffer(BYTES).unwrap()).collect();
    all.iter().for_each(|buffer| buffer.copy_in(0, &[0xee; BYTES]));
    all
}

#[track_caller]
fn assert_untouched(others: &[Buffer]) {
    for buffer in others {
        let mut seen = vec![0; BYTES];
        buffer.copy_out(0, &mut seen);
        assert!(seen.iter().all(|byte| *byte == 0xee), "somebody wrote at {}", buffer.at());
    }
}

/// The read's data arrive before its time-out, with it, after it, or so late that a fence could wait for no
/// longer: its own buffer comes back with them, and nothing lands anywhere afterwards.
#[test]
fn late_dma_write_never_hits_reused_buffer() {
    for packet_bytes in [None, Some(128)] {
        for completion in COMPLETIONS {
            for late in [90, 105, 115, 300, 1500] {
                let world =
                    World::new(packet_bytes, traits(move |_| Answer::After(Span::us(late))));
                world.rt.block_on(async {
                    let options = QueueOptions { completion, ..options(4) };
                    let options = QueueOptions { max_latency: Span::us(25), ..options };
                    let (_driver, queue) = world.queue(options).await;
                    let buffer = queue.buffer(BYTES).unwrap();
                    let (place, theirs) = (buffer.at(), buffer.part(0, BYTES));
                    let begin = world.rt.now();
                    let back = world.read_into(&queue, 3, buffer).await;
                    assert_eq!(back.at(), place, "the buffer that was given comes back");
                    assert!(world.rt.now().since(begin) >= Span::us(late), "with its data");
                    assert_eq!(world.fake.reads.borrow().len(), 1, "nothing was lost");
                    let counters = queue.counters();
                    assert_eq!((counters.timeouts, counters.arrivals), (u64::from(late > 100), 1));
                    // The caller uses its memory for something else.
                    theirs.copy_in(0, &[0xee; BYTES]);
                    drop(back);
                    let others = others(&world, 60);
                    world.rt.sleep(Span::ms(3)).await;
                    assert_untouched(&others);
                    assert_untouched(&[theirs]);
                    assert_eq!(queue.slots_free(), 4);
                });
            }
        }
    }
}

/// A read whose data never come is lost when the fence behind it is passed, and not before: it is retried
/// in the same buffer, with another tag.
#[test]
fn lost_read_is_retried_in_its_buffer_after_the_fence() {
    for packet_bytes in [None, Some(128)] {
        let world = World::new(
            packet_bytes,
            traits(|number| match number {
                0 | 1 => Answer::Never,
                _ => Answer::After(Span::us(2)),
            }),
        );
        world.rt.block_on(async {
            let (_driver, queue) = world.queue(options(2)).await;
            let buffer = queue.buffer(BYTES).unwrap();
            let place = buffer.at();
            let back = world.read_into(&queue, 5, buffer).await;
            assert_eq!(back.at(), place);
            let reads = world.fake.reads.borrow();
            assert!(reads.len() == 3 && reads.iter().all(|(access, _)| access.at == place));
            let counters = queue.counters();
            assert_eq!((counters.timeouts, counters.fences, counters.gave_up), (2, 2, 0));
        });
    }
}

/// Addresses of all free buffers of this length.
fn places(world: &World) -> BTreeSet<BusAddr> {
    let mut all = Vec::new();
    while let Ok(buffer) = world.host.arena().buffer(BYTES) {
        all.push(buffer);
    }
    all.iter().map(Buffer::at).collect()
}

/// Tags that never vanish: as many retries as configured, then the other driver, within the time bound of
/// `Queue::read`.
#[test]
fn hung_read_falls_back_to_other_driver_in_time() {
    for retries in [0, 1, 5] {
        for depth in [1u16, 3, 16] {
            let world = World::new(Some(128), traits(|_| Answer::Never));
            world.rt.block_on(async {
                let options = QueueOptions { retries, ..options(depth) };
                let (_driver, queue) = world.queue(options).await;
                for _ in 0..3 {
                    let begin = world.rt.now();
                    drop(world.read(&queue, 9, 4096).await);
                    // The watchdog may have looked just before the read; its fence takes no time to speak of.
                    let each = options.read_timeout() + options.read_timeout() / 4;
                    let bound = each * u64::from(retries + 1) + Span::us(50);
                    assert!(world.rt.now().since(begin) <= bound, "{retries}, {depth}");
                }
                let counters = queue.counters();
                assert_eq!((counters.gave_up, world.beneath.reads.get()), (3, 3));
                assert_eq!(counters.arrivals, 0);
                world.rt.sleep(Span::ms(20)).await;
                assert_eq!(queue.slots_free(), usize::from(depth), "the fences freed all");
            });
        }
    }
}

/// A device that never passes a fence: the queue is reset, and every read returns correct data.
#[test]
fn missing_fence_report_triggers_reset() {
    let io = |number| if number % 5 == 0 { Answer::Never } else { Answer::After(Span::us(2)) };
    let world = World::new(Some(128), Traits { fences: false, ..traits(io) });
    world.rt.block_on(async {
        let (_driver, queue) = world.queue(options(2)).await;
        for lba in 0..40 {
            drop(world.read(&queue, lba, 4096).await);
        }
        world.rt.sleep(Span::ms(20)).await;
        assert!(queue.counters().resets > 0, "{:?}", queue.counters());
        assert_eq!(queue.slots_free(), 2);
    });
}

/// A device that neither ends its reads nor stops: all callers get errors, and its memory is never reused,
/// not even for the other driver.
#[test]
fn buffers_quarantined_if_device_does_not_stop() {
    for retries in [0, 3] {
        let traits = Traits { fences: false, off: Turns::Never, ..traits(|_| Answer::Never) };
        let world = World::new(Some(128), traits);
        world.rt.block_on(async {
            // The read time-out is longer than the device's time to stop.
            let options = QueueOptions { retries, max_latency: Span::ms(50), ..options(4) };
            let (driver, queue) = world.queue(options).await;
            let buffer = queue.buffer(BYTES).unwrap();
            let place = buffer.at();
            let read = queue.read(Lba(1), buffer);
            let reset = async {
                world.rt.sleep(Span::us(50)).await;
                driver.reset().await.expect_err("it does not go off");
                core::future::pending::<()>().await;
            };
            let runtime::Either::First((buffer, result)) =
                world.within(Span::ms(600), runtime::race(read, reset)).await
            else {
                unreachable!("the reset waits for ever")
            };
            assert_eq!(result.expect_err("it is gone").kind, host::Kind::Gone);
            assert_eq!(world.beneath.reads.get(), 0, "the device may still write to {place}");
            drop(buffer);
            assert!(!places(&world).contains(&place), "the device may still write there");
        });
    }
}
