//! Write Uncorrectable: NVM command set 1.0, 3.2.7.

use media::Labels;
use wire::nvme::io;
use wire::nvme::status::Status;
use wire::{BusAddr, Lba};

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, Pair, Settings};

const LOST: Status = Status::UNRECOVERED_READ_ERROR;

async fn mark(w: &World, pair: &mut Pair, lba: u64, blocks: u32) -> Status {
    let sqe = io::write_uncorrectable(w.raw.cid(), NS, Lba(lba), blocks);
    w.raw.run(pair, &sqe).await.status()
}

/// Status of a read of these blocks.
async fn read(w: &World, pair: &mut Pair, at: BusAddr, lba: u64, blocks: u32) -> Status {
    let data = w.raw.data(at, u64::from(blocks) * 512);
    let sqe = io::read(w.raw.cid(), NS, Lba(lba), blocks, false, data);
    w.raw.run(pair, &sqe).await.status().kind()
}

/// WUSL, the namespace's end, and the number of marks that can be stored.
#[test]
fn write_uncorrectable_limits() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let end = 1 << 20;
        for (lba, blocks, wanted) in [
            (0, 128, Status::SUCCESS),
            (0, 129, Status::INVALID_FIELD.with_dnr()),
            (end - 1, 1, Status::SUCCESS),
            (end - 1, 2, Status::LBA_OUT_OF_RANGE.with_dnr()),
            (u64::MAX, 1, Status::LBA_OUT_OF_RANGE.with_dnr()),
        ] {
            assert_eq!(mark(&w, &mut pair, lba, blocks).await, wanted, "{blocks} from {lba}");
        }
        let mut noted = 0;
        while mark(&w, &mut pair, 1000 + 128 * noted, 1).await == Status::SUCCESS {
            noted += 1;
        }
        assert_eq!(noted, 144 - 2, "two windows had marks before");
        assert_eq!(mark(&w, &mut pair, 90_000, 1).await, Status::CAPACITY_EXCEEDED);
        let at = w.raw.place(4096, 4096);
        let sqe = io::write(w.raw.cid(), NS, Lba(1000), 1, false, w.raw.data(at, 512));
        w.raw.run(&mut pair, &sqe).await;
        assert_eq!(mark(&w, &mut pair, 90_000, 1).await, Status::CAPACITY_EXCEEDED, "not durable");
        w.raw.run(&mut pair, &io::flush(w.raw.cid(), NS)).await;
        assert_eq!(mark(&w, &mut pair, 90_000, 1).await, Status::SUCCESS);
    });
}

/// Marks survive resets and the controller; a write clears its mark durably only with a flush.
#[test]
fn uncorrectable_marks_survive_reset_and_power_cycle() {
    let setup = Setup::default();
    let marked = setup.clone().run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        assert_eq!(mark(&w, &mut pair, 10, 3).await, Status::SUCCESS);
        w.raw.disable().await;
        w.raw.forget_places();
        w.raw.enable(Settings::default()).await;
        let mut pair = w.raw.create_pair(1, 64).await;
        let at = w.raw.place(4096, 4096).max(at);
        assert_eq!(read(&w, &mut pair, at, 12, 1).await, LOST, "after a reset");
        let write = |lba| io::write(w.raw.cid(), NS, Lba(lba), 1, false, w.raw.data(at, 512));
        w.raw.run(&mut pair, &write(10)).await;
        w.raw.run(&mut pair, &io::flush(w.raw.cid(), NS)).await;
        w.raw.run(&mut pair, &write(11)).await;
        assert_eq!(read(&w, &mut pair, at, 11, 1).await, Status::SUCCESS);
        Some(w.medium.label())
    });
    Setup { label: marked, ..setup }.run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let ends = [Status::SUCCESS, LOST, LOST, Status::SUCCESS];
        for (lba, wanted) in (10..).zip(ends) {
            assert_eq!(read(&w, &mut pair, at, lba, 1).await, wanted, "block {lba}");
        }
    });
}

/// A write that arrives during a flush is not made durable by it.
#[test]
fn flush_clears_marks_of_earlier_writes_only() {
    let setup = Setup::default();
    let label = setup.clone().run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        mark(&w, &mut pair, 10, 2).await;
        let write = |lba| io::write(w.raw.cid(), NS, Lba(lba), 1, false, w.raw.data(at, 512));
        w.raw.run(&mut pair, &write(10)).await;
        w.medium.span.set(runtime::Span::us(50));
        w.raw.submit(&mut pair.sq, &io::flush(w.raw.cid(), NS));
        w.rt.sleep(runtime::Span::us(20)).await;
        w.medium.span.set(runtime::Span::us(1));
        w.raw.submit(&mut pair.sq, &write(11));
        let (first, second) = (w.raw.next(&mut pair.cq).await, w.raw.next(&mut pair.cq).await);
        assert!(first.id().0 > second.id().0, "the write ended before the flush");
        Some(w.medium.label())
    });
    Setup { label, ..setup }.run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        assert_eq!(read(&w, &mut pair, at, 10, 1).await, Status::SUCCESS);
        assert_eq!(read(&w, &mut pair, at, 11, 1).await, LOST);
    });
}

/// Without a label the command is not supported.
#[test]
fn write_uncorrectable_is_rejected_without_label() {
    Setup { label: None, ..Setup::default() }.run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        assert_eq!(mark(&w, &mut pair, 0, 1).await, Status::INVALID_OPCODE.with_dnr());
    });
}
