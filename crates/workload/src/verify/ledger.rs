//! Oracle of the versions that each block may hold, independent of the device.
//!
//! Rules per block, from the guarantees of NVMe (NVM command set: reads and writes of overlapping
//! ranges have no order unless one completed before the other was submitted; Flush covers the
//! commands that completed before it was submitted):
//! - An acknowledged write rules out every version whose own write had ended before its submission.
//!   After writes that overlap in time, the version of any of them is possible. A failed write may
//!   or may not have taken effect.
//! - A read may return any version possible at its submission, and any version submitted before its
//!   completion.
//! - After a power cut a block may hold the version covered by the last completed flush (or a
//!   durable write), or any later one.
//! - A deallocation is a write of zeroes, on a device that guarantees zeroes from then on. Until a
//!   flush has covered it, a power cut may restore the deallocated data; afterwards it may not.
//!
//! Memory: eight bytes per block in pages of 4096 blocks, allocated at the first write, and a list
//! only for blocks with more than one possible version. A map keeps the blocks acknowledged since
//! the last flush.

use std::collections::BTreeMap;

use super::versions::{after, before, last_trim, later, range_allows, trim_after};
use super::{Found, Mismatch, Stamps, Versions};
use crate::limits::STAMP_LBAS;

const PAGE_BLOCKS: u64 = 4096;

/// One block.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The latest submitted version; 0 if none.
    issued: u32,
    /// After a power cut the block holds this version or a later one.
    durable: u32,
}

/// Versions that a block may hold.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    from: u32,
    to: u32,
    /// The latest submitted version when this write ended; `None` while in flight.
    ended: Option<u32>,
    /// The oldest version that the device may apply after this one: that of the oldest write in flight
    /// when this one was submitted; else its own.
    floor: u32,
}

/// A write between its submission and its completion.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a write that never finishes leaves its blocks uncertain for ever"]
pub struct WriteTicket {
    /// The first block.
    pub lba: u64,
    pub blocks: u32,
    /// The version to fill them with.
    pub version: u32,
    life: u32,
}

/// A flush between its submission and its completion.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a flush that never finishes makes nothing durable"]
pub struct FlushTicket {
    number: u64,
    life: u32,
}

/// A read between its submission and its completion. Reusable for another read.
#[derive(Clone, Debug, Default)]
pub struct ReadTicket {
    lba: u64,
    /// The latest submitted version of each block at the read's submission.
    issued: Vec<u32>,
    /// Versions possible then, for blocks with more than one, in order of LBA.
    uncertain: Vec<(u64, Versions)>,
}

/// The versions that every block of a device may hold.
#[derive(Debug)]
pub struct Ledger {
    blocks: u64,
    /// Blocks that this run has not written may hold anything.
    unknown: bool,
    pages: Vec<Option<Box<[Slot]>>>,
    /// Blocks with writes in flight or more than one possible version.
    uncertain: BTreeMap<u64, Vec<Candidate>>,
    /// Blocks acknowledged since the last flush was submitted, with the oldest version possible then.
    dirty: BTreeMap<u64, u32>,
    /// The same, for each flush in flight.
    flushing: BTreeMap<u64, BTreeMap<u64, u32>>,
    flushes: u64,
    /// Number of power cuts; tickets from before the last are void.
    life: u32,
}

impl Ledger {
    /// A device of `blocks` blocks, none of them written.
    ///
    /// # Panics
    /// If a stamp could not name the last one.
    pub fn new(blocks: u64) -> Ledger {
        assert!(blocks <= STAMP_LBAS, "{blocks} blocks: a stamp names at most {STAMP_LBAS}");
        Ledger {
            blocks,
            unknown: false,
            pages: Vec::new(),
            uncertain: BTreeMap::new(),
            dirty: BTreeMap::new(),
            flushing: BTreeMap::new(),
            flushes: 0,
            life: 0,
        }
    }

    /// A device that may have been written before: a block may hold anything until this run writes it.
    ///
    /// # Panics
    /// As [`Ledger::new`].
    pub fn over_unknown(blocks: u64) -> Ledger {
        Ledger { unknown: true, ..Ledger::new(blocks) }
    }

    fn slot(&self, lba: u64) -> Slot {
        let page = self.pages.get((lba / PAGE_BLOCKS) as usize);
        page.and_then(Option::as_ref)
            .map_or(Slot::default(), |page| page[(lba % PAGE_BLOCKS) as usize])
    }

