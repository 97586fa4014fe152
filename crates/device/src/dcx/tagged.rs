//! A medium with tags: values of 32 to 64 bits with which none of its granules ends, chosen by the device.
//!
//! Invariant: while a version of the tag has readers, no granule of the medium ends with that tag. It holds
//! because
//! 1. a tag is a value that no granule ends with, including those of writes in flight ([`super::absent`]);
//! 2. a write that contains a tag in use waits until that version is no longer the newest, so that it gains
//!    no readers, and has none left; one executed at once finds no readers, and replaces the newest tag;
//! 3. overlapping writes are serialized, so that a write replaces exactly the contents that it read.
//!
//! It is a medium around the medium, which NVMe and DC Express share, so that no write bypasses it.
//! `tests/it/dcx/model.rs` explores every order of these steps.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use media::{Capabilities, Extent, Layer, Media, MediaError, Purge};
use runtime::{Rt, Signal, Stage, stage};

use super::absent::Absent;
use super::ends::Ends;
use super::intervals::Intervals;

/// The newest tag and its version. Version zero: no tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The tag, in the high bits: how the last eight bytes of a granule end.
    pub tag: u64,
    /// Its version.
    pub version: u32,
}

/// Source of a device's tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagSource {
    /// Intervals of absent values.
    Intervals,
    /// Values picked at random and compared with the contents.
    Compared {
        /// Number of values: all but one are in reserve.
        values: u32,
        /// RNG seed.
        seed: u64,
    },
}

impl TagSource {
    /// Memory of the device that it takes for this number of granules, bytes.
    pub fn memory_bytes(self, granules: u64) -> u64 {
        match self {
            TagSource::Intervals => Intervals::memory_bytes(granules),
            TagSource::Compared { values, .. } => super::absent::memory_bytes(values),
        }
    }
}

/// Tags of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagSpec {
    /// Bytes of a granule; divides the block.
    pub grain: u32,
    /// Bits of a tag, 32 to 64.
    pub bits: u32,
    /// Source.
    pub source: TagSource,
}

/// A tag that is the newest or has readers.
#[derive(Clone, Copy, Debug)]
struct InUse {
    choice: Choice,
    readers: u32,
}

struct State {
    absent: Absent,
    /// In order of age; the last is the newest.
    tags: Vec<InUse>,
    versions: u32,
    /// Extents of the writes in flight.
    writing: Vec<Extent>,
}

/// Bytes of one part of a scan. A part of a medium without timing is read within one turn of the executor,
/// which commands wait for: some microseconds.
const SCAN_BYTES: u32 = 1 << 20;
const SCAN_BYTES_IMMEDIATE: u32 = 32 << 10;
/// Scans in a row that left no value, after which the device has no tags, and the driver's are random.
const FRUITLESS_MAX: u32 = 16;

/// A medium, and the tags that do not occur in its contents.
pub struct Tagged<M> {
    rt: Rt,
    media: Rc<M>,
    /// Granule size, bytes. `None`: no tags.
    grain: Option<u32>,
    state: RefCell<State>,
    /// Notified when a reader or a write has ended.
    eased: Signal,
    /// Notified when the newest tag changes.
    changed: Signal,
    waits: Cell<u64>,
    wait: Stage,
    /// Scratch lists, reused from write to write.
    spare: RefCell<Vec<Vec<u64>>>,
    scans: Cell<u64>,
}

impl<M: Media> Tagged<M> {
    /// A medium without device tags: the host chooses its own.
    pub fn without_tags(rt: &Rt, media: Rc<M>) -> Tagged<M> {
        Tagged::with(rt, media, None, Absent::intervals(32, 0))
    }

    /// Tags of 32 bits from intervals. `grain`, in bytes, must divide the block size.
    ///
    /// # Errors
    /// As [`choosing`](Self::choosing).
    pub fn new(rt: &Rt, media: Rc<M>, grain: u32) -> Result<Tagged<M>, MediaError> {
        Tagged::choosing(rt, media, TagSpec { grain, bits: 32, source: TagSource::Intervals })
    }

