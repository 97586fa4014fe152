//! Read, Write and related commands: NVM command set 1.0, 3.2, and Flush, NVMe base 2.0, 7.1.

use wire::nvme::admin;
use wire::nvme::entry::Sqe;
use wire::nvme::identify::{cns, oncs, vwc};
use wire::nvme::io;
use wire::nvme::status::Status;
use wire::{Lba, Nsid};

use crate::bench::{Bench, Pair, noise};
use crate::case::{Section, cases};
use crate::verdict::{Stop, Verdict, hold, needs};

const SET: &str = "NVM command set 1.0";

pub(super) const SECTIONS: &[Section] = &[
    Section {
        of: "NVMe base 2.0",
        number: "7.1",
        title: "Flush",
        cases: cases! {
            None flush_of_a_namespace "Flush of a namespace succeeds";
            None flush_of_all_namespaces "of FFFFFFFFh: as VWC says";
            Writes flush_behind_writes "a Flush behind writes completes, and the data are there";
        },
    },
    Section {
        of: SET,
        number: "3.2.1",
        title: "Compare",
        cases: cases! {
            Writes compare_of_equal_data "equal data: success";
            Writes compare_of_one_bit "one bit that differs: Compare Failure";
            Writes compare_changes_nothing "neither the medium nor host memory is changed";
            None compare_past_the_end "a block past the end: LBA Out of Range";
        },
    },
    Section {
        of: SET,
        number: "3.2.4",
        title: "Read",
        cases: cases! {
            None read_the_last_block "the last block can be read";
            None read_past_the_end "LBA = NSZE: LBA Out of Range";
            None read_across_the_end "the last block and one more: LBA Out of Range";
            None read_at_the_end_of_all_numbers "LBA FFFFFFFFFFFFFFFFh: LBA Out of Range";
            None read_the_same_twice "reading changes nothing";
            None read_with_fua "FUA and LR change nothing about the data";
            None reads_at_once "many reads at once, each to its own memory";
        },
    },
    Section {
        of: SET,
        number: "3.2.5",
        title: "Verify",
        cases: cases! {
            None verify_well "blocks that can be read: success, without data";
            None verify_past_the_end "a block past the end: LBA Out of Range";
        },
    },
    Section {
        of: SET,
        number: "3.2.6",
        title: "Write",
        cases: cases! {
            Writes write_then_read "what was written is read";
            Writes write_beside "the blocks before and behind stay as they were";
            Writes write_the_last_block "the last block can be written";
            None write_past_the_end "LBA = NSZE: LBA Out of Range";
            None write_across_the_end "the last block and one more: LBA Out of Range";
            Writes failed_write_changes_nothing "a write across the end changes no block before it";
            Writes write_with_fua "a write with FUA is read";
            Writes writes_at_once "many writes at once, each from its own memory";
            Writes last_write_counts "of writes one after the other, the last one counts";
            Writes write_leaves_memory_alone "a write changes nothing in host memory";
        },
    },
    Section {
        of: SET,
        number: "3.2.8",
        title: "Write Zeroes",
        cases: cases! {
            Writes zeroes_are_read "the blocks read as zeros, those beside as before";
            Writes zeroes_with_deallocate "with DEAC they read as zeros too";
            Erases zeroes_of_as_many_blocks_as_there_can_be
                "MDTS is no limit, WZSL is: where that is zero, 65,536 blocks at once";
            None zeroes_past_the_end "a block past the end: LBA Out of Range";
        },
    },
];

async fn flush_of_a_namespace(b: &mut Bench) -> Verdict {
    let mut pair = b.io().await?;
    b.ok(&mut pair, &io::flush(b.cid(), b.nsid)).await.map(drop)
}

async fn flush_of_all_namespaces(b: &mut Bench) -> Verdict {
    let mut pair = b.io().await?;
    let sqe = io::flush(b.cid(), Nsid::BROADCAST);
    match b.id.vwc & vwc::BROADCAST_FLUSH {
        vwc::BROADCAST_FLUSH => b.ok(&mut pair, &sqe).await.map(drop),
        vwc::NO_BROADCAST_FLUSH => {
            b.ends(&mut pair, &sqe, &[Status::INVALID_NAMESPACE_OR_FORMAT]).await
        }
        _ => Stop::lacks("VWC says nothing of flushing all namespaces"),
    }
}

async fn flush_behind_writes(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let data = noise(20, 4 * b.block());
    b.write(&mut pair, 40, &data).await?;
    b.ok(&mut pair, &io::flush(b.cid(), b.nsid)).await?;
    b.holds(&mut pair, 40, &data).await
}

async fn comparing(b: &mut Bench) -> Verdict<Pair> {
    needs!(b.id.oncs.get() & oncs::COMPARE != 0, "ONCS: Compare");
    b.plain_io().await
}

