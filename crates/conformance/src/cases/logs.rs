//! Log pages: NVMe base 2.0, 5.16.

use wire::nvme::admin::{self, Command, GetLogPage, Request};
use wire::nvme::identify::lpa;
use wire::nvme::io;
use wire::nvme::log::{CommandEffects, ErrorInformation, FirmwareSlots, SmartHealth, effect, lid};
use wire::nvme::opcode;
use wire::nvme::status::Status;
use wire::{Lba, Nsid};
use zerocopy::FromBytes;

use crate::bench::{Bench, noise};
use crate::case::{Section, cases};
use crate::verdict::{Stop, Verdict, hold, needs};

const BASE: &str = "NVMe base 2.0";

pub(super) const SECTIONS: &[Section] = &[
    Section {
        of: BASE,
        number: "5.16",
        title: "Get Log Page",
        cases: cases! {
            None unknown_log_pages "a log page that there is not: Invalid Log Page or Invalid Field";
            None a_log_page_at_an_offset "LPOL: a page from an offset on is that part of the page";
            None an_offset_past_the_end "an offset past the page's end: Invalid Field";
            None a_log_page_above_mdts "more bytes than MDTS: Invalid Field";
            None a_log_page_in_pieces "NUMD says how much is moved, and no more is";
        },
    },
    Section {
        of: BASE,
        number: "5.16.1.2",
        title: "error information",
        cases: cases! {
            None the_error_log_has_what_failed
                "a command that failed with More is the first entry of the log";
            None errors_are_counted_up "error counts rise by one, newest first";
            None the_first_block_at_fault "of a read past the end, LBA is one that is not there";
        },
    },
    Section {
        of: BASE,
        number: "5.16.1.3",
        title: "SMART and health",
        cases: cases! {
            None health_is_of_sense "a temperature of this world, spare of at most 100 %";
            Writes reads_and_writes_are_counted "host reads and writes count the commands";
            Writes data_units_are_counted "data units count thousands of 512 bytes, rounded up";
            None health_of_a_namespace "of one namespace, where LPA has it; else refused";
        },
    },
    Section {
        of: BASE,
        number: "5.16.1.4",
        title: "firmware slots",
        cases: cases! {
            None the_active_slot_has_the_revision "the active slot holds the FR of Identify Controller";
        },
    },
    Section {
        of: BASE,
        number: "5.16.1.6",
        title: "commands supported and effects",
        cases: cases! {
            None mandatory_commands_are_listed
                "the commands that every I/O controller has are supported";
            None effects_agree_with_identify "what ONCS and OACS have is listed, what they lack is not";
            None writes_change_content "LBCC is set for Write, and not for Read";
        },
    },
];

/// Runs a Get Log Page request; returns its status and the buffer.
async fn get(b: &mut Bench, nsid: Nsid, ask: GetLogPage) -> Verdict<(Status, Vec<u8>)> {
    let at = b.place(ask.bytes, b.page_bytes)?;
    let (cid, data) = (b.cid(), b.data(at, ask.bytes)?);
    let sqe = Request { cid, nsid, data, command: Command::GetLogPage(ask) }.to_sqe();
    let status = b.admin(&sqe).await?.status();
    Ok((status, b.bytes(at, ask.bytes as usize)))
}

fn page(lid: u8, bytes: u64, offset: u64) -> GetLogPage {
    GetLogPage { lid, lsp: 0, lsi: 0, retain_event: false, bytes, offset, csi: 0 }
}

async fn unknown_log_pages(b: &mut Bench) -> Verdict {
    for lid in (0x30..=0x6f).chain([0x7f, 0xbf]) {
        let (status, _) = get(b, Nsid::BROADCAST, page(lid, 64, 0)).await?;
        let well = [Status::INVALID_LOG_PAGE, Status::INVALID_FIELD].contains(&status.kind());
        hold!(well, "log page {lid:#x}: {status}");
    }
    Ok(())
}

