//! Tags of 48 bits that the device picks at random and compares with its contents, with a host that
//! takes each tag from the notice.

use std::cell::Cell;
use std::rc::Rc;

use device::dcx::TagSource;
use runtime::{Rng, Span};
use wire::dcx::command::{Access, Command};
use wire::dcx::notice;
use wire::dcx::report::Code;
use wire::dcx::tag::{Places, Tag};
use wire::{BusAddr, Lba};

use super::tags::both;
use crate::raw::dcx::Ring;
use crate::raw::dcx::world::{Setup, World};

const BITS: u32 = 48;
const SEED: u64 = 5;
const PACKET: u32 = 128;

fn setup(blocks: u64, values: u32) -> Setup {
    let source = TagSource::Compared { values, seed: SEED };
    let setup = Setup { grain: Some(PACKET), tag_bits: BITS, source, ..Setup::disordered() };
    Setup { blocks, contents: vec![0; 512], ..setup }
}

/// The tag in force as the end of a granule, and its version: the version first.
fn noticed(w: &World, ring: &Ring) -> (u64, u32) {
    let at = |offset: usize| BusAddr(ring.notice.0 + offset as u64);
    let version = w.raw.memory.load_u32(at(notice::TAG_VERSION)).unwrap();
    (w.raw.memory.load_u64(at(notice::TAG)).unwrap(), version)
}

/// A block whose granules all end with these eight bytes.
fn block_of(end: u64) -> Vec<u8> {
    end.to_le_bytes().repeat(64)
}

async fn write(w: &World, ring: &mut Ring, lba: u64, end: u64, from: BusAddr) -> u32 {
    w.raw.memory.write(from, &block_of(end)).unwrap();
    let access = Access { lba: Lba(lba), bytes: 512, at: from };
    w.raw.push(ring, 1, Command::Write { access, fua: false })
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Arrived,
    Stale,
    /// Its tags stand after all that time.
    Met,
}

/// One read with the device's tag. Without a tag there is no read, and it is stale.
async fn read(w: &World, ring: &mut Ring, lba: u64, at: BusAddr) -> End {
    let (end, version) = noticed(w, ring);
    if version == 0 {
        return End::Stale;
    }
    let tag = Tag::new(end >> (64 - BITS), BITS);
    let places = Places::new(at, 512, Some(PACKET));
    let place = |place: u32| BusAddr(at.0 + u64::from(place) - 4);
    for each in places {
        w.raw.memory.store_u64(place(each), tag.doubleword()).unwrap();
    }
    let access = Access { lba: Lba(lba), bytes: 512, at };
    w.raw.push(ring, 0, Command::Read { access, tag_version: version, wide: true });
    let begin = w.rt.now();
    while w.rt.now().since(begin) < Span::ms(1) {
        let stands = |each| tag.is_in_end(w.raw.memory.load_u64(place(each)).unwrap());
        if !places.into_iter().any(stands) {
            return End::Arrived;
        }
        if let Some(report) = w.raw.try_report(ring) {
            assert_eq!(report.code(), Code::STALE_TAG);
            return End::Stale;
        }
        w.rt.sleep(Span::ns(70)).await;
    }
    End::Met
}

/// A second queue keeps writing the newest tag, older ones and others with the same last word into the
/// blocks that the first queue reads. With few values in reserve the device compares new ones again and
/// again.
#[test]
fn no_read_meets_compared_tag_written_concurrently() {
    for shuffle in [None, Some(1), Some(2)] {
        Setup { shuffle, ..setup(8, 4) }.run(async |w: World| {
            let mut reads = w.raw.up(0, 64, Some(PACKET)).await;
            let mut writes = w.raw.up(1, 64, Some(PACKET)).await;
            let done = Rc::new(Cell::new(false));
            let (at, from) = (w.raw.place(512, 4096), w.raw.place(512, 4096));
            let writer = async {
                let mut rng = Rng::for_part(shuffle.unwrap_or(0), "writer");
                let mut known = vec![0];
                for _ in 0..1500 {
                    let (tag, _) = noticed(&w, &writes);
                    known.push(tag);
                    let end = match rng.below(4) {
                        0 | 1 => tag | 0x55,
                        2 => known[rng.below(known.len() as u64) as usize],
                        // The last 32 bits of the tag are the same.
                        _ => tag ^ 1 << (64 - BITS),
                    };
                    let number = write(&w, &mut writes, rng.below(8), end, from).await;
                    assert_eq!(w.raw.report(&mut writes).await, (number, 1, Code::DONE));
                }
                done.set(true);
            };
            let reader = async {
                let mut rng = Rng::for_part(shuffle.unwrap_or(0), "reader");
                let (mut arrived, mut stale) = (0, 0);
                while !done.get() {
                    match read(&w, &mut reads, rng.below(8), at).await {
                        End::Arrived => arrived += 1,
                        End::Stale => stale += 1,
                        End::Met => panic!("a read has met its tag after {arrived}"),
                    }
                    w.rt.sleep(Span::ns(rng.below(2000))).await;
                }
                (arrived, stale)
            };
            let (arrived, stale) = both(reader, writer).await;
            assert!(arrived > 500 && stale > 50, "{arrived} {stale}");
            assert!(w.tagged.scans() > 20, "{} scans", w.tagged.scans());
        });
    }
}

