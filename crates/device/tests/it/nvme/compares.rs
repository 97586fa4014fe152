//! Compare and Verify: NVM command set 1.0, 3.2.1 and 3.2.6.

use wire::nvme::io;
use wire::nvme::status::Status;
use wire::{BusAddr, Lba};

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, pattern};

/// Equal is success; one bit anywhere is not, and the medium stays as it was.
#[test]
fn one_bit_makes_the_difference() {
    for block_bytes in [512_u32, 4096] {
        let setup = Setup { block_bytes, blocks: 4096, ..Setup::default() };
        setup.run(async |mut w: World| {
            let mut pair = w.raw.up().await;
            let bytes = 40 * block_bytes as usize;
            let at = w.raw.place(bytes as u64, 4096);
            let held = pattern(5, bytes);
            w.medium.poke(100, &held);
            w.raw.memory.write(at, &held).unwrap();
            let data = w.raw.data(at, bytes as u64);
            let sqe = io::compare(w.raw.cid(), NS, Lba(100), 40, data);
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
            // In the first byte, in the last, and on both sides of a piece's border.
            for place in [0, bytes - 1, (64 << 10) - 1, 64 << 10] {
                let Some(byte) = held.get(place) else { continue };
                let here = BusAddr(at.0 + place as u64);
                w.raw.memory.write(here, &[byte ^ 1]).unwrap();
                let sqe = io::compare(w.raw.cid(), NS, Lba(100), 40, data);
                let status = w.raw.run(&mut pair, &sqe).await.status();
                assert_eq!(status, Status::COMPARE_FAILURE.with_dnr(), "byte {place}");
                w.raw.memory.write(here, &[*byte]).unwrap();
            }
            assert_eq!(w.medium.peek(100, bytes), held);
            assert!(w.medium.written.borrow().is_empty());
        });
    }
}

/// A block that was never written compares as zeros.
#[test]
fn what_was_never_written_is_zeros() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let data = w.raw.data(at, 4096);
        let sqe = io::compare(w.raw.cid(), NS, Lba(9), 8, data);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        w.raw.memory.write(BusAddr(at.0 + 4095), &[1]).unwrap();
        let sqe = io::compare(w.raw.cid(), NS, Lba(9), 8, data);
        let status = w.raw.run(&mut pair, &sqe).await.status();
        assert_eq!(status, Status::COMPARE_FAILURE.with_dnr());
    });
}

/// The limits are a read's, and so are the failures.
#[test]
fn limits_and_failures() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(1 << 20, 4096);
        let data = w.raw.data(at, 1 << 20);
        let cases = [
            ((1 << 20) - 1, 1, Status::SUCCESS),
            ((1 << 20) - 1, 2, Status::LBA_OUT_OF_RANGE.with_dnr()),
            (0, 2049, Status::INVALID_FIELD.with_dnr()),
        ];
        for (lba, blocks, wanted) in cases {
            let sqe = io::compare(w.raw.cid(), NS, Lba(lba), blocks, data);
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), wanted);
        }
        w.medium.fails.set(Some(media::MediaError::Unreadable));
        let sqe = io::compare(w.raw.cid(), NS, Lba(0), 8, data);
        let status = w.raw.run(&mut pair, &sqe).await.status();
        assert_eq!(status.kind(), Status::UNRECOVERED_READ_ERROR);
    });
}

/// A verify judges what a read would, as many blocks as one command can name, and moves nothing.
#[test]
fn a_verify_reads_and_moves_nothing() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let cases = [
            (0, 1, Status::SUCCESS),
            (0, 65_536, Status::SUCCESS),
            ((1 << 20) - 1, 1, Status::SUCCESS),
            ((1 << 20) - 1, 2, Status::LBA_OUT_OF_RANGE.with_dnr()),
            (u64::MAX, 1, Status::LBA_OUT_OF_RANGE.with_dnr()),
        ];
        for (lba, blocks, wanted) in cases {
            let sqe = io::verify(w.raw.cid(), NS, Lba(lba), blocks);
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), wanted, "{blocks} from {lba}");
        }
        w.medium.fails.set(Some(media::MediaError::Unreadable));
        let sqe = io::verify(w.raw.cid(), NS, Lba(0), 8);
        let status = w.raw.run(&mut pair, &sqe).await.status();
        assert_eq!(status.kind(), Status::UNRECOVERED_READ_ERROR);
        assert!(w.medium.written.borrow().is_empty());
    });
}