    fn slot_mut(&mut self, lba: u64) -> &mut Slot {
        let at = (lba / PAGE_BLOCKS) as usize;
        if self.pages.len() <= at {
            self.pages.resize_with(at + 1, || None);
        }
        let page = self.pages[at]
            .get_or_insert_with(|| vec![Slot::default(); PAGE_BLOCKS as usize].into_boxed_slice());
        &mut page[(lba % PAGE_BLOCKS) as usize]
    }

    fn assert_within(&self, lba: u64, blocks: u32) {
        let end = lba.checked_add(u64::from(blocks));
        assert!(
            blocks > 0 && end.is_some_and(|end| end <= self.blocks),
            "LBA {lba} and {blocks} blocks, of {}",
            self.blocks
        );
    }

    /// Call before submitting a write. All its blocks get the same new version.
    ///
    /// # Panics
    /// If the blocks are not on the device.
    pub fn start_write(&mut self, lba: u64, blocks: u32) -> WriteTicket {
        self.start(lba, blocks, after)
    }

    /// Call before submitting a deallocation. It is then treated as a write of zeroes.
    ///
    /// # Panics
    /// As [`Ledger::start_write`].
    pub fn start_trim(&mut self, lba: u64, blocks: u32) -> WriteTicket {
        self.start(lba, blocks, trim_after)
    }

    fn start(&mut self, lba: u64, blocks: u32, next: fn(u32) -> u32) -> WriteTicket {
        self.assert_within(lba, blocks);
        let lbas = lba..lba + u64::from(blocks);
        let latest = lbas.clone().map(|lba| self.slot(lba).issued).fold(0, later);
        let version = next(latest);
        for lba in lbas {
            let was = std::mem::replace(&mut self.slot_mut(lba).issued, version);
            let quiet = || vec![Candidate { from: was, to: was, ended: Some(was), floor: was }];
            let possible = self.uncertain.entry(lba).or_insert_with(quiet);
            let in_flight = possible.iter().find(|other| other.ended.is_none());
            let floor = in_flight.map_or(version, |other| other.from);
            possible.push(Candidate { from: version, to: version, ended: None, floor });
        }
        WriteTicket { lba, blocks, version, life: self.life }
    }

    /// Call when a write is acknowledged. `durable`: the acknowledgement also guarantees durability
    /// (Force Unit Access, or a device without a volatile cache).
    ///
    /// # Panics
    /// If the ticket is from before a power cut.
    pub fn finish_write(&mut self, write: WriteTicket, durable: bool) {
        if durable {
            // Later writes may have ruled out the versions in between, and may still be lost themselves.
            for lba in write.lba..write.lba + u64::from(write.blocks) {
                let own = |one: &&Candidate| one.ended.is_none() && one.to == write.version;
                let floor = self.uncertain.get(&lba).and_then(|all| all.iter().find(own));
                let floor = floor.map_or(write.version, |own| own.floor);
                let slot = self.slot_mut(lba);
                slot.durable = later(slot.durable, floor);
            }
        }
        self.end_write(&write, |possible, version| {
            possible.retain(|other| other.ended.is_none_or(|ended| !before(ended, version)));
        });
        for lba in write.lba..write.lba + u64::from(write.blocks) {
            // Candidates are in order of submission.
            let oldest = match self.uncertain.get(&lba) {
                Some(possible) => possible[0].from,
                None => write.version,
            };
            if !durable {
                self.dirty.insert(lba, oldest);
            }
        }
    }

    /// Call when a write fails: its blocks may or may not have been written.
    ///
    /// # Panics
    /// As [`Ledger::finish_write`].
    pub fn fail_write(&mut self, write: WriteTicket) {
        self.end_write(&write, |_, _| ());
    }

    fn end_write(&mut self, write: &WriteTicket, rule_out: impl Fn(&mut Vec<Candidate>, u32)) {
        assert_eq!(write.life, self.life, "the write was lost in a power cut");
        for lba in write.lba..write.lba + u64::from(write.blocks) {
            let issued = self.slot(lba).issued;
            let possible = self.uncertain.get_mut(&lba).expect("a write is in flight here");
            rule_out(possible, write.version);
            let own = possible
                .iter_mut()
                .find(|own| own.ended.is_none() && own.to == write.version)
                .expect("a write stays possible until it ends");
            own.ended = Some(issued);
            self.forget_if_certain(lba);
        }
    }