/// Compares blocks with `data`; returns the status, and the buffer afterwards.
async fn compared(b: &Bench, pair: &mut Pair, data: &[u8]) -> Verdict<(Status, Vec<u8>)> {
    let bytes = data.len() as u64;
    let at = b.place(bytes, b.page_bytes)?;
    b.store_bytes(at, data);
    let blocks = (bytes / b.block()) as u32;
    let sqe = io::compare(b.cid(), b.nsid, Lba(200), blocks, b.data(at, bytes)?);
    let status = b.run(pair, &sqe).await?.status();
    Ok((status.kind(), b.bytes(at, data.len())))
}

async fn compare_of_equal_data(b: &mut Bench) -> Verdict {
    let mut pair = comparing(b).await?;
    let data = noise(21, b.block());
    b.write(&mut pair, 200, &data).await?;
    let (status, _) = compared(b, &mut pair, &data).await?;
    hold!(status.is_ok(), "{status}");
    Ok(())
}

async fn compare_of_one_bit(b: &mut Bench) -> Verdict {
    let mut pair = comparing(b).await?;
    let mut data = noise(22, u64::from(b.blocks_within(96 << 10)) * b.block());
    b.write(&mut pair, 200, &data).await?;
    // Among others, the bytes at which controllers may split a transfer.
    for byte in [0, 7, 4095, 4096, (64 << 10) - 1, 64 << 10, data.len() / 2, data.len() - 1] {
        if byte >= data.len() {
            continue;
        }
        data[byte] ^= 0x10;
        let (status, _) = compared(b, &mut pair, &data).await?;
        data[byte] ^= 0x10;
        hold!(status == Status::COMPARE_FAILURE, "byte {byte} differs: {status}");
    }
    Ok(())
}

async fn compare_changes_nothing(b: &mut Bench) -> Verdict {
    let mut pair = comparing(b).await?;
    let (held, given) = (noise(23, b.block()), noise(24, b.block()));
    b.write(&mut pair, 200, &held).await?;
    let (_, memory) = compared(b, &mut pair, &given).await?;
    hold!(memory == given, "host memory was changed");
    b.holds(&mut pair, 200, &held).await
}

/// Runs a command at each of these block ranges; each must end as out of range.
async fn out_of_range(b: &mut Bench, make: u8, places: &[(u64, u32)]) -> Verdict {
    let mut pair = b.plain_io().await?;
    for (lba, blocks) in places {
        needs!(b.blocks_within(u64::MAX) >= *blocks, "{blocks} blocks in a command");
        let bytes = u64::from(*blocks) * b.block();
        let at = b.place(bytes, b.page_bytes)?;
        let read = io::read(b.cid(), b.nsid, Lba(*lba), *blocks, false, b.data(at, bytes)?);
        let sqe = Sqe { opcode: make, ..read };
        b.ends(&mut pair, &sqe, &[Status::LBA_OUT_OF_RANGE]).await?;
    }
    Ok(())
}

/// Ranges past the end: the block after the last, the last and that one, the last eight and that one.
fn at_the_end(b: &Bench) -> Verdict<[(u64, u32); 3]> {
    let end = b.ns.nsze.get();
    needs!(end >= 8, "a namespace of eight blocks");
    Ok([(end, 1), (end - 1, 2), (end - 8, 9)])
}

use wire::nvme::opcode::io as op;

async fn compare_past_the_end(b: &mut Bench) -> Verdict {
    needs!(b.id.oncs.get() & oncs::COMPARE != 0, "ONCS: Compare");
    let places = at_the_end(b)?;
    out_of_range(b, op::COMPARE, &places).await
}

async fn read_the_last_block(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    b.read(&mut pair, b.ns.nsze.get() - 1, 1).await.map(drop)
}

async fn read_past_the_end(b: &mut Bench) -> Verdict {
    out_of_range(b, op::READ, &[(b.ns.nsze.get(), 1), (b.ns.nsze.get() + 1, 1)]).await
}

async fn read_across_the_end(b: &mut Bench) -> Verdict {
    let [_, across, longer] = at_the_end(b)?;
    out_of_range(b, op::READ, &[across, longer]).await
}

async fn read_at_the_end_of_all_numbers(b: &mut Bench) -> Verdict {
    // The second wraps to the first block; others wrap if blocks are counted in bytes.
    let block = b.block();
    let places = [
        (u64::MAX, 1),
        (u64::MAX, 2),
        (u64::MAX - 7, 8),
        (u64::MAX - 7, 16),
        (1 << 63, 16),
        (u64::MAX / block, 16),
        (u64::MAX / block + 1, 1),
    ];
    out_of_range(b, op::READ, &places).await
}

