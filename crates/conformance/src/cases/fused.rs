//! Fused operations (NVMe base 2.0, 3.4.2) and Write Uncorrectable (NVM command set 1.0, 3.2.7).

use wire::nvme::admin::{self, FormatNvm};
use wire::nvme::dsm::Attributes;
use wire::nvme::entry::Sqe;
use wire::nvme::identify::{oacs, oncs};
use wire::nvme::io;
use wire::nvme::ranges::{CopyRange, DsmRange};
use wire::nvme::status::Status;
use wire::{BusAddr, Lba};
use zerocopy::IntoBytes;

use crate::bench::{Bench, Pair, noise, words};
use crate::case::{Section, cases};
use crate::verdict::{Stop, Verdict, hold, needs};

pub(super) const SECTIONS: &[Section] = &[
    Section {
        of: "NVMe base 2.0",
        number: "3.4.2",
        title: "fused operations",
        cases: cases! {
            Writes pair_that_compares "equal data: both succeed, and the write is done";
            Writes pair_that_differs "data that differ: neither succeeds, and nothing is written";
            Writes pairs_one_behind_the_other "the second of two pairs finds what the first wrote, and fails";
            None first_alone "a first without a second: Missing Fused Command";
            Writes second_alone "a second without a first: Missing Fused Command";
            None first_before_another "a first before a command that stands alone: the first is aborted";
            Writes pair_of_other_blocks "a pair on different blocks: Invalid Field";
            None fuse_of_three "FUSE of 11b: Invalid Field";
        },
    },
    Section {
        of: "NVM command set 1.0",
        number: "3.2.7",
        title: "Write Uncorrectable",
        cases: cases! {
            Writes uncorrectable_is_not_read "a read of the block fails, and of those beside it succeeds";
            Writes uncorrectable_to_all_that_read "it fails whatever reads it: Compare, Verify, Copy";
            Writes uncorrectable_until_written_in_any_way "whatever writes it makes it readable";
            Erases uncorrectable_until_formatted "a format makes it readable";
            Writes uncorrectable_until_written "once it is written it is read";
            Writes uncorrectable_across_a_reset "it outlasts a reset";
            None uncorrectable_past_the_end "a block past the end: LBA Out of Range";
        },
    },
];

const MISSING: &[Status] = &[Status::ABORTED_MISSING_FUSED];

async fn fusing(b: &mut Bench) -> Verdict<Pair> {
    needs!(b.id.fuses.get() & 1 != 0, "FUSES: Compare and Write");
    b.plain_io().await
}

fn half(sqe: Sqe, fuse: u8) -> Sqe {
    Sqe { flags: sqe.flags.with_fuse(fuse), ..sqe }
}

/// Allocates memory with these bytes, of one block.
fn placed(b: &Bench, bytes: &[u8]) -> Verdict<BusAddr> {
    let at = b.place(b.block(), b.page_bytes)?;
    b.store_bytes(at, bytes);
    Ok(at)
}

/// A fused pair: Compare with one block of data and Write of another.
fn pair_of(b: &Bench, lba: u64, compared: &[u8], written: &[u8]) -> Verdict<[Sqe; 2]> {
    let (compared, written) = (placed(b, compared)?, placed(b, written)?);
    let compare = io::compare(b.cid(), b.nsid, Lba(lba), 1, b.data(compared, b.block())?);
    let write = io::write(b.cid(), b.nsid, Lba(lba), 1, false, b.data(written, b.block())?);
    Ok([half(compare, 1), half(write, 2)])
}

/// Submits these with one doorbell, and checks each against its permitted statuses.
async fn end(b: &Bench, pair: &mut Pair, sqes: &[(Sqe, &[Status])]) -> Verdict {
    sqes.iter().for_each(|(sqe, _)| b.store(&mut pair.sq, sqe));
    b.ring(&pair.sq);
    for _ in sqes {
        let cqe = b.next(&mut pair.cq).await?;
        let Some(place) = sqes.iter().position(|(sqe, _)| sqe.id() == cqe.id()) else {
            return Stop::failed(format!(
                "a completion of {:?}, which is not one of them",
                cqe.id()
            ));
        };
        let (status, with) = (cqe.status().kind(), sqes[place].1);
        hold!(
            with.contains(&status),
            "command {place} ended with {status}, expected {}",
            words(with)
        );
    }
    Ok(())
}

async fn pair_that_compares(b: &mut Bench) -> Verdict {
    let mut pair = fusing(b).await?;
    let (old, new) = (noise(60, b.block()), noise(61, b.block()));
    b.write(&mut pair, 7, &old).await?;
    let [first, second] = pair_of(b, 7, &old, &new)?;
    let ok: &[Status] = &[Status::SUCCESS];
    end(b, &mut pair, &[(first, ok), (second, ok)]).await?;
    b.holds(&mut pair, 7, &new).await
}

