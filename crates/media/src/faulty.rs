//! A medium with injected faults: flipped bits, stuck accesses, and flushes that make nothing durable.
//!
//! It wraps another medium. The faults are in a [`Harm`], which the injector shares. Contents below stay
//! unchanged, and are read with their bits flipped until they are rewritten.

use core::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use runtime::{Rng, Rt, Span, Stage, Time, stage};

use crate::{Boxed, Capabilities, Erase, Extent, Head, Media, MediaError, Placed, Purge};

/// Flipped bits in the bytes of some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flip {
    /// Byte offset from the first of these blocks.
    pub byte: u32,
    /// Mask of flipped bits.
    pub bits: u8,
}

impl Flip {
    /// Picks one bit of the bytes of these blocks by the random number `draw`; on a medium that stores only
    /// block heads, one bit of a head.
    ///
    /// # Panics
    /// If there are no blocks.
    pub fn drawn(draw: u64, blocks: u32, block_bytes: u32, head: Option<Head>) -> Flip {
        assert!(blocks > 0, "a bit of no blocks");
        let (block, rest) = (draw % u64::from(blocks), draw / u64::from(blocks));
        let kept = u64::from(head.map_or(block_bytes, |head| head.bytes));
        let byte = block * u64::from(block_bytes) + rest % kept;
        Flip { byte: byte as u32, bits: 1 << (rest / kept % 8) }
    }
}

