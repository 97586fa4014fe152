//! Write Zeroes, Dataset Management and Copy: NVM command set 1.0, 3.2.8, 3.2.3 and 3.2.2.

use device::nvme::Options;
use media::Extent;
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::identify::IdentifyNamespace;
use wire::nvme::io;
use wire::nvme::ranges::{CopyRange, DsmRange};
use wire::nvme::status::Status;
use wire::nvme::{admin, identify};
use wire::{BusAddr, Lba};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, Pair, pattern};

const OUT_OF_RANGE: Status = Status::LBA_OUT_OF_RANGE.with_dnr();
const TOO_MUCH: Status = Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr();

async fn status(w: &World, pair: &mut Pair, sqe: &Sqe) -> Status {
    w.raw.run(pair, sqe).await.status()
}

/// Puts a list of ranges into host memory.
fn list<R: IntoBytes + Immutable>(w: &World, ranges: &[R]) -> (DataPointer, BusAddr) {
    let bytes = ranges.as_bytes();
    let at = w.raw.place(8192, 4096);
    w.raw.memory.write(at, bytes).unwrap();
    (w.raw.data(at, bytes.len() as u64), at)
}

/// The blocks and no others; with DEAC they are taken back, without they are written.
#[test]
fn zeros_where_they_were_asked_for() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        for deallocate in [false, true] {
            w.medium.poke(99, &pattern(3, 302 * 512));
            let before = w.medium.peek(99, 302 * 512);
            let sqe = io::write_zeroes(w.raw.cid(), NS, Lba(100), 300, false, deallocate);
            assert_eq!(status(&w, &mut pair, &sqe).await, Status::SUCCESS);
            let after = w.medium.peek(99, 302 * 512);
            assert_eq!(after[..512], before[..512], "the block before");
            assert!(after[512..301 * 512].iter().all(|byte| *byte == 0));
            assert_eq!(after[301 * 512..], before[301 * 512..], "the block after");
            assert_eq!(w.medium.deallocated.borrow().is_empty(), !deallocate);
        }
        assert_eq!(w.medium.flushes.get(), 0);
        let sqe = io::write_zeroes(w.raw.cid(), NS, Lba(100), 1, true, false);
        assert_eq!(status(&w, &mut pair, &sqe).await, Status::SUCCESS);
        assert_eq!(w.medium.flushes.get(), 1, "FUA");
    });
}

/// No data move, so MDTS does not count (WZSL is 0: no limit of its own); the namespace's end does.
#[test]
fn zeros_without_a_limit_but_the_end() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        for deallocate in [false, true] {
            for (lba, blocks, wanted) in [
                (0, 65_536, Status::SUCCESS),
                ((1 << 20) - 65_536, 65_536, Status::SUCCESS),
                ((1 << 20) - 65_535, 65_536, OUT_OF_RANGE),
                (u64::MAX, 1, OUT_OF_RANGE),
            ] {
                let sqe = io::write_zeroes(w.raw.cid(), NS, Lba(lba), blocks, false, deallocate);
                assert_eq!(status(&w, &mut pair, &sqe).await, wanted, "{blocks} at {lba}");
            }
        }
        w.medium.fails.set(Some(media::MediaError::WriteFault));
        let sqe = io::write_zeroes(w.raw.cid(), NS, Lba(0), 8, false, true);
        assert_eq!(status(&w, &mut pair, &sqe).await.kind(), Status::WRITE_FAULT);
    });
}

/// What is taken back reads as zeros (DLFEAT), its neighbours stay; without AD nothing happens.
#[test]
fn ranges_are_taken_back() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let before = pattern(8, 64 * 512);
        w.medium.poke(0, &before);
        let ranges = [(3, 2), (0, 0), (10, 1), (20, 44)]
            .map(|(lba, blocks)| DsmRange::new(Lba(lba), blocks));
        let (data, _) = list(&w, &ranges);
        let sqe = io::dataset_management(w.raw.cid(), NS, 4, false, data);
        assert_eq!(status(&w, &mut pair, &sqe).await, Status::SUCCESS);
        assert_eq!(w.medium.peek(0, 64 * 512), before, "hints alone");
        let sqe = io::dataset_management(w.raw.cid(), NS, 4, true, data);
        assert_eq!(status(&w, &mut pair, &sqe).await, Status::SUCCESS);
        for block in 0..64_usize {
            let gone = (3..5).contains(&block) || block == 10 || block >= 20;
            let held = w.medium.peek(block as u64, 512);
            let wanted = if gone { &[0; 512][..] } else { &before[block * 512..][..512] };
            assert_eq!(held, wanted, "block {block}");
        }
    });
}

