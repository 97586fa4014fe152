//! Descriptor blocks, live: every read is verified against concurrent writes to the same blocks, at depths
//! from 1 to 64, in every return mode, under resets, in two processes, and with media errors.
//!
//! `DOORBELL_BLOCK_IOS=10000000 cargo test --release -p doorbell --test it at_length` is the long run: the
//! given number of requests of 512 B to 8 KiB and 1/200 of it up to 1 MiB, from 8 threads. It needs two
//! idle cores; `in_one_thread` is the same with both ends on one core, and completes on any machine.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{
    Folder, across_two_processes, assert_verified, clean, only, operations, plan, serve, work,
};
use bus::live::Shared;
use device::block::Front;
use host::{BlockDevice, Kind};
use media::contents::Contents;
use media::{Banked, Extent, Layer, Media, MediaError, Pace};
use plan::Plan;
use runtime::{Log, Rt, STD_CLOCK, Span, Time};
use wire::Lba;
use world::engine::Progress;
use world::interfaces::{BLOCK, Row, block_options};
use world::work::Work;
use world::{self, Options, RunError, RunResult};

const SMALL: [(&str, &str); 3] =
    [("medium.capacity", "64 MiB"), ("host.memory", "64 MiB"), ("host.retries", "100")];

type World = fn(&'static Row, &Plan, &Work, Options) -> Result<RunResult, RunError>;

const ONE_THREAD: World = world::live_in_one_thread;
const THREADS: World = world::live_in_threads;

/// Reads and writes a region so small that requests overlap; every block read is verified. Returns the
/// number of resets during the run.
fn verified(world: World, more: &[(&str, &str)], depth: u32, ios: u32, resets: u32) -> u32 {
    let _turn = testing::turn();
    let job = format!(
        "[v]\nrw=randrw\nrwmixread=70\nbssplit=512/50:4k/30:6k/10:64k/10\niodepth={depth}\nsize=1m\n\
         io_size=1g\nnorandommap=1\nnumber_ios={ios}\nfsync=40\nverify=crc32c\nverify_fatal=1\n"
    );
    let sets: Vec<_> = SMALL.iter().chain(more).copied().collect();
    let options = Options { resets, ..Options::default() };
    let run_result = world(BLOCK, &plan("live", &sets), &work(&job), options);
    let run_result = clean(run_result.unwrap_or_else(|error| panic!("{sets:?}, {depth}: {error}")));
    let verified = only(&run_result).blocks_verified;
    assert!(verified > u64::from(ios) / 4, "{sets:?}, {depth}: only {verified} blocks verified");
    run_result.resets
}

const EACH: (&str, &str) = ("block.returned", "each");
const SUBSETS: [(&str, &str); 2] = [("block.returned", "subsets"), ("block.subset", "7")];
const AHEAD: (&str, &str) = ("block.ahead", "16");
const INTERRUPT: (&str, &str) = ("host.completion", "interrupt");
const GATHERING: (&str, &str) = ("block.sizing", "gathering");

#[test]
fn verified_at_every_depth_and_return_mode() {
    // With two threads, each would mostly wait for the other at these depths, and for its core.
    for (world, depth) in [(ONE_THREAD, 1), (ONE_THREAD, 8), (THREADS, 64)] {
        verified(world, &[], depth, 300, 0);
        verified(world, &[EACH, AHEAD, INTERRUPT], depth, 300, 0);
        verified(world, &[SUBSETS[0], SUBSETS[1], AHEAD, GATHERING], depth, 300, 0);
    }
}

#[test]
fn verified_under_resets() {
    // At most 64 + 128 operations, and those in flight, complete between two resets.
    for more in [&[AHEAD][..], &[EACH, INTERRUPT]] {
        assert_eq!(verified(THREADS, more, 32, 1_200, 5), 5);
    }
}

#[test]
fn verified_at_length() {
    at_length(THREADS);
}

#[test]
fn verified_in_one_thread() {
    at_length(ONE_THREAD);
}

fn at_length(world: World) {
    let _turn = testing::turn();
    let all: u64 =
        std::env::var("DOORBELL_BLOCK_IOS").map_or(400, |n| n.parse().expect("a number"));
    // Each thread has a separate region for its short requests, and one for its long ones.
    let job = format!(
        "[global]\nrw=randrw\nnumjobs=8\niodepth=1\nio_size=100t\nnorandommap=1\nverify=crc32c\n\
         verify_fatal=1\n[short]\nbsrange=512-8k\nsize=2m\noffset_increment=2m\nnumber_ios={}\n\
         [long]\nstonewall\nbsrange=512-1m\nsize=4m\noffset=16m\noffset_increment=4m\nnumber_ios={}\n",
        all / 8,
        (all / 1600).max(1)
    );
    let sets: Vec<_> = SMALL.iter().chain(&[("run.breakdown_sample", "64")]).copied().collect();
    let run_result = world(BLOCK, &plan("live", &sets), &work(&job), Options::default());
    let run_result = clean(run_result.unwrap_or_else(|error| panic!("{error}")));
    let done: u64 = run_result.jobs.iter().map(|(_, output)| operations(output)).sum();
    let verified: u64 = run_result.jobs.iter().map(|(_, output)| output.blocks_verified).sum();
    println!("{done} operations, {verified} blocks verified");
    assert!(done >= all / 8 * 8 && verified > all / 4, "{done} operations, {verified} blocks");
}

/// A medium whose bad blocks fail reads and writes.
struct Faulty(Banked);

/// Every sixteenth block of 4 KiB.
fn is_bad(block: u64) -> bool {
    block / 8 % 16 == 5
}

impl Faulty {
    fn validate(at: Extent, error: MediaError) -> Result<(), MediaError> {
        let mut blocks = at.block..at.block + u64::from(at.blocks);
        if blocks.any(is_bad) { Err(error) } else { Ok(()) }
    }
}

impl Layer for Faulty {
    type Beneath = Banked;

    fn beneath(&self) -> &Banked {
        &self.0
    }

    fn is_immediate(&self) -> bool {
        false
    }

    async fn read(&self, at: Extent) -> Result<Time, MediaError> {
        Faulty::validate(at, MediaError::Unreadable)?;
        self.0.read(at).await
    }

    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        Faulty::validate(at, MediaError::WriteFault)?;
        self.0.write(at, data).await
    }
}

