//! Reads, writes and flushes on a conforming controller.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::fake::{Answer, Traits};
use crate::common::{BLOCK, STAGES, Setup, World, pattern};
use host::nvme::{Completion, Controller, Doorbell, Options, Protect, QueueOptions, Sgl};
use host::{BlockDevice, Blocking, InitError, Kind};
use runtime::{Rng, Span, Traces};
use wire::Lba;
use wire::nvme::entry::DataPointer;
use wire::nvme::identify::vwc;
use wire::nvme::io::Command;
use wire::nvme::status::Status;

fn all_ways() -> impl Iterator<Item = QueueOptions> {
    let completions = [Completion::Polled, Completion::Hybrid, Completion::Interrupt { vector: 3 }];
    let doorbells = [Doorbell::Each, Doorbell::Batched];
    completions.into_iter().flat_map(move |completion| {
        doorbells.into_iter().map(move |doorbell| QueueOptions {
            depth: 8,
            completion,
            doorbell,
            ..QueueOptions::default()
        })
    })
}

#[test]
fn write_read_roundtrip_all_completion_and_doorbell_modes() {
    for options in all_ways() {
        let world = World::new(Traits::default());
        world.rt.block_on(async {
            let (controller, queue) = world.queue(Options::default(), options).await;
            let data: Vec<u8> = (0..8 * BLOCK).map(|i| (i / 7) as u8).collect();
            let from = queue.buffer(data.len()).unwrap();
            from.copy_in(0, &data);
            let (_, written) = queue.write(Lba(40), from, true).await;
            written.unwrap();
            queue.flush().await.unwrap();
            let (into, read) = queue.read(Lba(39), queue.buffer(10 * BLOCK).unwrap()).await;
            read.unwrap();
            let mut seen = vec![0; 10 * BLOCK];
            into.copy_out(0, &mut seen);
            assert_eq!(seen, [pattern(39), data, pattern(48)].concat(), "{options:?}");
            assert_eq!(queue.slots_free(), 8);
            controller.shutdown().await.unwrap();
        });
        assert_eq!(world.fake.flushes.get(), 1);
        assert!(world.fake.shutdown_seen.get());
    }
}

#[test]
fn read_with_unaligned_buffer_up_to_max_transfer() {
    // The longest PRP list is chained: 4 MiB from the middle of a page.
    let mut traits = Traits::default();
    traits.controller.mdts = 10;
    traits.namespace.nsze = 20_000.into();
    let world = World::new(traits);
    let options = Options { transfer_bytes_max: 4 << 20, ..Options::default() };
    world.rt.block_on(async {
        let small = QueueOptions { depth: 2, ..QueueOptions::default() };
        let (_controller, queue) = world.queue(options, small).await;
        assert_eq!(queue.geometry().transfer_bytes_max, 4 << 20);
        let whole = queue.buffer((4 << 20) + 4096).unwrap();
        let lengths = [1, 8, 9, 16, 17, 4096, 8191, 8192];
        for (blocks, offset) in lengths.into_iter().zip([0, 4, 4092, 8, 512, 0, 2048, 1028]) {
            let part = whole.part(offset, blocks * BLOCK);
            let (part, read) = queue.read(Lba(blocks as u64), part).await;
            read.unwrap();
            let mut seen = vec![0; blocks * BLOCK];
            part.copy_out(0, &mut seen);
            for (i, block) in seen.chunks(BLOCK).enumerate() {
                assert_eq!(block, pattern((blocks + i) as u64), "{blocks} at {offset}, block {i}");
            }
        }
    });
}

