//! Malicious host: the device neither panics nor hangs, reports the violation that it stopped at, and works
//! again after it is enabled.

use bus::HostPort;
use device::block::Options;
use proptest::prelude::*;
use runtime::{Rng, Span};
use wire::block::descriptor::{Descriptor, Status};
use wire::block::registers::{ANNOUNCEMENT, BLOCK, CONTROL, RING, SHAPE, Violation};
use zerocopy::FromBytes;

use crate::raw::block::{ENTRIES, World, options};

/// A well-formed block is served after the device is enabled again.
async fn is_served(world: &World) {
    world.disable().await;
    world.ring.zero();
    assert_eq!(world.enable(5).await.violation(), 0);
    world.store_reads(5, 3);
    world.announce(5, 3, 1);
    world.back(7).await;
}

#[test]
fn each_violation_is_reported_by_code() {
    type Breach = fn(&World);
    let breaches: [(Violation, Breach); 9] = [
        (Violation::Size, |world| world.announce(0, 0, 1)),
        (Violation::Size, |world| world.announce(0, 5, 1)),
        (Violation::Offset, |world| world.announce(1, 2, 1)),
        (Violation::Turn, |world| world.announce(0, 2, 2)),
        // Not stored; already answered; wrong count.
        (Violation::Owner, |world| world.announce(0, 3, 1)),
        (Violation::Owner, |world| {
            world.store(1, &world.descriptor(1).answered(Status::DONE));
            world.announce(0, 2, 1);
        }),
        (Violation::Count, |world| {
            world.store(1, &world.descriptor(0));
            world.announce(0, 2, 1);
        }),
        (Violation::Count, |world| {
            world.store_reads(ENTRIES, 2);
            world.announce(0, 2, 1);
        }),
        (Violation::Owner, |world| {
            world.store(0, &Descriptor::read_from_bytes(&[0xff; 32]).unwrap());
            world.announce(0, 2, 1);
        }),
    ];
    for (violation, breach) in breaches {
        for ahead in [0, 4] {
            World::run(Options { ahead, ..options() }, async |world| {
                world.enable(0).await;
                world.store_reads(0, 2);
                breach(world);
                assert_eq!(world.violation().await, Some(violation));
                assert_eq!(world.front.counts().violations, 1);
                is_served(world).await;
            });
        }
    }
}

/// A block announced while another is in flight is not accepted as the next one.
#[test]
fn second_block_in_flight_is_turn_violation() {
    World::run(options(), async |world| {
        world.enable(0).await;
        world.store_reads(0, 4);
        world.announce(0, 2, 1);
        world.rt.sleep(Span::us(1)).await;
        world.announce(2, 2, 2);
        assert_eq!(world.violation().await, Some(Violation::Turn));
        is_served(world).await;
    });
}

#[test]
fn enable_rejects_invalid_ring_registers() {
    for (ring, entries_log2) in
        [(0x11, 3), (u64::MAX - 31, 3), (0x1_0000_0000, 1), (0x1_0000_0000, 9)]
    {
        World::run(options(), async |world| {
            let status = world.enable_at(ring, entries_log2, 0).await;
            assert_eq!(status.violation(), Violation::Registers as u8, "{ring:#x}");
            is_served(world).await;
        });
    }
    // A valid address outside host memory: reported at the first access.
    World::run(options(), async |world| {
        assert_eq!(world.enable_at(0x1000, 3, 0).await.violation(), 0);
        world.announce(0, 2, 1);
        assert_eq!(world.violation().await, Some(Violation::Unreachable));
        is_served(world).await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Random registers and descriptors at random moments.
    #[test]
    fn random_host_never_wedges_device(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let group = 1 + rng.below(4) as u8;
        let ahead = rng.below(5) as u8;
        let wanted = Options { group, ahead, second_engine: seed % 2 == 0, ..options() };
        World::run(wanted, async |world| {
            world.enable(0).await;
            let (mut first, mut turn) = (0_u32, 1_u16);
            for _ in 0..60 {
                match rng.below(8) {
                    0 => {
                        // Registers that a host can write.
                        let registers = [RING, RING + 4, SHAPE, CONTROL, ANNOUNCEMENT, BLOCK];
                        let register = registers[rng.below(6) as usize];
                        world.host.write32(register, rng.next_u64() as u32);
                    }
                    1 => {
                        let bytes: Vec<u8> = (0..32).map(|_| rng.below(256) as u8).collect();
                        let junk = Descriptor::read_from_bytes(&bytes).unwrap();
                        world.store(rng.below(8) as u32, &junk);
                    }
                    2 => world.host.write32(CONTROL, rng.below(4) as u32),
                    3 => world.host.write32(BLOCK, rng.next_u64() as u32 & 0x0003_0007),
                    _ => {
                        let size = 1 + rng.below(4) as u32;
                        world.store_reads(first, size);
                        world.announce(first, size as u16, turn);
                        first = first.wrapping_add(size);
                        turn = turn.wrapping_add(1);
                    }
                }
                world.rt.sleep(Span::ns(rng.below(8_000))).await;
            }
            is_served(world).await;
        });
    }
}
