//! PRPs built by the host and walked by the device.

use std::collections::BTreeMap;

use proptest::prelude::*;
use wire::BusAddr;
use wire::nvme::entry::DataPointer;
use wire::nvme::prp::{
    Coalesce, PrpWalk, Segment, Step, build, contiguous, list_entries, list_pages,
};
use wire::nvme::status::Status;

const LISTS: u64 = 1 << 40;

/// A buffer to describe, and the layout of its list.
#[derive(Clone, Copy, Debug)]
struct Case {
    offset: u64,
    bytes: u64,
    page_bytes: u64,
    list_offset: u64,
    /// Number of entries that the device reads at a time.
    batch: usize,
}

/// Page `index` of a scattered buffer, without adjacent or repeated pages.
fn scattered(index: u64, page_bytes: u64) -> BusAddr {
    // An odd factor permutes the 2^20 numbers; even pages of twice the range are not adjacent.
    BusAddr(page_bytes * 2 * (index * 0x9_e377 % (1 << 20)))
}

impl Case {
    fn pages(self) -> impl Iterator<Item = BusAddr> {
        (0..).map(move |index| match index {
            0 => BusAddr(scattered(0, self.page_bytes).0 + self.offset),
            _ => scattered(index, self.page_bytes),
        })
    }

    /// Far apart, so that an entry stored past the end of its list page is not found.
    fn lists(self) -> impl Iterator<Item = BusAddr> {
        let page_bytes = self.page_bytes;
        (0..).map(move |list| match list {
            0 => BusAddr(LISTS + self.list_offset),
            _ => BusAddr(LISTS + 3 * list * page_bytes),
        })
    }

    /// Builds into a model of memory, and checks the number of lists against the closed form.
    fn build(self) -> (DataPointer, BTreeMap<u64, u64>) {
        let mut memory = BTreeMap::new();
        let entries = list_entries(self.offset, self.bytes, self.page_bytes);
        let room = list_pages(entries, self.list_offset, self.page_bytes);
        let lists = self.lists().take(room as usize);
        let pointer = build(self.pages(), self.bytes, self.page_bytes, lists, |at, entry| {
            assert_eq!(memory.insert(at.0, entry), None, "{self:?}: entry at {at} stored twice");
        });
        let chains = room.saturating_sub(1);
        assert_eq!(memory.len() as u64, entries + chains, "{self:?}");
        (pointer.unwrap(), memory)
    }

    /// Segments found by the device, reading lists by `batch`.
    fn walk(self, pointer: DataPointer, memory: &BTreeMap<u64, u64>) -> Vec<Segment> {
        let (prp1, prp2) = pointer.prps().expect("PRPs were built");
        let mut walk = PrpWalk::new(prp1, prp2, self.bytes, self.page_bytes).unwrap();
        let mut segments = Vec::new();
        while let Some(step) = walk.step() {
            match step {
                Step::Segment(segment) => segments.push(segment),
                Step::NeedList { addr, entries } => {
                    let list: Vec<u64> = (0..u64::from(entries))
                        .take(self.batch)
                        .map(|entry| memory[&(addr.0 + 8 * entry)])
                        .collect();
                    segments.extend(walk.supply(&list).unwrap());
                }
            }
        }
        segments
    }

    /// Expected segments, from the buffer alone.
    fn expected(self) -> Vec<Segment> {
        let mut left = self.bytes;
        self.pages()
            .map_while(|addr| {
                let room = self.page_bytes - addr.0 % self.page_bytes;
                let bytes = left.min(room);
                left -= bytes;
                (bytes > 0).then_some(Segment { addr, bytes })
            })
            .collect()
    }

    fn check(self) {
        let (pointer, memory) = self.build();
        assert_eq!(self.walk(pointer, &memory), self.expected(), "{self:?}");
    }
}

/// All first offsets, with lengths that end next to each boundary between PRP1, PRP2 and a list.
#[test]
fn prp_all_first_offsets_at_small_boundaries() {
    for page_bytes in [4096u64, 65536] {
        for offset in (0..page_bytes).step_by(4) {
            for pages in 1..=4u64 {
                for slack in [-4i64, -1, 0, 1, 4] {
                    let bytes = (pages * page_bytes - offset).saturating_add_signed(slack);
                    let (list_offset, batch) = (offset & !7, 1 + offset as usize % 5);
                    Case { offset, bytes, page_bytes, list_offset, batch }.check();
                }
            }
        }
    }
}

