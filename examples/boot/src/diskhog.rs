//! diskhog: each core writes and reads a range of the disk of its own as fast as it goes, over a queue of
//! its own behind a SCSI face, and compares every byte that it reads.

use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};

use bus::Buffer;
use host::nvme::Queue;
use host::{BlockDevice, Geometry};
use runtime::{Rt, Time};
use scsi::{Disk, Target, Unit};
use wire::Lba;
use wire::scsi::inquiry::Identity;
use wire::scsi::lun::Lun;

use crate::port::Port;

/// Operations of a core that are in flight.
pub const DEPTH: u16 = 4;
/// What one of them moves, bytes, unless the disk's longest transfer is shorter.
const REQUEST_BYTES: u64 = 32 << 10;

/// What a core has done so far. The monitor reads it while the core works.
pub struct Progress {
    /// Bytes written.
    pub written: AtomicU64,
    /// Bytes read and compared.
    pub verified: AtomicU64,
    /// When it ended, picoseconds.
    pub ended: AtomicU64,
}

impl Progress {
    pub const fn new() -> Progress {
        Progress {
            written: AtomicU64::new(0),
            verified: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    pub fn clear(&self) {
        for count in [&self.written, &self.verified, &self.ended] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Bytes moved in all.
    pub fn moved(&self) -> u64 {
        self.written.load(Ordering::Relaxed) + self.verified.load(Ordering::Relaxed)
    }
}

/// A core's share of the work.
#[derive(Clone, Copy)]
pub struct Share {
    pub core: usize,
    pub cores: usize,
    pub until: Time,
}

type ScsiDisk = Disk<Target<Rc<Queue<Port>>>>;

/// A queue shown as a SCSI disk.
///
/// # Errors
/// The class driver does not take it.
pub async fn attach(queue: Rc<Queue<Port>>, identity: Identity) -> Result<Rc<ScsiDisk>, String> {
    let target = Rc::new(Target::new(vec![Unit::new(queue, identity)]));
    let disk = Disk::attach(target, Lun::of(0)).await.map_err(|error| error.to_string())?;
    Ok(Rc::new(disk))
}

/// Works until the share's end, on all of the core's range, then reads everything that was written once more.
///
/// # Errors
/// An operation has failed, or something was read that was not written.
pub async fn hog(
    rt: &Rt,
    disk: &Rc<ScsiDisk>,
    share: Share,
    progress: &'static Progress,
) -> Result<(), String> {
    let geometry = disk.geometry();
    let (left, failed) = (Rc::new(Cell::new(DEPTH)), Rc::new(RefCell::new(None)));
    for number in 0..DEPTH {
        let mut worker = Worker::new(disk, &geometry, share, number, progress)?;
        let (left, failed) = (left.clone(), failed.clone());
        let rt_of_worker = rt.clone();
        rt.spawn(async move {
            if let Err(why) = worker.work(&rt_of_worker, share.until).await {
                failed.borrow_mut().get_or_insert(why);
            }
            left.set(left.get() - 1);
        });
    }
    bus::until(rt, || (left.get() == 0).then_some(())).await;
    progress.ended.store(rt.now().0, Ordering::Release);
    let failed = failed.take();
    failed.map_or(Ok(()), Err)
}

/// One of those that are in flight at once: every fourth request of the core's range is its own.
struct Worker {
    disk: Rc<ScsiDisk>,
    buffer: Option<Buffer>,
    /// What the blocks of a request are to hold, and what they were found to hold.
    expected: Vec<u8>,
    seen: Vec<u8>,
    /// Its requests' first blocks.
    places: Vec<u64>,
    progress: &'static Progress,
}

impl Worker {
    fn new(
        disk: &Rc<ScsiDisk>,
        geometry: &Geometry,
        share: Share,
        number: u16,
        progress: &'static Progress,
    ) -> Result<Worker, String> {
        let block = u64::from(geometry.block_bytes);
        let blocks = REQUEST_BYTES.min(geometry.transfer_bytes_max.into()) / block;
        let requests = geometry.blocks / blocks / share.cores as u64;
        let first = requests * share.core as u64;
        let own = (first..first + requests).skip(number.into()).step_by(DEPTH.into());
        let places: Vec<u64> = own.map(|request| request * blocks).collect();
        if places.is_empty() {
            return Err(format!("a disk of {} blocks is too short", geometry.blocks));
        }
        let bytes = (blocks * block) as usize;
        let buffer = Some(disk.buffer(bytes).map_err(|error| error.to_string())?);
        let (disk, expected, seen) = (disk.clone(), vec![0; bytes], vec![0; bytes]);
        Ok(Worker { disk, buffer, expected, seen, places, progress })
    }

    /// Writes its requests one after the other, again and again, and reads behind itself.
    async fn work(&mut self, rt: &Rt, until: Time) -> Result<(), String> {
        let (count, mut done) = (self.places.len(), 0);
        while done == 0 || rt.now() < until {
            self.write(done % count, done / count).await?;
            done += 1;
            // Half the range behind: long ago, as far as there is a long ago.
            let behind = done.saturating_sub(1 + count / 2);
            self.read(behind % count, behind / count).await?;
        }
        for last in done.saturating_sub(count)..done {
            self.read(last % count, last / count).await?;
        }
        Ok(())
    }

    async fn write(&mut self, place: usize, round: usize) -> Result<(), String> {
        let first = self.places[place];
        fill(&mut self.expected, first, round);
        let buffer = self.buffer.take().ok_or("one operation at a time")?;
        buffer.copy_in(0, &self.expected);
        let (buffer, done) = self.disk.write(Lba(first), buffer, false).await;
        self.progress.written.fetch_add(buffer.bytes() as u64, Ordering::Relaxed);
        self.buffer = Some(buffer);
        done.map_err(|error| error.to_string())
    }

    async fn read(&mut self, place: usize, round: usize) -> Result<(), String> {
        let first = self.places[place];
        fill(&mut self.expected, first, round);
        let buffer = self.buffer.take().ok_or("one operation at a time")?;
        // What an answer that was none would leave there is not what is expected.
        buffer.zero();
        let (buffer, done) = self.disk.read(Lba(first), buffer).await;
        buffer.copy_out(0, &mut self.seen);
        self.progress.verified.fetch_add(buffer.bytes() as u64, Ordering::Relaxed);
        self.buffer = Some(buffer);
        done.map_err(|error| error.to_string())?;
        if self.seen == self.expected {
            return Ok(());
        }
        match self.seen.iter().zip(&self.expected).position(|(seen, expected)| seen != expected) {
            None => Ok(()),
            Some(at) => Err(format!(
                "byte {at} from LBA {first} on is {:#04x}, expected {:#04x}, of round {round}",
                self.seen[at], self.expected[at]
            )),
        }
    }
}

/// What a request that begins at this block holds in this round: every word says which it is.
fn fill(bytes: &mut [u8], first: u64, round: usize) {
    let seed = (first << 32 | round as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = seed ^ (index as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
        word.copy_from_slice(&value.to_le_bytes());
    }
}
