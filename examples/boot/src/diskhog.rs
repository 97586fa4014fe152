//! diskhog: each core writes and reads its own range of the disk at full speed, through queues shown as a
//! SCSI disk, and compares every byte that it reads.

use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};

use bus::Buffer;
use host::{BlockDevice, Geometry};
use runtime::{Rt, Time};
use scsi::{Disk, Target, Unit};
use wire::Lba;
use wire::scsi::inquiry::Identity;
use wire::scsi::lun::Lun;

/// Operations in flight per core.
pub const DEPTH: u16 = 4;
/// Bytes per operation, unless the disk's maximum transfer is shorter.
const REQUEST_BYTES: u64 = 32 << 10;

/// Progress of a core. The monitor reads it while the core runs.
pub struct Progress {
    /// Bytes written.
    pub written: AtomicU64,
    /// Bytes read and compared.
    pub verified: AtomicU64,
    /// Bytes of both before the share's end.
    pub in_time: AtomicU64,
    /// Time of its end, picoseconds.
    pub ended: AtomicU64,
}

impl Progress {
    pub const fn new() -> Progress {
        Progress {
            written: AtomicU64::new(0),
            verified: AtomicU64::new(0),
            in_time: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    pub fn clear(&self) {
        for count in [&self.written, &self.verified, &self.in_time, &self.ended] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Sum of bytes written and verified.
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

type ScsiDisk<D> = Disk<Target<D>>;

/// Attaches a SCSI disk to a core's queues.
///
/// # Errors
/// The class driver rejects the unit.
pub async fn attach<D: BlockDevice>(
    queues: D,
    identity: Identity,
) -> Result<Rc<ScsiDisk<D>>, String> {
    let target = Rc::new(Target::new(vec![Unit::new(queues, identity)]));
    let disk = Disk::attach(target, Lun::of(0)).await.map_err(|error| error.to_string())?;
    Ok(Rc::new(disk))
}

/// Writes and reads the core's range until the share's end, then reads all of the last round again.
///
/// # Errors
/// An operation has failed, or data read differs from data written.
pub async fn hog<D: BlockDevice + 'static>(
    rt: &Rt,
    disk: &Rc<ScsiDisk<D>>,
    share: Share,
    progress: &'static Progress,
) -> Result<(), String> {
    let geometry = disk.geometry();
    let (left, failed) = (Rc::new(Cell::new(DEPTH)), Rc::new(RefCell::new(None)));
    for number in 0..DEPTH {
        let mut worker = Worker::new(rt, disk, &geometry, share, number, progress)?;
        let (left, failed) = (left.clone(), failed.clone());
        rt.spawn(async move {
            if let Err(why) = worker.work().await {
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

/// One of [`DEPTH`] concurrent workers of a core: it owns every `DEPTH`th request of the core's range.
struct Worker<D> {
    rt: Rt,
    until: Time,
    disk: Rc<ScsiDisk<D>>,
    buffer: Option<Buffer>,
    /// Data that a request should have, and data that was read.
    expected: Vec<u8>,
    seen: Vec<u8>,
    /// First block of each of its requests.
    places: Vec<u64>,
    progress: &'static Progress,
}

impl<D: BlockDevice> Worker<D> {
    fn new(
        rt: &Rt,
        disk: &Rc<ScsiDisk<D>>,
        geometry: &Geometry,
        share: Share,
        number: u16,
        progress: &'static Progress,
    ) -> Result<Worker<D>, String> {
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
        let (rt, until) = (rt.clone(), share.until);
        Ok(Worker { rt, until, disk, buffer, expected, seen, places, progress })
    }

    /// Writes its requests in rounds, one after another, and reads them half a round later.
    async fn work(&mut self) -> Result<(), String> {
        let (count, mut done) = (self.places.len(), 0);
        while done == 0 || self.rt.now() < self.until {
            self.write(done % count, done / count).await?;
            done += 1;
            // Half a round later, as far as possible from the write.
            let behind = done.saturating_sub(1 + count / 2);
            self.read(behind % count, behind / count).await?;
        }
        for last in done.saturating_sub(count)..done {
            self.read(last % count, last / count).await?;
        }
        Ok(())
    }

    fn count(&self, count: &AtomicU64, moved: &Buffer) {
        let bytes = moved.bytes() as u64;
        count.fetch_add(bytes, Ordering::Relaxed);
        if self.rt.now() < self.until {
            self.progress.in_time.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    async fn write(&mut self, place: usize, round: usize) -> Result<(), String> {
        let first = self.places[place];
        fill(&mut self.expected, first, round);
        let buffer = self.buffer.take().ok_or("one operation at a time")?;
        buffer.copy_in(0, &self.expected);
        let (buffer, done) = self.disk.write(Lba(first), buffer, false).await;
        self.count(&self.progress.written, &buffer);
        self.buffer = Some(buffer);
        done.map_err(|error| error.to_string())
    }

    async fn read(&mut self, place: usize, round: usize) -> Result<(), String> {
        let first = self.places[place];
        fill(&mut self.expected, first, round);
        let buffer = self.buffer.take().ok_or("one operation at a time")?;
        // Zeroed, so that a read that transfers no data does not find the expected data.
        buffer.zero();
        let (buffer, done) = self.disk.read(Lba(first), buffer).await;
        buffer.copy_out(0, &mut self.seen);
        self.count(&self.progress.verified, &buffer);
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

/// Fills a request's data: each word depends on the first block, the round and the word's index.
fn fill(bytes: &mut [u8], first: u64, round: usize) {
    let seed = (first << 32 | round as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = seed ^ (index as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
        word.copy_from_slice(&value.to_le_bytes());
    }
}