/// One range of no sense, and none is touched.
#[test]
fn ranges_are_judged_before_the_first_is_touched() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        for (lba, blocks) in [(1 << 20, 1), ((1 << 20) - 1, 2), (u64::MAX, 1), (0, u32::MAX)] {
            let bad = DsmRange::new(Lba(lba), blocks);
            let (data, _) = list(&w, &[DsmRange::new(Lba(0), 8), bad]);
            let sqe = io::dataset_management(w.raw.cid(), NS, 2, true, data);
            assert_eq!(status(&w, &mut pair, &sqe).await, OUT_OF_RANGE, "{blocks} at {lba}");
        }
        assert!(w.medium.written.borrow().is_empty());
        // The whole namespace in one range, and a list of 256 that is a page.
        let (data, _) = list(&w, &[DsmRange::new(Lba(0), 1 << 20)]);
        let sqe = io::dataset_management(w.raw.cid(), NS, 1, true, data);
        assert_eq!(status(&w, &mut pair, &sqe).await, Status::SUCCESS);
        let all: Vec<DsmRange> = (0..256).map(|n| DsmRange::new(Lba(2 * n), 1)).collect();
        let (data, _) = list(&w, &all);
        w.medium.deallocated.borrow_mut().clear();
        let sqe = io::dataset_management(w.raw.cid(), NS, 256, true, data);
        assert_eq!(status(&w, &mut pair, &sqe).await, Status::SUCCESS);
        let wanted: Vec<Extent> = (0..256).map(|n| Extent { block: 2 * n, blocks: 1 }).collect();
        assert_eq!(*w.medium.deallocated.borrow(), wanted);
    });
}

/// Ranges are laid one behind the other, in their order.
#[test]
fn a_copy_gathers_its_ranges() {
    for block_bytes in [512_u32, 4096] {
        let setup = Setup { block_bytes, blocks: 8192, ..Setup::default() };
        setup.run(async |mut w: World| {
            let mut pair = w.raw.up().await;
            let block = block_bytes as usize;
            let source = pattern(4, 300 * block);
            w.medium.poke(0, &source);
            let around = pattern(77, 210 * block);
            w.medium.poke(4999, &around);
            let ranges =
                [(7, 1), (100, 200), (3, 2)].map(|(lba, blocks)| CopyRange::new(Lba(lba), blocks));
            let (data, _) = list(&w, &ranges);
            let sqe = io::copy(w.raw.cid(), NS, Lba(5000), 3, data);
            assert_eq!(status(&w, &mut pair, &sqe).await, Status::SUCCESS);
            let copied = w.medium.peek(4999, 210 * block);
            let mut wanted = around.clone();
            wanted[block..][..block].copy_from_slice(&source[7 * block..][..block]);
            let long = 200 * block;
            wanted[2 * block..][..long].copy_from_slice(&source[100 * block..][..long]);
            wanted[202 * block..][..2 * block].copy_from_slice(&source[3 * block..][..2 * block]);
            assert!(copied == wanted, "blocks of {block} bytes");
            assert!(w.medium.peek(0, 300 * block) == source, "the source stays");
        });
    }
}

