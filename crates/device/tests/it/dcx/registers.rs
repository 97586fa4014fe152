//! The register block: its contents, and the handling of invalid values.

use bus::HostPort;
use wire::BusAddr;
use wire::dcx::command::Command;
use wire::dcx::registers::{Control, GRAIN, ID, LIMITS, Limits, MAGIC, Shape, Status};
use wire::dcx::report::Code;

use crate::raw::dcx::Ring;
use crate::raw::dcx::world::{Setup, World, on_a_bench};

#[test]
fn registers_report_magic_grain_and_limits() {
    for grain in [None, Some(128), Some(512)] {
        let setup = Setup { grain, ..Setup::default() };
        setup.run(async |w: World| {
            let block = w.setup.options.block;
            assert_eq!(w.raw.reg(block + ID).await, MAGIC);
            assert_eq!(w.raw.reg(block + GRAIN).await, grain.unwrap_or(0));
            let limits = Limits::from_bits(w.raw.reg(block + LIMITS).await);
            let expected = Limits::new()
                .with_queues(4)
                .with_entries_log2(8)
                .with_transfer_log2(16)
                .with_block_log2(9);
            assert_eq!(limits, expected);
        });
    }
}

/// Expects the queue to fault, and to work once its registers are valid.
async fn fails(w: &World, what: &str, ring: &Ring, shape: Option<u32>) {
    let mut bad = *ring;
    w.raw.describe(&bad);
    if let Some(shape) = shape {
        w.raw.host.write32(bad.group.shape, shape);
    }
    w.raw.host.write32(bad.group.control, Control::new().with_enable(true).into_bits());
    w.raw.until_status(&bad, what, |status| status.fault()).await;
    let status = Status::from_bits(w.raw.reg(bad.group.status).await);
    assert_eq!(status, Status::new().with_ready(true).with_fault(true), "{what}");
    // A command for a faulted queue is ignored.
    if w.raw.memory.holds(bad.commands, 64) && bad.commands.0.is_multiple_of(4) {
        w.raw.push(&mut bad, 0, Command::Fence);
    }
    w.raw.disable(&bad).await;
    let mut good = w.raw.up(ring.number, 16, Some(128)).await;
    assert!(w.raw.read_now(&mut good, 3, 8, 4096).await == w.medium.peek(3, 4096), "{what}");
    w.raw.disable(&good).await;
}

#[test]
fn invalid_queue_registers_fault_that_queue_only() {
    on_a_bench(async |w: World| {
        let mut other = w.raw.up(2, 16, None).await;
        let ring = w.raw.ring(1, 16, Some(128));
        let here = w.raw.place(0, 4096);
        let end = w.raw.memory.base().0 + w.raw.memory.bytes() as u64;
        let outside = [0, 0x1000, end, end + (1 << 30), !0 << 6, !0 << 30];
        type Put = fn(&mut Ring, BusAddr);
        let rings: [(&str, Put); 2] = [
            ("a command ring", |ring, at| ring.commands = at),
            ("a notice", |ring, at| ring.notice = at),
        ];
        for (what, put) in rings {
            for at in outside.into_iter().chain([ring.commands.0 + 32, ring.commands.0 + 4]) {
                let mut bad = ring;
                put(&mut bad, BusAddr(at));
                fails(&w, &format!("{what} at {at:#x}"), &bad, None).await;
                w.raw.free_from(here);
            }
        }
        for (entries_log2, packet_log2) in [(0, 7), (9, 7), (255, 7), (4, 1), (4, 6), (4, 13)] {
            let shape = Shape::new().with_entries_log2(entries_log2).with_packet_log2(packet_log2);
            fails(&w, &format!("{shape:?}"), &ring, Some(shape.into_bits())).await;
            w.raw.free_from(here);
        }
        assert!(w.raw.read_now(&mut other, 1, 1, 512).await == w.medium.peek(1, 512));
    });
}

/// An unreachable report ring is detected at the first report.
#[test]
fn unreachable_report_ring_faults_at_first_report() {
    on_a_bench(async |w: World| {
        let end = w.raw.memory.base().0 + w.raw.memory.bytes() as u64;
        let mut ring = w.raw.ring(0, 16, None);
        ring.reports = BusAddr(end);
        w.raw.enable(&mut ring, Control::new()).await;
        assert!(w.raw.read_now(&mut ring, 1, 1, 512).await == w.medium.peek(1, 512));
        w.raw.push(&mut ring, 0, Command::Fence);
        w.raw.until_status(&ring, "a fence", |status| status.fault()).await;
        w.raw.disable(&ring).await;
        let mut ring = w.raw.up(0, 16, None).await;
        w.raw.fence(&mut ring).await;
    });
}

/// Writes to read-only registers and spurious doorbells have no effect.
#[test]
fn spurious_doorbell_and_control_writes_are_ignored() {
    on_a_bench(async |w: World| {
        let mut ring = w.raw.up(0, 16, None).await;
        for value in [1, 7, u32::MAX, 0] {
            w.raw.host.write32(ring.group.doorbell, value);
            assert!(w.raw.read_now(&mut ring, 1, 1, 512).await == w.medium.peek(1, 512));
        }
        // Changed CONTROL bits do not affect a queue that is enabled already.
        let control = Control::new().with_enable(true).with_may_sleep(true).with_signals(true);
        w.raw.host.write32(ring.group.control, control.into_bits());
        w.raw.fence(&mut ring).await;
        assert_eq!(w.witness.lives.get(), 1);
    });
}

#[test]
fn queue_survives_repeated_enable_and_disable() {
    on_a_bench(async |w: World| {
        let mut ring = w.raw.ring(3, 2, Some(128));
        for round in 0..50u64 {
            w.raw.enable(&mut ring, Control::new()).await;
            for _ in 0..round % 5 {
                assert!(
                    w.raw.read_now(&mut ring, round, 1, 512).await == w.medium.peek(round, 512)
                );
            }
            w.raw.fence(&mut ring).await;
            w.raw.disable(&ring).await;
        }
        assert_eq!((w.witness.lives.get(), w.witness.reported(Code::DONE)), (50, 50));
    });
}