/// All entry counts next to a full page, up to four list pages, from all kinds of slots.
#[test]
fn prp_lists_next_to_full_page() {
    for (page_bytes, list_pages_most) in [(4096u64, 4), (65536, 2)] {
        let slots = page_bytes / 8;
        for skipped in [0, 1, 2, slots / 2, slots - 2, slots - 1] {
            for full in 1..list_pages_most {
                // A full page less the slots skipped, then pages that each lose one slot to a chain.
                let boundary = slots - skipped + (full - 1) * (slots - 1);
                for entries in boundary.saturating_sub(2).max(2)..=boundary + 2 {
                    for (offset, spare) in [(0, 0), (0, 1), (4, 0), (page_bytes - 4, 3)] {
                        let bytes = (page_bytes - offset) + entries * page_bytes - spare;
                        let case = Case {
                            offset,
                            bytes,
                            page_bytes,
                            list_offset: 8 * skipped,
                            batch: if spare == 0 { usize::MAX } else { 100 },
                        };
                        assert_eq!(list_entries(offset, bytes, page_bytes), entries);
                        case.check();
                    }
                }
            }
        }
    }
}

/// NVMe base 2.0, 4.1.1: the last slot holds a chain only if more pages remain than slots.
#[test]
fn prp_full_list_page_reads_no_other() {
    let case = Case { offset: 0, bytes: 513 << 12, page_bytes: 4096, list_offset: 0, batch: 512 };
    let (_, memory) = case.build();
    assert_eq!(memory.len(), 512);
    assert!(memory.keys().all(|at| (LISTS..LISTS + 4096).contains(at)));
}

#[test]
fn prp_contiguous_buffer_coalesces_to_one_run() {
    let (start, bytes) = (BusAddr(0x1234_5678), 3 << 20);
    let mut memory = BTreeMap::new();
    let lists = [LISTS, LISTS + 4096].map(BusAddr);
    let pointer = build(contiguous(start, 4096), bytes, 4096, lists, |at, entry| {
        memory.insert(at.0, entry);
    });
    let case = Case { offset: 0x678, bytes, page_bytes: 4096, list_offset: 0, batch: 64 };
    let mut runs = Coalesce::default();
    for segment in case.walk(pointer.unwrap(), &memory) {
        assert_eq!(runs.push(segment), None, "a buffer in one piece has no gap");
    }
    assert_eq!(runs.finish(), Some(Segment { addr: start, bytes }));
}

proptest! {
    #[test]
    fn prp_build_and_walk_agree(
        offset in 0u64..65536 / 4,
        bytes in 0u64..=3 << 20,
        large in any::<bool>(),
        list_slot in 0u64..65536 / 8,
        batch in 1usize..600,
    ) {
        let page_bytes = if large { 65536 } else { 4096 };
        let (offset, list_offset) = (4 * offset % page_bytes, 8 * list_slot % page_bytes);
        Case { offset, bytes, page_bytes, list_offset, batch }.check();
    }

    /// Any entries of a malicious host: the walk ends, and moves at most the length.
    #[test]
    fn prp_walk_of_malicious_list_is_bounded(
        prp1: u64,
        prp2: u64,
        dword_aligned: bool,
        bytes in 0u64..=16 << 20,
        entries in prop::collection::vec((any::<u64>(), 0..500u32), 1..8),
        batch in 1u32..1000,
    ) {
        let (prp1, prp2) = if dword_aligned { (prp1 & !3, prp2 & !7) } else { (prp1, prp2) };
        let mut walk = match PrpWalk::new(BusAddr(prp1), BusAddr(prp2), bytes, 4096) {
            Ok(walk) => walk,
            Err(status) => {
                prop_assert_eq!(status, Status::INVALID_PRP_OFFSET);
                return Ok(());
            }
        };
        let (mut moved, mut steps) = (0, 0);
        let mut hostile = entries.iter().cycle();
        while let Some(step) = walk.step() {
            steps += 1;
            match step {
                Step::Segment(segment) => moved += segment.bytes,
                Step::NeedList { entries, .. } => {
                    // Mostly aligned, so that the walk continues; sometimes not.
                    let list: Vec<u64> = hostile.by_ref()
                        .map(|(entry, whim)| if *whim > 0 { entry & !4095 } else { *entry })
                        .take(entries.min(batch) as usize)
                        .collect();
                    match walk.supply(&list) {
                        Ok(segments) => moved += segments.map(|segment| segment.bytes).sum::<u64>(),
                        Err(status) => {
                            prop_assert_eq!(status, Status::INVALID_PRP_OFFSET);
                            prop_assert!(walk.step().is_none() && moved <= bytes);
                            return Ok(());
                        }
                    }
                }
            }
            // Reading one entry at a time, a chain costs a step too: one in 512.
            prop_assert!(steps <= 2 * (2 + bytes / 4096), "more steps than pages and chains");
        }
        prop_assert_eq!(moved, bytes);
    }
}
