//! Write Zeroes, Dataset Management and Copy: NVM command set 1.0, 3.2.8, 3.2.3 and 3.2.2.

use media::{Extent, Heat};
use runtime::Rng;
use wire::nvme::dsm::{Attributes, Context};
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::io;
use wire::nvme::ranges::{CopyRange, DsmRange};
use wire::nvme::status::Status;
use wire::{BusAddr, Lba};
use zerocopy::{Immutable, IntoBytes};

use crate::raw::nvme::world::{World, on_a_bench};
use crate::raw::nvme::{NS, Pair, pattern};

const OUT_OF_RANGE: Status = Status::LBA_OUT_OF_RANGE.with_dnr();

async fn status(w: &World, pair: &mut Pair, sqe: &Sqe) -> Status {
    w.raw.run(pair, sqe).await.status()
}

/// Stores a list of ranges in host memory.
fn list<R: IntoBytes + Immutable>(w: &World, ranges: &[R]) -> (DataPointer, BusAddr) {
    let bytes = ranges.as_bytes();
    let at = w.raw.place(8192, 4096);
    w.raw.memory.write(at, bytes).unwrap();
    (w.raw.data(at, bytes.len() as u64), at)
}

/// With DEAC blocks are deallocated, without they are written; FUA makes either durable.
#[test]
fn write_zeroes_writes_or_deallocates_by_deac() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        for (deallocate, fua, flushes) in [(false, false, 0), (true, false, 0), (false, true, 1)] {
            let sqe = io::write_zeroes(w.raw.cid(), NS, Lba(100), 300, fua, deallocate);
            assert_eq!(status(&w, &mut pair, &sqe).await, Status::SUCCESS);
            assert_eq!(w.medium.deallocated.take().is_empty(), !deallocate);
            assert_eq!(w.medium.flushes.get(), flushes);
        }
    });
}

/// One invalid range, and none is deallocated.
#[test]
fn dsm_validates_all_ranges_before_deallocating() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        for (lba, blocks) in [(1 << 20, 1), ((1 << 20) - 1, 2), (u64::MAX, 1), (0, u32::MAX)] {
            let bad = DsmRange::new(Lba(lba), blocks);
            let (data, _) = list(&w, &[DsmRange::new(Lba(0), 8), bad]);
            let sqe = io::dataset_management(w.raw.cid(), NS, 2, Attributes::DEALLOCATE, data);
            assert_eq!(status(&w, &mut pair, &sqe).await, OUT_OF_RANGE, "{blocks} at {lba}");
        }
        assert!(w.medium.written.borrow().is_empty());
        // The whole namespace in one range, and a list of 256 that is a page.
        let (data, _) = list(&w, &[DsmRange::new(Lba(0), 1 << 20)]);
        let sqe = io::dataset_management(w.raw.cid(), NS, 1, Attributes::DEALLOCATE, data);
        assert_eq!(status(&w, &mut pair, &sqe).await, Status::SUCCESS);
        let all: Vec<DsmRange> = (0..256).map(|n| DsmRange::new(Lba(2 * n), 1)).collect();
        let (data, _) = list(&w, &all);
        w.medium.deallocated.borrow_mut().clear();
        let sqe = io::dataset_management(w.raw.cid(), NS, 256, Attributes::DEALLOCATE, data);
        assert_eq!(status(&w, &mut pair, &sqe).await, Status::SUCCESS);
        let wanted: Vec<Extent> = (0..256).map(|n| Extent { block: 2 * n, blocks: 1 }).collect();
        assert_eq!(*w.medium.deallocated.borrow(), wanted);
    });
}

