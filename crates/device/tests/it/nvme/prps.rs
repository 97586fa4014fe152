//! Physical region pages through the controller: NVMe base 2.0, 4.1.1.

use std::collections::BTreeSet;

use proptest::prelude::*;
use runtime::Rng;
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::prp;
use wire::nvme::status::Status;
use wire::nvme::{io, registers::Cc};
use wire::{BusAddr, Lba};

use crate::raw::nvme::world::{Setup, World};
use crate::raw::nvme::{NS, Pair, Settings, pattern};

/// A bench for transfers of up to 4 MiB, with `memory_bytes` of host memory to scatter them over.
fn setup(block_bytes: u32, memory_bytes: usize) -> Setup {
    let options = device::nvme::Options {
        slots: 4,
        fetchers: 1,
        transfer_bytes_max: 4 << 20,
        ..Default::default()
    };
    Setup { options, block_bytes, blocks: 1 << 16, memory_bytes, ..Setup::default() }
}

/// Enables the controller with memory pages of `page_bytes`, and creates one pair of queues.
async fn up(w: &mut World, page_bytes: u64) -> Pair {
    let cc = Settings::default().cc.with_mps((page_bytes / 4096).ilog2() as u8);
    assert_eq!(cc.page_bytes(), page_bytes);
    w.raw.enable(Settings { cc, ..Settings::default() }).await;
    w.raw.ask_for_queues().await;
    w.raw.create_pair(1, 16).await
}

/// A buffer in scattered pages, and its data pointer.
struct Scattered {
    data: DataPointer,
    /// Its pieces in order: address and length.
    pieces: Vec<(BusAddr, usize)>,
}

impl Scattered {
    /// Draws free pages one by one, in random order.
    fn new(w: &World, rng: &mut Rng, (offset, bytes): (u64, u64), list_offset: u64) -> Scattered {
        let page = w.raw.page_bytes;
        let end = w.raw.memory.base().0 + w.raw.memory.bytes() as u64;
        let first_free = w.raw.place(page, page).0;
        let mut free: Vec<u64> = (first_free..end).step_by(page as usize).collect();
        let mut draw = || free.swap_remove(rng.below(free.len() as u64) as usize);
        let mut pages = vec![BusAddr(draw() + offset)];
        let mut pieces = vec![(pages[0], bytes.min(page - offset) as usize)];
        let mut left = bytes - pieces[0].1 as u64;
        while left > 0 {
            let here = left.min(page);
            pages.push(BusAddr(draw()));
            pieces.push((pages[pages.len() - 1], here as usize));
            left -= here;
        }
        let entries = prp::list_entries(offset, bytes, page);
        let count = prp::list_pages(entries, list_offset, page);
        let lists: Vec<BusAddr> = (0..count)
            .map(|number| BusAddr(draw() + if number == 0 { list_offset } else { 0 }))
            .collect();
        let put = |at, entry: u64| w.raw.memory.write(at, &entry.to_le_bytes()).expect("a page");
        let data = prp::build(pages, bytes, page, lists, put).expect("pages of sense");
        Scattered { data, pieces }
    }

    fn store(&self, w: &World, data: &[u8]) {
        let mut done = 0;
        for (at, bytes) in &self.pieces {
            w.raw.memory.write(*at, &data[done..done + bytes]).unwrap();
            done += bytes;
        }
    }

    fn load(&self, w: &World) -> Vec<u8> {
        self.pieces.iter().flat_map(|(at, bytes)| w.raw.bytes(*at, *bytes)).collect()
    }

    /// Host memory with the buffer and the completion queue's entries zeroed.
    fn everything_else(&self, w: &World, pair: &Pair) -> Vec<u8> {
        let mut memory = w.raw.everything();
        let cq = (pair.cq.at, pair.cq.entries as usize * 16);
        for (at, bytes) in self.pieces.iter().chain([&cq]) {
            let begin = (at.0 - w.raw.memory.base().0) as usize;
            memory[begin..begin + bytes].fill(0);
        }
        memory
    }
}