async fn pair_that_differs(b: &mut Bench) -> Verdict {
    let mut pair = fusing(b).await?;
    let (old, new) = (noise(62, b.block()), noise(63, b.block()));
    b.write(&mut pair, 7, &old).await?;
    let [first, second] = pair_of(b, 7, &new, &new)?;
    let statuses: [&[Status]; 2] = [&[Status::COMPARE_FAILURE], &[Status::ABORTED_FAILED_FUSED]];
    end(b, &mut pair, &[(first, statuses[0]), (second, statuses[1])]).await?;
    b.holds(&mut pair, 7, &old).await
}

async fn pairs_one_behind_the_other(b: &mut Bench) -> Verdict {
    let mut pair = fusing(b).await?;
    let (old, new) = (noise(64, b.block()), noise(65, b.block()));
    b.write(&mut pair, 7, &old).await?;
    let [first, second] = pair_of(b, 7, &old, &new)?;
    let [third, fourth] = pair_of(b, 7, &old, &new)?;
    // The controller may execute either pair first.
    let compare: &[Status] = &[Status::SUCCESS, Status::COMPARE_FAILURE];
    let write: &[Status] = &[Status::SUCCESS, Status::ABORTED_FAILED_FUSED];
    let all = [(first, compare), (second, write), (third, compare), (fourth, write)];
    end(b, &mut pair, &all).await?;
    b.holds(&mut pair, 7, &new).await?;
    let [first, second] = pair_of(b, 7, &old, &old)?;
    let statuses: [&[Status]; 2] = [&[Status::COMPARE_FAILURE], &[Status::ABORTED_FAILED_FUSED]];
    end(b, &mut pair, &[(first, statuses[0]), (second, statuses[1])]).await
}

async fn first_alone(b: &mut Bench) -> Verdict {
    let mut pair = fusing(b).await?;
    let data = noise(66, b.block());
    let [first, _] = pair_of(b, 7, &data, &data)?;
    end(b, &mut pair, &[(first, MISSING)]).await
}

async fn second_alone(b: &mut Bench) -> Verdict {
    let mut pair = fusing(b).await?;
    let data = noise(67, b.block());
    let [_, second] = pair_of(b, 7, &data, &data)?;
    end(b, &mut pair, &[(second, MISSING)]).await
}

async fn first_before_another(b: &mut Bench) -> Verdict {
    let mut pair = fusing(b).await?;
    let data = noise(68, b.block());
    let [first, _] = pair_of(b, 7, &data, &data)?;
    let flush = io::flush(b.cid(), b.nsid);
    end(b, &mut pair, &[(first, MISSING), (flush, &[Status::SUCCESS])]).await
}

async fn pair_of_other_blocks(b: &mut Bench) -> Verdict {
    let mut pair = fusing(b).await?;
    let data = noise(69, b.block());
    let ([first, _], [_, second]) = (pair_of(b, 7, &data, &data)?, pair_of(b, 8, &data, &data)?);
    let invalid: &[Status] = &[Status::INVALID_FIELD];
    end(b, &mut pair, &[(first, invalid), (second, invalid)]).await
}

async fn fuse_of_three(b: &mut Bench) -> Verdict {
    let mut pair = fusing(b).await?;
    let flush = half(io::flush(b.cid(), b.nsid), 3);
    end(b, &mut pair, &[(flush, &[Status::INVALID_FIELD])]).await
}

async fn marking(b: &mut Bench) -> Verdict<Pair> {
    needs!(b.id.oncs.get() & oncs::WRITE_UNCORRECTABLE != 0, "ONCS: Write Uncorrectable");
    b.plain_io().await
}

/// Reads one block and expects this status.
async fn read_of(b: &Bench, pair: &mut Pair, lba: u64, with: Status) -> Verdict {
    let at = b.place(b.block(), b.page_bytes)?;
    let sqe = io::read(b.cid(), b.nsid, Lba(lba), 1, false, b.data(at, b.block())?);
    b.ends(pair, &sqe, &[with]).await
}

/// Fills blocks 30 to 34 with noise, and marks block 32 uncorrectable.
async fn marked(b: &mut Bench, seed: u64) -> Verdict<(Pair, Vec<u8>)> {
    let mut pair = marking(b).await?;
    let data = noise(seed, 5 * b.block());
    b.write(&mut pair, 30, &data).await?;
    b.ok(&mut pair, &io::write_uncorrectable(b.cid(), b.nsid, Lba(32), 1)).await?;
    Ok((pair, data))
}

/// Rewrites the blocks, so that later cases find them readable.
async fn mended(b: &Bench, pair: &mut Pair, data: &[u8]) -> Verdict {
    b.write(pair, 30, data).await?;
    b.holds(pair, 30, data).await
}

async fn uncorrectable_is_not_read(b: &mut Bench) -> Verdict {
    let (mut pair, data) = marked(b, 70).await?;
    for lba in 30..35 {
        let lost = Status::UNRECOVERED_READ_ERROR;
        let with = if lba == 32 { lost } else { Status::SUCCESS };
        read_of(b, &mut pair, lba, with).await?;
    }
    mended(b, &mut pair, &data).await
}

