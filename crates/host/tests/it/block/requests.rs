//! Requests: padding, splitting, order, and errors that reach the right request.

use host::nvme::Completion;
use host::{BlockDevice, Kind};
use runtime::Span;
use wire::Lba;
use wire::block::descriptor::Status;
use wire::block::registers::Limits;

use super::fake::{Play, Traits};
use super::world::{BOUND, COMPLETIONS, World, all, options};

/// Every length and offset: padded below a page, split above one, without changes to adjacent blocks.
#[test]
fn read_write_every_length_and_offset() {
    for completion in COMPLETIONS {
        let world = World::new(Traits::default());
        world.rt.block_on(async {
            let (_driver, disk) =
                world.start(host::block::Options { completion, ..options() }).await;
            for (lba, bytes) in [
                (0, 512),
                (7, 512),
                (1, 1024),
                (3, 4096),
                (8, 4096),
                (5, 4608),
                (9, 8192),
                (2, 65536),
            ] {
                world.read(&disk, lba, bytes).await;
                let from = disk.buffer(bytes).expect("memory");
                let data: Vec<u8> = (0..bytes).map(|i| (i * 7 + lba as usize) as u8).collect();
                from.copy_in(0, &data);
                let before = world.fake.data(0, 256);
                let (_, done) = world.within(BOUND, disk.write(Lba(lba), from, lba == 8)).await;
                done.expect("a write");
                let mut after = before;
                after[lba as usize * 512..][..bytes].copy_from_slice(&data);
                assert!(world.fake.data(0, 256) == after, "{bytes} bytes at {lba}");
                world.read(&disk, lba, bytes).await;
            }
            disk.flush().await.expect("a flush");
            assert_eq!(world.fake.flushes.get(), 1);
            assert_eq!(disk.requests(), 0);
        });
    }
}

/// 1 MiB through a ring of sixteen, whole pages directly in the caller's buffer.
#[test]
fn request_longer_than_ring() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (driver, disk) = world.start(options()).await;
        world.read(&disk, 1, 1 << 20).await;
        assert_eq!(driver.counters().descriptors, 256);
        let pages = world.fake.pages.borrow();
        assert!(pages.windows(2).all(|pair| pair[1].0.0 == pair[0].0.0 + 4096), "in order");
    });
}

/// Padding uses bounce pages: adjacent bytes in the caller's buffer are unchanged.
#[test]
fn padded_read_keeps_adjacent_bytes() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (_driver, disk) = world.start(options()).await;
        let whole = disk.buffer(4096).expect("memory");
        whole.copy_in(0, &[0xee; 4096]);
        let (part, done) = disk.read(Lba(3), whole.part(512, 512)).await;
        done.expect("a read");
        world.compare(&part, 3);
        let mut seen = [0; 4096];
        whole.copy_out(0, &mut seen);
        assert!(seen[..512].iter().chain(&seen[1024..]).all(|byte| *byte == 0xee));
    });
}

/// A failed descriptor fails its own request and no other, at any position of a block.
#[test]
fn descriptor_error_fails_only_its_request() {
    for completion in COMPLETIONS {
        for bad in 0..4 {
            let play = move |block, _, _: &[_]| {
                // The first block has one descriptor; the second has four, of four requests.
                let mut statuses = vec![Status::DONE; 4];
                statuses[bad] = Status::UNREADABLE;
                Play::Whole(Span::us(5), if block == 1 { statuses } else { Vec::new() })
            };
            let world = World::new(Traits { play: Box::new(play), ..Traits::default() });
            world.rt.block_on(async {
                let options = host::block::Options { completion, ..options() };
                let (_driver, disk) = world.start(options).await;
                let reads = (0..5).map(|n| {
                    let disk = &disk;
                    async move { disk.read(Lba(10 + n), disk.buffer(512).unwrap()).await.1 }
                });
                let (ends, order) = world.within(BOUND, all(reads.collect())).await;
                assert_eq!(order, [0, 1, 2, 3, 4], "in their original order");
                for (n, end) in ends.into_iter().enumerate() {
                    let said = end.map_err(|error| (error.kind, error.lba, error.answer));
                    let fails =
                        (Kind::MediaFailed, Some(Lba(10 + n as u64)), Some(Status::UNREADABLE));
                    assert_eq!(
                        said,
                        if n == bad + 1 { Err(fails) } else { Ok(()) },
                        "{n} of {bad}"
                    );
                }
            });
        }
    }
}

