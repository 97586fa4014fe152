//! Rotating disks, striped by a RAID controller.
//!
//! A byte is on the disk of its stripe element. Each disk has an arm, which serves the request at the head's
//! position, or else the next one inwards; then it waits for the platter. A read that continues an earlier
//! one is extended to the end of its stripe element (adaptive read-ahead); requests for those bytes wait for
//! them to pass, but not for the arm. Writes go through.
//!
//! Not modelled: the disk's own interface, faults, remapped sectors, write caching. The controller's memory
//! holds as many segments as there are detected streams.
//!
//! Each disk's arm is a task. The angle of a byte and the time of a stream both follow from one number: the
//! time for which the platter turns from byte 0 to that byte. Bytes of a read-ahead segment pass the head at
//! known times.

mod arm;
mod mechanics;

use std::rc::Rc;

use arm::{Arm, Wanted};
pub use mechanics::Mechanics;
use runtime::{Key, Rt, Time, Waits, stage};

use crate::banked::{Banked, Pace};
use crate::contents::Contents;
use crate::{Capabilities, Extent, Media, MediaError};

/// RAID 0 array of disks: the table `[medium.disks]` of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Array {
    /// Number of disks.
    pub disks: u32,
    /// Bytes of a stripe element, contiguous on one disk.
    pub stripe_bytes: u64,
    /// If true, sequential reads are extended to the end of their element.
    pub read_ahead: bool,
    /// Sequential streams detected per disk.
    pub streams: u32,
    /// Mechanics of each disk.
    pub mechanics: Mechanics,
}

/// Disk array as a medium.
pub struct Disks {
    rt: Rt,
    contents: Banked,
    waits: Waits,
    array: Array,
    /// Empty if the disks take no time.
    arms: Vec<Rc<Arm>>,
}

impl Array {
    /// Keys of its table, without those of the [mechanics](Mechanics::KEYS).
    pub const KEYS: &[Key<Array>] = &[
        Key::number("number", 1..=64, |a| a.disks.into(), |a, n| a.disks = n as u32),
        Key::multiple(
            "stripe",
            4096,
            4096..=64 << 20,
            |a| a.stripe_bytes,
            |a, n| a.stripe_bytes = n,
        ),
        Key::flag("read_ahead", |a| a.read_ahead.into(), |a, n| a.read_ahead = n == 1),
        Key::number("streams", 1..=1024, |a| a.streams.into(), |a, n| a.streams = n as u32),
    ];

    /// Capacity of the array in bytes: whole stripes.
    pub fn bytes(&self) -> u64 {
        self.mechanics.bytes() / self.stripe_bytes * self.stripe_bytes * u64::from(self.disks)
    }

    /// Disk that holds a byte, and the byte's position there.
    fn place(&self, byte: u64) -> (usize, u64) {
        let element = byte / self.stripe_bytes;
        let disks = u64::from(self.disks);
        let at = element / disks * self.stripe_bytes + byte % self.stripe_bytes;
        ((element % disks) as usize, at)
    }
}

impl Disks {
    /// Creates disks at rest with these contents. Unless `modelled`, they take no time.
    ///
    /// # Panics
    /// If the array is invalid, or smaller than the contents; the plan is checked before.
    pub fn new(rt: &Rt, contents: Contents, array: Array, modelled: bool) -> Disks {
        assert!(array.mechanics.is_sense() && array.disks > 0 && array.stripe_bytes > 0);
        assert!(array.bytes() >= contents.capacity_bytes());
        let streams = array.streams.max(1) as usize;
        let disks = if modelled { array.disks } else { 0 };
        let arms: Vec<_> = (0..disks).map(|_| Arm::start(rt, &array.mechanics, streams)).collect();
        Disks {
            rt: rt.clone(),
            waits: Waits {
                turn: stage!(rt, crate::banked::STAGES, "media wait"),
                service: stage!(rt, crate::banked::STAGES, "media"),
            },
            contents: Banked::new(rt, contents, Pace::Immediate),
            array,
            arms,
        }
    }

