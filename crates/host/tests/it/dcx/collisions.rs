//! Tag collisions: data that ends with the tag. Every policy returns correct data within the time bound of
//! `Queue::read`, and random tags collide at the paper's rate.

use host::dcx::{QueueOptions, Tags};
use host::nvme::Completion;
use runtime::{Rng, Span};
use wire::dcx::tag::collision_chance;

use super::fake::{BLOCK, Traits};
use super::world::{World, options};

/// Fills the device with a word per block, so that every granule ends with it.
fn full_of(world: &World, word: impl Fn(u64) -> u32) {
    let mut blocks = world.fake.blocks.borrow_mut();
    for lba in 0..64u64 {
        blocks.insert(lba, word(lba).to_le_bytes().repeat(BLOCK / 4));
    }
}

fn bound(options: &QueueOptions) -> Span {
    let each = options.read_timeout() + options.read_timeout() / 8;
    each * u64::from(options.retries + 1) + Span::us(50)
}

/// Reads all blocks; returns the longest latency.
async fn longest(world: &World, queue: &super::world::Q, bytes: usize) -> Span {
    let mut longest = Span::ZERO;
    for lba in 0..64 - (bytes / BLOCK) as u64 {
        let begin = world.rt.now();
        drop(world.read(queue, lba, bytes).await);
        longest = longest.max(world.rt.now().since(begin));
    }
    longest
}

/// One-bit tags: every second block collides at once; if both values collide, the read uses the other driver.
#[test]
fn short_tag_collisions_return_correct_data() {
    for packet_bytes in [None, Some(128)] {
        for completion in [Completion::Polled, Completion::Interrupt { vector: 2 }] {
            for bits in 1..=4u32 {
                let world = World::new(packet_bytes, Traits::default());
                // The high bits take all values; a long read contains all of them.
                full_of(&world, |lba| (lba as u32) << 28 | lba as u32);
                world.rt.block_on(async {
                    let tags = Tags::Random { bits, seed: u64::from(bits) };
                    let options = QueueOptions { tags, completion, ..options(2) };
                    let (_driver, queue) = world.queue(options).await;
                    for bytes in [512, 4096, 16 * 512] {
                        let longest = longest(&world, &queue, bytes).await;
                        assert!(longest <= bound(&options), "{bits} bits, {bytes}: {longest}");
                    }
                    let counters = queue.counters();
                    // With a tag per packet and packets of all values, only the other driver is left.
                    let hopeless = if packet_bytes.is_some() { 40 } else { 0 };
                    assert!(counters.timeouts > 10, "{bits} bits: {counters:?}");
                    assert!(counters.gave_up >= hopeless, "{bits} bits: {counters:?}");
                });
            }
        }
    }
}

/// A device whose contents end with its own tag everywhere.
#[test]
fn device_tag_in_all_data_falls_back_to_other_driver() {
    for packet_bytes in [None, Some(128), Some(256)] {
        let tag = 0xdead_beef;
        let traits = Traits { grain: 128, tag: Some((tag, 3)), ..Traits::default() };
        let world = World::new(packet_bytes, traits);
        full_of(&world, |_| tag);
        world.rt.block_on(async {
            let tags = Tags::Device { seed: 1 };
            let options = QueueOptions { tags, retries: 1, ..options(1) };
            let (_driver, queue) = world.queue(options).await;
            world.rt.sleep(Span::us(10)).await;
            assert!(longest(&world, &queue, 4096).await <= bound(&options));
            let counters = queue.counters();
            assert_eq!((counters.gave_up, counters.arrivals), (56, 0), "{counters:?}");
        });
    }
}

/// If one packet collides, the other packets' vanished tags do not end the read.
#[test]
fn collision_in_one_packet_times_out_read() {
    for packet in 0..4 {
        let traits = Traits { grain: 128, tag: Some((0xdead_beef, 3)), ..Traits::default() };
        let world = World::new(Some(128), traits);
        let mut block = super::world::pattern(5);
        block[128 * packet + 124..][..4].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
        world.fake.blocks.borrow_mut().insert(5, block);
        world.rt.block_on(async {
            let options = QueueOptions { tags: Tags::Device { seed: 1 }, retries: 0, ..options(1) };
            let (_driver, queue) = world.queue(options).await;
            world.rt.sleep(Span::us(10)).await;
            drop(world.read(&queue, 5, 512).await);
            let counters = queue.counters();
            assert_eq!((counters.timeouts, counters.gave_up), (1, 1), "packet {packet}");
        });
    }
}

/// Collision rate of random tags (Vučinić et al., section 3.1): with `n` packets that end differently, a tag
/// of `b` bits collides with probability `n / 2^b`. Ten thousand tags, drawn as the driver draws them, within
/// three standard deviations of a binomial count; one seed in 370 would miss that, and these do not.
#[test]
fn random_tag_collision_rate_matches_paper() {
    let draws = 10_000u64;
    for (bits, packets) in [(8u32, 64u64), (10, 256), (12, 256), (12, 2048), (16, 6554)] {
        // Packets end with distinct random words.
        let mut rng = Rng::for_part(1, "contents");
        let mut ends = std::collections::BTreeSet::new();
        while (ends.len() as u64) < packets {
            ends.insert(rng.below(1 << bits));
        }
        let mut collided = 0u64;
        for seed in 0..draws {
            let value = Rng::for_part(seed, "tags").next_u64();
            let tag = wire::dcx::tag::Tag::new(value, bits);
            let is_in = |end: &u64| tag.is_in((*end as u32) << (32 - bits));
            collided += u64::from(ends.iter().any(is_in));
        }
        let p = collision_chance(packets, bits);
        let (mean, deviation) = (draws as f64 * p, (draws as f64 * p * (1.0 - p)).sqrt());
        let off = (collided as f64 - mean).abs();
        assert!(off <= 3.0 * deviation, "{bits} bits, {packets}: {collided}, expected {mean}");
    }
}

/// Same through the driver: the first read of each of many queues, with 32 packets that end with different
/// values of 256.
#[test]
fn driver_timeout_rate_matches_paper() {
    let (queues, packets, bits) = (600, 32, 8);
    let mut collided = 0u64;
    for seed in 0..queues {
        let world = World::new(Some(128), Traits::default());
        let ends = (0..packets).flat_map(|packet| [0, 0, 0, packet << 24 | 1].repeat(8));
        let bytes: Vec<u8> = ends.flat_map(u32::to_le_bytes).collect();
        for (lba, block) in (0..).zip(bytes.chunks_exact(BLOCK)) {
            world.fake.blocks.borrow_mut().insert(lba, block.to_vec());
        }
        world.rt.block_on(async {
            let tags = Tags::Random { bits, seed };
            let (_driver, queue) = world.queue(QueueOptions { tags, ..options(1) }).await;
            drop(world.read(&queue, 0, 4096).await);
            collided += u64::from(queue.counters().timeouts > 0);
        });
    }
    let p = collision_chance(packets.into(), bits);
    let (mean, deviation) = (queues as f64 * p, (queues as f64 * p * (1.0 - p)).sqrt());
    let off = (collided as f64 - mean).abs();
    assert!(off <= 3.0 * deviation, "{collided} of {queues} collided, expected {mean}");
}
