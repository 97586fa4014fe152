//! Drop tests: every future is dropped at every await. Memory that the device may still write stays in use,
//! and is freed when it cannot.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use bus::{Buffer, HostPort};
use host::BlockDevice;
use host::block::{Options, Sizing};
use runtime::Span;
use wire::{BusAddr, Lba};

use super::fake::{Play, Traits};
use super::world::{COMPLETIONS, D, World, options};

/// Longer than a block, so that parts are in flight, pending, and not yet filled.
const BYTES: usize = 96 << 10;

type Operation = fn(D, Buffer) -> Pin<Box<dyn Future<Output = ()>>>;

const OPERATIONS: [(&str, Operation); 3] = [
    ("read", |disk, buffer| {
        Box::pin(async move {
            disk.read(Lba(8), buffer).await.1.unwrap();
        })
    }),
    ("write", |disk, buffer| {
        Box::pin(async move {
            disk.write(Lba(8), buffer, false).await.1.unwrap();
        })
    }),
    ("flush", |disk, buffer| {
        Box::pin(async move {
            disk.flush().await.unwrap();
            drop(buffer);
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

/// Drops an operation after each number of polls, with no block lost or the `lost`th one.
fn dropped(sizing: Sizing, lost: u64) {
    for completion in COMPLETIONS {
        for (name, operation) in OPERATIONS {
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
                    ended = poll_times(operation(disk.clone(), buffer), times).await;
                    let what = format!("{name}, after {times} polls");
                    let canaries = Canaries::new(&world);
                    // The buffer is free if and only if the driver no longer holds the request.
                    let with_driver = disk.requests() > 0 && name != "flush";
                    assert_eq!(canaries.hold(place), !with_driver, "{what}");
                    world.rt.sleep(Span::ms(6)).await;
                    canaries.assert_alive();
                    assert_eq!(disk.requests(), 0, "{what}, and the end");
                    drop(canaries);
                    assert!(Canaries::new(&world).hold(place), "{what}: free again");
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