/// Errors at chosen descriptors, live: a request fails if and only if one of its blocks is bad.
#[test]
fn media_errors_fail_only_affected_requests() {
    let _turn = testing::turn();
    for more in [&[][..], &[EACH, AHEAD], &[SUBSETS[0], SUBSETS[1], INTERRUPT, GATHERING]] {
        let sets: Vec<_> = SMALL.iter().chain(more).copied().collect();
        let plan = plan("live", &sets);
        let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
        let shared =
            Shared::between_threads(bytes, base, (BLOCK.register_bytes)(&plan)).expect("memory");
        let (started, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let rt = Rt::live(&STD_CLOCK, None, Log::Off);
                let contents = Contents::new(plan.medium.contents.clone()).expect("contents");
                let medium = Faulty(Banked::new(&rt, contents, Pace::Immediate));
                Front::start(shared.device(&rt), Rc::new(medium), block_options(&plan));
                started.store(true, Ordering::Release);
                rt.block_on(async {
                    while !stop.load(Ordering::Acquire) {
                        rt.sleep(Span::ms(1)).await;
                    }
                });
                rt.drop_tasks();
            });
            while !started.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let rt = Rt::live(&STD_CLOCK, None, Log::Off);
            let (port, failed) = (shared.host(&rt), Rc::new(Cell::new(0)));
            rt.block_on(async {
                let driver = BLOCK.connect(vec![port], &plan).await.expect("a device");
                let done = Rc::new(Cell::new(0));
                for thread in 0..8_u64 {
                    let (disk, done, failed) = (driver.disk(0), done.clone(), failed.clone());
                    rt.spawn(async move {
                        for n in 0..60 {
                            let (lba, blocks) = ((thread * 4096 + n * 37) % 60_000, 1 + n % 40);
                            let buffer = disk.buffer(blocks as usize * 512).expect("memory");
                            let end = match n % 2 {
                                0 => disk.read(Lba(lba), buffer).await.1,
                                _ => disk.write(Lba(lba), buffer, false).await.1,
                            };
                            let bad = (lba..lba + blocks).any(is_bad);
                            let output = end.map_err(|error| (error.kind, error.lba));
                            let fails = (Kind::MediaFailed, Some(Lba(lba)));
                            assert_eq!(
                                output,
                                if bad { Err(fails) } else { Ok(()) },
                                "{lba}, {blocks}"
                            );
                            failed.set(failed.get() + u32::from(bad));
                        }
                        done.set(done.get() + 1);
                    });
                }
                while done.get() < 8 {
                    rt.yield_now().await;
                }
                driver.stop().await.expect("it stops");
            });
            rt.drop_tasks();
            stop.store(true, Ordering::Release);
            assert!(failed.get() > 30, "only {} failures", failed.get());
        });
    }
}

