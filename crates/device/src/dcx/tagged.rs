//! A medium with tags: 32-bit values with which none of its granules ends, chosen by the device.
//!
//! Invariant: while a version of the tag has readers, no granule of the medium ends with that tag. It holds
//! because
//! 1. a tag is chosen from an interval in which no granule ends, including those of writes in flight;
//! 2. a write that contains a tag in use waits until that version is no longer the newest, so that it gains
//!    no readers, and has none left;
//! 3. overlapping writes are serialized, so that a write replaces exactly the contents that it read.
//!
//! `tests/it/dcx/model.rs` explores every order of these steps.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use media::{BlockMetadata, Extent, Labels, Layer, Media, MediaError, Purge};
use runtime::{Rt, Signal, Stage};

use super::intervals::Intervals;

/// The newest tag and its version. Version zero: no tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The tag, 32 bits.
    pub tag: u32,
    /// Its version.
    pub version: u32,
}

/// A tag that is the newest or has readers.
#[derive(Clone, Copy, Debug)]
struct InUse {
    choice: Choice,
    readers: u32,
}

struct State {
    intervals: Intervals,
    /// In order of age; the last is the newest.
    tags: Vec<InUse>,
    versions: u32,
    /// Extents of the writes in flight.
    writing: Vec<Extent>,
}

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
    spare: RefCell<Vec<Vec<u32>>>,
}

impl<M: Media> Tagged<M> {
    /// A medium without device tags: the host chooses its own.
    pub fn without_tags(rt: &Rt, media: Rc<M>) -> Tagged<M> {
        Tagged::with(rt, media, None, Intervals::new(0))
    }

    /// Reads the whole medium and chooses the first tag. `grain`, in bytes, must divide the block size.
    ///
    /// # Errors
    /// The medium could not be read.
    pub fn new(rt: &Rt, media: Rc<M>, grain: u32) -> Result<Tagged<M>, MediaError> {
        let block_bytes = media.block_bytes();
        assert!(grain >= 4 && block_bytes.is_multiple_of(grain), "granules make up blocks");
        let granules = media.blocks() * u64::from(block_bytes / grain);
        let tagged = Tagged::with(rt, media, Some(grain), Intervals::new(granules));
        let at_once = (1 << 20) / block_bytes;
        // A medium that keeps only stamps reads as zero at every granule's end; zero is the initial count.
        let blocks = if tagged.media.head().is_none() { tagged.media.blocks() } else { 0 };
        let mut block = 0;
        while block < blocks {
            // Zero is the initial count, so terabytes that were never written need not be read.
            let blank = tagged.media.blank_from(block);
            if blank > 0 {
                block += blank;
                continue;
            }
            let blocks = u64::from(at_once).min(blocks - block) as u32;
            let mut state = tagged.state.borrow_mut();
            tagged.ends(Extent { block, blocks }, &mut |word| {
                if word != 0 {
                    state.intervals.remove(0);
                    state.intervals.add(word);
                }
            })?;
            block += u64::from(blocks);
        }
        tagged.choose();
        Ok(tagged)
    }

    fn with(rt: &Rt, media: Rc<M>, grain: Option<u32>, intervals: Intervals) -> Tagged<M> {
        let state = State { intervals, tags: Vec::new(), versions: 0, writing: Vec::new() };
        Tagged {
            rt: rt.clone(),
            media,
            grain,
            state: RefCell::new(state),
            eased: Signal::default(),
            changed: Signal::default(),
            waits: Cell::new(0),
            wait: rt.stage("tag wait"),
            spare: RefCell::default(),
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

    /// Chooses a new newest tag, or none if every interval is taken.
    fn choose(&self) {
        let mut state = self.state.borrow_mut();
        let near = state.versions.wrapping_mul(0x9e37_79b9) ^ 0x5a5a_5a5a;
        state.versions = state.versions.wrapping_add(1).max(1);
        let choice = match state.intervals.absent(near) {
            Some(tag) => Choice { tag, version: state.versions },
            None => Choice::default(),
        };
        state.tags.retain(|tag| tag.readers > 0);
        state.tags.push(InUse { choice, readers: 0 });
        drop(state);
        self.changed.notify(&self.rt);
    }

    /// Passes the last word of each granule of these blocks, as the medium holds them.
    fn ends(&self, at: Extent, tell: &mut dyn FnMut(u32)) -> Result<(), MediaError> {
        let Some(grain) = self.grain else { return Ok(()) };
        let bytes = at.blocks * self.media.block_bytes();
        let mut next = grain - 4;
        let mut word = [0; 4];
        self.media.runs(at, &mut |offset, run| {
            let end = offset + run.len() as u32;
            while next < end {
                for byte in next.max(offset)..(next + 4).min(end) {
                    word[(byte - next) as usize] = run[(byte - offset) as usize];
                }
                if end < next + 4 {
                    return;
                }
                tell(u32::from_le_bytes(std::mem::take(&mut word)));
                next += grain;
            }
        })?;
        while next < bytes {
            tell(u32::from_le_bytes(std::mem::take(&mut word)));
            next += grain;
        }
        Ok(())
    }

    /// The last word of each granule of these data.
    fn ends_of<'a>(&self, data: &'a [u8]) -> impl Iterator<Item = u32> + use<'a, M> {
        let grain = self.grain.map_or(usize::MAX, |grain| grain as usize);
        let last = |granule: &[u8]| u32::from_le_bytes(*granule.last_chunk().expect("a word"));
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
                    met |= state
                        .tags
                        .iter()
                        .any(|tag| tag.choice.version != 0 && tag.choice.tag == word);
                }
                if !met {
                    return;
                }
            }
            if newest.version != 0 && self.ends_of(data).any(|word| word == newest.tag) {
                self.choose();
                continue;
            }
            if !std::mem::replace(&mut waited, true) {
                self.waits.set(self.waits.get() + 1);
            }
            self.eased.changed(&self.rt, seen).await;
        }
    }

    async fn write_tagged(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        let writing = self.claim(at).await;
        for word in self.ends_of(data) {
            self.state.borrow_mut().intervals.add(word);
        }
        let counted = Counted { tagged: self, data, keep: Cell::new(false) };
        self.clear_of_tags(data).await;
        self.rt.record(self.wait);
        // The old granule ends are read from the medium, with its normal read time.
        let ready = self.media.read(at).await?;
        self.rt.sleep_until(ready).await;
        let mut old = self.spare.borrow_mut().pop().unwrap_or_default();
        self.ends(at, &mut |word| old.push(word))?;
        // From here on a failure may leave old or new data, so both stay counted.
        counted.keep.set(true);
        self.media.write(at, data).await?;
        let mut state = self.state.borrow_mut();
        old.drain(..).for_each(|word| state.intervals.remove(word));
        // If no interval was empty before, one may be now.
        let may_choose = state.intervals.absent(0).is_some();
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
            self.tagged.ends_of(self.data).for_each(|word| state.intervals.remove(word));
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
    fn labels(&self) -> Option<&dyn Labels> {
        None
    }

    fn metadata(&self) -> Option<&dyn BlockMetadata> {
        None
    }

    fn purge(&self) -> Purge<'_> {
        Purge::Unsupported
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
