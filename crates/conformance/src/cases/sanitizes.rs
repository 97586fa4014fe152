//! Sanitize and its log: NVMe base 2.0, 5.24, 5.16.1.25 and 8.21.

use runtime::Span;
use wire::Lba;
use wire::nvme::admin::{self, Sanitize, SanitizeAction};
use wire::nvme::io;
use wire::nvme::log::{SanitizeStatus, lid, sanicap};
use wire::nvme::status::Status;
use zerocopy::FromBytes;

use crate::bench::{Bench, noise};
use crate::case::{Section, cases};
use crate::verdict::{Verdict, hold, needs};

pub(super) const SECTIONS: &[Section] = &[Section {
    of: "NVMe base 2.0",
    number: "5.24",
    title: "Sanitize",
    cases: cases! {
        None sanitize_that_there_is_not "where SANICAP has no action, Sanitize is an Invalid Opcode";
        None sanitize_actions_that_there_are_not
            "an action that is reserved, or that SANICAP lacks: Invalid Field";
        None sanitize_log_when_idle "SPROG is FFFFh while none is under way";
        None exit_without_failure "Exit Failure Mode where there was no failure changes nothing";
        Erases block_erase_leaves_nothing "after Block Erase no block holds what it held";
        Erases block_erase_is_told_of "the log has dword 10 of the last, and Global Data Erased";
        Erases a_write_ends_global_data_erased "Global Data Erased ends with the first write";
        Erases commands_while_sanitizing
            "while one is under way I/O is Sanitize In Progress, and so is another Sanitize";
        Erases a_reset_does_not_end_it "a controller reset does not end a Sanitize";
    },
}];

/// Interval between reads of the log.
const LOOK: Span = Span::ms(1);
/// Maximum number of log reads.
const LOOKS: u32 = 60_000;

fn offers(b: &Bench, action: u32) -> Verdict {
    needs!(b.id.sanicap.get() & action != 0, "SANICAP is {:#x}", b.id.sanicap.get());
    Ok(())
}

fn any(b: &Bench) -> Verdict {
    offers(b, sanicap::BLOCK_ERASE | sanicap::OVERWRITE | sanicap::CRYPTO_ERASE)
}

async fn log(b: &mut Bench) -> Verdict<SanitizeStatus> {
    let bytes = b.log(lid::SANITIZE, 512).await?;
    Ok(SanitizeStatus::read_from_bytes(&bytes).expect("its length"))
}

/// Starts an unrestricted Block Erase.
async fn erase(b: &mut Bench) -> Verdict {
    let sanitize = Sanitize { unrestricted: true, ..Sanitize::default() };
    b.admin_ok(&admin::sanitize(b.cid(), sanitize)).await.map(drop)
}

/// Waits until it has succeeded.
async fn erased(b: &mut Bench) -> Verdict<SanitizeStatus> {
    for _ in 0..LOOKS {
        let log = log(b).await?;
        if log.stands() != SanitizeStatus::UNDER_WAY {
            let well = [SanitizeStatus::DONE, 4].contains(&log.stands());
            hold!(well, "Block Erase ended with SSTAT {:#x}", log.status.get());
            return Ok(log);
        }
        b.pause(LOOK).await;
    }
    crate::verdict::Stop::failed("Block Erase does not end")
}

async fn sanitize_that_there_is_not(b: &mut Bench) -> Verdict {
    let has = b.id.sanicap.get() & 7;
    needs!(has == 0, "SANICAP is {has:#x}");
    let sqe = admin::sanitize(b.cid(), Sanitize::default());
    b.admin_ends(&sqe, &[Status::INVALID_OPCODE]).await
}

async fn sanitize_actions_that_there_are_not(b: &mut Bench) -> Verdict {
    any(b)?;
    for action in [0, 5, 6, 7] {
        let mut sqe = admin::sanitize(b.cid(), Sanitize::default());
        sqe.cdw10 = action.into();
        b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await?;
    }
    for (bit, action) in [
        (sanicap::CRYPTO_ERASE, SanitizeAction::CryptoErase),
        (sanicap::BLOCK_ERASE, SanitizeAction::BlockErase),
        (sanicap::OVERWRITE, SanitizeAction::Overwrite),
    ] {
        if b.id.sanicap.get() & bit == 0 {
            let sqe = admin::sanitize(b.cid(), Sanitize { action, ..Sanitize::default() });
            b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await?;
        }
    }
    Ok(())
}

