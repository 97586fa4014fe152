//! Which blocks the sizing policies announce.

use host::BlockDevice;
use host::block::{Load, Next, Options, Setting, Sizing};
use runtime::Span;
use wire::Lba;

use super::fake::Traits;
use super::world::{World, all, options};

/// So many reads at once; gives the sizes of the blocks that came.
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

/// The first descriptor finds the device idle and goes alone; then what has gathered, and never more than
/// the largest.
#[test]
fn the_adaptive_driver_sends_what_there_is() {
    assert_eq!(sizes(Sizing::adaptive(), 1, 512), [1]);
    assert_eq!(sizes(Sizing::adaptive(), 4, 512), [1, 3]);
    assert_eq!(sizes(Sizing::adaptive(), 12, 512), [1, 4, 4, 3]);
}

#[test]
fn the_static_driver_sends_full_blocks_and_at_last_what_is_left() {
    let sizing = Sizing::fixed(3, Span::us(50));
    assert_eq!(sizes(sizing, 9, 512), [3, 3, 3]);
    assert_eq!(sizes(sizing, 10, 512), [3, 3, 3, 1]);
}

/// Parts of one request that are about to be stored are worth their wait.
#[test]
fn gathering_sends_a_request_together() {
    assert_eq!(sizes(Sizing::adaptive(), 1, 12288), [1, 2]);
    assert_eq!(sizes(Sizing::gathering(), 1, 12288), [3]);
    assert_eq!(sizes(Sizing::gathering(), 1, 512), [1]);
}

/// A rule of somebody else's: pairs.
#[test]
fn a_policy_can_be_replaced() {
    fn pairs(load: &Load, setting: Setting) -> Next {
        match load.pending {
            0..2 if load.waited < setting.linger => Next::Wait(Some(setting.linger)),
            pending => Next::Send(pending.min(2)),
        }
    }
    let setting = Setting { size: 2, linger: Span::us(30) };
    assert_eq!(sizes(Sizing { rule: pairs, setting }, 7, 512), [2, 2, 2, 1]);
    // What makes no sense is put right: nobody announces more than there is.
    fn too_many(_: &Load, _: Setting) -> Next {
        Next::Send(u32::MAX)
    }
    assert_eq!(sizes(Sizing { rule: too_many, setting }, 6, 512), [1, 4, 1]);
}
