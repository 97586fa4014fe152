//! Range commands and formats: NVM command set 1.0, 3.2.2 and 3.2.3; NVMe base 2.0, 5.14.

use wire::nvme::admin::{self, FormatNvm};
use wire::nvme::dsm::{Attributes, Context};
use wire::nvme::entry::Sqe;
use wire::nvme::identify::{oacs, oncs};
use wire::nvme::io;
use wire::nvme::ranges::{CopyRange, DsmRange};
use wire::nvme::status::Status;
use wire::{Lba, Nsid};
use zerocopy::{FromZeros, IntoBytes};

use crate::bench::{Bench, Pair, noise};
use crate::case::{Section, cases};
use crate::verdict::{Stop, Verdict, hold, needs};

const SET: &str = "NVM command set 1.0";

pub(super) const SECTIONS: &[Section] = &[
    Section {
        of: SET,
        number: "3.2.2",
        title: "Copy",
        cases: cases! {
            Writes copy_of_ranges "ranges are copied one behind the other";
            Writes copy_leaves_its_source "the source stays as it was";
            None copy_of_too_many_ranges "more ranges than MSRC: Command Size Limit Exceeded";
            None copy_of_too_long_a_range
                "more blocks in a range than MSSRL: Command Size Limit Exceeded";
            None copy_of_too_many_blocks "more blocks in all than MCL: Command Size Limit Exceeded";
            Writes copy_of_as_much_as_there_can_be "the longest range, and as many as there may be";
            None copy_from_past_the_end "a source past the end: LBA Out of Range";
            None copy_to_past_the_end "a destination past the end: LBA Out of Range";
            None copy_of_another_format "a descriptor format that CDFS does not have: Invalid Field";
        },
    },
    Section {
        of: SET,
        number: "3.2.3",
        title: "Dataset Management",
        cases: cases! {
            Writes deallocated_blocks_read_as_promised
                "deallocated blocks read as DLFEAT says, the others as before";
            Writes deallocate_of_many_ranges "256 ranges in a command, each of them and nothing else";
            Writes hints_change_nothing "without AD the data stay";
            None deallocate_past_the_end "a range past the end: LBA Out of Range, or nothing happens";
            Writes deallocate_of_nothing "a range of no blocks takes nothing back";
            Writes written_after_deallocate "what is written afterwards is read";
        },
    },
    Section {
        of: "NVMe base 2.0",
        number: "5.14",
        title: "Format NVM",
        cases: cases! {
            None format_that_there_is_not "a format above NLBAF: Invalid Format";
            None format_of_reserved_erase "a reserved SES: Invalid Field";
            Erases formatted_blocks_are_empty "after a format, what was there is not read";
            Erases formats_change_the_blocks
                "each format without metadata changes LBADS and NSZE, and works";
        },
    },
];

async fn copying(b: &mut Bench) -> Verdict<Pair> {
    needs!(b.id.oncs.get() & oncs::COPY != 0, "ONCS: Copy");
    b.plain_io().await
}

/// A Copy of these ranges (first block, count).
fn copy(b: &Bench, to: u64, ranges: &[(u64, u32)]) -> Verdict<wire::nvme::entry::Sqe> {
    let list: Vec<u8> = ranges
        .iter()
        .flat_map(|(lba, blocks)| {
            let mut range = CopyRange::new_zeroed();
            range.lba = (*lba).into();
            range.nlb = ((*blocks - 1) as u16).into();
            range.as_bytes().to_vec()
        })
        .collect();
    let at = b.place(list.len() as u64, b.page_bytes)?;
    b.store_bytes(at, &list);
    let data = b.data(at, list.len() as u64)?;
    Ok(io::copy(b.cid(), b.nsid, Lba(to), ranges.len() as u16, data))
}

async fn copy_of_ranges(b: &mut Bench) -> Verdict {
    let mut pair = copying(b).await?;
    needs!(b.ns.msrc >= 2 && b.ns.mssrl.get() >= 4 && b.ns.mcl.get() >= 7, "three short ranges");
    let (block, data) = (b.block() as usize, noise(50, 16 * b.block()));
    b.write(&mut pair, 100, &data).await?;
    let beside = noise(49, 9 * b.block());
    b.write(&mut pair, 199, &beside).await?;
    b.ok(&mut pair, &copy(b, 200, &[(108, 2), (100, 1), (103, 4)])?).await?;
    let part = |from: usize, blocks: usize| &data[from * block..][..blocks * block];
    let (before, behind) = (&beside[..block], &beside[8 * block..]);
    let expected = [before, part(8, 2), part(0, 1), part(3, 4), behind].concat();
    b.holds(&mut pair, 199, &expected).await
}