async fn sanitize_log_when_idle(b: &mut Bench) -> Verdict {
    any(b)?;
    let log = log(b).await?;
    let idle = log.stands() != SanitizeStatus::UNDER_WAY;
    hold!(idle == (log.progress.get() == u16::MAX), "SSTAT and SPROG are {log:?}");
    Ok(())
}

async fn exit_without_failure(b: &mut Bench) -> Verdict {
    any(b)?;
    let before = log(b).await?;
    needs!(before.stands() != SanitizeStatus::FAILED, "a Sanitize that has not failed");
    let action = SanitizeAction::ExitFailure;
    b.admin_ok(&admin::sanitize(b.cid(), Sanitize { action, ..Sanitize::default() })).await?;
    let after = log(b).await?;
    hold!(after.status == before.status, "SSTAT is {after:?}, {before:?} before");
    Ok(())
}

async fn block_erase_leaves_nothing(b: &mut Bench) -> Verdict {
    offers(b, sanicap::BLOCK_ERASE)?;
    let mut io = b.plain_io().await?;
    let data = noise(24, 8 * b.block());
    b.write(&mut io, 3, &data).await?;
    erase(b).await?;
    erased(b).await?;
    let found = b.read(&mut io, 3, 8).await?;
    let block = b.block() as usize;
    let same = found.chunks(block).zip(data.chunks(block)).any(|(found, data)| found == data);
    hold!(!same, "a block holds what was written before");
    Ok(())
}

async fn block_erase_is_told_of(b: &mut Bench) -> Verdict {
    offers(b, sanicap::BLOCK_ERASE)?;
    erase(b).await?;
    let log = erased(b).await?;
    hold!(log.dword10.get() & 0xf == 0xa, "SCDW10 is {:#x}", log.dword10.get());
    let erased = log.status.get() & SanitizeStatus::GLOBAL_DATA_ERASED != 0;
    hold!(erased, "SSTAT is {:#x} after a Block Erase", log.status.get());
    Ok(())
}

async fn a_write_ends_global_data_erased(b: &mut Bench) -> Verdict {
    offers(b, sanicap::BLOCK_ERASE)?;
    let mut io = b.plain_io().await?;
    erase(b).await?;
    erased(b).await?;
    b.write(&mut io, 0, &noise(25, b.block())).await?;
    let status = log(b).await?.status.get();
    hold!(status & SanitizeStatus::GLOBAL_DATA_ERASED == 0, "SSTAT is {status:#x} after a write");
    Ok(())
}

async fn commands_while_sanitizing(b: &mut Bench) -> Verdict {
    offers(b, sanicap::BLOCK_ERASE)?;
    let mut io = b.plain_io().await?;
    let at = b.pages(1)?;
    let data = b.data(at, b.block())?;
    erase(b).await?;
    let read = b.run(&mut io, &io::read(b.cid(), b.nsid, Lba(0), 1, false, data)).await?;
    let again = b.admin(&admin::sanitize(b.cid(), Sanitize::default())).await?;
    let under_way = log(b).await?.stands() == SanitizeStatus::UNDER_WAY;
    for status in [read.status(), again.status()] {
        let refused = status.kind() == Status::SANITIZE_IN_PROGRESS;
        // The first may have ended meanwhile, and then the second one has begun.
        hold!(refused || status.is_ok(), "{status} beside a Sanitize");
    }
    let refused = again.status().kind() == Status::SANITIZE_IN_PROGRESS;
    let read_refused = read.status().kind() == Status::SANITIZE_IN_PROGRESS;
    hold!(read_refused || !refused || !under_way, "a read was done beside a Sanitize");
    erased(b).await.map(drop)
}

async fn a_reset_does_not_end_it(b: &mut Bench) -> Verdict {
    offers(b, sanicap::BLOCK_ERASE)?;
    erase(b).await?;
    b.disable().await?;
    b.enable(crate::bench::Settings::usual()).await?;
    erased(b).await.map(drop)
}
