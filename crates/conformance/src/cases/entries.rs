//! Commands in general: NVMe base 2.0, 3.3.3.1.

use wire::nvme::admin;
use wire::nvme::entry::{Sqe, SqeFlags};
use wire::nvme::identify::{cns, lpa, oacs, oncs, sgls};
use wire::nvme::io;
use wire::nvme::log::{CommandEffects, effect, lid};
use wire::nvme::opcode;
use wire::nvme::status::Status;
use wire::{Lba, Nsid};
use zerocopy::FromBytes;

use crate::bench::Bench;
use crate::case::{Section, cases};
use crate::verdict::{Stop, Verdict, hold, needs};

pub(super) const SECTIONS: &[Section] = &[Section {
    of: "NVMe base 2.0",
    number: "3.3.3.1",
    title: "submission queue entries",
    cases: cases! {
        None unknown_admin_opcodes "reserved admin opcodes: Invalid Command Opcode";
        None unknown_io_opcodes "reserved I/O opcodes: Invalid Command Opcode";
        None admin_commands_that_oacs_denies
            "an admin command that OACS does not have: Invalid Command Opcode";
        None io_commands_that_oncs_denies
            "an I/O command that ONCS does not have: Invalid Command Opcode";
        Erases opcodes_that_the_log_does_not_list
            "what the log of effects lists is known, all else an Invalid Command Opcode";
        None fused_where_there_is_none "FUSE set where FUSES has nothing: Invalid Field";
        None sgl_where_there_is_none "PSDT set where SGLS has nothing: Invalid Field";
        None reserved_psdt
            "PSDT 11b, and 10b where SGLS has no metadata by lists: Invalid Field";
        None reserved_fields_do_no_harm
            "reserved dwords of a command of any value: the command is carried out, or refused";
        None namespace_zero "an I/O command of namespace 0: Invalid Namespace or Format";
        None namespace_that_is_not_there "of a namespace above NN: Invalid Namespace or Format";
        None namespace_that_is_not_active "of an inactive namespace: Invalid Field";
        None namespace_of_all "a Read of all namespaces: Invalid Namespace or Format";
        None flags_of_admin_commands "over PCIe, admin commands take no SGL and no FUSE: Invalid Field";
    },
}];

const NO_SUCH: &[Status] = &[Status::INVALID_OPCODE];

async fn unknown_admin_opcodes(b: &mut Bench) -> Verdict {
    for opcode in [0x03, 0x07, 0x0b, 0x0e, 0x13, 0x1b, 0x7b, 0x87] {
        let sqe = Sqe { opcode, cid: b.cid().0.into(), ..Sqe::default() };
        b.admin_ends(&sqe, NO_SUCH).await?;
    }
    Ok(())
}

async fn unknown_io_opcodes(b: &mut Bench) -> Verdict {
    let mut pair = b.io().await?;
    for opcode in [0x03, 0x06, 0x0a, 0x10, 0x13, 0x17, 0x1b, 0x7f] {
        let nsid = b.nsid.0.into();
        let sqe = Sqe { opcode, nsid, cid: b.cid().0.into(), ..Sqe::default() };
        b.ends(&mut pair, &sqe, NO_SUCH).await?;
    }
    Ok(())
}

async fn admin_commands_that_oacs_denies(b: &mut Bench) -> Verdict {
    use opcode::admin::{
        DOORBELL_BUFFER_CONFIG, FIRMWARE_DOWNLOAD, FORMAT_NVM, NAMESPACE_ATTACHMENT,
        NAMESPACE_MANAGEMENT, SECURITY_RECEIVE, SECURITY_SEND, SELF_TEST,
    };
    let has = b.id.oacs.get();
    for (bit, opcode) in [
        (oacs::SECURITY, SECURITY_SEND),
        (oacs::SECURITY, SECURITY_RECEIVE),
        (oacs::FORMAT, FORMAT_NVM),
        (oacs::FIRMWARE, FIRMWARE_DOWNLOAD),
        (oacs::NAMESPACE_MANAGEMENT, NAMESPACE_MANAGEMENT),
        (oacs::NAMESPACE_MANAGEMENT, NAMESPACE_ATTACHMENT),
        (oacs::SELF_TEST, SELF_TEST),
        (oacs::DOORBELL_BUFFER, DOORBELL_BUFFER_CONFIG),
    ] {
        if has & bit == 0 {
            // With an invalid namespace, so that nothing is formatted if the command exists after all.
            let sqe = Sqe { opcode, cid: b.cid().0.into(), ..Sqe::default() };
            b.admin_ends(&sqe, NO_SUCH).await?;
        }
    }
    Ok(())
}