async fn copy_leaves_its_source(b: &mut Bench) -> Verdict {
    let mut pair = copying(b).await?;
    let data = noise(51, 2 * b.block());
    b.write(&mut pair, 120, &data).await?;
    b.ok(&mut pair, &copy(b, 130, &[(120, 2)])?).await?;
    b.holds(&mut pair, 120, &data).await
}

const TOO_LARGE: &[Status] = &[Status::COMMAND_SIZE_LIMIT_EXCEEDED];

async fn copy_of_too_many_ranges(b: &mut Bench) -> Verdict {
    let mut pair = copying(b).await?;
    let most = usize::from(b.ns.msrc) + 1;
    needs!(most < 256, "a limit below 256 ranges");
    let sqe = copy(b, 200, &vec![(0, 1); most + 1])?;
    b.ends(&mut pair, &sqe, TOO_LARGE).await
}

async fn copy_of_too_long_a_range(b: &mut Bench) -> Verdict {
    let mut pair = copying(b).await?;
    let most = u32::from(b.ns.mssrl.get());
    needs!(most < 1 << 16, "a limit below 65,536 blocks");
    let sqe = copy(b, 200, &[(0, most + 1)])?;
    b.ends(&mut pair, &sqe, TOO_LARGE).await
}

async fn copy_of_too_many_blocks(b: &mut Bench) -> Verdict {
    let mut pair = copying(b).await?;
    let (one, all) = (u32::from(b.ns.mssrl.get()), b.ns.mcl.get());
    let whole = (all / one) as usize;
    needs!(whole <= usize::from(b.ns.msrc), "MCL within reach of MSRC ranges");
    let ranges = [vec![(0, one); whole], vec![(0, all % one + 1)]].concat();
    let sqe = copy(b, b.ns.nsze.get() / 2, &ranges)?;
    b.ends(&mut pair, &sqe, TOO_LARGE).await
}

async fn copy_of_as_much_as_there_can_be(b: &mut Bench) -> Verdict {
    let mut pair = copying(b).await?;
    let one = u32::from(b.ns.mssrl.get());
    needs!(u64::from(one) * b.block() <= 4 << 20, "a range of at most 4 MiB");
    let many = (usize::from(b.ns.msrc) + 1).min(b.ns.mcl.get() as usize);
    needs!(b.ns.nsze.get() >= 2 * u64::from(one) + 2 * many as u64, "blocks for two such ranges");
    let data = noise(48, u64::from(one) * b.block());
    let piece = b.blocks_within(64 << 10) as usize * b.block() as usize;
    let lba = |byte: usize| (byte / b.block() as usize) as u64;
    for (number, part) in data.chunks(piece).enumerate() {
        b.write(&mut pair, lba(number * piece), part).await?;
    }
    b.ok(&mut pair, &copy(b, u64::from(one), &[(0, one)])?).await?;
    for (number, part) in data.chunks(piece).enumerate() {
        b.holds(&mut pair, u64::from(one) + lba(number * piece), part).await?;
    }
    let (to, block) = (2 * u64::from(one), b.block() as usize);
    b.ok(&mut pair, &copy(b, to, &vec![(3, 1); many])?).await?;
    b.holds(&mut pair, to + many as u64 - 1, &data[3 * block..][..block]).await
}

async fn copy_from_past_the_end(b: &mut Bench) -> Verdict {
    let mut pair = copying(b).await?;
    let end = b.ns.nsze.get();
    for (lba, blocks) in [(end, 1), (end - 1, 2), (u64::MAX, 1)] {
        b.ends(&mut pair, &copy(b, 0, &[(lba, blocks)])?, &[Status::LBA_OUT_OF_RANGE]).await?;
    }
    Ok(())
}

async fn copy_to_past_the_end(b: &mut Bench) -> Verdict {
    let mut pair = copying(b).await?;
    let end = b.ns.nsze.get();
    for (to, blocks) in [(end, 1), (end - 1, 2), (u64::MAX, 1)] {
        b.ends(&mut pair, &copy(b, to, &[(0, blocks)])?, &[Status::LBA_OUT_OF_RANGE]).await?;
    }
    Ok(())
}

async fn copy_of_another_format(b: &mut Bench) -> Verdict {
    let mut pair = copying(b).await?;
    let lacks = (0..16).find(|format| b.id.cdfs.get() & 1 << format == 0);
    let Some(format) = lacks else { return Stop::lacks("a format that CDFS does not have") };
    let mut sqe = copy(b, 200, &[(0, 1)])?;
    sqe.cdw12 = (sqe.cdw12.get() | format << 8).into();
    b.ends(&mut pair, &sqe, &[Status::INVALID_FIELD]).await
}