async fn a_log_page_at_an_offset(b: &mut Bench) -> Verdict {
    needs!(b.id.lpa & lpa::EXTENDED != 0, "LPA: offsets");
    let whole = b.log(lid::FIRMWARE_SLOTS, 512).await?;
    for offset in [4, 8, 256, 508] {
        let ask = page(lid::FIRMWARE_SLOTS, 512 - offset, offset);
        let (status, part) = get(b, Nsid::BROADCAST, ask).await?;
        hold!(status.is_ok(), "offset {offset}: {status}");
        hold!(part == whole[offset as usize..], "the page differs from offset {offset} on");
    }
    Ok(())
}

async fn an_offset_past_the_end(b: &mut Bench) -> Verdict {
    needs!(b.id.lpa & lpa::EXTENDED != 0, "LPA: offsets");
    for offset in [516, 1 << 20, 1 << 40] {
        let ask = page(lid::FIRMWARE_SLOTS, 64, offset);
        let (status, _) = get(b, Nsid::BROADCAST, ask).await?;
        hold!(status.kind() == Status::INVALID_FIELD, "offset {offset}: {status}");
    }
    Ok(())
}

async fn a_log_page_above_mdts(b: &mut Bench) -> Verdict {
    let limit = b.id.transfer_bytes_max(4096 << b.cap.mpsmin());
    let Some(most) = limit.filter(|bytes| *bytes <= 8 << 20) else {
        return Stop::lacks("a limit of transfers of at most 8 MiB");
    };
    let at = b.pages(1)?;
    for bytes in [most + 4, 1 << 32, 1 << 34] {
        let sqe = admin::get_log_page(b.cid(), lid::SMART_HEALTH, bytes, b.data(at, 4096)?);
        b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await?;
    }
    Ok(())
}

async fn a_log_page_in_pieces(b: &mut Bench) -> Verdict {
    let whole = b.log(lid::FIRMWARE_SLOTS, 512).await?;
    let at = b.pages(1)?;
    for bytes in [4, 64, 200] {
        b.store_bytes(at, &[0x99; 512]);
        let sqe = admin::get_log_page(b.cid(), lid::FIRMWARE_SLOTS, bytes, b.data(at, bytes)?);
        b.admin_ok(&sqe).await?;
        let (found, length) = (b.bytes(at, 512), bytes as usize);
        hold!(found[..length] == whole[..length], "the first {bytes} bytes differ");
        let kept = found[length..].iter().all(|byte| *byte == 0x99);
        hold!(kept, "bytes were written behind the {bytes} asked for");
    }
    Ok(())
}

async fn errors(b: &mut Bench, entries: u64) -> Verdict<Vec<ErrorInformation>> {
    let bytes = b.log(lid::ERROR, 64 * entries).await?;
    let entry = |bytes: &[u8]| ErrorInformation::read_from_bytes(bytes).expect("its length");
    Ok(bytes.chunks_exact(64).map(entry).collect())
}

async fn the_error_log_has_what_failed(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let past = Lba(b.ns.nsze.get());
    let at = b.pages(1 + b.block() / b.page_bytes)?;
    let sqe = io::read(b.cid(), b.nsid, past, 1, false, b.data(at, b.block())?);
    let status = b.run(&mut pair, &sqe).await?.status();
    needs!(status.more(), "More in the status of a command that failed");
    let entry = errors(b, 1).await?[0];
    let found = (entry.sqid.get(), entry.cid.get(), entry.nsid.get());
    let expected = (1, sqe.id().0, b.nsid.0);
    hold!(found == expected, "queue, command, namespace {found:?}, expected {expected:?}");
    let noted = Status::from_bits(entry.status_and_phase.get() >> 1);
    hold!(noted.kind() == status.kind(), "{noted}, and the completion said {status}");
    Ok(())
}

