//! A device that falls silent, dies, or does not stop: everybody is told, in bounded time.

use host::block::{Driver, Options};
use host::{BlockDevice, InitError, Kind};
use runtime::Span;
use wire::Lba;

use super::fake::{Play, Traits};
use super::world::{BOUND, COMPLETIONS, World, all, options};

/// Requests of all kinds, started at once.
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

/// A block is lost: the ring is reset, and what was in it is announced again, in its order.
#[test]
fn a_lost_block_is_announced_again() {
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

/// It never answers: after as many resets as are allowed everything in the ring fails, and only that.
#[test]
fn a_silent_device_is_reported_and_bounded() {
    for completion in COMPLETIONS {
        let world =
            World::new(Traits { play: Box::new(|_, _, _| Play::Never), ..Traits::default() });
        world.rt.block_on(async {
            let (driver, disk) = world.start(Options { completion, retries: 2, ..options() }).await;
            let begun = world.rt.now();
            assert_eq!(kinds(&world, &disk, 4).await, vec![Err(Kind::Reset); 4]);
            // Three blocks of 2 ms and an eighth each, and the turns of the ring.
            assert!(world.rt.now().since(begun) < Span::ms(8));
            assert_eq!(driver.counters().resets, 3);
            assert_eq!(disk.requests(), 0);
            // It comes to its senses.
            world.fake.traits.borrow_mut().play =
                Box::new(|_, _, _| Play::Whole(Span::us(2), Vec::new()));
            world.read(&disk, 7, 4096).await;
        });
    }
}

/// It does not even stop: the driver gives it up, with all the memory that it may still write.
#[test]
fn a_device_that_does_not_stop_is_given_up() {
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
        // What it knew of is nobody's any more: the next buffers lie elsewhere.
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
fn a_dead_link_ends_everything() {
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
fn a_device_that_cannot_be_served_is_refused() {
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