async fn uncorrectable_to_all_that_read(b: &mut Bench) -> Verdict {
    let (mut pair, data) = marked(b, 73).await?;
    let bytes = 4 * b.block();
    let at = b.place(bytes, b.page_bytes)?;
    let has = b.id.oncs.get();
    let mut commands = vec![io::read(b.cid(), b.nsid, Lba(30), 4, false, b.data(at, bytes)?)];
    if has & oncs::COMPARE != 0 {
        commands.push(io::compare(b.cid(), b.nsid, Lba(32), 1, b.data(at, b.block())?));
    }
    if has & oncs::VERIFY != 0 {
        commands.push(io::verify(b.cid(), b.nsid, Lba(30), 5));
    }
    if has & oncs::COPY != 0 {
        commands.push(copied(b, 31, 2, 60)?);
    }
    for sqe in commands {
        b.ends(&mut pair, &sqe, &[Status::UNRECOVERED_READ_ERROR]).await?;
    }
    mended(b, &mut pair, &data).await
}

/// A Copy of `blocks` blocks.
fn copied(b: &Bench, from: u64, blocks: u32, to: u64) -> Verdict<Sqe> {
    let at = b.place(32, b.page_bytes)?;
    b.store_bytes(at, CopyRange::new(Lba(from), blocks).as_bytes());
    Ok(io::copy(b.cid(), b.nsid, Lba(to), 1, b.data(at, 32)?))
}

async fn uncorrectable_until_written_in_any_way(b: &mut Bench) -> Verdict {
    let (mut pair, data) = marked(b, 74).await?;
    let has = b.id.oncs.get();
    let mut commands = Vec::new();
    if has & oncs::WRITE_ZEROES != 0 {
        for deallocate in [false, true] {
            commands.push(io::write_zeroes(b.cid(), b.nsid, Lba(32), 1, false, deallocate));
        }
    }
    if has & oncs::COPY != 0 {
        commands.push(copied(b, 30, 1, 32)?);
    }
    // Deallocated blocks that read as zeros are readable.
    if has & oncs::DATASET_MANAGEMENT != 0 && b.ns.dlfeat & 7 == 1 {
        let at = b.place(16, b.page_bytes)?;
        b.store_bytes(at, DsmRange::new(Lba(32), 1).as_bytes());
        commands.push(io::dataset_management(
            b.cid(),
            b.nsid,
            1,
            Attributes::DEALLOCATE,
            b.data(at, 16)?,
        ));
    }
    for sqe in commands {
        for lba in [32, 33] {
            b.ok(&mut pair, &io::write_uncorrectable(b.cid(), b.nsid, Lba(lba), 1)).await?;
        }
        b.ok(&mut pair, &sqe).await?;
        read_of(b, &mut pair, 32, Status::SUCCESS).await?;
        read_of(b, &mut pair, 33, Status::UNRECOVERED_READ_ERROR).await?;
    }
    mended(b, &mut pair, &data).await
}

async fn uncorrectable_until_formatted(b: &mut Bench) -> Verdict {
    needs!(b.id.oacs.get() & oacs::FORMAT != 0, "OACS: Format NVM");
    let (mut pair, _) = marked(b, 75).await?;
    let format = FormatNvm { format: b.ns.flbas & 0xf, ..FormatNvm::default() };
    b.admin_ok(&admin::format_nvm(b.cid(), b.nsid, format)).await?;
    read_of(b, &mut pair, 32, Status::SUCCESS).await
}

async fn uncorrectable_until_written(b: &mut Bench) -> Verdict {
    let (mut pair, data) = marked(b, 71).await?;
    let block = b.block() as usize;
    b.write(&mut pair, 32, &data[..block]).await?;
    b.holds(&mut pair, 32, &data[..block]).await?;
    mended(b, &mut pair, &data).await
}

async fn uncorrectable_across_a_reset(b: &mut Bench) -> Verdict {
    let (_, data) = marked(b, 72).await?;
    b.disable().await?;
    b.enable(crate::bench::Settings::usual()).await?;
    let mut pair = b.plain_io().await?;
    read_of(b, &mut pair, 32, Status::UNRECOVERED_READ_ERROR).await?;
    mended(b, &mut pair, &data).await
}

async fn uncorrectable_past_the_end(b: &mut Bench) -> Verdict {
    let mut pair = marking(b).await?;
    let end = b.ns.nsze.get();
    for (lba, blocks) in [(end, 1), (end - 1, 2), (u64::MAX, 1)] {
        let sqe = io::write_uncorrectable(b.cid(), b.nsid, Lba(lba), blocks);
        b.ends(&mut pair, &sqe, &[Status::LBA_OUT_OF_RANGE]).await?;
    }
    Ok(())
}
