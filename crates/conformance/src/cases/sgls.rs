//! Data pointers: NVMe base 2.0, 4.1.2 (scatter gather lists).

use wire::nvme::entry::DataPointer;
use wire::nvme::identify::sgls;
use wire::nvme::io;
use wire::nvme::sgl::Descriptor;
use wire::nvme::status::Status;
use wire::{BusAddr, Lba};
use zerocopy::IntoBytes;

use crate::bench::{Bench, Pair, noise};
use crate::case::{Section, cases};
use crate::verdict::{Verdict, hold, needs};

pub(super) const SECTIONS: &[Section] = &[Section {
    of: "NVMe base 2.0",
    number: "4.1.2",
    title: "scatter gather lists",
    cases: cases! {
        Writes one_descriptor "a data block in the command, at any byte if SGLS says so";
        Writes a_last_segment "data blocks of a last segment, of any length, in any order";
        Writes a_chain_of_segments "segments whose last descriptor leads to the next";
        None blocks_of_no_length "a data block of no length moves nothing";
        None buckets_take_their_share "a read's bytes for a bit bucket are sent nowhere";
        Writes buckets_count_for_nothing_in_a_write "of a write, bit buckets have no length";
        None longer_than_the_data "a list that is longer, where SGLS says so";
        None shorter_than_the_data "a list that is shorter: Data SGL Length Invalid";
        None types_that_there_are_not "a reserved type: SGL Descriptor Type Invalid";
        None offsets_outside_a_capsule "over PCIe, the sub type of offsets: SGL Descriptor Type Invalid";
        None segments_of_odd_length "a segment of no descriptor, or of parts of one: \
            Invalid SGL Segment Descriptor";
        None a_segment_behind_the_last "a segment in a last segment: Invalid SGL Segment Descriptor";
        None a_segment_in_the_middle "one that is not a segment's last descriptor: \
            Invalid Number of SGL Descriptors";
        None a_list_that_never_ends "a segment that leads to itself: an error status, and the next works";
        None memory_past_the_end "data or a segment past host memory: an error status, and the next works";
    },
}];

/// Granularity of addresses and lengths, in bytes; skips the case if SGLs are not supported.
fn unit(b: &Bench) -> Verdict<u32> {
    let field = b.id.sgls.get();
    needs!(field & sgls::SUPPORTED != 0, "scatter gather lists: SGLS is {field:#x}");
    Ok(if field & sgls::SUPPORTED == sgls::ANY_BYTE { 1 } else { 4 })
}

fn buckets(b: &Bench) -> Verdict<u32> {
    let field = b.id.sgls.get();
    needs!(field & sgls::BIT_BUCKET != 0, "bit buckets: SGLS is {field:#x}");
    unit(b)
}

/// Stores descriptors; returns their address and number.
fn store(b: &Bench, list: &[Descriptor]) -> Verdict<(BusAddr, u32)> {
    let at = b.place(list.len() as u64 * 16, 16)?;
    b.store_bytes(at, list.as_bytes());
    Ok((at, list.len() as u32))
}

fn last(b: &Bench, list: &[Descriptor]) -> Verdict<Descriptor> {
    store(b, list).map(|(at, count)| Descriptor::last_segment(at, count))
}

/// Three separate pieces of memory for one block, the second at the lowest address.
fn three(b: &Bench) -> Verdict<Vec<(BusAddr, u32)>> {
    let (unit, block) = (unit(b)?, b.block() as u32);
    let at = b.place(2 * b.block() + 64, 64)?.0;
    let cut = [3 * unit, block / 2 + unit];
    let second = (BusAddr(at + u64::from(unit)), cut[1] - cut[0]);
    let behind = at + u64::from(block + 5 * unit);
    let first = (BusAddr(behind), cut[0]);
    Ok(vec![first, second, (BusAddr(behind + u64::from(cut[0] + unit)), block - cut[1])])
}

fn data(pieces: &[(BusAddr, u32)]) -> Vec<Descriptor> {
    pieces.iter().map(|(at, bytes)| Descriptor::data(*at, *bytes)).collect()
}

async fn read(b: &Bench, pair: &mut Pair, first: Descriptor) -> Verdict {
    let sqe = io::read(b.cid(), b.nsid, Lba(0), 1, false, DataPointer::Sgl(first));
    b.ok(pair, &sqe).await.map(drop)
}

async fn refused(b: &Bench, pair: &mut Pair, first: Descriptor, with: Status) -> Verdict {
    let sqe = io::read(b.cid(), b.nsid, Lba(0), 1, false, DataPointer::Sgl(first));
    b.ends(pair, &sqe, &[with]).await
}