async fn io_commands_that_oncs_denies(b: &mut Bench) -> Verdict {
    use opcode::io::{
        COMPARE, COPY, DATASET_MANAGEMENT, RESERVATION_REPORT, VERIFY, WRITE_UNCORRECTABLE,
        WRITE_ZEROES,
    };
    let mut pair = b.io().await?;
    let (has, past) = (b.id.oncs.get(), b.ns.nsze.get());
    for (bit, opcode) in [
        (oncs::COMPARE, COMPARE),
        (oncs::WRITE_UNCORRECTABLE, WRITE_UNCORRECTABLE),
        (oncs::DATASET_MANAGEMENT, DATASET_MANAGEMENT),
        (oncs::WRITE_ZEROES, WRITE_ZEROES),
        (oncs::RESERVATIONS, RESERVATION_REPORT),
        (oncs::VERIFY, VERIFY),
        (oncs::COPY, COPY),
    ] {
        if has & bit == 0 {
            // With blocks past the end, so that nothing is written if the command exists after all.
            let cdw10 = (past as u32).into();
            let cdw11 = ((past >> 32) as u32).into();
            let (cid, nsid) = (b.cid().0.into(), b.nsid.0.into());
            let sqe = Sqe { opcode, cid, nsid, cdw10, cdw11, ..Sqe::default() };
            b.ends(&mut pair, &sqe, NO_SUCH).await?;
        }
    }
    Ok(())
}

/// Admin commands that change a controller whatever their namespace, and the Asynchronous Event Request,
/// which stays outstanding. Other cases test them.
const CHANGING: &[u8] = {
    use opcode::admin::{
        ASYNC_EVENT_REQUEST, DOORBELL_BUFFER_CONFIG, FIRMWARE_COMMIT, FIRMWARE_DOWNLOAD,
        NAMESPACE_MANAGEMENT, SANITIZE, SECURITY_SEND,
    };
    &[
        ASYNC_EVENT_REQUEST,
        DOORBELL_BUFFER_CONFIG,
        FIRMWARE_COMMIT,
        FIRMWARE_DOWNLOAD,
        NAMESPACE_MANAGEMENT,
        SANITIZE,
        SECURITY_SEND,
    ]
};

/// First opcode of the vendor's own commands, whose effects are unknown.
const VENDOR: u8 = 0xc0;

async fn opcodes_that_the_log_does_not_list(b: &mut Bench) -> Verdict {
    needs!(b.id.lpa & lpa::COMMANDS_SUPPORTED != 0, "LPA: the log of commands supported");
    let nowhere = b.id.nn.get().saturating_add(1);
    needs!(nowhere < u32::MAX - 1, "a namespace identifier above NN");
    let mut pair = b.io().await?;
    let page = b.log(lid::COMMANDS_SUPPORTED, 4096).await?;
    let effects = CommandEffects::read_from_bytes(&page).expect("its length");
    let data = b.pages(1)?;
    for opcode in 0..=u8::MAX {
        let listed = |table: &[zerocopy::little_endian::U32; 256]| {
            table[usize::from(opcode)].get() & effect::SUPPORTED != 0
        };
        // With an absent namespace and harmless data: most known commands are rejected.
        let sqe = |b: &Bench, listed: bool| Sqe {
            opcode,
            cid: b.cid().0.into(),
            nsid: if listed { nowhere } else { b.nsid.0 }.into(),
            prp1: data.0.into(),
            ..Sqe::default()
        };
        let is_listed = listed(&effects.io);
        let status = b.run(&mut pair, &sqe(b, is_listed)).await?.status().kind();
        let known = status != NO_SUCH[0];
        hold!(known == is_listed, "I/O command {opcode:#04x}: {status}, listed: {is_listed}");
        if !CHANGING.contains(&opcode) && opcode < VENDOR {
            let is_listed = listed(&effects.admin);
            let status = b.admin(&sqe(b, is_listed)).await?.status().kind();
            let known = status != NO_SUCH[0];
            hold!(known == is_listed, "admin command {opcode:#04x}: {status}, listed: {is_listed}");
        }
    }
    Ok(())
}

async fn flagged(b: &mut Bench, flags: SqeFlags) -> Verdict {
    let mut pair = b.plain_io().await?;
    let at = b.pages(1 + b.block() / b.page_bytes)?;
    let data = b.data(at, b.block())?;
    let sqe = Sqe { flags, ..io::read(b.cid(), b.nsid, Lba(0), 1, false, data) };
    b.ends(&mut pair, &sqe, &[Status::INVALID_FIELD]).await
}

