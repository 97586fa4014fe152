//! Packets and tags: every alignment, every order, both completion modes.

use std::cell::RefCell;
use std::rc::Rc;

use host::BlockDevice;
use host::dcx::QueueOptions;
use runtime::{Rng, Span};
use wire::dcx::registers::Grain;

use super::fake::{Answer, Traits};
use super::world::{COMPLETIONS, World, options};

#[test]
fn read_into_any_dword_aligned_buffer() {
    for packet_bytes in [None, Some(128), Some(256)] {
        for completion in COMPLETIONS {
            let world = World::new(packet_bytes, Traits::default());
            world.rt.block_on(async {
                let options = QueueOptions { completion, ..options(2) };
                let (_driver, queue) = world.queue(options).await;
                let whole = queue.buffer(4 * 4096).unwrap();
                for off in (0..4096).step_by(4) {
                    // One block; in some cases several pages.
                    let long = off % 512 == 4 || off > 4000;
                    let bytes = if long { 8192 } else { 512 };
                    let part = whole.part(off, bytes);
                    whole.part(off + bytes, 16).copy_in(0, &[0xee; 16]);
                    drop(world.read_into(&queue, off as u64 % 100, part).await);
                    let mut behind = [0; 16];
                    whole.part(off + bytes, 16).copy_out(0, &mut behind);
                    assert_eq!(behind, [0xee; 16], "{off}");
                }
                let counters = queue.counters();
                assert_eq!((counters.timeouts, counters.gave_up, counters.reports), (0, 0, 0));
            });
        }
    }
}

/// Every order of four packets; the read ends with the last one, not before.
#[test]
fn read_ends_with_last_packet_in_any_order() {
    let gap = Span::us(2);
    for completion in COMPLETIONS {
        let order = Rc::new(RefCell::new(Vec::new()));
        let asked = order.clone();
        let io = move |_, _: &_| Answer::Order(asked.borrow().clone(), gap);
        let world = World::new(Some(128), Traits { io: Box::new(io), ..Traits::default() });
        world.rt.block_on(async {
            let options = QueueOptions { completion, ..options(1) };
            let (_driver, queue) = world.queue(options).await;
            for code in 0..256 {
                let places: Vec<usize> = (0..4).map(|digit| code >> (2 * digit) & 3).collect();
                if (0..4).any(|place| !places.contains(&place)) {
                    continue;
                }
                order.replace(places);
                let begin = world.rt.now();
                drop(world.read(&queue, 5, 512).await);
                assert!(world.rt.now().since(begin) > gap * 3, "before the last has landed");
            }
            assert_eq!(queue.counters().arrivals, 24);
        });
    }
}

/// A device whose own writes overtake one another has this in a register; on a link that keeps their order too,
/// the read ends with the last packet.
#[test]
fn device_packet_size_gives_tags_per_packet_on_ordered_link() {
    let gap = Span::us(2);
    let asked = Grain::new().with_packet_log2(7).into_bits();
    for (grain, waits) in [(asked, true), (0, false)] {
        let io = move |_, _: &_| Answer::Order(vec![3, 0, 2, 1], gap);
        let world = World::new(None, Traits { grain, io: Box::new(io), ..Traits::default() });
        world.rt.block_on(async {
            let (_driver, queue) = world.queue(options(1)).await;
            let begin = world.rt.now();
            drop(world.read(&queue, 5, 512).await);
            let took = world.rt.now().since(begin);
            assert_eq!(took > gap * 3, waits, "{took}");
        });
    }
}

/// Long unaligned reads, many in flight, with shuffled packets.
#[test]
fn concurrent_reads_with_shuffled_packets() {
    for packet_bytes in [128, 256] {
        for seed in 0..8 {
            let mut rng = Rng::for_part(seed, "orders");
            let io = move |_, _: &_| {
                let mut order: Vec<usize> = (0..65).collect();
                for last in (1..order.len()).rev() {
                    order.swap(last, rng.below(last as u64 + 1) as usize);
                }
                Answer::Order(order, Span::ns(rng.below(300)))
            };
            let traits = Traits { io: Box::new(io), ..Traits::default() };
            let world = Rc::new(World::new(Some(packet_bytes), traits));
            let rt = world.rt.clone();
            rt.block_on(async {
                let (_driver, queue) = world.queue(options(16)).await;
                let done = Rc::new(RefCell::new(0));
                for task in 0..16u64 {
                    let (world, queue, done) = (world.clone(), queue.clone(), done.clone());
                    rt.spawn(async move {
                        let mut rng = Rng::for_part(seed * 100 + task, "reader");
                        for _ in 0..20 {
                            let whole = queue.buffer(3 * 4096).unwrap();
                            let blocks = 1 + rng.below(16) as usize;
                            let part = whole.part(4 * rng.below(1024) as usize, 512 * blocks);
                            drop(world.read_into(&queue, rng.below(4000), part).await);
                        }
                        *done.borrow_mut() += 1;
                    });
                }
                while *done.borrow() < 16 {
                    rt.sleep(Span::us(50)).await;
                }
                let counters = queue.counters();
                assert_eq!((counters.arrivals, counters.gave_up), (320, 0), "seed {seed}");
            });
            rt.drop_tasks();
        }
    }
}

#[test]
fn write_ends_with_report_and_reads_back() {
    for completion in COMPLETIONS {
        let world = World::new(Some(128), Traits::default());
        world.rt.block_on(async {
            let (_driver, queue) = world.queue(QueueOptions { completion, ..options(4) }).await;
            for lba in 0..300u64 {
                let from = queue.buffer(1024).unwrap();
                let data: Vec<u8> = (0..1024).map(|i| (lba * 7 + i) as u8 | 1).collect();
                from.copy_in(0, &data);
                queue.write(wire::Lba(lba), from, lba % 2 == 0).await.1.unwrap();
                assert!(world.fake.data(wire::Lba(lba), 2) == data);
                drop(world.read(&queue, lba, 1024).await);
            }
            assert_eq!(world.beneath.reads.get(), 0);
        });
    }
}
