//! Devices that never enable a queue, never disable it, or die.

use std::rc::Rc;

use bus::{Arena, HostPort, Memory};
use host::dcx::{Driver, QueueOptions};
use host::{BlockDevice, InitError, Kind};
use runtime::Span;
use wire::dcx::registers::{Grain, Limits};
use wire::{BusAddr, Lba};

use super::fake::{Answer, Traits, Turns};
use super::world::{BOUND, COMPLETIONS, World, options};

#[test]
fn queue_enable_timeout_reports_not_ready() {
    for on in [Turns::Never, Turns::Faults] {
        let world = World::new(None, Traits { on, ..Traits::default() });
        world.rt.block_on(async {
            let begin = world.rt.now();
            let (driver, queue) = world.try_queue(options(2)).await;
            let error = queue.err().expect("it does not enable");
            assert!(matches!(error, InitError::NotReady { register: "STATUS", .. }), "{error}");
            // The time-out of a command is 2 ms; a device has longer to become ready.
            assert!(world.rt.now().since(begin) <= Span::ms(501));
            driver.stop().await.expect("it goes off");
        });
    }
}

/// A device that starts and stops more slowly than a command may take is reset, and not given up.
#[test]
fn command_timeout_does_not_limit_enable_and_disable() {
    let slow = Turns::After(Span::us(50));
    let io = |_, _: &_| Answer::Never;
    let traits =
        Traits { on: slow, off: slow, fences: false, io: Box::new(io), ..Traits::default() };
    let world = World::new(None, traits);
    world.rt.block_on(async {
        let options = QueueOptions { timeout: Span::us(2), max_latency: Span::us(4), ..options(2) };
        let (driver, queue) = world.queue(options).await;
        for lba in 0..4 {
            drop(world.read(&queue, lba, 4096).await);
        }
        // Four tries of each read; the last reset may still go on.
        assert!(queue.counters().resets >= 15, "{:?}", queue.counters());
        driver.stop().await.expect("it goes off");
    });
}

#[test]
fn unsupported_dcx_limits_rejected() {
    let limits = Traits::default().limits;
    let cases: [(Limits, u16, &str); 3] = [
        (limits.with_block_log2(12), 2, "LIMITS.block_log2"),
        (limits.with_entries_log2(2), 4, "LIMITS.entries_log2"),
        (limits.with_queues(0), 2, ""),
    ];
    for (limits, depth, register) in cases {
        let world = World::new(None, Traits { limits, ..Traits::default() });
        world.rt.block_on(async {
            let driver = Driver::start(&world.host, 0, &world.beneath).await;
            let error = match driver {
                Err(error) => error,
                Ok(driver) => {
                    let queue = driver.queue_on(&world.host, world.beneath.clone(), options(depth));
                    queue.await.err().expect("a queue that the device does not have")
                }
            };
            match error {
                InitError::Unsupported { what, .. } => assert_eq!(what, register),
                InitError::TooFewQueues { asked: 1, granted: 0 } => assert_eq!(register, ""),
                other => panic!("{other}"),
            }
        });
    }
    for packet_log2 in [1, 6, 13, 255] {
        let grain = Grain::new().with_packet_log2(packet_log2).into_bits();
        let world = World::new(None, Traits { grain, ..Traits::default() });
        world.rt.block_on(async {
            let error =
                Driver::start(&world.host, 0, &world.beneath).await.err().expect("no such packets");
            assert!(
                matches!(error, InitError::Unsupported { what: "GRAIN.packet_log2", .. }),
                "{error}"
            );
        });
    }
    let world = World::new(None, Traits::default());
    world.rt.block_on(async {
        let beneath = world.beneath.clone();
        let error = Driver::start(&world.host, 0x800, &beneath).await.err().unwrap();
        assert!(matches!(error, InitError::Unsupported { what: "ID", .. }), "{error}");
    });
}

/// Resets under load: everything is retried with correct data, and nothing leaks.
#[test]
fn resets_under_load_keep_data() {
    for completion in COMPLETIONS {
        let world = Rc::new(World::new(Some(128), Traits::default()));
        let rt = world.rt.clone();
        rt.block_on(async {
            let options = QueueOptions { completion, retries: 100, ..options(8) };
            let (driver, queue) = world.queue(options).await;
            let done = Rc::new(std::cell::Cell::new(0));
            for task in 0..8u64 {
                let (world, queue, done) = (world.clone(), queue.clone(), done.clone());
                rt.spawn(async move {
                    for turn in 0..40 {
                        let lba = 100 * task + turn;
                        if turn % 4 == 0 {
                            let from = queue.buffer(512).unwrap();
                            from.copy_in(0, &[turn as u8 | 1; 512]);
                            queue.write(Lba(lba), from, false).await.1.expect("written");
                            assert!(world.fake.data(Lba(lba), 1) == [turn as u8 | 1; 512]);
                        }
                        drop(world.read(&queue, lba, 4096).await);
                    }
                    done.set(done.get() + 1);
                });
            }
            let mut resets = 0;
            while done.get() < 8 {
                rt.sleep(Span::us(13)).await;
                driver.reset().await.expect("it goes off and on");
                resets += 1;
            }
            assert!(resets > 5);
            assert_eq!(queue.counters().resets, resets);
            rt.sleep(Span::ms(1)).await;
            assert_eq!(queue.slots_free(), 8);
        });
        rt.drop_tasks();
    }
}

