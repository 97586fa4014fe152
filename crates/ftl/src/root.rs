//! Checkpoints: the map on flash, and the root by which a mount finds it.
//!
//! A checkpoint runs concurrently with host I/O. It records the oldest superpage in flight, then writes every
//! changed map part in its current state, then the root. A mount reads the parts and scans all superpages
//! from the recorded one on: what it finds there is equal or newer.
//!
//! Roots are in reserved blocks, one behind the other; when a block is full, the next is erased.

use alloc::rc::Rc;
use alloc::vec::Vec;

use crate::content::{CHUNK, PAD, ROOT, SEQUENCE_MAX};
use crate::ftl::{Inner, Task};
use crate::layout::{NONE, WritePointer};
use crate::options::Error;
use crate::pages::{
    Blocks, Erase, Header, Page, PageRead, Pages, Part, Place, Row, Source, Tag, Unit,
};
use crate::policy::Heat;
use crate::state::{RootPlace, State};
use crate::supers::Phase;

/// Header of each unit of a root: root number, index of the unit, number of units; then the checksum of the
/// payload.
const HEAD_BYTES: usize = 24;
/// Record of a superblock in a root: first superpage, the one after the last or 0, erases.
const SUPER_BYTES: usize = 20;

#[derive(Clone, Debug, Default)]
pub(crate) struct Root {
    /// First superpage that a mount has to scan.
    pub from: u64,
    pub chunks: Vec<u32>,
    supers: Vec<KnownSuper>,
}

#[derive(Clone, Copy, Debug)]
struct KnownSuper {
    opened: u64,
    /// 0 if it was not filled, or not all of it had arrived.
    filled: u64,
    erases: u32,
}

impl Root {
    pub fn knows(&self, superblock: u32) -> bool {
        (superblock as usize) < self.supers.len()
    }

    /// Returns true if this superblock, with this first superpage, holds nothing newer than the checkpoint.
    pub fn filled_before(&self, superblock: u32, opened: u64) -> bool {
        let known = self.supers.get(superblock as usize);
        known.is_some_and(|known| known.filled != 0 && known.opened == opened)
    }

    /// Returns true if its locations are on flash of this number of units.
    fn fits(&self, units: u64) -> bool {
        let is_there = |at: &u32| *at == NONE || u64::from(*at) < units;
        self.from <= SEQUENCE_MAX && self.chunks.iter().all(is_there)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.from.to_le_bytes());
        bytes.extend_from_slice(&(self.chunks.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.supers.len() as u32).to_le_bytes());
        for chunk in &self.chunks {
            bytes.extend_from_slice(&chunk.to_le_bytes());
        }
        for one in &self.supers {
            bytes.extend_from_slice(&one.opened.to_le_bytes());
            bytes.extend_from_slice(&one.filled.to_le_bytes());
            bytes.extend_from_slice(&one.erases.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Root> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let (chunks, supers) = (word(8)? as usize, word(12)? as usize);
        let table = 16 + 4 * chunks;
        let chunk = |at: usize| word(16 + 4 * at);
        let one = |at: usize| {
            let at = table + SUPER_BYTES * at;
            Some(KnownSuper { opened: long(at)?, filled: long(at + 8)?, erases: word(at + 16)? })
        };
        Some(Root {
            from: long(0)?,
            chunks: (0..chunks).map(chunk).collect::<Option<_>>()?,
            supers: (0..supers).map(one).collect::<Option<_>>()?,
        })
    }
}

/// 64-bit FNV-1a checksum, which detects units that were torn or belong to another root.
fn checksum<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A unit of a root.
struct Piece {
    number: u64,
    index: u32,
    count: u32,
    block: u32,
    bytes: Vec<u8>,
}

/// Map parts that a mount reads concurrently.
const CHUNKS_AT_ONCE: usize = 256;

impl<P: Pages> Inner<P> {
    /// Finds the newest complete root.
    pub async fn find_root(&self) -> Option<Root> {
        let mut pieces: Vec<Piece> = Vec::new();
        for at in 0..self.layout.system_blocks() {
            self.read_pieces(at, &mut pieces).await;
        }
        pieces.sort_by_key(|piece| (u64::MAX - piece.number, piece.index));
        let mut rest = &pieces[..];
        while let Some(first) = rest.first() {
            let (number, block) = (first.number, first.block);
            let (these, others) =
                rest.split_at(rest.partition_point(|piece| piece.number == number));
            rest = others;
            let whole = these.iter().zip(0..).all(|(piece, index)| piece.index == index)
                && these.len() == first.count as usize;
            let bytes: Vec<u8> =
                these.iter().flat_map(|piece| piece.bytes.iter().copied()).collect();
            let root = if whole { Root::from_bytes(&bytes) } else { None };
            let root = root.filter(|root| root.fits(self.layout.shape.all_units()));
            if let Some(root) = root {
                let place = RootPlace { number, block, group: self.layout.groups };
                self.state.borrow_mut().root = place;
                return Some(root);
            }
        }
        None
    }

