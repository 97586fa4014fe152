//! Durability test of flushed data across a killed device: a writer that writes and flushes until its device
//! is gone, and a check of all blocks afterwards.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use host::BlockDevice;
use runtime::{Rt, Span};
use wire::Lba;
use workload::verify::{Ledger, Stamps};

/// Blocks per write.
const BLOCKS: u32 = 8;
/// Number of locations on the device, each of one write.
const PLACES: u64 = 512;
const WRITERS: u64 = 8;
/// Bytes per read of the check.
const LOOK_BYTES: u32 = 32 << 10;
/// Total blocks that are written.
pub const ALL_BLOCKS: u64 = PLACES * BLOCKS as u64;

/// Runs the writers, one of them also flushing, until the device is gone. Calls `kill` after at least
/// `kill_after` acknowledged writes and one flush. Returns the number of flushes.
pub async fn write_until_killed<D: BlockDevice + 'static>(
    rt: Rt,
    disk: Rc<D>,
    ledger: Rc<RefCell<Ledger>>,
    kill_after: u64,
    mut kill: impl FnMut(),
) -> u64 {
    let (acknowledged, flushed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let left = Rc::new(Cell::new(WRITERS));
    for writer in 0..WRITERS {
        let (disk, ledger) = (disk.clone(), ledger.clone());
        let (acknowledged, flushed, left) = (acknowledged.clone(), flushed.clone(), left.clone());
        rt.spawn(async move {
            let stamps = Stamps::new(1);
            let (block_bytes, volatile) =
                (disk.geometry().block_bytes, disk.geometry().volatile_cache);
            let mut bytes = vec![0; (BLOCKS * block_bytes) as usize];
            let mut buffer = disk.buffer(bytes.len()).expect("host memory");
            for round in writer.. {
                // Each writer has its own locations, visited in a permuted order.
                let place = (round * 37 % (PLACES / WRITERS)) * WRITERS + writer;
                let lba = place * u64::from(BLOCKS);
                let write = ledger.borrow_mut().start_write(lba, BLOCKS);
                stamps.fill(&mut bytes, lba, block_bytes, write.version);
                buffer.copy_in(0, &bytes);
                let (back, result) = disk.write(Lba(lba), buffer, false).await;
                buffer = back;
                // A write in flight when the device ended may or may not have been written.
                if result.is_err() {
                    ledger.borrow_mut().fail_write(write);
                    break;
                }
                ledger.borrow_mut().finish_write(write, !volatile);
                acknowledged.set(acknowledged.get() + 1);
                if writer == 0 && round % 16 == 0 {
                    let flush = ledger.borrow_mut().start_flush();
                    if disk.flush().await.is_err() {
                        ledger.borrow_mut().fail_flush(flush);
                        break;
                    }
                    ledger.borrow_mut().finish_flush(flush);
                    flushed.set(flushed.get() + 1);
                }
            }
            left.set(left.get() - 1);
        });
    }
    let mut killed = false;
    while left.get() > 0 {
        rt.sleep(Span::us(100)).await;
        if !killed && acknowledged.get() >= kill_after && flushed.get() > 0 {
            killed = true;
            kill();
        }
    }
    flushed.get()
}

/// Reads every block and checks it against the ledger. The contents found are recorded as the only valid ones
/// from then on.
pub async fn check_all<D: BlockDevice>(disk: D, ledger: Rc<RefCell<Ledger>>, when: &str) {
    let block_bytes = disk.geometry().block_bytes;
    let look = LOOK_BYTES / block_bytes;
    let mut bytes = vec![0; LOOK_BYTES as usize];
    let mut buffer = disk.buffer(bytes.len()).expect("host memory");
    for lba in (0..ALL_BLOCKS).step_by(look as usize) {
        let ticket = ledger.borrow().start_read(lba, look);
        let (back, result) = disk.read(Lba(lba), buffer).await;
        buffer = back;
        result.expect("the device reads again");
        buffer.copy_out(0, &mut bytes);
        let stamps = Stamps::new(1);
        let mut ledger = ledger.borrow_mut();
        let checked = ledger.check_read(&ticket, &stamps, &bytes, block_bytes, false);
        checked.unwrap_or_else(|mismatch| panic!("{when}: {mismatch}"));
        for (lba, block) in (lba..).zip(bytes.chunks_exact(block_bytes as usize)) {
            ledger.settle(lba, &stamps, block, false);
        }
    }
}
