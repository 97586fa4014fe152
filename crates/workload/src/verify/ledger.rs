//! Which versions each block may hold: the oracle outside the device.
//!
//! The rules, per block, of what NVMe promises (NVM command set: reads and writes of overlapping
//! ranges have no order unless one completed before the other was submitted; Flush covers what
//! completed before it was submitted):
//! - A write that is acknowledged rules out every version whose own write had ended before it was
//!   submitted. Writes that overlap in time leave any of them possible. A write that failed may or
//!   may not have happened.
//! - A read may find what was possible when it was submitted, and anything submitted before it
//!   completed.
//! - After a power cut a block may hold what the last completed flush (or a durable write) covered,
//!   or anything later.
//! - A deallocation is a write of zeroes, on a device that promises zeroes from then on: until a
//!   flush has covered it a power cut may bring back what it took, and after that nothing may.
//!
//! Memory: eight bytes a block in pages of 4096 blocks, made when first written, and a list only
//! for blocks where more than one version is possible. A map keeps what was acknowledged since the
//! last flush.

use std::collections::BTreeMap;

use super::versions::{after, before, last_trim, later, range_allows, trim_after};
use super::{Found, Mismatch, Stamps, Versions};
use crate::limits::STAMP_LBAS;

const PAGE_BLOCKS: u64 = 4096;

/// One block.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The latest version that was submitted; 0 if none was.
    issued: u32,
    /// After a power cut the block holds this version or a later one.
    durable: u32,
}

/// Versions that a block may hold.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    from: u32,
    to: u32,
    /// What was the latest submitted version when this write ended; `None` while in flight.
    ended: Option<u32>,
    /// The oldest version that may come after this one on the device: of a write that was in flight when
    /// this one was submitted; else its own.
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

/// A read between its submission and its completion. Can be used again for another.
#[derive(Clone, Debug, Default)]
pub struct ReadTicket {
    lba: u64,
    /// The latest submitted version of each block at the read's submission.
    issued: Vec<u32>,
    /// What else was possible then, by block from `lba`.
    uncertain: Vec<(u64, Versions)>,
}

/// What every block of a device may hold.
#[derive(Debug)]
pub struct Ledger {
    blocks: u64,
    /// What nobody of this run has written may hold anything.
    unknown: bool,
    pages: Vec<Option<Box<[Slot]>>>,
    /// Blocks with writes in flight or more than one possible version.
    uncertain: BTreeMap<u64, Vec<Candidate>>,
    /// Acknowledged since the last flush was submitted: the oldest version possible then.
    dirty: BTreeMap<u64, u32>,
    /// The same, for each flush in flight.
    flushing: BTreeMap<u64, BTreeMap<u64, u32>>,
    flushes: u64,
    /// Counts power cuts: tickets from before one are void.
    life: u32,
}

impl Ledger {
    /// A device of so many blocks, none of them written.
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

    /// A device that somebody else may have written to: until this run has, a block may hold anything.
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

    /// A write is about to be submitted. All its blocks get one new version.
    ///
    /// # Panics
    /// If the blocks are not on the device.
    pub fn start_write(&mut self, lba: u64, blocks: u32) -> WriteTicket {
        self.start(lba, blocks, after)
    }

    /// A deallocation is about to be submitted. From then on it is as a write, whose blocks hold zeroes.
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