    fn forget_if_certain(&mut self, lba: u64) {
        let issued = self.slot(lba).issued;
        let certain = self.uncertain.get(&lba).is_some_and(|possible| {
            matches!(possible[..], [only] if only.ended.is_some()
                && only.from == issued && only.to == issued)
        });
        if certain {
            self.uncertain.remove(&lba);
        }
    }

    /// Call before submitting a read.
    ///
    /// # Panics
    /// If the blocks are not on the device.
    pub fn start_read(&self, lba: u64, blocks: u32) -> ReadTicket {
        let mut read = ReadTicket::default();
        self.start_read_again(&mut read, lba, blocks);
        read
    }

    /// As [`Ledger::start_read`], with a reused ticket: no allocation once it has grown.
    ///
    /// # Panics
    /// As [`Ledger::start_read`].
    pub fn start_read_again(&self, read: &mut ReadTicket, lba: u64, blocks: u32) {
        self.assert_within(lba, blocks);
        let lbas = lba..lba + u64::from(blocks);
        read.lba = lba;
        read.issued.clear();
        read.issued.extend(lbas.clone().map(|lba| self.slot(lba).issued));
        read.uncertain.clear();
        if self.uncertain.is_empty() {
            return;
        }
        read.uncertain.extend(self.uncertain.range(lbas).map(|(&lba, possible)| {
            (lba, Versions(possible.iter().map(|one| (one.from, one.to)).collect()))
        }));
    }

    /// Checks the contents returned by a completed read.
    ///
    /// # Errors
    /// The first block with contents that are not allowed.
    ///
    /// # Panics
    /// If the buffer's length does not match the blocks of the read.
    pub fn check_read(
        &self,
        read: &ReadTicket,
        stamps: &Stamps,
        buffer: &[u8],
        block_bytes: u32,
        stamps_only: bool,
    ) -> Result<(), Mismatch> {
        let block = block_bytes as usize;
        assert_eq!(buffer.len(), read.issued.len() * block, "the buffer is not what was read");
        let mut uncertain = read.uncertain.iter().peekable();
        for (at, block) in buffer.chunks_exact(block).enumerate() {
            let lba = read.lba + at as u64;
            let then = read.issued[at];
            let now = self.slot(lba).issued;
            let possible = uncertain.next_if(|(other, _)| *other == lba).map(|(_, set)| set);
            // Any version submitted since may be there, whether its write has ended or not.
            let allow = |version| match possible {
                None => range_allows(then, now, version),
                Some(set) => {
                    set.allow(version)
                        || now != then && range_allows(then.wrapping_add(1), now, version)
                }
            };
            let unwritten = possible.map_or(then == 0, Versions::allow_unwritten);
            if unwritten && self.unknown {
                continue;
            }
            let trimmed = possible.map_or(last_trim(then, then).is_some(), Versions::allow_trimmed);
            let since = now != then && last_trim(then.wrapping_add(1), now).is_some();
            let zeroes = unwritten || trimmed || since;
            let Some(byte) = stamps.wrong_byte(block, lba, allow, zeroes, stamps_only) else {
                continue;
            };
            let mut expected = possible.cloned().unwrap_or_else(|| Versions::one(then));
            if now != then {
                expected.0.push((then.wrapping_add(1), now));
            }
            return Err(stamps.mismatch(block, lba, self.blocks, expected, byte, stamps_only));
        }
        Ok(())
    }

    /// Call before submitting a flush.
    pub fn start_flush(&mut self) -> FlushTicket {
        self.flushes += 1;
        self.flushing.insert(self.flushes, std::mem::take(&mut self.dirty));
        FlushTicket { number: self.flushes, life: self.life }
    }

    /// Call when a flush is acknowledged: writes acknowledged before its submission are durable.
    ///
    /// # Panics
    /// If the ticket is from before a power cut.
    pub fn finish_flush(&mut self, flush: FlushTicket) {
        assert_eq!(flush.life, self.life, "the flush was lost in a power cut");
        // An earlier flush still in flight covers a subset of this one.
        let still = self.flushing.split_off(&(flush.number + 1));
        for covered in std::mem::replace(&mut self.flushing, still).into_values() {
            for (lba, version) in covered {
                let slot = self.slot_mut(lba);
                slot.durable = later(slot.durable, version);
            }
        }
    }

