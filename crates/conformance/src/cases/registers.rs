//! Registers, enabling and shutting down: NVMe base 2.0, 3.1.3, 3.5 and 3.6.

use wire::Nsid;
use wire::nvme::admin;
use wire::nvme::identify::cns;
use wire::nvme::io;
use wire::nvme::registers::{
    ACQ, AQA, ASQ, Aqa, CAP, CC, CSTS, Cap, Cc, Csts, INTMC, INTMS, NSSR, VS,
};

use crate::bench::{Bench, LOOK, PATIENCE, Settings, noise};
use crate::case::{Section, cases};
use crate::verdict::{Verdict, hold, needs};

const BASE: &str = "NVMe base 2.0";

pub(super) const SECTIONS: &[Section] = &[
    Section {
        of: BASE,
        number: "3.1.3",
        title: "controller properties",
        cases: cases! {
            None cap_is_of_sense
                "CAP: queues of 2 entries at least, the NVM command set, ordered page sizes";
            None cap_and_vs_cannot_be_written "CAP and VS are read only";
            None version_is_that_of_identify
                "VS is version 1 or 2, and VER of Identify Controller is the same";
            None csts_cannot_be_written "a write to CSTS changes neither RDY nor CFS nor SHST";
            None reserved_properties_read_as_zeros "18h is reserved, and reads as zero";
            None no_buffer_no_registers "without CAP.CMBS, CMBLOC and CMBSZ read as zero";
            None no_boot_partition_no_registers "without CAP.BPS, BPINFO reads as zero";
            None no_subsystem_reset_no_register "without CAP.NSSRS, NSSR reads as zero";
            None cc_reads_back "CC reads as it was written";
            None admin_queue_properties_read_back "AQA, ASQ and ACQ read as they were written, disabled";
            None admin_queue_properties_read_back_while_enabled
                "AQA, ASQ and ACQ read as they were written, enabled";
            None interrupt_masks_by_bits
                "INTMS sets bits of the mask, INTMC clears them, zeros do nothing, both read as the mask";
            None a_reset_clears_interrupt_masks "a controller reset clears the interrupt mask";
            None halves_in_any_order "ASQ and ACQ may be written upper half first";
        },
    },
    Section {
        of: BASE,
        number: "3.5",
        title: "initialization",
        cases: cases! {
            None ready_follows_enable "CSTS.RDY follows CC.EN within CAP.TO";
            None nothing_before_ready "no command is taken before CC.EN, whatever the doorbells say";
            None smallest_admin_queues "admin queues of two entries work, lap after lap";
            None largest_admin_queues "admin queues of 4,096 entries work";
            None admin_queues_of_two_sizes "the two admin queues may differ in size";
            None every_page_size "each memory page size from MPSMIN to MPSMAX works";
            None admin_commands_without_io_queues "Identify works before any I/O queue is made";
            None every_arbitration_it_offers "each arbitration mechanism of CAP.AMS can be selected";
        },
    },
    Section {
        of: BASE,
        number: "3.6",
        title: "shutdown",
        cases: cases! {
            None orderly_shutdown "CC.SHN 01b: CSTS.SHST goes to 10b";
            None abrupt_shutdown "CC.SHN 10b: CSTS.SHST goes to 10b";
            None up_again_after_shutdown
                "after a shutdown a reset clears SHST, and the controller works";
            None shutdown_while_disabled_then_up
                "SHN written as CC.EN is cleared does no harm to the next start";
            Writes shutdown_keeps_data
                "what was written and completed is there after shutdown and restart";
        },
    },
];

async fn cap_is_of_sense(b: &mut Bench) -> Verdict {
    let cap = b.cap;
    hold!(cap.queue_entries_max() >= 2, "MQES is {}", cap.mqes());
    hold!(cap.css() & (Cap::CSS_NVM | 1 << 6 | 1 << 7) != 0, "CSS is {:#x}", cap.css());
    hold!(cap.mpsmin() <= cap.mpsmax(), "MPSMIN {} above MPSMAX {}", cap.mpsmin(), cap.mpsmax());
    Ok(())
}