    async fn read_pieces(&self, at: u32, pieces: &mut Vec<Piece>) {
        let block = self.layout.system_block(at);
        let shape = self.layout.shape;
        for page in 0..shape.pages {
            let page = Page { page, ..block };
            let units = u32::MAX >> (32 - shape.units);
            let mut parts = [Part { page, units, seen: PageRead::Unreadable }];
            self.pages.read(&mut parts).await;
            if parts[0].seen == PageRead::Erased {
                break;
            }
            for unit in 0..shape.units {
                let place = Place { page, unit };
                if self.pages.header(page).is_none()
                    || self.pages.logical(place) & !0xfff_ffff != ROOT
                {
                    continue;
                }
                let mut bytes = alloc::vec![0; shape.unit_bytes as usize];
                let read = self.pages.lend(place, &mut |at, run| {
                    bytes[at as usize..][..run.len()].copy_from_slice(run);
                });
                pieces.extend(Piece::parse(bytes, at).filter(|_| read));
            }
        }
    }

    /// Loads the map from its parts; returns false if one of them cannot be read.
    pub async fn load_chunks(&self, root: &Root) -> bool {
        if root.chunks.is_empty() {
            return true;
        }
        let mut all: Vec<(u32, u32)> = {
            let state = self.state.borrow();
            let known = (0..).zip(&state.chunks).filter(|(_, at)| **at != NONE);
            known.map(|(chunk, at)| (*at, chunk)).collect()
        };
        // Neighbouring numbers are on dies that work in parallel.
        all.sort_unstable();
        let mut parts = self.take_parts();
        let mut done = true;
        for some in all.chunks(CHUNKS_AT_ONCE) {
            parts.clear();
            some.iter().for_each(|(at, _)| self.add_part(&mut parts, *at));
            self.pages.read(&mut parts).await;
            done = parts.iter().all(|part| matches!(part.seen, PageRead::Good { .. }))
                && some.iter().all(|(at, chunk)| self.take_chunk(*at, *chunk));
            if !done {
                break;
            }
        }
        self.give_parts(parts);
        done
    }

    /// Installs a map part that has been read; returns false if it is a different one.
    fn take_chunk(&self, at: u32, chunk: u32) -> bool {
        let mut bytes = alloc::vec![0; self.layout.shape.unit_bytes as usize];
        let place = self.layout.place(at);
        let lent = self.pages.logical(place) == CHUNK | chunk
            && self.pages.lend(place, &mut |at, run| {
                bytes[at as usize..][..run.len()].copy_from_slice(run);
            });
        if lent {
            let mut state = self.state.borrow_mut();
            for (entry, bytes) in state.entries(chunk).iter_mut().zip(bytes.chunks_exact(4)) {
                *entry = u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
            }
        }
        lent
    }

    /// Task that writes checkpoints.
    pub async fn keeper(self: Rc<Self>) {
        while !self.ends(Task::Keeper) {
            let seen = self.collect.version();
            let due = self.state.borrow().is_checkpoint_due();
            if !due || self.checkpoint().await.is_err() {
                self.collect.changed(&self.rt, seen).await;
            }
        }
    }

    pub async fn checkpoint(&self) -> Result<(), Error> {
        if self.checkpointing.replace(true) {
            while self.checkpointing.get() {
                let seen = self.landed.version();
                self.landed.changed(&self.rt, seen).await;
            }
            return Ok(());
        }
        let is_cached = self.state.borrow().cached().is_some();
        let mut root = self.state.borrow_mut().begin_checkpoint();
        let mut done = true;
        if is_cached {
            done = self.dump().await;
        } else {
            self.write_chunks().await;
        }
        root.chunks = self.state.borrow().chunks.clone();
        if self.options.mistakes.parts_are_released_early {
            self.state.borrow_mut().release_parts();
        }
        done = done && self.write_root(&root).await;
        self.state.borrow_mut().rootless = !done;
        if done {
            self.state.borrow_mut().end_checkpoint(root.from);
        } else if is_cached {
            // Superblocks of older map parts can no longer be erased.
            self.state.borrow_mut().worn_out = true;
            self.worn_out();
        }
        self.checkpointing.set(false);
        self.landed.notify(&self.rt);
        self.mapped.notify(&self.rt);
        if done { Ok(()) } else { Err(Error::WornOut) }
    }