    /// A write was acknowledged. `durable` says that the acknowledgement also promises durability
    /// (Force Unit Access, or a device without a volatile cache).
    ///
    /// # Panics
    /// If the ticket is from before a power cut.
    pub fn finish_write(&mut self, write: WriteTicket, durable: bool) {
        if durable {
            // Later writes may have ruled out what came between, and may still be lost themselves.
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

    /// A write failed: its blocks may or may not have been written.
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

    /// A read is about to be submitted.
    ///
    /// # Panics
    /// If the blocks are not on the device.
    pub fn start_read(&self, lba: u64, blocks: u32) -> ReadTicket {
        let mut read = ReadTicket::default();
        self.start_read_again(&mut read, lba, blocks);
        read
    }

    /// As [`Ledger::start_read`], with a ticket that has been used before: no allocation once it
    /// has grown.
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

    /// A read has completed: checks what it found.
    ///
    /// # Errors
    /// The first block that holds what it cannot.
    ///
    /// # Panics
    /// If the buffer is not the blocks that were asked for.
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
            // Everything submitted since may be there, whether it has ended or not.
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

    /// A flush is about to be submitted.
    pub fn start_flush(&mut self) -> FlushTicket {
        self.flushes += 1;
        self.flushing.insert(self.flushes, std::mem::take(&mut self.dirty));
        FlushTicket { number: self.flushes, life: self.life }
    }

    /// A flush was acknowledged: what was acknowledged before its submission is durable.
    ///
    /// # Panics
    /// If the ticket is from before a power cut.
    pub fn finish_flush(&mut self, flush: FlushTicket) {
        assert_eq!(flush.life, self.life, "the flush was lost in a power cut");
        // An earlier flush that is still in flight covers nothing that this one does not.
        let still = self.flushing.split_off(&(flush.number + 1));
        for covered in std::mem::replace(&mut self.flushing, still).into_values() {
            for (lba, version) in covered {
                let slot = self.slot_mut(lba);
                slot.durable = later(slot.durable, version);
            }
        }
    }

    /// A flush failed: it promises nothing.
    ///
    /// # Panics
    /// As [`Ledger::finish_flush`].
    pub fn fail_flush(&mut self, flush: FlushTicket) {
        assert_eq!(flush.life, self.life, "the flush was lost in a power cut");
        let Some(covered) = self.flushing.remove(&flush.number) else { return };
        // The next flush, in flight or to come, covers what this one would have.
        let next = match self.flushing.range_mut(flush.number..).next() {
            Some((_, next)) => next,
            None => &mut self.dirty,
        };
        for (lba, version) in covered {
            next.entry(lba).or_insert(version);
        }
    }

    /// The power failed: whatever was in flight has ended, and each block holds its last durable
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

    /// After a power cut, once a block was read and found allowed: from now on it holds what was
    /// found, and no read may find another version until it is written. Nothing happens if it is
    /// certain already or a write is in flight.
    pub fn settle(&mut self, lba: u64, stamps: &Stamps, block: &[u8], stamps_only: bool) {
        let Some([one]) = self.uncertain.get_mut(&lba).map(Vec::as_mut_slice) else { return };
        let version = match stamps.identify(block, self.blocks, stamps_only) {
            Found::Stamp { lba: named, version } if named == lba => one.full_version(version),
            // Whichever deallocation left them: nothing from before the last may come again.
            Found::Zeroes => last_trim(one.from, one.to).or((one.from == 0).then_some(0)),
            _ => None,
        };
        let (Some(version), Some(_)) = (version, one.ended) else { return };
        (one.from, one.to) = (version, version);
        let slot = self.slot_mut(lba);
        slot.durable = later(slot.durable, version);
        self.forget_if_certain(lba);
    }

    /// The next blocks from `from` on that were ever written, at most `most` of them, for reading
    /// everything back.
    pub fn next_written(&self, from: u64, most: u32) -> Option<(u64, u32)> {
        let mut lba = from;
        while self.slot(lba).issued == 0 {
            // Skip a page that was never made in one step.
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

    /// The next blocks from `from` on of which more than one version may be there, at most `most` of
    /// them: after a power cut, those that it may have changed.
    pub fn next_uncertain(&self, from: u64, most: u32) -> Option<(u64, u32)> {
        let (&lba, _) = self.uncertain.range(from..).next()?;
        let run =
            (1..most).take_while(|&next| self.uncertain.contains_key(&(lba + u64::from(next))));
        Some((lba, 1 + run.count() as u32))
    }

    /// How many blocks have a write in flight or more than one possible version.
    pub fn uncertain(&self) -> usize {
        self.uncertain.len()
    }
}

impl Candidate {
    /// The version of this range that has these low bits, if there is one.
    fn full_version(&self, stamped: u32) -> Option<u32> {
        let from = self.from.max(1);
        let ahead = stamped.wrapping_sub(from) & super::versions::STAMP_VERSION_MASK;
        range_allows(self.from, self.to, stamped).then(|| from.wrapping_add(ahead))
    }
}