async fn cap_and_vs_cannot_be_written(b: &mut Bench) -> Verdict {
    let (cap, vs) = (b.reg64(CAP).await, b.reg(VS).await);
    for value in [0, u32::MAX] {
        b.set64(CAP, u64::from(value) << 32 | u64::from(value));
        b.set(VS, value);
        // The command's completion ensures that the writes have arrived. A software controller restores the
        // registers when it scans them.
        b.identify(Nsid::NONE, cns::CONTROLLER).await?;
        let undone = async {
            while (b.reg64(CAP).await, b.reg(VS).await) != (cap, vs) {
                b.pause(LOOK).await;
            }
        };
        b.within(PATIENCE, undone).await;
        let found = (b.reg64(CAP).await, b.reg(VS).await);
        hold!(found == (cap, vs), "{found:#x?} after writing {value:#x}, {:#x?} before", (cap, vs));
    }
    Ok(())
}

async fn version_is_that_of_identify(b: &mut Bench) -> Verdict {
    let (vs, ver) = (b.reg(VS).await, b.id.ver.get());
    hold!((1..=2).contains(&(vs >> 16)), "VS is {vs:#x}");
    // Before 1.2 there was no VER.
    hold!(ver == vs || (ver == 0 && vs < 0x1_0200), "VS is {vs:#x}, VER {ver:#x}");
    Ok(())
}

async fn csts_cannot_be_written(b: &mut Bench) -> Verdict {
    let csts = b.csts().await;
    for value in [0, 0xf] {
        b.set(CSTS, value);
        b.identify(Nsid::NONE, cns::CONTROLLER).await?;
        let what = format!("{value:#x} written over {csts:?}");
        b.until_csts(&what, |found| found == csts).await?;
    }
    Ok(())
}

async fn zero(b: &mut Bench, register: u32) -> Verdict {
    let value = b.reg(register).await;
    hold!(value == 0, "register {register:#x} reads {value:#x}");
    Ok(())
}

async fn reserved_properties_read_as_zeros(b: &mut Bench) -> Verdict {
    zero(b, 0x18).await
}

async fn no_buffer_no_registers(b: &mut Bench) -> Verdict {
    needs!(!b.cap.cmbs(), "it has a controller memory buffer (CAP.CMBS)");
    needs!(b.reg(VS).await >= 0x1_0400, "CAP.CMBS came with version 1.4");
    zero(b, 0x38).await?;
    zero(b, 0x3c).await
}

async fn no_boot_partition_no_registers(b: &mut Bench) -> Verdict {
    needs!(!b.cap.bps(), "it has boot partitions (CAP.BPS)");
    zero(b, 0x40).await
}

async fn no_subsystem_reset_no_register(b: &mut Bench) -> Verdict {
    needs!(!b.cap.nssrs(), "it has subsystem reset (CAP.NSSRS)");
    zero(b, NSSR).await
}

async fn cc_reads_back(b: &mut Bench) -> Verdict {
    let expected = Settings::usual().cc.with_mps(b.cap.mpsmin()).with_en(true);
    let found = Cc::from_bits(b.reg(CC).await);
    hold!(found == expected, "CC is {found:?}, expected {expected:?}");
    Ok(())
}

async fn admin_registers(b: &Bench) -> (u32, u64, u64) {
    (b.reg(AQA).await, b.reg64(ASQ).await, b.reg64(ACQ).await)
}

async fn admin_queue_properties_read_back(b: &mut Bench) -> Verdict {
    b.disable().await?;
    let at = b.pages(1)?.0;
    for (aqa, asq, acq) in [(0x001f_000f, at, at), (0x0fff_0001, 0, 0x12_3456_7000)] {
        b.set(AQA, aqa);
        b.set64(ASQ, asq);
        b.set64(ACQ, acq);
        let found = admin_registers(b).await;
        hold!(found == (aqa, asq, acq), "{found:#x?}, expected {:#x?}", (aqa, asq, acq));
    }
    Ok(())
}

