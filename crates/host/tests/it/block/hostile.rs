//! Malicious devices: they cannot crash or hang the driver, nor answer a request with another's result.

use host::block::Options;
use host::{BlockDevice, Kind};
use proptest::prelude::*;
use runtime::{Rng, Span};
use wire::Lba;
use wire::block::descriptor::{Command, Descriptor, Operation, Status};
use zerocopy::{FromBytes, IntoBytes};

use super::fake::{Play, Traits};
use super::world::{BOUND, COMPLETIONS, World, all, options};

fn command(descriptor: &Descriptor) -> Command {
    descriptor.parse().expect("our driver makes sense")
}

/// Every kind of wrong return is detected, and a reset recovers from it.
#[test]
fn wrong_descriptor_answer_is_protocol_error() {
    type Lie = fn(u32, &Descriptor) -> Descriptor;
    let lies: [Lie; 7] = [
        |count, d| Descriptor::command(count + 1, &command(d)).answered(Status::DONE),
        |count, d| Descriptor::command(count + 16, &command(d)).answered(Status::DONE),
        |count, d| {
            let other = Command { offset: command(d).offset + 512, ..command(d) };
            Descriptor::command(count, &other).answered(Status::DONE)
        },
        |count, d| {
            let at = wire::BusAddr(command(d).at.0 + 4096);
            Descriptor::command(count, &Command { at, ..command(d) }).answered(Status::DONE)
        },
        |count, d| {
            let operation = Operation::Write { fua: true };
            Descriptor::command(count, &Command { operation, ..command(d) }).answered(Status::DONE)
        },
        // Empty: owned by the host, but no response.
        |_, _| Descriptor::default(),
        |_, _| Descriptor::read_from_bytes(&[0xff; 32]).unwrap(),
    ];
    for completion in COMPLETIONS {
        for (number, lie) in lies.into_iter().enumerate() {
            let play = move |block, first, descriptors: &[Descriptor]| match block {
                0 => Play::Writes(vec![(first, lie(first, &descriptors[0]))]),
                _ => Play::Whole(Span::us(2), Vec::new()),
            };
            let world = World::new(Traits { play: Box::new(play), ..Traits::default() });
            world.rt.block_on(async {
                let (driver, disk) = world.start(Options { completion, ..options() }).await;
                world.read(&disk, 5, 512).await;
                let counters = driver.counters();
                assert_eq!((counters.protocol_errors, counters.resets), (1, 1), "lie {number}");
            });
        }
    }
}

/// A device that writes to descriptors it does not own: empty and pending ones.
#[test]
fn write_to_unowned_descriptor_is_protocol_error() {
    for completion in COMPLETIONS {
        // An empty place after the block; a pending one that was not announced.
        for (reads, touched) in [(1, 1), (1, 3), (3, 1), (3, 2)] {
            let play = move |block, first: u32, descriptors: &[Descriptor]| match block {
                0 => {
                    let at = first + touched;
                    let mut junk = descriptors[0].answered(Status::DONE);
                    junk.as_mut_bytes()[30..].copy_from_slice(&(at as u16).to_le_bytes());
                    let answer = descriptors[0].answered(Status::DONE);
                    Play::Writes(vec![(at, junk), (first, answer)])
                }
                _ => Play::Whole(Span::us(2), Vec::new()),
            };
            let world = World::new(Traits { play: Box::new(play), ..Traits::default() });
            world.rt.block_on(async {
                let (driver, disk) = world.start(Options { completion, ..options() }).await;
                let read = |lba| {
                    let disk = &disk;
                    async move { disk.read(Lba(lba), disk.buffer(512).unwrap()).await.1 }
                };
                let ends = world.within(BOUND, all((0..reads).map(read).collect())).await.0;
                ends.into_iter().for_each(|end| end.expect("it is asked for again"));
                // The next requests use the place that was written.
                for lba in 0..20 {
                    world.read(&disk, lba, 512).await;
                }
                let counters = driver.counters();
                assert_eq!(
                    (counters.protocol_errors, counters.resets),
                    (1, 1),
                    "{reads}, {touched}"
                );
            });
        }
    }
}

/// Always wrong: the requests fail, without further damage.
#[test]
fn always_malformed_device_fails_in_bounded_time() {
    let play = |_, first, _: &[Descriptor]| Play::Writes(vec![(first, Descriptor::default())]);
    let world = World::new(Traits { play: Box::new(play), ..Traits::default() });
    world.rt.block_on(async {
        let (driver, disk) = world.start(options()).await;
        let read = disk.read(Lba(1), disk.buffer(512).unwrap());
        let end = world.within(BOUND, read).await.1;
        assert_eq!(end.map_err(|error| error.kind), Err(Kind::Reset));
        assert_eq!(driver.counters().protocol_errors, 4);
    });
}

/// Random behaviour of a malicious device.
fn turn(rng: &mut Rng, first: u32, descriptors: &[Descriptor]) -> Play {
    let junk = |rng: &mut Rng| {
        let bytes: Vec<u8> = (0..32).map(|_| rng.below(256) as u8).collect();
        Descriptor::read_from_bytes(&bytes).unwrap()
    };
    match rng.below(8) {
        0 => Play::Never,
        1 => Play::Writes((0..rng.below(6)).map(|_| (rng.below(16) as u32, junk(rng))).collect()),
        2 => Play::Each((0..descriptors.len()).rev().collect(), Span::us(1)),
        3 => {
            // Part of a block is returned correctly, then nothing more.
            let some = descriptors.len().saturating_sub(1);
            let back = (0..some).map(|n| (first + n as u32, descriptors[n].answered(Status::FULL)));
            Play::Writes(back.collect())
        }
        4 => {
            let n = rng.below(descriptors.len() as u64) as usize;
            let mut torn = descriptors[n].answered(Status::DONE);
            torn.as_mut_bytes()[rng.below(32) as usize] ^= 1 << rng.below(8);
            Play::Writes(vec![(first + n as u32, torn)])
        }
        _ => Play::Whole(Span::us(2), Vec::new()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Random device behaviour: every request ends in bounded time.
    #[test]
    fn random_device_behaviour_ends_every_request(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let play = move |_, first, descriptors: &[Descriptor]| turn(&mut rng, first, descriptors);
        let world = World::new(Traits { play: Box::new(play), ..Traits::default() });
        world.rt.block_on(async {
            let completion = COMPLETIONS[(seed % 2) as usize];
            let timeout = Span::us(200);
            let (_driver, disk) = world.start(Options { completion, timeout, ..options() }).await;
            let reads = (0..40u64).map(|n| {
                let disk = &disk;
                async move {
                    let bytes = [512, 4096, 20480][(n % 3) as usize];
                    disk.read(Lba(n * 8), disk.buffer(bytes).unwrap()).await
                }
            });
            let ends = world.within(Span::s(1), all(reads.collect())).await.0;
            for (n, (_, end)) in ends.iter().enumerate() {
                if let Err(error) = end {
                    let known = [Kind::Reset, Kind::Full, Kind::MediaFailed, Kind::DeviceFailed];
                    let refused = [Kind::OutOfRange, Kind::Refused];
                    assert!(known.contains(&error.kind) || refused.contains(&error.kind), "{n}: {error}");
                }
            }
            assert_eq!(disk.requests(), 0);
        });
    }
}
