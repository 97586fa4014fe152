//! Device-chosen tags, with a host that takes each tag from the notice and never inspects data: every read
//! ends, whatever is written meanwhile.

use std::cell::Cell;
use std::rc::Rc;

use runtime::{Rng, Span};
use wire::dcx::command::{Access, Command};
use wire::dcx::notice;
use wire::dcx::report::Code;
use wire::dcx::tag::Places;
use wire::{BusAddr, Lba};

use crate::raw::dcx::world::{Setup, World};
use crate::raw::dcx::{PATIENCE, Ring};

const GRAIN: u32 = 128;

fn setup(blocks: u64) -> Setup {
    Setup { grain: Some(GRAIN), blocks, contents: vec![0; 512], ..Setup::disordered() }
}

/// The tag in force, as the host reads it: the version first.
fn noticed(w: &World, ring: &Ring) -> (u32, u32) {
    let word = |at: usize| w.raw.memory.load_u32(BusAddr(ring.notice.0 + at as u64)).unwrap();
    let version = word(notice::TAG_VERSION);
    // The last four of its bytes.
    (word(notice::TAG + 4), version)
}

/// A block whose granules all end with `word`.
fn block_of(word: u32) -> Vec<u8> {
    word.to_le_bytes().repeat(128)
}

/// Reads a block with the device's tag; returns the number of stale tags met.
async fn read_tagged(w: &World, ring: &mut Ring, lba: u64, at: BusAddr) -> u32 {
    for stale in 0.. {
        let (tag, version) = noticed(w, ring);
        assert_ne!(version, 0, "the device has a tag");
        let places = Places::new(at, 512, Some(128));
        for place in places {
            w.raw.memory.store_u32(BusAddr(at.0 + u64::from(place)), tag).unwrap();
        }
        let access = Access { lba: Lba(lba), bytes: 512, at };
        let number =
            w.raw.push(ring, 0, Command::Read { access, tag_version: version, wide: false });
        let deadline = w.rt.now() + PATIENCE;
        loop {
            let word = |place: u32| w.raw.memory.load_u32(BusAddr(at.0 + u64::from(place)));
            if places.clone().all(|place| word(place).unwrap() != tag) {
                return stale;
            }
            if let Some(report) = w.raw.try_report(ring) {
                assert_eq!((report.command(), report.code()), (number, Code::STALE_TAG));
                break;
            }
            assert!(w.rt.now() < deadline, "a read has met its tag {tag:#x} of version {version}");
            w.rt.sleep(Span::ns(70)).await;
        }
    }
    unreachable!("the loop ends by itself")
}

/// A second queue keeps writing the newest tag, older ones and random words into every granule of the blocks
/// that the first queue reads.
#[test]
fn no_read_meets_tag_written_concurrently() {
    for shuffle in [None, Some(1), Some(2)] {
        Setup { shuffle, ..setup(8) }.run(async |w: World| {
            let mut reads = w.raw.up(0, 64, Some(128)).await;
            let mut writes = w.raw.up(1, 64, Some(128)).await;
            let done = Rc::new(Cell::new(false));
            let (at, from) = (w.raw.place(512, 4096), w.raw.place(512, 4096));
            let writer = async {
                let mut rng = Rng::for_part(shuffle.unwrap_or(0), "writer");
                let mut known = vec![0];
                for _ in 0..1500 {
                    let (tag, _) = noticed(&w, &writes);
                    known.push(tag);
                    let word = match rng.below(4) {
                        0 | 1 => tag,
                        2 => known[rng.below(known.len() as u64) as usize],
                        _ => rng.next_u64() as u32,
                    };
                    w.raw.memory.write(from, &block_of(word)).unwrap();
                    let access = Access { lba: Lba(rng.below(8)), bytes: 512, at: from };
                    let number = w.raw.push(&mut writes, 1, Command::Write { access, fua: false });
                    assert_eq!(w.raw.report(&mut writes).await, (number, 1, Code::DONE));
                }
                done.set(true);
            };
            let reader = async {
                let mut rng = Rng::for_part(shuffle.unwrap_or(0), "reader");
                let (mut count, mut stale) = (0, 0);
                while !done.get() {
                    stale += read_tagged(&w, &mut reads, rng.below(8), at).await;
                    count += 1;
                    w.rt.sleep(Span::ns(rng.below(2000))).await;
                }
                (count, stale)
            };
            let (reads, stale) = both(reader, writer).await;
            let waits = w.tagged.waits();
            assert!(reads > 1000 && stale > 100 && waits > 10, "{reads} {stale} {waits}");
            assert!(w.tagged.newest().version > 500);
        });
    }
}

/// Runs both to their ends.
pub async fn both<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> T {
    let (mut first, mut second) = (Box::pin(first), Box::pin(second));
    let (mut output, mut over) = (None, false);
    std::future::poll_fn(|cx| {
        if output.is_none()
            && let std::task::Poll::Ready(done) = first.as_mut().poll(cx)
        {
            output = Some(done);
        }
        over = over || second.as_mut().poll(cx).is_ready();
        match over && output.is_some() {
            true => std::task::Poll::Ready(output.take().expect("looked at")),
            false => std::task::Poll::Pending,
        }
    })
    .await
}

/// The blocks of a device of 32 granules that end in 32 of the 64 intervals, the even or the odd.
fn halves(odd: u32) -> Vec<u8> {
    (0..32u32)
        .flat_map(|granule| {
            let mut bytes = vec![0; GRAIN as usize - 4];
            bytes.extend((((2 * granule + odd) << 26) | 5).to_le_bytes());
            bytes
        })
        .collect()
}

/// While a write is under way whose old and new words leave no interval empty, the device has no tag;
/// afterwards it has one again.
#[test]
fn tag_dropped_without_empty_interval_and_chosen_again() {
    let blocks = 8;
    Setup { contents: halves(0), held_up: None, ..setup(blocks) }.run(async |w: World| {
        let mut ring = w.raw.up(0, 64, Some(128)).await;
        let (tag, version) = noticed(&w, &ring);
        assert_eq!((version, tag >> 26 & 1), (1, 1), "a tag of an odd interval: {tag:#x}");
        let mut data = halves(1);
        let place = (tag >> 27) as usize * GRAIN as usize + 124;
        data[place..place + 4].copy_from_slice(&tag.to_le_bytes());
        let from = w.raw.place(4096, 4096);
        w.raw.memory.write(from, &data).unwrap();
        let access = Access { lba: Lba(0), bytes: 512 * 8, at: from };
        w.medium.span.set(Span::us(20));
        w.raw.push(&mut ring, 1, Command::Write { access, fua: false });
        w.rt.sleep(Span::us(10)).await;
        assert_eq!(w.tagged.newest().version, 0, "no interval is empty");
        assert_eq!(noticed(&w, &ring).1, 0);
        assert_eq!(w.raw.report(&mut ring).await.2, Code::DONE);
        w.rt.sleep(Span::us(5)).await;
        let (tag, version) = noticed(&w, &ring);
        assert!(version > 1 && tag >> 26 & 1 == 0, "an even one: {tag:#x}, {version}");
        read_tagged(&w, &mut ring, 0, from).await;
    });
}