    /// Reads the whole medium, as at power-up, and chooses the first tag. Takes no time: see
    /// [`TagSource`] for scans while the device is in use.
    ///
    /// # Errors
    /// The medium could not be read.
    ///
    /// # Panics
    /// If granules do not make up blocks, or a tag has other than 32 to 64 bits.
    pub fn choosing(rt: &Rt, media: Rc<M>, spec: TagSpec) -> Result<Tagged<M>, MediaError> {
        let TagSpec { grain, bits, source } = spec;
        let block_bytes = media.block_bytes();
        assert!(grain >= 8 && block_bytes.is_multiple_of(grain), "granules make up blocks");
        assert!((32..=64).contains(&bits), "a tag of the device has 32 to 64 bits");
        let granules = media.blocks() * u64::from(block_bytes / grain);
        let absent = match source {
            TagSource::Intervals => Absent::intervals(bits, granules),
            TagSource::Compared { values, seed } => Absent::compared(bits, values, seed),
        };
        let tagged = Tagged::with(rt, media, Some(grain), absent);
        tagged.power_up()?;
        tagged.state.borrow_mut().absent.finish();
        tagged.choose();
        Ok(tagged)
    }

    /// Shows every granule's end to the source of tags.
    fn power_up(&self) -> Result<(), MediaError> {
        let tagged = self;
        let block_bytes = tagged.media.block_bytes();
        let at_once = (1 << 20) / block_bytes;
        // A medium that keeps only stamps reads as zero at every granule's end; zero is the initial count.
        let blocks = if tagged.media.head().is_none() { tagged.media.blocks() } else { 0 };
        let mut block = 0;
        while block < blocks {
            // No tag is zero, so terabytes that were never written need not be read.
            let blank = tagged.media.capabilities().blank.map_or(0, |of| of.blank_from(block));
            if blank > 0 {
                tagged.blank_ends(block, blank);
                block += blank;
                continue;
            }
            let blocks = u64::from(at_once).min(blocks - block) as u32;
            let mut state = tagged.state.borrow_mut();
            tagged.ends(Extent { block, blocks }, &mut |end| state.absent.found(end))?;
            block += u64::from(blocks);
        }
        Ok(())
    }

    /// The ends of blocks that were never written: generated, without the bytes in between.
    fn blank_ends(&self, block: u64, blocks: u64) {
        let fill = self.media.capabilities().blank.and_then(|blank| blank.fill());
        let (Some(fill), Some(grain)) = (fill, self.grain) else { return };
        let (block_bytes, grain) = (u64::from(self.media.block_bytes()), u64::from(grain));
        let state = &mut *self.state.borrow_mut();
        let granules = block * block_bytes / grain..(block + blocks) * block_bytes / grain;
        granules.for_each(|granule| {
            state.absent.found(fill.word(((granule + 1) * grain - 8) / 8));
        });
    }

    /// Task of the source of tags: whenever few values are left, compares new ones with the whole
    /// medium, which takes the time of reading it. Ends at once if the source needs no scans.
    pub async fn keep_absent(&self) {
        if self.grain.is_none() || self.media.head().is_some() {
            return;
        }
        let mut fruitless = 0;
        loop {
            let seen = self.changed.version();
            if self.state.borrow().absent.counts_old() {
                return;
            }
            if !self.state.borrow().absent.wants_scan() {
                self.changed.changed(&self.rt, seen).await;
                continue;
            }
            self.state.borrow_mut().absent.begin();
            if self.scan().await.is_err() {
                // Blocks that cannot be read may end with any value.
                return;
            }
            self.scans.set(self.scans.get() + 1);
            self.rt.log("device", "compared", self.scans.get(), 0);
            self.state.borrow_mut().absent.finish();
            fruitless = match self.state.borrow().absent.absent(0) {
                Some(_) => 0,
                None => fruitless + 1,
            };
            if fruitless == FRUITLESS_MAX {
                // A medium of this size has all values of this length.
                return;
            }
            let seen = self.changed.version();
            if self.newest().version == 0 {
                self.choose();
            } else if self.state.borrow().absent.wants_scan() {
                // Few values are absent: one scan for each tag that is spent, not one after the other.
                self.changed.changed(&self.rt, seen).await;
            }
        }
    }

