//! Data pointers: NVMe base 2.0, 4.1.1 (PRPs).

use wire::BusAddr;
use wire::Lba;
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::io;
use wire::nvme::status::Status;

use crate::bench::{Bench, Pair, noise};
use crate::case::{Section, cases};
use crate::verdict::{Verdict, hold, needs};
use wire::nvme::identify::oncs;

pub(super) const SECTIONS: &[Section] = &[Section {
    of: "NVMe base 2.0",
    number: "4.1.1",
    title: "physical region pages",
    cases: cases! {
        None one_page_at_any_offset "a transfer within a page may begin at any dword of it";
        Writes two_pages_at_any_offset "PRP2 is the second page where there are two";
        None a_read_writes_no_more_than_its_length "bytes beside the data stay as they were";
        Writes pages_in_any_order "pages of a list may lie anywhere, in any order";
        Writes a_list_at_any_entry_of_its_page "a list may begin at any qword of its page";
        Writes a_list_that_just_fits_does_not_chain
            "where the last entry of a page ends the list, it is a data page";
        Writes a_list_one_entry_longer_chains "one page more, and that entry leads to a second list";
        Writes lists_of_every_length
            "every length from one page to sixteen, from each end of a list page";
        Writes the_longest_transfer "a transfer of MDTS, or 1 MiB, in one command";
        None a_transfer_above_mdts "one block more than MDTS: Invalid Field";
        None prp2_that_is_not_needed "PRP2 counts for nothing where one page suffices";
        None the_same_page_twice "a page may be named twice";
        None a_list_page_that_is_read_once "a list may be changed once its command has completed";
        None memory_that_is_not_there
            "addresses past host memory: an error status, and the next command works";
        None a_list_that_is_not_there
            "a list past host memory: an error status, and the next command works";
    },
}];

/// The data pointer of these pages. Its list is stored at `lists`: from an entry of the first list page on,
/// then in whole pages.
fn pointer(b: &Bench, pages: &[BusAddr], lists: &[BusAddr]) -> DataPointer {
    let (prp1, prp2) = match pages {
        [first] => (*first, BusAddr(0)),
        [first, second] => (*first, *second),
        [first, rest @ ..] => {
            lay_list(b, rest, lists);
            (*first, lists[0])
        }
        [] => unreachable!("every transfer has a page"),
    };
    DataPointer::Prp { prp1, prp2 }
}

/// Stores the entries of a list, with chain pointers.
fn lay_list(b: &Bench, mut entries: &[BusAddr], lists: &[BusAddr]) {
    for (number, list) in lists.iter().enumerate() {
        let room = ((b.page_bytes - list.page_offset(b.page_bytes)) / 8) as usize;
        let ends = entries.len() <= room;
        let here = if ends { entries.len() } else { room - 1 };
        let on = if ends { None } else { lists.get(number + 1) };
        for (place, entry) in (0..).zip(entries[..here].iter().chain(on)) {
            b.store_bytes(BusAddr(list.0 + 8 * place), &entry.0.to_le_bytes());
        }
        entries = &entries[here..];
    }
    assert!(entries.is_empty(), "the case has brought too few list pages");
}

/// Allocates `pages` pages that are not adjacent.
fn scattered(b: &Bench, pages: u64) -> Verdict<Vec<BusAddr>> {
    let at = b.pages(2 * pages)?;
    Ok((0..pages).rev().map(|page| BusAddr(at.0 + (2 * page + 1) * b.page_bytes)).collect())
}

/// Writes noise through one data pointer and checks the medium; then reads it back through the same pointer.
async fn both_ways(
    b: &Bench,
    pair: &mut Pair,
    seed: u64,
    pages: &[BusAddr],
    lists: &[BusAddr],
) -> Verdict {
    let bytes = pages.len() as u64 * b.page_bytes;
    let blocks = (bytes / b.block()) as u32;
    let (data, page) = (noise(seed, bytes), b.page_bytes as usize);
    for (at, part) in pages.iter().zip(data.chunks(page)) {
        b.store_bytes(*at, part);
    }
    let lba = Lba(seed % 16);
    let write = io::write(b.cid(), b.nsid, lba, blocks, false, pointer(b, pages, lists));
    b.ok(pair, &write).await?;
    b.holds(pair, lba.0, &data).await?;
    pages.iter().for_each(|at| b.store_bytes(*at, &vec![0; page]));
    let read = io::read(b.cid(), b.nsid, lba, blocks, false, pointer(b, pages, lists));
    b.ok(pair, &read).await?;
    for (number, (at, part)) in pages.iter().zip(data.chunks(page)).enumerate() {
        hold!(
            b.bytes(*at, page) == part,
            "page {number} of {} read holds other bytes",
            pages.len()
        );
    }
    Ok(())
}

