//! Registers: NVMe base 2.0, 3.1.3, 3.5 and 3.6.

use wire::nvme::admin;
use wire::nvme::registers::{
    ACQ, AQA, ASQ, Aqa, CC, CSTS, Cap, Cc, Csts, INTMC, INTMS, VERSION_1_4, VS,
};
use wire::nvme::status::Status;
use wire::{BusAddr, Nsid};

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{SILENCE, Settings, pattern};

/// 3.1.3.1 and 3.1.3.2.
#[test]
fn cap_reports_controller_limits() {
    on_a_bench(async |w: World| {
        let cap = w.raw.cap().await;
        assert_eq!(cap.queue_entries_max(), w.setup.options.queue_entries_max);
        assert!(cap.cqr(), "queues are contiguous");
        assert_eq!((cap.ams(), cap.dstrd(), cap.nssrs()), (Cap::AMS_WEIGHTED, 0, false));
        assert_eq!(cap.css(), Cap::CSS_NVM);
        assert_eq!((cap.mpsmin(), cap.mpsmax()), (0, 4));
        assert!(cap.timeout_ms() > 0);
        assert_eq!(w.raw.reg(VS).await, VERSION_1_4);
        assert_eq!(w.raw.csts().await, Csts::new());
    });
}

/// 3.1.3.3, 3.1.3.4: each of several back-to-back writes counts, and a reset clears the mask.
#[test]
fn intms_and_intmc_set_and_clear_mask_bits() {
    on_a_bench(async |mut w: World| {
        for (register, value) in [(INTMS, 1), (INTMS, 1 << 31), (INTMS, 6), (INTMC, 2), (INTMC, 0)]
        {
            w.raw.set(register, value);
        }
        assert_eq!((w.raw.reg(INTMS).await, w.raw.reg(INTMC).await), (0x8000_0005, 0x8000_0005));
        w.raw.up().await;
        w.raw.disable().await;
        assert_eq!((w.raw.reg(INTMS).await, w.raw.reg(INTMC).await), (0, 0));
    });
}

/// 3.1.3.8 to 3.1.3.10.
#[test]
fn admin_queue_registers_are_sampled_at_enable() {
    on_a_bench(async |mut w: World| {
        let aqa = Aqa::new().with_asqs(6).with_acqs(9);
        w.raw.enable(Settings { aqa, ..Settings::default() }).await;
        let (asq, acq) = (w.raw.admin.sq.at.0, w.raw.admin.cq.at.0);
        assert_eq!(w.raw.reg(AQA).await, aqa.into_bits());
        assert_eq!((w.raw.reg64(ASQ).await, w.raw.reg64(ACQ).await), (asq, acq));
        // While the controller is enabled they may be written, without effect.
        w.raw.set(AQA, 0);
        w.raw.set64(ASQ, 0xdead_0000);
        w.raw.set64(ACQ, 0xbeef_0000);
        assert_eq!(w.raw.reg64(ACQ).await, 0xbeef_0000);
        for _ in 0..30 {
            w.raw.ask_for_queues().await;
        }
        assert_eq!(w.raw.csts().await, Csts::new().with_rdy(true));
    });
}

