//! Scatter gather lists through the controller: NVMe base 2.0, 4.1.2.

use proptest::prelude::*;
use runtime::Rng;
use wire::nvme::dsm::Attributes;
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::io;
use wire::nvme::ranges::{CopyRange, DsmRange};
use wire::nvme::sgl::{DESCRIPTOR_BYTES, DESCRIPTORS_MAX, Descriptor};
use wire::nvme::status::Status;
use wire::{BusAddr, Lba};
use zerocopy::IntoBytes;

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, Pair, pattern};

/// Part of a list: memory, or a bit bucket (`None`).
type Piece = (Option<BusAddr>, u32);

fn descriptor(piece: &Piece) -> Descriptor {
    match piece {
        (Some(at), bytes) => Descriptor::data(*at, *bytes),
        (None, bytes) => Descriptor::bit_bucket(*bytes),
    }
}

/// Stores a list in segments of at most `most` descriptors each; returns the first descriptor.
fn lay(w: &World, pieces: &[Descriptor], most: usize) -> DataPointer {
    let mut next: Option<Descriptor> = None;
    // Last segment first: each one points to the next.
    let data_in_each = if pieces.len() <= most { most } else { most - 1 };
    for part in pieces.chunks(data_in_each).rev() {
        let list: Vec<Descriptor> = part.iter().copied().chain(next).collect();
        let at = w.raw.place(list.len() as u64 * u64::from(DESCRIPTOR_BYTES), 8);
        w.raw.memory.write(at, list.as_bytes()).unwrap();
        let count = list.len() as u32;
        let is_last = next.is_none();
        let lead = if is_last { Descriptor::last_segment } else { Descriptor::segment };
        next = Some(lead(at, count));
    }
    DataPointer::Sgl(next.expect("at least one piece"))
}

/// Cuts `bytes` into pieces of any length at any byte, separate from one another.
fn scatter(w: &World, rng: &mut Rng, bytes: u32, pieces: u32, buckets: bool) -> Vec<Piece> {
    let mut cuts: Vec<u32> = (1..pieces).map(|_| rng.below(u64::from(bytes)) as u32).collect();
    cuts.extend([0, bytes]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|cut| {
            let length = cut[1] - cut[0];
            let gap = rng.below(9);
            let at = BusAddr(w.raw.place(u64::from(length) + 16, 1).0 + gap);
            let is_bucket = buckets && rng.below(3) == 0;
            ((!is_bucket).then_some(at), length)
        })
        .collect()
}

async fn read_through(
    w: &mut World,
    pair: &mut Pair,
    (lba, blocks): (u64, u32),
    data: DataPointer,
) -> Status {
    let sqe = io::read(w.raw.cid(), NS, Lba(lba), blocks, false, data);
    w.raw.run(pair, &sqe).await.status()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A list's memory is read and written, and nothing else; bit buckets take their share of a read, and are
    /// skipped in a write and a compare.
    #[test]
    fn sgl_transfers_of_random_lists(
        seed: u64, blocks in 1_u32..200, pieces in 1_u32..40, most in 2_usize..20, large: bool,
    ) {
        let block_bytes = if large { 4096 } else { 512 };
        let setup = Setup { block_bytes, blocks: 1 << 12, memory_bytes: 8 << 20, ..Setup::default() };
        setup.run(async |mut w: World| {
            let (mut pair, mut rng) = (w.raw.up().await, Rng::new(seed));
            let bytes = blocks * block_bytes;
            let data = pattern(seed, bytes as usize);
            let lba = rng.below(100);

            let mut from: Vec<Piece> = scatter(&w, &mut rng, bytes, pieces, false);
            let mut done = 0;
            for (at, length) in &from {
                let part = &data[done..done + *length as usize];
                w.raw.memory.write(at.unwrap(), part).unwrap();
                done += part.len();
            }
            // A bucket of any length, between any two.
            from.insert(rng.below(from.len() as u64 + 1) as usize, (None, rng.below(9000) as u32));
            let list: Vec<Descriptor> = from.iter().map(descriptor).collect();
            let pointer = lay(&w, &list, most);
            for make in [io::write, |cid, ns, lba, blocks, _, data| io::compare(cid, ns, lba, blocks, data)] {
                let sqe = make(w.raw.cid(), NS, Lba(lba), blocks, false, pointer);
                assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
            }
            assert!(w.medium.peek(lba, bytes as usize) == data, "written");

            let into = scatter(&w, &mut rng, bytes, pieces, true);
            let list: Vec<Descriptor> = into.iter().map(descriptor).collect();
            let pointer = lay(&w, &list, most);
            let mut expected = w.raw.everything();
            assert_eq!(read_through(&mut w, &mut pair, (lba, blocks), pointer).await, Status::SUCCESS);
            let (base, mut done) = (w.raw.memory.base().0, 0);
            for (at, length) in &into {
                if let Some(at) = at {
                    let (here, bytes) = ((at.0 - base) as usize, *length as usize);
                    expected[here..here + bytes].copy_from_slice(&data[done..][..bytes]);
                }
                done += *length as usize;
            }
            let mut found = w.raw.everything();
            for (at, bytes) in [(pair.cq.at, pair.cq.entries * 16), (pair.sq.at, pair.sq.entries * 64)] {
                let here = (at.0 - base) as usize;
                found[here..here + bytes as usize].fill(0);
                expected[here..here + bytes as usize].fill(0);
            }
            assert!(found == expected, "host memory after the read");
        });
    }
}