    /// Call when a flush fails: it guarantees nothing.
    ///
    /// # Panics
    /// As [`Ledger::finish_flush`].
    pub fn fail_flush(&mut self, flush: FlushTicket) {
        assert_eq!(flush.life, self.life, "the flush was lost in a power cut");
        let Some(covered) = self.flushing.remove(&flush.number) else { return };
        // The next flush, in flight or to come, also covers the blocks of this one.
        let next = match self.flushing.range_mut(flush.number..).next() {
            Some((_, next)) => next,
            None => &mut self.dirty,
        };
        for (lba, version) in covered {
            next.entry(lba).or_insert(version);
        }
    }

    /// Call at a power cut: commands in flight have ended, and each block holds its last durable
    /// version or a later one. Tickets from before are void.
    pub fn power_cut(&mut self) {
        self.life += 1;
        let mut touched = std::mem::take(&mut self.dirty);
        for covered in std::mem::take(&mut self.flushing).into_values() {
            touched.extend(covered);
        }
        let is_settled =
            |all: &[Candidate]| matches!(all, [one] if one.from == one.to && one.ended.is_some());
        let open = self.uncertain.iter().filter(|(_, possible)| !is_settled(possible));
        touched.extend(open.map(|(&lba, _)| (lba, 0)));
        for lba in touched.into_keys() {
            let Slot { issued, durable } = self.slot(lba);
            let one = Candidate { from: durable, to: issued, ended: Some(issued), floor: durable };
            self.uncertain.insert(lba, vec![one]);
            self.forget_if_certain(lba);
        }
    }

    /// Call after a power cut when a block was read and its contents allowed: from now on only the
    /// version read is possible, until the block is written. No effect if it is certain already or a
    /// write is in flight.
    pub fn settle(&mut self, lba: u64, stamps: &Stamps, block: &[u8], stamps_only: bool) {
        let Some([one]) = self.uncertain.get_mut(&lba).map(Vec::as_mut_slice) else { return };
        let version = match stamps.identify(block, self.blocks, stamps_only) {
            Found::Stamp { lba: named, version } if named == lba => one.full_version(version),
            // Any deallocation in the range may have left them; versions before the last one are ruled out.
            Found::Zeroes => last_trim(one.from, one.to).or((one.from == 0).then_some(0)),
            _ => None,
        };
        let (Some(version), Some(_)) = (version, one.ended) else { return };
        (one.from, one.to) = (version, version);
        let slot = self.slot_mut(lba);
        slot.durable = later(slot.durable, version);
        self.forget_if_certain(lba);
    }

    /// The next run of blocks from `from` on that were ever written, at most `most` of them, for reading
    /// everything back.
    pub fn next_written(&self, from: u64, most: u32) -> Option<(u64, u32)> {
        let mut lba = from;
        while self.slot(lba).issued == 0 {
            // Skip an unallocated page in one step.
            let at = (lba / PAGE_BLOCKS) as usize;
            lba = match self.pages.get(at) {
                None => return None,
                Some(None) => (at as u64 + 1) * PAGE_BLOCKS,
                Some(Some(_)) => lba + 1,
            };
        }
        let run = (1..most).take_while(|&next| self.slot(lba + u64::from(next)).issued != 0);
        Some((lba, 1 + run.count() as u32))
    }

    /// The next run of blocks from `from` on with more than one possible version, at most `most` of
    /// them: after a power cut, those that it may have changed.
    pub fn next_uncertain(&self, from: u64, most: u32) -> Option<(u64, u32)> {
        let (&lba, _) = self.uncertain.range(from..).next()?;
        let run =
            (1..most).take_while(|&next| self.uncertain.contains_key(&(lba + u64::from(next))));
        Some((lba, 1 + run.count() as u32))
    }

    /// Number of blocks with a write in flight or more than one possible version.
    pub fn uncertain(&self) -> usize {
        self.uncertain.len()
    }
}

impl Candidate {
    /// The version in this range with these low bits, if any.
    fn full_version(&self, stamped: u32) -> Option<u32> {
        let from = self.from.max(1);
        let ahead = stamped.wrapping_sub(from) & super::versions::STAMP_VERSION_MASK;
        range_allows(self.from, self.to, stamped).then(|| from.wrapping_add(ahead))
    }
}