/// Writes a block through pieces and checks the medium; then reads it back through the same pieces.
async fn both_ways(
    b: &Bench,
    pair: &mut Pair,
    (pieces, first): (&[(BusAddr, u32)], Descriptor),
) -> Verdict {
    let expected = noise(pieces.len() as u64, b.block());
    let mut done = 0;
    for (at, bytes) in pieces {
        b.store_bytes(*at, &expected[done..done + *bytes as usize]);
        done += *bytes as usize;
    }
    let write = io::write(b.cid(), b.nsid, Lba(0), 1, false, DataPointer::Sgl(first));
    b.ok(pair, &write).await?;
    b.holds(pair, 0, &expected).await?;
    pieces.iter().for_each(|(at, bytes)| b.store_bytes(*at, &vec![0; *bytes as usize]));
    read(b, pair, first).await?;
    let found: Vec<u8> =
        pieces.iter().flat_map(|(at, bytes)| b.bytes(*at, *bytes as usize)).collect();
    hold!(found == expected, "a block read through {} pieces differs", pieces.len());
    Ok(())
}

async fn one_descriptor(b: &mut Bench) -> Verdict {
    let (unit, mut pair) = (unit(b)?, b.plain_io().await?);
    let at = b.place(b.block() + 4096, 4096)?;
    for offset in [0, unit, 61 * unit, 4095 / unit * unit] {
        let at = BusAddr(at.0 + u64::from(offset));
        let pieces = [(at, b.block() as u32)];
        both_ways(b, &mut pair, (&pieces, data(&pieces)[0])).await?;
    }
    Ok(())
}

async fn a_last_segment(b: &mut Bench) -> Verdict {
    let (pieces, mut pair) = (three(b)?, b.plain_io().await?);
    let first = last(b, &data(&pieces))?;
    both_ways(b, &mut pair, (&pieces, first)).await
}

async fn a_chain_of_segments(b: &mut Bench) -> Verdict {
    let (pieces, mut pair) = (three(b)?, b.plain_io().await?);
    let list = data(&pieces);
    let third = last(b, &list[2..])?;
    let (at, count) = store(b, &[list[1], third])?;
    let (at, count) = store(b, &[list[0], Descriptor::segment(at, count)])?;
    both_ways(b, &mut pair, (&pieces, Descriptor::segment(at, count))).await
}

async fn blocks_of_no_length(b: &mut Bench) -> Verdict {
    let (pieces, mut pair) = (three(b)?, b.plain_io().await?);
    let mut list = data(&pieces);
    list.insert(1, Descriptor::data(b.past_memory(), 0));
    list.insert(0, Descriptor::data(BusAddr(0), 0));
    let expected = b.read(&mut pair, 0, 1).await?;
    read(b, &mut pair, last(b, &list)?).await?;
    let found: Vec<u8> =
        pieces.iter().flat_map(|(at, bytes)| b.bytes(*at, *bytes as usize)).collect();
    hold!(found == expected, "a block read through pieces differs");
    Ok(())
}

async fn buckets_take_their_share(b: &mut Bench) -> Verdict {
    buckets(b)?;
    let (pieces, mut pair) = (three(b)?, b.plain_io().await?);
    let expected = b.read(&mut pair, 0, 1).await?;
    let mut list = data(&pieces);
    list[1] = Descriptor::bit_bucket(pieces[1].1);
    b.store_bytes(pieces[1].0, &vec![0xc3; pieces[1].1 as usize]);
    read(b, &mut pair, last(b, &list)?).await?;
    let bytes = |piece: usize| b.bytes(pieces[piece].0, pieces[piece].1 as usize);
    let behind = (pieces[0].1 + pieces[1].1) as usize;
    hold!(bytes(0) == expected[..pieces[0].1 as usize], "the bytes before the bucket differ");
    hold!(bytes(1).iter().all(|byte| *byte == 0xc3), "the bucket's bytes went to host memory");
    hold!(bytes(2) == expected[behind..], "the bytes behind the bucket differ");
    Ok(())
}

async fn buckets_count_for_nothing_in_a_write(b: &mut Bench) -> Verdict {
    buckets(b)?;
    let (pieces, mut pair) = (three(b)?, b.plain_io().await?);
    let mut list = data(&pieces);
    list.insert(1, Descriptor::bit_bucket(b.block() as u32));
    let expected = noise(9, b.block());
    let mut done = 0;
    for (at, bytes) in &pieces {
        b.store_bytes(*at, &expected[done..done + *bytes as usize]);
        done += *bytes as usize;
    }
    let first = DataPointer::Sgl(last(b, &list)?);
    b.ok(&mut pair, &io::write(b.cid(), b.nsid, Lba(0), 1, false, first)).await?;
    b.holds(&mut pair, 0, &expected).await
}