/// One transfer each way; no other byte of the medium or of host memory may change.
async fn both_ways(w: &mut World, pair: &mut Pair, what: &Transfer, rng: &mut Rng) {
    let block = w.setup.block_bytes;
    let bytes = what.blocks * block;
    let lba = 1 + rng.below(1000);
    w.medium.poke(lba - 1, &pattern(1, (bytes + 2 * block) as usize));
    let beside = |w: &World| {
        let before = w.medium.peek(lba - 1, block as usize);
        (before, w.medium.peek(lba + u64::from(what.blocks), block as usize))
    };
    let blocks_beside = beside(w);
    let data = pattern(lba, bytes as usize);

    let buffer = Scattered::new(w, rng, (what.offset, u64::from(bytes)), what.list_offset);
    buffer.store(w, &data);
    let sqe = io::write(w.raw.cid(), NS, Lba(lba), what.blocks, false, buffer.data);
    assert_eq!(w.raw.run(pair, &sqe).await.status(), Status::SUCCESS, "{what:?}");
    assert!(w.medium.peek(lba, bytes as usize) == data, "written: {what:?}");
    assert!(beside(w) == blocks_beside, "blocks beside: {what:?}");

    let buffer = Scattered::new(w, rng, (what.offset, u64::from(bytes)), what.list_offset);
    buffer.store(w, &vec![0xa5; bytes as usize]);
    let sqe = io::read(w.raw.cid(), NS, Lba(lba), what.blocks, false, buffer.data);
    let mut sq = pair.sq;
    w.raw.store(&mut sq, &sqe);
    let before = buffer.everything_else(w, pair);
    assert_eq!(w.raw.run(pair, &sqe).await.status(), Status::SUCCESS, "{what:?}");
    assert!(buffer.load(w) == data, "read: {what:?}");
    assert!(buffer.everything_else(w, pair) == before, "memory beside: {what:?}");
}

/// Length of a transfer, and its layout in memory.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    blocks: u32,
    offset: u64,
    list_offset: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any buffer that PRPs can describe, up to 1 MiB.
    #[test]
    fn prp_transfers_of_random_buffers(
        page_log2 in prop::sample::select(vec![12_u32, 16]),
        block_bytes in prop::sample::select(vec![512_u32, 4096]),
        transfers in prop::collection::vec((any::<u32>(), any::<u16>(), any::<u16>()), 1..5),
        seed: u64,
    ) {
        setup(block_bytes, 4 << 20).run(async |mut w: World| {
            let page = 1_u64 << page_log2;
            let mut pair = up(&mut w, page).await;
            let mut rng = Rng::new(seed);
            for (blocks, offset, list_offset) in transfers {
                let what = Transfer {
                    blocks: 1 + blocks % ((1 << 20) / block_bytes),
                    offset: u64::from(offset) * 4 % page,
                    list_offset: u64::from(list_offset) * 8 % page,
                };
                let places = w.raw.place(0, 1);
                both_ways(&mut w, &mut pair, &what, &mut rng).await;
                w.raw.free_from(places);
            }
        });
    }
}

/// Corner cases: first offsets, lengths around whole pages, lists that begin in the last slots of a page.
#[test]
fn prp_transfers_at_page_and_list_boundaries() {
    for (page, block_bytes) in [(4096_u64, 512_u32), (4096, 4096), (65_536, 512), (65_536, 4096)] {
        setup(block_bytes, 1 << 20).run(async |mut w: World| {
            let mut pair = up(&mut w, page).await;
            let mut rng = Rng::new(page + u64::from(block_bytes));
            let block = u64::from(block_bytes);
            let mut lengths: BTreeSet<u64> = [block].into();
            for pages in [1, 2, 3, 4] {
                let whole = (pages * page).next_multiple_of(block);
                lengths.extend([whole - block, whole, whole + block]);
            }
            lengths.remove(&0);
            let offsets = [0, 4, 8, 508, 512, 516, page / 2, page - 512, page - 8, page - 4];
            for bytes in lengths {
                for offset in offsets {
                    let listed = prp::list_entries(offset, bytes, page) > 0;
                    let list_offsets = [0, 8, page - 24, page - 16, page - 8];
                    for list_offset in &list_offsets[..if listed { 5 } else { 1 }] {
                        let (blocks, list_offset) = ((bytes / block) as u32, *list_offset);
                        let what = Transfer { blocks, offset, list_offset };
                        let places = w.raw.place(0, 1);
                        both_ways(&mut w, &mut pair, &what, &mut rng).await;
                        w.raw.free_from(places);
                    }
                }
            }
        });
    }
}