    /// Reads the medium in parts. A part is claimed while it is read, so that a write in flight since
    /// before the values were drawn is seen by it; the writes that begin later strike values themselves.
    async fn scan(&self) -> Result<(), MediaError> {
        let bytes = if self.media.is_immediate() { SCAN_BYTES_IMMEDIATE } else { SCAN_BYTES };
        let at_once = u64::from((bytes / self.media.block_bytes()).max(1));
        let (mut block, blocks) = (0, self.media.blocks());
        while block < blocks {
            let at = Extent { block, blocks: at_once.min(blocks - block) as u32 };
            let claimed = self.claim(at).await;
            let ready = self.media.read(at).await?;
            self.rt.sleep_until(ready).await;
            {
                let mut state = self.state.borrow_mut();
                self.ends(at, &mut |end| state.absent.found(end))?;
            }
            drop(claimed);
            block += u64::from(at.blocks);
            // Live, a part takes no time of the medium: commands have their turn.
            self.rt.yield_now().await;
        }
        Ok(())
    }

    /// Number of scans of the medium since power-up.
    pub fn scans(&self) -> u64 {
        self.scans.get()
    }

    /// Bits of a tag of the device.
    pub fn tag_bits(&self) -> u32 {
        self.state.borrow().absent.bits
    }

    fn with(rt: &Rt, media: Rc<M>, grain: Option<u32>, absent: Absent) -> Tagged<M> {
        let state = State { absent, tags: Vec::new(), versions: 0, writing: Vec::new() };
        Tagged {
            rt: rt.clone(),
            media,
            grain,
            state: RefCell::new(state),
            eased: Signal::default(),
            changed: Signal::default(),
            waits: Cell::new(0),
            wait: stage!(rt, super::STAGES, "tag wait"),
            spare: RefCell::default(),
            scans: Cell::new(0),
        }
    }

    /// Granule size, bytes. `None`: no tags.
    pub fn grain(&self) -> Option<u32> {
        self.grain
    }

    /// The newest tag.
    pub fn newest(&self) -> Choice {
        self.state.borrow().tags.last().map(|tag| tag.choice).unwrap_or_default()
    }

    /// Notified with each new tag.
    pub fn changed(&self) -> &Signal {
        &self.changed
    }

    /// Number of writes that had to wait for readers.
    pub fn waits(&self) -> u64 {
        self.waits.get()
    }

