//! Malicious devices: they cannot crash, hang or cross-wire the driver.

use std::rc::Rc;

use crate::common::fake::{Answer, Traits};
use crate::common::{BLOCK, Crowd, Setup, World, pattern};
use bus::DevicePort;
use bus::sim::SimHost;
use host::nvme::{Completion, Options, Queue, QueueOptions};
use host::{BlockDevice, Kind};
use runtime::{Rng, Span};
use wire::Lba;
use wire::nvme::entry::Cqe;
use wire::nvme::registers;
use zerocopy::FromBytes;

async fn read(queue: Rc<Queue<SimHost>>, lba: u64) -> Result<(), Kind> {
    let buffer = queue.buffer(BLOCK).unwrap();
    let (buffer, result) = queue.read(Lba(lba), buffer).await;
    if result.is_ok() {
        let mut seen = vec![0; BLOCK];
        buffer.copy_out(0, &mut seen);
        assert_eq!(seen, pattern(lba), "somebody else's data at LBA {lba}");
    }
    result.map_err(|error| error.kind)
}

#[test]
fn duplicate_and_forged_completions_ignored() {
    for (answer, lies) in [(Answer::Twice, 1), (Answer::AmongForgeries, 4)] {
        let io = move |n: u64, _: &_| match n % 2 {
            0 => answer,
            _ => Answer::After(Span::us(7)),
        };
        let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
        world.rt.block_on(async {
            let options = QueueOptions { depth: 16, ..QueueOptions::default() };
            let (controller, queue) = world.queue(Options::default(), options).await;
            for lba in 0..24 {
                read(queue.clone(), lba).await.unwrap();
            }
            let counters = queue.counters();
            assert_eq!((counters.completions, counters.protocol_errors), (24, 12 * lies));
            assert_eq!(
                (controller.resets(), world.logged("bad-completion")),
                (0, 12 * lies as usize)
            );
            assert_eq!(queue.slots_free(), 16);
        });
    }
}

/// Tens of thousands of random completions, none of them valid. Every read succeeds with its own data; the
/// controller is reset after too many invalid completions.
#[test]
fn forged_completions_never_delivered() {
    let lies: u64 = (0..8).map(|seed| forged(seed, 200)).sum();
    assert!(lies > 1000, "only {lies} lies were told");
}

/// Runs reads on a device that forges completions; returns the number of forgeries.
fn forged(seed: u64, reads: u64) -> u64 {
    let mut latency = Rng::for_part(seed, "latency");
    let io = move |_, _: &_| Answer::After(Span::us(1 + latency.below(100)));
    let traits = Traits { io: Box::new(io), ..Traits::default() };
    let world = World::with(traits, Setup { shuffle: Some(seed), ..Setup::default() });
    let fake = world.fake.clone();
    let mut rng = Rng::for_part(seed, "forger");
    let rt = world.rt.clone();
    world.rt.spawn(async move {
        loop {
            rt.sleep(Span::ns(200 + rng.below(400))).await;
            let mut bytes = [0; 16];
            for half in bytes.chunks_mut(8) {
                half.copy_from_slice(&rng.next_u64().to_le_bytes());
            }
            let mut cqe = Cqe::read_from_bytes(&bytes).unwrap();
            // Mostly close to valid: this queue, a head within range, a slot in use.
            if rng.chance(7, 8) {
                cqe.sq_id = 1.into();
                cqe.sq_head = (rng.below(16) as u16).into();
                cqe.cid = ((rng.below(64) << 10 | rng.below(17)) as u16).into();
            }
            if !fake.has_queue(1) {
                rt.sleep(Span::us(100)).await;
            } else if fake.has_room(1) && !fake.is_plausible(1, &cqe) {
                fake.publish(1, cqe);
                rt.sleep(Span::ns(100)).await;
            }
        }
    });
    world.rt.block_on(async {
        let options = Options { retries: 10_000, ..Options::default() };
        let small = QueueOptions { depth: 255, ..QueueOptions::default() };
        let (controller, queue) = world.queue(options, small).await;
        let crowd = Crowd::new(&world.rt);
        for lba in 0..reads {
            crowd.spawn(read(queue.clone(), lba));
        }
        for result in crowd.all(Span::s(100)).await {
            result.unwrap();
        }
        assert!(controller.resets() > 0);
        queue.counters().protocol_errors
    })
}

/// Garbage over the whole completion queue, repeatedly, in both phases and mostly plausible. Reads may end in
/// any way, but they end, every slot is freed, and the controller can be used afterwards.
#[test]
fn garbage_in_cq_ends_every_read() {
    let garbage: u64 = (0..30).map(sprayed).sum();
    assert_eq!(garbage, 30 * 50 * 32);
}