/// Skips the case unless one command can transfer `pages` pages.
fn room_for(b: &Bench, pages: u64) -> Verdict {
    let bytes = u64::from(b.blocks_within(u64::MAX)) * b.block();
    needs!(bytes >= pages * b.page_bytes, "{pages} pages in a command: it takes {bytes} bytes");
    needs!(b.ns.nsze.get() * b.block() >= (pages + 16) * b.page_bytes, "a larger namespace");
    Ok(())
}

async fn one_page_at_any_offset(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let (block, page) = (b.block(), b.page_bytes);
    needs!(block < page, "blocks smaller than a memory page");
    let expected = b.read(&mut pair, 0, 1).await?;
    let at = b.pages(1)?;
    for offset in [0, 4, 64, 508, page - block - 4, page - block] {
        b.store_bytes(at, &vec![0xee; page as usize]);
        let data = DataPointer::Prp { prp1: BusAddr(at.0 + offset), prp2: BusAddr(0) };
        b.ok(&mut pair, &io::read(b.cid(), b.nsid, Lba(0), 1, false, data)).await?;
        let found = b.bytes(BusAddr(at.0 + offset), block as usize);
        hold!(found == expected, "a block read to offset {offset} of a page differs");
    }
    Ok(())
}

async fn two_pages_at_any_offset(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    room_for(b, 1)?;
    let (page, block) = (b.page_bytes, b.block());
    let bytes = page.max(block);
    needs!(bytes == page, "blocks of no more than a memory page");
    let data = noise(4, bytes);
    b.write(&mut pair, 3, &data).await?;
    let at = b.pages(4)?;
    for offset in [4, 8, 512, page - 512, page - 4] {
        let far = BusAddr(at.0 + 2 * page);
        let to = DataPointer::Prp { prp1: BusAddr(at.0 + offset), prp2: far };
        let blocks = (bytes / block) as u32;
        b.ok(&mut pair, &io::read(b.cid(), b.nsid, Lba(3), blocks, false, to)).await?;
        let first = (page - offset) as usize;
        let mut found = b.bytes(BusAddr(at.0 + offset), first);
        found.extend(b.bytes(far, bytes as usize - first));
        hold!(found == data, "a page read from offset {offset} of a page on differs");
    }
    Ok(())
}

async fn a_read_writes_no_more_than_its_length(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let (page, block) = (b.page_bytes, b.block());
    let at = b.pages(3 + block / page)?;
    let all = (3 * page + block) as usize - (block % page) as usize;
    b.store_bytes(at, &vec![0xc3; all]);
    let to = BusAddr(at.0 + page);
    b.ok(&mut pair, &io::read(b.cid(), b.nsid, Lba(0), 1, false, b.data(to, block)?)).await?;
    let before = b.bytes(at, page as usize);
    hold!(before.iter().all(|byte| *byte == 0xc3), "the page before the data was written");
    let end = (page + block) as usize;
    let behind = b.bytes(BusAddr(at.0 + end as u64), all - end);
    hold!(behind.iter().all(|byte| *byte == 0xc3), "bytes behind the data were written");
    Ok(())
}

async fn pages_in_any_order(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    room_for(b, 9)?;
    let pages = scattered(b, 9)?;
    both_ways(b, &mut pair, 5, &pages, &[b.pages(1)?]).await
}

async fn a_list_at_any_entry_of_its_page(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    room_for(b, 3)?;
    let (pages, list) = (scattered(b, 3)?, b.pages(1)?);
    for entry in [0, 1, 2, 63, 64, 255, b.page_bytes / 8 - 2] {
        let list = BusAddr(list.0 + 8 * entry);
        both_ways(b, &mut pair, entry, &pages, &[list]).await?;
    }
    Ok(())
}

async fn a_list_that_just_fits_does_not_chain(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    room_for(b, 5)?;
    // Four entries up to the end of the list's page: the last of them is a page of data.
    let (pages, list) = (scattered(b, 5)?, b.pages(1)?);
    let list = BusAddr(list.0 + b.page_bytes - 4 * 8);
    both_ways(b, &mut pair, 6, &pages, &[list]).await
}

async fn a_list_one_entry_longer_chains(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    room_for(b, 6)?;
    let (pages, lists) = (scattered(b, 6)?, b.pages(3)?);
    let first = BusAddr(lists.0 + b.page_bytes - 4 * 8);
    let second = BusAddr(lists.0 + 2 * b.page_bytes);
    both_ways(b, &mut pair, 7, &pages, &[first, second]).await
}

async fn lists_of_every_length(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    room_for(b, 16)?;
    let (pages, lists) = (scattered(b, 16)?, b.pages(2)?);
    let second = BusAddr(lists.0 + b.page_bytes);
    for count in 1..=pages.len() {
        for left in [2, 3, 7, 15] {
            let first = BusAddr(lists.0 + b.page_bytes - 8 * left);
            both_ways(b, &mut pair, left, &pages[..count], &[first, second]).await?;
        }
    }
    Ok(())
}

