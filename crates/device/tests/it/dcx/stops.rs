//! Queues disabled and enabled with work in flight: once STATUS is 0, nothing reaches host memory, and each
//! block of the medium holds either its new or its old data.

use bus::HostPort;
use runtime::Span;
use wire::Lba;
use wire::dcx::command::{Access, Command};
use wire::dcx::registers::Control;

use crate::raw::dcx::pattern;
use crate::raw::dcx::world::{Setup, World};

fn worlds() -> [Setup; 4] {
    let slow = Setup { host_read: Span::us(20), ..Setup::default() };
    let mut few = Setup::disordered();
    few.options.slots = 4;
    [Setup::default(), Setup::disordered(), slow, few]
}

/// Disable at every moment of the work, in steps of 97 ns.
#[test]
fn no_dma_write_after_status_is_0() {
    for (number, setup) in worlds().into_iter().enumerate() {
        for shuffle in [None, Some(5)] {
            let setup = Setup { shuffle, ..setup.clone() };
            setup.run(async |w: World| {
                let control = Control::new().with_signals(true).with_may_sleep(number == 2);
                let mut ring = w.raw.ring(0, 32, Some(128));
                let here = w.raw.place(0, 4096);
                let mut arrived = 0;
                for step in 0..300u64 {
                    w.raw.free_from(here);
                    w.raw.enable(&mut ring, control).await;
                    let buffers = work(&w, &mut ring);
                    w.rt.sleep(Span::ns(step * 97)).await;
                    w.raw.disable(&ring).await;
                    let seen = w.raw.everything();
                    arrived += buffers.iter().filter(|to| w.raw.tags_left(to) == 0).count();
                    w.rt.sleep(Span::us(100)).await;
                    assert!(seen == w.raw.everything(), "world {number}, {step}: something landed");
                }
                assert!(arrived > 50, "world {number}: only {arrived} reads came to an end");
                w.raw.enable(&mut ring, control).await;
                let data = w.raw.read_now(&mut ring, 0, 8, 4096).await;
                assert!(data == w.medium.peek(0, 4096));
            });
        }
    }
}

/// Reads of several lengths, a write of unchanged data, a fence.
fn work(w: &World, ring: &mut crate::raw::dcx::Ring) -> Vec<crate::raw::dcx::Marked> {
    let mut buffers = Vec::new();
    for slot in 0..10u16 {
        let blocks = 1 + u32::from(slot) % 4 * 5;
        let to = w.raw.marked(ring, 512 * blocks, 4 * u64::from(slot));
        w.raw.read(ring, slot, slot.into(), blocks, &to);
        buffers.push(to);
        if slot == 4 {
            let from = w.raw.place(2048, 4096);
            w.raw.memory.write(from, &w.medium.peek(20, 2048)).unwrap();
            let access = Access { lba: Lba(20), bytes: 512 * 4, at: from };
            w.raw.push(ring, 99, Command::Write { access, fua: true });
            w.raw.push(ring, 0xffff, Command::Fence);
        }
    }
    buffers
}

/// A write that is cut off is wholly done or not done at all.
#[test]
fn write_cut_by_disable_is_all_or_nothing() {
    let setup = Setup { grain: Some(128), ..Setup::default() };
    setup.run(async |w: World| {
        let mut ring = w.raw.ring(0, 32, None);
        let from = w.raw.place(8192, 4096);
        let (mut done, mut not) = (0, 0);
        for step in 0..200u64 {
            let (old, new) = (w.medium.peek(100, 8192), pattern(step + 7, 8192));
            w.raw.enable(&mut ring, Control::new()).await;
            w.raw.memory.write(from, &new).unwrap();
            let access = Access { lba: Lba(100), bytes: 512 * 16, at: from };
            w.raw.push(&mut ring, 0, Command::Write { access, fua: false });
            w.rt.sleep(Span::ns(step * 50)).await;
            w.raw.disable(&ring).await;
            let now = w.medium.peek(100, 8192);
            match now {
                now if now == new => done += 1,
                now if now == old => not += 1,
                _ => panic!("step {step}: neither the old blocks nor the new"),
            }
        }
        assert!(done > 20 && not > 20, "{done} done, {not} not");
        // Abandoned writes block no later write.
        w.raw.enable(&mut ring, Control::new()).await;
        let access = Access { lba: Lba(100), bytes: 512 * 16, at: from };
        w.raw.push(&mut ring, 0, Command::Write { access, fua: false });
        w.raw.report(&mut ring).await;
    });
}

/// Stopping one queue does not affect another.
#[test]
fn other_queues_unaffected_by_queue_disable() {
    for setup in worlds() {
        setup.run(async |w: World| {
            let (mut one, mut two) =
                (w.raw.up(0, 32, Some(128)).await, w.raw.up(1, 32, Some(128)).await);
            let here = w.raw.place(0, 4096);
            for step in 0..60u64 {
                w.raw.free_from(here);
                work(&w, &mut one);
                let to = w.raw.marked(&two, 4096, 8);
                w.raw.read(&mut two, 0, step, 8, &to);
                w.rt.sleep(Span::ns(step * 211)).await;
                w.raw.host.write32(one.group.control, 0);
                assert!(w.raw.arrived(&to).await == w.medium.peek(step, 4096));
                w.raw.disable(&one).await;
                w.raw.enable(&mut one, Control::new()).await;
            }
            assert!(w.raw.read_now(&mut one, 0, 8, 4096).await == w.medium.peek(0, 4096));
        });
    }
}