    /// Writes every changed map part to flash.
    async fn write_chunks(&self) {
        let mut bytes = alloc::vec![0; self.layout.shape.unit_bytes as usize];
        let chunks = self.state.borrow().chunks.len();
        for chunk in 0..chunks as u32 {
            if !self.state.borrow().dirty[chunk as usize] {
                continue;
            }
            let slot = self.take_meta_slot().await;
            let mut state = self.state.borrow_mut();
            state.dirty[chunk as usize] = false;
            bytes.fill(0);
            for (entry, into) in state.entries(chunk).iter().zip(bytes.chunks_exact_mut(4)) {
                into.copy_from_slice(&entry.to_le_bytes());
            }
            let tag = Tag { logical: CHUNK | chunk, order: state.buffer.next_order() };
            self.pages.stage(slot, tag, 0, &bytes);
            state.buffer.fill(slot, CHUNK | chunk, Heat::Typical);
            state.chunks_waiting += 1;
            drop(state);
            self.form();
        }
        loop {
            self.hurry();
            let seen = self.landed.version();
            if self.state.borrow().chunks_waiting == 0 {
                return;
            }
            self.landed.changed(&self.rt, seen).await;
        }
    }

    /// Takes a slot for metadata; if none is free, flushes those in use to flash.
    pub async fn take_meta_slot(&self) -> u32 {
        if let Some(slot) = self.meta_slots.try_take() {
            return slot;
        }
        self.hurry();
        self.meta_slots.take(&self.rt).await
    }

    /// Writes all waiting units to flash without delay.
    pub fn hurry(&self) {
        let mut state = self.state.borrow_mut();
        state.force = state.force.max(state.buffer.next_order() - 1);
        drop(state);
        self.form();
    }

    /// Writes a root; returns false if no block is available.
    pub async fn write_root(&self, root: &Root) -> bool {
        let bytes = root.to_bytes();
        let payload = self.layout.shape.unit_bytes as usize - HEAD_BYTES;
        let count = bytes.len().div_ceil(payload);
        let groups = count.div_ceil(self.layout.plane_units as usize) as u32;
        // Each block is tried once, except the one that holds the last root.
        for _ in 0..self.layout.system_blocks() {
            let mut place = self.state.borrow().root;
            // A torn superpage must not destroy the last root.
            let shared = self.layout.shape.reach == 0 || place.group == 0;
            if place.group + groups > self.layout.groups || !shared {
                let Some(next) = self.next_system_block(place.block).await else { return false };
                place = RootPlace { block: next, group: 0, ..place };
            }
            place.number += 1;
            let mut written = groups <= self.layout.groups;
            for group in 0..groups {
                let first = group as usize * self.layout.plane_units as usize;
                let here = RootPlace { group: place.group + group, ..place };
                written = written && self.write_root_row(here, &bytes, first, count).await;
            }
            let next = place.group + groups;
            let group = if written { next } else { self.layout.groups };
            self.state.borrow_mut().root = RootPlace { group, ..place };
            if written {
                return true;
            }
        }
        false
    }

    async fn write_root_row(
        &self,
        at: RootPlace,
        bytes: &[u8],
        first: usize,
        count: usize,
    ) -> bool {
        let payload = self.layout.shape.unit_bytes as usize - HEAD_BYTES;
        let mut units = Vec::new();
        for index in first..first + self.layout.plane_units as usize {
            if index >= count {
                units.push(Unit { logical: PAD, from: Source::Nothing });
                continue;
            }
            let slot = self.take_meta_slot().await;
            let part = &bytes[index * payload..bytes.len().min((index + 1) * payload)];
            let logical = ROOT | index as u32;
            let tag = Tag { logical, order: 0 };
            self.pages.stage_copy(slot, tag, None);
            self.pages.stage(slot, tag, 0, &Piece::head(at.number, index, count, part, payload));
            self.pages.stage(slot, tag, HEAD_BYTES as u32, part);
            units.push(Unit { logical, from: Source::Slot(slot) });
        }
        let block = self.layout.system_block(at.block);
        let blocks = Blocks { die: block.die, block: block.block, planes: 1 << block.plane };
        let row = Row { blocks, page: at.group * self.layout.shape.group };
        let header = {
            let mut state = self.state.borrow_mut();
            state.next_sequence += 1;
            Header { sequence: state.next_sequence - 1, erases: 0 }
        };
        let done = self.pages.program(row, header, &units).await;
        for unit in &units {
            if let Source::Slot(slot) = unit.from {
                self.free_slot(slot);
            }
        }
        done.is_ok()
    }