/// 3.2.3: what the medium learns of each access frequency. Others than 0h to 8h are reserved.
#[test]
fn dsm_passes_write_frequency_to_medium() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        // Every other bit set: none of them concerns writes.
        let context = |n: u32| Context::from_bits(0xffff_fff0 | n);
        let ranges: Vec<DsmRange> =
            (0..16).map(|n| DsmRange::hinted(Lba(8 * u64::from(n)), 1 + n, context(n))).collect();
        let (data, _) = list(&w, &ranges);
        let sqe = io::dataset_management(w.raw.cid(), NS, 16, Attributes::HINTS, data);
        assert_eq!(status(&w, &mut pair, &sqe).await, Status::SUCCESS);
        let wanted = [
            (8, 2, Heat::Typical),
            (16, 3, Heat::Cold),
            (24, 4, Heat::Cold),
            (32, 5, Heat::Hot),
            (40, 6, Heat::Hot),
            (64, 9, Heat::Hot),
        ];
        assert_eq!(w.medium.hints.take(), wanted);
        assert!(w.medium.written.borrow().is_empty());
    });
}

/// Lists of 256 ranges as a hostile host forms them: overlapping, empty, at the end, and past it.
#[test]
fn dsm_hints_of_hostile_range_lists() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let (end, mut rng) = (1 << 20, Rng::for_part(1, "ranges"));
        for round in 0..12 {
            let bad = round % 2 == 1;
            let mut ranges: Vec<DsmRange> = (0..256)
                .map(|_| {
                    let lba = end - rng.below(4);
                    let blocks = rng.below(end - lba + 1) as u32;
                    DsmRange::hinted(
                        Lba(lba),
                        blocks,
                        Context::from_bits(rng.below(1 << 12) as u32),
                    )
                })
                .collect();
            if bad {
                let (lba, blocks) = [(end, 1), (u64::MAX, u32::MAX), (1, u32::MAX)][round / 2 % 3];
                let at = rng.below(256) as usize;
                ranges[at] = DsmRange::hinted(Lba(lba), blocks, Context::from_bits(4));
            }
            let (data, at) = list(&w, &ranges);
            let sqe = io::dataset_management(w.raw.cid(), NS, 256, Attributes::HINTS, data);
            let wanted = if bad { OUT_OF_RANGE } else { Status::SUCCESS };
            assert_eq!(status(&w, &mut pair, &sqe).await, wanted, "round {round}");
            assert_eq!(w.medium.hints.take().is_empty(), bad, "round {round}");
            w.raw.free_from(at);
        }
    });
}

/// 3.2.2: dword 0 of the completion holds the number of the first range that was not copied.
#[test]
fn copy_failure_reports_range_number_in_dw0() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        w.medium.poke(0, &pattern(6, 16 * 512));
        let sources = [0, 2, 4].map(|lba| CopyRange::new(Lba(lba), 2));
        let (data, _) = list(&w, &sources);
        for failing in 0..3_u32 {
            // Each range is one read and one write; the read of range `failing` fails.
            w.medium.fails_after.set(Some((2 * failing, media::MediaError::Unreadable)));
            let sqe = io::copy(w.raw.cid(), NS, Lba(1000), 3, data);
            let cqe = w.raw.run(&mut pair, &sqe).await;
            assert_eq!(cqe.status().kind(), Status::UNRECOVERED_READ_ERROR);
            assert_eq!(cqe.dw0.get(), failing);
        }
    });
}

/// A list outside host memory, or at an address invalid for PRPs.
#[test]
fn dsm_and_copy_reject_unreachable_range_list() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let nowhere = DataPointer::Prp { prp1: BusAddr(0x7000), prp2: BusAddr(0) };
        let odd = DataPointer::Prp { prp1: BusAddr(w.raw.memory.base().0 + 2), prp2: BusAddr(0) };
        for (data, wanted) in
            [(nowhere, Status::DATA_TRANSFER_ERROR), (odd, Status::INVALID_PRP_OFFSET.with_dnr())]
        {
            let sqe = io::dataset_management(w.raw.cid(), NS, 2, Attributes::DEALLOCATE, data);
            assert_eq!(status(&w, &mut pair, &sqe).await, wanted);
            let sqe = io::copy(w.raw.cid(), NS, Lba(0), 2, data);
            assert_eq!(status(&w, &mut pair, &sqe).await, wanted);
        }
        assert!(w.medium.written.borrow().is_empty());
    });
}