/// Invalid lists, and their statuses.
#[test]
fn invalid_sgls_fail_with_matching_status() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(1 << 20, 4096);
        let list = |descriptors: &[Descriptor]| {
            let place = w.raw.place(descriptors.len() as u64 * 16, 8);
            w.raw.memory.write(place, descriptors.as_bytes()).unwrap();
            (place, descriptors.len() as u32)
        };
        let whole = Descriptor::data(at, 4096);
        let half = Descriptor::data(at, 2048);
        let of = |descriptors: &[Descriptor]| {
            let (place, count) = list(descriptors);
            Descriptor::last_segment(place, count)
        };
        let before_more = |descriptors: &[Descriptor]| {
            let (place, count) = list(descriptors);
            Descriptor::segment(place, count)
        };
        let strange = |identifier| Descriptor { identifier, ..whole };
        let segment = Status::INVALID_SGL_SEGMENT_DESCRIPTOR;
        let count = Status::INVALID_SGL_DESCRIPTOR_COUNT;
        let kind = Status::SGL_DESCRIPTOR_TYPE_INVALID;
        let length = Status::DATA_SGL_LENGTH_INVALID;
        let (odd, _) = list(&[half, half, half]);
        let itself = w.raw.place(16, 16);
        let loops = Descriptor::segment(itself, 1);
        w.raw.memory.write(itself, loops.as_bytes()).unwrap();
        let cases = [
            (whole, Status::SUCCESS, "one descriptor"),
            (Descriptor::data(at, 8192), Status::SUCCESS, "longer than the data"),
            (of(&[half, Descriptor::data(at, 0), half]), Status::SUCCESS, "one of no length"),
            (of(&[half, half, strange(0xf0)]), Status::SUCCESS, "behind the data"),
            (Descriptor::data(at, 4095), length, "a byte too few"),
            (of(&[half]), length, "half"),
            (Descriptor::bit_bucket(4095), length, "a bucket too small"),
            (strange(0x01), kind, "an offset, outside a capsule"),
            (strange(0x40), kind, "a keyed block"),
            (strange(0x50), kind, "a transport block"),
            (strange(0xf0), kind, "the vendor's"),
            (of(&[half, strange(0x0a)]), kind, "within a segment"),
            (Descriptor::last_segment(odd, 0), segment, "no descriptor"),
            (Descriptor { length: 24.into(), ..of(&[half, half]) }, segment, "one and a half"),
            (Descriptor::last_segment(BusAddr(odd.0 + 4), 2), segment, "not at a qword"),
            (of(&[half, of(&[half])]), segment, "a segment behind the last"),
            (before_more(&[half, Descriptor::data(at, 1024)]), segment, "none behind"),
            (before_more(&[half, of(&[half]), half]), count, "a segment that others follow"),
            (loops, count, "a segment that leads to itself"),
            (Descriptor::data(BusAddr(u64::MAX - 100), 4096), Status::DATA_TRANSFER_ERROR, "past"),
            (Descriptor::data(BusAddr(0x7000), 4096), Status::DATA_TRANSFER_ERROR, "not there"),
            (Descriptor::last_segment(BusAddr(0x7000), 2), Status::DATA_TRANSFER_ERROR, "no list"),
        ];
        for (first, expected, what) in cases {
            let status = read_through(&mut w, &mut pair, (8, 8), DataPointer::Sgl(first)).await;
            assert_eq!(status.kind(), expected, "{what}");
            let lasting = !expected.is_ok() && expected != Status::DATA_TRANSFER_ERROR;
            assert_eq!(status.dnr(), lasting, "{what}");
        }
        let data = w.raw.data(at, 4096);
        assert_eq!(read_through(&mut w, &mut pair, (8, 8), data).await, Status::SUCCESS);
    });
}