async fn managing(b: &mut Bench) -> Verdict<Pair> {
    needs!(b.id.oncs.get() & oncs::DATASET_MANAGEMENT != 0, "ONCS: Dataset Management");
    b.plain_io().await
}

fn manage(b: &Bench, deallocate: bool, ranges: &[(u64, u32)]) -> Verdict<Sqe> {
    let range = |(lba, blocks): &(u64, u32)| DsmRange::new(Lba(*lba), *blocks);
    manage_list(b, deallocate, &ranges.iter().map(range).collect::<Vec<_>>())
}

fn manage_list(b: &Bench, deallocate: bool, ranges: &[DsmRange]) -> Verdict<Sqe> {
    let list = ranges.as_bytes();
    let at = b.place(list.len() as u64, b.page_bytes)?;
    b.store_bytes(at, list);
    let data = b.data(at, list.len() as u64)?;
    let attributes = Attributes::new().with_deallocate(deallocate);
    Ok(io::dataset_management(b.cid(), b.nsid, ranges.len() as u16, attributes, data))
}

/// Checks that these blocks read as deallocated ones may, given their earlier data `held`.
async fn taken_back(b: &Bench, pair: &mut Pair, lba: u64, held: &[u8]) -> Verdict {
    let blocks = (held.len() as u64 / b.block()) as u32;
    let found = b.read(pair, lba, blocks).await?;
    let block = b.block() as usize;
    for (number, (found, held)) in found.chunks(block).zip(held.chunks(block)).enumerate() {
        let (zeros, ones) = (found.iter().all(|x| *x == 0), found.iter().all(|x| *x == 0xff));
        let well = match b.ns.dlfeat & 7 {
            1 => zeros,
            2 => ones,
            _ => zeros || ones || found == held,
        };
        let block = lba + number as u64;
        hold!(well, "deallocated block {block} reads as DLFEAT {:#x} does not say", b.ns.dlfeat);
    }
    Ok(())
}

async fn deallocated_blocks_read_as_promised(b: &mut Bench) -> Verdict {
    let mut pair = managing(b).await?;
    let (block, data) = (b.block() as usize, noise(52, 16 * b.block()));
    b.write(&mut pair, 140, &data).await?;
    b.ok(&mut pair, &manage(b, true, &[(144, 8)])?).await?;
    b.holds(&mut pair, 140, &data[..4 * block]).await?;
    taken_back(b, &mut pair, 144, &data[4 * block..12 * block]).await?;
    b.holds(&mut pair, 152, &data[12 * block..]).await?;
    if b.ns.dlfeat & 7 == 1 && b.id.oncs.get() & oncs::COMPARE != 0 {
        let at = b.place(b.block(), b.page_bytes)?;
        let sqe = io::compare(b.cid(), b.nsid, Lba(145), 1, b.data(at, b.block())?);
        b.ok(&mut pair, &sqe).await?;
        b.store_bytes(at, &[1]);
        b.ends(&mut pair, &sqe, &[Status::COMPARE_FAILURE]).await?;
    }
    Ok(())
}

async fn deallocate_of_many_ranges(b: &mut Bench) -> Verdict {
    let mut pair = managing(b).await?;
    needs!(b.ns.nsze.get() >= 1024, "a thousand blocks");
    let (block, data) = (b.block() as usize, noise(53, 512 * b.block()));
    let piece = b.blocks_within(64 * b.block()) as usize;
    for (number, part) in data.chunks(piece * block).enumerate() {
        b.write(&mut pair, 512 + (number * piece) as u64, part).await?;
    }
    let ranges: Vec<(u64, u32)> = (0..256).map(|number| (512 + 2 * number, 1)).collect();
    b.ok(&mut pair, &manage(b, true, &ranges)?).await?;
    let mut found = Vec::new();
    for number in 0..512 {
        found.extend(b.read(&mut pair, 512 + number, 1).await?);
    }
    for (number, (found, held)) in found.chunks(block).zip(data.chunks(block)).enumerate() {
        hold!(number % 2 == 0 || found == held, "block {} beside the ranges changed", 512 + number);
    }
    taken_back(b, &mut pair, 512, &data[..block]).await
}