/// Runs one such device; returns the number of garbage entries.
fn sprayed(seed: u64) -> u64 {
    const DEPTH: u16 = 32;
    const SPRAYS: u64 = 50;
    let io = |n: u64, _: &_| match n % 3 {
        0 => Answer::Never,
        _ => Answer::After(Span::us(50)),
    };
    let traits = Traits { io: Box::new(io), ..Traits::default() };
    let world = World::with(traits, Setup { shuffle: Some(seed), ..Setup::default() });
    world.fake.lenient.set(true);
    let mut rng = Rng::for_part(seed, "sprayer");
    world.rt.block_on(async {
        let completion = match seed % 3 {
            0 => Completion::Polled,
            1 => Completion::Hybrid,
            _ => Completion::Interrupt { vector: 1 },
        };
        let small = QueueOptions { depth: DEPTH, completion, ..QueueOptions::default() };
        let (controller, queue) = world.queue(Options::default(), small).await;
        let crowd = Crowd::new(&world.rt);
        for lba in 0..100 {
            let queue = queue.clone();
            crowd.spawn(async move {
                let buffer = queue.buffer(BLOCK).unwrap();
                queue.read(Lba(lba), buffer).await.1.is_ok()
            });
        }
        for _ in 0..SPRAYS {
            world.fake.spray(1, &mut rng);
            world.fake.device().interrupt(1);
            world.rt.sleep(Span::us(rng.below(300))).await;
        }
        crowd.all(Span::s(200)).await;
        assert_eq!(queue.slots_free(), usize::from(DEPTH), "seed {seed}");
        world.fake.traits.borrow_mut().io = Box::new(|_, _| Answer::After(Span::us(1)));
        controller.reset().await.unwrap();
        read(queue, 0).await.unwrap();
    });
    SPRAYS * u64::from(DEPTH)
}

fn from_environment(key: &str, otherwise: u64) -> u64 {
    match std::env::var(key) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{key}={text}: expected a number")),
        Err(_) => otherwise,
    }
}

/// Runs one device per seed until `DOORBELL_COMPLETIONS` completions were invalid. The first seed can be set,
/// so that an interrupted run can be continued. Run by `tools/hostile`.
#[test]
#[ignore = "until DOORBELL_COMPLETIONS completions were lies"]
fn hostile_devices_until_enough() {
    let first = from_environment("DOORBELL_SEED", 1);
    let wanted = from_environment("DOORBELL_COMPLETIONS", 100_000);
    let (mut lies, mut garbage) = (0, 0);
    for seed in first.. {
        lies += forged(seed, 1000);
        garbage += sprayed(seed);
        let enough = lies + garbage >= wanted;
        if enough || seed % 200 == 0 {
            println!("{lies} forged completions, {garbage} of garbage; next seed {}", seed + 1);
        }
        if enough {
            return;
        }
    }
}

#[test]
fn all_ones_registers_mean_device_gone() {
    let io = |_, _: &_| Answer::Never;
    let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
    world.rt.block_on(async {
        let (controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        let crowd = Crowd::new(&world.rt);
        (0..10).for_each(|lba| crowd.spawn(read(queue.clone(), lba)));
        world.rt.sleep(Span::ms(1)).await;
        world.fake.device().store(registers::CSTS, u32::MAX);
        for result in crowd.all(Span::s(1)).await {
            assert_eq!(result, Err(Kind::Gone));
        }
        assert!(controller.gone().is_some());
    });
}

/// Random values of CSTS cause resets, at worst the loss of the controller.
#[test]
fn random_csts_ends_every_read() {
    for seed in 0..40 {
        let io = |n: u64, _: &_| match n % 4 {
            0 => Answer::Never,
            _ => Answer::After(Span::us(50)),
        };
        let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
        let mut rng = Rng::for_part(seed, "status");
        let (rt, device) = (world.rt.clone(), world.fake.device().clone());
        world.rt.block_on(async {
            let (controller, queue) =
                world.queue(Options::default(), QueueOptions::default()).await;
            world.rt.spawn(async move {
                loop {
                    rt.sleep(Span::ms(rng.below(2000))).await;
                    let value = match rng.below(20) {
                        0 => u32::MAX,
                        1..=10 => rng.below(4) as u32,
                        _ => rng.next_u64() as u32,
                    };
                    device.store(registers::CSTS, value);
                }
            });
            let crowd = Crowd::new(&world.rt);
            (0..50).for_each(|lba| crowd.spawn(read(queue.clone(), lba)));
            crowd.all(Span::s(600)).await;
            assert_eq!(queue.slots_free(), 128);
            let begin = world.rt.now();
            controller.shutdown().await.ok();
            assert!(world.rt.now().since(begin) < Span::s(120));
        });
    }
}

#[test]
fn event_flood_does_not_starve_host() {
    let world = World::new(Traits::default());
    let (rt, fake) = (world.rt.clone(), world.fake.clone());
    world.rt.spawn(async move {
        loop {
            rt.sleep(Span::us(1)).await;
            fake.send_event(0x0101_0000);
        }
    });
    world.rt.block_on(async {
        let (controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        world.rt.sleep(Span::ms(200)).await;
        read(queue, 0).await.unwrap();
        let (events, count) = controller.events();
        assert_eq!(events.len(), 32);
        assert!(count > 100 && count < 250, "{count}");
    });
}
