//! Controller reset: NVMe base 2.0, 3.7.2, and what is in flight.

use runtime::Span;
use wire::nvme::admin;
use wire::nvme::io;
use wire::nvme::registers::{CC, Csts};
use wire::nvme::status::Status;
use wire::{Lba, QueueId};

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, SILENCE, Settings, pattern, sq_of};

/// After RDY reads 0 host memory stays unchanged, with commands in flight at any stage.
#[test]
fn no_dma_write_after_controller_reset() {
    for (delay_ns, shuffle) in (0..60).map(|step| (step * 331, None)).chain([(1_000, Some(1))]) {
        let setup = Setup { shuffle, ..Setup::default() };
        setup.run(async |mut w: World| {
            let mut pair = w.raw.up().await;
            let at = w.raw.place(1 << 20, 4096);
            w.medium.poke(0, &pattern(1, 1 << 20));
            let data = w.raw.data(at, 1 << 20);
            for blocks in [2048, 1, 8, 300, 1500, 2, 2048, 64] {
                let sqe = io::read(w.raw.cid(), NS, Lba(0), blocks, false, data);
                w.raw.submit(&mut pair.sq, &sqe);
                let sqe = io::write(w.raw.cid(), NS, Lba(9_000), blocks, false, data);
                w.raw.submit(&mut pair.sq, &sqe);
                w.raw.submit_admin(&admin::async_event_request(w.raw.cid()));
            }
            w.rt.sleep(Span::ns(delay_ns)).await;
            w.raw.disable().await;
            let (memory, interrupts) = (w.raw.everything(), w.log.entries().len());
            w.rt.sleep(Span::s(1)).await;
            assert!(
                w.raw.everything() == memory,
                "host memory changed {delay_ns} ns into the work"
            );
            let later: Vec<_> = w.log.entries().split_off(interrupts);
            assert!(later.iter().all(|e| e.what != "interrupt"), "{later:?}");
            works(&mut w).await;
        });
    }
}

/// The controller after a reset: no queue, feature, event or slot of the previous enable is left.
async fn works(w: &mut World) {
    w.raw.forget_places();
    let mut pair = w.raw.up().await;
    let at = w.raw.place(8192, 4096);
    let data = pattern(7, 4096);
    w.raw.memory.write(at, &data).unwrap();
    let sqe = io::write(w.raw.cid(), NS, Lba(50_000), 8, false, w.raw.data(at, 4096));
    assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
    w.raw.memory.zero(at, 4096).unwrap();
    let sqe = io::read(w.raw.cid(), NS, Lba(50_000), 8, false, w.raw.data(at, 4096));
    assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
    assert_eq!(w.raw.bytes(at, 4096), data);
    assert_eq!(w.raw.next_within(&mut pair.cq, SILENCE).await, None);
    assert_eq!(w.raw.next_admin(SILENCE).await, None);
    // All slots are free: as many commands as there are slots run at once.
    w.medium.close();
    for _ in 0..60 {
        w.raw.submit(&mut pair.sq, &io::flush(w.raw.cid(), NS));
    }
    w.rt.sleep(SILENCE).await;
    assert_eq!(w.medium.waiting.get(), 60);
    w.medium.open();
    for _ in 0..60 {
        assert_eq!(w.raw.next(&mut pair.cq).await.status(), Status::SUCCESS);
    }
}

/// A reset arrives during a fetch of entries, and new ones are at the same address when the fetch returns.
#[test]
fn reset_discards_entries_of_pending_fetch() {
    for host_read in [0, 1, 5, 50].map(Span::us) {
        for delay in [0, 1, 10, 40].map(Span::us) {
            let setup = Setup { host_read, ..Setup::default() };
            setup.run(async |mut w: World| {
                w.raw.enable(Settings::default()).await;
                let admin_queues = (w.raw.admin.sq.at, w.raw.admin.cq.at);
                for _ in 0..3 {
                    w.raw.submit_admin(&admin::get_feature(w.raw.cid(), 1));
                }
                w.rt.sleep(delay).await;
                w.raw.disable().await;
                w.raw.enable(Settings { queues: Some(admin_queues), ..Settings::default() }).await;
                for _ in 0..5 {
                    let sqe = admin::get_feature(w.raw.cid(), 6);
                    let cqe = w.raw.admin(&sqe).await;
                    assert_eq!((cqe.status(), cqe.dw0.get()), (Status::SUCCESS, 1));
                }
                assert_eq!(w.raw.next_admin(SILENCE).await, None);
            });
        }
    }
}