/// The link goes down with reads and writes in flight: all of them end with the error `Gone`.
#[test]
fn link_down_fails_reads_and_writes_with_gone() {
    for completion in COMPLETIONS {
        for after in [0, 1, 5, 20] {
            let io = |_, _: &_| Answer::After(Span::us(10));
            let world = World::new(Some(128), Traits { io: Box::new(io), ..Traits::default() });
            world.rt.block_on(async {
                let (driver, queue) = world.queue(QueueOptions { completion, ..options(4) }).await;
                let cut = async {
                    world.rt.sleep(Span::us(after)).await;
                    world.bus.take_link_down();
                    core::future::pending::<()>().await;
                };
                let work = async {
                    for round in 0.. {
                        let buffer = queue.buffer(4096).unwrap();
                        let result = match round % 2 {
                            0 => queue.read(Lba(3), buffer).await.1,
                            _ => queue.write(Lba(3), buffer, false).await.1,
                        };
                        if let Err(error) = result {
                            return error.kind;
                        }
                    }
                    unreachable!("it ends with an error")
                };
                let runtime::Either::First(kind) =
                    world.within(BOUND, runtime::race(work, cut)).await
                else {
                    unreachable!("the cut waits for ever")
                };
                assert_eq!(kind, Kind::Gone);
                let again = queue.read(Lba(1), queue.buffer(512).unwrap());
                let error = world.within(BOUND, again).await.1.expect_err("still gone");
                assert_eq!(error.kind, Kind::Gone);
                driver.stop().await.expect("there is nothing to stop");
            });
        }
    }
}

#[test]
fn stopped_queue_rejects_reads_and_frees_memory() {
    let world = World::new(None, Traits::default());
    world.rt.block_on(async {
        let (driver, queue) = world.queue(options(2)).await;
        drop(world.read(&queue, 1, 512).await);
        driver.stop().await.expect("it goes off");
        let error = queue.read(Lba(1), queue.buffer(512).unwrap()).await.1.expect_err("closed");
        assert_eq!(error.kind, Kind::Closed);
        // Its memory is free again.
        drop((driver, queue));
        world.rt.sleep(Span::ms(1)).await;
        let (_driver, queue) = world.queue(options(2)).await;
        drop(world.read(&queue, 1, 512).await);
    });
}

/// Requests that the driver rejects.
#[test]
fn invalid_requests_rejected_with_buffer_returned() {
    let world = World::new(None, Traits::default());
    world.rt.block_on(async {
        let (_driver, queue) = world.queue(options(2)).await;
        let whole = queue.buffer(128 << 10).unwrap();
        // Bus addresses in no memory of this port.
        let memory = Memory::private(4096, BusAddr(1 << 60));
        assert!(!world.host.arena().memory().holds(memory.base(), 512));
        let elsewhere = Arena::new(memory).buffer(512).unwrap();
        let heads = [whole.part(2, 8), elsewhere.part(0, 8)];
        let cases = [
            (0, whole.part(2, 512), Kind::Refused),
            (0, whole.part(0, 500), Kind::Refused),
            (0, whole.part(0, (64 << 10) + 512), Kind::Refused),
            (4096, whole.part(0, 512), Kind::OutOfRange),
            (u64::MAX, whole.part(0, 512), Kind::OutOfRange),
            (0, elsewhere, Kind::Refused),
        ];
        for (lba, buffer, kind) in cases {
            let (at, bytes) = (buffer.at(), buffer.bytes());
            let (buffer, result) = queue.read(Lba(lba), buffer).await;
            assert_eq!(result.expect_err("refused").kind, kind);
            assert_eq!((buffer.at(), buffer.bytes()), (at, bytes));
            let (_, result) = queue.write(Lba(lba), buffer, false).await;
            assert_eq!(result.expect_err("refused").kind, kind);
        }
        for buffer in heads {
            let at = buffer.at();
            let (buffer, result) = queue.read_head(Lba(0), buffer).await;
            assert_eq!(result.expect_err("refused").kind, Kind::Refused);
            assert_eq!((buffer.at(), buffer.bytes()), (at, 8));
        }
        assert_eq!(queue.counters().submissions, 0);
    });
}
