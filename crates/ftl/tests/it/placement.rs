//! Locations of a request's data on flash, and reads of them: units of a request share pages, a page is sensed
//! once for each read, and units that move during a read are read again together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::oracle::{self, Oracle};
use crate::common::{Fake, Medium, SMALL};
use ftl::{Ftl, Options, Run};
use runtime::{Log, Rng, Rt, Span, race};

/// Units of a request: one superpage of [`SMALL`], four of its pages.
const UNITS: u32 = 8;
/// Blocks of a unit.
const BLOCKS: u64 = 2;

/// Writes requests of [`UNITS`] units from `writers` tasks at a time until each has written `each`; then
/// flushes.
async fn write_at_once(rt: &Rt, ftl: &Ftl<Fake>, writers: u32, each: u32) {
    let done = Rc::new(Cell::new(0));
    for writer in 0..writers {
        let (ftl, done) = (ftl.clone(), done.clone());
        rt.spawn(async move {
            for at in 0..each {
                let data = vec![writer as u8; 1024 * UNITS as usize];
                let first = u64::from((writer * each + at) * UNITS) * BLOCKS;
                ftl.write(first, &data).await.unwrap();
            }
            done.set(done.get() + 1);
        });
    }
    while done.get() < writers {
        rt.sleep(Span::ms(1)).await;
    }
    ftl.flush().await.unwrap();
}

/// With eight writers the buffer of two superpages is always full. A request that waits must not alternate
/// with others unit by unit: it would lie on eight pages.
#[test]
fn units_of_concurrent_requests_share_pages() {
    let rt = Rt::simulated(None, Log::Off);
    let medium = Medium::new(SMALL, 1);
    let options = Options { slots: 2 * UNITS, ..Options::new(&SMALL) };
    rt.block_on(async {
        let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), &options).await.unwrap();
        write_at_once(&rt, &ftl, 8, 3).await;
        for request in 0..8 * 3 {
            let units = (request * UNITS..(request + 1) * UNITS).map(u64::from);
            let pages: BTreeSet<_> = units.map(|unit| ftl.locate(unit * BLOCKS)).collect();
            assert!(pages.len() <= 5, "request {request} lies on {} pages", pages.len());
        }
    });
}

/// Writes of parts of units hold a slot while they read the rest of the unit. Dropped, they return it: without
/// that, the buffer has no slot left after two superpages' worth of them.
#[test]
fn dropped_partial_writes_return_their_slots() {
    let rt = Rt::simulated(None, Log::Off);
    let medium = Medium::new(SMALL, 1);
    let options = Options { slots: 2 * UNITS, ..Options::new(&SMALL) };
    rt.block_on(async {
        let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), &options).await.unwrap();
        write_at_once(&rt, &ftl, 1, 3).await;
        for at in 0..3 * UNITS {
            let write = ftl.write(u64::from(at % UNITS) * BLOCKS, &[7; 512]);
            race(write, rt.sleep(Span::us(10))).await;
        }
        let work = async {
            write_at_once(&rt, &ftl, 2, 3).await;
            true
        };
        let late = async {
            rt.sleep(Span::s(10)).await;
            false
        };
        let (runtime::Either::First(done) | runtime::Either::Second(done)) = race(work, late).await;
        assert!(done, "no slot is left");
    });
}

