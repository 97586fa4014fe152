//! A medium with something wrong with it: bits that have turned over, accesses that do not end.
//!
//! It stands around another medium. What is wrong is a [`Harm`], which whoever plays the misfortune holds
//! too; contents that are harmed stay as they are beneath, and are read with their bits turned until they
//! are written anew.

use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use runtime::{Rt, Span, Stage, Time};

use crate::{Erase, Erasing, Extent, Head, Media, MediaError, Purge};

/// A bit that has turned over: of the bytes of some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flip {
    /// The byte, counted from the first of them.
    pub byte: u32,
    /// Which bits of it: all that are set here.
    pub bits: u8,
}

impl Flip {
    /// One bit of the bytes of these blocks, as `draw` says; of a medium that keeps the heads of blocks,
    /// one of their heads.
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

/// Hands on runs with bits turned over: `flips` ascend by byte, none twice. A byte that no run covers
/// reads as zero, and is one run more.
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

/// What is wrong with a medium.
#[derive(Default)]
pub struct Harm {
    /// By block: the bits that have turned over in it, ascending by byte.
    turned: RefCell<BTreeMap<u64, Vec<Flip>>>,
    stuck_until: Cell<Time>,
}

impl Harm {
    /// Turns bits of one block over. Whoever reads the block finds it so until it is written.
    pub fn turn(&self, block: u64, flip: Flip) {
        let mut turned = self.turned.borrow_mut();
        let flips = turned.entry(block).or_default();
        match flips.binary_search_by_key(&flip.byte, |known| known.byte) {
            Ok(known) => flips[known].bits ^= flip.bits,
            Err(place) => flips.insert(place, flip),
        }
    }

    /// From now on no access ends before `until`; [`Time::NEVER`]: none ever does.
    pub fn stick(&self, until: Time) {
        self.stuck_until.set(self.stuck_until.get().max(until));
    }

    /// Whether any bit has turned over: on most media none ever does.
    #[inline]
    fn has_turned(&self) -> bool {
        !self.turned.borrow().is_empty()
    }

    /// Whether it ever stuck: most never do, and have nothing to wait for.
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

    /// The bits that have turned over in these blocks, as of the whole.
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

/// A medium, and what is wrong with it.
pub struct Faulty<M> {
    rt: Rt,
    medium: Rc<M>,
    harm: Rc<Harm>,
    wait: Stage,
}

impl<M> Faulty<M> {
    /// This medium, as far as `harm` leaves it.
    pub fn new(rt: &Rt, medium: Rc<M>, harm: Rc<Harm>) -> Faulty<M> {
        Faulty { rt: rt.clone(), medium, harm, wait: rt.stage("media wait") }
    }

    /// The medium itself.
    pub fn medium(&self) -> &Rc<M> {
        &self.medium
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
        !self.harm.has_stuck() && self.medium.is_immediate()
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
        self.medium.write(at, data).await?;
        self.harm.mend(at);
        Ok(())
    }

    async fn deallocate(&self, at: Extent) -> Result<(), MediaError> {
        if self.harm.has_stuck() {
            self.unstuck().await;
        }
        self.medium.deallocate(at).await?;
        self.harm.mend(at);
        Ok(())
    }

    fn purge(&self) -> Purge<'_> {
        match self.medium.purge() {
            Purge::Whole(_) => Purge::Whole(self),
            other => other,
        }
    }

    async fn flush(&self) -> Result<(), MediaError> {
        if self.harm.has_stuck() {
            self.unstuck().await;
        }
        self.medium.flush().await
    }
}

impl<M: Media> Erase for Faulty<M> {
    fn erase_time(&self) -> Option<Span> {
        self.medium.purge().whole()?.erase_time()
    }

    fn erase<'a>(&'a self, progress: &'a mut dyn FnMut(u32, u32)) -> Erasing<'a> {
        Box::pin(async move {
            if self.harm.has_stuck() {
                self.unstuck().await;
            }
            self.medium.purge().whole().ok_or(MediaError::WriteFault)?.erase(progress).await?;
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

    #[test]
    fn a_bit_stays_turned_until_its_block_is_written() {
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
    fn a_stuck_medium_ends_nothing_before_its_time() {
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
        /// Against bytes that are turned one by one.
        #[test]
        fn flipped_runs_are_the_runs_with_bits_flipped(
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
        fn a_drawn_bit_lies_in_its_blocks_and_in_what_is_kept(draw: u64, blocks in 1_u32..70_000) {
            let flip = Flip::drawn(draw, blocks, 512, None);
            prop_assert!(flip.byte < blocks * 512 && flip.bits.is_power_of_two());
            let head = Some(Head { bytes: 8, of: 512 });
            prop_assert!(Flip::drawn(draw, blocks, 512, head).byte % 512 < 8);
        }
    }
}