    /// Erases the next root block after this one.
    async fn next_system_block(&self, after: u32) -> Option<u32> {
        let count = self.layout.system_blocks();
        for step in 1..count {
            let next = (after + step) % count;
            let block = self.layout.system_block(next);
            if self.pages.is_bad(block) {
                continue;
            }
            let blocks = self.layout.row(
                WritePointer { superblock: block.block, group: 0, die: block.die },
                1 << block.plane,
            );
            let mut erase = [Erase { blocks: blocks.blocks, failed: 0 }];
            self.pages.erase(&mut erase).await;
            if erase[0].failed == 0 {
                return Some(next);
            }
            self.pages.mark_bad(block);
        }
        None
    }
}

impl Piece {
    /// `part` is zero-padded to the end of its unit.
    fn head(
        number: u64,
        index: usize,
        count: usize,
        part: &[u8],
        payload: usize,
    ) -> [u8; HEAD_BYTES] {
        let zeros = core::iter::repeat_n(&0, payload - part.len());
        let sum = checksum(part.iter().chain(zeros));
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&number.to_le_bytes());
        head[8..12].copy_from_slice(&(index as u32).to_le_bytes());
        head[12..16].copy_from_slice(&(count as u32).to_le_bytes());
        head[16..].copy_from_slice(&(sum).to_le_bytes());
        head
    }

    fn parse(mut bytes: Vec<u8>, block: u32) -> Option<Piece> {
        let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
        let index = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?);
        let count = u32::from_le_bytes(bytes.get(12..16)?.try_into().ok()?);
        let sum = u64::from_le_bytes(bytes.get(16..HEAD_BYTES)?.try_into().ok()?);
        bytes.drain(..HEAD_BYTES);
        if checksum(bytes.iter()) != sum {
            return None;
        }
        Some(Piece { number, index, count, block, bytes })
    }
}

impl State {
    /// Takes over a superblock's state from the root; the scan may refine it.
    pub fn settle(&mut self, superblock: u32, root: &Root) {
        let known = root.supers[superblock as usize];
        let one = &mut self.supers.all[superblock as usize];
        one.erases = known.erases;
        self.supers.most_erases = self.supers.most_erases.max(known.erases);
    }

    /// Takes over the locations of the map parts from the root.
    pub fn take_chunks(&mut self, root: &Root) {
        for (chunk, at) in self.chunks.iter_mut().zip(&root.chunks) {
            *chunk = *at;
        }
    }

    fn is_checkpoint_due(&self) -> bool {
        let rows = self.counters.rows - self.rows_at_checkpoint;
        if self.cached().is_some() && self.worn_out {
            return false;
        }
        self.notes.len() as u64 > self.notes_most()
            || self.is_dump_due()
            || self.options.checkpoint_rows.is_some_and(|every| rows >= every)
    }

    pub fn begin_checkpoint(&mut self) -> Root {
        self.rows_at_checkpoint = self.counters.rows;
        let mistaken = self.options.mistakes.checkpoint_forgets_flying_rows;
        let from = if mistaken { self.next_sequence } else { self.oldest_sequence() };
        let known = |one: &crate::supers::Super| {
            let landed = matches!(one.phase, Phase::Filled | Phase::Victim) && one.filled <= from;
            KnownSuper {
                opened: one.opened,
                filled: if landed { one.filled } else { 0 },
                erases: one.erases,
            }
        };
        let supers = self.supers.all.iter().map(known).collect();
        Root { from, supers, ..Root::default() }
    }

    /// Releases the trim records that the checkpoint includes.
    fn end_checkpoint(&mut self, from: u64) {
        self.counters.checkpoints += 1;
        self.release_parts();
        let mut notes = core::mem::take(&mut self.notes);
        notes.retain(|note| {
            if note.sequence < from {
                self.supers.clear_valid(note.at);
            }
            note.sequence >= from
        });
        self.notes = notes;
    }
}