async fn read_the_same_twice(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let first = b.read(&mut pair, 0, 4).await?;
    b.holds(&mut pair, 0, &first).await
}

async fn read_with_fua(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let expected = b.read(&mut pair, 0, 2).await?;
    for bits in [1 << 30, 1 << 31, 3 << 30] {
        let at = b.place(2 * b.block(), b.page_bytes)?;
        let data = b.data(at, 2 * b.block())?;
        let mut sqe = io::read(b.cid(), b.nsid, Lba(0), 2, false, data);
        sqe.cdw12 = (sqe.cdw12.get() | bits).into();
        b.ok(&mut pair, &sqe).await?;
        hold!(b.bytes(at, expected.len()) == expected, "the data differ, bits {bits:#x}");
    }
    Ok(())
}

/// One command of two blocks at each of 32 places, all with one doorbell.
async fn at_once(b: &Bench, pair: &mut Pair, opcode: u8, at: wire::BusAddr) -> Verdict {
    let bytes = 2 * b.block();
    for number in 0..32 {
        let data = b.data(wire::BusAddr(at.0 + number * bytes), bytes)?;
        let read = io::read(b.cid(), b.nsid, Lba(2 * number), 2, false, data);
        b.store(&mut pair.sq, &Sqe { opcode, ..read });
    }
    b.ring(&pair.sq);
    for _ in 0..32 {
        let cqe = b.next(&mut pair.cq).await?;
        hold!(cqe.status().is_ok(), "{:?}: {}", cqe.id(), cqe.status());
    }
    Ok(())
}

async fn reads_at_once(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    needs!(pair.sq.entries > 32, "queues of more than 32 entries");
    let bytes = 64 * b.block();
    let mut expected = Vec::new();
    for number in 0..32 {
        expected.extend(b.read(&mut pair, 2 * number, 2).await?);
    }
    let at = b.place(bytes, b.page_bytes)?;
    at_once(b, &mut pair, op::READ, at).await?;
    hold!(b.bytes(at, bytes as usize) == expected, "reads at once differ from reads one by one");
    Ok(())
}

async fn writes_at_once(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    needs!(pair.sq.entries > 32, "queues of more than 32 entries");
    let data = noise(25, 64 * b.block());
    let at = b.place(data.len() as u64, b.page_bytes)?;
    b.store_bytes(at, &data);
    at_once(b, &mut pair, op::WRITE, at).await?;
    for (number, part) in data.chunks(2 * b.block() as usize).enumerate() {
        b.holds(&mut pair, 2 * number as u64, part).await?;
    }
    Ok(())
}

async fn verify_well(b: &mut Bench) -> Verdict {
    needs!(b.id.oncs.get() & oncs::VERIFY != 0, "ONCS: Verify");
    let mut pair = b.io().await?;
    let most = match limits(b).await {
        Ok((0, _)) => b.ns.nsze.get().min(u64::from(io::BLOCKS_MAX)) as u32,
        _ => 8,
    };
    for blocks in [1, 8, most] {
        b.ok(&mut pair, &io::verify(b.cid(), b.nsid, Lba(0), blocks)).await?;
    }
    Ok(())
}

async fn verify_past_the_end(b: &mut Bench) -> Verdict {
    needs!(b.id.oncs.get() & oncs::VERIFY != 0, "ONCS: Verify");
    let [behind, across, longer] = at_the_end(b)?;
    out_of_range(b, op::VERIFY, &[behind, across, longer, (u64::MAX, 1)]).await
}

async fn write_then_read(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    for blocks in [1, 2, 7, 8, 9] {
        let data = noise(blocks, blocks * b.block());
        b.write(&mut pair, 50 + blocks, &data).await?;
        b.holds(&mut pair, 50 + blocks, &data).await?;
    }
    Ok(())
}

async fn write_beside(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let (block, before) = (b.block() as usize, noise(26, 5 * b.block()));
    b.write(&mut pair, 60, &before).await?;
    let one = noise(27, b.block());
    b.write(&mut pair, 62, &one).await?;
    let expected = [&before[..2 * block], &one[..], &before[3 * block..]].concat();
    b.holds(&mut pair, 60, &expected).await
}

async fn write_the_last_block(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let (last, data) = (b.ns.nsze.get() - 1, noise(28, b.block()));
    b.write(&mut pair, last, &data).await?;
    b.holds(&mut pair, last, &data).await
}

async fn write_past_the_end(b: &mut Bench) -> Verdict {
    out_of_range(b, op::WRITE, &[(b.ns.nsze.get(), 1), (u64::MAX, 1), (u64::MAX, 2)]).await
}

async fn write_across_the_end(b: &mut Bench) -> Verdict {
    let [_, across, longer] = at_the_end(b)?;
    out_of_range(b, op::WRITE, &[across, longer]).await
}