/// One part of a long request fails: the request fails once, its neighbours do not.
#[test]
fn error_of_one_part_fails_whole_request() {
    let play = |_, _, descriptors: &[wire::block::descriptor::Descriptor]| {
        let status = |d: &wire::block::descriptor::Descriptor| {
            let bad = d.parse().is_ok_and(|command| command.offset == 64 * 512 + 2 * 4096);
            if bad { Status::FULL } else { Status::DONE }
        };
        Play::Whole(Span::us(1), descriptors.iter().map(status).collect())
    };
    let world = World::new(Traits { play: Box::new(play), ..Traits::default() });
    world.rt.block_on(async {
        let (_driver, disk) = world.start(options()).await;
        let write =
            async |lba, bytes| disk.write(Lba(lba), disk.buffer(bytes).unwrap(), false).await.1;
        let writes = [(0, 32768), (64, 32768), (128, 32768)];
        let (ends, order) =
            all(writes.into_iter().map(|(lba, bytes)| write(lba, bytes)).collect()).await;
        assert_eq!(order, [0, 1, 2]);
        assert!(ends[0].is_ok() && ends[2].is_ok());
        let error = ends[1].expect_err("no space for its third page");
        assert_eq!(
            error.to_string(),
            "LBA 64: no space left: the descriptor says no space is left behind the medium"
        );
    });
}

/// Descriptors returned in any order are answered in submission order.
#[test]
fn answers_keep_submission_order() {
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]];
    for completion in COMPLETIONS {
        for order in orders {
            let play = move |_, _, descriptors: &[_]| {
                let all = order.into_iter().filter(|n| *n < descriptors.len()).collect();
                Play::Each(all, Span::us(1))
            };
            let limits = Limits::new().with_entries_log2(3).with_block_max(4).with_group(1);
            let world = World::new(Traits { play: Box::new(play), limits, ..Traits::default() });
            world.rt.block_on(async {
                let options = host::block::Options { completion, ..options() };
                let (driver, disk) = world.start(options).await;
                let reads = (0..24).map(|n| {
                    let (world, disk) = (&world, &disk);
                    async move {
                        let into = disk.buffer(1024).unwrap();
                        let (buffer, done) = disk.read(Lba(3 * n), into).await;
                        done.expect("a read");
                        world.compare(&buffer, 3 * n);
                    }
                });
                let (_, ended) = world.within(BOUND, all(reads.collect())).await;
                assert_eq!(ended, (0..24).collect::<Vec<_>>(), "{order:?}");
                assert_eq!(driver.counters().returned, 24);
            });
        }
    }
}

#[test]
fn invalid_block_request_rejected_before_submission() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (driver, disk) = world.start(options()).await;
        let last = disk.geometry().blocks - 1;
        let past = disk.read(Lba(last), disk.buffer(1024).unwrap()).await.1;
        assert_eq!(past.map_err(|error| error.kind), Err(Kind::OutOfRange));
        let odd = disk.write(Lba(0), disk.buffer(700).unwrap(), false).await.1;
        assert_eq!(odd.map_err(|error| error.kind), Err(Kind::Refused));
        world.read(&disk, last, 512).await;
        assert_eq!(driver.counters().descriptors, 1);
        driver.stop().await.expect("it stops");
        let closed = disk.read(Lba(0), disk.buffer(512).unwrap()).await.1;
        assert_eq!(closed.map_err(|error| error.kind), Err(Kind::Closed));
    });
    assert_eq!(COMPLETIONS[0], Completion::Polled);
}