async fn admin_queue_properties_read_back_while_enabled(b: &mut Bench) -> Verdict {
    let aqa = Aqa::new().with_asqs(31).with_acqs(31).into_bits();
    let expected = (aqa, b.admin.sq.at.0, b.admin.cq.at.0);
    let found = admin_registers(b).await;
    hold!(found == expected, "{found:#x?}, expected {expected:#x?}");
    Ok(())
}

/// Skips the case if the masks have no effect: with MSI-X they are undefined (3.1.3.3).
async fn heeds_masks(b: &Bench) -> Verdict {
    b.set(INTMS, 1);
    let mask = b.reg(INTMS).await;
    needs!(mask != 0, "interrupt masks with vectors in use: INTMS stays zero");
    b.set(INTMC, u32::MAX);
    Ok(())
}

async fn interrupt_masks_by_bits(b: &mut Bench) -> Verdict {
    heeds_masks(b).await?;
    let writes = [(INTMS, 1, 1), (INTMS, 0, 1), (INTMS, 1, 1), (INTMC, 0, 1), (INTMC, 1, 0)];
    for (register, value, expected) in writes {
        b.set(register, value);
        let found = (b.reg(INTMS).await & 1, b.reg(INTMC).await & 1);
        hold!(
            found == (expected, expected),
            "bit 0 of INTMS and INTMC is {found:?} after {value} to {register:#x}"
        );
    }
    Ok(())
}

async fn a_reset_clears_interrupt_masks(b: &mut Bench) -> Verdict {
    heeds_masks(b).await?;
    b.set(INTMS, 1);
    b.disable().await?;
    b.enable(Settings::usual()).await?;
    let found = (b.reg(INTMS).await, b.reg(INTMC).await);
    hold!(found == (0, 0), "INTMS and INTMC read {found:#x?} after a reset");
    Ok(())
}

async fn halves_in_any_order(b: &mut Bench) -> Verdict {
    b.disable().await?;
    b.start(Settings::usual())?;
    b.disable().await?;
    for (register, at) in [(ASQ, b.admin.sq.at.0), (ACQ, b.admin.cq.at.0)] {
        b.set64(register, 0);
        b.set(register + 4, (at >> 32) as u32);
        b.set(register, at as u32);
    }
    let cc = Settings::usual().cc.with_mps(b.cap.mpsmin()).with_en(true);
    b.set(CC, cc.into_bits());
    b.until_csts("enabling", |csts| csts.rdy()).await?;
    b.identify(Nsid::NONE, cns::CONTROLLER).await.map(drop)
}

async fn ready_follows_enable(b: &mut Bench) -> Verdict {
    for _ in 0..10 {
        b.disable().await?;
        b.enable(Settings::usual()).await?;
    }
    Ok(())
}

async fn nothing_before_ready(b: &mut Bench) -> Verdict {
    b.disable().await?;
    let (sq, cq) = (b.admin.sq, b.admin.cq);
    let at = b.pages(1)?;
    let sqe = admin::identify(b.cid(), Nsid::NONE, cns::CONTROLLER, b.data(at, 4096)?);
    let mut stale = sq;
    stale.tail = 0;
    b.store_bytes(cq.at, &[0; 16]);
    b.submit(&mut stale, &sqe);
    let fresh = crate::bench::Cq::new(cq.qid, cq.at, cq.entries);
    b.nothing(&fresh, "a completion of a controller that is disabled").await?;
    hold!(b.bytes(at, 4096).iter().all(|byte| *byte == 0), "data of a controller that is disabled");
    // Doorbells rung before are forgotten.
    b.enable(Settings::usual()).await?;
    b.nothing(&b.admin.cq, "a completion before any command").await?;
    b.identify(Nsid::NONE, cns::CONTROLLER).await.map(drop)
}

async fn with_admin_queues(b: &mut Bench, entries: (u32, u32), commands: u32) -> Verdict {
    b.disable().await?;
    b.enable(Settings { admin_entries: entries, ..Settings::usual() }).await?;
    let at = b.pages(1)?;
    for _ in 0..commands {
        let sqe = admin::identify(b.cid(), Nsid::NONE, cns::CONTROLLER, b.data(at, 4096)?);
        b.admin_ok(&sqe).await?;
    }
    Ok(())
}