async fn failed_write_changes_nothing(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let (last, data) = (b.ns.nsze.get() - 1, noise(29, b.block()));
    b.write(&mut pair, last, &data).await?;
    let at = b.place(2 * b.block(), b.page_bytes)?;
    b.store_bytes(at, &noise(30, 2 * b.block()));
    let sqe = io::write(b.cid(), b.nsid, Lba(last), 2, false, b.data(at, 2 * b.block())?);
    b.ends(&mut pair, &sqe, &[Status::LBA_OUT_OF_RANGE]).await?;
    b.holds(&mut pair, last, &data).await
}

async fn write_with_fua(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let data = noise(31, 3 * b.block());
    let at = b.place(3 * b.block(), b.page_bytes)?;
    b.store_bytes(at, &data);
    let sqe = io::write(b.cid(), b.nsid, Lba(70), 3, true, b.data(at, 3 * b.block())?);
    b.ok(&mut pair, &sqe).await?;
    b.holds(&mut pair, 70, &data).await
}

async fn last_write_counts(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    for seed in 32..40 {
        let data = noise(seed, 2 * b.block());
        b.write(&mut pair, 80, &data).await?;
        b.holds(&mut pair, 80, &data).await?;
    }
    Ok(())
}

async fn write_leaves_memory_alone(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let data = noise(41, 4 * b.block());
    let at = b.place(4 * b.block(), b.page_bytes)?;
    b.store_bytes(at, &data);
    let sqe = io::write(b.cid(), b.nsid, Lba(84), 4, false, b.data(at, 4 * b.block())?);
    b.ok(&mut pair, &sqe).await?;
    hold!(b.bytes(at, data.len()) == data, "a write changed the memory it was from");
    Ok(())
}

async fn zeroing(b: &mut Bench, deallocate: bool) -> Verdict {
    needs!(b.id.oncs.get() & oncs::WRITE_ZEROES != 0, "ONCS: Write Zeroes");
    let mut pair = b.plain_io().await?;
    let (block, before) = (b.block() as usize, noise(42, 8 * b.block()));
    b.write(&mut pair, 90, &before).await?;
    let sqe = io::write_zeroes(b.cid(), b.nsid, Lba(92), 4, false, deallocate);
    b.ok(&mut pair, &sqe).await?;
    let mut expected = before;
    expected[2 * block..6 * block].fill(0);
    b.holds(&mut pair, 90, &expected).await
}

async fn zeroes_are_read(b: &mut Bench) -> Verdict {
    zeroing(b, false).await
}

async fn zeroes_with_deallocate(b: &mut Bench) -> Verdict {
    zeroing(b, true).await
}

/// VSL and WZSL, if the controller has that structure: zero is no limit.
async fn limits(b: &mut Bench) -> Verdict<(u8, u8)> {
    let at = b.pages(1)?;
    let data = b.data(at, 4096)?;
    let sqe = admin::identify(b.cid(), Nsid::NONE, cns::COMMAND_SET_CONTROLLER, data);
    needs!(b.admin(&sqe).await?.status().is_ok(), "Identify of the command set's limits");
    let found = b.bytes(at, 2);
    Ok((found[0], found[1]))
}

async fn zeroes_of_as_many_blocks_as_there_can_be(b: &mut Bench) -> Verdict {
    needs!(b.id.oncs.get() & oncs::WRITE_ZEROES != 0, "ONCS: Write Zeroes");
    let (_, wzsl) = limits(b).await?;
    needs!(wzsl == 0, "Write Zeroes without a limit: WZSL is {wzsl}");
    let most = b.ns.nsze.get().min(u64::from(io::BLOCKS_MAX)) as u32;
    let last = b.ns.nsze.get() - u64::from(most);
    let mut pair = b.plain_io().await?;
    for (seed, deallocate) in [(43, false), (44, true)] {
        let data = noise(seed, b.block());
        for lba in [last, b.ns.nsze.get() - 1] {
            b.write(&mut pair, lba, &data).await?;
        }
        let sqe = io::write_zeroes(b.cid(), b.nsid, Lba(last), most, false, deallocate);
        b.ok(&mut pair, &sqe).await?;
        for lba in [last, b.ns.nsze.get() - 1] {
            b.holds(&mut pair, lba, &vec![0; b.block() as usize]).await?;
        }
    }
    Ok(())
}

async fn zeroes_past_the_end(b: &mut Bench) -> Verdict {
    needs!(b.id.oncs.get() & oncs::WRITE_ZEROES != 0, "ONCS: Write Zeroes");
    let [behind, across, longer] = at_the_end(b)?;
    out_of_range(b, op::WRITE_ZEROES, &[behind, across, longer, (u64::MAX, 1)]).await
}