    /// Registers a reader of this version. `None` if it is not the newest.
    pub fn begin_read(&self, version: u32) -> Option<Reader<'_, M>> {
        let mut state = self.state.borrow_mut();
        let newest = state.tags.last_mut().filter(|tag| tag.choice.version == version)?;
        newest.readers += 1;
        Some(Reader { tagged: self, version })
    }

    /// Chooses a new newest tag, or none if the source knows none.
    fn choose(&self) {
        let mut state = self.state.borrow_mut();
        let near = u64::from(state.versions.wrapping_mul(0x9e37_79b9) ^ 0x5a5a_5a5a) << 32;
        state.versions = state.versions.wrapping_add(1).max(1);
        let choice = match state.absent.absent(near) {
            Some(tag) => Choice { tag, version: state.versions },
            None => Choice::default(),
        };
        state.tags.retain(|tag| tag.readers > 0);
        state.tags.push(InUse { choice, readers: 0 });
        drop(state);
        self.changed.notify(&self.rt);
    }

    /// Passes the last eight bytes of each granule of these blocks, as the medium holds them.
    fn ends(&self, at: Extent, tell: &mut dyn FnMut(u64)) -> Result<(), MediaError> {
        let Some(grain) = self.grain else { return Ok(()) };
        let bytes = at.blocks * self.media.block_bytes();
        let mut ends = Ends::of(grain);
        self.media.runs(at, &mut |offset, run| ends.run(offset, run, tell))?;
        ends.rest(bytes, tell);
        Ok(())
    }

    /// The last eight bytes of each granule of these data.
    fn ends_of<'a>(&self, data: &'a [u8]) -> impl Iterator<Item = u64> + use<'a, M> {
        let grain = self.grain.map_or(usize::MAX, |grain| grain as usize);
        let last = |granule: &[u8]| u64::from_le_bytes(*granule.last_chunk().expect("eight bytes"));
        data.chunks_exact(grain).map(last)
    }

    /// Waits until no overlapping write is in flight, then registers this one.
    async fn claim(&self, at: Extent) -> Writing<'_, M> {
        let overlaps = |other: &Extent| {
            other.block < at.block + u64::from(at.blocks)
                && at.block < other.block + u64::from(other.blocks)
        };
        loop {
            let seen = self.eased.version();
            if !self.state.borrow().writing.iter().any(overlaps) {
                self.state.borrow_mut().writing.push(at);
                return Writing { tagged: self, at };
            }
            self.eased.changed(&self.rt, seen).await;
        }
    }

    /// Waits until no tag in use occurs in these data. Their words are already counted, so a new tag cannot
    /// occur in them either.
    async fn clear_of_tags(&self, data: &[u8]) {
        let mut waited = false;
        loop {
            let seen = self.eased.version();
            let newest = self.newest();
            let mut met = false;
            {
                let state = self.state.borrow();
                for word in self.ends_of(data) {
                    met |= state.tags.iter().any(|tag| {
                        tag.choice.version != 0 && state.absent.is_in(tag.choice.tag, word)
                    });
                }
                if !met {
                    return;
                }
            }
            let is_newest = |end| self.state.borrow().absent.is_in(newest.tag, end);
            if newest.version != 0 && self.ends_of(data).any(is_newest) {
                self.choose();
                continue;
            }
            if !std::mem::replace(&mut waited, true) {
                self.waits.set(self.waits.get() + 1);
            }
            self.eased.changed(&self.rt, seen).await;
        }
    }

    fn write_counted(
        &self,
        at: Extent,
        grain: u32,
        fill: &mut dyn FnMut(u32, &mut [u8]),
    ) -> Result<bool, MediaError> {
        let mut state = self.state.borrow_mut();
        let newest = state.tags.last().map(|tag| tag.choice).unwrap_or_default();
        let is_read = state.tags.iter().any(|tag| tag.readers > 0);
        if is_read || !state.writing.is_empty() || state.absent.counts_old() {
            return Ok(false);
        }
        let mut ends = Ends::of(grain);
        let mut met = false;
        let done = self.media.write_at_once(at, &mut |offset, run| {
            fill(offset, run);
            ends.run(offset, run, &mut |end| {
                state.absent.add(end);
                met |= state.absent.is_in(newest.tag, end);
            });
        });
        drop(state);
        if met && newest.version != 0 {
            self.choose();
        }
        done
    }

    async fn write_tagged(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        let writing = self.claim(at).await;
        {
            let absent = &mut self.state.borrow_mut().absent;
            absent.prefetch(self.ends_of(data));
            self.ends_of(data).for_each(|end| absent.add(end));
        }
        let counted = Counted { tagged: self, data, keep: Cell::new(false) };
        self.clear_of_tags(data).await;
        self.rt.record(self.wait);
        let mut old = self.spare.borrow_mut().pop().unwrap_or_default();
        if self.state.borrow().absent.counts_old() {
            // The old granule ends are read from the medium, with its normal read time.
            let ready = self.media.read(at).await?;
            self.rt.sleep_until(ready).await;
            self.ends(at, &mut |end| old.push(end))?;
            self.state.borrow().absent.prefetch(old.iter().copied());
        }
        // From here on a failure may leave old or new data, so both stay counted.
        counted.keep.set(true);
        self.media.write(at, data).await?;
        let mut state = self.state.borrow_mut();
        old.drain(..).for_each(|word| state.absent.remove(word));
        // If no interval was empty before, one may be now.
        let may_choose = state.absent.absent(0).is_some();
        drop(state);
        if may_choose && self.newest().version == 0 {
            self.choose();
        }
        self.spare.borrow_mut().push(old);
        drop(writing);
        Ok(())
    }
}