/// Protected blocks: the controller generates and checks the protection information, with LBAs as reference
/// tags.
#[test]
fn protected_commands_set_prinfo_and_reftag() {
    for (dps, prinfo) in [(0, 0), (1, 0b1101), (2, 0b1101), (3, 0b1100)] {
        let mut traits = Traits::default();
        traits.namespace.lbaf[0].ms = if dps == 0 { 0 } else { 8 }.into();
        traits.namespace.dps = dps;
        let seen = Rc::new(RefCell::new(Vec::new()));
        let told = seen.clone();
        traits.io = Box::new(move |_, request| {
            let sqe = request.to_sqe();
            told.borrow_mut().push((sqe.cdw12.get() >> 26 & 0xf, sqe.cdw14.get()));
            Answer::After(Span::us(1))
        });
        let world = World::new(traits);
        world.rt.block_on(async {
            let options = (Options::default(), QueueOptions::default());
            let (_controller, queue) = world.queue(options.0, options.1).await;
            let (buffer, read) = queue.read(Lba(77), queue.buffer(2 * BLOCK).unwrap()).await;
            read.unwrap();
            let (buffer, written) = queue.write(Lba(99), buffer, false).await;
            written.unwrap();
            let deadline = world.rt.now() + Span::ms(1);
            let (buffer, read) = queue.read_before(Lba(78), buffer, deadline).await;
            read.unwrap();
            queue.write_before(Lba(98), buffer, false, deadline).await.1.unwrap();
        });
        let tags = if dps == 0 { [0; 4] } else { [77, 99, 78, 98] };
        assert_eq!(*seen.borrow(), tags.map(|tag| (prinfo, tag)), "type {dps}");
    }
}

/// Metadata interleaved with each block is generated by the controller; the host's tags need a separate
/// buffer, which is in memory of the command's slot.
#[test]
fn host_protection_tags_use_separate_metadata_buffer() {
    for (dps, prinfo) in [(1, 0b0111), (3, 0b0110)] {
        let protected = |flbas| {
            let mut traits = Traits::default();
            (traits.namespace.lbaf[0].ms, traits.namespace.dps) = (8.into(), dps);
            traits.namespace.flbas = flbas;
            traits
        };
        let protect = Protect::Host { application: 0x1234 };
        let world = World::new(protected(0x10));
        world.rt.block_on(async {
            let port = || world.bus.host(0);
            let options = Options { protect, ..Options::default() };
            match Controller::start(port(), options).await.err() {
                Some(InitError::Unsupported { what: "FLBAS", found: 0x10, .. }) => {}
                other => panic!("{other:?}"),
            }
            let controller = Controller::start(port(), Options::default()).await.unwrap();
            let queue = controller.queue(QueueOptions::default()).await.unwrap();
            queue.read(Lba(7), queue.buffer(BLOCK).unwrap()).await.1.unwrap();
        });
        let mut traits = protected(0);
        let seen = Rc::new(RefCell::new(Vec::new()));
        let told = seen.clone();
        traits.io = Box::new(move |_, request| {
            let sqe = request.to_sqe();
            let tags = (sqe.cdw12.get() >> 26 & 0xf, sqe.cdw14.get(), sqe.cdw15.get());
            told.borrow_mut().push((tags, sqe.mptr.get()));
            Answer::After(Span::us(1))
        });
        let world = World::new(traits);
        world.rt.block_on(async {
            let options = Options { protect, ..Options::default() };
            let (_controller, queue) = world.queue(options, QueueOptions::default()).await;
            for lba in [Lba(77), Lba(78)] {
                let buffer = queue.buffer(2 * BLOCK).unwrap();
                queue.write(lba, buffer, false).await.1.unwrap();
            }
        });
        let seen = seen.borrow();
        let tags: Vec<_> = seen.iter().map(|(tags, _)| *tags).collect();
        assert_eq!(tags, [77, 78].map(|lba| (prinfo, lba, 0xffff_1234)), "type {dps}");
        assert!(seen.iter().all(|(_, at)| *at != 0 && at.is_multiple_of(4)), "{seen:?}");
    }
}