async fn the_longest_transfer(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let blocks = u64::from(b.blocks_within(1 << 20)).min(b.ns.nsze.get());
    let data = noise(8, blocks * b.block());
    b.write(&mut pair, 0, &data).await?;
    b.holds(&mut pair, 0, &data).await
}

async fn a_transfer_above_mdts(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let blocks = b.blocks_within(u64::MAX);
    needs!(blocks < io::BLOCKS_MAX, "a limit of transfers: MDTS is {}", b.id.mdts);
    needs!(u64::from(blocks) < b.ns.nsze.get(), "a namespace larger than a transfer");
    let bytes = u64::from(blocks + 1) * b.block();
    needs!(bytes <= 8 << 20, "a limit of at most 8 MiB");
    let at = b.place(bytes, b.page_bytes)?;
    let data = b.data(at, bytes)?;
    let mut commands = vec![io::read(b.cid(), b.nsid, Lba(0), blocks + 1, false, data)];
    if b.id.oncs.get() & oncs::COMPARE != 0 {
        commands.push(io::compare(b.cid(), b.nsid, Lba(0), blocks + 1, data));
    }
    if b.ns.nsze.get() >= u64::from(io::BLOCKS_MAX) {
        commands.push(io::read(b.cid(), b.nsid, Lba(0), io::BLOCKS_MAX, false, data));
    }
    for sqe in commands {
        b.ends(&mut pair, &sqe, &[Status::INVALID_FIELD]).await?;
    }
    Ok(())
}

async fn prp2_that_is_not_needed(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    needs!(b.block() <= b.page_bytes, "blocks of no more than a memory page");
    let at = b.pages(1)?;
    let data = DataPointer::Prp { prp1: at, prp2: b.past_memory() };
    b.ok(&mut pair, &io::read(b.cid(), b.nsid, Lba(0), 1, false, data)).await.map(drop)
}

async fn the_same_page_twice(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    room_for(b, 4)?;
    let (page, block) = (b.page_bytes, b.block());
    needs!(block <= page, "blocks of no more than a memory page");
    let blocks = (4 * page / block) as u32;
    let expected = b.read(&mut pair, 0, blocks).await?;
    let at = b.pages(1)?;
    let data = pointer(b, &[at; 4], &[b.pages(1)?]);
    b.ok(&mut pair, &io::read(b.cid(), b.nsid, Lba(0), blocks, false, data)).await?;
    let found = b.bytes(at, page as usize);
    let one_of = expected.chunks(page as usize).any(|part| part == found);
    hold!(one_of, "a page that was read to four times holds none of the four");
    Ok(())
}

async fn a_list_page_that_is_read_once(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    room_for(b, 4)?;
    let (pages, list) = (scattered(b, 4)?, b.pages(1)?);
    let blocks = (4 * b.page_bytes / b.block()) as u32;
    let elsewhere = b.pages(4)?;
    for _ in 0..4 {
        let data = pointer(b, &pages, &[list]);
        b.ok(&mut pair, &io::read(b.cid(), b.nsid, Lba(0), blocks, false, data)).await?;
        b.store_bytes(list, &elsewhere.0.to_le_bytes().repeat(3));
        b.pause(runtime::Span::us(50)).await;
        let found = b.bytes(elsewhere, 4 * b.page_bytes as usize);
        hold!(found.iter().all(|byte| *byte == 0), "data went where a list led afterwards");
    }
    Ok(())
}

/// A read that must fail because of its data pointer, and one after it that must succeed.
async fn fails_alone(b: &mut Bench, pair: &mut Pair, sqe: &Sqe) -> Verdict {
    let status = b.run(pair, sqe).await?.status();
    hold!(!status.is_ok(), "success, of data that have no place");
    b.read(pair, 0, 1).await.map(drop)
}

async fn memory_that_is_not_there(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    let data = DataPointer::Prp { prp1: b.past_memory(), prp2: b.past_memory() };
    let sqe = io::read(b.cid(), b.nsid, Lba(0), 1, false, data);
    fails_alone(b, &mut pair, &sqe).await
}

async fn a_list_that_is_not_there(b: &mut Bench) -> Verdict {
    let mut pair = b.plain_io().await?;
    room_for(b, 4)?;
    let data = DataPointer::Prp { prp1: b.pages(1)?, prp2: b.past_memory() };
    let blocks = (4 * b.page_bytes / b.block()) as u32;
    let sqe = io::read(b.cid(), b.nsid, Lba(0), blocks, false, data);
    fails_alone(b, &mut pair, &sqe).await
}