/// 513 pages: 512 entries fill a list page to its last slot without a chain. One more needs a chain.
#[test]
fn prp_list_fills_page_exactly_or_chains() {
    setup(4096, 10 << 20).run(async |mut w: World| {
        let mut pair = up(&mut w, 4096).await;
        let mut rng = Rng::new(3);
        for (pages, lists) in [(512, 1), (513, 1), (514, 2), (1024, 2)] {
            for (offset, list_offset) in [(0, 0), (4, 0), (4092, 8)] {
                let what = Transfer { blocks: pages, offset, list_offset };
                let entries = prp::list_entries(offset, u64::from(pages) * 4096, 4096);
                if (offset, list_offset) == (0, 0) {
                    assert_eq!(prp::list_pages(entries, 0, 4096), lists);
                }
                let places = w.raw.place(0, 1);
                both_ways(&mut w, &mut pair, &what, &mut rng).await;
                w.raw.free_from(places);
            }
        }
    });
}

/// A data pointer, the list to store at PRP2, and the expected status.
struct Bad {
    why: &'static str,
    prp1: u64,
    prp2: u64,
    list: Vec<u64>,
    blocks: u32,
    wanted: Status,
}

/// Addresses that [`bad_pointers`] uses.
#[derive(Clone, Copy)]
struct Places {
    page: u64,
    list: u64,
    outside: u64,
}

fn bad_pointers(at: Places) -> Vec<Bad> {
    let Places { page: a, list, outside } = at;
    let offset = Status::INVALID_PRP_OFFSET.with_dnr();
    let transfer = Status::DATA_TRANSFER_ERROR;
    let bad = |why, prp1, prp2, entries: &[u64], blocks, wanted| Bad {
        why,
        prp1,
        prp2,
        list: entries.to_vec(),
        blocks,
        wanted,
    };
    vec![
        bad("PRP1 within a dword", a + 1, 0, &[], 1, offset),
        bad("PRP1 within a dword, far on", a + 4094, a + 4096, &[], 1, offset),
        bad("PRP2 is a page and has an offset", a, a + 4096 + 8, &[], 16, offset),
        bad("PRP2 is a page and lies within a dword", a + 4, a + 4097, &[], 8, offset),
        bad("a list within a qword", a, list + 4, &[], 24, offset),
        bad("an entry with an offset", a, list, &[a + 4096, a + 8192 + 512], 24, offset),
        bad("a first entry with an offset", a, list, &[a + 4, a + 4096], 24, offset),
        bad("a chain with an offset", a, list + 4088, &[list + 8], 24, offset),
        bad("PRP1 outside", outside, 0, &[], 8, transfer),
        bad("PRP1 just outside", outside - 512, outside, &[], 8, transfer),
        bad("PRP2 outside", a, outside, &[], 16, transfer),
        bad("PRP2 at the very end", a, u64::MAX - 4095, &[], 16, transfer),
        bad("a list outside", a, outside, &[], 24, transfer),
        bad("a list at the very end", a, u64::MAX - 7, &[], 24, transfer),
        bad("an entry outside", a, list, &[a + 4096, outside], 24, transfer),
        bad("an entry at the very end", a, list, &[u64::MAX - 4095, a], 24, transfer),
        bad("a chain outside", a, list + 4088, &[outside], 24, transfer),
        bad("address zero", 0, 0, &[], 1, transfer),
    ]
}