async fn longer_than_the_data(b: &mut Bench) -> Verdict {
    unit(b)?;
    let (field, mut pair) = (b.id.sgls.get(), b.plain_io().await?);
    let at = b.place(2 * b.block(), 4096)?;
    b.store_bytes(BusAddr(at.0 + b.block()), &vec![0xc3; b.block() as usize]);
    let first = Descriptor::data(at, 2 * b.block() as u32);
    if field & sgls::LONGER == 0 {
        return refused(b, &mut pair, first, Status::DATA_SGL_LENGTH_INVALID).await;
    }
    read(b, &mut pair, first).await?;
    let behind = b.bytes(BusAddr(at.0 + b.block()), b.block() as usize);
    hold!(behind.iter().all(|byte| *byte == 0xc3), "bytes behind the data were written");
    Ok(())
}

async fn shorter_than_the_data(b: &mut Bench) -> Verdict {
    let (unit, mut pair) = (unit(b)?, b.plain_io().await?);
    let first = Descriptor::data(b.place(b.block(), 4096)?, b.block() as u32 - unit);
    refused(b, &mut pair, first, Status::DATA_SGL_LENGTH_INVALID).await
}

async fn strange(b: &mut Bench, identifier: u8) -> Verdict {
    unit(b)?;
    let mut pair = b.plain_io().await?;
    let plain = Descriptor::data(b.place(b.block(), 4096)?, b.block() as u32);
    let odd = Descriptor { identifier, ..plain };
    refused(b, &mut pair, odd, Status::SGL_DESCRIPTOR_TYPE_INVALID).await?;
    let listed = last(b, &[odd, plain])?;
    refused(b, &mut pair, listed, Status::SGL_DESCRIPTOR_TYPE_INVALID).await
}

async fn types_that_there_are_not(b: &mut Bench) -> Verdict {
    strange(b, 0x70).await
}

async fn offsets_outside_a_capsule(b: &mut Bench) -> Verdict {
    let offsets = b.id.sgls.get() & 1 << 20 != 0;
    needs!(!offsets, "addresses alone: SGLS says that offsets are known");
    strange(b, 0x01).await
}

async fn segments_of_odd_length(b: &mut Bench) -> Verdict {
    unit(b)?;
    let mut pair = b.plain_io().await?;
    let block = Descriptor::data(b.place(b.block(), 4096)?, b.block() as u32);
    let whole = last(b, &[block, block])?;
    for bytes in [0, 8, 24] {
        let odd = Descriptor { length: bytes.into(), ..whole };
        refused(b, &mut pair, odd, Status::INVALID_SGL_SEGMENT_DESCRIPTOR).await?;
    }
    Ok(())
}

/// A list whose data follow a segment descriptor at an invalid position.
async fn misplaced(b: &mut Bench, in_last: bool, with: Status) -> Verdict {
    unit(b)?;
    let mut pair = b.plain_io().await?;
    let half = b.block() as u32 / 2;
    let at = b.place(b.block(), 4096)?;
    let halves = [at, BusAddr(at.0 + u64::from(half))].map(|at| Descriptor::data(at, half));
    let next = last(b, &halves[1..])?;
    let first = if in_last {
        last(b, &[halves[0], next])?
    } else {
        let (at, count) = store(b, &[halves[0], next, halves[1]])?;
        Descriptor::segment(at, count)
    };
    refused(b, &mut pair, first, with).await
}

async fn a_segment_behind_the_last(b: &mut Bench) -> Verdict {
    misplaced(b, true, Status::INVALID_SGL_SEGMENT_DESCRIPTOR).await
}

async fn a_segment_in_the_middle(b: &mut Bench) -> Verdict {
    misplaced(b, false, Status::INVALID_SGL_DESCRIPTOR_COUNT).await
}

/// A read that must fail, and one after it that must succeed.
async fn fails_alone(b: &Bench, pair: &mut Pair, first: Descriptor) -> Verdict {
    let sqe = io::read(b.cid(), b.nsid, Lba(0), 1, false, DataPointer::Sgl(first));
    let status = b.run(pair, &sqe).await?.status();
    hold!(!status.is_ok(), "success, of a list of no sense");
    b.read(pair, 0, 1).await.map(drop)
}

async fn a_list_that_never_ends(b: &mut Bench) -> Verdict {
    unit(b)?;
    let mut pair = b.plain_io().await?;
    let at = b.place(16, 16)?;
    let itself = Descriptor::segment(at, 1);
    b.store_bytes(at, itself.as_bytes());
    fails_alone(b, &mut pair, itself).await
}

async fn memory_past_the_end(b: &mut Bench) -> Verdict {
    unit(b)?;
    let mut pair = b.plain_io().await?;
    let block = b.block() as u32;
    fails_alone(b, &mut pair, Descriptor::data(b.past_memory(), block)).await?;
    fails_alone(b, &mut pair, Descriptor::last_segment(b.past_memory(), 4)).await
}