    /// Accesses the contents, beside the commands.
    pub fn with_contents<T>(&self, access: impl FnOnce(&mut Contents) -> T) -> T {
        self.contents.with_contents(access)
    }

    /// Returns the contents, for use after a power cut or by another device.
    pub fn into_contents(self) -> Contents {
        self.contents.into_contents()
    }

    /// Waits for all disks that hold part of these blocks.
    async fn reach(&self, at: Extent, write: bool) {
        let block = u64::from(self.contents.block_bytes());
        let (mut byte, end) = (at.block * block, (at.block + u64::from(at.blocks)) * block);
        if self.arms.is_empty() {
            return;
        }
        self.rt.sleep(self.array.mechanics.overhead).await;
        self.rt.record(self.waits.service);
        let mut last = self.rt.now();
        while byte < end {
            let element_end = (byte / self.array.stripe_bytes + 1) * self.array.stripe_bytes;
            let bytes = end.min(element_end) - byte;
            let (disk, from) = self.array.place(byte);
            let ahead = if self.array.read_ahead { element_end - byte } else { bytes };
            let arm = &self.arms[disk];
            let ahead_to = (from + ahead).min(arm.bytes());
            let wanted = Wanted { from, to: from + bytes, write, ahead_to };
            last = last.max(arm.reach(wanted).await);
            byte += bytes;
        }
        self.rt.record(self.waits.turn);
        self.rt.sleep_until(last).await;
        self.rt.record(self.waits.service);
    }
}

impl crate::Layer for Disks {
    type Beneath = Banked;

    fn beneath(&self) -> &Banked {
        &self.contents
    }

    fn is_immediate(&self) -> bool {
        self.arms.is_empty()
    }

    // The controller passes on a command's data when all of them have arrived.
    async fn read(&self, at: Extent) -> Result<Time, MediaError> {
        self.contents.read(at).await?;
        self.reach(at, false).await;
        Ok(Time::ZERO)
    }

    // A sector is read as a whole.
    async fn read_head(&self, at: Extent, _: u32) -> Result<Time, MediaError> {
        Media::read(self, at).await
    }

    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        // Checked before the arm moves: an out-of-range request does not wait.
        self.contents.read(at).await?;
        self.reach(at, true).await;
        self.contents.write(at, data).await
    }

    // Sectors have no space for metadata.
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities { metadata: None, ..self.contents.capabilities() }
    }
}

#[cfg(test)]
mod tests {
    use super::mechanics::tests::savvio;
    use super::*;
    use crate::contents::{Backing, Keep, Spec};
    use runtime::{Log, Span};
    use std::cell::Cell;

    const BLOCK: u32 = 4096;
    const PIECE: u32 = 8;

    fn disks(rt: &Rt, disks: u32, read_ahead: bool) -> Rc<Disks> {
        let array =
            Array { disks, stripe_bytes: 1 << 20, read_ahead, streams: 16, mechanics: savvio() };
        let spec = Spec {
            capacity_bytes: array.bytes(),
            block_bytes: BLOCK,
            keep: Keep::Stamps,
            backing: Backing::Memory,
        };
        Rc::new(Disks::new(rt, Contents::new(spec).unwrap(), array, true))
    }

    /// Reads `bytes` in concurrent pieces of 32 KiB, and returns the duration.
    fn read_at_once(rt: &Rt, disks: &Rc<Disks>, from: u64, bytes: u64) -> Span {
        let begun = rt.now();
        let left = Rc::new(Cell::new(0_u32));
        for block in (from / 4096..(from + bytes) / 4096).step_by(PIECE as usize) {
            let (disks, left) = (disks.clone(), left.clone());
            left.set(left.get() + 1);
            rt.spawn(async move {
                disks.read(Extent { block, blocks: PIECE }).await.unwrap();
                left.set(left.get() - 1);
            });
        }
        rt.block_on(async {
            while left.get() > 0 {
                rt.sleep(Span::us(1)).await;
            }
        });
        rt.now().since(begun)
    }

