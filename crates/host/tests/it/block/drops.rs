//! Drop tests: every future is dropped at every await. Memory that the device may still write stays in use,
//! and is freed when it cannot.

use host::BlockDevice;
use host::block::{Options, Sizing};
use runtime::Span;

use crate::common::{Canaries, operations, poll_times};

use super::fake::{Play, Traits};
use super::world::{COMPLETIONS, World, options};

/// Longer than a block, so that parts are in flight, pending, and not yet filled.
const BYTES: usize = 96 << 10;

/// Drops an operation after each number of polls, in worlds in which nothing or the second block is lost.
fn dropped(sizing: Sizing, lost: u64) {
    for completion in COMPLETIONS {
        for (name, operation) in operations() {
            let play = move |block, _, _: &[_]| match block {
                block if block == lost => Play::Never,
                _ => Play::Whole(Span::us(3), Vec::new()),
            };
            let world = World::new(Traits { play: Box::new(play), ..Traits::default() });
            world.rt.block_on(async {
                let (_driver, disk) =
                    world.start(Options { completion, sizing, ..options() }).await;
                let (mut times, mut ended) = (0, false);
                while !ended {
                    let buffer = disk.buffer(BYTES).unwrap();
                    let place = buffer.at();
                    ended = poll_times(operation(disk.clone(), buffer), times).await.is_some();
                    let what = format!("{name}, after {times} polls");
                    let canaries = Canaries::new(&world.host, BYTES, usize::MAX);
                    // It is free again if and only if the driver holds the request no more.
                    let with_driver = disk.requests() > 0 && name != "flush";
                    assert_eq!(canaries.hold(place), !with_driver, "{what}");
                    world.rt.sleep(Span::ms(6)).await;
                    canaries.assert_alive();
                    assert_eq!(disk.requests(), 0, "{what}, and the end");
                    drop(canaries);
                    assert!(
                        Canaries::new(&world.host, BYTES, usize::MAX).hold(place),
                        "{what}: free again"
                    );
                    times += 1;
                    assert!(times < 400, "{name} never ends");
                }
                assert!(times > 3, "{name}: only {times} awaits");
                world.read(&disk, 3, 512).await;
            });
        }
    }
}

#[test]
fn block_io_dropped_at_every_await_is_safe() {
    dropped(Sizing::adaptive(), u64::MAX);
    dropped(Sizing::gathering(), u64::MAX);
}

#[test]
fn block_io_dropped_around_reset_is_safe() {
    dropped(Sizing::adaptive(), 1);
}
