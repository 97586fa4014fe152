//! Block sizes announced by the sizing policies.

use host::BlockDevice;
use host::block::{Load, Next, Options, Setting, Sizing};
use runtime::Span;
use wire::Lba;

use wire::block::registers::{Limits, Medium};

use super::fake::Traits;
use super::world::{World, all, options};

/// Runs `reads` reads at once; returns the sizes of the device's blocks.
fn sizes(sizing: Sizing, reads: usize, bytes: usize) -> Vec<u32> {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (_driver, disk) = world.start(Options { sizing, ..options() }).await;
        let reads = (0..reads).map(|n| {
            let disk = &disk;
            async move { disk.read(Lba(n as u64), disk.buffer(bytes).unwrap()).await.1 }
        });
        all(reads.collect()).await.0.into_iter().for_each(|end| end.expect("a read"));
    });
    world.fake.sizes.borrow().clone()
}

/// Entries of the ring of a driver that asks for one, over a device of blocks of at most 32, in a ring of at
/// most 4096.
fn ring_over(traits: Traits) -> u32 {
    let limits = Limits::new().with_entries_log2(12).with_block_max(32).with_group(32);
    let world = World::new(Traits { limits, ..traits });
    world.rt.block_on(async {
        world.start(Options { depth: 1, ..options() }).await;
    });
    world.fake.entries.get()
}

/// Every register of the device's medium has its effect on the ring: two largest blocks or four, by the time
/// of a block on the link (64 us) and with the medium.
#[test]
fn ring_follows_each_register_of_the_medium() {
    let flash = |channels, technology| {
        Medium::new().with_block_log2(9).with_channels(channels).with_technology(technology)
    };
    let slow = || Traits {
        medium: flash(8, 3),
        blocks: 1 << 20,
        read_ns: 50_000,
        write_ns: 600_000,
        ..Traits::default()
    };
    let quick = |read_ns, write_ns| Traits { read_ns, write_ns, ..slow() };
    assert_eq!(ring_over(slow()), 128);
    assert_eq!(ring_over(Traits { medium: flash(8, 0), ..slow() }), 64, "MEDIUM: technology");
    assert_eq!(ring_over(quick(100, 100)), 64, "READ_NS and WRITE_NS");
    assert_eq!(ring_over(quick(50_000, 100)), 128, "READ_NS");
    assert_eq!(ring_over(quick(100, 50_000)), 128, "WRITE_NS");
    let narrow = |channels| Traits { medium: flash(channels, 3), ..quick(10_000, 10_000) };
    assert_eq!((ring_over(narrow(1)), ring_over(narrow(32))), (128, 64), "MEDIUM: channels");
    assert_eq!(ring_over(Traits { blocks: 64 * 8, ..slow() }), 64, "CAPACITY, low word");
    assert_eq!(ring_over(Traits { blocks: 1 << 32, ..slow() }), 128, "CAPACITY, high word");
}

/// The first descriptor finds the device idle and is sent alone; then all pending ones, up to the largest
/// block.
#[test]
fn adaptive_driver_announces_pending_descriptors() {
    assert_eq!(sizes(Sizing::adaptive(), 1, 512), [1]);
    assert_eq!(sizes(Sizing::adaptive(), 4, 512), [1, 3]);
    assert_eq!(sizes(Sizing::adaptive(), 12, 512), [1, 4, 4, 3]);
}

#[test]
fn fixed_driver_announces_full_blocks_then_rest() {
    let sizing = Sizing::fixed(3, Span::us(50));
    assert_eq!(sizes(sizing, 9, 512), [3, 3, 3]);
    assert_eq!(sizes(sizing, 10, 512), [3, 3, 3, 1]);
}

/// It is worth waiting for the remaining parts of one request.
#[test]
fn gathering_announces_whole_request() {
    assert_eq!(sizes(Sizing::adaptive(), 1, 12288), [1, 2]);
    assert_eq!(sizes(Sizing::gathering(), 1, 12288), [3]);
    assert_eq!(sizes(Sizing::gathering(), 1, 512), [1]);
}

/// A custom rule: pairs.
#[test]
fn custom_sizing_rule_is_used() {
    fn pairs(load: &Load, setting: Setting) -> Next {
        match load.pending {
            0..2 if load.waited < setting.linger => Next::Wait(Some(setting.linger)),
            pending => Next::Send(pending.min(2)),
        }
    }
    let setting = Setting { size: 2, linger: Span::us(30) };
    assert_eq!(sizes(Sizing { rule: pairs, setting }, 7, 512), [2, 2, 2, 1]);
    // An invalid size is limited to the pending descriptors.
    fn too_many(_: &Load, _: Setting) -> Next {
        Next::Send(u32::MAX)
    }
    assert_eq!(sizes(Sizing { rule: too_many, setting }, 6, 512), [1, 4, 1]);
}