/// A pointer outside memory fails its own command and changes nothing.
#[test]
fn invalid_prps_fail_own_command_only() {
    setup(512, 1 << 20).run(async |mut w: World| {
        let mut pair = up(&mut w, 4096).await;
        let base = w.raw.memory.base().0;
        let end = base + w.raw.memory.bytes() as u64;
        let at = Places {
            page: w.raw.place(8 * 4096, 4096).0,
            list: w.raw.place(4096, 4096).0,
            outside: end,
        };
        w.medium.poke(0, &pattern(5, 64 * 512));
        for bad in bad_pointers(at) {
            for (slot, entry) in bad.list.iter().enumerate() {
                let place = BusAddr(bad.prp2 + 8 * slot as u64);
                w.raw.memory.write(place, &entry.to_le_bytes()).unwrap();
            }
            let data = DataPointer::Prp { prp1: BusAddr(bad.prp1), prp2: BusAddr(bad.prp2) };
            for make in [io::read, io::write] {
                let sqe: Sqe = make(w.raw.cid(), NS, Lba(8), bad.blocks, false, data);
                let mut sq = pair.sq;
                w.raw.store(&mut sq, &sqe);
                let before = w.raw.everything();
                let cq_at = (pair.cq.at.0 - base) as usize + 16 * pair.cq.head as usize;
                let status = w.raw.run(&mut pair, &sqe).await.status();
                assert_eq!(status, bad.wanted, "{}", bad.why);
                let mut after = w.raw.everything();
                after[cq_at..cq_at + 16].copy_from_slice(&before[cq_at..cq_at + 16]);
                assert!(after == before, "{}: host memory has changed", bad.why);
            }
        }
        assert_eq!(w.medium.peek(0, 64 * 512), pattern(5, 64 * 512), "nothing was written");
        let csts = w.raw.csts().await;
        assert!(csts.rdy() && !csts.cfs());
    });
}

/// Lists that point to themselves, to each other or repeatedly to one page end with the transfer length.
#[test]
fn circular_prp_lists_end_with_transfer_length() {
    setup(4096, 1 << 20).run(async |mut w: World| {
        let mut pair = up(&mut w, 4096).await;
        let (page, list) = (w.raw.place(4096, 4096), w.raw.place(4096, 4096));
        let itself: Vec<u8> = (0..512).flat_map(|_| list.0.to_le_bytes()).collect();
        w.raw.memory.write(list, &itself).unwrap();
        let data = DataPointer::Prp { prp1: page, prp2: list };
        // A write whose data are the list itself, repeatedly.
        let sqe = io::write(w.raw.cid(), NS, Lba(0), 1024, false, data);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        assert_eq!(w.medium.peek(1, 4096), itself);
        // From the last slot of its page each list is only a chain, until one begins at a page's start.
        w.raw.memory.write(list, &itself).unwrap();
        let data = DataPointer::Prp { prp1: page, prp2: BusAddr(list.0 + 4088) };
        let sqe = io::write(w.raw.cid(), NS, Lba(0), 1024, false, data);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
    });
}

/// CC.MPS up to CAP.MPSMAX: pages of 4 KiB to 64 KiB, each enabled in turn.
#[test]
fn prp_transfers_with_every_memory_page_size() {
    setup(512, 4 << 20).run(async |mut w: World| {
        for mps in 0..=4_u8 {
            w.raw.forget_places();
            let page = Cc::new().with_mps(mps).page_bytes();
            let mut pair = up(&mut w, page).await;
            let mut rng = Rng::new(u64::from(mps));
            for blocks in [1, 9, 130, 1024] {
                let what = Transfer { blocks, offset: page - 516, list_offset: page - 16 };
                let places = w.raw.place(0, 1);
                both_ways(&mut w, &mut pair, &what, &mut rng).await;
                w.raw.free_from(places);
            }
            w.raw.disable().await;
        }
    });
}