/// SGLs are used if requested and supported; SGLs with byte granularity allow unaligned buffers.
#[test]
fn sgl_used_per_option_and_controller_support() {
    let pages = [(0, 8, 0), (0, 16, 0), (0, 24, 1), (4, 8, 0), (4, 16, 1), (3, 8, 1), (3, 24, 1)];
    for sgl in [Sgl::Never, Sgl::Long, Sgl::Always] {
        for sgls in 0..3_u32 {
            let mut traits = Traits::default();
            traits.controller.sgls = sgls.into();
            let lists = Rc::new(Cell::new(0_u32));
            let seen = lists.clone();
            traits.io = Box::new(move |_, request| {
                let is_list = matches!(request.data, DataPointer::Sgl(_));
                seen.set(seen.get() + u32::from(is_list));
                Answer::After(Span::us(1))
            });
            let world = World::new(traits);
            world.rt.block_on(async {
                let options = Options { sgl, ..Options::default() };
                let (_controller, queue) = world.queue(options, QueueOptions::default()).await;
                let expected = if sgl == Sgl::Never || sgls != 1 { 4 } else { 1 };
                assert_eq!(queue.geometry().buffer_align, expected, "{sgl:?} of {sgls}");
                let whole = queue.buffer(32 * BLOCK).unwrap();
                for (offset, blocks, is_long) in pages {
                    lists.set(0);
                    let (part, read) = queue.read(Lba(7), whole.part(offset, blocks * BLOCK)).await;
                    if offset == 3 && expected == 4 {
                        assert_eq!(read.unwrap_err().kind, Kind::Refused);
                        continue;
                    }
                    read.unwrap();
                    let listed = match sgl {
                        _ if sgls == 0 => 0,
                        Sgl::Never => 0,
                        Sgl::Long => is_long,
                        Sgl::Always => 1,
                    };
                    assert_eq!(lists.get(), listed, "{sgl:?} of {sgls}: {blocks} at {offset}");
                    let mut found = vec![0; blocks * BLOCK];
                    part.copy_out(0, &mut found);
                    for (lba, block) in (7..).zip(found.chunks(BLOCK)) {
                        assert_eq!(block, pattern(lba), "{sgl:?} of {sgls}: {blocks} at {offset}");
                    }
                }
            });
        }
    }
}

#[test]
fn out_of_order_completions_reach_their_callers() {
    for seed in 0..20 {
        let mut rng = Rng::for_part(seed, "latency");
        let io = move |_, _: &_| Answer::After(Span::us(1 + rng.below(200)));
        let traits = Traits { io: Box::new(io), ..Traits::default() };
        let setup = Setup { shuffle: Some(seed), ..Setup::default() };
        let world = World::with(traits, setup);
        world.rt.block_on(async {
            let options = all_ways().nth(seed as usize % 4).unwrap();
            let (_controller, queue) = world.queue(Options::default(), options).await;
            let left = Rc::new(Cell::new(200_u32));
            let order = Rc::new(RefCell::new(Vec::new()));
            for lba in 0..200 {
                let (queue, left, order) = (queue.clone(), left.clone(), order.clone());
                world.rt.spawn(async move {
                    let buffer = queue.buffer(BLOCK).unwrap();
                    let (buffer, read) = queue.read(Lba(lba), buffer).await;
                    read.unwrap();
                    let mut seen = vec![0; BLOCK];
                    buffer.copy_out(0, &mut seen);
                    assert_eq!(seen, pattern(lba));
                    order.borrow_mut().push(lba);
                    left.set(left.get() - 1);
                });
            }
            while left.get() > 0 {
                world.rt.sleep(Span::us(100)).await;
            }
            assert_eq!(queue.slots_free(), 8);
            assert!(!order.borrow().is_sorted(), "seed {seed}: nothing overtook anything");
            assert_eq!(queue.counters().completions, 200);
            assert_eq!(queue.counters().protocol_errors, 0);
        });
    }
}