/// 3.1.3.5, 3.1.3.8: unsupported or invalid settings are fatal, until the next reset.
#[test]
fn enable_with_invalid_settings_sets_cfs_until_reset() {
    on_a_bench(async |mut w: World| {
        let good = Settings::default();
        let (sq, cq) = (w.raw.place(1 << 16, 1 << 16), w.raw.place(1 << 16, 1 << 16));
        let at = |sq, cq| Settings { queues: Some((BusAddr(sq), BusAddr(cq))), ..good };
        let bad = [
            ("CSS of all sets", Settings { cc: good.cc.with_css(6), ..good }),
            ("CSS of no set", Settings { cc: good.cc.with_css(7), ..good }),
            ("AMS reserved", Settings { cc: good.cc.with_ams(2), ..good }),
            ("AMS of the vendor", Settings { cc: good.cc.with_ams(7), ..good }),
            ("MPS above MPSMAX", Settings { cc: good.cc.with_mps(5), ..at(sq.0, cq.0) }),
            ("MPS far above", Settings { cc: good.cc.with_mps(15), ..at(sq.0, cq.0) }),
            ("ASQ of one entry", Settings { aqa: good.aqa.with_asqs(0), ..good }),
            ("ACQ of one entry", Settings { aqa: good.aqa.with_acqs(0), ..good }),
            ("ASQ within a page", at(sq.0 + 64, cq.0)),
            ("ACQ within a page", at(sq.0, cq.0 + 8)),
            ("ASQ past the end of the address space", at(0u64.wrapping_sub(4096), cq.0)),
        ];
        for (what, mut settings) in bad {
            if what.starts_with("ASQ past") {
                settings.aqa = Aqa::new().with_asqs(64).with_acqs(31);
            }
            w.raw.start(settings);
            let csts = w.raw.until_csts(what, |csts| csts.cfs() || csts.rdy()).await;
            assert_eq!(csts, Csts::new().with_cfs(true), "{what}");
            w.raw.disable().await;
            assert_eq!(w.raw.csts().await, Csts::new(), "{what}");
        }
        // Aligned for a page of 4 KiB is not aligned for one of 64 KiB.
        let large = Settings { cc: good.cc.with_mps(4), ..at(sq.0, cq.0) };
        w.raw.enable(large).await;
        w.raw.disable().await;
        w.raw.start(Settings { cc: good.cc.with_mps(4), ..at(sq.0 + 4096, cq.0) });
        w.raw.until_csts("64 KiB pages", |csts| csts.cfs() && !csts.rdy()).await;
        w.raw.disable().await;
        w.raw.enable(good).await;
        w.raw.ask_for_queues().await;
    });
}

/// 3.1.3.5: I/O queues need entry sizes, and the only valid ones are 64 and 16 bytes (5.4, 5.5).
#[test]
fn queue_create_fails_without_valid_entry_sizes() {
    on_a_bench(async |mut w: World| {
        for (iosqes, iocqes) in [(0, 0), (6, 5), (7, 4), (6, 0)] {
            let cc = Cc::new().with_iosqes(iosqes).with_iocqes(iocqes);
            w.raw.enable(Settings { cc, ..Settings::default() }).await;
            w.raw.ask_for_queues().await;
            let at = w.raw.place(4096, 4096);
            let cq = admin::create_cq(w.raw.cid(), at, crate::raw::nvme::cq_of(1, 16));
            let cqe = w.raw.admin(&cq).await;
            let wanted = if iocqes == 4 {
                let sq = admin::create_sq(w.raw.cid(), at, crate::raw::nvme::sq_of(1, 16, 1));
                assert_eq!(cqe.status(), Status::SUCCESS);
                w.raw.admin(&sq).await
            } else {
                cqe
            };
            assert_eq!(wanted.status(), Status::INVALID_QUEUE_SIZE.with_dnr(), "{cc:?}");
            w.raw.disable().await;
        }
    });
}

/// 3.6.1, 3.6.2: either SHN value makes written data durable and then sets SHST; a reset clears it.
#[test]
fn shutdown_flushes_medium_and_sets_shst() {
    for shn in [Cc::SHN_NORMAL, Cc::SHN_ABRUPT] {
        on_a_bench(async |mut w: World| {
            let mut io = w.raw.up().await;
            let at = w.raw.place(4096, 4096);
            w.raw.memory.write(at, &pattern(1, 512)).unwrap();
            let data = w.raw.data(at, 512);
            let write = wire::nvme::io::write(w.raw.cid(), Nsid(1), wire::Lba(5), 1, false, data);
            assert_eq!(w.raw.run(&mut io, &write).await.status(), Status::SUCCESS);
            assert_eq!(w.medium.flushes.get(), 0);

            w.medium.close();
            let cc = Settings::default().cc.with_en(true).with_shn(shn);
            w.raw.set(CC, cc.into_bits());
            w.rt.sleep(SILENCE).await;
            let csts = w.raw.csts().await;
            assert_eq!(csts.shst(), Csts::SHST_OCCURRING, "while the medium flushes");
            w.raw.set(CSTS, 0);
            assert_eq!(w.raw.csts().await, csts, "read-only, then as ever");
            w.medium.open();
            let done = |csts: Csts| csts.shst() == Csts::SHST_COMPLETE;
            let csts = w.raw.until_csts("shutting down", done).await;
            assert!(!csts.cfs());
            assert_eq!(w.medium.flushes.get(), 1);

            w.raw.disable().await;
            assert_eq!(w.raw.csts().await, Csts::new(), "a reset clears SHST");
            let mut io = w.raw.up().await;
            let data = w.raw.data(at, 512);
            let read = wire::nvme::io::read(w.raw.cid(), Nsid(1), wire::Lba(5), 1, false, data);
            w.raw.memory.zero(at, 512).unwrap();
            assert_eq!(w.raw.run(&mut io, &read).await.status(), Status::SUCCESS);
            assert_eq!(w.raw.bytes(at, 512), pattern(1, 512));
        });
    }
}