async fn hints_change_nothing(b: &mut Bench) -> Verdict {
    let mut pair = managing(b).await?;
    let data = noise(54, 4 * b.block());
    b.write(&mut pair, 160, &data).await?;
    b.ok(&mut pair, &manage(b, false, &[(160, 4)])?).await?;
    // Each access frequency with each latency, one more bit, and reserved ones.
    let contexts = (0..32).map(|bit| 1 << bit).chain(0..64).chain([u32::MAX]);
    let range = |bits| DsmRange::hinted(Lba(160), 4, Context::from_bits(bits));
    let all: Vec<DsmRange> = contexts.map(range).collect();
    b.ok(&mut pair, &manage_list(b, false, &all)?).await?;
    b.holds(&mut pair, 160, &data).await?;
    b.write(&mut pair, 160, &data).await?;
    b.holds(&mut pair, 160, &data).await
}

async fn deallocate_past_the_end(b: &mut Bench) -> Verdict {
    let mut pair = managing(b).await?;
    let sqe = manage(b, true, &[(b.ns.nsze.get(), 1)])?;
    b.ends(&mut pair, &sqe, &[Status::LBA_OUT_OF_RANGE, Status::SUCCESS]).await
}

async fn deallocate_of_nothing(b: &mut Bench) -> Verdict {
    let mut pair = managing(b).await?;
    let data = noise(55, 2 * b.block());
    b.write(&mut pair, 170, &data).await?;
    b.run(&mut pair, &manage(b, true, &[(170, 0)])?).await?;
    b.holds(&mut pair, 170, &data).await
}

async fn written_after_deallocate(b: &mut Bench) -> Verdict {
    let mut pair = managing(b).await?;
    for seed in 56..60 {
        let data = noise(seed, 4 * b.block());
        b.write(&mut pair, 180, &data).await?;
        b.holds(&mut pair, 180, &data).await?;
        b.ok(&mut pair, &manage(b, true, &[(180, 4)])?).await?;
    }
    Ok(())
}

async fn format_refused(b: &mut Bench, format: FormatNvm, with: &[Status]) -> Verdict {
    needs!(b.id.oacs.get() & oacs::FORMAT != 0, "OACS: Format NVM");
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    let sqe = admin::format_nvm(b.cid(), b.nsid, format);
    b.admin_ends(&sqe, with).await
}

async fn format_that_there_is_not(b: &mut Bench) -> Verdict {
    let format = b.ns.nlbaf + 1;
    needs!(format < 16, "a format above NLBAF");
    let with = [Status::INVALID_FORMAT];
    format_refused(b, FormatNvm { format, ..FormatNvm::default() }, &with).await
}

async fn format_of_reserved_erase(b: &mut Bench) -> Verdict {
    let format = FormatNvm { format: b.ns.flbas & 0xf, erase: 7, ..FormatNvm::default() };
    format_refused(b, format, &[Status::INVALID_FIELD]).await
}

async fn format(b: &mut Bench, number: u8) -> Verdict {
    let format = FormatNvm { format: number, erase: 1, ..FormatNvm::default() };
    let sqe = admin::format_nvm(b.cid(), b.nsid, format);
    b.admin_ok(&sqe).await?;
    b.ask_what_it_is().await
}

async fn formatted_blocks_are_empty(b: &mut Bench) -> Verdict {
    needs!(b.id.oacs.get() & oacs::FORMAT != 0, "OACS: Format NVM");
    let mut pair = b.plain_io().await?;
    let data = noise(61, 4 * b.block());
    b.write(&mut pair, 190, &data).await?;
    format(b, b.ns.flbas & 0xf).await?;
    let found = b.read(&mut pair, 190, 4).await?;
    hold!(found != data, "the data are still read after a format");
    Ok(())
}

async fn formats_change_the_blocks(b: &mut Bench) -> Verdict {
    needs!(b.id.oacs.get() & oacs::FORMAT != 0, "OACS: Format NVM");
    let mut pair = b.plain_io().await?;
    needs!(b.ns.nlbaf > 0, "a second format");
    let before = b.ns.flbas & 0xf;
    let bytes = b.ns.nsze.get() * b.block();
    for number in 0..=b.ns.nlbaf.min(15) {
        let shape = b.ns.lbaf[usize::from(number)];
        if shape.ms.get() > 0 || shape.block_bytes().is_none() {
            continue;
        }
        format(b, number).await?;
        let (found, block) = (b.ns.flbas & 0xf, b.block());
        hold!(found == number, "FLBAS is {found} after a format to {number}");
        let size = b.ns.nsze.get() * block;
        hold!(size.abs_diff(bytes) <= bytes / 100, "{size} bytes after the format, {bytes} before");
        let data = noise(62, 2 * block);
        b.write(&mut pair, b.ns.nsze.get() - 2, &data).await?;
        b.holds(&mut pair, b.ns.nsze.get() - 2, &data).await?;
    }
    format(b, before).await
}