#[test]
fn error_in_batch_affects_only_its_command() {
    let io = |_, request: &wire::nvme::io::Request| match request.command {
        Command::Read(access) if access.lba == Lba(5) => {
            Answer::Fails(Span::us(10), Status::UNRECOVERED_READ_ERROR)
        }
        _ => Answer::After(Span::us(10)),
    };
    let world = World::new(Traits { io: Box::new(io), ..Traits::default() });
    world.rt.block_on(async {
        let options = QueueOptions { doorbell: Doorbell::Batched, ..QueueOptions::default() };
        let (_controller, queue) = world.queue(Options::default(), options).await;
        let results = Rc::new(RefCell::new(Vec::new()));
        for lba in 0..10 {
            let (queue, results) = (queue.clone(), results.clone());
            world.rt.spawn(async move {
                let (_, read) = queue.read(Lba(lba), queue.buffer(BLOCK).unwrap()).await;
                results.borrow_mut().push((lba, read));
            });
        }
        world.rt.sleep(Span::ms(1)).await;
        let results = results.borrow();
        assert_eq!(results.len(), 10);
        for (lba, read) in results.iter() {
            match read {
                Ok(()) => assert_ne!(*lba, 5),
                Err(error) => {
                    assert_eq!((*lba, error.kind), (5, Kind::MediaFailed));
                    assert_eq!(error.lba, Some(Lba(5)));
                    assert_eq!(error.status, Some(Status::UNRECOVERED_READ_ERROR));
                }
            }
        }
    });
}

#[test]
fn batched_doorbell_rings_once_per_pass() {
    let rings = |doorbell| {
        // Building a command must cost nothing, or one core could not build two in one pass.
        let setup = Setup { free_cpu: true, ..Setup::default() };
        let world = World::with(Traits::default(), setup);
        world.rt.block_on(async {
            let options = QueueOptions { doorbell, ..QueueOptions::default() };
            let (_controller, queue) = world.queue(Options::default(), options).await;
            for lba in 0..64 {
                let queue = queue.clone();
                world.rt.spawn(async move {
                    queue.read(Lba(lba), queue.buffer(BLOCK).unwrap()).await.1.unwrap();
                });
            }
            world.rt.sleep(Span::ms(1)).await;
            let counters = queue.counters();
            assert_eq!((counters.submissions, counters.completions), (64, 64));
            counters.sq_doorbells
        })
    };
    assert_eq!((rings(Doorbell::Each), rings(Doorbell::Batched)), (64, 1));
}

#[test]
fn invalid_transfer_rejected_without_submission() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (_controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        // MDTS 5: 32 pages.
        assert_eq!(queue.geometry().transfer_bytes_max, 128 << 10);
        assert_eq!((queue.geometry().blocks, queue.geometry().block_bytes), (4096, 512));
        assert!(queue.geometry().volatile_cache);
        let whole = queue.buffer(256 << 10).unwrap();
        let cases = [
            (0, 0, 100, Kind::Refused),
            (0, 0, 0, Kind::Refused),
            (0, 0, (128 << 10) + 512, Kind::Refused),
            (0, 2, 512, Kind::Refused),
            (4096, 0, 512, Kind::OutOfRange),
            (4095, 0, 1024, Kind::OutOfRange),
            (u64::MAX, 0, 512, Kind::OutOfRange),
        ];
        let before = queue.counters();
        for (lba, offset, bytes, kind) in cases {
            let part = whole.part(offset, bytes);
            let (part, read) = queue.read(Lba(lba), part).await;
            let error = read.unwrap_err();
            assert_eq!((error.kind, error.lba), (kind, Some(Lba(lba))), "{bytes} at {offset}");
            let (_, written) = queue.write(Lba(lba), part, false).await;
            assert_eq!(written.unwrap_err().kind, kind);
        }
        assert_eq!(queue.counters(), before, "the device heard of it");
        queue.read(Lba(4095), whole.part(0, 512)).await.1.unwrap();
    });
}