/// A read with a version of the tag, until dropped.
pub struct Reader<'a, M: Media> {
    tagged: &'a Tagged<M>,
    version: u32,
}

impl<M: Media> Drop for Reader<'_, M> {
    fn drop(&mut self) {
        let mut state = self.tagged.state.borrow_mut();
        let newest = state.tags.last().map(|tag| tag.choice.version);
        if let Some(tag) = state.tags.iter_mut().find(|tag| tag.choice.version == self.version) {
            tag.readers -= 1;
        }
        if newest != Some(self.version) {
            state.tags.retain(|tag| tag.readers > 0 || Some(tag.choice.version) == newest);
            drop(state);
            self.tagged.eased.notify(&self.tagged.rt);
        }
    }
}

/// A write in flight to these blocks, until dropped.
struct Writing<'a, M: Media> {
    tagged: &'a Tagged<M>,
    at: Extent,
}

impl<M: Media> Drop for Writing<'_, M> {
    fn drop(&mut self) {
        let mut state = self.tagged.state.borrow_mut();
        let place = state.writing.iter().position(|at| *at == self.at).expect("claimed");
        state.writing.swap_remove(place);
        drop(state);
        self.tagged.eased.notify(&self.tagged.rt);
    }
}

/// The counted words of data to be written. They are removed again if the write is cancelled before it
/// reaches the medium.
struct Counted<'a, M: Media> {
    tagged: &'a Tagged<M>,
    data: &'a [u8],
    keep: Cell<bool>,
}

impl<M: Media> Drop for Counted<'_, M> {
    fn drop(&mut self) {
        if !self.keep.get() {
            let mut state = self.tagged.state.borrow_mut();
            self.tagged.ends_of(self.data).for_each(|word| state.absent.remove(word));
        }
    }
}

impl<M: Media> Layer for Tagged<M> {
    type Beneath = M;

    #[inline]
    fn beneath(&self) -> &M {
        &self.media
    }

    /// Namespaces, protection and sanitize are unavailable: the DC Express queues do not support them.
    fn capabilities(&self) -> Capabilities<'_> {
        let purge = Purge::Unsupported;
        Capabilities { labels: None, metadata: None, purge, ..self.media.capabilities() }
    }

    /// With values that are compared, while there is no reader and no other write: the ends of the data are
    /// looked at where they now are, before anyone can read them.
    fn write_at_once(
        &self,
        at: Extent,
        fill: &mut dyn FnMut(u32, &mut [u8]),
    ) -> Result<bool, MediaError> {
        match self.grain {
            Some(grain) if self.media.head().is_none() => self.write_counted(at, grain, fill),
            _ => self.media.write_at_once(at, fill),
        }
    }

    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        // A medium that keeps only stamps stores no granule end: all read as zero.
        match self.grain {
            Some(_) if self.media.head().is_none() => self.write_tagged(at, data).await,
            _ => self.media.write(at, data).await,
        }
    }

    /// If granule ends are counted, deallocation writes zeros.
    async fn deallocate(&self, at: Extent) -> Result<(), MediaError> {
        if self.grain.is_none() || self.media.head().is_some() {
            return self.media.deallocate(at).await;
        }
        media::write_zeros(self, at).await
    }
}