/// The maximum number of descriptors, and one more.
#[test]
fn sgl_descriptor_count_limit() {
    let setup = Setup { memory_bytes: 8 << 20, ..Setup::default() };
    setup.run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(1 << 20, 4096);
        // One of them is the segment descriptor that points to the others.
        for (left, expected) in [(1, Status::SUCCESS), (0, Status::INVALID_SGL_DESCRIPTOR_COUNT)] {
            let pieces = DESCRIPTORS_MAX - left;
            let bytes = pieces - 1;
            let mut list = vec![Descriptor::data(at, 1); bytes as usize];
            list.push(Descriptor::data(at, 16 * 512 - bytes));
            let pointer = lay(&w, &list, usize::MAX);
            let status = read_through(&mut w, &mut pair, (0, 16), pointer).await;
            assert_eq!(status.kind(), expected, "{pieces} pieces");
        }
    });
}

/// Range lists may be described by SGLs as well.
#[test]
fn dsm_and_copy_take_range_lists_by_sgl() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        w.medium.poke(100, &pattern(3, 4096));
        let range = CopyRange::new(Lba(100), 8);
        let at = BusAddr(w.raw.place(64, 64).0 + 1);
        w.raw.memory.write(at, range.as_bytes()).unwrap();
        let half = |part: u64| Descriptor::data(BusAddr(at.0 + 16 * part), 16);
        let data = lay(&w, &[half(0), half(1)], 8);
        let sqe = io::copy(w.raw.cid(), NS, Lba(200), 1, data);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        assert_eq!(w.medium.peek(200, 4096), pattern(3, 4096));
        w.raw.memory.write(at, DsmRange::new(Lba(200), 8).as_bytes()).unwrap();
        let sqe = io::dataset_management(
            w.raw.cid(),
            NS,
            1,
            Attributes::DEALLOCATE,
            DataPointer::Sgl(half(0)),
        );
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        assert_eq!(w.medium.peek(200, 4096), [0; 4096]);
    });
}

/// A read into a bit bucket transfers no data, and ends when the medium has been read.
#[test]
fn read_into_bit_bucket_transfers_no_data() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let bucket = DataPointer::Sgl(Descriptor::bit_bucket(256 << 10));
        let mut sq = pair.sq;
        let sqe: Sqe = io::read(w.raw.cid(), NS, Lba(0), 512, false, bucket);
        w.raw.store(&mut sq, &sqe);
        let before = w.witness.transfers.get();
        let cqe = w.raw.run(&mut pair, &sqe).await;
        assert_eq!(cqe.status(), Status::SUCCESS);
        assert_eq!(w.medium.read.borrow().len(), 4, "four pieces");
        let transfers = w.witness.transfers.get() - before;
        assert!(transfers <= 2, "{transfers} transfers: an entry, a completion");
    });
}