async fn fused_where_there_is_none(b: &mut Bench) -> Verdict {
    needs!(b.id.fuses.get() == 0, "it has fused operations: FUSES is {:#x}", b.id.fuses.get());
    flagged(b, SqeFlags::new().with_fuse(1)).await?;
    b.disable().await?;
    b.enable(crate::bench::Settings::usual()).await?;
    flagged(b, SqeFlags::new().with_fuse(2)).await
}

async fn sgl_where_there_is_none(b: &mut Bench) -> Verdict {
    let sgls = b.id.sgls.get();
    needs!(sgls & 3 == 0, "it has SGLs: SGLS is {sgls:#x}");
    flagged(b, SqeFlags::new().with_psdt(1)).await
}

async fn reserved_psdt(b: &mut Bench) -> Verdict {
    flagged(b, SqeFlags::new().with_psdt(3)).await?;
    if b.id.sgls.get() & sgls::METADATA != 0 {
        return Ok(());
    }
    b.disable().await?;
    b.enable(crate::bench::Settings::usual()).await?;
    flagged(b, SqeFlags::new().with_psdt(2)).await
}

async fn reserved_fields_do_no_harm(b: &mut Bench) -> Verdict {
    let mut pair = b.io().await?;
    let noise = u32::MAX.into();
    let at = b.pages(1 + b.block() / b.page_bytes)?;
    let read = io::read(b.cid(), b.nsid, Lba(0), 1, false, b.data(at, b.block())?);
    for sqe in [io::flush(b.cid(), b.nsid), read] {
        let mut noisy = Sqe { cdw2: noise, cdw3: noise, cdw13: noise, ..sqe };
        if b.ns.format().is_some_and(|format| format.ms.get() == 0) {
            noisy = Sqe { mptr: u64::MAX.into(), cdw14: noise, cdw15: noise, ..noisy };
        }
        let status = b.run(&mut pair, &noisy).await?.status();
        let well = status.is_ok() || status.kind() == Status::INVALID_FIELD;
        hold!(well, "command {:#04x} with reserved bits ends with {status}", sqe.opcode);
    }
    b.ok(&mut pair, &io::flush(b.cid(), b.nsid)).await.map(drop)
}

const NO_NAMESPACE: &[Status] = &[Status::INVALID_NAMESPACE_OR_FORMAT, Status::INVALID_FIELD];

async fn read_of(b: &mut Bench, nsid: Nsid) -> Verdict {
    let mut pair = b.io().await?;
    let at = b.pages(1 + b.block() / b.page_bytes)?;
    let sqe = io::read(b.cid(), nsid, Lba(0), 1, false, b.data(at, b.block())?);
    b.ends(&mut pair, &sqe, NO_NAMESPACE).await?;
    match nsid {
        // VWC defines whether that flushes all namespaces.
        Nsid::BROADCAST => Ok(()),
        nsid => b.ends(&mut pair, &io::flush(b.cid(), nsid), NO_NAMESPACE).await,
    }
}

async fn namespace_zero(b: &mut Bench) -> Verdict {
    read_of(b, Nsid::NONE).await
}

async fn namespace_that_is_not_there(b: &mut Bench) -> Verdict {
    let Some(above) = b.id.nn.get().checked_add(1).filter(|nsid| *nsid < u32::MAX - 1) else {
        return Stop::lacks("a namespace identifier above NN");
    };
    for nsid in [above, u32::MAX - 1] {
        read_of(b, Nsid(nsid)).await?;
        b.disable().await?;
        b.enable(crate::bench::Settings::usual()).await?;
    }
    Ok(())
}

async fn namespace_that_is_not_active(b: &mut Bench) -> Verdict {
    let active = b.active().await?;
    let inactive = (1..=b.id.nn.get().min(1 << 16)).map(Nsid).find(|nsid| !active.contains(nsid));
    let Some(inactive) = inactive else { return Stop::lacks("an inactive namespace up to NN") };
    read_of(b, inactive).await
}

async fn namespace_of_all(b: &mut Bench) -> Verdict {
    read_of(b, Nsid::BROADCAST).await
}

async fn flags_of_admin_commands(b: &mut Bench) -> Verdict {
    let at = b.pages(1)?;
    let data = b.data(at, 4096)?;
    for flags in [1, 2, 3, 0x40, 0x80, 0xc0].map(SqeFlags::from_bits) {
        let sqe = admin::identify(b.cid(), Nsid::NONE, cns::CONTROLLER, data);
        b.admin_ends(&Sqe { flags, ..sqe }, &[Status::INVALID_FIELD]).await?;
    }
    Ok(())
}