/// 3.6.1, 3.6.2: after a shutdown a controller executes commands only once it was reset, on any of its
/// threads; what it was executing is aborted.
#[test]
fn nothing_is_executed_between_a_shutdown_and_the_reset() {
    for (threads, shn) in [(1, Cc::SHN_NORMAL), (3, Cc::SHN_NORMAL), (3, Cc::SHN_ABRUPT)] {
        let label = (threads == 1).then(Vec::new);
        Setup { threads, label, ..Setup::default() }.run(async |mut w: World| {
            w.raw.enable(Settings::default()).await;
            w.raw.ask_for_queues().await;
            let mut pairs = Vec::new();
            for qid in 1..=3 {
                pairs.push(w.raw.create_pair(qid, 16).await);
            }
            let at = w.raw.place(4096, 4096);
            w.raw.memory.write(at, &pattern(1, 512)).unwrap();
            let write = |w: &World, lba| {
                let data = w.raw.data(at, 512);
                wire::nvme::io::write(w.raw.cid(), Nsid(1), wire::Lba(lba), 1, false, data)
            };
            w.medium.close();
            for pair in &mut pairs {
                let lba = pair.sq.qid.0.into();
                w.raw.submit(&mut pair.sq, &write(&w, lba));
            }
            w.rt.sleep(SILENCE).await;
            w.raw.set(CC, Settings::default().cc.with_en(true).with_shn(shn).into_bits());
            for pair in &mut pairs {
                let aborted = w.raw.next(&mut pair.cq).await.status();
                assert_eq!(aborted, Status::ABORTED_POWER_LOSS, "{threads} threads");
            }
            w.medium.open();
            let done = |csts: Csts| csts.shst() == Csts::SHST_COMPLETE;
            let csts = w.raw.until_csts("shutting down", done).await;
            assert!(csts.rdy() && !csts.cfs());

            for pair in &mut pairs {
                let lba = 8 + u64::from(pair.sq.qid.0);
                w.raw.submit(&mut pair.sq, &write(&w, lba));
            }
            let asks = admin::keep_alive(w.raw.cid());
            w.raw.submit_admin(&asks);
            w.rt.sleep(SILENCE).await;
            for pair in &mut pairs {
                let qid = pair.sq.qid;
                assert_eq!(w.raw.next_within(&mut pair.cq, SILENCE).await, None, "{qid:?}");
                assert_eq!(w.medium.peek(8 + u64::from(qid.0), 512), [0; 512], "{qid:?}");
            }
            assert_eq!(w.raw.next_admin(SILENCE).await, None);

            w.raw.disable().await;
            let mut io = w.raw.up().await;
            let again = w.raw.run(&mut io, &write(&w, 9)).await;
            assert_eq!(again.status(), Status::SUCCESS, "after the reset");
            assert_eq!(w.medium.peek(9, 512), pattern(1, 512));
        });
    }
}

/// 3.6.1: a host may shut down a controller that it never enabled.
#[test]
fn shutdown_of_disabled_controller_completes() {
    on_a_bench(async |mut w: World| {
        w.raw.set(CC, Cc::new().with_shn(Cc::SHN_NORMAL).into_bits());
        let done = |csts: Csts| csts.shst() == Csts::SHST_COMPLETE;
        let csts = w.raw.until_csts("shutting down", done).await;
        assert!(!csts.rdy() && !csts.cfs());
        w.raw.enable(Settings::default()).await;
        assert_eq!(w.raw.csts().await, Csts::new().with_rdy(true));
    });
}

/// NVMe over PCIe 1.0, 3.1.2: the doorbell of an absent queue has no effect.
#[test]
fn doorbells_of_disabled_controller_are_ignored() {
    on_a_bench(async |mut w: World| {
        for register in (0x1000..0x1088).step_by(4) {
            w.raw.set(register, 3);
        }
        w.rt.sleep(SILENCE).await;
        let before = w.raw.everything();
        w.rt.sleep(SILENCE).await;
        assert_eq!(w.raw.everything(), before);
        w.raw.enable(Settings::default()).await;
        assert_eq!(w.raw.next_within(&mut w.raw.admin.cq.clone(), SILENCE).await, None);
        w.raw.ask_for_queues().await;
    });
}