async fn errors_are_counted_up(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let past = Lba(b.ns.nsze.get());
    let at = b.pages(1 + b.block() / b.page_bytes)?;
    for _ in 0..3 {
        let sqe = io::read(b.cid(), b.nsid, past, 1, false, b.data(at, b.block())?);
        let status = b.run(&mut pair, &sqe).await?.status();
        needs!(status.more(), "More in the status of a command that failed");
    }
    needs!(b.id.elpe >= 2, "an error log of three entries");
    let counts: Vec<u64> = errors(b, 3).await?.iter().map(|e| e.error_count.get()).collect();
    hold!(counts[0] > 2 && counts[1] == counts[0] - 1 && counts[2] == counts[0] - 2, "{counts:?}");
    Ok(())
}

async fn the_first_block_at_fault(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let size = b.ns.nsze.get();
    needs!(size >= 2 && b.blocks_within(u64::MAX) >= 4, "four blocks in a command");
    let at = b.place(4 * b.block(), b.page_bytes)?;
    let data = b.data(at, 4 * b.block())?;
    let sqe = io::read(b.cid(), b.nsid, Lba(size - 2), 4, false, data);
    let status = b.run(&mut pair, &sqe).await?.status();
    needs!(status.more(), "More in the status of a command that failed");
    let lba = errors(b, 1).await?[0].lba.get();
    hold!((size - 2..size + 2).contains(&lba), "LBA {lba}, of a read from {} on", size - 2);
    Ok(())
}

async fn health(b: &mut Bench) -> Verdict<SmartHealth> {
    let bytes = b.log(lid::SMART_HEALTH, 512).await?;
    Ok(SmartHealth::read_from_bytes(&bytes).expect("its length"))
}

async fn health_is_of_sense(b: &mut Bench) -> Verdict {
    let health = health(b).await?;
    let (kelvin, spare) = (health.temperature.get(), health.available_spare);
    hold!((200..500).contains(&kelvin), "{kelvin} K");
    hold!(spare <= 100 && health.available_spare_threshold <= 100, "{spare} % spare");
    Ok(())
}

async fn reads_and_writes_are_counted(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let before = health(b).await?;
    let data = noise(9, b.block());
    for _ in 0..3 {
        b.write(&mut pair, 0, &data).await?;
    }
    for _ in 0..5 {
        b.read(&mut pair, 0, 1).await?;
    }
    let after = health(b).await?;
    let reads = after.host_reads.get() - before.host_reads.get();
    let writes = after.host_writes.get() - before.host_writes.get();
    hold!((reads, writes) == (5, 3), "{reads} reads and {writes} writes counted of 5 and 3");
    Ok(())
}

async fn data_units_are_counted(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let blocks = u64::from(b.blocks_within(1 << 20)).min(b.ns.nsze.get());
    let data = noise(10, blocks * b.block());
    let before = health(b).await?;
    let rounds = (2_048_000_u64).div_ceil(data.len() as u64);
    for _ in 0..rounds {
        b.write(&mut pair, 0, &data).await?;
    }
    let units = health(b).await?.data_units_written.get() - before.data_units_written.get();
    let exact = u128::from(rounds * data.len() as u64) / 512_000;
    hold!((exact..=exact + 1).contains(&units), "{units} units counted of {exact} or one more");
    Ok(())
}

async fn health_of_a_namespace(b: &mut Bench) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    let (status, _) = get(b, b.nsid, page(lid::SMART_HEALTH, 512, 0)).await?;
    let refused = [Status::INVALID_FIELD, Status::INVALID_NAMESPACE_OR_FORMAT];
    let offered = b.id.lpa & lpa::SMART_PER_NAMESPACE != 0;
    let well = if offered { status.is_ok() } else { refused.contains(&status.kind()) };
    hold!(well, "{status}, LPA is {:#x}", b.id.lpa);
    Ok(())
}

async fn the_active_slot_has_the_revision(b: &mut Bench) -> Verdict {
    let bytes = b.log(lid::FIRMWARE_SLOTS, 512).await?;
    let slots = FirmwareSlots::read_from_bytes(&bytes).expect("its length");
    let active = usize::from(slots.afi & 7);
    hold!((1..=7).contains(&active), "AFI is {:#x}", slots.afi);
    hold!(slots.revisions[active - 1] == b.id.fr, "slot {active} differs from FR");
    Ok(())
}