/// MSSRL, MCL and MSRC of Identify Namespace are limits, and so is the namespace's end.
#[test]
fn limits_of_a_copy() {
    let options = Options { transfer_bytes_max: 64 << 10, ..Options::default() };
    Setup { options, ..Setup::default() }.run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let sqe = admin::identify(w.raw.cid(), NS, identify::cns::NAMESPACE, w.raw.data(at, 4096));
        w.raw.admin_ok(&sqe).await;
        let namespace = IdentifyNamespace::read_from_bytes(&w.raw.bytes(at, 4096)).unwrap();
        let (one, all) = (u32::from(namespace.mssrl.get()), namespace.mcl.get());
        assert_eq!((one, all, namespace.msrc), (128, 512, 127));
        assert_eq!(namespace.dlfeat, 0b1001);
        let end = 1 << 20;
        let cases = [
            (vec![(0, one)], 1000, Status::SUCCESS),
            (vec![(0, one + 1)], 1000, TOO_MUCH),
            (vec![(0, one); 4], 1000, Status::SUCCESS),
            (vec![(0, one), (0, one), (0, one), (0, one), (0, 1)], 1000, TOO_MUCH),
            (vec![(end - 1, 1)], end - 1, Status::SUCCESS),
            (vec![(end - 1, 2)], 0, OUT_OF_RANGE),
            (vec![(0, 8)], end - 7, OUT_OF_RANGE),
            (vec![(u64::MAX, 1)], u64::MAX, OUT_OF_RANGE),
        ];
        for (ranges, to, wanted) in cases {
            let sources: Vec<CopyRange> =
                ranges.iter().map(|(lba, blocks)| CopyRange::new(Lba(*lba), *blocks)).collect();
            let (data, _) = list(&w, &sources);
            let sqe = io::copy(w.raw.cid(), NS, Lba(to), sources.len() as u16, data);
            assert_eq!(status(&w, &mut pair, &sqe).await, wanted, "{ranges:?} to {to}");
        }
        let many = vec![CopyRange::new(Lba(0), 1); 129];
        let (data, _) = list(&w, &many);
        for (ranges, wanted) in [(128, Status::SUCCESS), (129, TOO_MUCH)] {
            let sqe = io::copy(w.raw.cid(), NS, Lba(5000), ranges, data);
            assert_eq!(status(&w, &mut pair, &sqe).await, wanted, "{ranges} ranges");
        }
        // CDFS: format 0 alone.
        let sqe = io::copy(w.raw.cid(), NS, Lba(5000), 1, data);
        let other = Sqe { cdw12: (sqe.cdw12.get() | 1 << 8).into(), ..sqe };
        assert_eq!(status(&w, &mut pair, &other).await, Status::INVALID_FIELD.with_dnr());
    });
}

/// 3.2.2: dword 0 of the completion names the first range that was not copied.
#[test]
fn a_copy_that_fails_says_where() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        w.medium.poke(0, &pattern(6, 16 * 512));
        let sources = [0, 2, 4].map(|lba| CopyRange::new(Lba(lba), 2));
        let (data, _) = list(&w, &sources);
        for failing in 0..3_u32 {
            // Each range is one read and one write; the failing one's read is to fail.
            w.medium.fails_after.set(Some((2 * failing, media::MediaError::Unreadable)));
            let sqe = io::copy(w.raw.cid(), NS, Lba(1000), 3, data);
            let cqe = w.raw.run(&mut pair, &sqe).await;
            assert_eq!(cqe.status().kind(), Status::UNRECOVERED_READ_ERROR);
            assert_eq!(cqe.dw0.get(), failing);
        }
    });
}

/// A list that lies where there is no memory, or not where PRPs may lie.
#[test]
fn lists_that_are_not_there() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let nowhere = DataPointer::Prp { prp1: BusAddr(0x7000), prp2: BusAddr(0) };
        let odd = DataPointer::Prp { prp1: BusAddr(w.raw.memory.base().0 + 2), prp2: BusAddr(0) };
        for (data, wanted) in
            [(nowhere, Status::DATA_TRANSFER_ERROR), (odd, Status::INVALID_PRP_OFFSET.with_dnr())]
        {
            let sqe = io::dataset_management(w.raw.cid(), NS, 2, true, data);
            assert_eq!(status(&w, &mut pair, &sqe).await, wanted);
            let sqe = io::copy(w.raw.cid(), NS, Lba(0), 2, data);
            assert_eq!(status(&w, &mut pair, &sqe).await, wanted);
        }
        assert!(w.medium.written.borrow().is_empty());
    });
}