/// A reset while commands wait for a CQ entry, for the medium, for other commands, or for a deletion.
#[test]
fn reset_ends_all_waiting_commands() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        w.raw.ask_for_queues().await;
        w.raw.create_cq(1, 2).await;
        let mut full = w.raw.create_sq(1, 64, 1).await;
        let mut held = w.raw.create_pair(2, 64).await;
        for _ in 0..20 {
            w.raw.submit(&mut full, &io::flush(w.raw.cid(), NS));
        }
        w.rt.sleep(SILENCE).await;
        w.medium.close();
        for _ in 0..20 {
            w.raw.submit(&mut held.sq, &io::flush(w.raw.cid(), NS));
        }
        w.rt.sleep(SILENCE).await;
        w.raw.submit_admin(&admin::delete_sq(w.raw.cid(), QueueId(1)));
        w.rt.sleep(SILENCE).await;
        w.raw.disable().await;
        assert_eq!(w.medium.waiting.get(), 0, "nothing of the old life waits on the medium");
        w.medium.open();
        works(&mut w).await;
    });
}

/// EN cleared and set before the controller could clear RDY: it ends in one state or the other.
#[test]
fn en_toggled_before_rdy_clears_settles_in_one_state() {
    for gap in [0, 1, 100, 1_000].map(Span::ns) {
        on_a_bench(async |mut w: World| {
            let mut pair = w.raw.up().await;
            let at = w.raw.place(1 << 20, 4096);
            let data = w.raw.data(at, 1 << 20);
            let on = Settings::default().cc.with_en(true).into_bits();
            for _ in 0..5 {
                let sqe = io::read(w.raw.cid(), NS, Lba(0), 2048, false, data);
                w.raw.submit(&mut pair.sq, &sqe);
                w.raw.set(CC, 0);
                w.rt.sleep(gap).await;
                w.raw.set(CC, on);
                w.rt.sleep(gap).await;
            }
            w.raw.until_csts("settling", |csts| csts == Csts::new().with_rdy(true)).await;
            w.raw.disable().await;
            works(&mut w).await;
        });
    }
}

/// A queue outside host memory is fatal when it is used, until the next reset.
#[test]
fn queue_outside_host_memory_sets_cfs_until_reset() {
    on_a_bench(async |mut w: World| {
        for which in ["submission", "completion", "admin"] {
            w.raw.forget_places();
            w.raw.enable(Settings::default()).await;
            w.raw.ask_for_queues().await;
            let outside = wire::BusAddr(0x7_0000_0000);
            if which == "admin" {
                w.raw.disable().await;
                let inside = w.raw.place(4096, 4096);
                let queues = Some((outside, inside));
                w.raw.start(Settings { queues, ..Settings::default() });
                w.raw.until_csts("ready", |csts| csts.rdy()).await;
                w.raw.ring(&crate::raw::nvme::Sq { tail: 1, ..w.raw.admin.sq });
            } else {
                let cq_at = if which == "completion" { outside } else { w.raw.place(4096, 4096) };
                let sq_at = if which == "submission" { outside } else { w.raw.place(4096, 4096) };
                let cid = w.raw.cid();
                w.raw.admin_ok(&admin::create_cq(cid, cq_at, crate::raw::nvme::cq_of(1, 16))).await;
                w.raw.admin_ok(&admin::create_sq(w.raw.cid(), sq_at, sq_of(1, 16, 1))).await;
                let sq = crate::raw::nvme::Sq::new(QueueId(1), sq_at, 16);
                w.raw.ring(&crate::raw::nvme::Sq { tail: 3, ..sq });
            }
            w.raw.until_csts(which, |csts| csts.cfs()).await;
            w.raw.disable().await;
            assert_eq!(w.raw.csts().await, Csts::new(), "{which}");
            works(&mut w).await;
            w.raw.disable().await;
        }
    });
}