async fn effects(b: &mut Bench) -> Verdict<CommandEffects> {
    needs!(b.id.lpa & lpa::COMMANDS_SUPPORTED != 0, "LPA: the log of commands supported");
    let bytes = b.log(lid::COMMANDS_SUPPORTED, 4096).await?;
    Ok(CommandEffects::read_from_bytes(&bytes).expect("its length"))
}

fn has(table: &[zerocopy::little_endian::U32; 256], opcode: u8) -> bool {
    table[usize::from(opcode)].get() & effect::SUPPORTED != 0
}

async fn mandatory_commands_are_listed(b: &mut Bench) -> Verdict {
    use opcode::admin::{
        ABORT, ASYNC_EVENT_REQUEST, CREATE_CQ, CREATE_SQ, DELETE_CQ, DELETE_SQ, GET_FEATURES,
        GET_LOG_PAGE, IDENTIFY, SET_FEATURES,
    };
    let effects = effects(b).await?;
    for opcode in [
        DELETE_SQ,
        CREATE_SQ,
        GET_LOG_PAGE,
        DELETE_CQ,
        CREATE_CQ,
        IDENTIFY,
        ABORT,
        SET_FEATURES,
        GET_FEATURES,
        ASYNC_EVENT_REQUEST,
    ] {
        hold!(has(&effects.admin, opcode), "admin command {opcode:#04x} is not listed");
    }
    for opcode in [opcode::io::FLUSH, opcode::io::WRITE, opcode::io::READ] {
        hold!(has(&effects.io, opcode), "I/O command {opcode:#04x} is not listed");
    }
    Ok(())
}

async fn effects_agree_with_identify(b: &mut Bench) -> Verdict {
    use wire::nvme::identify::{oacs, oncs};
    use wire::nvme::opcode::{admin, io};
    let effects = effects(b).await?;
    let (oncs_has, oacs_has) = (b.id.oncs.get(), b.id.oacs.get());
    for (bit, opcode) in [
        (oncs::COMPARE, io::COMPARE),
        (oncs::WRITE_UNCORRECTABLE, io::WRITE_UNCORRECTABLE),
        (oncs::DATASET_MANAGEMENT, io::DATASET_MANAGEMENT),
        (oncs::WRITE_ZEROES, io::WRITE_ZEROES),
        (oncs::RESERVATIONS, io::RESERVATION_REPORT),
        (oncs::VERIFY, io::VERIFY),
        (oncs::COPY, io::COPY),
    ] {
        let listed = has(&effects.io, opcode);
        hold!(listed == (oncs_has & bit != 0), "I/O command {opcode:#04x}: ONCS {oncs_has:#x}");
    }
    for (bit, opcode) in [
        (oacs::SECURITY, admin::SECURITY_SEND),
        (oacs::FORMAT, admin::FORMAT_NVM),
        (oacs::FIRMWARE, admin::FIRMWARE_COMMIT),
        (oacs::NAMESPACE_MANAGEMENT, admin::NAMESPACE_MANAGEMENT),
        (oacs::SELF_TEST, admin::SELF_TEST),
        (oacs::DOORBELL_BUFFER, admin::DOORBELL_BUFFER_CONFIG),
    ] {
        let listed = has(&effects.admin, opcode);
        hold!(listed == (oacs_has & bit != 0), "admin command {opcode:#04x}: OACS {oacs_has:#x}");
    }
    Ok(())
}

async fn writes_change_content(b: &mut Bench) -> Verdict {
    let effects = effects(b).await?;
    let content = |opcode: u8| effects.io[usize::from(opcode)].get() & effect::CONTENT != 0;
    hold!(content(opcode::io::WRITE), "Write does not change content");
    hold!(!content(opcode::io::READ), "Read changes content");
    Ok(())
}
