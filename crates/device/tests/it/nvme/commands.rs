//! Medium errors as statuses, and the contents of unwritten blocks: NVM command set 1.0, 3.1.3.

use media::MediaError;
use wire::nvme::entry::Sqe;
use wire::nvme::io;
use wire::nvme::status::Status;
use wire::{BusAddr, Lba};

use crate::raw::nvme::NS;
use crate::raw::nvme::world::{World, on_a_bench};

type Made<'a> = &'a dyn Fn(&World) -> Sqe;

/// A medium error becomes a status, and the next command succeeds.
#[test]
fn medium_errors_map_to_nvme_status() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let (_, data) = w.raw.page();
        let read = |w: &World| io::read(w.raw.cid(), NS, Lba(3), 8, false, data);
        let write = |w: &World| io::write(w.raw.cid(), NS, Lba(3), 8, false, data);
        let compare = |w: &World| io::compare(w.raw.cid(), NS, Lba(3), 8, data);
        let verify = |w: &World| io::verify(w.raw.cid(), NS, Lba(3), 8);
        let zeroes = |w: &World| io::write_zeroes(w.raw.cid(), NS, Lba(3), 8, false, true);
        let cases: [(Made, _, _); 7] = [
            (&read, MediaError::Unreadable, Status::UNRECOVERED_READ_ERROR),
            (&write, MediaError::WriteFault, Status::WRITE_FAULT),
            (&write, MediaError::Full, Status::CAPACITY_EXCEEDED),
            (&read, MediaError::Range, Status::LBA_OUT_OF_RANGE),
            (&compare, MediaError::Unreadable, Status::UNRECOVERED_READ_ERROR),
            (&verify, MediaError::Unreadable, Status::UNRECOVERED_READ_ERROR),
            (&zeroes, MediaError::WriteFault, Status::WRITE_FAULT),
        ];
        for (make, error, wanted) in cases {
            w.medium.fails.set(Some(error));
            let sqe = make(&w);
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status().kind(), wanted);
            let sqe = make(&w);
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        }
        w.medium.fails.set(Some(MediaError::WriteFault));
        let sqe = io::flush(w.raw.cid(), NS);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::WRITE_FAULT);
    });
}

/// A block that was never written compares as zeros: the medium lends no data for it.
#[test]
fn unwritten_blocks_compare_as_zeros() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let (at, data) = w.raw.page();
        let sqe = io::compare(w.raw.cid(), NS, Lba(9), 8, data);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        w.raw.memory.write(BusAddr(at.0 + 4095), &[1]).unwrap();
        let sqe = io::compare(w.raw.cid(), NS, Lba(9), 8, data);
        let status = w.raw.run(&mut pair, &sqe).await.status();
        assert_eq!(status, Status::COMPARE_FAILURE.with_dnr());
    });
}