/// Passes runs on with bits flipped: `flips` ascend by byte, without duplicates. A byte that no run covers
/// reads as zero, and becomes a run of its own.
pub fn flipped(
    flips: &[Flip],
    lend: impl FnOnce(&mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError>,
    put: &mut dyn FnMut(u32, &[u8]),
) -> Result<(), MediaError> {
    let mut left = flips;
    lend(&mut |offset, run| {
        while let Some((flip, rest)) = left.split_first().filter(|(flip, _)| flip.byte < offset) {
            put(flip.byte, &[flip.bits]);
            left = rest;
        }
        let (mut from, end) = (0, run.len() as u32);
        while let Some((flip, rest)) =
            left.split_first().filter(|(flip, _)| flip.byte - offset < end)
        {
            let at = (flip.byte - offset) as usize;
            if from < at {
                put(offset + from as u32, &run[from..at]);
            }
            put(flip.byte, &[run[at] ^ flip.bits]);
            (from, left) = (at + 1, rest);
        }
        if from < run.len() {
            put(offset + from as u32, &run[from..]);
        }
    })?;
    left.iter().for_each(|flip| put(flip.byte, &[flip.bits]));
    Ok(())
}

/// Injected faults of a medium.
#[derive(Default)]
pub struct Harm {
    /// Per block: its flipped bits, ascending by byte.
    turned: RefCell<BTreeMap<u64, Vec<Flip>>>,
    /// No access completes before this time.
    stuck_until: Cell<Time>,
    /// Flushes before this time make nothing durable.
    flushes_ignored_until: Cell<Time>,
    flushes_ignored: Cell<u64>,
    volatile: RefCell<Volatile>,
    on_failed_flush: Cell<Option<Box<dyn FnOnce()>>>,
}

/// Blocks written since flushes are ignored, with the contents that a power cut may bring back. Beyond
/// [`VOLATILE_BYTES_MAX`] the oldest become durable, as they leave the cache of a drive.
#[derive(Default)]
struct Volatile {
    before: BTreeMap<u64, Vec<u8>>,
    oldest_first: VecDeque<u64>,
}

/// Size of the volatile cache of a drive that ignores flushes, bytes.
pub const VOLATILE_BYTES_MAX: u64 = 16 << 20;

impl Harm {
    /// Flips bits of one block. Reads return them until the block is written.
    pub fn turn(&self, block: u64, flip: Flip) {
        let mut turned = self.turned.borrow_mut();
        let flips = turned.entry(block).or_default();
        match flips.binary_search_by_key(&flip.byte, |known| known.byte) {
            Ok(known) => flips[known].bits ^= flip.bits,
            Err(place) => flips.insert(place, flip),
        }
    }

    /// No access completes before `until` from now on; with [`Time::NEVER`] none ever does.
    pub fn stick(&self, until: Time) {
        self.stuck_until.set(self.stuck_until.get().max(until));
    }

    /// As [`stick`](Harm::stick), also if that is earlier than before.
    pub fn stick_only_until(&self, until: Time) {
        self.stuck_until.set(until);
    }

    /// Flushes before `until` complete and make nothing durable; with [`Time::NEVER`] none ever does.
    pub fn ignore_flushes_until(&self, until: Time) {
        self.flushes_ignored_until.set(until);
    }

    /// Calls `report` after the first flush of the medium that fails.
    pub fn on_failed_flush(&self, report: impl FnOnce() + 'static) {
        self.on_failed_flush.set(Some(Box::new(report)));
    }

    /// Number of flushes that made nothing durable.
    pub fn flushes_ignored(&self) -> u64 {
        self.flushes_ignored.get()
    }

    /// Returns true if a power cut may lose blocks by [`lose`](Harm::lose).
    pub fn has_volatile(&self) -> bool {
        !self.volatile.borrow().before.is_empty()
    }

    /// Everything written is durable.
    pub fn forget_volatile(&self) {
        self.volatile.take();
    }

    /// The power is cut: of the blocks that no honest flush made durable, each gets the contents before with
    /// a probability of one half.
    pub async fn lose<M: Media>(&self, medium: &M) {
        let before = self.volatile.take().before;
        // The seed counts the flushes, so that cuts of one run lose other blocks.
        let mut rng = Rng::for_part(self.flushes_ignored.get(), "blocks lost in a power cut");
        for (block, old) in before {
            if rng.chance(1, 2) {
                // A block that cannot be written keeps its new contents.
                let _ = medium.write(Extent { block, blocks: 1 }, &old).await;
            }
        }
        let _ = medium.flush().await;
    }

    /// Returns true if flushes were ever ignored: by most drives they never are.
    #[inline]
    fn has_ignored_flushes(&self) -> bool {
        self.flushes_ignored_until.get() > Time::ZERO
    }

    /// Returns true if any bit was ever flipped: on most media none is.
    #[inline]
    fn has_turned(&self) -> bool {
        !self.turned.borrow().is_empty()
    }

    /// Returns true if the medium was ever stuck: most never are, and need not wait.
    #[inline]
    fn has_stuck(&self) -> bool {
        self.stuck_until.get() > Time::ZERO
    }

    fn mend(&self, at: Extent) {
        let mut turned = self.turned.borrow_mut();
        if turned.is_empty() {
            return;
        }
        let end = at.block.saturating_add(at.blocks.into());
        while let Some((&block, _)) = turned.range(at.block..end).next() {
            turned.remove(&block);
        }
    }

    /// Flipped bits in these blocks, with offsets from the first.
    fn of(&self, at: Extent, block_bytes: u32) -> Vec<Flip> {
        let turned = self.turned.borrow();
        let end = at.block.saturating_add(at.blocks.into());
        let of_block = |(block, flips): (&u64, &Vec<Flip>)| {
            let before = (block - at.block) as u32 * block_bytes;
            let moved = |flip: &Flip| Flip { byte: before + flip.byte, ..*flip };
            flips.iter().map(moved).collect::<Vec<_>>()
        };
        turned.range(at.block..end).flat_map(of_block).filter(|flip| flip.bits != 0).collect()
    }
}

/// A medium with injected faults.
pub struct Faulty<M> {
    rt: Rt,
    medium: Rc<M>,
    harm: Rc<Harm>,
    wait: Stage,
}

impl<M> Faulty<M> {
    /// Wraps this medium with the faults in `harm`.
    pub fn new(rt: &Rt, medium: Rc<M>, harm: Rc<Harm>) -> Faulty<M> {
        Faulty {
            rt: rt.clone(),
            medium,
            harm,
            wait: stage!(rt, crate::banked::STAGES, "media wait"),
        }
    }

    /// The wrapped medium.
    pub fn medium(&self) -> &Rc<M> {
        &self.medium
    }

    fn ignores_flushes(&self) -> bool {
        self.harm.flushes_ignored_until.get() > self.rt.now()
    }

    /// Remembers the contents of blocks about to be written.
    async fn remember(&self, at: Extent)
    where
        M: Media,
    {
        if !self.ignores_flushes() {
            return;
        }
        let bytes = self.medium.block_bytes();
        for block in at.block..at.block.saturating_add(at.blocks.into()) {
            let one = Extent { block, blocks: 1 };
            if self.harm.volatile.borrow().before.contains_key(&block)
                || self.medium.read(one).await.is_err()
            {
                continue;
            }
            let mut old = vec![0; bytes as usize];
            let copied = self.medium.runs(one, &mut |offset, run| {
                old[offset as usize..][..run.len()].copy_from_slice(run);
            });
            let mut volatile = self.harm.volatile.borrow_mut();
            if copied.is_ok() && volatile.before.insert(block, old).is_none() {
                volatile.oldest_first.push_back(block);
            }
            while volatile.oldest_first.len() as u64 * u64::from(bytes) > VOLATILE_BYTES_MAX {
                let oldest = volatile.oldest_first.pop_front();
                oldest.map(|oldest| volatile.before.remove(&oldest));
            }
        }
    }

    /// Reports the first flush that failed.
    fn flushed(&self, done: Result<(), MediaError>) -> Result<(), MediaError> {
        if done.is_err()
            && let Some(report) = self.harm.on_failed_flush.take()
        {
            report();
        }
        done
    }

    async fn unstuck(&self) {
        loop {
            match self.harm.stuck_until.get() {
                Time::NEVER => core::future::pending().await,
                until if until > self.rt.now() => self.rt.sleep_until(until).await,
                _ => return,
            }
            self.rt.record(self.wait);
        }
    }
}

impl<M: Media> crate::Layer for Faulty<M> {
    type Beneath = M;

    #[inline]
    fn beneath(&self) -> &M {
        &self.medium
    }

    #[inline]
    fn is_immediate(&self) -> bool {
        !self.harm.has_stuck() && !self.harm.has_ignored_flushes() && self.medium.is_immediate()
    }

    async fn read(&self, at: Extent) -> Result<Time, MediaError> {
        if self.harm.has_stuck() {
            self.unstuck().await;
        }
        self.medium.read(at).await
    }

    async fn read_head(&self, at: Extent, bytes: u32) -> Result<Time, MediaError> {
        if self.harm.has_stuck() {
            self.unstuck().await;
        }
        self.medium.read_head(at, bytes).await
    }

    #[inline]
    fn runs(&self, at: Extent, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError> {
        if !self.harm.has_turned() {
            return self.medium.runs(at, put);
        }
        let flips = self.harm.of(at, self.medium.block_bytes());
        flipped(&flips, |lent| self.medium.runs(at, lent), put)
    }

    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        if self.harm.has_stuck() {
            self.unstuck().await;
        }
        if self.harm.has_ignored_flushes() {
            self.remember(at).await;
        }
        self.medium.write(at, data).await?;
        self.harm.mend(at);
        Ok(())
    }

    fn write_at_once(
        &self,
        at: Extent,
        fill: &mut dyn FnMut(u32, &mut [u8]),
    ) -> Result<bool, MediaError> {
        let held_up = self.harm.has_stuck() || self.harm.has_ignored_flushes();
        let done = !held_up && self.medium.write_at_once(at, fill)?;
        if done {
            self.harm.mend(at);
        }
        Ok(done)
    }

    async fn deallocate(&self, at: Extent) -> Result<(), MediaError> {
        if self.harm.has_stuck() {
            self.unstuck().await;
        }
        if self.harm.has_ignored_flushes() {
            self.remember(at).await;
        }
        self.medium.deallocate(at).await?;
        self.harm.mend(at);
        Ok(())
    }

    fn capabilities(&self) -> Capabilities<'_> {
        let below = self.medium.capabilities();
        let purge = below.purge.whole().map_or(below.purge, |_| Purge::Whole(self));
        Capabilities { placed: below.placed.map(|_| self as _), purge, ..below }
    }

    async fn flush(&self) -> Result<(), MediaError> {
        if self.harm.has_stuck() {
            self.unstuck().await;
        }
        if self.harm.has_ignored_flushes() {
            if self.ignores_flushes() {
                self.harm.flushes_ignored.set(self.harm.flushes_ignored.get() + 1);
                return Ok(());
            }
            self.flushed(self.medium.flush().await)?;
            self.harm.forget_volatile();
            return Ok(());
        }
        self.flushed(self.medium.flush().await)
    }
}

