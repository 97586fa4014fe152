//! Descriptor blocks that keep to the protocol.

use device::block::Options;
use runtime::Span;
use wire::block::descriptor::{Command, Descriptor, Operation, PAGE_BYTES, Status};
use wire::block::registers::{ID, LIMITS, Limits, MAGIC};

use bus::HostPort;

use crate::raw::block::{ENTRIES, World, options};

#[test]
fn registers_report_magic_limits_and_ready() {
    World::run(options(), async |world| {
        assert_eq!(world.host.read32(ID).await, MAGIC);
        let limits = Limits::from_bits(world.host.read32(LIMITS).await);
        assert_eq!((limits.entries_log2(), limits.block_max(), limits.group()), (4, 4, 4));
        let status = world.enable(0).await;
        assert!(status.ready() && status.violation() == 0);
        assert!(!world.disable().await.ready());
    });
}

/// Blocks of all sizes, over several turns of the ring and past the wrap of the counts.
#[test]
fn blocks_of_all_sizes_wrap_ring_and_count() {
    for group in [1, 2, 3, 4] {
        for ahead in [0, 2, 4] {
            World::run(Options { group, ahead, ..options() }, async |world| {
                let mut first = u32::MAX - 20;
                world.enable(first).await;
                for (turn, size) in (1..).zip([1, 4, 3, 2, 4, 4, 1, 3, 3, 4, 2]) {
                    world.store_reads(first, size);
                    world.announce(first, size as u16, turn);
                    for count in (0..size).map(|n| first.wrapping_add(n)) {
                        let back = world.back(count).await;
                        let page = 8 * u64::from(count % 64);
                        let asked = world.command(count, Operation::Read, page, PAGE_BYTES);
                        assert_eq!(back.answers(count, &asked), Some(Status::DONE));
                        world.store(count, &Descriptor::default());
                    }
                    first = first.wrapping_add(size);
                    world.rt.sleep(Span::us(2)).await;
                }
                assert_eq!(world.violation().await, None);
                let counts = world.front.counts();
                assert_eq!((counts.blocks, counts.commands), (11, 31));
            });
        }
    }
}

/// The host chooses the first count, so a block may span the wrap at 2^32 for any number of slots.
#[test]
fn block_spans_count_wrap_with_any_number_of_slots() {
    for (block_max, ahead) in [(1, 0), (2, 1), (3, 0), (3, 2), (4, 3)] {
        let options = Options { block_max, group: block_max, ahead, ..options() };
        World::run(options, async |world| {
            let size = u32::from(block_max);
            for before in 0..size {
                let first = before.wrapping_neg();
                world.enable(first).await;
                world.store_reads(first, size);
                world.announce(first, size as u16, 1);
                for count in (0..size).map(|n| first.wrapping_add(n)) {
                    let asked = world.command(
                        count,
                        Operation::Read,
                        8 * u64::from(count % 64),
                        PAGE_BYTES,
                    );
                    assert_eq!(world.back(count).await.answers(count, &asked), Some(Status::DONE));
                    world.store(count, &Descriptor::default());
                }
                world.disable().await;
            }
        });
    }
}

/// Descriptors return in groups: the whole block at once, or each one as soon as it has ended.
#[test]
fn descriptors_return_per_configured_group() {
    for (group, returns) in [(1, 4), (2, 2), (3, 2), (4, 1)] {
        for second_engine in [false, true] {
            World::run(Options { group, second_engine, ..options() }, async |world| {
                world.enable(0).await;
                world.store_reads(0, 4);
                world.announce(0, 4, 1);
                let mut seen = Vec::new();
                while seen.last() != Some(&4) {
                    let back = (0..4).filter(|count| world.is_back(*count)).count();
                    if seen.last() != Some(&back) {
                        seen.push(back);
                    }
                    world.rt.sleep(Span::ns(10)).await;
                }
                assert_eq!(seen.len() as u64, returns + 1, "{group}: {seen:?}");
                assert_eq!(world.front.counts().returns, returns);
            });
        }
    }
}