#[test]
fn blocking_splits_long_transfers() {
    let world = World::new(Traits::default());
    let queue = world
        .rt
        .block_on(async { world.queue(Options::default(), QueueOptions::default()).await.1 });
    let device = Blocking::new(&world.rt, queue).unwrap();
    let data: Vec<u8> = (0..700 * BLOCK).map(|i| (i / 509) as u8).collect();
    device.write(Lba(10), &data).unwrap();
    device.flush().unwrap();
    let mut seen = vec![0; 702 * BLOCK];
    device.read(Lba(9), &mut seen).unwrap();
    assert_eq!(seen, [pattern(9), data, pattern(710)].concat());
    // 700 blocks in commands of at most 256, 702 likewise, and the flush.
    assert_eq!(world.fake.commands.get(), 3 + 3 + 1);
    assert_eq!(device.read(Lba(0), &mut [0; 100]).unwrap_err().kind, Kind::Refused);
    let mut beyond = vec![0; 300 * BLOCK];
    assert_eq!(device.read(Lba(4000), &mut beyond).unwrap_err().kind, Kind::OutOfRange);
    assert_eq!(world.fake.commands.get(), 7, "a whole that makes no sense is not begun");
}

#[test]
fn request_trace_stages_sum_to_latency() {
    for completion in [Completion::Polled, Completion::Hybrid, Completion::Interrupt { vector: 1 }]
    {
        let traces = Traces::new(2, 8, 10, 0, STAGES);
        let names = traces.names();
        let setup = Setup { traces: Some(traces), ..Setup::default() };
        let world = World::with(Traits::default(), setup);
        world.rt.block_on(async {
            let options = QueueOptions { depth: 1, completion, ..QueueOptions::default() };
            let (_controller, queue) = world.queue(Options::default(), options).await;
            let begin = world.rt.now();
            for lba in 0..2 {
                let (queue, rt) = (queue.clone(), world.rt.clone());
                rt.clone().spawn(async move {
                    let buffer = queue.buffer(4096).unwrap();
                    queue.read(Lba(lba), buffer).await.1.unwrap();
                    let trace = rt.finish_trace().expect("every command is followed");
                    assert_eq!(trace.total, rt.now().since(begin));
                    assert_eq!(trace.stages.iter().sum::<u64>(), trace.total.0);
                    let stage = |name: &str| {
                        Span(trace.stages[names.iter().position(|n| *n == name).unwrap()])
                    };
                    assert_eq!(stage("submit"), Span::ns(90));
                    assert_eq!(stage("complete"), Span::ns(60));
                    let switch = match completion {
                        Completion::Polled | Completion::Hybrid => Span::ZERO,
                        Completion::Interrupt { .. } => Span::ns(1200),
                    };
                    assert_eq!(stage("context switch"), switch);
                    // The second read waits for the only slot; the device takes 10 us for each.
                    assert_eq!(stage("slot wait") > Span::us(10), lba == 1, "{trace:?}");
                    assert!(stage("completion") > Span::us(10));
                });
            }
            world.rt.sleep(Span::ms(1)).await;
            assert_eq!(queue.counters().completions, 2);
        });
    }
}

#[test]
fn geometry_reports_missing_volatile_cache() {
    let mut traits = Traits::default();
    traits.controller.vwc &= !vwc::PRESENT;
    let world = World::new(traits);
    world.rt.block_on(async {
        let (_controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        assert!(!queue.geometry().volatile_cache);
    });
}

/// Number of timed events of one 4 KiB read, so that an increase is noticed.
#[test]
fn one_4k_read_takes_ten_timed_events() {
    let world = World::new(Traits::default());
    world.rt.block_on(async {
        let (_controller, queue) = world.queue(Options::default(), QueueOptions::default()).await;
        let buffer = queue.buffer(4096).unwrap();
        let (buffer, _) = queue.read(Lba(0), buffer).await;
        let before = world.rt.timed_events();
        queue.read(Lba(8), buffer).await.1.unwrap();
        // Submit; the doorbell lands; the device reads the entry (2), works (1), writes (1); data and
        // completion land (2); the turn of the polling loop; complete. The head doorbell is written only now
        // and then.
        assert_eq!(world.rt.timed_events() - before, 10);
    });
}