impl<M: Media> Placed for Faulty<M> {
    fn read_placed<'a>(
        &'a self,
        at: Extent,
        places: &'a [u32],
    ) -> Boxed<'a, Result<Time, MediaError>> {
        Box::pin(async move {
            if self.harm.has_stuck() {
                self.unstuck().await;
            }
            let placed = self.medium.capabilities().placed.ok_or(MediaError::Unreadable)?;
            placed.read_placed(at, places).await
        })
    }

    fn runs_placed(
        &self,
        at: Extent,
        places: &[u32],
        put: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<(), MediaError> {
        let placed = self.medium.capabilities().placed.ok_or(MediaError::Unreadable)?;
        let flips = self.harm.of(at, self.medium.block_bytes());
        flipped(&flips, |lent| placed.runs_placed(at, places, lent), put)
    }
}

impl<M: Media> Erase for Faulty<M> {
    fn erase_time(&self) -> Option<Span> {
        self.medium.capabilities().purge.whole()?.erase_time()
    }

    fn erase<'a>(
        &'a self,
        progress: &'a mut dyn FnMut(u32, u32),
    ) -> Boxed<'a, Result<(), MediaError>> {
        Box::pin(async move {
            if self.harm.has_stuck() {
                self.unstuck().await;
            }
            let whole = self.medium.capabilities().purge.whole();
            whole.ok_or(MediaError::WriteFault)?.erase(progress).await?;
            self.harm.turned.borrow_mut().clear();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::{Backing, Keep, Spec};
    use crate::{Banked, Contents, Pace};
    use proptest::prelude::*;
    use runtime::Log;

    fn faulty(rt: &Rt) -> (Faulty<Banked>, Rc<Harm>) {
        let spec = Spec {
            capacity_bytes: 64 * 512,
            block_bytes: 512,
            keep: Keep::Everything,
            backing: Backing::Memory,
        };
        let contents = Contents::new(spec).expect("contents in memory");
        let harm = Rc::new(Harm::default());
        let medium = Rc::new(Banked::new(rt, contents, Pace::Immediate));
        (Faulty::new(rt, medium, harm.clone()), harm)
    }

    fn bytes(medium: &impl Media, at: Extent) -> Vec<u8> {
        let mut bytes = vec![0; (at.blocks * medium.block_bytes()) as usize];
        let mut from = 0;
        medium
            .runs(at, &mut |offset, run| {
                assert!(offset >= from, "runs ascend");
                from = offset + run.len() as u32;
                bytes[offset as usize..from as usize].copy_from_slice(run);
            })
            .expect("blocks that there are");
        bytes
    }

    /// A host writes two versions of 64 blocks, each flushed. Returns the versions found after a power cut.
    fn found_after_cut(ignores: bool) -> Vec<u8> {
        let rt = Rt::simulated(None, Log::Off);
        let (medium, harm) = faulty(&rt);
        if ignores {
            harm.ignore_flushes_until(Time::NEVER);
        }
        rt.block_on(async {
            for version in [1, 2] {
                for block in 0..64 {
                    let at = Extent { block, blocks: 1 };
                    medium.write(at, &[version; 512]).await.expect("a write");
                }
                medium.flush().await.expect("acknowledged");
            }
            harm.lose(&**medium.medium()).await;
        });
        let whole = bytes(&medium, Extent { block: 0, blocks: 64 });
        whole.chunks(512).map(|block| block[0]).collect()
    }

    #[test]
    fn power_cut_loses_blocks_only_if_flushes_are_ignored() {
        assert_eq!(found_after_cut(false), [2; 64]);
        let found = found_after_cut(true);
        let count = |version| found.iter().filter(|found| **found == version).count();
        // 64 draws of one in two: 32, give or take six standard deviations of 4.
        assert!((8..=56).contains(&count(0)), "{found:?}");
        assert_eq!(count(0) + count(2), 64, "the last version, or that before the fault");
    }

    #[test]
    fn flush_after_the_fault_makes_blocks_durable() {
        let rt = Rt::simulated(None, Log::Off);
        let (medium, harm) = faulty(&rt);
        harm.ignore_flushes_until(Time::NEVER);
        let at = Extent { block: 0, blocks: 64 };
        rt.block_on(async {
            medium.write(at, &[1; 64 * 512]).await.expect("a write");
            medium.flush().await.expect("acknowledged");
            assert_eq!(harm.flushes_ignored(), 1);
            harm.ignore_flushes_until(Time(1));
            rt.sleep(Span::ns(1)).await;
            medium.flush().await.expect("a flush");
            harm.lose(&**medium.medium()).await;
        });
        assert!(bytes(&medium, at).iter().all(|byte| *byte == 1));
        assert_eq!(harm.flushes_ignored(), 1);
    }

    #[test]
    fn flipped_bit_persists_until_block_is_written() {
        let rt = Rt::simulated(None, Log::Off);
        let (medium, harm) = faulty(&rt);
        rt.block_on(async {
            let at = Extent { block: 4, blocks: 2 };
            medium.write(at, &[7; 1024]).await.expect("a write");
            harm.turn(5, Flip { byte: 3, bits: 1 });
            let mut harmed = vec![7; 1024];
            harmed[512 + 3] = 6;
            assert_eq!(bytes(&medium, at), harmed);
            assert_eq!(bytes(&medium, Extent { block: 5, blocks: 1 }), harmed[512..]);
            medium.write(Extent { block: 4, blocks: 1 }, &[7; 512]).await.expect("a write");
            assert_eq!(bytes(&medium, at), harmed, "another block was written");
            medium.write(Extent { block: 5, blocks: 1 }, &[9; 512]).await.expect("a write");
            assert_eq!(bytes(&medium, at)[512..], [9; 512]);
            harm.turn(40, Flip { byte: 511, bits: 0x80 });
            assert_eq!(bytes(&medium, Extent { block: 40, blocks: 1 })[511], 0x80, "never written");
            harm.turn(40, Flip { byte: 511, bits: 0x80 });
            assert_eq!(bytes(&medium, Extent { block: 40, blocks: 1 })[511], 0, "turned back");
        });
    }

    #[test]
    fn stuck_medium_completes_accesses_at_deadline() {
        let rt = Rt::simulated(None, Log::Off);
        let (medium, harm) = faulty(&rt);
        rt.block_on(async {
            harm.stick(Time::ZERO + Span::us(5));
            medium.read(Extent { block: 0, blocks: 1 }).await.expect("a read");
            assert_eq!(rt.now(), Time::ZERO + Span::us(5));
            medium.flush().await.expect("a flush");
            assert_eq!(rt.now(), Time::ZERO + Span::us(5));
        });
    }

    proptest! {
        /// Compared with bytes flipped one by one.
        #[test]
        fn flipped_runs_match_bytewise_reference(
            covered in prop::collection::vec((any::<bool>(), any::<u8>()), 1..200),
            turned in prop::collection::btree_map(0_u32..200, 1_u8.., 0..12),
        ) {
            let length = covered.len() as u32;
            let flips: Vec<_> = turned.iter().filter(|(byte, _)| **byte < length)
                .map(|(&byte, &bits)| Flip { byte, bits }).collect();
            let mut expected: Vec<u8> =
                covered.iter().map(|(lent, byte)| if *lent { *byte } else { 0 }).collect();
            flips.iter().for_each(|flip| expected[flip.byte as usize] ^= flip.bits);
            let lend = |put: &mut dyn FnMut(u32, &[u8])| {
                let mut at = 0;
                for part in covered.chunk_by(|a, b| a.0 == b.0) {
                    if part[0].0 {
                        let run: Vec<u8> = part.iter().map(|(_, byte)| *byte).collect();
                        put(at, &run);
                    }
                    at += part.len() as u32;
                }
                Ok(())
            };
            let (mut found, mut end) = (vec![0; covered.len()], 0);
            flipped(&flips, lend, &mut |offset, run| {
                assert!(offset >= end && !run.is_empty(), "runs ascend");
                end = offset + run.len() as u32;
                found[offset as usize..end as usize].copy_from_slice(run);
            }).unwrap();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn drawn_bit_flip_is_within_blocks_and_stored_head(draw: u64, blocks in 1_u32..70_000) {
            let flip = Flip::drawn(draw, blocks, 512, None);
            prop_assert!(flip.byte < blocks * 512 && flip.bits.is_power_of_two());
            let head = Some(Head { bytes: 8, of: 512 });
            prop_assert!(Flip::drawn(draw, blocks, 512, head).byte % 512 < 8);
        }
    }
}