    #[test]
    fn disk_single_read_takes_overhead_seek_rotation_and_stream() {
        let rt = Rt::simulated(None, Log::Off);
        let disks = disks(&rt, 1, true);
        // Halfway between the outermost and the innermost cylinder.
        let block = disks.blocks() / 2;
        rt.block_on(disks.read(Extent { block, blocks: 1 })).unwrap();
        let took = rt.now().since(Time::ZERO);
        let least = Span::us(200) + Span::ms(4);
        assert!(took > least && took < least + Span::ms(3) + Span::ms(6), "{took}");
        // The second read hits the cache: the arm does not move.
        let begun = rt.now();
        rt.block_on(disks.read(Extent { block, blocks: 1 })).unwrap();
        assert_eq!(rt.now().since(begun), Span::us(200));
    }

    #[test]
    fn two_striped_disks_double_throughput() {
        let rate = |count: u32| {
            let rt = Rt::simulated(None, Log::Off);
            let disks = disks(&rt, count, true);
            (64 << 20) / (read_at_once(&rt, &disks, 0, 64 << 20).0 / 1_000_000)
        };
        let (one, two) = (rate(1), rate(2));
        assert!(
            (65..=70).contains(&one),
            "{one} MB/s, the manual's outer tracks less their switches"
        );
        assert!((2 * one - 12..=2 * one + 1).contains(&two), "{one} and {two} MB/s");
    }

    /// Interleaved streams cost seeks; read-ahead reduces them.
    #[test]
    fn read_ahead_speeds_up_interleaved_streams() {
        let took = |read_ahead: bool| {
            let rt = Rt::simulated(None, Log::Off);
            let disks = disks(&rt, 1, read_ahead);
            rt.block_on(async {
                for piece in 0..128 {
                    for stream in 0..4 {
                        let block = stream * (disks.blocks() / 4) + piece * u64::from(PIECE);
                        disks.read(Extent { block, blocks: PIECE }).await.unwrap();
                    }
                }
            });
            rt.now().since(Time::ZERO)
        };
        let (with, without) = (took(true), took(false));
        assert!(with * 4 < without, "{with} with read-ahead, {without} without");
    }

    #[test]
    fn disk_write_invalidates_cached_segments() {
        let rt = Rt::simulated(None, Log::Off);
        let disks = disks(&rt, 2, true);
        let at = Extent { block: 255, blocks: 2 };
        rt.block_on(async {
            disks.read(at).await.unwrap();
            let (mut data, begun) = (vec![0; 2 * BLOCK as usize], rt.now());
            data[..8].fill(7);
            disks.write(at, &data).await.unwrap();
            let again = rt.now();
            assert!(again.since(begun) > Span::us(200));
            disks.read(at).await.unwrap();
            assert!(rt.now().since(again) > Span::us(200), "the cache has let go of it");
            let mut seen = [0; 8];
            let mut put = |offset: u32, run: &[u8]| {
                if offset == 0 {
                    seen.copy_from_slice(&run[..8]);
                }
            };
            disks.runs(at, &mut put).unwrap();
            assert_eq!(seen, [7; 8]);
            let past = Extent { block: disks.blocks(), blocks: 1 };
            assert_eq!(disks.read(past).await, Err(MediaError::Range));
            assert_eq!(disks.write(past, &data[..4096]).await, Err(MediaError::Range));
        });
    }

    /// A dropped command leaves the queue, and the arm serves the others.
    #[test]
    fn queued_disk_read_can_be_dropped() {
        let rt = Rt::simulated(None, Log::Off);
        let disks = disks(&rt, 1, false);
        rt.block_on(async {
            let far = Extent { block: disks.blocks() - 1, blocks: 1 };
            let read = disks.read(far);
            let _ = runtime::race(read, rt.sleep(Span::us(300))).await;
            disks.read(Extent { block: 0, blocks: 1 }).await.unwrap();
        });
        assert!(disks.arms[0].bytes() > 0);
    }
}