/// A status belongs to its own descriptor, and a padded transfer changes only the addressed blocks.
#[test]
fn status_and_data_belong_to_own_descriptor() {
    World::run(options(), async |world| {
        world.enable(0).await;
        world.medium.bad.set(Some(40));
        world.pages.copy_in(0, &[7; 4096]);
        let commands = [
            world.command(0, Operation::Write { fua: true }, 3, 512),
            world.command(1, Operation::Read, 40, 512),
            world.command(2, Operation::Read, 1023, 1024),
            Command { at: wire::BusAddr(0x10), ..world.command(3, Operation::Read, 0, 512) },
        ];
        for (count, command) in (0..).zip(&commands) {
            world.store(count, &Descriptor::command(count, command));
        }
        world.announce(0, 4, 1);
        let wanted = [Status::DONE, Status::UNREADABLE, Status::OUT_OF_RANGE, Status::BAD_ADDRESS];
        for (count, (command, status)) in (0..).zip(commands.iter().zip(wanted)) {
            assert_eq!(world.back(count).await.answers(count, command), Some(status), "{count}");
        }
        let flush = world.command(4, Operation::Flush, 0, 0);
        let read = world.command(5, Operation::Read, 2, 1536);
        world.store(4, &Descriptor::command(4, &flush));
        world.store(5, &Descriptor::command(5, &read));
        world.announce(4, 2, 2);
        world.back(5).await;
        let mut page = [1; 1536];
        world.pages.copy_out(5 * 4096, &mut page);
        // One block was written, and its neighbours were not.
        assert!(page[..512].iter().chain(&page[1024..]).all(|byte| *byte == 0));
        assert!(page[512..1024].iter().all(|byte| *byte == 7));
    });
}

/// Descriptors stored behind a block are executed before they are announced, and returned only afterwards.
#[test]
fn look_ahead_executes_before_announce_returns_after() {
    World::run(Options { ahead: 3, ..options() }, async |world| {
        world.enable(0).await;
        world.store_reads(0, 5);
        world.announce(0, 2, 1);
        world.back(1).await;
        world.rt.sleep(Span::us(50)).await;
        assert!(!world.is_back(2) && world.front.counts().ahead == 3);
        let begun = world.rt.now();
        world.announce(2, 3, 2);
        world.back(4).await;
        // The commands ended during the sleep: neither medium nor data remain to wait for.
        let quick = world.rt.now().since(begun);
        assert!(quick < Span::us(1), "{quick}");
        assert_eq!(world.front.counts().commands, 5);
    });
}

/// Disabled at any moment, the device clears READY only when it writes to host memory no more.
#[test]
fn no_dma_write_after_disable() {
    for at in (0..60).map(|n| Span::ns(100 * n)) {
        World::run(Options { group: 1, ahead: 2, ..options() }, async |world| {
            world.enable(0).await;
            world.store_reads(0, 6);
            world.announce(0, 4, 1);
            world.rt.sleep(at).await;
            world.disable().await;
            world.ring.copy_in(0, &[0xee; 8 * 32]);
            world.pages.copy_in(0, &[0xee; (ENTRIES * 4096) as usize]);
            world.rt.sleep(Span::us(50)).await;
            let mut seen = vec![0; (ENTRIES * 4096) as usize];
            world.pages.copy_out(0, &mut seen);
            assert!(seen.iter().all(|byte| *byte == 0xee), "stopped at {at}");
            let mut ring = [0; 8 * 32];
            world.ring.copy_out(0, &mut ring);
            assert!(ring.iter().all(|byte| *byte == 0xee), "stopped at {at}");
            // The device works again after it is enabled.
            world.ring.zero();
            world.enable(3).await;
            world.store_reads(3, 2);
            world.announce(3, 2, 1);
            world.back(4).await;
        });
    }
}