/// The task that prefetches the next block's descriptors holds an engine that the block in flight needs;
/// it must release it. Measured in passes over the tasks of one thread that has both ends.
#[test]
fn descriptor_prefetch_does_not_delay_block_return() {
    for more in [&[AHEAD][..], &[EACH, AHEAD], &[SUBSETS[0], SUBSETS[1], AHEAD, INTERRUPT]] {
        let sets: Vec<_> = SMALL.iter().chain(more).copied().collect();
        let plan = plan("live", &sets);
        let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
        let shared =
            Shared::between_threads(bytes, base, (BLOCK.register_bytes)(&plan)).expect("memory");
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let contents = Contents::new(plan.medium.contents.clone()).expect("contents");
        let medium = Banked::new(&rt, contents, Pace::Immediate);
        Front::start(shared.device(&rt), Rc::new(medium), block_options(&plan));
        let passes = Rc::new(Cell::new(0));
        rt.block_on(async {
            let driver = BLOCK.connect(vec![shared.host(&rt)], &plan).await.expect("a device");
            let (counted, of) = (passes.clone(), rt.clone());
            rt.spawn(async move {
                loop {
                    counted.set(counted.get() + 1);
                    of.yield_now().await;
                }
            });
            let disk = driver.disk(0);
            let mut buffer = disk.buffer(64 << 10).expect("memory");
            for n in 0..20 {
                let (before, end);
                before = passes.get();
                (buffer, end) = disk.write(Lba(n * 128), buffer, false).await;
                end.expect("it is written");
                let took = passes.get() - before;
                assert!(took < 1_000, "{more:?}: a write took {took} passes");
            }
            driver.stop().await.expect("it stops");
        });
        rt.drop_tasks();
    }
}

/// More operations than any machine completes before its device is killed.
const ENDLESS: u32 = 1_000_000_000;

/// The device's process is killed with blocks in flight: the host reports it and exits.
#[test]
fn host_reports_killed_device() {
    let _turn = testing::turn();
    let folder = Folder::new("block");
    let sets: Vec<_> = SMALL.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let words: Vec<_> = ["--interface", "block"].into_iter().chain(sets).collect();
    let mut server = serve(&folder, "--shm", &words, None);
    let (progress, socket) = (Arc::<Progress>::default(), folder.path("socket"));
    let told = progress.clone();
    let host = std::thread::spawn(move || {
        let job = format!(
            "[long]\nrw=randrw\nbs=4k\niodepth=32\nsize=1m\nio_size=100t\nnorandommap=1\n\
             number_ios={ENDLESS}\n"
        );
        let options = Options { progress: told, ..Options::default() };
        let plan = plan("live", &SMALL);
        let run_result = world::live_over_socket(BLOCK, &plan, &work(&job), options, &socket);
        run_result
            .map(|run_result| (only(&run_result).errors(), only(&run_result).messages.join("\n")))
    });
    while progress.operations() < 200 && !host.is_finished() {
        std::thread::yield_now();
    }
    server.kill();
    let (errors, output) = host.join().expect("it ends").expect("a device that was there");
    assert!(errors >= 32 && output.contains("gone"), "{errors} errors: {output}");
}

#[test]
fn verified_across_two_processes_under_resets() {
    let _turn = testing::turn();
    let folder = Folder::new("blocks");
    let sets =
        ["medium.capacity=64 MiB", "host.memory=64 MiB", "host.retries=100", "block.ahead=8"];
    let job = "[mixed]\nrw=randrw\nbssplit=512/40:4k/40:64k/20\niodepth=32\nsize=1m\n\
        io_size=10g\nnorandommap=1\nnumber_ios=1200\nverify=crc32c\nverify_fatal=1\n";
    let run = across_two_processes((&folder, "block"), &sets, (job, "5"));
    assert_verified(&run, 0);
    assert!(run.out.contains("note: 5 of 5 resets came under the work"), "{}", run.out);
}