async fn smallest_admin_queues(b: &mut Bench) -> Verdict {
    with_admin_queues(b, (2, 2), 9).await
}

async fn largest_admin_queues(b: &mut Bench) -> Verdict {
    with_admin_queues(b, (4096, 4096), 20).await
}

async fn admin_queues_of_two_sizes(b: &mut Bench) -> Verdict {
    with_admin_queues(b, (3, 17), 40).await?;
    with_admin_queues(b, (17, 3), 40).await
}

async fn every_page_size(b: &mut Bench) -> Verdict {
    for mps in b.cap.mpsmin()..=b.cap.mpsmax() {
        b.disable().await?;
        let cc = Settings::usual().cc.with_mps(mps);
        b.enable(Settings { cc, ..Settings::usual() }).await?;
        b.identify(Nsid::NONE, cns::CONTROLLER).await?;
        if b.nsid != Nsid::NONE && b.ns.format().is_some_and(|format| format.ms.get() == 0) {
            let mut io = b.io().await?;
            let blocks = b.blocks_within(3 * b.page_bytes);
            b.read(&mut io, 0, blocks.max(1)).await?;
        }
    }
    Ok(())
}

async fn admin_commands_without_io_queues(b: &mut Bench) -> Verdict {
    let page = b.identify(Nsid::NONE, cns::CONTROLLER).await?;
    hold!(page.iter().any(|byte| *byte != 0), "a page of zeros");
    Ok(())
}

async fn every_arbitration_it_offers(b: &mut Bench) -> Verdict {
    needs!(b.cap.ams() & Cap::AMS_WEIGHTED != 0, "CAP.AMS: round robin alone");
    b.disable().await?;
    let cc = Settings::usual().cc.with_ams(Cc::AMS_WEIGHTED);
    b.enable(Settings { cc, ..Settings::usual() }).await?;
    let mut io = b.io().await?;
    b.ok(&mut io, &io::flush(b.cid(), b.nsid)).await.map(drop)
}

async fn shut_down(b: &Bench, how: u8) -> Verdict {
    let cc = Cc::from_bits(b.reg(CC).await).with_shn(how);
    b.set(CC, cc.into_bits());
    b.until_csts("shutting down", |csts| csts.shst() == Csts::SHST_COMPLETE).await.map(drop)
}

async fn orderly_shutdown(b: &mut Bench) -> Verdict {
    shut_down(b, Cc::SHN_NORMAL).await
}

async fn abrupt_shutdown(b: &mut Bench) -> Verdict {
    shut_down(b, Cc::SHN_ABRUPT).await
}

async fn up_again_after_shutdown(b: &mut Bench) -> Verdict {
    shut_down(b, Cc::SHN_NORMAL).await?;
    b.disable().await?;
    b.enable(Settings::usual()).await?;
    let csts = b.csts().await;
    hold!(csts.shst() == 0, "CSTS is {csts:?} after a restart");
    b.identify(Nsid::NONE, cns::CONTROLLER).await.map(drop)
}

async fn shutdown_while_disabled_then_up(b: &mut Bench) -> Verdict {
    let cc = Cc::from_bits(b.reg(CC).await);
    b.set(CC, cc.with_en(false).with_shn(Cc::SHN_NORMAL).into_bits());
    b.until_csts("disabling", |csts| !csts.rdy()).await?;
    b.disable().await?;
    b.enable(Settings::usual()).await?;
    b.identify(Nsid::NONE, cns::CONTROLLER).await.map(drop)
}

async fn shutdown_keeps_data(b: &mut Bench) -> Verdict {
    let mut io = b.plain_io().await?;
    let data = noise(1, 8 * b.block());
    b.write(&mut io, 5, &data).await?;
    shut_down(b, Cc::SHN_NORMAL).await?;
    b.disable().await?;
    b.enable(Settings::usual()).await?;
    let mut io = b.plain_io().await?;
    b.holds(&mut io, 5, &data).await
}