/// A read passes every byte once, of buffered, mapped, trimmed and unwritten units, and bytes are the newest.
#[test]
fn read_to_covers_every_byte_once_under_overwrites_and_gc() {
    let rt = Rt::simulated(None, Log::Off);
    let medium = Medium::new(SMALL, 5);
    let options = Options::new(&SMALL);
    let oracle = Rc::new(RefCell::new(Oracle::new(options.units)));
    rt.block_on(async {
        let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), &options).await.unwrap();
        let (mut rng, units) = (Rng::for_part(5, "script"), u64::from(options.units));
        for _ in 0..6 * options.units {
            let unit = rng.below(units);
            let (first, blocks) = oracle::part(&mut rng);
            let data = oracle.borrow_mut().write(unit as u32, first, blocks);
            ftl.write(unit * BLOCKS + first as u64, &data).await.unwrap();
            if !rng.chance(1, 4) {
                continue;
            }
            let block = rng.below(units * BLOCKS - 16);
            let blocks = 1 + rng.below(16) as u32;
            let mut bytes = vec![0xaa; blocks as usize * 512];
            let mut seen = vec![0; bytes.len()];
            let mut put = |at: u32, run: Run<'_>| {
                let at = at as usize;
                let run = match run {
                    Run::Bytes(run) => run.to_vec(),
                    Run::Zeros(count) => vec![0; count as usize],
                };
                bytes[at..][..run.len()].copy_from_slice(&run);
                seen[at..][..run.len()].iter_mut().for_each(|times| *times += 1);
            };
            ftl.read_to(block, blocks, &mut put).await.unwrap();
            assert!(seen.iter().all(|times| *times == 1), "block {block}, {blocks} blocks");
            for (at, found) in bytes.chunks_exact(512).enumerate() {
                oracle.borrow().is_newest(block + at as u64, found).unwrap();
            }
        }
        assert!(ftl.stats().counters.collected > 0);
    });
}

/// Reads of units that hold nothing are counted: buffered and mapped ones are not among them.
#[test]
fn reads_of_blank_units_are_counted() {
    let rt = Rt::simulated(None, Log::Off);
    let medium = Medium::new(SMALL, 1);
    rt.block_on(async {
        let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), &Options::new(&SMALL)).await.unwrap();
        let counts = || {
            let counters = ftl.stats().counters;
            (counters.read_units, counters.blank_units)
        };
        write_at_once(&rt, &ftl, 1, 1).await;
        ftl.write(u64::from(UNITS) * BLOCKS, &[7; 1024]).await.unwrap();
        ftl.read(0, (UNITS + 1) * BLOCKS as u32).await.unwrap();
        assert_eq!(counts(), (u64::from(UNITS) + 1, 0));
        ftl.read_to(0, (UNITS + 4) * BLOCKS as u32, &mut |_, _| {}).await.unwrap();
        assert_eq!(counts(), (2 * u64::from(UNITS) + 5, 3));
    });
}

/// Units of two pages in turn: each page is sensed once. All of them move while they are read: they are read
/// again in one operation, not one by one.
#[test]
fn read_senses_each_page_once_and_moved_units_together() {
    let rt = Rt::simulated(None, Log::Off);
    let medium = Medium::new(SMALL, 1);
    let options = Options::new(&SMALL);
    rt.block_on(async {
        let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), &options).await.unwrap();
        // Written in an order that puts neighbours on different pages.
        let write = |first: u64, byte: u8| {
            let ftl = ftl.clone();
            async move {
                for unit in [0, 2, 4, 6, 1, 3, 5, 7] {
                    ftl.write((first + unit) * BLOCKS, &[byte; 1024]).await.unwrap();
                }
            }
        };
        // One superpage each, on dies 0 and 1.
        for first in [0, 8] {
            write(first, 1).await;
            ftl.flush().await.unwrap();
        }
        let (calls, parts) = (|| ftl.pages().read_calls.get(), || ftl.pages().parts_read.get());
        let (calls_before, parts_before) = (calls(), parts());
        ftl.read(0, 8 * BLOCKS as u32).await.unwrap();
        assert_eq!((calls() - calls_before, parts() - parts_before), (1, 4), "pages of two units");

        // The read waits on die 0 for a program, and meanwhile newer versions arrive on die 1.
        let (calls_before, parts_before) = (calls(), parts());
        write(16, 1).await;
        rt.sleep(Span::us(1)).await;
        let newer = write(0, 2);
        let after = rt.clone();
        rt.spawn(async move {
            after.sleep(Span::us(10)).await;
            newer.await;
        });
        let mut seen = Vec::new();
        let mut put = |_: u32, run: Run<'_>| match run {
            Run::Bytes(run) => seen.push(run[0]),
            Run::Zeros(_) => seen.push(0),
        };
        ftl.read_to(0, 8 * BLOCKS as u32, &mut put).await.unwrap();
        assert_eq!(seen, [2; 8]);
        assert_eq!((calls() - calls_before, parts() - parts_before), (2, 8));
    });
}