/// The invalidation by writes is the mechanism: of a write beneath it the device knows nothing, and the
/// read meets its tag.
#[test]
fn read_meets_tag_that_no_write_has_invalidated() {
    setup(8, 4).run(async |w: World| {
        let mut ring = w.raw.up(0, 64, Some(PACKET)).await;
        let at = w.raw.place(512, 4096);
        assert_eq!(read(&w, &mut ring, 3, at).await, End::Arrived);
        let (tag, _) = noticed(&w, &ring);
        w.medium.poke(3, &block_of(tag));
        assert_eq!(read(&w, &mut ring, 3, at).await, End::Met);
    });
}

/// A write brings the only value: until the medium has been read, 4,096 blocks in two parts, there is no tag.
#[test]
fn next_tag_waits_for_scan_without_values_in_reserve() {
    Setup { held_up: None, ..setup(4096, 1) }.run(async |w: World| {
        let mut ring = w.raw.up(0, 64, Some(PACKET)).await;
        let (tag, version) = noticed(&w, &ring);
        assert_eq!(version, 1);
        w.medium.span.set(Span::us(20));
        let from = w.raw.place(512, 4096);
        write(&w, &mut ring, 7, tag, from).await;
        w.rt.sleep(Span::us(10)).await;
        assert_eq!(noticed(&w, &ring).1, 0, "no value is known to be absent");
        w.rt.sleep(Span::us(25)).await;
        assert_eq!((w.tagged.newest().version, w.tagged.scans()), (0, 0), "one part is read");
        w.rt.sleep(Span::us(40)).await;
        assert_eq!(w.tagged.scans(), 1);
        let (next, version) = noticed(&w, &ring);
        assert!(version > 1 && next != tag);
        assert_eq!(w.raw.report(&mut ring).await.2, Code::DONE);
        let at = w.raw.place(512, 4096);
        assert_eq!(read(&w, &mut ring, 7, at).await, End::Arrived);
    });
}

/// The next value that the device will pick is in a write that began before it was picked, and lands
/// while the medium is read: the scan waits for that write.
#[test]
fn scan_sees_write_in_flight_since_before_it_began() {
    Setup { held_up: None, ..setup(4096, 1) }.run(async |w: World| {
        let mut ring = w.raw.up(0, 64, Some(PACKET)).await;
        let mut rng = Rng::for_part(SEED, "device tags");
        let [first, second] = [(); 2].map(|()| rng.next_u64() << (64 - BITS));
        assert_eq!(noticed(&w, &ring).0, first);
        w.medium.span.set(Span::us(50));
        let (one, other) = (w.raw.place(512, 4096), w.raw.place(512, 4096));
        // In the second part, so that the scan reaches it while it is in flight, if it does not wait.
        write(&w, &mut ring, 4000, second, one).await;
        w.rt.sleep(Span::us(5)).await;
        w.medium.span.set(Span::us(10));
        write(&w, &mut ring, 4090, first, other).await;
        w.rt.sleep(Span::us(200)).await;
        let (tag, version) = noticed(&w, &ring);
        assert!(version > 1 && w.tagged.scans() > 1, "the second value is struck");
        assert!(tag != first && tag != second, "{tag:#x}");
        for _ in 0..2 {
            assert_eq!(w.raw.report(&mut ring).await.2, Code::DONE);
        }
        let at = w.raw.place(512, 4096);
        assert_eq!(read(&w, &mut ring, 4000, at).await, End::Arrived);
    });
}
