//! Devices that fall silent, die, or do not stop: all callers get errors in bounded time.

use host::block::{Driver, Options};
use host::{BlockDevice, InitError, Kind};
use runtime::Span;
use wire::Lba;
use wire::block::registers::{Status, Violation};

use super::fake::{Play, Traits};
use super::world::{BOUND, COMPLETIONS, World, all, options};

/// Starts requests of all kinds at once.
async fn kinds(world: &World, disk: &super::world::D, count: u64) -> Vec<Result<(), Kind>> {
    let requests = (0..count).map(|n| async move {
        let buffer = disk.buffer(if n % 3 == 0 { 12288 } else { 512 }).unwrap();
        let end = match n % 2 {
            0 => disk.read(Lba(n * 32), buffer).await.1,
            _ => disk.write(Lba(n * 32), buffer, false).await.1,
        };
        end.map_err(|error| error.kind)
    });
    world.within(BOUND, all(requests.collect())).await.0
}

/// A lost block: the ring is reset, and its requests are announced again in order.
#[test]
fn lost_block_announced_again_after_reset() {
    for completion in COMPLETIONS {
        for lost in 0..4 {
            let play = move |block, _, _: &[_]| match block {
                block if block == lost => Play::Never,
                _ => Play::Whole(Span::us(2), Vec::new()),
            };
            let world = World::new(Traits { play: Box::new(play), ..Traits::default() });
            world.rt.block_on(async {
                let (driver, disk) = world.start(Options { completion, ..options() }).await;
                assert_eq!(kinds(&world, &disk, 12).await, vec![Ok(()); 12], "block {lost}");
                assert_eq!(driver.counters().resets, 1);
                assert_eq!(disk.requests(), 0);
                world.read(&disk, 32, 512).await;
            });
        }
    }
}

/// The device's state while it has a block: ready and without a violation it is at work, and its block has
/// the whole time-out; in every other state the ring is reset as soon as a check has seen no progress.
#[test]
fn stopped_device_is_reset_before_time_out() {
    let ready = Status::new().with_ready(true);
    let stopped = |violation| ready.with_violation(violation).with_count(3);
    for (status, stops, violation) in [
        (ready, 0, None),
        (stopped(Violation::Owner as u8), 1, Some(Violation::Owner)),
        (stopped(Violation::Unreachable as u8), 1, Some(Violation::Unreachable)),
        (stopped(200), 1, None),
        (Status::new(), 1, None),
        (Status::from_bits(u32::MAX), 1, None),
    ] {
        for completion in COMPLETIONS {
            let play = move |block, _, _: &[_]| match block {
                2 => Play::Stops(status),
                _ => Play::Whole(Span::us(2), Vec::new()),
            };
            let world = World::new(Traits { play: Box::new(play), ..Traits::default() });
            world.rt.block_on(async {
                let (driver, disk) = world.start(Options { completion, ..options() }).await;
                let begun = world.rt.now();
                assert_eq!(kinds(&world, &disk, 12).await, vec![Ok(()); 12], "{status:?}");
                let took = world.rt.now().since(begun);
                let counters = driver.counters();
                assert_eq!((counters.resets, counters.stops), (1, stops), "{status:?}");
                assert_eq!(counters.violation, violation, "{status:?}");
                // The time-out of 2 ms has eight checks; the second of them sees a block that is still.
                let is_early = took < Span::us(600);
                assert_eq!(is_early, stops > 0, "{status:?}: {took}");
                assert!(took < Span::us(2500), "{status:?}: {took}");
            });
        }
    }
}

/// A silent device: after the allowed resets all requests in the ring fail, and later ones work.
#[test]
fn silent_device_fails_requests_after_retries() {
    for completion in COMPLETIONS {
        let world =
            World::new(Traits { play: Box::new(|_, _, _| Play::Never), ..Traits::default() });
        world.rt.block_on(async {
            let (driver, disk) = world.start(Options { completion, retries: 2, ..options() }).await;
            let begun = world.rt.now();
            assert_eq!(kinds(&world, &disk, 4).await, vec![Err(Kind::Reset); 4]);
            // Three blocks of 2 ms plus an eighth each, and the ring's state changes.
            assert!(world.rt.now().since(begun) < Span::ms(8));
            assert_eq!(driver.counters().resets, 3);
            assert_eq!(disk.requests(), 0);
            // The device recovers.
            world.fake.traits.borrow_mut().play =
                Box::new(|_, _, _| Play::Whole(Span::us(2), Vec::new()));
            world.read(&disk, 7, 4096).await;
        });
    }
}

/// A device that does not stop: the driver gives it up and quarantines its memory.
#[test]
fn memory_quarantined_if_block_device_does_not_stop() {
    let traits =
        Traits { play: Box::new(|_, _, _| Play::Never), turns_off: false, ..Traits::default() };
    let world = World::new(traits);
    world.rt.block_on(async {
        let (driver, disk) = world.start(options()).await;
        assert_eq!(kinds(&world, &disk, 7).await, vec![Err(Kind::Gone); 7]);
        let late = disk.read(Lba(0), disk.buffer(512).unwrap()).await.1;
        assert_eq!(late.map_err(|error| error.kind), Err(Kind::Gone));
        assert_eq!(disk.flush().await.map_err(|error| error.kind), Err(Kind::Gone));
        assert!(driver.reset().await.is_err());
        driver.stop().await.expect("there is nothing left to stop");
        // Its memory is quarantined: the next buffers are elsewhere.
        let pages: Vec<_> = world.fake.pages.borrow().iter().map(|page| page.0).collect();
        for _ in 0..8 {
            let buffer = disk.buffer(12288).unwrap();
            assert!(!pages.contains(&buffer.at()));
            core::mem::forget(buffer);
        }
    });
}

/// The link goes down under load.
#[test]
fn link_down_fails_block_requests_with_gone() {
    for completion in COMPLETIONS {
        let slow = |_, _, _: &[_]| Play::Whole(Span::us(100), Vec::new());
        let world = World::new(Traits { play: Box::new(slow), ..Traits::default() });
        world.rt.block_on(async {
            let (_driver, disk) = world.start(Options { completion, ..options() }).await;
            let (rt, bus) = (world.rt.clone(), world.bus.clone());
            world.rt.spawn(async move {
                rt.sleep(Span::us(50)).await;
                bus.take_link_down();
            });
            assert_eq!(kinds(&world, &disk, 9).await, vec![Err(Kind::Gone); 9]);
        });
    }
}

#[test]
fn unsupported_block_device_rejected() {
    let start = |traits: Traits| {
        let world = World::new(traits);
        world.rt.block_on(async { Driver::start(&world.host, options()).await.err() })
    };
    let limits = Traits::default().limits;
    let of = |limits| start(Traits { limits, ..Traits::default() });
    assert!(matches!(
        start(Traits { id: 7, ..Traits::default() }),
        Some(InitError::Unsupported { .. })
    ));
    for wrong in [
        limits.with_block_max(0),
        limits.with_group(0),
        limits.with_group(5),
        limits.with_block_max(17),
        limits.with_entries_log2(0),
        limits.with_entries_log2(200),
    ] {
        assert!(matches!(of(wrong), Some(InitError::Unsupported { .. })), "{wrong:?}");
    }
    let never = start(Traits { turns_on: false, ..Traits::default() });
    assert!(matches!(never, Some(InitError::NotReady { register: "STATUS", .. })));
}
